"""The compacted queues of a store: what the confirmed compaction records say, in memory.

It is derived from the log alone, so a truncation and a start compute it again, and every member has the same. Before a
truncation `prepare` computes it beside the rows in use, in slices, and `apply` does so where a deletion was undone.
"""

from __future__ import annotations

import errno
import math
import time
from typing import Final

from gantry_broker.protocol.codes import COMPACTION_TOPIC
from gantry_broker.protocol.message import Record, RecordError, decode_record
from gantry_broker.store.compaction.passes import Work
from gantry_broker.store.compaction.record import HEAD, BadDirectory, Directory, decode, directory_size
from gantry_broker.store.index.compacted import QueueRows, Row
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ConsumeQueue
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.record_reader import Damage, body_place, is_record_of, read_record
from gantry_broker.store.state import StoreState

_HEAD_BYTES: Final = 1 << 16
"""Read at first of a compaction record."""


class _Prepared:
    """The rows of a log that ends at `to` (None: where it ends), without the deletions of topics: a truncation may undo
    some.
    """

    def __init__(self, to: int | None, state: StoreState) -> None:
        self.to = to
        self.truncations = state.truncations
        self.confirmed = state.confirmed
        self.rows: dict[tuple[str, int], QueueRows] = {}
        self.applied = 0
        """As `CompactionTable.applied`."""


