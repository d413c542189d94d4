"""A group that elects its leader by itself: the Service follows whoever leads, and nothing is lost."""

from __future__ import annotations

import pytest
from kube import Cluster, Figure, Host, Load, apply, example

KILLED_MS = 3_000


@pytest.fixture(scope="module")
def elected(namespace: str) -> Cluster:
    """examples/raft.yaml, ready."""
    apply(namespace, example("raft.yaml"))
    cluster = Cluster(namespace, "elected")
    cluster.wait_running()
    return cluster


def test_the_leader_is_killed_and_handed_over(elected: Cluster, host: Host, figure: Figure) -> None:
    load = Load(elected, "raft", 22)
    old, epoch = elected.master_name(), elected.epoch()
    elected.switch_over()
    elected.wait_recovered_from(old, epoch)
    assert elected.epoch() == epoch + 1, "one wish, one transfer"
    if host.available:
        leader = elected.master()
        old, epoch = leader["metadata"]["name"], elected.epoch()
        host.signal("KILL", old, leader["spec"]["nodeName"])
        elected.wait_recovered_from(old, epoch)
    result = load.result()
    figure("Raft: leader handed over, then killed", result)
    assert result["lost"] == 0, result
    assert result["maxGapMs"] < KILLED_MS, result
    status = elected.status()
    assert status["members"][0]["epoch"] > 1
    assert elected.object()["spec"]["mode"] == "Raft"
