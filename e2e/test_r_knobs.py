"""What a platform team needs after the first day: reasons in the status, pod templates, hibernation, GitOps."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from kube import Cluster, CommandFailed, Load, apply, example, get, kubectl, unharmed, until


def manifest(name: str, **spec: Any) -> str:
    document = yaml.safe_load(example("quickstart.yaml"))
    document["metadata"]["name"] = name
    document["spec"] |= {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}], **spec}
    return yaml.safe_dump(document)


def degraded(cluster: Cluster, words: str, timeout: float = 60) -> str:
    """The message of the condition, once it has these words."""

    def said() -> str | None:
        message = str(cluster.condition("Degraded").get("message", ""))
        return message if words in message else None

    return until(f"the condition says {words!r}", said, timeout)


def template(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = get(cluster.namespace, "statefulset", f"{cluster.name}-a")["spec"]["template"]
    return found


def test_the_reasons_of_kubernetes_reach_the_status(namespace: str) -> None:
    """A missing PriorityClass, a selector that fits no node, and a storage class that does not exist."""
    apply(namespace, manifest("reasons", placement={"priorityClassName": "no-such-class"}))
    cluster = Cluster(namespace, "reasons")
    degraded(cluster, "no PriorityClass with name no-such-class")
    until("it is not ready", lambda: cluster.condition("Ready")["status"] == "False")
    wrong = {"priorityClassName": None, "nodeSelector": {"no": "such-node"}}
    cluster.patch({"spec": {"placement": wrong, "storage": {"className": "fasst"}}})
    degraded(cluster, "not scheduled: ", 90)
    cluster.patch({"spec": {"placement": {"nodeSelector": None}}})
    degraded(cluster, '"fasst" not found', 90)
    cluster.patch({"spec": {"storage": {"className": None}}})
    cluster.wait_running(members=2)
    reasons = {e["reason"] for e in cluster.events()}
    assert "MemberNotRunning" in reasons
    said = kubectl("-n", namespace, "patch", "bc", "reasons", "--type", "merge", "-p",
                   '{"spec":{"storage":{"className":"other"}}}', check=False)  # fmt: skip
    assert get(namespace, "bc", "reasons")["spec"].get("storage", {}).get("className") is None, said
    kubectl("-n", namespace, "delete", "bc", "reasons", "--wait=false")
    until("its pods are gone", lambda: not get(namespace, "pod", selector="gantry.dev/cluster=reasons"), 90)


def test_a_quota_is_named_and_the_others_begin_without_the_member(namespace: str) -> None:
    """The pod that the quota forbids has never run: after 30 s the group begins without it."""
    pods = len(get(namespace, "pod"))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
             "spec": {"hard": {"pods": str(pods + 2)}}}  # fmt: skip
    apply(namespace, json.dumps(quota))
    apply(namespace, manifest("tight"))
    cluster = Cluster(namespace, "tight")
    try:
        said = degraded(cluster, "quota small of the namespace is used up")
        assert "exceeded" not in said
        until("a member leads", lambda: cluster.condition("Available").get("status") == "True", 120)
    finally:
        kubectl("-n", namespace, "delete", "resourcequota", "small")
    cluster.wait_running(members=2)
    kubectl("-n", namespace, "delete", "bc", "tight", "--wait=false")


def test_only_what_people_wrote_is_in_the_spec(demo: Cluster) -> None:
    written = yaml.safe_load(example("quickstart.yaml"))
    assert demo.object()["spec"] == written["spec"]
    kubectl("-n", demo.namespace, "patch", "bc", "demo", "--type", "merge", "--dry-run=server",
            "-p", '{"spec":{"resources":{"limits":{"memory":"128Mi"}}}}')  # fmt: skip


def test_both_versions_of_the_api_show_one_object(demo: Cluster) -> None:
    """Applied in either version, read in the other; nothing else changes."""
    versions, text, before = ("v1alpha1", "v1beta1"), example("quickstart.yaml"), demo.uids()
    texts = {version: text.replace("gantry.dev/v1alpha1", f"gantry.dev/{version}") for version in versions}

    def shown(version: str) -> dict[str, Any]:
        found: dict[str, Any] = get(demo.namespace, f"brokerclusters.{version}.gantry.dev", demo.name)
        assert found["apiVersion"] == f"gantry.dev/{version}"
        return found

    first = shown("v1alpha1")["metadata"]
    for applied, read in (versions[::-1], versions):
        apply(demo.namespace, texts[applied])
        one, other = shown(applied), shown(read)
        assert one["spec"] == other["spec"] == yaml.safe_load(text)["spec"]
        for found in (one, other):
            assert [found["metadata"][key] for key in ("uid", "generation")] == [first["uid"], first["generation"]]
    dry = [kubectl("-n", demo.namespace, "apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=t)
           for t in texts.values()]  # fmt: skip
    assert json.loads(dry[0])["spec"] == json.loads(dry[1])["spec"]
    explained = [kubectl("explain", "bc", "--recursive", f"--api-version=gantry.dev/{v}") for v in versions]
    assert explained[0].replace("v1alpha1", "v1beta1") == explained[1]
    with pytest.raises(CommandFailed, match="no matches for kind"):
        apply(demo.namespace, text.replace("gantry.dev/v1alpha1", "gantry.dev/v1"))
    assert demo.uids() == before
    demo.wait_running()


def test_server_side_apply_twice_changes_nothing(demo: Cluster) -> None:
    """What a GitOps tool does: no field that it applies is another's, and the operator writes nothing into the spec."""
    text = example("quickstart.yaml")
    dry = ("apply", "--server-side", "--dry-run=server", "-n", demo.namespace, "-o", "json", "-f", "-")
    kubectl("apply", "--server-side", "--force-conflicts", "-n", demo.namespace, "-f", "-", stdin=text)
    once, twice = (json.loads(kubectl(*dry, stdin=text)) for _ in range(2))
    live = json.loads(kubectl("-n", demo.namespace, "get", "bc", "demo", "-o", "json", "--show-managed-fields"))
    assert once["spec"] == twice["spec"] == live["spec"]
    assert once["metadata"]["generation"] == twice["metadata"]["generation"] == live["metadata"]["generation"]
    managers = {
        m["manager"] for m in live["metadata"]["managedFields"]
        if "f:spec" in m.get("fieldsV1", {}) and not m.get("subresource")
    }  # fmt: skip
    assert not any("gantry" in manager for manager in managers), managers
    kubectl("-n", demo.namespace, "wait", "bc/demo", "--for=condition=Ready", "--timeout=240s")


