"""The master dies in several ways while a producer sends: the client's wait is short, and nothing is lost."""

from __future__ import annotations

import time

import pytest
from kube import Cluster, Figure, Host, Load, kubectl, unharmed

KILLED_MS = 2_000
SILENT_MS = 5_500
BUSY_MS = 5_000


def test_the_masters_pod_is_deleted(demo: Cluster, figure: Figure) -> None:
    load = Load(demo, "delete")
    for _ in range(2):
        old, epoch = demo.master_name(), demo.epoch()
        kubectl("-n", demo.namespace, "delete", "pod", old, "--wait=false")
        demo.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("failover: master's pod deleted twice", result)
    unharmed(result, KILLED_MS)


def test_the_masters_process_is_killed(demo: Cluster, host: Host, figure: Figure) -> None:
    load = Load(demo, "kill9")
    for _ in range(3):
        master = demo.master()
        old, epoch = master["metadata"]["name"], demo.epoch()
        host.signal("KILL", master)
        demo.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("failover: master's process killed three times", result)
    # A busy machine's kube-proxy may need longer to move a Service than the client's limit of 3 s for a send.
    unharmed(result | {"errors": 0}, BUSY_MS)


def test_the_masters_process_is_frozen(demo: Cluster, host: Host, figure: Figure) -> None:
    load = Load(demo, "frozen")
    master = demo.master()
    old = master["metadata"]["name"]
    host.signal("STOP", master)
    try:
        demo.wait_other_master(old)
        time.sleep(2)
    finally:
        host.signal("CONT", master)
    result = load.stop()
    figure("failover: master's process frozen", result)
    # A request that the frozen master has read runs into the client's time limit of 3 s.
    unharmed(result | {"errors": 0}, SILENT_MS)
    demo.wait_running()


def test_a_planned_switchover_shows_no_error(demo: Cluster, figure: Figure) -> None:
    load = Load(demo, "switch")
    for _ in range(3):
        old, epoch = demo.master_name(), demo.epoch()
        demo.switch_over()
        demo.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("switchover: three times by annotation", result)
    unharmed(result, KILLED_MS)
    assert demo.status()["lastFailover"]["planned"] is True


def test_a_node_is_drained(demo: Cluster, figure: Figure) -> None:
    master = demo.master()
    node = master["spec"]["nodeName"]
    nodes = [n for n in kubectl("get", "nodes", "-o", "name").split() if "control-plane" not in n]
    if len(nodes) < 2:
        pytest.skip("the broker of a drained node needs another node to go to: set E2E_NODES to 2 or more")
    other = next(n.removeprefix("node/") for n in nodes if n != f"node/{node}")
    load = Load(demo, "drain", node=other)
    kubectl(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--pod-selector",
        f"gantry.dev/cluster={demo.name}", timeout=150,
    )  # fmt: skip
    kubectl("uncordon", node)
    result = load.stop()
    figure("drain of the master's node", result)
    unharmed(result, KILLED_MS)
    demo.wait_running()
