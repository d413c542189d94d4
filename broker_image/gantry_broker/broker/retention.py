"""Retention of the log: the broker's limits on what the store may remove. Retention of one topic: what is readable.

All topics share the log, so a topic's own retention frees no disk space: it hides the topic's older records. The
leader finds where in the log they end, and a control record says so. Each member hides them once that record is
confirmed. So all members hide the same, whatever their clocks say, and a new leader continues there.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.clock import AgeClock
from gantry_broker.broker.delay import WaitingMessages
from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.metadata.attributes import retention_ms
from gantry_broker.broker.metadata.topics import is_system_topic
from gantry_broker.store.errors import StoreError
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore

TOPICS: Final = 200
"""Topics in one control record."""


class LogRetention:
    """Removes expired segments that no follower needs."""

    def __init__(
        self,
        store: MessageStore,
        disk: DiskWatch,
        meta: Metadata,
        replication: ReplicationService,
        archiving: Archiving,
        archive_reads: ArchiveReads,
        compaction: Compaction,
        clock: Clock,
    ) -> None:
        self._compaction = compaction
        self._archiving = archiving
        self._archive_reads = archive_reads
        self._disk = disk
        self._store = store
        self._meta = meta
        self._replication = replication
        self._clock = clock
        self._age = AgeClock()
        self._waiting = WaitingMessages(store, meta)

    def expire(self) -> bool:
        """Keep unconfirmed records, those that a fetching follower has not acknowledged, messages that wait for their
        delivery, those that the archive lacks, and those of compacted topics until they were looked at or copied.

        Returns True when it did nothing yet, because it has to look for the latter in another step.
        """
        complete, waiting = self._waiting.lowest()
        if not complete:
            return True
        store = self._store
        needed = (
            waiting,
            self._archiving.needed_from(),
            self._replication.needed_from(),
            self._compaction.needed_from(),
            store.state.confirmed,
        )
        start = store.retention.expire(
            self._age.unix_ms(self._clock.now_ms(), self._clock.unix_ms()),
            min(offset for offset in needed if offset is not None),
            disk=self._disk.since(store.removals.ended),
        )
        self._meta.forget_deletions(self._archive_reads.kept_from(start))
        return False


class TopicRetention:
    """Hides the records of topics that have a retention of their own, on the leader's decision."""

    def __init__(
        self,
        store: MessageStore,
        meta: Metadata,
        changes: MetadataChanges,
        role: RoleState,
        health: MemberHealth,
        archive_reads: ArchiveReads,
        clock: Clock,
    ) -> None:
        self._store = store
        self._archive_reads = archive_reads
        self._meta = meta
        self._changes = changes
        self._role = role
        self._health = health
        self._clock = clock
        self._age = AgeClock()
        self._rest: Iterator[tuple[str, int] | None] | None = None
        self._expired: dict[str, int] = {}

    def expire(self) -> bool:
        """Look for records that are too old, for `SLICE_S`; return True when it has to go on in another step.

        Raises OSError when a queue cannot be read; the next call begins again.
        """
        if not self._role.may_append:
            self._forget()
            return False
        if self._rest is None:
            self._rest = self._look(self._age.unix_ms(self._clock.now_ms(), self._clock.unix_ms()))
        ends = time.perf_counter() + SLICE_S
        try:
            for row in self._rest:
                if row is not None:
                    self._expired[row[0]] = row[1]
                if len(self._expired) >= TOPICS:
                    self._write()
                if time.perf_counter() > ends:
                    return True
            self._write()
        except BaseException:
            self._forget()
            raise
        self._forget()
        return False

    def _forget(self) -> None:
        self._rest = None
        self._expired.clear()

    def _look(self, now_ms: int) -> Iterator[tuple[str, int] | None]:
        """Yield each topic with records that are too old, and the offset of the log where they end. None: nothing."""
        for name, topic in list(self._meta.working.topics.items()):
            keep_ms = retention_ms(topic.attributes)
            if keep_ms is None or is_system_topic(name):
                continue
            end = store_end = self._store.state.confirmed
            moves = False
            for queue_id in self._store.queues.queue_numbers(name):
                yield None
                try:
                    expired, first = self._oldest(name, queue_id, now_ms - keep_ms, store_end)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    moves = False  # The topic keeps its records until the unreadable one is repaired.
                    break
                moves, end = moves or expired, min(end, first)
            # Records lie in the order of their store times. Where clocks differed, the younger one is kept.
            if not moves:
                archived = self._archive_reads.expired.get(name, 0)
                end, moves = min(archived, self._store.log.start), archived > 0
            if moves and end > self._meta.working.expired.get(name, 0):
                yield name, end

    def _oldest(self, topic: str, queue_id: int, since_ms: int, end: int) -> tuple[bool, int]:
        """Return whether readable records of the queue are too old, and the offset in the log of the first that is
        not; `end` without one.
        """
        store = self._store
        first = store.reader.min_offset(topic, queue_id)
        # A damaged record has no time and is as old as the next one that has.
        if 0 <= store.reader.store_time(topic, queue_id, first) >= since_ms:
            kept = first
        else:
            kept = store.reader.offset_at_time(topic, queue_id, since_ms)
        place = store.reader.place(topic, queue_id, kept) if kept < store.reader.max_offset(topic, queue_id) else None
        return kept > first, end if place is None else place

    def _write(self) -> None:
        """Append what was found as a control record. A log that takes none is asked again by the next `expire`."""
        if not self._expired:
            return
        try:
            self._changes.append({"expired": dict(self._expired)})
        except (NotWritable, StoreError) as error:
            if isinstance(error, StoreError):
                self._health.store_failed(error)
        self._expired.clear()
