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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gantry_broker import logs
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.version import VERSION
from pydantic import ValidationError

from gantry_operator.api import BrokerCluster
from gantry_operator.api.spec import MODE_IS_FIXED
from gantry_operator.cluster import maintenance, wall_clock
from gantry_operator.cluster.access_control import LOOK_S, AccessControl
from gantry_operator.cluster.group_changes import GroupChanges, WantedGroups
from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.cluster.group_controllers import GroupControllers, failover_settings
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.cluster.probe import check_group, not_writable
from gantry_operator.cluster.rolling_change import RollingChange, Upgrade
from gantry_operator.cluster.second_site import Refused
from gantry_operator.cluster.site_control import SiteControl
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.cluster.status import last_failover
from gantry_operator.cluster.topic_control import Cluster, TopicControl
from gantry_operator.cluster.upgrade_check import Running
from gantry_operator.plan import MemberPlan, Plan, plan
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.certificates import (
    NOT_HERE,
    NOT_HERE_EITHER,
    LocalCertificates,
    authorities_file,
    client_options,
    proxy_has_tls,
    scheme,
    uses_tls,
)
from gantry_operator.platforms.local.children import Children
from gantry_operator.platforms.local.events import EventLog
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_groups import (
    begin_removal,
    remove_remains,
    removed_processes,
    removing_groups,
    running_cluster,
)
from gantry_operator.platforms.local.leaving_members import leaving_members, surplus_processes, with_leaving
from gantry_operator.platforms.local.port_claims import PortAllocationLock, acquire_port_lock
from gantry_operator.platforms.local.ports import Ports, http, replication
from gantry_operator.platforms.local.process import listens, load_record
from gantry_operator.platforms.local.process_plan import ProcessPlan, process_plans
from gantry_operator.platforms.local.process_replacement import ProcessReplacement
from gantry_operator.platforms.local.proxies import why_no_proxy
from gantry_operator.platforms.local.site import LocalSiteStore
from gantry_operator.platforms.local.topics import LocalTopicStore
from gantry_operator.platforms.local.users import LocalAccessStore, authentication, user_status
from gantry_operator.registry import FileRegistry
from gantry_operator.registry.file import write_durably, write_whole

log = logging.getLogger(__name__)

READY_POLL_S = 0.05
CERTIFICATES_AGAIN_S = 30.0
"""Seconds until the next try to write certificates."""
PORT_POLL_S = 0.02


