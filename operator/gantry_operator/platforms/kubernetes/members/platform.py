"""The group controllers' view of pods: addresses of members, deletions, role labels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.platform import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.plan.plan import MemberPlan, member_name
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.api.pod_state import pod_ip
from gantry_operator.platforms.kubernetes.manifests.pod_parts import scheme_of
from gantry_operator.platforms.kubernetes.objects import volumes

GRACE_S = 1.5
JUST_AFTER_S = 0.01
RETIRE_RETRY_S = 0.2
SERVICE_S = 1.0
"""Seconds that a Service needs at most to follow a label."""


class KubernetesPlatform:
    """The platform of one cluster. The cluster controller sets the attributes that change with the spec."""

    def __init__(
        self,
        api: KubeApi,
        pods: InformerCache,
        claims: InformerCache,
        cluster: str,
        namespace: str,
        on_event: Callable[[Event], None],
        on_change: Callable[[Change], None],
    ) -> None:
        self.sizes: dict[str, int] = {}
        """Running members by group, leaving ones included."""
        self.planned: dict[str, int] = {}
        self.fenced: frozenset[str] = frozenset()
        """Members whose broker is to stop while their pods stay: they leave the in-sync set, and lead nothing."""
        """Planned members by group."""
        self.admin_token: str | None = None
        self.answers: Callable[[str, str], bool] = lambda group, name: False
        """Whether a member of a group answers now."""
        self.sync_labels: Callable[[str], Awaitable[bool]] = _nothing
        """Corrects the labels of a group if they are due. Returns whether they are correct."""
        self._grace_until: dict[str, float] = {}
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._failed_over: dict[str, int] = {}
        """The last epoch of each group that began without a handover."""
        self._tried: dict[str, int] = {}
        """The last epoch of each group with an announcement, complete or not."""
        self._api = api
        self._pods = pods
        self._claims = claims
        self._cluster = cluster
        self._namespace = namespace
        self._on_event = on_event
        self._on_change = on_change

    # ---- called by the group controllers

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        out = []
        for member in self.running(group):
            # Not ready yet, or just gone: a host name without an address until the pod has one.
            pod = self.pod(member.name)
            host = pod_ip(pod) or f"{member.name}.{self._headless(group)}"
            out.append(
                MemberEndpoint(
                    name=member.name,
                    member=member.number,
                    http_url=f"{scheme_of(pod)}://{_bracketed(host)}:{names.BROKER_HTTP_PORT}",
                    replication_address=f"{host}:{names.BROKER_REPLICATION_PORT}",
                )
            )
        return out

    def process_state(self, name: str) -> ProcessState:
        pod = self.pod(name)
        number = int(name.rsplit("-", 1)[1])
        group = name.removeprefix(f"{self._cluster}-").rsplit("-", 1)[0]
        claim = self._claims.get(self._namespace, names.claim(name))
        leaving = number >= self.planned.get(group, number + 1) or name in self.fenced
        return process_state_of(pod, claim, leaving=leaving)

    def token(self) -> str | None:
        return self.admin_token

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Move the master's label. After a handover the former master keeps its label until the Service has moved.

        It still answers and forwards requests, and without it the Service would have no endpoint for a moment. A
        repeated announcement after a refused label does not extend that time.
        """
        if self._tried.get(group) != epoch or not self.labelled_master(master.name):
            self._tried[group] = epoch
            former = [] if self._failed_over.get(group) == epoch else self._former(group, master.member)
            if former:
                self._grace_until |= dict.fromkeys(former, time.monotonic() + GRACE_S)
                self._retire_after_grace(group)
        await self.label(group, master.member)

    def _former(self, group: str, master: int) -> list[str]:
        """Members that still have the master's label and answer."""
        wrong = [name for name, role in self.mislabelled(group, master) if role == names.ROLE_SLAVE]
        return [name for name in wrong if self.labelled_master(name) and self.answers(group, name)]

    def _retire_after_grace(self, group: str) -> None:
        """Look again after the pause, whatever else the operator waits for. An answer to a label write may be late,
        and no other event may follow.
        """

        async def retire() -> None:
            await asyncio.sleep(GRACE_S + JUST_AFTER_S)
            while not await self.sync_labels(group):  # noqa: ASYNC110
                await asyncio.sleep(RETIRE_RETRY_S)

        if group in self._retiring:
            self._retiring[group].cancel()
        self._retiring[group] = asyncio.create_task(retire())

    def event(self, event: Event) -> None:
        self._on_event(event)

    def changed(self, change: Change) -> None:
        if not change.planned:
            self._failed_over[change.group] = change.epoch
        self._on_change(change)

    async def close(self) -> None:
        await end_tasks(*self._retiring.values())

    # ---- called by the reconciler

    def running(self, group: str) -> Iterator[MemberPlan]:
        count = max(self.sizes.get(group, 0), self.planned.get(group, 0))
        return (MemberPlan(member_name(self._cluster, group, i), group, i) for i in range(count))

    def pod(self, name: str) -> Object | None:
        return self._pods.get(self._namespace, name)

    def mislabelled(self, group: str, master: int) -> list[tuple[str, str]]:
        """Pods with a missing or wrong role label, and the right one."""
        out = []
        for member in self.running(group):
            role = names.ROLE_MASTER if member.number == master else names.ROLE_SLAVE
            pod = self.pod(member.name)
            if role == names.ROLE_SLAVE and self._grace_until.get(member.name, 0.0) > time.monotonic():
                continue
            if pod is not None and (pod["metadata"].get("labels") or {}).get(names.ROLE_LABEL) != role:
                out.append((member.name, role))
        return out

    def in_grace_period(self) -> bool:
        """Labels are wrong on purpose for a moment. They will be corrected soon."""
        now = time.monotonic()
        self._grace_until = {n: t for n, t in self._grace_until.items() if t + SERVICE_S > now}
        return any(t > now for t in self._grace_until.values())

    def in_grace(self, name: str) -> bool:
        """Return whether the master's Service leads to this former master, or led to it a moment ago."""
        return self._grace_until.get(name, 0.0) + SERVICE_S > time.monotonic()

    def labelled_master(self, name: str) -> bool:
        pod = self.pod(name)
        return pod is not None and (pod["metadata"].get("labels") or {}).get(names.ROLE_LABEL) == names.ROLE_MASTER

    async def label(self, group: str, master: int) -> None:
        """Make the master's Service lead to member `master`. Raises ApiError and ApiUnavailable."""
        await asyncio.gather(*(self._label(name, role) for name, role in self.mislabelled(group, master)))

    async def _label(self, name: str, role: str) -> None:
        patch: dict[str, Any] = {"metadata": {"labels": {names.ROLE_LABEL: role}}}
        self._pods.note(await self._api.merge(POD, self._namespace, name, patch))

    def _headless(self, group: str) -> str:
        return names.service_host(names.group_set(self._cluster, group), self._namespace)


async def _nothing(group: str) -> bool:
    """Say that the labels are correct, until `RoleLabels` takes over."""
    return True


def process_state_of(pod: Object | None, claim: Object | None, *, leaving: bool) -> ProcessState:
    """Return the state of a pod's process by its objects.

    A pod on a dead node still looks alive; the status streams detect that. A claim without a volume, of a pod that was
    never scheduled, has no disk.
    """
    no_disk = claim is not None and not volumes.bound(claim)
    if pod is None:
        return ProcessState(gone=True, deleting=leaving, never_ran=no_disk)
    node = (pod.get("spec") or {}).get("nodeName") or ""
    never_ran = not node and no_disk
    deleting = leaving or pod["metadata"].get("deletionTimestamp") is not None
    gone = pod_ip(pod) is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return ProcessState(gone=gone, deleting=deleting, never_ran=never_ran, node=node)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
