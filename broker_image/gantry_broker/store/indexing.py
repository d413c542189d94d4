"""Indexes confirmed records: entries of consume queues, keys of the key index. RocketMQ calls this dispatch.

It also keeps the unconfirmed buffer and the next numbers of the queues, and reads the log again for an index that has
fallen behind.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from gantry_broker.store.batch import Batch, read_batch
from gantry_broker.store.clock_steps import ClockSteps
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.files import sync_names
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.index_file import KEY, keys_within
from gantry_broker.store.index.key_index import BATCH, KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.record_reader import MAX_RECORD, MIN_RECORD, is_record_of
from gantry_broker.store.scrub import Scrubber
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import Confirmed
from gantry_broker.store.unconfirmed import UnconfirmedBuffer
from gantry_broker.store.warnings import RateLimitedWarnings

_log = logging.getLogger(__name__)
_WRITE_OUT_AFTER: Final = 200_000
"""`confirm` writes out the queues when more entries than this wait in memory."""
_GAP_PIECE: Final = 1 << 17
"""The same for a key-index file that was damaged, beside all other work."""
_PIECE: Final = 1 << 20
"""Bytes of the log that are read at once to be indexed."""
_RETRIES_AT_ONCE: Final = 8
"""Places that one call of `retry_unindexed` reads."""


class Indexer:
    """Moves confirmed records into queues and key index."""

    def __init__(
        self,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        unconfirmed: UnconfirmedBuffer,
        scrubber: Scrubber,
        delays: Sequence[int],
        warnings: RateLimitedWarnings,
    ) -> None:
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._unconfirmed = unconfirmed
        self._scrubber = scrubber
        self._delays = delays
        self._warnings = warnings
        self.steps = ClockSteps()
        """Of the confirmed log."""

    def push_unconfirmed(self, batch: Batch) -> None:
        """Append a batch, whose records already have queue offsets, to the unconfirmed buffer."""
        for queue, number, entry in batch.entries:
            # Numbers of unconfirmed records are taken: those records may be confirmed under the next leader.
            after = number + len(entry) // ENTRY_SIZE
            if queue.next < after:
                queue.next = after
        if batch.last_ms:
            self._state.last_store_ms = batch.last_ms
        self._unconfirmed.push(batch)

    def read_batch(self, offset: int, data: bytes, *, keys: bool = True, cut: bool = False) -> Batch:
        """Read a piece of our own log; `cut`: see `batch.read_batch`.

        Raises BadRecords when the disk no longer has the bytes as written.
        """
        has_index = self._index is not None
        segment_size = self._log.segment_size
        batch = read_batch(
            offset, data, self._queues, segment_size, self._delays, check=False, keys=keys and has_index, cut=cut
        )
        if not has_index:
            batch.keys = b""
        return batch

    def valid_batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Read [start, stop) of the log; unreadable stretches leave gaps and go to `unindexed`. Raises OSError."""
        log = self._log
        at, want, untrusted = start, _PIECE, start
        while at < stop:
            if at >= untrusted:
                want = _PIECE
            try:
                batch = self.read_batch(at, log.whole_records(at, want, stop), cut=True)
            except (BadRecords, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EIO:
                    raise
                if want > 1:
                    want, untrusted = 1, at + _PIECE  # Read the valid records before the damage one by one.
                    continue
                _log.error("cannot index the record at %d: %s", at, error)
                self._state.unindexed[at] = boundary = self._scrubber.next_boundary(at, stop)
                at, want = boundary, _PIECE
                continue
            yield batch
            at = batch.end

    def retry_unindexed(self) -> None:
        """Index some of the stretches that recovery could not read. `on_damage` gets those still unreadable."""
        state = self._state
        for at in list(state.unindexed)[:_RETRIES_AT_ONCE]:
            stop = state.unindexed.pop(at)
            try:
                data = self._scrubber.verified_bytes(at, min(stop - at, _PIECE))
                self.fill_in(at, data)
                at += len(data)
            except OffsetGone:
                continue
            except (BadRecords, OSError) as error:
                if not isinstance(error, OSError) or error.errno == errno.EIO:
                    state.on_damage(at)
            if at < stop:
                state.unindexed[at] = stop  # At the end, so that the next call tries others first.

    def leads_to_record(self, queue: ConsumeQueue, number: int, phys: int, size: int) -> bool:
        """Whether the record of this queue offset lies there. Raises OSError other than EIO."""
        log = self._log
        if not (log.start <= phys and MIN_RECORD <= size <= min(MAX_RECORD, self._state.confirmed - phys)):
            return False
        try:
            return is_record_of(log.read(phys, size), 0, size, phys, queue.key[0].encode(), queue.key[1], number)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return True  # The log is damaged there: its repair comes first.

    def repair_entries(self, queue: ConsumeQueue, number: int) -> Iterator[None]:
        """Write the damaged entries around a queue offset again, from the log between the nearest right ones.

        A generator: one piece of the log at each step. Raises OSError.
        """
        low = high = None
        for step in (1 << n for n in range(63)):
            if low is None:
                low = self._end_of(queue, number - step) if number - step >= queue.first else self._log.start
            if high is None:
                high = self._place_of(queue, number + step) if number + step < queue.max else self._state.confirmed
            if low is not None and high is not None:
                break
        assert low is not None
        assert high is not None
        touched: set[str] = set()
        try:
            for batch in self.valid_batches(max(low, self._log.start), min(high, self._state.confirmed)):
                for own, at, entry in batch.each():
                    if own is queue:
                        self._correct(queue, at, entry, touched)
                yield
        finally:
            self._queues.unsynced |= touched

    def repair_queue(self, topic: str, queue_id: int, number: int) -> Iterator[None]:
        """As `repair_entries`, by topic and queue; does nothing for an offset that the queue does not have."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None and queue.first <= number < queue.max:
            yield from self.repair_entries(queue, number)

    def _place_of(self, queue: ConsumeQueue, number: int) -> int | None:
        phys, size, _ = queue.entry(number)
        return phys if self.leads_to_record(queue, number, phys, size) else None

    def _end_of(self, queue: ConsumeQueue, number: int) -> int | None:
        phys, size, _ = queue.entry(number)
        if phys < self._log.start and 0 < size < MAX_RECORD:
            return self._log.start
        return phys + size if self.leads_to_record(queue, number, phys, size) else None

    def _correct(self, queue: ConsumeQueue, number: int, entry: bytes, touched: set[str]) -> None:
        if number >= queue.written:
            return
        there = queue.read(number, 1)
        if there == entry:
            return
        phys, size, _ = ENTRY.unpack(there)
        own_phys, _, _ = ENTRY.unpack(entry)
        if phys != own_phys and self.leads_to_record(queue, number, phys, size):
            return  # An older fault gave the queue offset twice.
        if size == BLANK_SIZE and self._state.unindexed:
            return  # `fill_in` does it once the log is repaired.
        touched.add(queue.correct(number, entry))
        self._state.queue_entries_repaired += 1
        self._warnings.warn(
            f"consume queue {queue.key[0]}:{queue.key[1]} is repaired from the log",
            f"its entry at {number} was damaged, {self._state.queue_entries_repaired} so far in all queues",
        )

    def check_entries(self, at: int, stop: int) -> None:
        """Compare the entries of the confirmed records of [at, stop), whole records, and repair those that differ.

        Raises BadRecords, ValueError, OSError.
        """
        batch = self.read_batch(at, self._log.read(at, stop - at), keys=False)
        by_queue: dict[ConsumeQueue, list[tuple[int, bytes]]] = {}
        for queue, number, entry in batch.each():
            by_queue.setdefault(queue, []).append((number, entry))
        touched: set[str] = set()
        try:
            for queue, entries in by_queue.items():
                first, last = entries[0][0], entries[-1][0]
                whole = last - first == len(entries) - 1 and queue.first <= first and last < queue.written
                if whole and queue.read(first, len(entries)) == b"".join(entry for _, entry in entries):
                    continue
                for number, entry in entries:
                    self._correct(queue, number, entry, touched)
        finally:
            self._queues.unsynced |= touched

    def fill_in(self, at: int, data: bytes) -> None:
        """Add queue entries of repaired records: in place of blanks, or at the end of their queues. Raises OSError."""
        queues = self._queues
        touched: set[str] = set()
        try:
            for queue, number, entry in self.read_batch(at, data).each():
                if number < queue.max:
                    queue.fill_in(number, entry, touched)
                else:
                    next_before = queue.next
                    queue.add(number, entry)
                    queue.next = max(next_before, queue.max)
                    queues.dirty.setdefault(queue)
            sync_names(sorted(touched))
        except OSError:
            queues.unsynced |= touched
            raise

    def confirm(self, offset: int, until: float = math.inf) -> Confirmed:
        """Raise the confirmed offset to `offset` and index the records below it.

        Stops early when `time.monotonic` passes `until`, at unreadable records, and before a record that `offset` cuts.
        A lower offset changes nothing.
        Raises ValueError when `offset` lies above the end of the log or within a record, BadRecords, OSError; nothing
        is indexed then.
        """
        state, log, unconfirmed = self._state, self._log, self._unconfirmed
        if offset <= state.confirmed:
            return Confirmed(state.confirmed, [], [])
        if offset > log.end:
            raise ValueError(f"confirmed offset {offset} is above the end of the log at {log.end}")
        available: dict[tuple[str, int], None] = {}
        control: list[tuple[int, bytes]] = []
        began = state.confirmed
        while state.confirmed < offset:
            try:
                batch = unconfirmed.pop(state.confirmed, offset, log.begins_record)
                if batch is None:
                    stop = min(offset, max(unconfirmed.first_start(offset), state.confirmed + 1))
                    data = log.whole_records(state.confirmed, _PIECE, stop)
                    batch = self.read_batch(state.confirmed, data, cut=True)
            except (BadRecords, ValueError, OSError):
                if state.confirmed == began:
                    raise
                break  # Report the indexed part; the next call raises.
            self._index_batch(batch, available)
            self.note_times(batch)
            if batch.control:
                control += batch.control
            # After the entries: readers go by it, and a record below it without an entry would be skipped.
            state.confirmed = batch.end
            if time.monotonic() >= until:
                break
        if self._queues.waiting > _WRITE_OUT_AFTER:
            self.write_out(None)
        if state.renumber and not unconfirmed.gaps(state.confirmed, log.end):
            self._renumber()
        return Confirmed(state.confirmed, list(available), control)

    def note_times(self, batch: Batch) -> None:
        """Note where the store times of confirmed records go back."""
        if batch.last_ms:
            steps = self.steps
            first_ms = batch.first_ms or batch.last_ms
            if first_ms < steps.last_ms:
                steps.note(batch.start, first_ms)
            if batch.steps:
                steps.extend(batch.steps, batch.last_ms)
            else:
                steps.last_ms = batch.last_ms

    def _renumber(self) -> None:
        """Compute the next numbers again: replaced entries may have had higher numbers than the new ones."""
        for queue in self._queues:
            if queue.next >= 0:
                queue.next = queue.max
        for batch in self._unconfirmed.batches:
            for queue, number, entry in batch.entries:
                queue.next = max(queue.next, number + len(entry) // ENTRY_SIZE)
        self._state.renumber = False

    def _index_batch(self, batch: Batch, available: dict[tuple[str, int], None]) -> None:
        dirty = self._queues.dirty
        if batch.checked:
            for queue, _, entry in batch.entries:
                pending = queue.pending
                if not pending:
                    dirty[queue] = None
                pending += entry
                available[queue.key] = None
        else:
            for queue, number, entry in batch.entries:
                pending = queue.pending
                if number == queue.written + len(pending) // ENTRY_SIZE:  # Most entries; `add` costs more.
                    pending += entry
                    after = number + len(entry) // ENTRY_SIZE
                    if queue.next < after:
                        queue.next = after
                else:
                    self._add_entry(queue, number, entry)
                if queue.pending:
                    dirty.setdefault(queue)
                available[queue.key] = None
        self._queues.waiting += batch.count
        index = self._index
        if index is not None and not index.behind:
            if batch.keys is None:
                index.drain()
                index.behind = True
            else:
                index.pending += batch.keys
                index.position = batch.end
                if len(index.pending) >= BATCH * KEY.size:
                    index.drain()

    def _add_entry(self, queue: ConsumeQueue, number: int, entry: bytes) -> None:
        """Add an entry behind a gap, or one that the queue may have already."""
        next_before = queue.next  # It counts unconfirmed records; an empty queue's first entry must not lower it.
        if queue.add(number, entry):
            self._state.renumber = True
            self._state.durable_names.clear()  # New files may get the names of removed ones.
        queue.next = max(next_before, queue.max)

    def unconfirmed_control(self) -> list[bytes]:
        """Return the bodies of the unconfirmed control records, in the order of the log.

        Raises BadRecords, ValueError when not even a record boundary is readable, OSError.
        """
        confirmed = self._state.confirmed
        records = [item for batch in self._unconfirmed.batches for item in batch.control if item[0] >= confirmed]
        for start, stop in self._unconfirmed.gaps(confirmed, self._log.end):
            for offset, data in self._log.chunks(start, stop):
                records += self.read_batch(offset, data, keys=False).control
        return [body for _, body in sorted(records)]

    def truncate_unconfirmed(self, to: int) -> None:
        """Drop the batches at or above `to` and give their queue offsets back.

        Raises BadRecords, ValueError, OSError.
        """
        state, unconfirmed, queues = self._state, self._unconfirmed, self._queues
        touched: set[ConsumeQueue] = set()
        kept: list[Batch] = []
        for batch in unconfirmed.batches:
            touched.update(queue for queue, _, _ in batch.entries)
            if batch.start < to < batch.end:
                batch = batch.split(to)[0]
            if batch.end <= to:
                kept.append(batch)
        complete = not kept or all(a.end == b.start for a, b in pairwise(kept))
        complete = complete and (kept[0].start if kept else to) <= state.confirmed
        complete = complete and (kept[-1].end if kept else state.confirmed) == to
        unconfirmed.clear()
        shortened = list(touched if complete else queues)
        for queue in shortened:
            if queue.next >= 0:
                queue.next = queue.max
        if complete:
            for batch in kept:
                self.push_unconfirmed(batch)
        else:
            for offset, data in self._log.chunks(state.confirmed, to):
                self.push_unconfirmed(self.read_batch(offset, data))
        for queue in shortened:
            queues.apply_override(queue)

    def write_out(self, limit: int | None, until: float | None = None) -> bool:
        """Write the entries of up to `limit` queues to their files, until a time of the monotonic clock.

        False when the disk refuses; the entries stay in memory.
        """
        try:
            self._queues.write_out(limit, until)
        except OSError as error:
            self._warnings.warn("consume queues wait in memory", error)
            return False
        return True

    def fill_gap(self) -> None:
        """Read a piece of the log for a key-index file that was damaged. Does nothing when none was."""
        index, log = self._index, self._log
        if index is None or index.behind or not index.gaps:
            return
        try:
            gap = index.open_gap(log.start)
            if gap is None:
                return
            (at, stop), confirmed = gap, self._state.confirmed
            at = max(at, log.start)
            keys, end = b"", stop
            if at < min(stop, confirmed):
                try:
                    batch = self.read_batch(at, log.whole_records(at, _GAP_PIECE, confirmed), cut=True)
                    keys, end = bytes(keys_within(batch.keys or b"", at, stop)), batch.end
                except (BadRecords, ValueError) as error:
                    _log.warning("keys of records at %d are left out of the key index: %s", at, error)
                    end = self._scrubber.next_boundary(at, confirmed)
            index.fill_gap(keys, end)
        except OSError as error:
            self._warnings.warn("the keys of a damaged index file cannot be read again yet", error)
            index.leave_gap()

    def catch_up(self, limit: int | None = None) -> bool:
        """Let an index that is behind read a piece of the log, up to the boundary `limit` (default: confirmed).

        False when it has caught up or cannot go on.
        """
        limit = self._state.confirmed if limit is None else limit
        index, log = self._index, self._log
        if index is None or not index.behind:
            return False
        index.position = max(index.position, log.start)
        if index.position >= limit:
            index.behind = False
            return False
        try:
            batch = self.read_batch(index.position, log.whole_records(index.position, _PIECE, limit), cut=True)
        except OSError as error:
            self._warnings.warn(f"the key index waits at {index.position}", error)
            if error.errno == errno.EIO:
                self._state.on_damage(index.position)
            index.stalled = True
            return False
        except (BadRecords, ValueError):
            valid = self._scrubber.valid_prefix(index.position, min(index.position + _PIECE, limit))
            if not valid:
                index.stalled = True  # Until the record is repaired.
                return False
            batch = self.read_batch(index.position, valid, cut=True)
        index.behind = False
        index.pending += batch.keys or b""
        index.position = batch.end
        if not index.drain():  # `drain` has set `behind` again.
            return False
        index.behind = index.position < limit
        return index.behind