class Supervisor:
    """One local cluster. It is also the platform of its failover controllers."""

    def __init__(
        self, folder: ClusterFolder, cluster: BrokerCluster, show: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder
        self.wanted = cluster
        """The cluster as the manifest has it."""
        cluster = running_cluster(folder, cluster)
        self.cluster = cluster
        """The same with the groups that leave."""
        self.plan: Plan = plan(cluster)
        self.leaving: dict[str, MemberPlan] = leaving_members(folder, self.plan)
        """Members that left the plan and still belong to the cluster."""
        self.ports = Ports.load(folder.ports)
        self.events = EventLog(folder.events, show)
        self.children = Children(folder, self.events.add, self._processes_changed)
        self.ready = False
        self.not_ready = "starting"
        self._certificates = LocalCertificates(folder)
        self._client = make_client(folder.token.read, self._certificates.trusted)
        registry, clock = FileRegistry(folder.registry), StallCompensatedClock()
        self._groups = GroupControllers(self, registry, self._client, clock, self.event)
        self._groups.configure(cluster.spec)
        self.controllers = self._groups.controllers
        self._users = LocalAccessStore(folder, cluster, self.events.add)
        self._access = AccessControl(self._users, self._groups.watches, self._client)
        self._remoting = RemotingClient(sign=self._access.sign)
        self._topic_store = LocalTopicStore(folder, self.events.add)
        self.topics = TopicControl(
            self._topic_store,
            self._topic_cluster,
            self.controllers,
            self._client,
            lambda: self._remoting,
            self._reached,
        )
        self._calls_with: TlsOptions | None = None
        """TLS of `_remoting`."""
        self._tasks: set[asyncio.Task[None]] = set()
        replacement = ProcessReplacement(
            lambda: self.children, lambda: self.plan, lambda: self.leaving, self._bring_up_again,
            lambda: not self.cluster.spec.hibernate,
        )  # fmt: skip
        self._rolling = RollingChange(replacement, self.controllers, self.event, hold=self._hold, upgrade=self._upgrade)
        self._changes = GroupChanges(self, self.controllers, self._client, self._wanted_groups, self.event)
        self.sites = SiteControl(
            LocalSiteStore(folder), self.controllers, self._client,
            groups=lambda: [g.name for g in self.plan.groups],
            follows=lambda: self.cluster.spec.bootstrap is not None and self.cluster.spec.bootstrap.follow is not None,
            archives=lambda: self.cluster.spec.archive is not None,
            on_event=self.event, changed=self._site_changed,
        )  # fmt: skip
        self._stop = asyncio.Event()
        self._started_at = time.monotonic()
        self._ready_after_s = 0.0

    # ---- life cycle

    async def run(self) -> None:
        """Runs until a signal comes, or until a command requests the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        self.bring_up(await asyncio.to_thread(acquire_port_lock))
        server = await control.serve(self.folder, self._handle)
        self._spawn(self._report_ready())
        self._spawn(self._rolling.run())
        self._spawn(self._changes.run())
        self._spawn(self._renew_certificates())
        self._spawn(self._access.run())
        self._spawn(self.sites.run())
        self._spawn(self.topics.run())
        self._spawn(self._follow_users())
        try:
            await self._stop.wait()
        finally:
            server.close()
            await self.close()
            self.folder.supervisor.unlink(missing_ok=True)

    async def close(self) -> None:
        """Release all resources. The processes keep running."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._groups.close()
        self.children.close()
        await self._client.aclose()
        await self._remoting.close()

    def watch_only(self, group: str) -> GroupController:
        """Start the failover of one group over its running processes, without starting any. Raises KeyError."""
        self.plan.group(group)
        self._keep_certificates()
        self.children.plan(self._process_plans(), keep_alive=False)
        return self._groups.make(group, self.cluster.spec.mode)

    async def _bring_up_again(self) -> None:
        self.bring_up(await asyncio.to_thread(acquire_port_lock))

    def bring_up(self, lock: PortAllocationLock) -> None:
        """Start or adopt planned and leaving processes. Running ones are left alone.

        `lock`: the lock for choosing ports. A thread waits for it, because another program may hold it for long.
        """
        surplus = surplus_processes(self.folder, self.plan)
        names = [s.name for s in self.plan.name_servers] + [p.name for p in self.plan.proxies]
        names += [p.name for p in surplus]
        names += [*(m.name for m in self.plan.members), *self.leaving]
        running = frozenset(n for n in names if self.children.running(n) or self._recorded_running(n))
        for use in self.ports.choose(with_leaving(self.plan, self.leaving.values()), running, lock):
            self.events.add("Warning", "PortInUse", f"the port of {use} is used by another program now", use)
        self._keep_certificates()
        self._rolling.joining |= self._newcomers()
        if self.cluster.spec.hibernate:
            self.children.plan(self._process_plans(), keep_alive=False)
            if not any(map(self.children.running, names)):
                return
            self._groups.update(self.cluster)
            self._spawn(self._fall_asleep())
            return
        self.children.plan(self._process_plans())
        for process in surplus:
            if not self.children.adopt(process):
                self.folder.config(process.name).unlink(missing_ok=True)
        self._groups.update(self.cluster)

    def _hold(self) -> str:
        return maintenance.wait_for(self.cluster.spec.maintenanceWindow, datetime.now(UTC))

    @staticmethod
    def _upgrade(group: str, members: Sequence[Running]) -> Upgrade | None:
        """None: the outdated members of the group have the version of this installation."""
        other = any(m.release != VERSION for m in members if m.outdated and m.release)
        return Upgrade(VERSION, VERSION) if other else None

    async def _fall_asleep(self) -> None:
        """Stop all processes: in each group the leader last, then the NameServers."""
        self.events.add(
            "Normal", "Hibernating", "all processes stop; data and leadership records stay", self.cluster.name
        )
        for group in self.plan.groups:
            controller = self.controllers.get(group.name)
            leadership = None if controller is None else controller.leadership
            leader = None if leadership is None or leadership.master is None else leadership.master.member
            followers = [m.name for m in group.members if m.number != leader]
            await asyncio.gather(*map(self.children.rest, followers))
            await self._groups.end(group.name)
            await asyncio.gather(*(self.children.rest(m.name) for m in group.members if m.number == leader))
            if not self.cluster.spec.hibernate:
                break
        brokers = {m.name for m in self.plan.members}
        for name in sorted(self.children.table, key=lambda name: (name not in brokers, name)):
            if self.cluster.spec.hibernate:  # Members that leave, proxies, NameServers.
                await self.children.rest(name)
        if not self.cluster.spec.hibernate:
            await self._bring_up_again()  # The spec changed meanwhile.

    def _process_plans(self) -> list[ProcessPlan]:
        whole = with_leaving(self.plan, self.leaving.values())
        return process_plans(self.cluster, whole, self.ports, self.folder)

    def _keep_certificates(self) -> None:
        """Before the processes that read them. Raises OSError."""
        whole = with_leaving(self.plan, self.leaving.values())
        for note in self._certificates.keep(self.cluster, whole):
            self.events.add("Normal", note.reason, note.message, self.cluster.name)
        options = client_options(self.cluster, self.folder)
        if options != self._calls_with:
            former, self._remoting, self._calls_with = (
                self._remoting,
                RemotingClient(sign=self._access.sign, tls=options),
                options,
            )
            self._spawn(former.close())

    async def _renew_certificates(self) -> None:
        """Processes read a renewed certificate by themselves."""
        while True:
            await wall_clock.wait(self._certificates.due_s(), self._certificates.is_due)
            try:
                self._keep_certificates()
            except OSError as error:
                self.events.add("Warning", "CertificatesNotWritten", str(error), self.cluster.name)
                await asyncio.sleep(CERTIFICATES_AGAIN_S)

    def _newcomers(self) -> set[str]:
        """Members that are new in an existing group."""
        found: set[str] = set()
        for group in self.plan.groups:
            new = {m.name for m in group.members if not self.folder.config(m.name).exists()}
            if len(new) < len(group.members):
                found |= new
        return found

    def _recorded_running(self, name: str) -> bool:
        return load_record(self.folder.process(name)) is not None

    async def _follow_users(self) -> None:
        while True:
            if self._users.changed():
                self._access.wake()
            if self._topic_store.changed():
                self.topics.wake()
            await asyncio.sleep(LOOK_S)

    def _topic_cluster(self) -> Cluster | None:
        """For the decisions about topics and groups."""
        paused = self.cluster.paused or self.cluster.spec.hibernate
        groups = [g.name for g in self.plan.groups]
        staying = self._wanted_groups().staying
        return Cluster(self.cluster.name, groups, frozenset(groups) - set(staying), paused)

    def _reached(self, group: str) -> str | None:
        """Where clients of this machine reach the master of a group; None: it has no port yet."""
        use = f"group/{group}"
        return self.ports.address(use) if use in self.ports.taken else None

    async def _report_ready(self) -> None:
        """Report once when a client can send and read, and the reason while it cannot."""
        while True:
            self.not_ready = await self._why_not_ready()
            if not self.not_ready:
                break
            await asyncio.sleep(READY_POLL_S)
        self.ready = True
        seconds = self._ready_after_s = time.monotonic() - self._started_at
        if not self.cluster.spec.hibernate:
            reads_only = self.sites.reads_only
            can = f"read: {reads_only}" if reads_only else "send and read"
            self.events.add("Normal", "ClusterReady", f"a client can {can} ({seconds:.1f} s)", self.cluster.name)
        print(self.describe_ready(), flush=True)

    async def _why_not_ready(self) -> str:
        """Empty: a message was sent to every group and read back; else the reason."""
        if self.cluster.spec.hibernate:
            running = [name for name in self.children.table if self.children.running(name)]
            return f"{', '.join(running)} still stop" if running else ""
        if self.sites.reads_only:
            return self.sites.why_not_ready()
        servers = [self.ports.address(s.name) for s in self.plan.name_servers]
        wanted = {g.name for g in self.wanted.spec.brokerGroups}
        for group in self.plan.groups:
            if group.name not in wanted:
                continue  # It takes no messages any more.
            controller = self.controllers.get(group.name)
            if controller is None:
                return f"group {group.name} starts"
            leader = controller.leader_watch
            problem = not_writable(
                controller.blocking_wait,
                None if leader is None else leader.name,
                None if leader is None else leader.status,
            )
            if problem is None:
                address = self.ports.address(f"group/{group.name}")
                problem = await check_group(
                    self._remoting, servers, self.cluster.broker_name(group.name), address, address
                )
            if problem is not None:
                return f"group {group.name}: {problem}"
        for proxy in self.plan.proxies:
            url = f"{scheme(self.cluster)}://{self.ports.address(http(proxy.name))}"
            why = await why_no_proxy(self._client, url)
            if why:
                return f"{proxy.name}: {why}"
        return ""

    def describe_ready(self) -> str:
        """Print the addresses and commands for the user who started the cluster."""
        if self.cluster.spec.hibernate:
            return f"\n{self.cluster.name} hibernates: nothing runs, and the messages are kept\n"
        servers = ";".join(self.ports.address(s.name) for s in self.plan.name_servers)
        leaving = self._wanted_groups().leaving
        lines = [f"\n{self.cluster.name} is ready ({self._ready_after_s:.1f} s)\n", f"  name servers   {servers}"]
        for group in self.plan.groups:
            leadership = self.controllers[group.name].leadership
            names = {m.member: m.name for m in self.members(group.name)}
            master = (
                "-" if leadership is None or leadership.master is None else names.get(leadership.master.member, "-")
            )
            in_sync = 0 if leadership is None else len(leadership.in_sync)
            address = self.ports.address(f"group/{group.name}")
            state = f"master {master}, {in_sync} of {len(names)} in sync"
            if group.name in leaving:
                state += "; it leaves: gantry status shows how far its drain is"
            lines.append(f"  group {group.name:<8} {address}  {state}")
        for proxy in self.plan.proxies:
            form = "TLS or clear text" if proxy_has_tls(self.cluster) else "clear text"
            if proxy_has_tls(self.cluster) and self.cluster.spec.proxy is not None:
                mode = self.cluster.spec.proxy.tls_mode(self.cluster.spec.security.tls.mode)
                form = "TLS" if mode == "Required" else form
            lines.append(f"  gRPC           {self.ports.address(proxy.name)}  {form}")
        lines += [f"  note           {text}" for text in self.ports.unusual(self.plan)]
        if uses_tls(self.cluster):
            lines.append(f"  TLS authority  {authorities_file(self.folder)}")
        if authentication(self.cluster) != "Disabled":
            lines.append("  users          gantry user create | list; the super user's key: gantry user key admin")
        lines.append(
            "\n  gantry status | gantry produce TOPIC --count 10 | gantry consume TOPIC --group G | gantry down\n"
        )
        return "\n".join(lines)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the supervisor failed", exc_info=task.exception())
            self.events.add("Warning", "SupervisorError", repr(task.exception()), self.cluster.name)

    def _processes_changed(self) -> None:
        self._groups.wake()

    # ---- platform of the failover

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        known = group in {g.name for g in self.plan.groups}
        found = with_leaving(self.plan, self.leaving.values()).group(group).members if known else ()
        return [
            MemberEndpoint(
                m.name,
                m.number,
                f"{scheme(self.cluster)}://{self.ports.address(f'{m.name}/http')}",
                self.ports.address(replication(m.name)),
            )
            for m in found
        ]

    def process_state(self, name: str) -> ProcessState:
        return ProcessState(gone=not self.children.running(name), deleting=name in self.leaving)

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Make the master serve the group's port. Kill a frozen former master that still holds it.

        Returns when no other member can hold it. A Raft group may elect before its former leader has been silent long
        enough to count as frozen. A leader that has just been demoted may report it a moment later.
        """
        killed: set[str] = set()
        while former := self._may_hold_the_port(group, master.member):
            for number, watch in former:
                detection_s = failover_settings(self.cluster.spec).detection_ms / 1000
                silent = self.controllers[group].silence_s(number) >= detection_s
                if silent and watch.name not in killed:
                    killed.add(watch.name)
                    self.event(
                        Event(
                            "Warning", "FrozenMasterKilled", f"{watch.name} does not answer and holds the port", group
                        )
                    )
                    self.children.kill(watch.name)
            leadership = self.controllers[group].leadership
            if leadership is not None and leadership.epoch > epoch:
                return
            await asyncio.sleep(PORT_POLL_S)

    def _may_hold_the_port(self, group: str, master: int) -> list[tuple[int, MemberWatch]]:
        """Members that last reported to lead, without the present leader.

        For a member that was never heard, the system reports whether it listens on the port. A slow slave does not
        listen there.
        """

        def may(watch: MemberWatch) -> bool:
            pid = self.children.pid(watch.name)
            # A refused connection is no sign of it: the member is starting or ending, and holds no port.
            if pid is None or watch.reach == "refused":
                return False
            if watch.report is None:
                return listens(pid, self.ports[f"group/{group}"]) is not False
            return watch.report.role == "Master"

        return [(n, w) for n, w in self.controllers[group].watches.items() if n != master and may(w)]

    # ---- groups that come and go

    def _wanted_groups(self) -> WantedGroups:
        removing = removing_groups(self.folder)
        wanted = {g.name for g in self.wanted.spec.brokerGroups} - set(removing)
        groups = [g.name for g in self.cluster.spec.brokerGroups]
        spec = self.wanted.spec
        return WantedGroups(
            staying=tuple(g for g in groups if g in wanted),
            leaving=tuple(g for g in groups if g not in wanted and g not in removing),
            removing=removing,
            extend=spec.topicDefaults.extendToNewGroups,
            policy=spec.drain,
            managed=self.topics.managed_topics(),
        )

    def mark(self, group: str) -> str:
        return ""  # One process takes the spec and begins removals, and nothing comes between the two.

    async def begin_removal(self, group: str, mark: str) -> bool:
        begin_removal(self.folder, group)
        self._take(self.wanted)
        return True

    async def stay(self, group: str) -> bool:
        return True

    async def continue_removal(self, group: str) -> bool:
        await self._groups.end(group)
        name = self.cluster.name
        processes = removed_processes(self.folder, name, group)
        for process in processes:
            self.children.adopt(process)
        await asyncio.gather(*(self.children.remove(process.name) for process in processes))
        keep = self.wanted.spec.reclaim == "Retain"
        await asyncio.to_thread(remove_remains, self.folder, name, group, keep_data=keep)
        self._take(self.wanted)
        if any(g.name == group for g in self.wanted.spec.brokerGroups):
            await self._bring_up_again()
        return True

    def event(self, event: Event) -> None:
        about = f"group {event.group}" if event.group else self.cluster.name
        self.events.add(event.kind, event.reason, event.message, about)

    def changed(self, change: Change) -> None:
        try:
            write_whole(self.folder.last_failover, last_failover(change).model_dump_json(by_alias=True))
        except OSError as error:
            log.error("the last failover could not be written to disk: %s", error)
        self.events.add(
            "Normal",
            "SwitchoverCompleted" if change.planned else "FailoverCompleted",
            f"{change.new} leads after {change.duration_ms} ms (epoch {change.epoch})",
            f"group {change.group}",
        )

    # ---- requests of commands

    async def _handle(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if op == "info":
            return self._info()
        if op == "stop":
            self._stop.set()
            return {"stopping": True}
        if op == "switchover":
            return await self._switchover(str(arguments["group"]), arguments.get("to"))
        if op in ("demote", "promote"):
            return await self._site(op, arguments)
        if op == "apply":
            return await self._apply(arguments["manifest"])
        if op == "users":
            return self._user_states()
        if op == "topics":
            return self._topic_state()
        raise control.ControlError(f"no such request: {op}")

    def _info(self) -> dict[str, Any]:
        groups = {}
        for name, loop in self.controllers.items():
            waits = loop.waits
            groups[name] = {
                "waits": None if waits is None else {"code": waits.code, "reason": waits.reason},
                "problem": loop.problem,
            }
        return {
            "ready": self.ready,
            "notReady": self.not_ready,
            "groups": groups,
            "refused": dict(self._rolling.refused),
            "rolling": "; ".join(filter(None, [self._rolling.reason, *self._changes.progress.values()])),
            "drains": {name: row.model_dump(mode="json") for name, row in self._changes.drains.items()},
            "site": self.sites.state.to_json(),
            "siteWaits": self.sites.waits,
            "describe": self.describe_ready() if self.ready else "",
        }

    async def _site(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        accept_loss, timeout_s = bool(arguments.get("acceptLoss")), float(arguments["timeout"])
        try:
            if op == "demote":
                token = await self.sites.demote(accept_loss=accept_loss, timeout_s=timeout_s)
                return {"token": token}
            token = str(arguments.get("token") or "")
            return {"origin": await self.sites.promote(token, accept_loss=accept_loss, timeout_s=timeout_s)}
        except Refused as error:
            raise control.ControlError(str(error)) from None

    def _site_changed(self) -> None:
        self._groups.wake()
        if self.ready:
            self.ready, self.not_ready, self._started_at = False, "its part changes", time.monotonic()
            self._spawn(self._report_ready())

    def _user_states(self) -> dict[str, Any]:
        """The state of every user after the last change of the files. `current`: no change is still unread."""
        if self._users.changed():
            self._access.wake()
        return {
            "current": not self._access.busy,
            "problem": self._access.problem,
            "users": {name: user_status(*shown) for name, shown in self._users.shown.items()},
        }

    def _topic_state(self) -> dict[str, Any]:
        """`current`: the resources were compared with the brokers after the last change of their file."""
        if self._topic_store.changed():
            self.topics.wake()
        return {"current": not self.topics.busy, "problem": self.topics.problem}

    async def _switchover(self, group: str, to: str | None) -> dict[str, Any]:
        try:
            why = self.plan.why_no_switchover(group)
            if why:
                raise control.ControlError(why)
            number = None if to is None else self.plan.member_of(group, to).number
        except KeyError as error:
            raise control.ControlError(str(error.args[0])) from None
        try:
            done = await self.controllers[group].switchover(number, "requested by gantry switchover")
        except SwitchoverFailed as error:
            raise control.ControlError(str(error)) from None
        return {"done": done}

    def _take(self, cluster: BrokerCluster) -> None:
        self.wanted = cluster
        self.cluster = running_cluster(self.folder, cluster)
        self.plan = plan(self.cluster)
        self.leaving = leaving_members(self.folder, self.plan)
        self._users.cluster = cluster
        self._access.wake()
        self.topics.wake()
        self._changes.wake()

    async def _apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        try:
            wanted = BrokerCluster.model_validate(manifest)
        except ValidationError as error:
            raise control.ControlError(str(error)) from None
        with await asyncio.to_thread(acquire_port_lock) as lock:
            return self._go_on_with(wanted, lock)

    def _go_on_with(self, wanted: BrokerCluster, lock: PortAllocationLock) -> dict[str, Any]:
        refuse_change(self.wanted, wanted)
        try:
            save_manifest(self.folder, wanted)
        except OSError as error:
            raise control.ControlError(f"the spec cannot be written to disk, so it is not used: {error}") from None
        old = self.wanted
        self._take(wanted)
        try:
            self.bring_up(lock)
        except OSError as error:
            self._take(old)
            with suppress(OSError):
                save_manifest(self.folder, old)
            raise control.ControlError(f"the spec stays as it was, since this one cannot be run: {error}") from None
        if self.ready:  # It was valid once.
            self.ready, self.not_ready, self._started_at = False, "the spec was changed", time.monotonic()
            self._spawn(self._report_ready())
        self.events.add("Normal", "SpecApplied", "the spec was changed", wanted.name)
        if not wanted.spec.hibernate:
            self._rolling.start("the spec was changed")
        return {"applied": True}


def refuse_change(old: BrokerCluster, new: BrokerCluster) -> None:
    """Refuse changes that a cluster with data does not allow. Raises ControlError with the field and the reason."""
    if new.name != old.name:
        raise control.ControlError(
            f"metadata.name is {new.name!r}, but this folder holds {old.name!r}: use another --dir"
        )
    if new.spec.mode != old.spec.mode:
        raise control.ControlError(f"spec.mode is {new.spec.mode}, was {old.spec.mode}: {MODE_IS_FIXED}")
    before, after = (c.spec.security.tls.between_members(kubernetes=False) for c in (old, new))
    if before != after:
        raise control.ControlError(
            f"spec.security.tls.internal is {str(after).lower()}, was {str(before).lower()}: members with TLS and "
            "members without it could not reach each other while they are replaced; write the former value"
        )
    if new.broker_cluster_name != old.broker_cluster_name:
        raise control.ControlError(
            f"spec.brokerClusterName is {new.broker_cluster_name}, was {old.broker_cluster_name}: clients, "
            "messages and consumers' progress have the former name; write that one"
        )
    for group in old.spec.brokerGroups:
        if new.broker_name(group.name) != group.broker_name:
            raise control.ControlError(
                f"spec.brokerGroups: brokerName of {group.name} is {new.broker_name(group.name)}, was "
                f"{group.broker_name}: clients and consumers' progress have the former name; write that one"
            )
    refuse_elsewhere(new)
    size = "mappedFileSizeCommitLog"
    if getattr(new.spec.broker, size) != getattr(old.spec.broker, size):
        raise control.ControlError(f"spec.broker.{size} is fixed for life: write {getattr(old.spec.broker, size)}")


def refuse_elsewhere(cluster: BrokerCluster) -> None:
    """Refuse a spec that only Kubernetes can run. Raises ControlError."""
    if cluster.spec.security.tls.issuer == "Secret":
        raise control.ControlError(NOT_HERE)
    proxy = cluster.spec.proxy
    if proxy is not None and proxy.tls is not None and proxy.tls.secretName is not None:
        raise control.ControlError(NOT_HERE_EITHER)


def save_manifest(folder: ClusterFolder, cluster: BrokerCluster) -> None:
    write_durably(folder.manifest, cluster.model_dump_json(exclude={"status"}, exclude_none=True, indent=1))


def load_saved(folder: ClusterFolder) -> BrokerCluster:
    """The cluster as it was last started. Raises OSError, pydantic.ValidationError."""
    return BrokerCluster.model_validate_json(folder.manifest.read_bytes())


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
