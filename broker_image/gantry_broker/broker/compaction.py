"""Compaction of topics with the attribute `cleanup.policy=COMPACTION`, on the leader; every member follows by its log.

A thread reads and decides (`store/compaction/passes.py`), at a fifth of a core and a limited rate. The event loop
appends what it decided as compaction records, one at a time. A pass that ends half way, by a failover or a kill, leaves
whole compaction records, each of which stands for itself: the next pass goes on from there.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.broker.clock import AgeClock
from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.metadata.attributes import is_compacted, tombstone_ms
from gantry_broker.protocol.codes import COMPACTION_TOPIC
from gantry_broker.store.compaction.decide import COPY_BYTES
from gantry_broker.store.compaction.passes import (
    BYTES_A_SECOND,
    MOST_RECORDS,
    Pace,
    Segments,
    Work,
    clean_bodies,
    copy_bodies,
)
from gantry_broker.store.errors import BadRecords, StoreError
from gantry_broker.store.index.compacted import QueueRows
from gantry_broker.store.types import Put
from gantry_broker.tasks import end_tasks, set_within
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.after_confirm import AfterConfirm
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.tables import Metadata, Tables
    from gantry_broker.broker.role import RoleState
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
"""Time between two looks for work."""
LEAST_SHARE: Final = 10
"""A pass waits until new records are one in so many of the rows."""
LATEST: Final = 4
"""Or until so many intervals have passed."""
CONFIRM_S: Final = 30.0
"""A pass ends when a compaction record is not confirmed in this time; the next one goes on."""
TRIES: Final = 5
"""After so many passes in a row that met damage, one leaves unreadable records out: repairs did not help."""


class Saved(NamedTuple):
    """What compaction has done to a topic, on this member."""

    seen_records: int
    """Records it has looked at since the topic is compacted."""
    seen_bytes: int
    kept_records: int
    """Of them, those that it keeps."""
    kept_bytes: int


class _Unfinished(Exception):
    """The pass cannot go on: this member no longer leads, or the topic was deleted or changed."""


def is_due(new: int, rows: int, tombstones: int, since_ms: int, interval_ms: int) -> bool:
    """Whether a pass over `new` records pays, if the queue has `rows` and the last pass was `since_ms` ago. Pure.

    `tombstones`: of the rows. They may have become old enough to go, also without new records.
    """
    if since_ms < interval_ms or not (new or tombstones):
        return False
    if not new:
        return since_ms >= LATEST * interval_ms
    return new >= MOST_RECORDS or new * LEAST_SHARE >= rows or since_ms >= LATEST * interval_ms


class Compaction:
    """Owned by the event loop."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        disk: DiskWatch,
        *,
        meta: Metadata,
        writer: LogWriter,
        role: RoleState,
        health: MemberHealth,
        confirmed: AfterConfirm,
        events: Events,
        clock: Clock,
    ) -> None:
        self.error = ""
        """Why the last pass failed; "" when it did not."""
        self._store = store
        self._store_host = store_host
        self._disk = disk
        self._meta = meta
        self._writer = writer
        self._role = role
        self._health = health
        self._clock = clock
        self._age = AgeClock()
        self._age_ms = 0
        """The time by which tombstones count as old, of this look."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._applied = asyncio.Event()
        self._topics: list[str] | None = None
        self._to = 0
        self._preparing = False
        """Whether the preparation of a truncation to `_to` goes on by itself."""
        self._last: dict[tuple[str, int], int] = {}
        self._failures: dict[tuple[str, int], int] = {}
        confirmed.on_messages_available[COMPACTION_TOPIC] = lambda queue: self._apply()
        events.role_changed.subscribe(self._role_changed)
        events.tables_changed.subscribe(self._tables_changed)

    # Every member

    def _apply(self) -> None:
        """Apply confirmed compaction records, for a moment in each pass of the event loop."""
        if self._store.compaction.apply(self._loop.time() + SLICE_S):
            self._loop.call_soon(self._apply)
        self._applied.set()

    def prepare(self, to: int) -> bool:
        """Begin what a truncation to `to` needs, in slices of the event loop; True: it is ready. Raises OSError."""
        self._to = to
        return self._prepare()

    def _prepare(self) -> bool:
        ready = self._store.compaction.prepare(self._to, self._loop.time() + SLICE_S)
        if not ready and not self._preparing:
            self._preparing = True
            self._loop.call_soon(self._go_on)
        return ready

    def _go_on(self) -> None:
        self._preparing = False
        with suppress(OSError):  # The next call of `prepare` raises it.
            self._prepare()

    def topics(self) -> list[str]:
        """Return the compacted topics."""
        if self._topics is None:
            topics = self._meta.working.topics
            self._topics = [name for name, topic in topics.items() if is_compacted(topic.attributes)]
        return self._topics

    def _tables_changed(self) -> None:
        self._topics = None
        self._apply()  # A deletion may have been undone.

    def needed_from(self) -> int:
        """Return the first offset of the log that a compacted topic still needs. Raises OSError."""
        return self._store.compaction.needed_from(self.topics())

    def saved(self, topic: str) -> Saved:
        """Return what compaction has done to a topic so far."""
        queue_rows = [self._store.compaction.rows(topic, number) for number in self._store.queues.queue_numbers(topic)]
        rows = [each for each in queue_rows if each is not None]
        return Saved(
            sum(each.seen for each in rows),
            sum(each.seen_bytes for each in rows),
            sum(each.count for each in rows),
            sum(each.bytes for each in rows),
        )

    # The leader

    def _role_changed(self, leads: bool) -> None:
        if not leads and self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Begin the next passes, unless some are under way. Call it about every second."""
        if self._task is None and self._role.may_append and self._role.epoch_confirmed and self.topics():
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("compaction failed", exc_info=error)
            self.error = f"{type(error).__name__}: {error}"

    async def close(self) -> None:
        """End the work; what is half done goes on with the next leader."""
        await end_tasks(self._task)

    async def _run(self) -> None:
        store, interval = self._store, self._store.config.settings.compactionScheduleInternal
        if store.compaction.apply(self._loop.time() + SLICE_S):
            self._loop.call_soon(self._apply)
            return  # The next look begins the passes.
        self._age_ms = self._age.unix_ms(self._clock.now_ms(), self._clock.unix_ms())
        due_below = store.retention.due_below(self._clock.unix_ms(), store.state.confirmed, self._disk.usage)
        for topic in list(self.topics()):
            for queue_id in store.queues.queue_numbers(topic):
                key, now = (topic, queue_id), self._clock.now_ms()
                try:
                    await self._queue(topic, queue_id, due_below, now - self._last.get(key, -interval), interval)
                except _Unfinished:
                    return
                except (BadRecords, OSError) as error:
                    if isinstance(error, OSError) and error.errno != errno.EIO:
                        self._failed(error)
                        return
                    self._damaged(key, error)
                except NotWritable:
                    return
                except StoreError as error:
                    self._health.store_failed(error)
                    self._failed(error)
                    return
                else:
                    self._failures.pop(key, None)
        self.error = ""

    def _failed(self, error: Exception) -> None:
        self._store.warnings.warn("compaction waits", str(error))
        self.error = str(error)

    def _damaged(self, key: tuple[str, int], error: BadRecords | OSError) -> None:
        """Ask for the repair of a record. The queue is compacted again in the next look."""
        self._failures[key] = self._failures.get(key, 0) + 1
        if isinstance(error, BadRecords):
            self._store.state.on_damage(self._store.compaction.holder(error.at))
        self._failed(error)

    async def _queue(self, topic: str, queue_id: int, due_below: int, since_ms: int, interval_ms: int) -> None:
        store = self._store
        skip = self._failures.get((topic, queue_id), 0) >= TRIES
        while True:
            new = store.compaction.new_records(topic, queue_id)
            rows = store.compaction.rows(topic, queue_id) or QueueRows(store.log.segment_size)
            # Retention waits for these records, so they do not wait for the interval as well.
            must = bool(new) and store.compaction.needed_from([topic]) < due_below
            if not must and not is_due(new, rows.count, rows.tombstones, since_ms, interval_ms):
                break
            work = store.compaction.work(topic, queue_id, MOST_RECORDS)
            if work is None:
                return
            keep_ms = self._tombstone_ms(topic)
            bodies = partial(clean_bodies, now_ms=self._age_ms, tombstone_ms=keep_ms, skip_damaged=skip)
            await self._pass(work, bodies)
            self._last[topic, queue_id] = self._clock.now_ms()
            rows = store.compaction.rows(topic, queue_id) or rows
            if new <= MOST_RECORDS:
                break
        floor = rows.floor()
        # The last copies of these keys are about to leave with their segments: they are written again first.
        if floor is not None and floor < due_below:
            work = store.compaction.work(topic, queue_id, 0)
            assert work is not None
            most = min(COPY_BYTES, store.log.segment_size // 8)
            await self._pass(work, partial(copy_bodies, below=due_below, most_bytes=most, skip_damaged=skip))

    def _tombstone_ms(self, topic: str) -> int:
        config = self._meta.working.topics.get(topic)
        if config is None or not is_compacted(config.attributes):
            raise _Unfinished
        return tombstone_ms(config.attributes)

    async def _pass(self, work: Work, bodies: Callable[[Work, Segments], Iterator[bytes]]) -> None:
        """Append what a pass decides. Raises _Unfinished, BadRecords, NotWritable, StoreError, OSError."""
        store, topic = self._store, work.topic
        epoch, truncations = self._role.epoch, store.state.truncations
        deleted = store.queues.deletion_watermarks.get(topic, 0)

        def tables() -> Tables:
            return self._meta.working

        def still() -> bool:
            return (
                self._role.may_append
                and self._role.epoch == epoch
                and store.state.truncations == truncations
                and store.queues.deletion_watermarks.get(topic, 0) == deleted
                and max(tables().deletion_watermarks.get(topic, 0), tables().expired.get(topic, 0)) <= deleted
                and topic in tables().topics
            )

        with Segments(store.log.path_of, store.log.segment_size, Pace()) as segments:
            pieces = bodies(work, segments)
            while True:
                reading = self._loop.create_task(in_daemon_thread(partial(next, pieces, None)))
                try:
                    body = await asyncio.shield(reading)
                except asyncio.CancelledError:
                    with suppress(Exception):
                        await reading  # It uses the open file.
                    raise
                if body is None:
                    return
                if not still():
                    raise _Unfinished
                # `still` was asked just above: the body is of a log that a truncation, a deletion or another leader may
                # change.
                put = Put(COMPACTION_TOPIC, 0, 0, 0, self._clock.unix_ms(), self._store_host, body, b"")
                (stored,) = self._writer.append([put])
                self._writer.appended(None)
                await self._until_applied(stored.queue_offset)
                if not still():
                    raise _Unfinished
                await asyncio.sleep(len(body) / BYTES_A_SECOND)

    async def _until_applied(self, number: int) -> None:
        ends = self._loop.time() + CONFIRM_S
        while self._store.compaction.applied <= number:
            self._applied.clear()
            left = ends - self._loop.time()
            if left <= 0:
                raise _Unfinished
            await set_within(self._applied, min(left, 1.0))
            self._store.compaction.apply(self._loop.time() + SLICE_S)
