"""The operator dies: the other takes over within seconds, and whatever it was doing is finished. Never two masters."""

from __future__ import annotations

import json
import random
import time

import pytest
from kube import SYSTEM, Cluster, Figure, Host, Load, get, kubectl, until


def leader() -> str:
    return str(get(SYSTEM, "lease", "gantry-operator")["spec"].get("holderIdentity", ""))


def test_the_leaders_pod_is_deleted(demo: Cluster, figure: Figure) -> None:
    old = until("a leader", leader)
    kubectl("-n", SYSTEM, "delete", "pod", old, "--grace-period=0", "--force")
    begun = time.monotonic()
    until("another leader", lambda: leader() not in ("", old), 30, 0.1)
    took = time.monotonic() - begun
    figure("operator: leader killed, another leads after s", round(took, 1))
    assert took < 12
    demo.wait_running()


def test_the_operator_dies_during_failovers(demo: Cluster, host: Host, figure: Figure) -> None:
    """At random moments after the master's death. The log, not the status, says that no master acknowledged in vain."""
    if not host.available:
        pytest.skip("needs access to the nodes' processes: kind or the local scripts")
    seed = time.time_ns() % 1_000_000
    moments = random.Random(seed)
    rounds = 4
    load = Load(demo, "operator", 17 * rounds)
    for _ in range(rounds):
        master, epoch = demo.master(), demo.epoch()
        host.signal("KILL", master["metadata"]["name"], master["spec"]["nodeName"])
        time.sleep(moments.uniform(0, 1.0))
        kubectl("-n", SYSTEM, "delete", "pod", leader(), "--grace-period=0", "--force", check=False)
        until("a leader", leader, 30)
        demo.wait_recovered(epoch, 60)
    result = load.result(300)
    figure(f"operator killed during {rounds} failovers (seed {seed})", result)
    assert result["lost"] == 0, (seed, result)
    cell = json.loads(get(demo.namespace, "lease", "demo-a")["metadata"]["annotations"]["gantry.dev/cell"])
    assert cell["epoch"] > rounds


def test_without_any_operator_the_brokers_go_on(demo: Cluster) -> None:
    kubectl("-n", SYSTEM, "scale", "deployment", "-l", "app.kubernetes.io/name=gantry-operator", "--replicas=0")
    try:
        until("no operator", lambda: not get(SYSTEM, "pods", selector="app.kubernetes.io/name=gantry-operator"), 60)
        result = Load(demo, "alone", 4).result()
        assert result["errors"] == result["lost"] == 0
        assert result["sendOk"] > 100
    finally:
        kubectl("-n", SYSTEM, "scale", "deployment", "-l", "app.kubernetes.io/name=gantry-operator", "--replicas=2")
    until("a leader", leader, 60)
    demo.wait_running()
