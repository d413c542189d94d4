"""Drift: fields of the operator that differ. Additions of others are no drift, except in selectors and data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.objects.drift import classes_removed, differences, outdated, owned_by

CLUSTER = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}])
CLUSTER.metadata.uid = "u1"
OBJECTS = render(CLUSTER, plan(CLUSTER), OperatorSettings("broker:1"))


def as_stored(obj: dict[str, Any]) -> dict[str, Any]:
    """With additions by the API server and others."""
    live = copy.deepcopy(obj)
    live["metadata"] |= {"uid": "x", "resourceVersion": "5", "managedFields": []}
    live["metadata"]["labels"]["team"] = "mq"
    live["status"] = {"replicas": 3}
    if obj["kind"] == "Service":
        live["spec"] |= {"clusterIPs": ["10.0.0.1"], "sessionAffinity": "None"}
    if obj["kind"] == "StatefulSet":
        live["spec"]["revisionHistoryLimit"] = 10
        live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    return live


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_an_object_that_was_stored_as_requested_is_left_alone(obj: dict[str, Any]) -> None:
    assert outdated(obj, as_stored(obj)) == []


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_a_lost_owner_or_label_is_seen(obj: dict[str, Any]) -> None:
    live = as_stored(obj)
    live["metadata"]["ownerReferences"] = []
    live["metadata"]["labels"].pop("gantry.dev/cluster")
    assert set(outdated(obj, live)) == {".metadata.ownerReferences", ".metadata.labels.gantry.dev/cluster"}
    assert not owned_by(live, "u1")
    assert owned_by(obj, "u1")


def find(kind: str, name: str) -> dict[str, Any]:
    return next(o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name))


def test_one_more_label_in_a_selector_is_drift() -> None:
    """Such a Service has no endpoints."""
    wanted = find("Service", "demo-a-master")
    live = as_stored(wanted)
    live["spec"]["selector"]["extra"] = "x"
    assert outdated(wanted, live) == [".spec.selector.extra"]


@pytest.mark.parametrize(
    ("added", "seen"),
    [
        ({"from": [{"podSelector": {}}]}, ".spec.ingress[0].from"),
        ({"ports": [{"protocol": "TCP", "port": 9876, "endPort": 65535}]}, ".spec.ingress[0].ports[0].endPort"),
    ],
)
def test_a_policys_rule_with_more_than_wanted_is_drift(added: dict[str, Any], seen: str) -> None:
    """`from` is left over when the last of the allowed clients goes."""
    wanted = copy.deepcopy(find("NetworkPolicy", "demo-broker"))
    wanted["spec"]["ingress"] = [{"ports": [{"protocol": "TCP", "port": 9876}]}]
    live = as_stored(wanted)
    live["spec"]["ingress"][0] |= added
    assert outdated(wanted, live) == [seen]


def test_a_policys_peer_or_pods_with_one_more_selector_is_drift() -> None:
    """Pods of all namespaces, instead of the members; and members without a policy."""
    wanted = find("NetworkPolicy", "demo-a")
    live = as_stored(wanted)
    live["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}
    live["spec"]["podSelector"]["matchExpressions"] = [{"key": "none", "operator": "Exists"}]
    assert outdated(wanted, live) == [
        ".spec.podSelector.matchExpressions", ".spec.ingress[0].from[0].namespaceSelector",
    ]  # fmt: skip


def test_edits_are_seen() -> None:
    wanted = find("StatefulSet", "demo-a")
    live = as_stored(wanted)
    live["spec"]["replicas"] = 1
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert outdated(wanted, live) == [".spec.replicas", ".spec.template.spec.containers[0].image"]


@pytest.mark.parametrize(
    ("wanted", "found", "paths"),
    [
        ({"a": False}, {}, []),
        ({"a": []}, {}, []),
        ({"a": {}}, {}, []),
        ({"a": 0}, {}, [".a"]),
        ({"a": True}, {}, [".a"]),
        ({"a": [1]}, {"a": [1, 2]}, [".a"]),
        ({"a": {"b": 1}}, {"a": "text"}, [".a"]),
        ({"data": {"k": "v"}}, {"data": {"k": "v", "more": "x"}}, [".data.more"]),
    ],
)
def test_differences(wanted: Any, found: Any, paths: list[str]) -> None:
    assert differences(wanted, found) == paths


def test_labels_of_claim_templates_are_compared_both_ways() -> None:
    def made(labels: dict[str, str], annotations: dict[str, str] | None) -> dict[str, Any]:
        meta = {"name": "data", "labels": labels} | ({} if annotations is None else {"annotations": annotations})
        return {"kind": "StatefulSet", "metadata": {}, "spec": {"volumeClaimTemplates": [{"metadata": meta}]}}

    assert outdated(made({"a": "b"}, {}), made({"a": "b"}, None)) == []
    assert outdated(made({}, {}), made({"a": "b"}, None)) == [".spec.volumeClaimTemplates[0].metadata.labels.a"]
    assert outdated(made({}, {}), made({}, {"x": "y"})) == [".spec.volumeClaimTemplates[0].metadata.annotations.x"]
    assert outdated(made({}, {"x": "y"}), made({}, None)) == [".spec.volumeClaimTemplates[0].metadata.annotations"]


def test_a_storage_class_that_the_spec_no_longer_has_is_a_difference() -> None:
    """The API server records one owner for the whole list of claim templates."""
    named = {"spec": {"volumeClaimTemplates": [{"spec": {"storageClassName": "fasst"}}]}}
    plain: dict[str, Any] = {"spec": {"volumeClaimTemplates": [{"spec": {}}]}}
    assert classes_removed(plain, named) == [".spec.volumeClaimTemplates[0].spec.storageClassName"]
    assert classes_removed(named, named) == classes_removed(plain, plain) == classes_removed({"data": {}}, plain) == []
