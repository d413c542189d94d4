"""What a broker group still holds for its consumers: the proof that it may be removed, and what is missing of it.

A consumer group counts as long as it has offsets here or a connected consumer; one that is deleted, or whose consumers
all say that they no longer subscribe, does not. A table that follows a topic counts as long as its group
has offsets. The proof is of one state of the log: if the log ends elsewhere after the look than before, the report is
not settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.broker.clock import AgeClock
from gantry_broker.broker.delay import due_time
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes, is_system_group
from gantry_broker.broker.metadata.tables import DRAIN, position
from gantry_broker.broker.metadata.topics import TIMER_TOPIC, is_system_topic
from gantry_broker.contracts.models import DrainReport, Unread
from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    PROBE_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TABLE_GROUP_PREFIX,
)
from gantry_broker.protocol.message import decode_records

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.service import PopService
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.broker.transactions import Transactions
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

SHOWN: Final = 100
OFFSETS_AT_ONCE: Final = 8_192
"""Pairs of topic and group whose offsets one look writes, in some 10 ms."""
BROADCAST: Final = "BROADCASTING"


class Parts(Protocol):
    """What the reports read of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    store: MessageStore
    replication: ReplicationService
    role: RoleState
    meta: Metadata
    changes: MetadataChanges
    clients: ClientTable
    transactions: Transactions
    pop: PopService
    stats: Stats
    counts: MessageCounts
    slices: TimeSlices


class TimerTimes:
    """Remembers the delivery times of the last messages of the timer topic's queues."""

    def __init__(self) -> None:
        self._last_times: dict[int, tuple[int, int]] = {}

    def of(self, store: MessageStore, bucket: int, end: int) -> int:
        """Return the delivery time of the message before `end`, Unix ms; 0: it cannot be read."""
        time_and_end = self._last_times.get(bucket)
        if time_and_end is None or time_and_end[0] != end:
            got = store.reader.get(TIMER_TOPIC, bucket, end - 1, 1, 1 << 20)
            times = [due_time(record) for record in decode_records(got.data)]
            time_and_end = self._last_times[bucket] = (end, times[0] if times else 0)
        return time_and_end[1]


