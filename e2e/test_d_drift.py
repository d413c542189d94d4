"""The operator restores its deleted or edited objects within seconds, and restarts no broker."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kube import Cluster, Figure, Load, get, kubectl, unharmed, until, within

DELETED = [
    ("service", "demo-a-master"), ("service", "demo-a"), ("service", "demo-namesrv-0"), ("configmap", "demo-a"),
    ("configmap", "demo-namesrv"), ("secret", "demo-admin"), ("pdb", "demo-a"), ("networkpolicy", "demo-a"),
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
    back = within("it is back", lambda: get(demo.namespace, kind, name), 15)
    figure(f"drift: {kind} {name} deleted, back after s", round(time.monotonic() - begun, 2))
    assert back.get("data") == data, "the token and the configs are unchanged"
    assert demo.uids() == before


@pytest.mark.parametrize(("kind", "name", "edit"), EDITED, ids=[f"{k}-{n}-{i}" for i, (k, n, _) in enumerate(EDITED)])
def test_edited(demo: Cluster, kind: str, name: str, edit: dict[str, object]) -> None:
    before, spec = demo.uids(), get(demo.namespace, kind, name)
    kubectl("-n", demo.namespace, "patch", kind, name, "--type", "merge", "-p", json.dumps(edit))
    within("as before", lambda: all(get(demo.namespace, kind, name)[p] == spec[p] for p in edit), 15)
    time.sleep(1)
    assert {n: u for n, u in demo.uids().items() if u in before.values()} == before or kind == "statefulset"
    demo.wait_running()


def template(cluster: Cluster) -> Any:
    return get(cluster.namespace, "statefulset", "demo-a")["spec"]["template"]["spec"]


BY_HAND: list[tuple[str, str, dict[str, Any]]] = [
    ("statefulset", "demo-a", {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}}),
    ("statefulset", "demo-a", {"spec": {"template": {"spec": {"dnsConfig": {"searches": ["example.org"]}}}}}),
    ("service", "demo-a-master", {"spec": {"sessionAffinity": "ClientIP", "externalIPs": ["192.0.2.7"]}}),
    ("configmap", "demo-a", {"data": {"more.json": "{}"}}),
]


LAST: dict[tuple[str, str], float] = {}
"""When the fields that were added to an object were removed (monotonic seconds)."""


@pytest.mark.parametrize(("kind", "name", "added"), BY_HAND, ids=[f"{n}-{i}" for i, (_, n, _) in enumerate(BY_HAND)])
def test_fields_added_by_hand_are_removed(demo: Cluster, kind: str, name: str, added: dict[str, Any]) -> None:
    """One edit for each object or each minute: the operator does not fight with another program."""
    until("the last edit is a minute ago", lambda: time.monotonic() > LAST.get((kind, name), 0.0) + 61, 70)
    before = get(demo.namespace, kind, name)
    part = "data" if "data" in added else "spec"
    kubectl("-n", demo.namespace, "patch", kind, name, "--type", "merge", "-p", json.dumps(added))
    within("as before", lambda: get(demo.namespace, kind, name)[part] == before[part], 15)
    LAST[kind, name] = time.monotonic()
    demo.wait_running()


def test_fields_removed_from_the_spec_are_removed_from_the_pods(demo: Cluster) -> None:
    # Never: it must not evict pods of the modules beside this one.
    kubectl("create", "priorityclass", "gantry-e2e", "--value=1000", "--preemption-policy=Never", check=False)
    before = template(demo)
    resources = demo.object()["spec"].get("resources")
    tolerations = [{"key": "mq", "operator": "Exists"}]
    placement = {"nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": tolerations,
                 "priorityClassName": "gantry-e2e"}  # fmt: skip
    # With a limit alone Kubernetes would take it for the request, too.
    demo.patch({"spec": {"placement": placement, "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "1"}},
                         "imagePullSecrets": ["nowhere"]}})  # fmt: skip
    until("they are there", lambda: template(demo).get("priorityClassName") == "gantry-e2e", 30)
    demo.wait_running()
    there = template(demo)
    assert there["nodeSelector"] == placement["nodeSelector"]
    assert there["imagePullSecrets"] == [{"name": "nowhere"}]
    demo.patch({"spec": {"placement": None, "imagePullSecrets": None, "resources": resources}})
    until("they are gone", lambda: template(demo) == before, 30)
    demo.wait_running()
    kubectl("delete", "priorityclass", "gantry-e2e")


def test_a_pod_that_cannot_be_scheduled_is_replaced_after_the_correction(demo: Cluster) -> None:
    before = demo.object()["spec"].get("resources")
    demo.patch({"spec": {"resources": {"requests": {"cpu": "64"}}}})

    def pending() -> bool:
        return any(p["status"]["phase"] == "Pending" for p in demo.pods())

    until("a pod is pending", pending, 120)
    load = Load(demo, "pending")
    demo.patch({"spec": {"resources": before or {"requests": {"cpu": "100m"}}}})
    until("no pod is pending", lambda: not pending(), 60)
    demo.wait_running()
    unharmed(load.stop())


def test_a_role_label_is_corrected(demo: Cluster) -> None:
    master = demo.master_name()
    kubectl("-n", demo.namespace, "label", "pod", master, "gantry.dev/role-")
    within("the label is back", lambda: master in str(demo.masters()), 10)


def test_name_servers_come_later_than_brokers(demo: Cluster) -> None:
    """Nobody waits for an order: brokers that run find NameServers that begin, and clients go on meanwhile."""
    load = Load(demo, "nameless")
    before = demo.uids()
    servers = "gantry.dev/cluster=demo,app.kubernetes.io/component=namesrv"
    kubectl("-n", demo.namespace, "delete", "pods", "-l", servers, "--grace-period=0", "--force")
    demo.wait_running()
    fresh = Load(demo, "fresh", 3).result()
    result = load.stop()
    unharmed(result)
    unharmed(fresh)
    assert demo.uids() == before
