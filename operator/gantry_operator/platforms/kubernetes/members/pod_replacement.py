"""Rolling changes on Kubernetes: deletes pods that run an old revision, and shrinks StatefulSets."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from gantry_operator.cluster.platform import Deployment
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, STATEFUL_SET, ApiError, ApiUnavailable, KubeApi
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.members.member_state import deployments_of
from gantry_operator.platforms.kubernetes.members.platform import KubernetesPlatform

log = logging.getLogger(__name__)


class PodReplacement:
    """The `ReplacementPlatform` of one cluster on Kubernetes."""

    def __init__(
        self,
        api: KubeApi,
        stateful_sets: InformerCache,
        pods: KubernetesPlatform,
        cluster: tuple[str, str],
    ) -> None:
        self._api = api
        self._sets = stateful_sets
        self._pods = pods
        self._namespace, self._name = cluster

    def deployments(self, group: str) -> list[Deployment] | None:
        live = self._sets.get(self._namespace, names.group_set(self._name, group))
        if live is None or (live.get("status") or {}).get("observedGeneration") != live["metadata"]["generation"]:
            return None
        return deployments_of(live, self._pods, group, datetime.now(UTC))

    def may_stop(self, deployment: Deployment, group: str, *, address_moved: bool) -> bool:
        name = deployment.name
        if not address_moved and self._pods.labelled_master(name) and self._pods.answers(group, name):
            return False
        if self._pods.in_grace(name):
            return False  # It has just handed over, and forwards requests that still arrive through the Service.
        if deployment.leaving:
            # A StatefulSet removes its highest number, so any other member has to wait.
            live = self._sets.get(self._namespace, names.group_set(self._name, group))
            running = 0 if live is None else int(live["spec"]["replicas"])
            return max(running, self._pods.sizes[group]) == deployment.number + 1
        pod = self._pods.pod(name)
        return pod is not None and pod["metadata"].get("deletionTimestamp") is None

    async def replace_member(self, group: str, name: str) -> None:
        pod = self._pods.pod(name)
        if pod is None:
            return
        try:
            await self._api.delete(POD, self._namespace, name, uid=pod["metadata"]["uid"])
        except (ApiError, ApiUnavailable) as error:
            log.warning("%s/%s: deleting pod %s: %s", self._namespace, self._name, name, error)

    async def remove_member(self, group: str, name: str) -> None:
        size = int(name.rsplit("-", 1)[1])
        stateful_set = names.group_set(self._name, group)
        patch = {"spec": {"replicas": size}}
        try:
            self._sets.note(await self._api.merge(STATEFUL_SET, self._namespace, stateful_set, patch))
        except (ApiError, ApiUnavailable) as error:
            log.warning("%s/%s: shrinking %s: %s", self._namespace, self._name, stateful_set, error)
            return
        self._pods.sizes[group] = size

    async def finish_change(self) -> bool:
        return False  # The StatefulSet controller replaces NameServers by itself.