class DrainReports:
    """Makes the reports of one broker."""

    def __init__(self, broker: Parts) -> None:
        self._broker = broker
        self._times = StoreTimes()
        self._timer_times = TimerTimes()
        self._age = AgeClock()

    async def report(self) -> DrainReport:
        """Works in slices: there may be very many topics and groups."""
        broker, store = self._broker, self._broker.store
        meta = broker.meta
        broker.changes.flush_offsets(OFFSETS_AT_ONCE)
        begin = store.log.end
        epoch, leading = broker.replication.epoch, broker.role.may_append
        readers = await self._readers()
        queues = store.queues.topics_queues()
        unread, newest, dead_letters = await self._all_unread(readers, queues)
        delayed = sum(
            store.reader.max_offset(SCHEDULE_TOPIC, level) - max(meta.working.delay.get(level + 1, 0), first)
            for level in queues.get(SCHEDULE_TOPIC, ())
            for first in [store.reader.min_offset(SCHEDULE_TOPIC, level)]
        )
        timers, until = await self._timers(queues.get(TIMER_TOPIC, []))
        self._times.turn()
        unread.sort(key=lambda row: (-row.messages, row.topic, row.consumer_group))
        half, all_read = broker.transactions.undecided, broker.transactions.all_read
        settled = (
            begin == store.log.end == store.state.confirmed
            and all_read
            and broker.pop.ready
            and not meta.has_dirty
            and broker.role.may_append
            and epoch == broker.replication.epoch
        )
        return DrainReport(
            epoch=epoch,
            leading=leading and broker.role.may_append,
            drain=meta.confirmed.marks.get(DRAIN, ""),
            settled=settled,
            end=begin,
            now_ms=self._age.unix_ms(broker.clock.now_ms(), broker.clock.unix_ms()),
            sends=broker.counts.put_count - broker.stats.total("TOPIC_PUT_NUMS", PROBE_TOPIC),
            newest_ms=newest,
            retention_ms=broker.settings.fileReservedTime * 3_600_000,
            unread=unread[:SHOWN],
            unread_topics=len({row.topic for row in unread}),
            unread_consumer_groups=len({row.consumer_group for row in unread} - {""}),
            unread_messages=sum(row.messages for row in unread),
            oldest_ms=min((row.oldest_ms for row in unread if row.oldest_ms is not None), default=None),
            delayed=delayed,
            timers=timers,
            timers_until_ms=until,
            half=half,
            in_flight=broker.pop.messages_in_flight,
            dead_letters=dead_letters,
        )

    async def _all_unread(
        self, readers: Mapping[str, list[str]], queues: Mapping[str, Sequence[int]]
    ) -> tuple[list[Unread], int, int]:
        """Return what is unread by topic and group, the store time of the newest message, and how many dead letters
        wait.
        """
        broker, store, meta = self._broker, self._broker.store, self._broker.meta
        unread: list[Unread] = []
        newest = dead_letters = 0
        async for topic, ids in broker.slices.sliced(list(queues.items())):
            if topic not in meta.working.topics or is_system_topic(topic) or self._own(topic):
                continue
            ends = {q: store.reader.bounds(topic, q) for q in ids}
            ends = {q: (low, high) for q, (low, high) in ends.items() if high > low}
            async for queue, (_, high) in broker.slices.sliced(list(ends.items())):
                last_ms = self._times.of(store, topic, queue, high - 1)
                newest = max(newest, broker.clock.unix_ms() if last_ms is None else last_ms)
            groups = readers.get(topic, [])
            if not groups and ends and topic.startswith(RETRY_PREFIX):
                groups = [group for group in meta.working.groups if meta.working.is_retry_topic(group, topic)]
            rows = [self._unread(topic, group, ends) for group in groups]
            if topic.startswith(DLQ_PREFIX):
                best = min((row.messages for row in rows), default=sum(high - low for low, high in ends.values()))
                dead_letters += best
                continue
            if not rows and ends:
                rows = [self._unread(topic, "", ends)]
            unread += [row for row in rows if row.messages]
        return unread, newest, dead_letters

    async def _timers(self, buckets: Sequence[int]) -> tuple[int, int]:
        """Return how many timer messages wait, and until when."""
        broker, store = self._broker, self._broker.store
        timers = until = 0
        async for bucket in broker.slices.sliced(buckets):
            waiting = self._timers_of(bucket)
            if waiting:
                timers += waiting
                until = max(until, self._timer_times.of(store, bucket, store.reader.max_offset(TIMER_TOPIC, bucket)))
        return timers, until

    def _own(self, topic: str) -> bool:
        """Whether it is a topic of the broker itself: those named like the cluster and the group, and for replies."""
        config = self._broker.config
        return topic in (config.cluster, config.group) or topic.endswith(f"_{REPLY_TOPIC_SUFFIX}")

    async def _readers(self) -> dict[str, list[str]]:
        """Return the consumer groups of each topic."""
        tables, consumers = self._broker.meta.working, self._broker.clients.consumers
        readers: dict[str, dict[str, None]] = {}
        async for key in self._broker.slices.sliced(list(tables.offsets)):
            topic, _, group = key.rpartition("@")
            members = consumers.get(group)
            left = members is not None and members.subscribes and topic not in members.subscriptions
            retry = tables.is_retry_topic(group, topic)
            if group.startswith(TABLE_GROUP_PREFIX):
                readers.setdefault(topic, {})[group] = None  # No client of it ever connects, and no one creates it.
            if not is_system_group(group) and (retry or not left) and (group in tables.groups or members is not None):
                readers.setdefault(topic, {})[group] = None
        async for members in self._broker.slices.sliced(list(consumers.values())):
            for topic in members.subscriptions if not is_system_group(members.name) else ():
                readers.setdefault(topic, {})[members.name] = None
        proxied = self._broker.clients.proxied
        async for group in self._broker.slices.sliced(proxied.groups()):
            for topic in {topic for client in proxied.of_group(group) for topic in client.topics}:
                readers.setdefault(topic, {})[group] = None
        for group in tables.groups:
            readers.setdefault(RETRY_PREFIX + group, {})[group] = None
        return {topic: list(groups) for topic, groups in readers.items()}

    def _unread(self, topic: str, group: str, ends: dict[int, tuple[int, int]]) -> Unread:
        """Count what a consumer group has not acknowledged. A queue without an offset counts from its beginning."""
        broker = self._broker
        offsets = broker.meta.working.offsets.get(f"{topic}@{group}", {}) if group else {}
        members = broker.clients.consumers.get(group)
        broadcast = members is not None and bool(members.clients) and members.message_model == BROADCAST
        count = 0
        oldest: int | None = None
        for queue, (low, high) in ends.items():
            at = low if broadcast else position(offsets, queue, low, high)
            if at < high:
                count += high - at
                stored = self._times.of(broker.store, topic, queue, at)
                if stored is not None:
                    oldest = stored if oldest is None else min(oldest, stored)
        return Unread(
            topic=topic,
            consumer_group=group,
            messages=count,
            oldest_ms=oldest,
            connected=(members is not None and bool(members.clients)) or bool(broker.clients.proxied.of_group(group)),
            broadcast=broadcast,
        )

    def _timers_of(self, bucket: int) -> int:
        tables, store = self._broker.meta.working, self._broker.store
        progress = max(tables.timer.get(bucket, 0), store.reader.min_offset(TIMER_TOPIC, bucket))
        done = sum(1 for offset in tables.timer_done.get(bucket, ()) if offset >= progress)
        return max(store.reader.max_offset(TIMER_TOPIC, bucket) - progress - done, 0)
