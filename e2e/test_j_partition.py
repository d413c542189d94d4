"""The master is cut off from all but its clients; its pod and its volume are deleted together."""

from __future__ import annotations

import pytest
from kube import SYSTEM, Cluster, Figure, Host, Load, get, kubectl, unharmed, until

pytestmark = pytest.mark.alone

SILENT_MS = 7_000
"""Two seconds until it counts as silent, then the client's limit for a send without a confirmation."""


def test_a_master_that_only_clients_reach_acknowledges_nothing(demo: Cluster, host: Host, figure: Figure) -> None:
    """It accepts sends, and may acknowledge none: the others lead without it, and it follows later."""
    load = Load(demo, "cut-off")
    master, epoch = demo.master(), demo.epoch()
    old = master["metadata"]["name"]
    others = [
        p for p in get(demo.namespace, "pods", selector="gantry.dev/cluster=demo") if p["metadata"]["name"] != old
    ]
    operators = get(SYSTEM, "pods", selector="app.kubernetes.io/name=gantry-operator")
    host.separate(master, [*others, *operators])
    try:
        demo.wait_other_master(old, 20)
        until("it is seen to be away", lambda: old in demo.condition("Degraded")["message"], 30)
    finally:
        host.reunite(master)
    demo.wait_recovered(epoch)
    result = load.stop()
    figure("partition: master cut off from all but its clients", result)
    unharmed(result | {"errors": 0}, SILENT_MS)


def test_the_masters_pod_and_volume_are_deleted_together(demo: Cluster, figure: Figure) -> None:
    """As the sudden loss of a machine with its disk: another member leads, and the new, empty disk gets a copy."""
    load = Load(demo, "volume")
    old, epoch = demo.master_name(), demo.epoch()
    before = get(demo.namespace, "pvc", f"data-{old}")["metadata"]["uid"]
    kubectl("-n", demo.namespace, "delete", "pvc", f"data-{old}", "--wait=false")
    kubectl("-n", demo.namespace, "delete", "pod", old, "--grace-period=0", "--force")
    demo.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("master's pod and volume deleted together", result)
    assert get(demo.namespace, "pvc", f"data-{old}")["metadata"]["uid"] != before
    until("it is in sync", lambda: next(m for m in demo.status()["members"] if m["name"] == old)["inSync"])
    unharmed(result | {"errors": 0}, SILENT_MS)
