"""What a broker does by the clock: expiry of clients, offsets into the log, snapshots of the tables, retention.

A job that fails is reported and runs again; none stops another.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.pull import service as pull
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.core import Broker
    from gantry_broker.store.log.epochs import LeaderEpochs

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
OFFSETS_AT_ONCE: Final = 1_000
"""Pairs of topic and group whose offsets are written in one step, in some 10 ms."""


class Upkeep:
    """One timer for all jobs, ten times a second; each job has its own distance."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._due: dict[str, int] = {}
        self._reported: dict[str, str] = {}
        self._segment = -1
        broker.on_role.append(lambda master: self._new_role())

    def start(self) -> None:
        self._broker.loop_watch.start()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _new_role(self) -> None:
        self._segment = -1

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        broker = self._broker
        now = broker.now_ms()
        if len(broker.held):
            self._job("held pulls", now, 100, lambda: pull.expire(broker, now))
        self._job("offsets", now, broker.settings.flushConsumerOffsetInterval, self._flush_offsets)
        self._job("tables in the log", now, 1_000, self._tables_in_log)
        self._job("clients", now, 5_000, lambda: self._expire_clients(now))
        self._job("statistics", now, 10_000, lambda: broker.stats.sample(broker.unix_ms()))
        self._job("snapshots", now, broker.settings.flushConsumerOffsetInterval, self._save)
        self._job("retention", now, 10_000, broker.expire_log)

    def _job(self, name: str, now: int, every_ms: int, work: Callable[[], Any]) -> None:
        if now < self._due.get(name, 0):
            return
        self._due[name] = now + every_ms
        try:
            work()
            self._reported.pop(name, None)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self._reported.get(name) != text:
                self._reported[name] = text
                log.exception("upkeep (%s) failed", name)

    def _flush_offsets(self) -> None:
        """Very many are written in parts, one in each tick."""
        if self._broker.flush_offsets(OFFSETS_AT_ONCE):
            self._due["offsets"] = 0

    def _expire_clients(self, now: int) -> None:
        broker = self._broker
        changed, silent = broker.clients.expire(now)
        for group in changed:
            broker.notify_group(group)
        for conn in silent:
            conn.close()
        broker.locks.expire(now)

    def _tables_in_log(self) -> None:
        """Once per segment and role the master writes all tables into the log: control records expire like others."""
        broker = self._broker
        if not broker.may_append:
            return
        segment = broker.store.end // broker.store.log.segment_size
        if segment == self._segment:
            return
        try:
            broker.append([broker.change_put(c) for c in broker.tables_as_changes()])
        except (NotWritable, StoreError) as error:
            if isinstance(error, StoreError):
                broker.fitness.store_failed(error)
            return
        self._segment = segment
        broker.appended(None)

    def _save(self) -> None:
        meta, store = self._broker.meta, self._broker.store
        if store.failed is not None or self._broker.replay.lacking:
            return
        if not meta.changed or (self._saving is not None and not self._saving.done()):
            return
        meta.changed = False
        # Thousands of topics take a second to write as JSON: another thread does it, of a copy.
        tables, history = snapshots.Frozen.of(meta), store.epochs
        folder = self._broker.config.data_dir / "config"
        work = functools.partial(_render_and_write, folder, tables, history)
        self._saving = asyncio.get_running_loop().create_task(self._write(work))

    async def _write(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, work)
        except OSError as error:
            self._broker.meta.changed = True
            self._broker.store.warnings.warn("the tables' snapshots cannot be written", error)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._broker.loop_watch.close()
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)


def _render_and_write(folder: Path, tables: snapshots.Frozen, history: LeaderEpochs) -> None:
    """Raises OSError."""
    snapshots.write(folder, snapshots.render(tables, history))
