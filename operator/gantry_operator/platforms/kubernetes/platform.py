"""What the failover loop needs to know of pods: where the members are, who is about to go, who is master by label."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from gantry_operator.plan import MemberPlan, member_name
from gantry_operator.platforms.base import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.client import POD, KubeApi, Object
from gantry_operator.platforms.kubernetes.informer_cache import InformerCache

GRACE_S = 1.5
JUST_AFTER_S = 0.01
RETIRE_RETRY_S = 0.2
SERVICE_S = 1.0
"""A Service needs up to about a second to follow a label."""


class KubernetesPlatform:
    """Of one cluster. What changes with the spec is set by whoever reconciles."""

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
        """Members that run by group, leaving ones included."""
        self.planned: dict[str, int] = {}
        """Members of the plan by group."""
        self.admin_token: str | None = None
        self.answers: Callable[[str, str], bool] = lambda group, name: False
        """Whether a member of a group answers now."""
        self.sync_labels: Callable[[str], Awaitable[bool]] = _nothing
        """Makes the labels of a group right, if they are to be by now; answers whether they are."""
        self._grace_until: dict[str, float] = {}
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._failed_over: dict[str, int] = {}
        """The last epoch of each group that began without a hand-over."""
        self._tried: dict[str, int] = {}
        """The epoch of each group that was announced last, or was to be."""
        self._api = api
        self._pods = pods
        self._claims = claims
        self._cluster = cluster
        self._namespace = namespace
        self._on_event = on_event
        self._on_change = on_change

    # ---- what the loop asks

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        out = []
        for member in self.running(group):
            # Not ready yet or just gone: a name that leads nowhere until the pod has an address.
            host = pod_ip(self.pod(member.name)) or f"{member.name}.{self._headless(group)}"
            out.append(
                MemberEndpoint(
                    name=member.name,
                    member=member.number,
                    http_url=f"http://{_bracketed(host)}:{names.BROKER_HTTP_PORT}",
                    replication_address=f"{host}:{names.BROKER_REPLICATION_PORT}",
                )
            )
        return out

    def process_state(self, name: str) -> ProcessState:
        pod = self.pod(name)
        number = int(name.rsplit("-", 1)[1])
        group = name.removeprefix(f"{self._cluster}-").rsplit("-", 1)[0]
        claim = self._claims.get(self._namespace, names.claim(name))
        return process_state_of(pod, claim, leaving=number >= self.planned.get(group, number + 1))

    def token(self) -> str | None:
        return self.admin_token

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """A former master that has handed over and still answers forwards what comes to it, so it keeps its place
        beside the new one until the Service has moved; without that the Service would lead nowhere for a moment. An
        announcement that is repeated since the label of a third one was refused gives it no more time."""
        if self._tried.get(group) != epoch or not self.labelled_master(master.name):
            self._tried[group] = epoch
            former = [] if self._failed_over.get(group) == epoch else self._former(group, master.member)
            if former:
                self._grace_until |= dict.fromkeys(former, time.monotonic() + GRACE_S)
                self._retire_after_grace(group)
        await self.label(group, master.member)

    def _former(self, group: str, master: int) -> list[str]:
        """Who still has the master's label and answers."""
        wrong = [name for name, role in self.mislabelled(group, master) if role == names.ROLE_SLAVE]
        return [name for name in wrong if self.labelled_master(name) and self.answers(group, name)]

    def _retire_after_grace(self, group: str) -> None:
        """Whatever else the operator waits for then. The new one's label may have been answered late, and nobody else
        may look again."""

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
        for task in self._retiring.values():
            task.cancel()
        await asyncio.gather(*self._retiring.values(), return_exceptions=True)

    # ---- what the reconciler asks

    def running(self, group: str) -> Iterator[MemberPlan]:
        count = max(self.sizes.get(group, 0), self.planned.get(group, 0))
        return (MemberPlan(member_name(self._cluster, group, i), group, i) for i in range(count))

    def pod(self, name: str) -> Object | None:
        return self._pods.get(self._namespace, name)

    def mislabelled(self, group: str, master: int) -> list[tuple[str, str]]:
        """Pods that do not say what they are, and what they should say."""
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
        """Labels are wrong on purpose for a moment: they are to be put right soon."""
        now = time.monotonic()
        self._grace_until = {n: t for n, t in self._grace_until.items() if t + SERVICE_S > now}
        return any(t > now for t in self._grace_until.values())

    def in_grace(self, name: str) -> bool:
        """A former master to which the master's Service still leads, or did a moment ago."""
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
    """Nobody has said how."""
    return True


def process_state_of(pod: Object | None, claim: Object | None, *, leaving: bool) -> ProcessState:
    """What the objects of a pod say of its process. A pod on a node that died still looks alive: that is for the
    streams. A claim that was never given a volume, of a pod that was never given a node, has no disk to ask."""
    if pod is None:
        return ProcessState(gone=True, deleting=leaving)
    node = (pod.get("spec") or {}).get("nodeName") or ""
    never_ran = not node and claim is not None and not (claim.get("spec") or {}).get("volumeName")
    deleting = leaving or pod["metadata"].get("deletionTimestamp") is not None
    gone = pod_ip(pod) is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return ProcessState(gone=gone, deleting=deleting, never_ran=never_ran, node=node)


def pod_ip(pod: Object | None) -> str | None:
    return None if pod is None else pod.get("status", {}).get("podIP") or None


def pod_ready(pod: Object | None) -> bool:
    """By the kubelet's readiness probe."""
    if pod is None or pod["metadata"].get("deletionTimestamp") is not None:
        return False
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
