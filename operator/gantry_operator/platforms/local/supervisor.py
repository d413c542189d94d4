"""The process of `gantry up`: keeps processes running and runs the failover. Light, because it runs all day.

One supervisor per cluster: it holds a lock while it runs. After its death the brokers continue, and the next supervisor
adopts them. SIGINT, SIGTERM and SIGHUP end only the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gantry_broker import logs
from gantry_broker.tasks import end_tasks, set_within
from pydantic import ValidationError

from gantry_operator.api.annotations import FENCED
from gantry_operator.api.cluster import BrokerCluster, with_fence
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster import wall_clock
from gantry_operator.cluster.access_control import LOOK_S
from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.cluster.network_look import look
from gantry_operator.cluster.second_site import Refused
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.platforms.local import control, topics
from gantry_operator.platforms.local.certificates import (
    LocalCertificates,
    client_options,
)
from gantry_operator.platforms.local.client_facts import client_facts
from gantry_operator.platforms.local.condition_times import ConditionTimes
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_members import surplus_processes
from gantry_operator.platforms.local.live import live_source
from gantry_operator.platforms.local.manifest import load_saved, refuse_change, save_manifest
from gantry_operator.platforms.local.platform import LocalPlatform
from gantry_operator.platforms.local.port_claims import PortAllocationLock, acquire_port_lock
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.process_plan import ProcessPlan, process_plans
from gantry_operator.platforms.local.readiness import describe_ready, why_not_ready
from gantry_operator.platforms.local.source_config import LocalSourceConfig
from gantry_operator.platforms.local.status import local_status
from gantry_operator.platforms.local.users import user_status
from gantry_operator.platforms.local.verification import LocalVerification

log = logging.getLogger(__name__)

READY_POLL_S = 0.05
START_S = 10.0
"""Seconds after which the conditions of a cluster that is not ready are looked at."""
CERTIFICATES_AGAIN_S = 30.0
"""Seconds until the next try to write certificates."""
REQUESTED = "requested by gantry switchover"
"""The reason of a switchover in events."""


class Supervisor:
    """One local cluster."""

    def __init__(
        self, folder: ClusterFolder, cluster: BrokerCluster, show: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder
        self._condition_times = ConditionTimes(self._status)
        self.events = EventLog(folder.events, show, self._condition_times.wake)
        self.ready = False
        self.not_ready = "starting"
        self._certificates = LocalCertificates(folder)
        trusted = self._certificates.trusted
        self.platform = LocalPlatform(
            folder, cluster, self.events, trusted, self._retake, self._bring_up_again, self._part_changed,
            self._condition_times.wake,
        )  # fmt: skip
        self.control = ClusterControl(self.platform, StallCompensatedClock())
        self.control.take(cluster)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._was_ready = asyncio.Event()
        self._started_at = time.monotonic()
        self._ready_after_s = 0.0

    @property
    def wanted(self) -> BrokerCluster:
        """The cluster as the manifest has it."""
        return self.platform.wanted

    @property
    def cluster(self) -> BrokerCluster:
        """The same with the groups that leave."""
        return self.platform.cluster

    # ---- life cycle

    async def run(self) -> None:
        """Run until a signal comes, or until a command requests the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        if self.folder.conditions.exists():
            await self._condition_times.look()  # Before the start: what ended with the last supervisor is dated.
        self.bring_up(await asyncio.to_thread(acquire_port_lock))
        server = await control.serve(self.folder, self.handle)
        self.control.start()
        self._spawn(self._report_ready())
        self._spawn(self._renew_certificates())
        self._spawn(self._follow_users())
        self._spawn(self._keep_condition_times())
        self._spawn(self._source_config().run())
        self._spawn(LocalVerification(self.folder, lambda: self.wanted, self.events).run())
        try:
            await self._stop.wait()
        finally:
            server.close()
            await self.close()
            self.folder.supervisor.unlink(missing_ok=True)

    async def close(self) -> None:
        """Release all resources. The processes keep running."""
        await end_tasks(*self._tasks)
        await self.control.close()
        self.platform.children.close()
        await self.platform.http.aclose()

    def watch_only(self, group: str) -> GroupController:
        """Start the failover of one group over its running processes, without starting any. Raises KeyError."""
        self.platform.plan.group(group)
        self._keep_certificates()
        self.platform.children.plan(self._process_plans(), keep_alive=False)
        return self.control.groups.make(group, self.cluster.spec.mode)

    async def _bring_up_again(self) -> None:
        self.bring_up(await asyncio.to_thread(acquire_port_lock))

    def bring_up(self, lock: PortAllocationLock) -> None:
        """Start or adopt planned and leaving processes. Running ones are left alone.

        `lock`: the lock for choosing ports. A thread waits for it, because another program may hold it for long.
        """
        platform = self.platform
        surplus = surplus_processes(self.folder, platform.plan)
        names = [s.name for s in platform.plan.name_servers] + [p.name for p in platform.plan.proxies]
        names += [p.name for p in surplus]
        names += [*(m.name for m in platform.plan.members), *platform.leaving]
        running = frozenset(n for n in names if platform.children.running(n) or self._recorded_running(n))
        for use in platform.ports.choose(platform.whole_plan, running, lock):
            self.events.add("Warning", "PortInUse", f"the port of {use} is used by another program now", use)
        self._keep_certificates()
        self.control.rolling.joining |= self._newcomers()
        if self.cluster.spec.hibernate:
            platform.children.plan(self._process_plans(), keep_alive=False)
        else:
            platform.children.plan(self._process_plans())
            for process in surplus:
                if not platform.children.adopt(process):
                    self.folder.config(process.name).unlink(missing_ok=True)
        self.control.lead()

    def _source_config(self) -> LocalSourceConfig:
        platform = self.platform

        def members() -> list[list[str]]:
            return [[member.http_url for member in platform.members(g.name)] for g in platform.plan.groups]

        return LocalSourceConfig(
            self.folder, lambda: self.wanted, members, platform.cutover, platform.http, self.events
        )

    def _process_plans(self) -> list[ProcessPlan]:
        return process_plans(self.cluster, self.platform.whole_plan, self.platform.ports, self.folder)

    def _keep_certificates(self) -> None:
        """Before the processes that read them. Raises OSError."""
        for note in self._certificates.keep(self.cluster, self.platform.whole_plan):
            self.events.add("Normal", note.reason, note.message, self.cluster.name)
        options = client_options(self.cluster, self.folder)
        self.control.call_with(options, lambda: options)

    async def _renew_certificates(self) -> None:
        """Renew certificates in time. Processes read a renewed certificate by themselves."""
        while True:
            await wall_clock.wait(self._certificates.due_s(), self._certificates.is_due)
            try:
                self._keep_certificates()
            except OSError as error:
                self.events.add("Warning", "CertificatesNotWritten", str(error), self.cluster.name)
                await asyncio.sleep(CERTIFICATES_AGAIN_S)

    def _newcomers(self) -> set[str]:
        """Members that are new in an existing group."""
        names: set[str] = set()
        for group in self.platform.plan.groups:
            new = {m.name for m in group.members if not self.folder.config(m.name).exists()}
            if len(new) < len(group.members):
                names |= new
        return names

    def _recorded_running(self, name: str) -> bool:
        return load_record(self.folder.process(name)) is not None

    async def _keep_condition_times(self) -> None:
        await set_within(self._was_ready, START_S)  # The start has the processors first.
        await self._condition_times.run()

    async def _status(self) -> BrokerClusterStatus:
        return (await local_status(self.folder)).status

    async def _follow_users(self) -> None:
        while True:
            self._look_at_files()
            await asyncio.sleep(LOOK_S)

    def _look_at_files(self) -> None:
        """Pass changes of the files of users and resources on."""
        if self.platform.users.changed():
            self.control.access.wake()
        if self.platform.topics.changed():
            self.control.topics.wake()
            self.control.tables.wake()

    async def _report_ready(self) -> None:
        """Report once when a client can send and read, and the reason while it cannot."""
        while True:
            self.not_ready = await why_not_ready(self.control, self.platform)
            if not self.not_ready:
                break
            await asyncio.sleep(READY_POLL_S)
        self.ready = True
        self._was_ready.set()
        seconds = self._ready_after_s = time.monotonic() - self._started_at
        if not self.cluster.spec.hibernate:
            reads_only = self.control.sites.reads_only
            can = f"read: {reads_only}" if reads_only else "send and read"
            self.events.add("Normal", "ClusterReady", f"a client can {can} ({seconds:.1f} s)", self.cluster.name)
        print(self.describe_ready(), flush=True)

    def describe_ready(self) -> str:
        """Return the addresses and commands for the user who started the cluster."""
        return describe_ready(self.control, self.platform, self._ready_after_s)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the supervisor failed", exc_info=task.exception())
            self.events.add("Warning", "SupervisorError", repr(task.exception()), self.cluster.name)

    # ---- requests of commands

    async def handle(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if op == "ping":
            return {}
        if op == "info":
            return self._info()
        if op == "status":
            return {"resource": (await local_status(self.folder)).to_object()}
        if op == "network":
            return await self._network(float(arguments["limitMs"]))
        if op == "stop":
            self._stop.set()
            return {"stopping": True}
        if op == "switchover":
            return await self._switchover(str(arguments["group"]), arguments.get("to"))
        if op == "restart":
            return self._restart([str(name) for name in arguments["names"]])
        if op == "fence":
            return await self._fence(str(arguments["member"]), bool(arguments["on"]))
        if op in ("demote", "promote"):
            return await self._site(op, arguments)
        if op == "apply":
            return await self._apply(arguments["manifest"])
        if op == "users":
            return self._user_states()
        if op == "topics":
            return self._topic_state()
        if op in ("clients", "resources"):
            return self._read(op, arguments)
        raise control.ControlError(f"no such request: {op}")

    def _info(self) -> dict[str, Any]:
        groups, rolling = {}, self.control.rolling
        for name, loop in self.control.controllers.items():
            waits = loop.waits
            groups[name] = {
                "waits": None if waits is None else {"code": waits.code, "reason": waits.reason},
                "problem": loop.problem,
            }
        return {
            "ready": self.ready,
            "notReady": self.not_ready,
            "groups": groups,
            "refused": dict(rolling.refused),
            "changing": list(rolling.progress.values()),
            "rolling": "; ".join(filter(None, [rolling.reason, *self.control.changes.progress.values()])),
            "drains": {name: row.model_dump(mode="json") for name, row in self.control.drains().items()},
            "site": self.control.sites.state.to_json(),
            "siteWaits": self.control.sites.waits,
            "describe": self.describe_ready() if self.ready else "",
        }

    async def _network(self, limit_ms: float) -> dict[str, Any]:
        try:
            return {"links": [asdict(link) for link in await look(live_source(self.folder), limit_ms)]}
        except (OSError, LookupError, ValueError) as error:
            raise control.ControlError(str(error)) from None

    async def _site(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        accept_loss, timeout_s = bool(arguments.get("acceptLoss")), float(arguments["timeout"])
        sites = self.control.sites
        try:
            if op == "demote":
                return {"token": await sites.demote(accept_loss=accept_loss, timeout_s=timeout_s)}
            token = str(arguments.get("token") or "")
            return {"origin": await sites.promote(token, accept_loss=accept_loss, timeout_s=timeout_s)}
        except Refused as error:
            raise control.ControlError(str(error)) from None

    def _part_changed(self) -> None:
        if self.ready:
            self.ready, self.not_ready, self._started_at = False, "its part changes", time.monotonic()
            self._spawn(self._report_ready())

    def _user_states(self) -> dict[str, Any]:
        """Return the state of every user after the last change of the files. `current`: no change is still unread."""
        self._look_at_files()
        return {
            "current": not self.control.access.busy,
            "problem": self.control.access.problem,
            "users": {name: user_status(*shown) for name, shown in self.platform.users.shown.items()},
        }

    def _read(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what a command would read from the folder itself, where this fails."""
        try:
            if op == "clients":
                return client_facts(self.folder)
            return {"resources": topics.described(self.folder, arguments["kind"])}
        except (OSError, LookupError, ValueError) as error:
            raise control.ControlError(str(error)) from None

    def _topic_state(self) -> dict[str, Any]:
        """Return the state of topics and groups. `current`: the resources were compared with the brokers after the last
        change of their file.
        """
        self._look_at_files()
        return {"current": not self.control.topics.busy, "problem": self.control.topics.problem}

    async def _switchover(self, group: str, to: str | None) -> dict[str, Any]:
        try:
            return {"done": await self.control.switchover(group, to, REQUESTED)}
        except SwitchoverFailed as error:
            raise control.ControlError(str(error)) from None

    def _restart(self, names: list[str]) -> dict[str, Any]:
        try:
            members = [m.name for m in self.platform.plan.members_named(names)]
        except KeyError as error:
            raise control.ControlError(str(error.args[0])) from None
        for name in members:
            self.platform.children.table[name].restart_requested = True
        self.control.rolling.start(f"a restart of {', '.join(members)} was asked for")
        return {"members": members}

    async def _fence(self, name: str, on: bool) -> dict[str, Any]:
        """Fence a member, or take its fence away: its process follows its config file."""
        try:
            name = self.platform.plan.member(name).name
        except KeyError as error:
            raise control.ControlError(str(error.args[0])) from None
        spec = with_fence(self.wanted, name, on)
        with await asyncio.to_thread(acquire_port_lock) as lock:
            try:
                save_manifest(self.folder, spec)
            except OSError as error:
                raise control.ControlError(
                    f"the fence cannot be written to disk, so nothing changes: {error}"
                ) from None
            self.control.take(spec)
            self.bring_up(lock)
        message = f"{name} is fenced: its broker stops, its process stays" if on else f"{name} is not fenced any more"
        self.events.add("Normal", "Fenced" if on else "FenceRemoved", message, name)
        return {"fenced": sorted(spec.fenced)}

    def _retake(self) -> None:
        """Take the manifest again: the groups of the folder have changed."""
        self.control.take(self.wanted)

    async def _apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        try:
            spec = BrokerCluster.model_validate(manifest)
        except ValidationError as error:
            raise control.ControlError(str(error)) from None
        if FENCED in self.wanted.metadata.annotations:  # As `kubectl apply` keeps what a manifest does not name.
            spec.metadata.annotations.setdefault(FENCED, self.wanted.metadata.annotations[FENCED])
        with await asyncio.to_thread(acquire_port_lock) as lock:
            return self._go_on_with(spec, lock)

    def _go_on_with(self, spec: BrokerCluster, lock: PortAllocationLock) -> dict[str, Any]:
        refuse_change(self.wanted, spec)
        try:
            save_manifest(self.folder, spec)
        except OSError as error:
            raise control.ControlError(f"the spec cannot be written to disk, so it is not used: {error}") from None
        old = self.wanted
        self.control.take(spec)
        try:
            self.bring_up(lock)
        except OSError as error:
            self.control.take(old)
            with suppress(OSError):
                save_manifest(self.folder, old)
            raise control.ControlError(f"the spec stays as it was, since this one cannot be run: {error}") from None
        if self.ready:  # It was valid once.
            self.ready, self.not_ready, self._started_at = False, "the spec was changed", time.monotonic()
            self._spawn(self._report_ready())
        self.events.add("Normal", "SpecApplied", "the spec was changed", spec.name)
        if not spec.spec.hibernate:
            self.control.rolling.start("the spec was changed")
        return {"applied": True}


def main(argv: Sequence[str]) -> int:
    """`python -m gantry_operator.platforms.local.supervisor DIR FD`. DIR holds the manifest. FD is the lock of the
    folder, which the caller has taken.
    """
    logs.configure("WARNING")
    folder = ClusterFolder(Path(argv[0]))
    with os.fdopen(int(argv[1]), "a"), suppress(KeyboardInterrupt):
        asyncio.run(_run(folder))
        print("the brokers keep running; `gantry up` adopts them, `gantry down` stops them", flush=True)
    return 0


async def _run(folder: ClusterFolder) -> None:
    await Supervisor(folder, load_saved(folder)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
