"""The processes of one cluster: started or adopted, watched, and restarted when they die."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gantry_broker.tasks import set_within

from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.process import (
    ExitWatch,
    ProcessRecord,
    load_record,
    reap,
    save_record,
    send,
    start,
    started_with,
)
from gantry_operator.platforms.local.process_plan import ProcessPlan
from gantry_operator.registry.file import write_durably

log = logging.getLogger(__name__)

BACK_OFF_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
SUCCESSOR_FIRST_S = 1.0
"""Seconds before a member restarts while its group has another leader. A start takes a second of a processor, which
the new leader needs more.
"""
WELL_AFTER = 3.0
"""A process that ran for this many times its previous pause (at least a second) restarts with the first pause."""
STOP_PATIENCE_S = 15.0
RECORD_AGAIN_S = 5.0
"""Seconds before another try to write the record of a process."""


def pause_before_start(failures: int, group_goes_on: bool) -> float:
    """Seconds until a process that ended is started again; `failures`: ends in a row before this one."""
    pause = BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]
    return max(pause, SUCCESSOR_FIRST_S) if group_goes_on else pause


def lived_well(lived_s: float, pause_s: float) -> bool:
    """Whether a process ran long enough that its end starts a new series. `pause_s`: the pause before its start."""
    return lived_s > WELL_AFTER * max(pause_s, SUCCESSOR_FIRST_S)


@dataclass(slots=True)
class Child:
    """One process of the plan."""

    plan: ProcessPlan
    record: ProcessRecord | None = None
    watch: ExitWatch | None = None
    failures: int = 0
    pause_s: float = 0.0
    """The last pause in seconds before a start."""
    started_at: float = 0.0
    restart: asyncio.TimerHandle | None = None
    unwritten: asyncio.TimerHandle | None = None
    """Its record must be written again."""
    stopping: asyncio.Event | None = None
    """Set when it has ended on our own request."""
    restart_requested: bool = False
    """Somebody asked for its restart. Its next start ends the request."""

    @property
    def outdated(self) -> bool:
        return self.record is not None and self.record.config != self.plan.digest


class Children:
    """The processes of one event loop. Calls `on_change` when a process ends or starts."""

    def __init__(
        self, folder: ClusterFolder, event: Callable[[str, str, str, str], None], on_change: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._event = event
        self._on_change = on_change
        self._keep_alive = True
        self.table: dict[str, Child] = {}

    def plan(self, plans: Iterable[ProcessPlan], *, keep_alive: bool = True) -> None:
        """Set the wanted processes. New ones are started, running ones are adopted or kept. Nothing is stopped here.

        Without `keep_alive` nothing is started, now or later, until the next call.
        """
        self._keep_alive = keep_alive
        if not keep_alive:
            for each in self.table.values():
                self._cancel_restart(each)
        for plan in plans:
            child = self.table.get(plan.name)
            if child is not None:
                changed, child.plan = child.plan.config != plan.config, plan
                if changed and child.record is not None and not child.outdated:
                    self._write_config(plan)  # Only what a running process reads again has changed.
                if keep_alive and child.record is None and child.restart is None and child.stopping is None:
                    self._start(child)  # It was planned, or it ended, while nothing was to be started.
                continue
            child = self.table[plan.name] = Child(plan)
            record = self._take_over(child)
            if not keep_alive:
                continue
            if record is not None:
                self._event("Normal", "ProcessAdopted", f"{plan.name} was running (process {record.pid})", plan.name)
            else:
                self._start(child)

    def adopt(self, plan: ProcessPlan) -> bool:
        """Keep an unplanned process until it is removed. False: it does not run."""
        if plan.name in self.table:
            return True
        child = Child(plan)
        if self._take_over(child) is None:
            return False
        self.table[plan.name] = child
        return True

    def running(self, name: str) -> bool:
        child = self.table.get(name)
        return child is not None and child.record is not None

    def pid(self, name: str) -> int | None:
        child = self.table.get(name)
        return None if child is None or child.record is None else child.record.pid

    def kill(self, name: str) -> None:
        """Kill it at once. It is started again."""
        child = self.table.get(name)
        if child is not None and child.record is not None:
            send(child.record, signal.SIGKILL)

    async def stop(self, name: str) -> None:
        """End it cleanly, without a restart."""
        child = self.table.get(name)
        if child is None:
            return
        self._cancel_restart(child)
        record = child.record
        if record is None:
            return
        child.stopping = asyncio.Event()
        send(record, signal.SIGTERM)
        send(record, signal.SIGCONT)
        if not await set_within(child.stopping, STOP_PATIENCE_S):
            self._event("Warning", "ProcessKilled", f"{name} did not stop within {STOP_PATIENCE_S:.0f} s", name)
            send(record, signal.SIGKILL)
            await child.stopping.wait()
        child.stopping = None

    async def replace(self, name: str) -> None:
        """Stop it, and start it with the planned config."""
        await self.stop(name)
        child = self.table[name]
        child.failures = 0
        self._start(child)

    async def remove(self, name: str) -> None:
        """End it for good and delete its config, which marks it as part of the cluster."""
        await self.stop(name)
        self.table.pop(name, None)
        self._folder.process(name).unlink(missing_ok=True)
        self._folder.config(name).unlink(missing_ok=True)

    async def rest(self, name: str) -> None:
        """End it cleanly until `plan` names it again. Its config stays, which marks it as part of the cluster."""
        await self.stop(name)
        self.table.pop(name, None)
        self._folder.process(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop watching. The processes keep running."""
        for child in self.table.values():
            if child.watch is not None:
                child.watch.close()
            if child.restart is not None:
                child.restart.cancel()
            if child.unwritten is not None:
                child.unwritten.cancel()

    # ---- inner parts

    @staticmethod
    def _cancel_restart(child: Child) -> None:
        if child.restart is not None:
            child.restart.cancel()
            child.restart = None

    def _start(self, child: Child) -> None:
        child.restart = None
        child.restart_requested = False
        plan = child.plan
        try:
            config = self._folder.config(plan.name)
            if not config.exists() or config.read_bytes() != plan.config.encode():
                write_durably(config, plan.config)
            record = start(
                plan.name,
                plan.argv(self._folder),
                config=plan.digest,
                log=self._folder.log(plan.name),
                cwd=self._folder.root,
            )
        except OSError as error:
            self._event("Warning", "ProcessStartFailed", f"{plan.name} cannot be started: {error}", plan.name)
            self._start_later(child)
            return
        self._watch(child, record)
        self._write_down(child)
        self._on_change()

    def _take_over(self, child: Child) -> ProcessRecord | None:
        """Return the record of its running process, also if the record was never written."""
        record = load_record(self._folder.process(child.plan.name))
        if record is not None:
            self._watch(child, record)
            return record
        record = self._orphan(child.plan)
        if record is not None:
            self._watch(child, record)
            self._write_down(child)
        return record

    def _write_down(self, child: Child) -> None:
        """Write the record of a process. After a failure the process is kept, and the write is tried again."""
        again = child.unwritten is not None
        if child.unwritten is not None:
            child.unwritten.cancel()
            child.unwritten = None
        if child.record is None:
            return
        name = child.plan.name
        try:
            save_record(self._folder.process(name), child.record)
        except OSError as error:
            if not again:
                problem = f"{name} runs as process {child.record.pid}, but its record cannot be written: {error}"
                self._event("Warning", "ProcessRecordNotWritten", problem, name)
            child.unwritten = asyncio.get_running_loop().call_later(RECORD_AGAIN_S, self._write_down, child)

    def _watch(self, child: Child, record: ProcessRecord) -> None:
        child.record = record
        child.started_at = time.monotonic()
        child.watch = ExitWatch(record, lambda: self._ended(child))

    def _ended(self, child: Child) -> None:
        record = child.record
        if record is None:
            return
        status = reap(record.pid)
        child.record, child.watch = None, None
        if child.stopping is not None:
            child.stopping.set()
        elif self._keep_alive:
            if lived_well(time.monotonic() - child.started_at, child.pause_s):
                child.failures = 0
            how = _how(status)
            last = "" if status is None or status <= 0 else _last_line(self._folder.log(child.plan.name))
            last_words = f": {last}" if last else ""
            self._event(
                "Warning",
                "ProcessExited",
                f"{child.plan.name} ended {how}{last_words}; it is started again",
                child.plan.name,
            )
            self._start_later(child)
        self._on_change()

    def _write_config(self, plan: ProcessPlan) -> None:
        try:
            write_durably(self._folder.config(plan.name), plan.config)
        except OSError as error:
            self._event("Warning", "ConfigNotWritten", f"the config of {plan.name}: {error}", plan.name)

    def _start_later(self, child: Child) -> None:
        child.pause_s = pause_before_start(child.failures, self._group_goes_on(child))
        child.failures += 1
        child.restart = asyncio.get_running_loop().call_later(child.pause_s, self._start, child)

    def _group_goes_on(self, child: Child) -> bool:
        group = child.plan.group
        others = (c for c in self.table.values() if c is not child)
        return group is not None and any(c.plan.group == group and c.record is not None for c in others)

    def _orphan(self, plan: ProcessPlan) -> ProcessRecord | None:
        """Find a process whose record was never written: the supervisor was killed, or the disk was full.

        It is outdated if the config at its start differs from the planned one.
        """
        unrecorded = (r for r in started_with(self._folder.configs, {plan.module}) if r.name == plan.name)
        record = next(unrecorded, None)
        with suppress(OSError):
            if record is not None and self._folder.config(plan.name).read_bytes() == plan.config.encode():
                return replace(record, config=plan.digest)
        return record


def _how(status: int | None) -> str:
    if status is None:
        return "by itself"
    if status < 0:
        with suppress(ValueError):
            return f"by {signal.Signals(-status).name}"
    return f"with exit status {status}"


def _last_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:200] if lines else ""
