"""Delayed delivery: RocketMQ's levels, and 5.x's arbitrary times.

A level's queue is in order of delivery, so only its first message matters. A bucket of the timer topic holds the
messages of one minute in any order; the leader reads it into memory when that minute begins. Deliveries and the
progress of their queue go into the log as one batch, so a failover delivers nothing twice and loses nothing. The queues
hold confirmed messages only, so no delivery can be undone.

A message that is due later than `timer_window` waits in the bucket of an earlier minute, and is written again then:
into its own bucket, or for the next window. Retention keeps every message that waits (`WaitingMessages`). A recall is a
message with the time of the one it recalls, so that both meet in one bucket; it stays there until that minute is over.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.metadata.tables import TIMERS_DELIVERED
from gantry_broker.broker.metadata.topics import TIMER_TOPIC, topic_fault
from gantry_broker.broker.send.messages import (
    TIMER_BUCKET_MS,
    TIMER_BUCKETS,
    copy_of,
    rolled_over,
    timer_bucket,
    timer_window,
)
from gantry_broker.protocol.codes import REVIVE_PREFIX, SCHEDULE_TOPIC, Prop, SysFlag
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.message import Record, RecordError, decode_records, parse_properties
from gantry_broker.store.errors import StoreError
from gantry_broker.store.log.epochs import foreign_end

if TYPE_CHECKING:
    from gantry_broker.broker.after_confirm import AfterConfirm
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.tables import Change, Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Put

log = logging.getLogger(__name__)

BATCH: Final = 256
BATCH_BYTES: Final = 1 << 20
RETRY_MS: Final = 1_000
"""Pause in milliseconds after the store refused a batch (a full disk)."""
LOOK_MS: Final = 500
"""Milliseconds between two looks at the clock while a message waits, at most."""
AHEAD_MS: Final = 10_000
"""A message with a store time this far in the future waits no longer, as with 4.9.7. Otherwise all of its level would
wait behind it until this member's clock is there.
"""
PASS_BATCHES: Final = 4
"""Batches of one level in one pass; other work has its turn after that."""
LOOKS: Final = 64
"""Buckets of the timer topic of which one pass reads the first message."""
CONFIRM_MS: Final = 5
"""Pause in milliseconds while late messages that were rolled over are not confirmed yet."""
PLACES: Final = 1_000
"""Entries of queues that one call of `WaitingMessages.lowest` reads, in some 20 ms."""
READS: Final = 4
"""Times `BATCH` messages of the timer topic that one pass reads into memory."""


def real_target(record: Record) -> tuple[str, int]:
    """Return the topic and queue that a waiting message is meant for; its own when the properties name none."""
    props = parse_properties(record.properties)
    queue = props.get(Prop.REAL_QUEUE_ID, "0")
    return props.get(Prop.REAL_TOPIC) or record.topic, whole_number(queue, 0, MAX_INT) or 0


def delivered(record: Record) -> Put:
    """Return the message as its consumers see it. Raises RecordError, ValueError for an impossible topic."""
    topic, queue_id = real_target(record)
    fault = topic_fault(topic, longest=255)
    if fault is not None:
        raise ValueError(fault)
    props = parse_properties(record.properties)
    for name in (Prop.TIMER_OUT_MS, Prop.TIMER_ROLL_TIMES, Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS):
        props.pop(name, None)
    return copy_of(record, topic, queue_id, props=props, sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK)


class Delays:
    """The leader's deliveries, with one timer for the earliest of all levels and buckets."""

    def __init__(
        self,
        store: MessageStore,
        delay_levels: Sequence[int],
        *,
        meta: Metadata,
        changes: MetadataChanges,
        role: RoleState,
        health: MemberHealth,
        confirmed: AfterConfirm,
        events: Events,
        clock: Clock,
        stats: Stats,
    ) -> None:
        """`delay_levels`: milliseconds of each level, level 1 first."""
        self._leave_aside = stats.leave_aside
        self._store = store
        self._delay_levels = delay_levels
        self._meta = meta
        self._changes = changes
        self._role = role
        self._health = health
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._levels: dict[int, int] = {}
        """Level queue to the time (Unix ms) at which its first message is due; absent: not read yet, or empty."""
        self._stale: set[int] = set()
        self._buckets = Buckets(store, meta, changes, clock, stats.leave_aside)
        confirmed.on_messages_available[SCHEDULE_TOPIC] = self._level_available
        confirmed.on_messages_available[TIMER_TOPIC] = self._bucket_available
        events.role_changed.subscribe(self._role_changed)

    def _role_changed(self, leads: bool) -> None:
        self._levels.clear()
        self._stale.clear()
        self._buckets.clear()
        if leads and self._role.may_append:
            # The log decides which levels exist: a configuration with fewer levels leaves messages in the removed ones.
            self._stale = set(self._store.queues.topics_queues().get(SCHEDULE_TOPIC, []))
            self._buckets.reload()
            self._wake(0)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _level_available(self, queue_id: int) -> None:
        if self._role.leading and queue_id not in self._levels:
            self._stale.add(queue_id)
            self._wake(0)

    def _bucket_available(self, queue_id: int) -> None:
        if self._role.leading:
            self._buckets.available(queue_id)
            self._wake(0)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def timers_waiting(self) -> int:
        """Return how many messages wait in the timer topic."""
        return self._buckets.waiting()

    def _wake(self, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        # The wall clock may be set, and goes on while the machine sleeps: no look at it is more than that late.
        at = loop.time() + min(max(delay_ms, 0), LOOK_MS) / 1000
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = loop.call_at(at, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._role.may_append:
            return  # A member that may append again has a change of role, which wakes this.
        now = self._clock.unix_ms()
        levels = [q for q in {*self._stale, *self._levels} if self._levels.get(q, 0) <= now]
        # Each level by itself: a failed one is tried again and delays no other.
        works = [partial(self._deliver_level, queue_id, now) for queue_id in levels]
        if not all([self._done(work) for work in (*works, partial(self._buckets.deliver, now))]):
            self._wake(RETRY_MS)
            return
        due = [*self._levels.values(), *self._buckets.next_due(now)]
        if self._stale:
            self._wake(0)
        elif due:
            self._wake(min(due) - now)

    def _done(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except (StoreError, NotWritable) as error:
            if isinstance(error, StoreError):
                self._health.store_failed(error)
        except Exception:
            log.exception("delivering delayed messages failed")
        else:
            return True
        return False

    def _deliver_level(self, queue_id: int, now: int) -> None:
        store = self._store
        level_ms = self._delay_levels[queue_id] if queue_id < len(self._delay_levels) else self._delay_levels[-1]
        self._stale.add(queue_id)
        self._levels.pop(queue_id, None)
        for _ in range(PASS_BATCHES):
            offset = self._meta.working.delay.get(queue_id + 1, 0)
            offset = max(offset, store.reader.min_offset(SCHEDULE_TOPIC, queue_id))
            got = store.reader.get(SCHEDULE_TOPIC, queue_id, offset, BATCH, BATCH_BYTES)
            if not got.data:
                self._stale.discard(queue_id)
                if got.damaged >= 0:
                    self._levels[queue_id] = now + RETRY_MS  # A repair may have succeeded by then.
                return
            puts: list[Put] = []
            for record in decode_records(got.data):
                due = record.store_ms + level_ms
                if due > now and record.store_ms <= now + AHEAD_MS:
                    self._levels[queue_id] = due
                    break
                try:
                    puts.append(delivered(record))
                except (RecordError, ValueError) as error:
                    _passed_over(record, error)
                    self._leave_aside("delay")
                offset = record.queue_offset + 1
            if puts:
                # One batch: apart from each other, a failover between messages and progress would deliver them twice,
                # or never.
                self._changes.append({"delay": {str(queue_id + 1): offset}}, puts)
            if queue_id in self._levels:
                self._stale.discard(queue_id)
                return


def _passed_over(record: Record, error: Exception) -> None:
    log.error(
        "the message in queue %d of %s at offset %d is not delivered, and stays in the log at %d: %s",
        record.queue_id, record.topic, record.queue_offset, record.phys_offset, error,
    )  # fmt: skip


Recalled = tuple[str, str]
"""The topic and the unique key of a recalled message. 5.x needs the key alone, so that a user of one topic could recall
messages of all others."""


class WaitingMessages:
    """Where in the log the messages begin that wait for their delivery: each member's retention keeps them."""

    def __init__(self, store: MessageStore, meta: Metadata) -> None:
        self._store = store
        self._meta = meta
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        """By queue: progress, and the offset in the log of the first message that waits, which was read for it."""

    def lowest(self) -> tuple[bool, int | None]:
        """Return whether all queues were looked at, and the lowest offset of the log; None: no message waits.

        It reads at most `PLACES` entries; the next call goes on. Raises OSError.
        """
        store, tables = self._store, self._meta.working
        left, lowest = PLACES, None
        levels = {level - 1: at for level, at in tables.delay.items()}
        for topic, progress in ((TIMER_TOPIC, tables.timer), (SCHEDULE_TOPIC, levels)):
            for queue_id in store.queues.queue_numbers(topic):
                at = progress.get(queue_id, 0)
                if at >= store.reader.max_offset(topic, queue_id):
                    self._places.pop((topic, queue_id), None)
                    continue
                cached = self._places.get((topic, queue_id))
                if cached is None or cached[0] != at or cached[1] < store.log.start:
                    if left == 0:
                        return False, None
                    left -= 1
                    place = store.reader.place(topic, queue_id, at)
                    if place is None:
                        continue
                    cached = self._places[topic, queue_id] = at, place
                lowest = cached[1] if lowest is None else min(lowest, cached[1])
        return True, lowest


class Buckets:
    """The timer topic: one queue for each minute. The messages of minutes that have begun are in memory."""

    def __init__(
        self,
        store: MessageStore,
        meta: Metadata,
        changes: MetadataChanges,
        clock: Clock,
        leave_aside: Callable[[str], None],
    ) -> None:
        """`leave_aside` counts records that are passed over."""
        self._store = store
        self._leave_aside = leave_aside
        self._meta = meta
        self._changes = changes
        self._clock = clock
        self._ready: list[tuple[int, int, int]] = []
        """Heap of (time, bucket, queue offset) of the messages that were read."""
        self._read: dict[int, int] = {}
        """Bucket to the queue offset up to which it was read into memory."""
        self._unknown: dict[int, None] = {}
        """Buckets with messages that were not read yet, while the minute of the first one is not known."""
        self._first: dict[int, int] = {}
        """Bucket to the time at which its minute begins, for the other buckets with messages that were not read yet."""
        self._recalled: dict[int, set[Recalled]] = {}
        """Bucket to what is recalled in it, for the buckets that were read."""
        self._rolled: dict[tuple[str, str, int], int] = {}
        """What RocketMQ has moved in its queue, by target, unique key and time: the offset of the last copy."""
        self._late: set[int] = set()
        """Buckets to which messages that are due already were rolled over, and not read yet."""
        self._late_end = 0
        """The end of the log behind them."""
        self._failed = False
        """The last delivery failed midway: some of its messages are in none of these tables."""

    def clear(self) -> None:
        self._late.clear()
        self._ready.clear()
        self._read.clear()
        self._unknown.clear()
        self._first.clear()
        self._recalled.clear()
        self._rolled.clear()

    def reload(self) -> None:
        """Find the buckets with messages that were not delivered, for a new leader."""
        present = timer_bucket(self._clock.unix_ms())
        buckets = self._store.queues.topics_queues().get(TIMER_TOPIC, [])
        for queue_id in sorted(buckets, key=lambda bucket: (bucket - present) % TIMER_BUCKETS):
            if self._store.reader.max_offset(TIMER_TOPIC, queue_id) > self._progress(queue_id):
                self.available(queue_id)

    def available(self, bucket: int) -> None:
        if bucket not in self._first:
            self._unknown[bucket] = None

    def waiting(self) -> int:
        """Return how many messages wait, those that were delivered out of order among them."""
        store, progress = self._store, self._meta.working.timer
        return sum(
            max(store.reader.max_offset(TIMER_TOPIC, bucket) - progress.get(bucket, 0), 0)
            for bucket in store.queues.queue_numbers(TIMER_TOPIC)
        )

    def _read_first(self, bucket: int) -> None:
        """Find when a bucket's minute begins. Its first message decides: the group may have had no leader for days."""
        offset = max(self._read.get(bucket, 0), self._progress(bucket))
        got = self._store.reader.get(TIMER_TOPIC, bucket, offset, 1, BATCH_BYTES)
        self._first[bucket] = 0
        for record in decode_records(got.data)[:1]:
            until = _until(parse_properties(record.properties))
            if not self._is_foreign(record, until, bucket):
                self._first[bucket] = until // TIMER_BUCKET_MS * TIMER_BUCKET_MS

    def _is_foreign(self, record: Record, until: int, bucket: int) -> bool:
        """Whether RocketMQ wrote a record: it has the messages of all times in one queue, those of its minute, too."""
        return timer_bucket(until) != bucket or record.phys_offset < foreign_end(self._store.epoch_cache.epochs)

    def _progress(self, bucket: int) -> int:
        stored = self._meta.working.timer.get(bucket, 0)
        return max(stored, self._store.reader.min_offset(TIMER_TOPIC, bucket))

    def _done(self, bucket: int) -> AbstractSet[int]:
        """Return the offsets of a bucket that were delivered at or above its progress. A new leader knows them as
        well.
        """
        return self._meta.working.timer_done.get(bucket, frozenset())

    def next_due(self, now: int) -> Iterator[int]:
        if self._late and self._store.state.confirmed < self._late_end:
            yield now + CONFIRM_MS
            return
        if self._unknown:
            yield now
        if self._ready:
            yield self._ready[0][0]
        if self._first:
            yield max(min(self._first.values()), now)

    def deliver(self, now: int) -> None:
        if self._failed:
            self.clear()
            self.reload()
        self._failed = True
        self._deliver(now)
        self._failed = False

    def _deliver(self, now: int) -> None:
        for bucket in list(self._unknown)[:LOOKS]:
            self._read_first(bucket)
            del self._unknown[bucket]
        # What was not looked at, not read or not confirmed may recall a message: nothing is delivered before.
        if self._unknown:
            return
        if self._late:
            if self._store.state.confirmed < self._late_end:
                return
            for bucket in self._late:
                self._first[bucket] = min(self._first.get(bucket, now), now)
            self._late.clear()
        reads = READS
        for bucket in [b for b, at in self._first.items() if at <= now]:
            reads = self._read_bucket(bucket, now, reads)
            if reads <= 0:
                return
        puts: dict[int, list[tuple[int, Put | None]]] = {}
        count = size = 0
        while self._ready and self._ready[0][0] <= now and count < BATCH and size < BATCH_BYTES:
            until, bucket, offset = heapq.heappop(self._ready)
            got = self._store.reader.get(TIMER_TOPIC, bucket, offset, 1, BATCH_BYTES)
            count += 1
            size += len(got.data)
            for record in decode_records(got.data)[:1]:
                props = parse_properties(record.properties)
                due = _due(props)
                if _until(props) >= due and self._late:
                    heapq.heappush(self._ready, (until, bucket, offset))
                    count = BATCH
                    break
                if _until(props) < due <= now:
                    self._late.add(timer_bucket(due))
                try:
                    outcome = self._outcome(record, props, bucket, now)
                except (RecordError, ValueError) as error:
                    outcome = None
                    _passed_over(record, error)
                    self._leave_aside("timer")
                puts.setdefault(bucket, []).append((offset, outcome))
            if got.damaged >= 0:
                heapq.heappush(self._ready, (now + RETRY_MS, bucket, offset))
        for bucket, items in puts.items():
            before, done = self._done(bucket), {offset for offset, _ in items}
            progress = self._progress(bucket)
            while progress in done or progress in before:
                progress += 1
            change: Change = {"timer": {str(bucket): progress}}
            above = sorted(offset for offset in done if offset >= progress)
            if above:
                change["timerDone"] = {str(bucket): above}
            self._changes.append(change, [put for _, put in items if put is not None])
        self._late_end = self._store.log.end

    def _outcome(self, record: Record, props: dict[str, str], bucket: int, now: int) -> Put | None:
        """Return what becomes of a message whose time in its bucket is over; None: nothing.

        One that is late goes to its last place, too, where its recall may be.
        """
        due, offset = _due(props), record.queue_offset
        if self._is_foreign(record, _until(props), bucket) and (
            # What it has delivered, its notes about POP, and former copies of what it has moved.
            due <= self._delivered_before()
            or props.get(Prop.REAL_TOPIC, "").startswith(REVIVE_PREFIX)
            or self._rolled.get(_moved(record, props), offset) != offset
        ):
            return None
        if _until(props) < due:
            return rolled_over(record, props, due, now, timer_window(self._store.config.settings.fileReservedTime))
        recalled = self._recalled.get(bucket)
        if Prop.TIMER_DEL_UNIQKEY in props:
            if recalled is not None:
                recalled.discard(_recalled_by(record, props))
                if not recalled:
                    del self._recalled[bucket]
            return None
        if recalled and (real_target(record)[0], props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")) in recalled:
            return None
        return delivered(record)

    def _delivered_before(self) -> int:
        """Return up to when RocketMQ has delivered the messages of a group that was migrated, in Unix ms."""
        return whole_number(self._meta.working.marks.get(TIMERS_DELIVERED, "0")) or 0

    def _read_bucket(self, bucket: int, now: int, reads: int) -> int:
        """Read the entries of a bucket from where the last read stopped: times and offsets only, not the messages.

        `reads`: times that it may read; returns how many are left.
        """
        store = self._store
        offset, done = max(self._read.get(bucket, 0), self._progress(bucket)), self._done(bucket)
        while reads > 0:
            reads -= 1
            got = store.reader.get(TIMER_TOPIC, bucket, offset, BATCH, BATCH_BYTES)
            for record in decode_records(got.data):
                offset = record.queue_offset + 1
                if record.queue_offset in done:
                    continue
                props = parse_properties(record.properties)
                until = _until(props)
                identified = Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX in props
                if Prop.TIMER_ROLL_TIMES in props and identified and self._is_foreign(record, until, bucket):
                    # RocketMQ writes a message again when it moves it, and the former record stays.
                    self._rolled[_moved(record, props)] = record.queue_offset
                if Prop.TIMER_DEL_UNIQKEY in props and until >= _due(props):
                    self._recalled.setdefault(bucket, set()).add(_recalled_by(record, props))
                    until += TIMER_BUCKET_MS
                heapq.heappush(self._ready, (until, bucket, record.queue_offset))
            self._read[bucket] = offset
            if not got.data:
                if got.damaged >= 0:
                    self._first[bucket] = now + RETRY_MS
                else:
                    del self._first[bucket]
                break
        return reads


def _number(props: Mapping[str, str], name: str) -> int:
    return whole_number(props.get(name, "0")) or 0


def _until(props: Mapping[str, str]) -> int:
    """Return until when a message of the timer topic waits in its bucket, in Unix ms; 0: it has no time."""
    return _number(props, Prop.TIMER_OUT_MS)


def _due(props: Mapping[str, str]) -> int:
    """Return when a message of the timer topic is due, in Unix ms."""
    return max(_number(props, Prop.TIMER_DELIVER_MS), _until(props))


def _recalled_by(record: Record, props: Mapping[str, str]) -> Recalled:
    return real_target(record)[0], props[Prop.TIMER_DEL_UNIQKEY]


def _moved(record: Record, props: Mapping[str, str]) -> tuple[str, str, int]:
    return real_target(record)[0], props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""), _until(props)


def due_time(record: Record) -> int:
    """Return when a message of the timer topic is due, in Unix ms; 0: it has no time."""
    return _due(parse_properties(record.properties))
