"""Changes of metadata: control records in the log, and the wait until clients can rely on a change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.errors import NotStored, NotWritable
from gantry_broker.broker.metadata.tables import Change, Metadata, Tables, encode_change
from gantry_broker.protocol.codes import CONTROL_TOPIC, SendStatus
from gantry_broker.store.errors import StoreError
from gantry_broker.store.types import Put
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.registrar import Registrar
    from gantry_broker.broker.role import RoleState
    from gantry_broker.store.store import MessageStore

ENDS: Final = 2_000
"""Queues in one control record of queue ends."""
GATHER_S: Final = 0.005
"""Seconds for which commits that wait for the log are gathered into one write."""


class MetadataChanges:
    """Appends changes as control records and applies them to the working view. Only a leader appends changes."""

    def __init__(
        self,
        meta: Metadata,
        store: MessageStore,
        store_host: bytes,
        *,
        writer: LogWriter,
        role: RoleState,
        health: MemberHealth,
        registrar: Registrar,
        events: Events,
        clock: Clock,
    ) -> None:
        self._meta = meta
        self._store = store
        self._store_host = store_host
        self._writer = writer
        self._role = role
        self._health = health
        self._registrar = registrar
        self._tables_changed = events.tables_changed
        self._clock = clock
        self.on_append: Callable[[Change], None] = lambda change: None
        """Called with each change before it is appended."""
        self._waiting: dict[str, set[int]] = {}
        """Queues, by key of topic and group, whose committed offsets the next gathered write takes."""
        self._gathered: asyncio.Future[SendStatus] | None = None
        """The result of the next gathered write; None: nobody waits for one."""
        self._tables_in_segment = -1
        self._rest: Iterator[Change] | None = None
        """What `write_tables` has not written yet of the tables `_written`; None: it writes none now."""
        self._rest_segment = -1
        self._written: Tables | None = None
        events.role_changed.subscribe(self._role_changed)

    def append(
        self,
        change: Change,
        puts: list[Put] | None = None,
        on_status: Callable[[SendStatus], None] | None = None,
        owner: str = "",
    ) -> None:
        """Append `puts` and a change as one batch, all of it or nothing. Raises NotWritable and StoreError.

        `on_status` gets the result of the replication. `owner`: who pays for new consumer offsets; empty: nobody.
        """
        change.setdefault("at", self._clock.unix_ms())
        self.on_append(change)
        self._writer.append([*(puts or ()), self._record(change)])
        if self._meta.change(change, owner):
            self._tables_changed()
        self._writer.appended(on_status)

    async def append_and_wait(self, change: Change, owner: str = "") -> None:
        """Append a change and wait until it is replicated and the NameServers know the topics that it changes.

        Raises NotWritable, StoreError and NotStored.
        """
        done: asyncio.Future[SendStatus] = asyncio.get_running_loop().create_future()

        def on_status(status: SendStatus) -> None:
            if not done.done():
                done.set_result(status)

        self.append(change, on_status=on_status, owner=owner)
        status = await done
        if status is not SendStatus.SEND_OK:
            raise NotStored(f"the change is in this member's log, but not replicated in time: {status.name}")
        if "topics" in change or "dropTopics" in change or "marks" in change:
            await self._registrar.registered()

    def _record(self, change: Change) -> Put:
        """Return the control record of a change."""
        body = encode_change(change)
        return Put(CONTROL_TOPIC, 0, 0, 0, self._clock.unix_ms(), self._store_host, body, b"")

    def flush_offsets(self, most: int | None = None) -> bool:
        """Write changed consumer offsets into the log, those of about `most` queues.

        Returns True while more of them wait.
        """
        if not self._role.may_append:
            return False
        changes = self._meta.take_dirty(self._clock.unix_ms(), most)
        if not changes:
            return False
        try:
            self._writer.append([self._record(c) for c in changes])
        except StoreError as error:
            self._meta.put_back(changes)
            self._health.store_failed(error)
            return False
        self._writer.appended(None)
        return self._meta.has_dirty

    async def offset_stored(self, key: str, queue_id: int) -> None:
        """Wait until a committed offset is in the log and replicated. Commits of `GATHER_S` share one write.

        Raises NotWritable, StoreError and NotStored; the offset stays in the tables and is written later.
        """
        self._waiting.setdefault(key, set()).add(queue_id)
        if self._gathered is None:
            loop = asyncio.get_running_loop()
            self._gathered = loop.create_future()
            loop.call_later(GATHER_S, self._write_gathered)
        status = await asyncio.shield(self._gathered)
        if status is not SendStatus.SEND_OK:
            raise NotStored(f"the offset is in this member's log, but not replicated in time: {status.name}")

    def _write_gathered(self) -> None:
        """Write the offsets that somebody waits for. One that was written meanwhile waits for its copies alone."""
        queues_of, self._waiting = self._waiting, {}
        gathered, self._gathered = self._gathered, None
        assert gathered is not None

        def on_status(status: SendStatus) -> None:
            if not gathered.done():
                gathered.set_result(status)

        changes = self._meta.take_dirty_of(queues_of, self._clock.unix_ms())
        try:
            if changes:
                self._writer.append([self._record(c) for c in changes])
        except (NotWritable, StoreError) as error:
            self._meta.put_back(changes)
            if isinstance(error, StoreError):
                self._health.store_failed(error)
            gathered.set_exception(error)
            gathered.exception()  # Somebody may have stopped waiting.
            return
        self._writer.appended(on_status)

    def _all_tables(self) -> Iterator[Change]:
        """Yield all tables and the end of each queue, for a follower whose log does not begin at 0."""
        now = self._clock.unix_ms()
        yield from self._meta.working.all_changes(now)
        queues = [queue.key for queue in self._store.queues]
        for start in range(0, len(queues), ENDS):
            next_offsets = self._store.queues.next_offsets(queues[start : start + ENDS])
            ends = {
                topic: {str(number): end for number, end in of_topic.items()}
                for topic, of_topic in next_offsets.items()
            }
            if ends:
                yield {"at": now, "ends": ends}

    def write_tables(self) -> bool:
        """Write all tables into the log, once in each segment and each leadership: control records expire with their
        segment. It writes for `SLICE_S`, and returns True while more of them wait.

        Raises OSError when a queue cannot be read; the next call begins again.

        A change between two parts comes after the first part in the log, and is in those that follow. So the log gives
        the same tables from any point before the first part.
        """
        if not self._role.may_append:
            self._rest = None
            return False
        if self._rest is None or self._written is not self._meta.working:
            segment = self._store.log.end // self._store.log.segment_size
            if segment == self._tables_in_segment:
                return False
            self._rest, self._written, self._rest_segment = self._all_tables(), self._meta.working, segment
        ends = time.perf_counter() + SLICE_S
        while True:
            try:
                change = next(self._rest, None)
            except OSError:
                self._rest = None
                raise
            if change is None:
                self._rest, self._tables_in_segment = None, self._rest_segment
                return False
            try:
                self._writer.append([self._record(change)])
            except (NotWritable, StoreError) as error:
                self._rest = None
                if isinstance(error, StoreError):
                    self._health.store_failed(error)
                return False
            self._writer.appended(None)
            if time.perf_counter() > ends:
                return True

    def _role_changed(self, leads: bool) -> None:
        self._rest = self._written = None
        self._tables_in_segment = -1
