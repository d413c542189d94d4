"""The state of members and NameServers by their pods and status streams, for rolling changes and the status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from gantry_operator.api.annotations import RESTART
from gantry_operator.api.status import NameServerRow
from gantry_operator.cluster.platform import Deployment
from gantry_operator.plan.plan import Plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import Object
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import (
    REVISION_LABEL,
    broken_for_good,
    pod_ip,
    pod_ready,
    why_not,
)
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform


def deployments_of(stateful_set: Object, pods: KubernetesPlatform, group: str, now: datetime) -> list[Deployment]:
    """Return the pods of a group, compared with the newest revision of its StatefulSet."""
    newest = (stateful_set.get("status") or {}).get("updateRevision")
    out = []
    for member in pods.running(group):
        pod = pods.pod(member.name)
        stopping = pod is None or pod["metadata"].get("deletionTimestamp") is not None
        requested = pod is not None and RESTART in (pod["metadata"].get("annotations") or {})
        revision = None if pod is None else (pod["metadata"].get("labels") or {}).get(REVISION_LABEL)
        out.append(
            Deployment(
                name=member.name,
                number=member.number,
                outdated=not stopping and (revision != newest or requested),
                leaving=member.number >= pods.planned.get(group, member.number + 1),
                stopping=stopping,
                ready=pod_ready(pod),
                broken=pod is not None and not stopping and broken_for_good(pod, now),
                requested=requested and revision == newest,
            )
        )
    return out


def awaited_change(stateful_set: Object, pods: Iterable[Object]) -> str:
    """Return the change of a StatefulSet's template that its pods do not have yet; empty: there is none."""
    name, status = stateful_set["metadata"]["name"], stateful_set.get("status") or {}
    if status.get("observedGeneration") != stateful_set["metadata"].get("generation"):
        return f"Kubernetes has not seen the newest {name} yet"
    newest = status.get("updateRevision")
    old = [p["metadata"]["name"] for p in pods if (p["metadata"].get("labels") or {}).get(REVISION_LABEL) != newest]
    return f"to be replaced: {', '.join(sorted(old))}" if old else ""


def missing_objects(
    running: Iterable[tuple[str, int, str]], plan: Plan | None, pods: InformerCache, namespace: str, cluster: str
) -> list[tuple[str, str]]:
    """Kind and name of the objects whose events may say why a pod is missing or does not start."""
    objects: list[tuple[str, str]] = []
    servers = [] if plan is None else [(names.name_servers(cluster), s.name, False) for s in plan.name_servers]
    brokers = [(names.group_set(cluster, group), name, True) for group, _, name in running]
    for stateful_set, name, has_claim in (*servers, *brokers):
        pod = pods.get(namespace, name)
        if pod is None:
            objects.append(("StatefulSet", stateful_set))
        elif (pod.get("status") or {}).get("phase") == "Pending":
            objects.append(("Pod", name))
            if has_claim:
                objects.append(("PersistentVolumeClaim", names.claim(name)))
    return list(dict.fromkeys(objects))


def observed_name_servers(
    plan: Plan | None,
    pods: InformerCache,
    *,
    by_pod: bool = False,
    said: Callable[[str, str], str] = lambda kind, name: "",
) -> list[NameServerRow]:
    """Return the NameServers with their Services' addresses. `by_pod`: only running ones, with those of their pods."""
    if plan is None:
        return []
    rows: list[NameServerRow] = []
    for s in plan.name_servers:
        pod = pods.get(plan.namespace, s.name)
        about = ("StatefulSet", names.name_servers(plan.cluster)) if pod is None else ("Pod", s.name)
        warning = said(*about)
        host = pod_ip(pod) if by_pod else names.service_host(s.name, plan.namespace)
        if host is None:
            continue
        rows.append(
            NameServerRow(
                name=s.name,
                address=f"{host}:{names.NAME_SERVER_PORT}",
                ready=pod_ready(pod),
                node=None if pod is None else pod["spec"].get("nodeName"),
                reason="" if pod_ready(pod) else why_not(pod, "", warning),
            )
        )
    return rows
