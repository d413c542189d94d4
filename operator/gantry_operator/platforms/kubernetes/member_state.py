"""The state of members and NameServers by their pods and status streams, for rolling changes and the status. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from gantry_operator.api.status import NameServerRow
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.status import NO_POD, ObservedMember
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


def awaited_change(stateful_set: Object, pods: Iterable[Object]) -> str:
    """The change of a StatefulSet's template that its pods do not have yet; empty: there is none."""
    name, status = stateful_set["metadata"]["name"], stateful_set.get("status") or {}
    if status.get("observedGeneration") != stateful_set["metadata"].get("generation"):
        return f"Kubernetes has not seen the newest {name} yet"
    newest = status.get("updateRevision")
    old = [p["metadata"]["name"] for p in pods if (p["metadata"].get("labels") or {}).get(REVISION_LABEL) != newest]
    return f"to be replaced: {', '.join(sorted(old))}" if old else ""


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
    running: Iterable[tuple[str, int, str]], controllers: Mapping[str, GroupController], pods: KubernetesPlatform,
    said: Callable[[str, str], str] = lambda kind, name: "",
) -> list[ObservedMember]:  # fmt: skip
    """`said`: the newest warning of Kubernetes about an object, by its kind and name."""
    out = []
    for group, number, name in running:
        controller = controllers.get(group)
        watch = None if controller is None else controller.watches.get(number)
        heard = watch is not None and watch.reach == "ok" and watch.status is not None and watch.report is not None
        leadership = None if controller is None else controller.leadership
        pod = pods.pod(name)
        report = watch.report if watch is not None and heard else None
        stopping = pod is not None and pod["metadata"].get("deletionTimestamp") is not None
        out.append(
            ObservedMember(
                name=name,
                group=group,
                number=number,
                status=watch.status if watch is not None and heard else None,
                # A member that serves is ready, whatever a kubelet says that may be gone.
                pod_ready=pod_ready(pod) or (heard and not stopping),
                node=None if pod is None else pod["spec"].get("nodeName"),
                in_sync=controller is not None and report is not None and controller.in_sync(report),
                master=leadership is not None and leadership.master is not None and leadership.master.member == number,
                problem=why_not(
                    pod,
                    "" if watch is None else watch.problem,
                    said("StatefulSet", name.rsplit("-", 1)[0]) if pod is None else said("Pod", name),
                    said("PersistentVolumeClaim", names.claim(name)),
                ),
            )
        )
    return out


def why_not(pod: Object | None, problem: str, warning: str = "", claim_warning: str = "") -> str:
    """The reason from Kubernetes why a pod's broker does not answer; else `problem`.

    `warning`: the newest one about the pod, or about its StatefulSet if there is no pod. `claim_warning`: about its
    volume claim.
    """
    if pod is None:
        return f"{NO_POD}: {warning}" if warning else NO_POD
    node = (pod.get("spec") or {}).get("nodeName") or ""
    if node_lost(pod):
        return f"node {node} no longer reports: it may be off or cut off"
    if pod["metadata"].get("deletionTimestamp") is not None:
        return "its pod is being stopped"
    status = pod.get("status") or {}
    for c in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        said = _container_problem(c)
        if said in STARTING and warning:
            return f"{said}: {warning}"
        if said:
            return said
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            more = f"; its volume claim: {claim_warning}" if claim_warning else ""
            return f"not scheduled: {condition.get('message', '')}{more}"
    if status.get("phase") == "Failed":
        return ": ".join(p for p in (status.get("reason"), status.get("message")) if p) or "its pod has failed"
    return f"{problem}; it is on node {node}" if problem and node else problem


_BENIGN = re.compile("^(there is no pod|its pod is being stopped|ContainerCreating|PodInitializing|not scheduled: |)$")
_PASSING = re.compile("^(ContainerCreating: |PodInitializing: |not scheduled: )")
"""Kubernetes says this of many pods for a moment: a volume or a Secret of a new pod comes a little later."""
STARTUP_S = 30.0
"""The age of a pod from which on such a reason is worth an event."""


