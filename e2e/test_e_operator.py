"""The operator dies: the other takes over within seconds, and whatever it was doing is finished. Never two masters."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest
from kube import SYSTEM, Cluster, Figure, Host, Load, TooLate, apply, example, get, kubectl, unharmed, until, within

pytestmark = pytest.mark.alone

ROUNDS, FAILED_OVER = int(os.environ.get("E2E_OPERATOR_ROUNDS", "2")), 4
"""Rounds with two deaths of the operator each, and failovers with one. Few failovers: after the third death of a
container in a row the kubelet waits 40 s and more before it starts it again."""


TAKES_OVER_S = 8
"""The other operator leads so soon after the death of the leading one."""


def leader() -> str:
    return str(get(SYSTEM, "lease", "gantry-operator")["spec"].get("holderIdentity", ""))


def test_the_leaders_pod_is_deleted(demo: Cluster, figure: Figure) -> None:
    old = until("a leader", leader)
    kubectl("-n", SYSTEM, "delete", "pod", old, "--grace-period=0", "--force")
    begun = time.monotonic()
    within("another leader", lambda: leader() not in ("", old), TAKES_OVER_S)
    figure("operator: leader killed, another leads after s", round(time.monotonic() - begun, 1))
    demo.wait_running()


@pytest.fixture(scope="module")
def moments() -> random.Random:
    """Of the operator's deaths. E2E_SEED repeats a run's."""
    seed = int(os.environ.get("E2E_SEED", time.time_ns() % 1_000_000))
    print(f"the moments' seed is {seed}")
    return random.Random(seed)


def kill_the_leader(after_s: float) -> None:
    """Outright: it gives nothing back, so the other one begins when the Lease has run out, which names the dead one
    until then: one that lives is waited for.
    """
    time.sleep(after_s)
    living = until("a leader that lives", lambda: get(SYSTEM, "pod", leader()) and leader(), 30, 0.1)
    kubectl("-n", SYSTEM, "delete", "pod", living, "--grace-period=0", "--force", "--ignore-not-found")


def check_record(cluster: Cluster, result: dict[str, Any]) -> None:
    """By the client's answers and the log, not by any status: every SEND_OK lies where the master that gave it said
    (`Load.result`), so no second master gave one. And all follow what the registry holds.
    """
    assert result["sendOk"] > 0, result

    def same() -> bool:
        record = get(cluster.namespace, "lease", "demo-a")["metadata"]["annotations"]["gantry.dev/leadership"]
        return {m["epoch"] for m in cluster.status()["members"]} == {json.loads(record)["epoch"]}

    until("all follow the registry's epoch", same)


def test_the_operator_dies_while_a_cluster_is_made_and_a_setting_is_rolled_out(
    demo: Cluster, moments: random.Random, figure: Figure
) -> None:
    """In each round a new cluster is made beside `demo`, and a setting of `demo` changes under load."""
    made_s, rolled_s = [], []
    load = Load(demo, "rolled", senders=2)
    for i in range(ROUNDS):
        before, begun = demo.uids(), time.monotonic()
        text = example("quickstart.yaml").replace("name: demo", f"name: made{i}")
        apply(demo.namespace, text.replace("spec:", "spec:\n  reclaim: Delete"))
        demo.patch({"spec": {"broker": {"fileReservedTime": 100 + i}}})
        kill_the_leader(moments.uniform(0, 5))
        kill_the_leader(moments.uniform(0, 7))
        made = Cluster(demo.namespace, f"made{i}")
        status = made.wait_running()
        made_s.append(round(time.monotonic() - begun, 1))
        assert status["readyMembers"] == "3/3"
        made.first_epoch()  # One bootstrap, by one of the operators.
        found = Load(made, f"made{i}", 2).result()
        unharmed(found)
        kubectl("-n", demo.namespace, "delete", "bc", made.name)

        def rolled(before: dict[str, str] = before) -> bool:
            now = demo.uids()
            others = len(now) == 3 and not set(now.values()) & set(before.values())
            return others and demo.status()["phase"] == "Running"

        until("everybody is replaced", rolled, 150, 0.5)
        demo.wait_running()
        rolled_s.append(round(time.monotonic() - begun, 1))
    result = load.stop(300)
    figure(f"operator killed during {ROUNDS} creations: apply to Running, s", made_s)
    figure(f"operator killed during {ROUNDS} roll-outs", result | {"rolledOutS": rolled_s})
    check_record(demo, result)
    unharmed(result)


def test_the_operator_dies_during_failovers(demo: Cluster, host: Host, moments: random.Random, figure: Figure) -> None:
    """At random moments around the master's death."""
    load = Load(demo, "operator", senders=2)
    for _ in range(FAILED_OVER):
        master, epoch = demo.master(), demo.epoch()
        host.signal("KILL", master)
        kill_the_leader(moments.uniform(0, 1.0))
        until("a leader", leader, 30)
        demo.wait_recovered(epoch, 120)
    result = load.stop(300)
    figure(f"operator killed during {FAILED_OVER} failovers", result)
    check_record(demo, result)


def test_without_any_operator_the_brokers_go_on(demo: Cluster) -> None:
    kubectl("-n", SYSTEM, "scale", "deployment", "-l", "app.kubernetes.io/name=gantry-operator", "--replicas=0")
    try:
        until("no operator", lambda: not get(SYSTEM, "pods", selector="app.kubernetes.io/name=gantry-operator"), 60)
        result = Load(demo, "alone", 15).result()
        unharmed(result)
        if result["sendOk"] <= 100:
            raise TooLate(f"few sends: {result}")
    finally:
        kubectl("-n", SYSTEM, "scale", "deployment", "-l", "app.kubernetes.io/name=gantry-operator", "--replicas=2")
    until("a leader", leader, 60)
    demo.wait_running()