def test_a_pod_template_is_rolled_out_and_taken_back(demo: Cluster) -> None:
    before = template(demo)
    load = Load(demo, "template")
    addition = {
        "metadata": {"labels": {"team": "orders"}},
        "spec": {"hostAliases": [{"ip": "10.1.1.1", "hostnames": ["x"]}]},
    }
    demo.patch({"spec": {"podTemplate": addition}})
    until(
        "the pods have the label",
        lambda: all(p["metadata"]["labels"].get("team") == "orders" for p in demo.pods()),
        120,
    )
    demo.wait_running()
    unharmed(load.stop())
    demo.patch({"spec": {"podTemplate": {"metadata": None, "spec": {"containers": [{"name": "agent", "image": "x"}]}}}})
    refused = until(
        "it is refused", lambda: (c := demo.condition("Ready"))["reason"] == "InvalidSpec" and c["message"], 30
    )
    assert "podTemplate.allowed" in str(refused)
    demo.patch({"spec": {"podTemplate": {"spec": {"containers": None, "serviceAccountName": "default"}}}})
    until(
        "the field is named", lambda: "serviceAccountName is the operator's" in demo.condition("Ready")["message"], 30
    )
    demo.patch({"spec": {"podTemplate": None}})
    until("the template is as before", lambda: template(demo) == before, 30)
    demo.wait_running()


def test_a_log_level_changes_without_a_restart(demo: Cluster) -> None:
    before = demo.uids()
    demo.patch({"spec": {"logLevel": "WARNING"}})
    until("the broker says so", lambda: "the log level is WARNING" in kubectl(
        "-n", demo.namespace, "logs", "demo-a-0", "-c", "broker"), 120, 2)  # fmt: skip
    assert demo.uids() == before
    demo.patch({"spec": {"logLevel": None}})


def test_a_change_waits_for_the_maintenance_window(demo: Cluster) -> None:
    before = demo.uids()
    demo.patch({"spec": {"maintenanceWindow": {"schedule": "0 0 29 2 *"}, "broker": {"transactionCheckMax": 14}}})
    until("it waits", lambda: "maintenance window at 20" in demo.condition("Progressing")["message"], 30)
    assert demo.uids() == before
    demo.patch({"spec": {"maintenanceWindow": None}})
    until("the change begins", lambda: demo.uids() != before, 60)
    demo.patch({"spec": {"broker": None}})
    demo.wait_running()


@pytest.mark.parametrize("group", ["a"])
def test_a_cluster_hibernates_and_resumes_with_every_message(demo: Cluster, group: str) -> None:
    """The master stops last, volumes and the leadership record stay, and one change resumes."""
    load = Load(demo, "night")
    until("it sends", lambda: load._begun(), 60)
    sent = load.stop()
    unharmed(sent)
    epoch, end = demo.epoch(group), max(m["maxOffset"] for m in demo.status()["members"])
    demo.patch({"spec": {"hibernate": True}})
    until("it hibernates", lambda: demo.status().get("phase") == "Hibernated", 180)
    assert not [p for p in get(demo.namespace, "pod", selector="gantry.dev/cluster=demo")
                if "deletionTimestamp" not in p["metadata"]]  # fmt: skip
    assert len(get(demo.namespace, "pvc", selector="gantry.dev/cluster=demo")) == 3
    assert {m["reason"] for m in demo.status()["members"]} == {"hibernated"}
    assert demo.condition("Available")["reason"] == "Hibernated"
    demo.patch({"spec": {"hibernate": False}})
    demo.wait_running()
    assert demo.epoch(group) > epoch
    until("each has every message", lambda: min(m["maxOffset"] for m in demo.status()["members"]) >= end)
    unharmed(Load(demo, "morning", 3).result())
