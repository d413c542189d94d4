"""Fields with an owner that the desired object lacks: what an apply removes, and what a replacement has to."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.names import FIELD_MANAGER
from gantry_operator.platforms.kubernetes.objects.managed_fields import surplus, without

CLUSTER = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}])
CLUSTER.metadata.uid = "u1"
OBJECTS = render(CLUSTER, plan(CLUSTER), OperatorSettings("broker:1"))
KEYS = ("name", "mountPath", "containerPort", "port", "uid")
ATOMIC = ("nodeSelector", "command", "args", "volumeClaimTemplates", "matchLabels", "accessModes", "tolerations")


def fields_of(value: Any) -> dict[str, Any]:
    """FieldsV1 of a value, as the API server writes them for these kinds."""
    out: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner and key not in ATOMIC:
            out[f"f:{key}"] = {".": {}, **fields_of(inner)}
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict) and key not in ATOMIC:
            name = next((k for k in KEYS if k in inner[0]), None)
            out[f"f:{key}"] = (
                {} if name is None
                else {"k:" + json.dumps({name: i[name]}): {".": {}, **fields_of(i)} for i in inner}
            )  # fmt: skip
        else:
            out[f"f:{key}"] = {}
    return out


def entry(
    fields: dict[str, Any], manager: str = FIELD_MANAGER, operation: str = "Apply", **more: Any
) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields, **more}


def stored(obj: dict[str, Any]) -> dict[str, Any]:
    live = copy.deepcopy(obj)
    owned = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind")}
    live["metadata"] |= {"uid": "x", "resourceVersion": "5", "managedFields": [entry(fields_of(owned))]}
    live["status"] = {"replicas": 3}
    return live


def find(kind: str, name: str) -> dict[str, Any]:
    return next(o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_a_stored_object_has_no_surplus(obj: dict[str, Any]) -> None:
    assert surplus(obj, stored(obj)) == ([], [])


def test_fields_of_a_former_spec_are_our_own_surplus() -> None:
    former = find("StatefulSet", "demo-a")
    former = copy.deepcopy(former)
    pod = former["spec"]["template"]["spec"]
    pod |= {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "high", "imagePullSecrets": [{"name": "key"}]}
    pod["containers"][0]["resources"]["limits"]["cpu"] = "1"
    own, others = surplus(find("StatefulSet", "demo-a"), stored(former))
    path = ".spec.template.spec"
    assert sorted(own) == [
        f'{path}.containers[{{"name": "broker"}}].resources.limits.cpu',
        f'{path}.imagePullSecrets[{{"name": "key"}}]',
        f'{path}.imagePullSecrets[{{"name": "key"}}].name',
        f"{path}.nodeSelector",
        f"{path}.priorityClassName",
    ]
    assert others == []


def test_a_key_that_left_a_map_with_one_owner_is_surplus() -> None:
    wanted, former = copy.deepcopy(find("StatefulSet", "demo-a")), copy.deepcopy(find("StatefulSet", "demo-a"))
    wanted["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    former["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd", "zone": "a"}
    assert surplus(wanted, stored(former)) == ([".spec.template.spec.nodeSelector"], [])
    assert surplus(former, stored(wanted)) == ([], [])


def test_fields_added_by_hand_are_taken_out_and_nothing_else() -> None:
    wanted = find("StatefulSet", "demo-a")
    live = stored(wanted)
    untouched = copy.deepcopy(live)
    pod = live["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"disk": "ssd"}
    pod["containers"].append({"name": "shell", "image": "sh", "imagePullPolicy": "Always"})
    live["metadata"]["labels"]["team"] = "mq"
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "today"
    by_hand = {
        "f:metadata": {"f:labels": {"f:team": {}}},
        "f:spec": {
            "f:template": {
                "f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}},
                "f:spec": {
                    "f:nodeSelector": {},
                    "f:containers": {'k:{"name":"shell"}': {".": {}, "f:name": {}, "f:image": {}}},
                },
            }
        },
    }
    live["metadata"]["managedFields"].append(entry(by_hand, "kubectl-edit", "Update"))
    own, others = surplus(wanted, live)
    assert own == []
    made = without(live, wanted, others)
    annotations = made["spec"]["template"]["metadata"]["annotations"]
    assert annotations.pop("kubectl.kubernetes.io/restartedAt") == "today", "a requested restart stays"
    assert made == {"spec": untouched["spec"]}


def test_a_map_that_becomes_empty_goes_too() -> None:
    wanted = find("Service", "demo-a-master")
    live = stored(wanted)
    live["spec"] |= {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10_800}}}
    added = {
        "f:sessionAffinity": {},
        "f:sessionAffinityConfig": {".": {}, "f:clientIP": {".": {}, "f:timeoutSeconds": {}}},
    }
    live["metadata"]["managedFields"].append(entry({"f:spec": added}, "kubectl-patch", "Update"))
    own, others = surplus(wanted, live)
    assert own == []
    assert without(live, wanted, others) == {"spec": wanted["spec"]}


def test_defaults_within_a_value_of_one_owner_are_no_surplus() -> None:
    wanted = find("StatefulSet", "demo-a")
    live = stored(wanted)
    env = live["spec"]["template"]["spec"]["containers"][0]["env"]
    for variable in env:
        if "fieldRef" in variable.get("valueFrom", {}):
            variable["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    fields = live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    for item in fields['k:{"name": "broker"}']["f:env"].values():
        if "f:valueFrom" in item:
            item["f:valueFrom"] = {"f:fieldRef": {}}
    assert surplus(wanted, live) == ([], [])


def test_status_and_changes_of_webhooks_are_no_surplus() -> None:
    wanted = find("StatefulSet", "demo-a")
    live = stored(wanted)
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    changed = {"f:spec": {"f:template": {"f:spec": {"f:dnsPolicy": {}}}}}
    live["metadata"]["managedFields"] += [
        entry({"f:status": {"f:replicas": {}}}, "kube-controller-manager", "Update", subresource="status"),
        entry(changed, FIELD_MANAGER, "Update"),
    ]
    assert surplus(wanted, live) == ([], [])
