"""What the objects of a pod say: its address, its readiness, its image, and why it does not run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gantry_operator.cluster.status import NO_POD
from gantry_operator.platforms.kubernetes.api.client import Object

REVISION_LABEL = "controller-revision-hash"
OWN_CONTAINERS = ("broker", "namesrv")
STUCK_REASONS = frozenset(
    ("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
     "ImagePullBackOff", "InvalidImageName", "RunContainerError")
)  # fmt: skip
NOT_READY_S = 120
"""A pod that has not been ready for this long is not expected to recover by itself."""
STARTUP_S = 30.0
"""The age of a pod from which on such a reason is worth an event."""
STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that has not been started yet. A warning about the pod may say why."""
PULL_REMEDY = (
    "build the image (docker build --target broker), push it to a registry that the nodes reach or load it into them "
    "(kind load docker-image, minikube image load), and write its name into image.broker of the operator's chart or "
    "spec.image; a private registry needs spec.imagePullSecrets"
)
_PULL = frozenset(("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable"))
_MEMORY = (
    "it was ended because it used more memory than its limit (OOMKilled): raise resources.limits.memory; a broker "
    "needs 128Mi or more"
)
_BENIGN = re.compile("^(there is no pod|its pod is being stopped|ContainerCreating|PodInitializing|not scheduled: |)$")
_PASSING = re.compile("^(ContainerCreating: |PodInitializing: |not scheduled: )")
"""Kubernetes says this of many pods for a moment: a volume or a Secret of a new pod comes a little later."""


def pod_ip(pod: Object | None) -> str | None:
    return None if pod is None else pod.get("status", {}).get("podIP") or None


def pod_ready(pod: Object | None) -> bool:
    """Ready by the kubelet's readiness probe."""
    if pod is None or pod["metadata"].get("deletionTimestamp") is not None:
        return False
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def own_image(spec: Mapping[str, Any]) -> str:
    """Return the image of our own container in the spec of a pod; empty: there is none."""
    return next((str(c["image"]) for c in spec.get("containers") or [] if c["name"] in OWN_CONTAINERS), "")


def image_of(stateful_set: Mapping[str, Any] | None) -> str:
    """Return the image of our own container; empty: there is none."""
    return "" if stateful_set is None else own_image(stateful_set["spec"]["template"]["spec"])


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


def broken_for_good(pod: Object, now: datetime) -> bool:
    """Return whether the pod has never run, Kubernetes cannot start it, or it has not been ready for `NOT_READY_S`."""
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


def why_not(pod: Object | None, problem: str, warning: str = "", claim_warning: str = "") -> str:
    """Return the reason from Kubernetes why a pod's broker does not answer; else `problem`.

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
        problem_of = _container_problem(c)
        if problem_of in STARTING and warning:
            return f"{problem_of}: {warning}"
        if problem_of:
            return problem_of
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            more = f"; its volume claim: {claim_warning}" if claim_warning else ""
            return f"not scheduled: {condition.get('message', '')}{more}"
    if status.get("phase") == "Failed":
        return ": ".join(p for p in (status.get("reason"), status.get("message")) if p) or "its pod has failed"
    return f"{problem}; it is on node {node}" if problem and node else problem


def _container_problem(status: Mapping[str, Any]) -> str:
    """Why a container does not run; empty: it runs, or starts without a known problem."""
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or {}
    if "OOMKilled" in (ended.get("reason"), last.get("reason")) and not status.get("ready"):
        return _MEMORY
    reason, message = waiting.get("reason"), waiting.get("message")
    if reason in _PULL:
        return ": ".join(p for p in (reason, message) if p) + f"; {PULL_REMEDY}"
    if reason is not None or message is not None:
        text = ": ".join(p for p in (reason, message) if p)
        code = last.get("exitCode")
        return text if code is None else f"{text}; it ended with code {code}"
    if ended and ended.get("exitCode"):
        return f"it ended with code {ended['exitCode']}" + (f": {ended['message']}" if ended.get("message") else "")
    return ""


def node_lost(pod: Object) -> bool:
    """Return whether the node of the pod has stopped reporting. Kubernetes then marks the pod as not ready, and leaves
    its containers as they were.
    """
    conditions = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
    return conditions.get("Ready") == "False" and conditions.get("ContainersReady") == "True"


def notable(pod: Object | None, problem: str, now: datetime) -> bool:
    """Kubernetes says why this pod does not run: worth an event. A broker that is only silent is the failover's."""
    if why_not(pod, "") == "" or _BENIGN.match(problem) is not None:
        return False
    created = None if pod is None else pod["metadata"].get("creationTimestamp")
    if created is None or _PASSING.match(problem) is None:
        return True
    return (now - datetime.fromisoformat(created)).total_seconds() >= STARTUP_S