def notable(pod: Object | None, problem: str, now: datetime) -> bool:
    """Kubernetes says why this pod does not run: worth an event. A broker that is only silent is the failover's."""
    if why_not(pod, "") == "" or _BENIGN.match(problem) is not None:
        return False
    made = None if pod is None else pod["metadata"].get("creationTimestamp")
    if made is None or _PASSING.match(problem) is None:
        return True
    return (now - datetime.fromisoformat(made)).total_seconds() >= STARTUP_S


OWN_CONTAINERS = ("broker", "namesrv")


def own_image(spec: Mapping[str, Any]) -> str:
    """The image of our own container in the spec of a pod; empty: there is none."""
    return next((str(c["image"]) for c in spec.get("containers") or [] if c["name"] in OWN_CONTAINERS), "")


def former_images(stateful_sets: Iterable[Object], pods: Iterable[Object], image: str) -> list[str]:
    """Images other than `image` that StatefulSets name, or that pods of an old revision run.

    A pod of the newest revision has the right image, even if a webhook has given it another name.
    """
    sets = list(stateful_sets)
    newest = {(s.get("status") or {}).get("updateRevision") for s in sets}
    old = [p for p in pods if (p["metadata"].get("labels") or {}).get(REVISION_LABEL) not in newest]
    specs = [s["spec"]["template"]["spec"] for s in sets] + [p.get("spec") or {} for p in old]
    containers = (c for spec in specs for c in spec.get("containers") or [] if c.get("name") in OWN_CONTAINERS)
    return sorted({str(c.get("image", "")) for c in containers} - {image})


def node_lost(pod: Object) -> bool:
    """The node of the pod has stopped reporting. Kubernetes then marks the pod as not ready, and leaves its containers
    as they were.
    """
    known = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
    return known.get("Ready") == "False" and known.get("ContainersReady") == "True"


PULL_REMEDY = (
    "build the image (docker build --target broker), push it to a registry that the nodes reach or load it into them "
    "(kind load docker-image, minikube image load), and write its name into image.broker of the operator's chart or "
    "spec.image; a private registry needs spec.imagePullSecrets"
)
_PULL = frozenset(("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable"))
STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that has not been started yet. A warning about the pod may say why."""
_MEMORY = (
    "it was ended because it used more memory than its limit (OOMKilled): raise resources.limits.memory; a broker "
    "needs 128Mi or more"
)


def _container_problem(found: Mapping[str, Any]) -> str:
    """Why a container does not run; empty: it runs, or starts without a known problem."""
    state, last = found.get("state") or {}, (found.get("lastState") or {}).get("terminated") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or {}
    if "OOMKilled" in (ended.get("reason"), last.get("reason")) and not found.get("ready"):
        return _MEMORY
    reason, message = waiting.get("reason"), waiting.get("message")
    if reason in _PULL:
        return ": ".join(p for p in (reason, message) if p) + f"; {PULL_REMEDY}"
    if reason is not None or message is not None:
        said = ": ".join(p for p in (reason, message) if p)
        code = last.get("exitCode")
        return said if code is None else f"{said}; it ended with code {code}"
    if ended and ended.get("exitCode"):
        return f"it ended with code {ended['exitCode']}" + (f": {ended['message']}" if ended.get("message") else "")
    return ""


def missing_objects(
    running: Iterable[tuple[str, int, str]], plan: Plan | None, pods: InformerCache, namespace: str, cluster: str
) -> list[tuple[str, str]]:
    """Kind and name of the objects whose events may say why a pod is missing or does not start."""
    wanted: list[tuple[str, str]] = []
    servers = [] if plan is None else [(names.name_servers(cluster), s.name, False) for s in plan.name_servers]
    brokers = [(names.group_set(cluster, group), name, True) for group, _, name in running]
    for stateful_set, name, has_claim in (*servers, *brokers):
        pod = pods.get(namespace, name)
        if pod is None:
            wanted.append(("StatefulSet", stateful_set))
        elif (pod.get("status") or {}).get("phase") == "Pending":
            wanted.append(("Pod", name))
            if has_claim:
                wanted.append(("PersistentVolumeClaim", names.claim(name)))
    return list(dict.fromkeys(wanted))


def observed_name_servers(
    plan: Plan | None,
    pods: InformerCache,
    *,
    by_pod: bool = False,
    said: Callable[[str, str], str] = lambda kind, name: "",
) -> list[NameServerRow]:
    """The NameServers with their Services' addresses. `by_pod`: only running ones, with their pods' addresses."""
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
