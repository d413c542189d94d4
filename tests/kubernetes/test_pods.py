"""Data from pods and Services: members' addresses, lost members, external addresses, preference, volumes, Leases."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.platform import ProcessState
from gantry_operator.cluster.rolling_change import member_states
from gantry_operator.failover.model import Report
from gantry_operator.plan.order import next_step
from gantry_operator.plan.plan import MemberPlan, plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.lease_registry import LEADERSHIP, entry_of
from gantry_operator.platforms.kubernetes.api.pod_state import REVISION_LABEL, broken_for_good, pod_ready, why_not
from gantry_operator.platforms.kubernetes.manifests import access, external
from gantry_operator.platforms.kubernetes.members.member_state import awaited_change, deployments_of
from gantry_operator.platforms.kubernetes.members.platform import process_state_of
from gantry_operator.platforms.kubernetes.objects import volumes
from gantry_operator.platforms.kubernetes.requests.switchover_request import new_switchover_request, parse_switchover
from gantry_operator.registry.base import RegistryUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(ip: str | None = "10.0.0.1", phase: str = "Running", deleted: bool = False, **status: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "demo-a-0", "namespace": "mq"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": meta, "spec": {}, "status": {"phase": phase, **({"podIP": ip} if ip else {}), **status}}


@pytest.mark.parametrize(
    ("found", "leaving", "facts"),
    [
        (None, False, ProcessState(gone=True)),
        (pod(), False, ProcessState()),
        (pod(ip=None, phase="Pending"), False, ProcessState(gone=True)),
        (pod(phase="Failed"), False, ProcessState(gone=True)),
        (pod(deleted=True), False, ProcessState(deleting=True)),
        (pod(), True, ProcessState(deleting=True)),
    ],
)
def test_every_way_for_a_pod_to_go_is_a_fact(found: dict[str, Any] | None, leaving: bool, facts: ProcessState) -> None:
    """A master whose pod and volume are deleted together is gone at once: the failover waits for neither."""
    assert process_state_of(found, None, leaving=leaving) == facts


def test_an_unscheduled_pod_whose_claim_never_had_a_volume_has_no_disk() -> None:
    """Rule 22: an existing volume may hold the lost leadership record, whether its pod runs or not."""
    pending, unbound = pod(ip=None, phase="Pending"), {"spec": {}, "status": {"phase": "Pending"}}
    bound = {"spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}}
    assert process_state_of(pending, unbound, leaving=False) == ProcessState(gone=True, never_ran=True)
    assert not process_state_of(pending, bound, leaving=False).never_ran
    assert not process_state_of(pending, None, leaving=False).never_ran, "the claim is not known"
    # A quota may forbid the pod. A claim without a volume never had one: no pod of it has ever run.
    assert process_state_of(None, unbound, leaving=False).never_ran
    assert not process_state_of(None, bound, leaving=False).never_ran
    assert not process_state_of(None, None, leaving=False).never_ran
    placed = pending | {"spec": {"nodeName": "n1"}}
    assert not process_state_of(placed, unbound, leaving=False).never_ran, "it may have been given one just now"


def ready(value: str, since: timedelta = timedelta()) -> dict[str, Any]:
    return {"type": "Ready", "status": value, "lastTransitionTime": (NOW - since).isoformat()}


def test_a_pod_is_broken_if_kubernetes_cannot_start_it_not_if_it_is_slow() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert broken_for_good(pod(containerStatuses=[waiting]), NOW)
    assert why_not(pod(containerStatuses=[waiting]), "").startswith("ImagePullBackOff: no such image; build the image")
    assert not broken_for_good(pod(conditions=[ready("False", timedelta(seconds=30))]), NOW)
    assert broken_for_good(pod(conditions=[ready("False", timedelta(seconds=300))]), NOW)
    assert not broken_for_good(pod(conditions=[ready("True", timedelta(days=3))]), NOW)
    assert broken_for_good(pod(ip=None, phase="Pending"), NOW), "it never ran, so nothing is lost with it"


def test_brokers_that_serve_are_not_broken_because_their_kubelets_are_away() -> None:
    """Kubernetes reports all pods of such nodes as not ready. They would be replaced together, not one by one."""
    ids = [MemberId(n, "x") for n in range(3)]
    members = [MemberPlan(f"demo-a-{n}", "a", n) for n in range(3)]
    reports = [Report(ids[0], "Master", 2), *(Report(i, "Slave", 2, link="connected") for i in ids[1:])]
    watches = {n: SimpleNamespace(reach="ok", report=r) for n, r in enumerate(reports)}
    away = pod(conditions=[ready("False", timedelta(seconds=300))])
    loop: Any = SimpleNamespace(
        leadership=LeadershipRecord(2, 1, ids[0], frozenset(ids)), watches=watches, in_sync=lambda report: True
    )
    pods: Any = SimpleNamespace(running=lambda group: members, pod=lambda name: away, planned={"a": 3})
    stateful_set = {"status": {"updateRevision": "new"}}
    states = member_states(deployments_of(stateful_set, pods, "a", NOW), loop)
    assert [s.outdated for s in states] == [True] * 3
    assert next_step(states).kind == "wait"
    watches[2].report = replace(reports[2], link="refused")
    step = next_step(member_states(deployments_of(stateful_set, pods, "a", NOW), loop))
    assert (step.kind, step.member) == ("replace", "demo-a-2")


def test_a_change_is_awaited_until_every_pod_has_it() -> None:
    """Also before Kubernetes has computed the revision that pods are compared with."""
    old = [{"metadata": {"name": f"demo-a-{n}", "labels": {REVISION_LABEL: "old"}}} for n in range(2)]
    new = [{"metadata": {"name": f"demo-a-{n}", "labels": {REVISION_LABEL: "new"}}} for n in range(2)]

    def said(seen: int, revision: str, pods: list[Any]) -> str:
        status = {"observedGeneration": seen, "updateRevision": revision}
        return awaited_change({"metadata": {"name": "demo-a", "generation": 2}, "status": status}, pods)

    assert said(1, "old", old) == "Kubernetes has not seen the newest demo-a yet"
    assert said(2, "new", old) == "to be replaced: demo-a-0, demo-a-1"
    assert said(2, "new", [new[0], old[1]]) == "to be replaced: demo-a-1"
    assert said(2, "new", new) == ""


def test_a_pod_that_is_being_stopped_is_not_ready() -> None:
    assert pod_ready(pod(conditions=[ready("True")]))
    assert not pod_ready(pod(deleted=True, conditions=[ready("True")]))
    assert not pod_ready(None)


OUTSIDE = BrokerCluster.make(
    "demo",
    "mq",
    brokerGroups=[{"name": "a", "members": 2}],
    external={"type": "NodePort", "host": "{name}.{group}.x", "unprotected": True},
)


def node_ports(first: int) -> dict[str, Any]:
    p = plan(OUTSIDE)
    return {
        e.service: {"spec": {"ports": [{"nodePort": first + i}]}} for i, e in enumerate(external.endpoints(OUTSIDE, p))
    }


def test_external_addresses_are_known_once_every_service_has_one() -> None:
    p = plan(OUTSIDE)
    services = node_ports(30000)
    known, missing = external.addresses(OUTSIDE, p, services)
    assert missing == []
    assert known == {
        "demo-namesrv-0": "demo-namesrv-0.namesrv.x:30000",
        "demo-namesrv-1": "demo-namesrv-1.namesrv.x:30001",
        "demo-a": "demo-a.a.x:30002",
        "demo-a-0": "demo-a-0.a.x:30003",
        "demo-a-1": "demo-a-1.a.x:30004",
    }
    del services["demo-a-external"]
    services["demo-a-0-external"]["spec"]["ports"][0].pop("nodePort")
    _, missing = external.addresses(OUTSIDE, p, services)
    assert missing == ["demo-a-external", "demo-a-0-external"]


def test_load_balancers_report_their_own_host() -> None:
    cluster = BrokerCluster.make(
        "demo", brokerGroups=[{"name": "a"}], external={"type": "LoadBalancer", "unprotected": True}
    )
    e = external.endpoints(cluster, plan(cluster))[0]
    outside = cluster.spec.external
    assert outside is not None
    waiting: dict[str, Any] = {"spec": {}, "status": {"loadBalancer": {}}}
    assert external.address(cluster, outside, e, waiting) is None
    given = {"spec": {}, "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}}}
    assert external.address(cluster, outside, e, given) == "lb.example.com:9876"


def test_a_service_that_comes_back_keeps_its_port() -> None:
    made = external.services(OUTSIDE, plan(OUTSIDE), {"demo-a-external": 31000})
    ports = {s["metadata"]["name"]: s["spec"]["ports"][0].get("nodePort") for s in made}
    assert ports["demo-a-external"] == 31000
    assert ports["demo-a-0-external"] is None


def test_switchover_requests() -> None:
    assert parse_switchover("a") == ("a", None)
    assert parse_switchover(new_switchover_request("a", "demo-a-2")) == ("a", "demo-a-2")
    assert parse_switchover("a=a-1") == ("a", "a-1")
    assert new_switchover_request("a", None) != new_switchover_request("a", None)


def test_volumes_belong_to_the_cluster_only_under_reclaim_delete() -> None:
    kept = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}])
    gone = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], reclaim="Delete")
    other = {"kind": "Backup", "name": "nightly", "uid": "b"}
    assert volumes.owners_wanted(kept, [other]) == [other]
    wanted = volumes.owners_wanted(gone, [other])
    assert [o["kind"] for o in wanted] == ["Backup", "BrokerCluster"]
    assert volumes.owners_wanted(kept, wanted) == [other]
    assert volumes.owners_wanted(gone, wanted) == wanted


def test_volumes_only_grow() -> None:
    claim = {"spec": {"resources": {"requests": {"storage": "10Gi"}}}}
    assert volumes.growth(claim, "20Gi") == "20Gi"
    assert volumes.growth(claim, "10240Mi") is None
    assert volumes.growth(claim, "1Gi") is None


def lease(text: str | None) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "demo-a", "resourceVersion": "7"}
    if text is not None:
        meta["annotations"] = {LEADERSHIP: text}
    return {"metadata": meta}


def test_a_lease_without_a_leadership_record_is_not_an_empty_registry() -> None:
    """Rule 22: epochs must not restart after an edit of the Lease."""
    leadership = LeadershipRecord(3, 5, MemberId(1, "x"), frozenset({MemberId(1, "x")}))
    assert entry_of(lease(json.dumps(leadership.to_json()))).leadership == leadership
    for text in (None, "", "{}", '{"epoch": 1}', "[1]"):
        with pytest.raises(RegistryUnavailable, match="delete"):
            entry_of(lease(text))


def test_the_admin_token_is_read_back() -> None:
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}])
    assert access.token_of(access.admin_secret(cluster, "sécret")) == "sécret"
    assert access.token_of({"data": {"token": "***"}}) is None
    assert access.token_of({}) is None
    assert names.admin_secret("demo") == "demo-admin"
