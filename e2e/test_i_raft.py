"""A group that elects its leader by itself: the Service follows the leader, and nothing is lost."""

from __future__ import annotations

import time

import pytest
from kube import Cluster, Figure, Host, Load, TooLate, apply, example, kubectl, unharmed, until

KILLED_MS = 3_000
RESTARTED_MS = 20_000
"""Until the kubelet has started the killed container again, on a busy machine. Only then does its address answer."""
AWAY_S = 30
"""Longer than any Lease and any retry of a client."""


@pytest.fixture(scope="module")
def elected(namespace: str) -> Cluster:
    """examples/raft.yaml, ready."""
    apply(namespace, example("raft.yaml"))
    cluster = Cluster(namespace, "elected")
    cluster.wait_running()
    return cluster


def test_the_leader_is_killed_and_handed_over(elected: Cluster, any_host: Host, figure: Figure) -> None:
    load = Load(elected, "raft")
    old, epoch = elected.master_name(), elected.epoch()
    elected.switch_over()
    elected.wait_recovered_from(old, epoch)
    if elected.epoch() > epoch + 1:
        raise TooLate(f"an election that nobody asked for, or a second request: epoch {elected.epoch()} after {epoch}")
    leader = elected.master()
    old, epoch = leader["metadata"]["name"], elected.epoch()
    if any_host.available:
        any_host.signal("KILL", leader)
    else:
        kubectl("-n", elected.namespace, "delete", "pod", old, "--grace-period=0", "--force", "--wait=false")
    elected.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("Raft: leader handed over, then killed", result)
    unharmed(result | {"errors": 0}, KILLED_MS)
    status = elected.status()
    assert status["members"][0]["epoch"] > 1
    assert elected.object()["spec"]["mode"] == "Raft"


def test_members_come_and_go_and_leaders_lie_on_different_nodes(elected: Cluster, figure: Figure) -> None:
    """3 to 5 to 3 members under load; and a second group's leader does not stay on the first one's node."""
    before = elected.uids()
    load = Load(elected, "members", senders=2)
    grown = [{"name": "a", "members": 5}, {"name": "b", "members": 3}]
    elected.patch({"spec": {"brokerGroups": grown}})
    elected.wait_running(members=8)
    assert before.items() <= elected.uids().items(), "no broker was restarted for it"
    node = elected.master("a")["spec"]["nodeName"]
    if elected.master("b")["spec"]["nodeName"] != node:
        beside = next(p for p in elected.pods("gantry.dev/group=b") if p["spec"]["nodeName"] == node)
        elected.switch_over(f"b={beside['metadata']['name']}")

    def spread() -> bool:
        """The operator may spread them before a look at the Services shows both on one node."""
        seen = any("has 2 leaders" in e["message"] for e in elected.events())
        return seen and elected.master("a")["spec"]["nodeName"] != elected.master("b")["spec"]["nodeName"]

    until("the leaders are spread", spread, 60)
    elected.patch({"spec": {"brokerGroups": [{"name": "a", "members": 3}, *grown[1:]]}})
    left = {f"elected-a-{i}" for i in range(3)}
    until("their pods are gone", lambda: {p["metadata"]["name"] for p in elected.pods("gantry.dev/group=a")} == left)
    elected.wait_running(members=6)
    result = load.stop()
    figure("Raft: members 3 to 5 to 3, leaders spread", result)
    unharmed(result)
    assert before.items() <= elected.uids().items(), "no broker was restarted for it"
    removed = [e["message"] for e in elected.events() if e["reason"] == "MemberRemoved"]
    if len(removed) != 2:
        raise TooLate(f"an event is lost if the operator loses its Lease in that moment: {removed}")
    assert "group a: member 3 has left the group" in removed, "the last one: the highest leaves first"


@pytest.mark.alone
def test_it_serves_without_the_api_server(elected: Cluster, host: Host, figure: Figure) -> None:
    """Nothing moves the Service, so the member in the former leader's pod carries clients to the new leader."""
    load = Load(elected, "noapi")
    leader, epoch = elected.master(), elected.epoch()
    with host.without_api_server():
        host.signal("KILL", leader)
        time.sleep(AWAY_S)
    elected.wait_recovered_from(leader["metadata"]["name"], epoch)
    result = load.stop()
    figure(f"Raft: API server away for {AWAY_S} s, leader killed", result)
    unharmed(result | {"errors": 0}, RESTARTED_MS)
