"""The state of members and NameServers by their pods and status streams, for rolling changes and the status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gantry_operator.api.status import NameServerRow
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.status import ObservedMember
from gantry_operator.plan import Plan
from gantry_operator.platforms.base import Deployment
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.client import Object
from gantry_operator.platforms.kubernetes.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.platform import KubernetesPlatform, pod_ip, pod_ready

REVISION_LABEL = "controller-revision-hash"


def deployments_of(stateful_set: Object, pods: KubernetesPlatform, group: str, now: datetime) -> list[Deployment]:
    """The pods of a group, compared with the newest revision of its StatefulSet."""
    newest = (stateful_set.get("status") or {}).get("updateRevision")
    out = []
    for member in pods.running(group):
        pod = pods.pod(member.name)
        stopping = pod is None or pod["metadata"].get("deletionTimestamp") is not None
        revision = None if pod is None else (pod["metadata"].get("labels") or {}).get(REVISION_LABEL)
        out.append(
            Deployment(
                name=member.name,
                number=member.number,
                outdated=not stopping and revision != newest,
                leaving=member.number >= pods.planned.get(group, member.number + 1),
                stopping=stopping,
                ready=pod_ready(pod),
                broken=pod is not None and not stopping and broken_for_good(pod, now),
            )
        )
    return out


STUCK_REASONS = frozenset(
    ("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
     "ImagePullBackOff", "InvalidImageName", "RunContainerError")
)  # fmt: skip
NOT_READY_S = 120
"""A pod that has not been ready for this long is not expected to recover by itself."""


def broken_for_good(pod: Object, now: datetime) -> bool:
    """The pod has never run, Kubernetes cannot start it, or it has not been ready for `NOT_READY_S`."""
    status = pod.get("status") or {}
    if status.get("phase") == "Pending":
        return True
    for c in status.get("containerStatuses") or []:
        waiting = (c.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK_REASONS:
            return True
    for condition in status.get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] != "True":
            since = datetime.fromisoformat(condition.get("lastTransitionTime") or now.isoformat())
            return (now - since).total_seconds() > NOT_READY_S
    return False


def observed_members(
    running: Iterable[tuple[str, int, str]], controllers: Mapping[str, GroupController], pods: KubernetesPlatform
) -> list[ObservedMember]:
    out = []
    for group, number, name in running:
        controller = controllers.get(group)
        watch = None if controller is None else controller.watches.get(number)
        heard = watch is not None and watch.reach == "ok" and watch.status is not None and watch.report is not None
        leadership = None if controller is None else controller.leadership
        pod = pods.pod(name)
        report = watch.report if watch is not None and heard else None
        out.append(
            ObservedMember(
                name=name,
                group=group,
                number=number,
                status=watch.status if watch is not None and heard else None,
                pod_ready=pod_ready(pod),
                node=None if pod is None else pod["spec"].get("nodeName"),
                in_sync=controller is not None and report is not None and controller.in_sync(report),
                master=leadership is not None and leadership.master is not None and leadership.master.member == number,
                problem=why_not(pod, "" if watch is None else watch.problem),
            )
        )
    return out


def why_not(pod: Object | None, problem: str) -> str:
    """The reason from Kubernetes why a pod's broker does not answer; else `problem`."""
    if pod is None:
        return "there is no pod"
    if pod["metadata"].get("deletionTimestamp") is not None:
        return "its pod is being stopped"
    status = pod.get("status") or {}
    for c in status.get("containerStatuses") or []:
        waiting = (c.get("state") or {}).get("waiting")
        if waiting is not None:
            return ": ".join(p for p in (waiting.get("reason"), waiting.get("message")) if p)
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"not scheduled: {condition.get('message', '')}"
    return problem


def observed_name_servers(plan: Plan | None, pods: InformerCache, *, by_pod: bool = False) -> list[NameServerRow]:
    """The NameServers with their Services' addresses. `by_pod`: only running ones, with their pods' addresses."""
    if plan is None:
        return []
    rows: list[NameServerRow] = []
    for s in plan.name_servers:
        pod = pods.get(plan.namespace, s.name)
        host = pod_ip(pod) if by_pod else names.service_host(s.name, plan.namespace)
        if host is None:
            continue
        rows.append(
            NameServerRow(
                name=s.name,
                address=f"{host}:{names.NAME_SERVER_PORT}",
                ready=pod_ready(pod),
                node=None if pod is None else pod["spec"].get("nodeName"),
            )
        )
    return rows