class CompactionTable:
    """Owned by the event loop, as the whole store."""

    def __init__(self, state: StoreState, log: CommitLog, queues: QueueTable) -> None:
        self._state = state
        self._log = log
        self._queues = queues
        self._state_of = (-1, -1)
        self._prepared: _Prepared | None = None
        self._again: _Prepared | None = None
        """The rows that will take the place of those in use, where a deletion was undone."""
        self.applied = 0
        """The queue offset of the first compaction record that was not applied yet."""
        self.unreadable_at: int | None = None
        """The offset of a compaction record that cannot be read, after which nothing is applied."""

    def apply(self, until: float = math.inf) -> bool:
        """Apply confirmed compaction records until a time of the monotonic clock; True: there are more.

        Where a deletion was undone, readers see the rows that they saw until all are computed again. A truncation that
        was not prepared leaves no such rows: then it begins again in one step. Raises OSError.
        """
        if self._begin():
            until = math.inf
        queue = self._queues.find(COMPACTION_TOPIC, 0)
        if queue is None:
            return False
        if self._again is not None:
            damaged_at = self._compute(self._again, queue, until)
            if damaged_at is not None:
                return self._damaged(damaged_at)
            if self._again.applied < queue.max:
                return True
            again, self._again = self._again, None
            self._use(again)
        self.applied = max(self.applied, queue.min_at(self._log.start))
        while self.applied < queue.max:
            phys, size, _ = queue.entry(self.applied)
            if size != BLANK_SIZE:
                try:
                    self._apply(*self._directory(phys, size))
                except (BadDirectory, OSError) as error:
                    _check(error)
                    return self._damaged(phys)
            self.unreadable_at = None
            self.applied += 1
            if time.monotonic() >= until:
                return self.applied < queue.max
        return False

    def _damaged(self, phys: int) -> bool:
        if self.unreadable_at != phys:
            self.unreadable_at = phys
            self._state.on_damage(phys)
        return False

    def prepare(self, to: int, until: float) -> bool:
        """Compute the rows of a log that is truncated to `to`, until a time of the monotonic clock, beside those that
        readers see; True: nothing is left to do, and the truncation takes no time here.

        Call it again until then. Raises OSError.
        """
        queue, state = self._queues.find(COMPACTION_TOPIC, 0), self._state
        if queue is None or to >= state.confirmed:
            return True
        prepared = self._prepared
        if prepared is None or prepared.to != to or not self._is_prepared(prepared):
            prepared = self._prepared = _Prepared(to, state)
        if self._compute(prepared, queue, until) is not None:
            return True  # `apply` finds it again, and reports it.
        return prepared.applied >= queue.max or queue.entry(prepared.applied)[0] >= to

    def _compute(self, prepared: _Prepared, queue: ConsumeQueue, until: float) -> int | None:
        """Compute rows beside those in use, until a time of the monotonic clock. Return the offset of a compaction
        record that cannot be read; None: there was none. Raises OSError.
        """
        prepared.applied = max(prepared.applied, queue.min_at(self._log.start))
        while prepared.applied < queue.max:
            phys, size, _ = queue.entry(prepared.applied)
            if prepared.to is not None and phys >= prepared.to:
                break
            if size != BLANK_SIZE:
                try:
                    directory, copies_at = self._directory(phys, size)
                except (BadDirectory, OSError) as error:
                    _check(error)
                    return phys
                rows = prepared.rows.setdefault(
                    (directory.topic, directory.queue_id), QueueRows(self._log.segment_size)
                )
                self._change(rows, directory, copies_at, 0)
            prepared.applied += 1
            if time.monotonic() >= until:
                break
        return None

    def _is_prepared(self, prepared: _Prepared) -> bool:
        """Whether the log below the place of the truncation is still that of the preparation."""
        return prepared.truncations == self._state.truncations and prepared.confirmed == self._state.confirmed

    def _begin(self) -> bool:
        """Take the rows that were prepared, or begin again, if the rows are those of another log. Return whether
        readers see none of them now.
        """
        state_of = self._state.truncations, self._queues.undone
        if self._state_of == state_of:
            return False
        cut = self._state_of[0] != state_of[0]
        self._state_of = state_of
        prepared, self._prepared = self._prepared, None
        undone = self._queues.take_undone(self._log.start)
        if not cut:
            if undone:
                self._again = _Prepared(None, self._state)
            return False
        self._again = None
        if prepared is not None and self._was_cut_to(prepared):
            self._use(prepared)
            return False
        self._use(_Prepared(None, self._state))
        return True

    def _use(self, prepared: _Prepared) -> None:
        """Show readers these rows, but for those that a deletion hides."""
        for queue in self._queues:
            queue.compact(None)
        for (topic, queue_id), rows in prepared.rows.items():
            rows.drop(place_below=self._log.start, own_below=self._queues.deletion_watermarks.get(topic, 0))
            self._queues.unopened(topic, queue_id).compact(rows)
        self.applied = prepared.applied
        self.unreadable_at = None

    def _was_cut_to(self, prepared: _Prepared) -> bool:
        """Whether the one truncation since then was the prepared one."""
        return (
            prepared.to is not None
            and prepared.truncations + 1 == self._state.truncations
            and self._log.start < prepared.to == self._log.end == self._state.confirmed
        )

    def _directory(self, phys: int, size: int) -> tuple[Directory, int]:
        """Return a directory, and the offset in the log of the copies behind it. Raises BadDirectory, OSError."""
        data = self._log.read(phys, min(size, _HEAD_BYTES))
        for _ in range(2):
            body_at = body_place(data)
            needed = body_at + directory_size(data[body_at : body_at + HEAD.size])
            if needed <= len(data) or needed > size:
                break
            data = self._log.read(phys, needed)
        directory = decode(data[body_at:])
        return directory, phys + body_at + directory.size

    def _apply(self, directory: Directory, copies_at: int) -> None:
        queue = self._queues.unopened(directory.topic, directory.queue_id)
        rows = queue.compacted or QueueRows(self._log.segment_size)
        self._change(rows, directory, copies_at, self._queues.deletion_watermarks.get(directory.topic, 0))
        queue.compact(rows)

    def _change(self, rows: QueueRows, directory: Directory, copies_at: int, deleted: int) -> None:
        """Change rows as a compaction record says. `deleted`: records below this offset of the log have none."""
        start = self._log.start
        new, gone = [], list(directory.dropped)
        for row in directory.rows:
            placed = row if row.place >= 0 else row._replace(place=copies_at - 1 - row.place)
            if placed.own >= deleted and placed.place >= start:
                new.append(placed)
            else:
                gone.append(row.number)
        rows.change(new, gone)
        rows.boundary = max(rows.boundary, directory.boundary)
        rows.seen, rows.seen_bytes = directory.seen, directory.seen_bytes

    # What is known

    def new_records(self, topic: str, queue_id: int) -> int:
        """Return how many records of a queue no pass has looked at. Raises OSError."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max - queue.min_at(self._queues.visible_from(topic, self._log.start))

    def work(self, topic: str, queue_id: int, most: int) -> Work | None:
        """Return a pass over at most so many new records of a queue, maybe none of them; None: no such queue.

        Raises OSError.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        rows = queue.compacted or QueueRows(self._log.segment_size)
        start = queue.min_at(self._queues.visible_from(topic, self._log.start))
        entries = queue.read(start, min(most, queue.max - start))
        return Work(topic, queue_id, start, entries, rows.boundary, list(rows.blocks), (rows.seen, rows.seen_bytes))

    def rows(self, topic: str, queue_id: int) -> QueueRows | None:
        """Return the rows of a queue; None: it has no compacted records."""
        entry = self._queues.topics.get(topic)
        queue = None if entry is None else entry.queues.get(queue_id)
        return None if queue is None else queue.compacted

    def needed_from(self, topics: list[str]) -> int:
        """Return the first offset of the log that compacted topics need: for rows, or for records that no pass has
        looked at. Raises OSError.
        """
        if self._state_of != (self._state.truncations, self._queues.undone):
            self.apply(0.0)
        needed = self._state.confirmed
        prepared = self._prepared is not None and self._is_prepared(self._prepared)
        if prepared or self._again is not None or self.unreadable_at is not None:
            return self._log.start
        for topic in topics:
            for queue_id in self._queues.queue_numbers(topic):
                queue = self._queues.find(topic, queue_id)
                if queue is None:
                    continue
                floor = None if queue.compacted is None else queue.compacted.floor()
                if floor is not None:
                    needed = min(needed, floor)
                low = queue.min_at(self._queues.visible_from(topic, self._log.start))
                if low < queue.max:
                    needed = min(needed, queue.entry(low)[0])
        return needed

    def holder(self, place: int) -> int:
        """Return where the record of the log begins that has these bytes. Raises OSError."""
        queue = self._queues.find(COMPACTION_TOPIC, 0)
        if queue is None:
            return place
        number = queue.first_at(place + 1) - 1
        if number < queue.min_at(self._log.start):
            return place
        phys, size, _ = queue.entry(number)
        return phys if size != BLANK_SIZE and phys <= place < phys + size else place

    def read(self, queue: ConsumeQueue, row: Row) -> bytes:
        """Return the bytes of a compacted record. Raises RecordError for damaged ones, OSError."""
        if row.place < self._log.start:
            raise RecordError(f"record at {row.place} is not in the log any more")
        data = self._log.read(row.place, row.size)
        topic, queue_id = queue.key
        if len(data) != row.size or not is_record_of(data, 0, row.size, row.own, topic.encode(), queue_id, row.number):
            raise RecordError(f"record {row.number} of {topic}:{queue_id} is damaged at {row.place}")
        try:
            read_record(data, 0, row.size, row.own, check=True)
        except Damage as error:
            raise RecordError(str(error)) from None
        return data

    def record(self, own: int) -> Record | None:
        """Return the compacted record that was stored first at an offset of the log; None: there is none.

        Raises RecordError, OSError.
        """
        for queue in self._queues:
            row = None if queue.compacted is None else queue.compacted.with_own(own)
            if row is not None:
                return decode_record(self.read(queue, row))
        return None


def _check(error: Exception) -> None:
    """Raise an OSError that is no damage of a record."""
    if isinstance(error, OSError) and error.errno != errno.EIO:
        raise error
