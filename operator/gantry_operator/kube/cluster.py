"""One cluster as the operator looks after it: reconcile, failover loops, rolling changes, status.

Thin: what should exist comes from `render`, what differs from `drift`, who may be replaced from `plan.order`, who is
master from the failover loop, what is said from `state`. A pass runs when something changed, and after a failure.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gantry_broker.remoting.client import RemotingClient

from gantry_operator.api import BrokerCluster, BrokerClusterStatus, LastFailover, ManifestError, parse_manifest
from gantry_operator.api.base import parse_duration
from gantry_operator.api.status import Addresses
from gantry_operator.failover.loop import GroupLoop, SwitchoverFailed
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.failover.surroundings import Change, Event
from gantry_operator.kube import access, drift, external, metrics, names, nameserver, volumes
from gantry_operator.kube.availability import Availability
from gantry_operator.kube.client import (
    BROKER_CLUSTER,
    KINDS,
    POD,
    SERVICE,
    STATEFUL_SET,
    ApiError,
    ApiUnavailable,
    KubeApi,
    Object,
)
from gantry_operator.kube.commands import SWITCHOVER, SWITCHOVER_RESULT, parse_switchover
from gantry_operator.kube.events import EventRecorder
from gantry_operator.kube.leases import LeaseRegistry
from gantry_operator.kube.members import member_client
from gantry_operator.kube.mirror import Mirror
from gantry_operator.kube.observe import member_states, seen_members, seen_name_servers
from gantry_operator.kube.render import OperatorSettings, render
from gantry_operator.kube.state import Seen, significant, status_of
from gantry_operator.kube.surroundings import PodSurroundings
from gantry_operator.plan import Plan, Step, next_step, plan

log = logging.getLogger(__name__)

SETTLE_S = 0.05
"""Changes come in bunches; a pass starts this long after the first."""
AGAIN_S = 2.0
"""After a pass that failed or waits for something that no watch tells of."""
OFFSETS_EVERY_S = 20.0
"""A status that differs only in offsets is written no more often."""
STATUS_GAP_S = 0.3
ROLL_LOOK_S = 0.5


@dataclass
class Shared:
    """What all clusters of one operator share."""

    api: KubeApi
    settings: OperatorSettings
    mirrors: dict[str, Mirror]
    remoting: RemotingClient
    identity: str


@dataclass
class _Findings:
    """Of the last pass."""

    problems: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    refused: str = ""


class ClusterKeeper:
    """Looks after one cluster from `start` to `stop`. `update` brings a newer version of the resource."""

    def __init__(self, shared: Shared, obj: Object) -> None:
        meta = obj["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self._shared = shared
        self._api = shared.api
        self._obj = obj
        self._cluster: BrokerCluster | None = None
        self._plan: Plan | None = None
        self._status = BrokerClusterStatus.model_validate(obj.get("status") or {})
        self._written: dict[str, Any] = obj.get("status") or {}
        self._written_at = 0.0
        self._last_failover: LastFailover | None = None
        self._dirty = asyncio.Event()
        self._status_dirty = asyncio.Event()
        self._findings = _Findings()
        self._roll_progress: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._pinned: dict[str, int] = {}
        self._token: str | None = None
        self.events = EventRecorder(shared.api, self.namespace, self.name, self.uid, shared.identity)
        self.registry = LeaseRegistry(shared.api, self.name, self.namespace)
        self.pods = PodSurroundings(
            shared.api, shared.mirrors["Pod"], self.name, self.namespace, self._failover_event, self._changed
        )
        self._http = member_client(self.pods.token)
        self.loops: dict[str, GroupLoop] = {}
        self._loop_tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._availability = Availability(shared.remoting, self._status_dirty.set)

    # ---- life

    def start(self) -> None:
        work: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
            ("reconcile", self._reconcile_forever),
            ("status", self._status_forever),
            ("roll", self._roll_forever),
            ("commands", self._commands_forever),
        ]
        self._tasks = [asyncio.create_task(self._kept_alive(name, make)) for name, make in work]
        self._dirty.set()

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._loop_tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._availability.close()
        await self.events.close()
        await self._http.aclose()
        metrics.AVAILABLE.remove(self.namespace, self.name)

    def update(self, obj: Object) -> None:
        """The resource changed (or its status did, which is passed over)."""
        old, self._obj = self._obj["metadata"], obj
        new = obj["metadata"]
        if old["generation"] != new["generation"] or old.get("annotations") != new.get("annotations"):
            self._dirty.set()

    def heard(self, event: str, kind: str, obj: Object) -> None:
        """A watch event about an object of this cluster."""
        if kind == "Lease":
            self.registry.heard(event, obj)
        if kind in ("Pod", "Lease"):
            for loop in self.loops.values():
                loop.wake()
            self._status_dirty.set()
        if kind != "Lease":
            self._dirty.set()

    async def _kept_alive(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A loop that fails is seen, reported and begun again."""
        while True:
            try:
                await make()
            except Exception as error:
                log.exception("%s of %s/%s", name, self.namespace, self.name)
                self.events.record("Warning", "OperatorError", f"{name} failed and goes on: {error!r}")
                await asyncio.sleep(AGAIN_S)

    # ---- reconcile

    async def _reconcile_forever(self) -> None:
        again = False
        while True:
            try:
                async with asyncio.timeout(AGAIN_S if again else None):
                    await self._dirty.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._dirty.clear()
            begun = time.monotonic()
            try:
                again = not await self._reconcile()
                metrics.RECONCILES.labels("waiting" if again else "done").inc()
            except (ApiError, ApiUnavailable) as error:
                again = True
                self._findings.problems = [str(error)]
                log.warning("%s/%s: %s", self.namespace, self.name, error)
                metrics.RECONCILES.labels("error").inc()
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - begun)
            self._status_dirty.set()

    async def _reconcile(self) -> bool:
        """One pass. False: something is missing that no watch will tell of; look again soon."""
        self._findings = found = _Findings()
        obj = self._obj
        if obj["metadata"].get("deletionTimestamp") is not None:
            return True
        try:
            cluster = parse_manifest(obj)
            wanted = plan(cluster)
        except ManifestError as error:
            found.refused = str(error).replace("\n", "; ")
            self.events.record("Warning", "SpecRefused", found.refused)
            if self._cluster is None:
                await self._adopt_last_good()
            return True
        self._take(cluster, wanted)
        if not await self._secret(cluster):
            return False
        if cluster.paused:
            self._keep_loops(cluster)
            return True
        done = await self._apply_all(cluster, wanted)
        self._keep_loops(cluster)
        await self._right_labels()
        volume_problems = await volumes.keep(self._api, self._shared.mirrors, cluster, self._running_names())
        found.problems += volume_problems
        return done and not volume_problems

    async def _adopt_last_good(self) -> None:
        """After a start of the operator under a refused spec: failover goes on for the groups that exist."""
        groups: dict[str, int] = {}
        for lease in self._mirror("StatefulSet").of(self.namespace, names.CLUSTER_LABEL, self.name):
            group = lease["metadata"]["labels"].get(names.GROUP_LABEL)
            if group is not None:
                groups[group] = int(lease["spec"]["replicas"])
        if groups:
            cluster = BrokerCluster.make(
                self.name, self.namespace, brokerGroups=[{"name": g, "members": n} for g, n in sorted(groups.items())]
            )
            cluster.metadata.uid = self.uid
            self._take(cluster, plan(cluster))
            await self._secret(cluster)
            self._keep_loops(cluster)

    def _take(self, cluster: BrokerCluster, wanted: Plan) -> None:
        self._cluster, self._plan = cluster, wanted
        self.registry.owner = names.owner(cluster) if cluster.spec.reclaim == "Delete" else None
        self.pods.planned = {g.name: len(g.members) for g in wanted.groups}
        for g in wanted.groups:
            live = self._mirror("StatefulSet").get(self.namespace, names.group_set(self.name, g.name))
            running = 0 if live is None else int(live["spec"].get("replicas", 0))
            self._sizes[g.name] = max(len(g.members), running)
        self.pods.sizes = dict(self._sizes)

    async def _secret(self, cluster: BrokerCluster) -> bool:
        """The admin token: made once. One that was deleted comes back with the token that the brokers know."""
        name = names.admin_secret(cluster.name)
        found = self._mirror("Secret").get(self.namespace, name)
        token = None if found is None else access.token_of(found)
        if found is not None and token is not None and not drift.owned_by(found, self.uid):
            # Of a former cluster of this name: it goes with that one; wait for it.
            self._findings.problems.append(f"Secret {name} belongs to another cluster object and is about to go")
            return False
        if token is None:
            token = self._token or secrets.token_urlsafe(32)
            await self._apply(access.admin_secret(cluster, token))
        self._token = self.pods.admin_token = token
        return True

    async def _apply_all(self, cluster: BrokerCluster, wanted: Plan) -> bool:
        addresses: dict[str, str] | None = None
        complete = True
        if cluster.spec.external is not None:
            self._pin_ports(cluster, wanted)
            services = {o["metadata"]["name"]: o for o in self._owned("Service")}
            addresses, missing = external.addresses(cluster, wanted, services)
            if missing:
                complete, addresses = False, None
                self._findings.progress.append(f"waiting for external addresses of {', '.join(missing)}")
        objects = render(
            cluster,
            wanted,
            self._shared.settings,
            external_addresses=addresses,
            pinned_ports=self._pinned,
            replicas=self._sizes,
        )
        for obj in objects:
            complete = await self._put_right(obj) and complete
        if complete:
            await self._remove_unwanted({(o["kind"], o["metadata"]["name"]) for o in objects})
        return complete

    def _pin_ports(self, cluster: BrokerCluster, wanted: Plan) -> None:
        for e in external.endpoints(cluster, wanted):
            live = self._mirror("Service").get(self.namespace, e.service)
            port = None if live is None else live["spec"]["ports"][0].get("nodePort")
            if port is not None:
                self._pinned[e.service] = port

    async def _put_right(self, obj: Object) -> bool:
        """Applies the object if it is not as it should be. False: it could not be done now."""
        kind, name = obj["kind"], obj["metadata"]["name"]
        live = self._mirror(kind).get(self.namespace, name)
        if live is None:
            live = await self._api.get(KINDS[kind], self.namespace, name)
        if live is not None:
            if not drift.owned_by(live, self.uid):
                self._findings.problems.append(
                    f"{kind} {name} exists and is not of this cluster: delete it, or give the cluster another name"
                )
                return False
            if live["metadata"].get("deletionTimestamp") is not None:
                return False
            wrong = drift.outdated(obj, live)
            if not wrong:
                return True
            log.info("%s/%s: %s %s differs at %s", self.namespace, self.name, kind, name, ", ".join(wrong[:5]))
            if kind == "StatefulSet" and any(w.startswith(".spec.volumeClaimTemplates") for w in wrong):
                # Its claims' template cannot be changed. The pods stay, and the new set takes them over.
                await self._api.delete(STATEFUL_SET, self.namespace, name, uid=live["metadata"]["uid"], orphan=True)
                return False
        await self._apply(obj)
        return True

    async def _apply(self, obj: Object) -> None:
        written = await self._api.apply(obj)
        metrics.WRITES.labels(obj["kind"]).inc()
        self._mirror(obj["kind"]).note(written)

    async def _remove_unwanted(self, wanted: set[tuple[str, str]]) -> None:
        """What was made for an earlier spec. StatefulSets are not among it: a group is never removed."""
        for kind in ("Service", "ConfigMap", "PodDisruptionBudget"):
            for obj in self._owned(kind):
                name = obj["metadata"]["name"]
                if (kind, name) not in wanted and obj["metadata"].get("deletionTimestamp") is None:
                    await self._api.delete(KINDS[kind], self.namespace, name, uid=obj["metadata"]["uid"])

    async def _right_labels(self) -> None:
        for group, loop in self.loops.items():
            cell = loop.cell
            if cell is None or cell.master is None:
                continue
            watch = loop.watches.get(cell.master.member)
            report = None if watch is None else watch.report
            if report is not None and report.role == "Master" and report.epoch == cell.epoch:
                await self.pods.label(group, cell.master.member)

    # ---- failover

    def _keep_loops(self, cluster: BrokerCluster) -> None:
        for g in cluster.spec.brokerGroups:
            task = self._loop_tasks.get(g.name)
            if task is None or task.done():
                loop = GroupLoop(g.name, self.registry, self.pods, self._http, self._failover_settings)
                self.loops[g.name] = loop
                self._loop_tasks[g.name] = asyncio.create_task(loop.run())
        for loop in self.loops.values():
            loop.wake()

    def _failover_settings(self) -> FailoverSettings:
        assert self._cluster is not None
        spec = self._cluster.spec
        return FailoverSettings(
            automatic=spec.failover.automatic,
            detection_ms=int(parse_duration(spec.failover.detectionTimeout) * 1000),
            unclean=spec.failover.unclean,
            async_flush=spec.flush == "Async",
            min_in_sync=spec.minInSyncReplicas,
        )

    def _failover_event(self, event: Event) -> None:
        self.events.record(event.kind, event.reason, f"group {event.group}: {event.message}")
        self._status_dirty.set()

    def _changed(self, change: Change) -> None:
        at = datetime.fromtimestamp(change.at_unix_ms / 1000, UTC)
        self._last_failover = LastFailover(
            group=change.group,
            from_=change.old,
            to=change.new,
            reason=change.reason,
            epoch=change.epoch,
            time=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            durationMs=change.duration_ms,
            planned=change.planned,
        )
        planned = str(change.planned).lower()
        metrics.FAILOVERS.labels(self.namespace, self.name, planned).inc()
        metrics.FAILOVER_SECONDS.labels(planned).observe(change.duration_ms / 1000)
        said = "Normal" if change.planned or change.old == change.new else "Warning"
        self.events.record(
            said,
            "MasterChanged",
            f"group {change.group}: from {change.old or 'none'} to {change.new} in {change.duration_ms} ms: "
            f"{change.reason}",
        )
        self._status_dirty.set()

    # ---- planned changes

    async def _roll_forever(self) -> None:
        while True:
            busy = False
            if self._cluster is not None and not self._cluster.paused and not self._findings.refused:
                for group in list(self.loops):
                    busy = await self._roll(group) or busy
            await asyncio.sleep(ROLL_LOOK_S if busy else 2 * ROLL_LOOK_S)

    async def _roll(self, group: str) -> bool:
        """The next step of a group's planned change. False: there is none."""
        live = self._mirror("StatefulSet").get(self.namespace, names.group_set(self.name, group))
        if live is None or (live.get("status") or {}).get("observedGeneration") != live["metadata"]["generation"]:
            return False
        loop = self.loops[group]
        states = member_states(live, loop, self.pods, group, datetime.now(UTC))
        step = next_step(states)
        self._note_roll(group, step)
        if step.kind == "done":
            return False
        try:
            if step.kind == "replace":
                assert step.member is not None
                await self._replace(group, step, any(s.name == step.member and s.leaving for s in states))
            elif step.kind == "handover":
                number = next(s.number for s in states if s.name == step.to)
                await loop.switchover(number, step.reason, force=False)
        except SwitchoverFailed as error:
            self.events.record("Warning", "HandOverFailed", f"group {group}: {error}; it is tried again")
        except (ApiError, ApiUnavailable) as error:
            log.warning("%s/%s: rolling %s: %s", self.namespace, self.name, group, error)
        return True

    async def _replace(self, group: str, step: Step, leaving: bool) -> None:
        assert step.member is not None
        if leaving:
            # Read by the next pass, which lowers the StatefulSet's replicas.
            size = self._sizes[group] - 1
            self.events.record("Normal", "ScaleDown", f"group {group}: {step.member} leaves, its volume stays")
            patch = {"spec": {"replicas": size}}
            name = names.group_set(self.name, group)
            written = await self._api.merge(STATEFUL_SET, self.namespace, name, patch)
            self._mirror("StatefulSet").note(written)
            self._dirty.set()
            return
        pod = self.pods.pod(step.member)
        if pod is None or pod["metadata"].get("deletionTimestamp") is not None:
            return
        self.events.record("Normal", "Rolling", f"group {group}: {step.member} is replaced: {step.reason}")
        await self._api.delete(POD, self.namespace, step.member, uid=pod["metadata"]["uid"])

    def _note_roll(self, group: str, step: Step) -> None:
        if step.kind == "done":
            if self._roll_progress.pop(group, None) is not None:
                self._status_dirty.set()
        elif self._roll_progress.get(group) != step.reason:
            self._roll_progress[group] = step.reason
            self._status_dirty.set()

    # ---- commands by annotation

    async def _commands_forever(self) -> None:
        """`gantry switchover` asks by an annotation; the answer is another one."""
        while True:
            await asyncio.sleep(0.1)
            text = (self._obj["metadata"].get("annotations") or {}).get(SWITCHOVER)
            if text is None or self._plan is None:
                continue
            try:
                group, to = parse_switchover(text, self._plan)
                loop = self.loops.get(group)
                if loop is None:
                    continue
                said = "done: " + await loop.switchover(to, "asked for")
            except (SwitchoverFailed, ValueError) as error:
                said = f"failed: {error}"
                self.events.record("Warning", "SwitchoverFailed", said)
            patch = {"metadata": {"annotations": {SWITCHOVER: None, SWITCHOVER_RESULT: f"{text} {said}"}}}
            self._obj = await self._api.merge(BROKER_CLUSTER, self.namespace, self.name, patch)

    # ---- status

    async def _status_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(OFFSETS_EVERY_S):
                    await self._status_dirty.wait()
            except TimeoutError:
                pass
            self._status_dirty.clear()
            await self._write_status()
            await asyncio.sleep(STATUS_GAP_S)

    async def _write_status(self) -> None:
        if self._obj["metadata"].get("deletionTimestamp") is not None:
            return
        self._ask_for_checks()
        generation = int(self._obj["metadata"]["generation"])
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        paused = self._cluster is not None and self._cluster.paused
        new = status_of(self._cluster, self._status, self._seen(), now, generation, paused)
        metrics.AVAILABLE.labels(self.namespace, self.name).set(
            any(c.type == "Available" and c.status == "True" for c in new.conditions)
        )
        before, self._status = self._status, new
        if significant(new) == significant(BrokerClusterStatus.model_validate(self._written)):
            moved = new.to_object() != self._written
            if not moved or time.monotonic() - self._written_at < OFFSETS_EVERY_S:
                return
        self._say(before, new)
        body = new.to_object()
        patch = {"status": _emptied(self._written, body)}
        try:
            await self._api.merge(BROKER_CLUSTER, self.namespace, self.name, patch, "status")
        except ApiError as error:
            if error.status != 404:
                log.warning("status of %s/%s: %s", self.namespace, self.name, error)
                self._status_dirty.set()
            return
        except ApiUnavailable as error:
            log.warning("status of %s/%s: %s", self.namespace, self.name, error)
            self._status_dirty.set()
            return
        self._written, self._written_at = body, time.monotonic()

    def _say(self, old: BrokerClusterStatus, new: BrokerClusterStatus) -> None:
        before = {c.type: c.status for c in old.conditions}
        for c in new.conditions:
            if c.type in before and before[c.type] != c.status and c.type != "Progressing":
                good = (c.type == "Available") == (c.status == "True")
                name = c.type if c.status == "True" else f"Not{c.type}"
                self.events.record("Normal" if good else "Warning", name, c.message)

    def _seen(self) -> Seen:
        progress = [*self._findings.progress, *self._roll_progress.values()]
        return Seen(
            members=seen_members(self._running_names(), self.loops, self.pods),
            name_servers=seen_name_servers(self._plan, self._mirror("Pod")),
            available=self._availability.answers(),
            problems=[*self._findings.problems, *(lo.problem for lo in self.loops.values() if lo.problem)],
            progress=progress,
            refused=self._findings.refused,
            addresses=self._addresses(),
            last_failover=self._last_failover,
        )

    def _ask_for_checks(self) -> None:
        """Availability is checked anew whenever a group's master or epoch is another, and from time to time."""
        if self._cluster is None or self._plan is None:
            return
        servers = [s.address for s in seen_name_servers(self._plan, self._mirror("Pod"), by_pod=True) if s.address]
        for group, loop in self.loops.items():
            service = names.master_service(self.name, group)
            live = self._mirror(SERVICE.kind).get(self.namespace, service)
            if live is None:
                continue
            port = names.BROKER_PORT
            registered = f"{names.service_host(service, self.namespace)}:{port}"
            reached = f"{live['spec'].get('clusterIP')}:{port}"
            waits = loop.waits.reason if loop.waits is not None and not loop.waits.available else ""
            epoch = 0 if loop.cell is None else loop.cell.epoch
            self._availability.watch(group, epoch, waits, servers, registered, reached)

    def _addresses(self) -> Addresses:
        if self._cluster is None or self._plan is None:
            return Addresses()
        inner = ";".join(nameserver.addresses(self._cluster, self._plan))
        if self._cluster.spec.external is None:
            return Addresses(nameServers=inner)
        services = {o["metadata"]["name"]: o for o in self._owned("Service")}
        known, _ = external.addresses(self._cluster, self._plan, services)
        outer = ";".join(known[s.name] for s in self._plan.name_servers if s.name in known)
        return Addresses(nameServers=inner, external=outer)

    # ---- small things

    def _mirror(self, kind: str) -> Mirror:
        return self._shared.mirrors[kind]

    def _owned(self, kind: str) -> list[Object]:
        found = self._mirror(kind).of(self.namespace, names.CLUSTER_LABEL, self.name)
        return [o for o in found if drift.owned_by(o, self.uid)]

    def _running_names(self) -> list[tuple[str, int, str]]:
        """Group, number and name of every member that runs or should."""
        return [(m.group, m.number, m.name) for g in self.pods.planned for m in self.pods.running(g)]


def _emptied(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` as a merge patch: what `old` had and `new` has not is set to null."""
    return {k: None for k in old if k not in new} | new
