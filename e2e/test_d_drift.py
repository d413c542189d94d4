"""The operator restores its deleted or edited objects within seconds, and restarts no broker."""

from __future__ import annotations

import json
import time

import pytest
from kube import Cluster, Figure, Load, get, kubectl, until

DELETED = [
    ("service", "demo-a-master"), ("service", "demo-a"), ("service", "demo-namesrv-0"), ("configmap", "demo-a"),
    ("configmap", "demo-namesrv"), ("secret", "demo-admin"), ("pdb", "demo-a"), ("networkpolicy", "demo"),
    ("serviceaccount", "demo-broker"),
]  # fmt: skip
EDITED = [
    ("service", "demo-a-master", {"spec": {"selector": {"gantry.dev/role": "slave"}}}),
    ("service", "demo-a-master", {"spec": {"selector": {"extra": "label"}}}),
    ("configmap", "demo-a", {"data": {"demo-a-0.json": "{}"}}),
    ("pdb", "demo-a", {"spec": {"maxUnavailable": 3}}),
    ("statefulset", "demo-a", {"spec": {"replicas": 1}}),
]


@pytest.mark.parametrize(("kind", "name"), DELETED, ids=[f"{k}-{n}" for k, n in DELETED])
def test_deleted(demo: Cluster, kind: str, name: str, figure: Figure) -> None:
    before = demo.uids()
    data = get(demo.namespace, kind, name).get("data")
    kubectl("-n", demo.namespace, "delete", kind, name)
    begun = time.monotonic()
    back = until("it is back", lambda: get(demo.namespace, kind, name), 15, 0.1)
    figure(f"drift: {kind} {name} deleted, back after s", round(time.monotonic() - begun, 2))
    assert back.get("data") == data, "the token and the configs are unchanged"
    assert demo.uids() == before


@pytest.mark.parametrize(("kind", "name", "edit"), EDITED, ids=[f"{k}-{n}-{i}" for i, (k, n, _) in enumerate(EDITED)])
def test_edited(demo: Cluster, kind: str, name: str, edit: dict[str, object]) -> None:
    before, spec = demo.uids(), get(demo.namespace, kind, name)
    kubectl("-n", demo.namespace, "patch", kind, name, "--type", "merge", "-p", json.dumps(edit))
    until("as before", lambda: all(get(demo.namespace, kind, name)[p] == spec[p] for p in edit), 15, 0.1)
    time.sleep(1)
    assert {n: u for n, u in demo.uids().items() if u in before.values()} == before or kind == "statefulset"
    demo.wait_running()


def test_a_role_label_is_corrected(demo: Cluster) -> None:
    master = demo.master_name()
    kubectl("-n", demo.namespace, "label", "pod", master, "gantry.dev/role-")
    until("the label is back", lambda: demo.master_name() == master, 10, 0.1)


def test_name_servers_come_later_than_brokers(demo: Cluster) -> None:
    """Nobody waits for an order: brokers that run find NameServers that begin, and clients go on meanwhile."""
    load = Load(demo, "nameless")
    before = demo.uids()
    servers = "gantry.dev/cluster=demo,app.kubernetes.io/component=namesrv"
    kubectl("-n", demo.namespace, "delete", "pods", "-l", servers, "--grace-period=0", "--force")
    demo.wait_running()
    fresh = Load(demo, "fresh", 3).result()
    result = load.stop()
    assert result["errors"] == fresh["errors"] == 0, (result, fresh)
    assert demo.uids() == before
