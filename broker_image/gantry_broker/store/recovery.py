"""Recovery: brings log, queues and index of an opened store to where they agree.

The first invalid record ends the log; its bytes and all later ones become zeros, durably. Queues and index are then
truncated to the offset up to which they are trusted, and read the rest from the log again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from gantry_broker.store import recovery_plan
from gantry_broker.store.checkpoint import Checkpointer
from gantry_broker.store.errors import StoreError, StoreLocked
from gantry_broker.store.files import NO_ROOM, atomic_write, is_there
from gantry_broker.store.index import queue_ends
from gantry_broker.store.index.consume_queue import BLANK_SIZE, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_ends import QueueEnds
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog, segment_bases
from gantry_broker.store.log.epochs import EPOCHS_REMEDY, FOREIGN, EpochCache, EpochFile, extend_epochs
from gantry_broker.store.log.scan import Scan, scan
from gantry_broker.store.recovery_plan import Plan
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.state import StoreState
from gantry_broker.store.types import Damage

_log = logging.getLogger(__name__)

DAMAGED: Final = "damaged"
"""In config/: recovery has truncated the log below an acknowledged record, and no one has acknowledged that yet."""
_INDEX_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes of the log that the index reads at most before the store is open; periodic tasks read the rest."""


class Recovery:
    """Recovers one store, once."""

    def __init__(
        self,
        root: Path,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        epochs: EpochCache,
        indexer: Indexer,
        checkpointer: Checkpointer,
        file: RecoveryPointFile,
        ends: QueueEnds | None,
    ) -> None:
        """Take the parts of the store. `ends`: of the last checkpoint; None: not known."""
        self._root = root
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._epochs = epochs
        self._indexer = indexer
        self._checkpointer = checkpointer
        self._file = file
        self._ends = ends
        state.ends_offset = 0 if ends is None else ends.offset
        self._damaged = root / "config" / DAMAGED

    def recover(self, epoch_file: EpochFile | None, *, epochs_lost: bool = False) -> None:
        """Recover the store. `epoch_file`: its epoch file, None for a new or a foreign store.

        `epochs_lost`: the file was missing, and the epochs come from the whole log. Raises StoreError, OSError.
        """
        state, log = self._state, self._log
        point = RecoveryPoint.load(self._file.path)
        if epochs_lost and point is not None:
            # Only the control records still say which epochs the log has, so all of it is read.
            point = replace(point, clean=False, durable=0, durable_index=0, written=0, written_index=0)
        plan = recovery_plan.plan(self._root, log, point, opened_before=epoch_file is not None)
        bases = log.bases()
        log.start = recovery_plan.first_offset(bases, log.segment_size)
        state.verified_from = plan.scan_from
        lost_from = recovery_plan.lost_from(plan, point)
        scanned = scan(log, plan.scan_from, lost_from=lost_from) if bases else Scan(0, "an empty store")
        log.end = scanned.end
        before = point or RecoveryPoint()
        # Before the truncation, which zeros the bytes that show the damage. A kill in between must not hide it.
        self._find_damage(scanned, point, epoch_file)
        if bases:
            log.truncate(scanned.end)
        state.last_store_ms = scanned.last_ms
        state.was_clean = plan.clean or not bases
        self._recover_epochs(plan, scanned, epoch_file, lost=epochs_lost)
        # Not the log's end: the next leader may replace records above this offset, and no reader may see them before.
        state.confirmed = recovery_plan.confirmed_after(plan, point, log.start, log.end)
        # From here on queues change: a kill must not look like a clean stop to the next start.
        self._mark_open()
        # Never above `confirmed`: readers see each entry of a queue, and the next leader may replace those records.
        trusted = min(state.confirmed if plan.trusted is None else plan.trusted, state.confirmed)
        if before.reindexing:
            trusted = log.start
        ends = None
        if not plan.foreign and trusted > log.start:
            ends = self._usable_ends(plan, trusted)
            # A start after a kill compares more than it has to: what a file lost behind the list would not show.
            trusted = log.start if ends is None else min(trusted, max(ends.offset, log.start))
        state.recovery_point = replace(before.at_most(trusted), reindexing=False)
        if point is not None and trusted <= log.start < max(point.durable, point.written):
            # The queues have been removed. If this start is interrupted, the next one must not take the entries written
            # by this one for all of them.
            claimed = replace(point, clean=False, durable_index=trusted, written_index=trusted, reindexing=True)
            self._file.lower(claimed)
        if ends is None:
            # An old list must not become true again by its offset, when the log has grown with other records.
            (self._root / "config" / queue_ends.NAME).unlink(missing_ok=True)
            state.ends_offset = 0
        if ends is not None:
            self._indexer.steps.extend(ends.steps, ends.last_ms)
            self._open_queues(ends, trusted, exact=plan.clean and trusted == state.confirmed)
        elif not plan.clean or trusted != plan.trusted:
            self._queues.truncate(trusted)
        self._recover_index(plan, trusted)
        if not plan.clean and not plan.rebooted:
            self._mark_unsynced()
        self._reindex(trusted, whole=trusted <= log.start)
        for offset, data in log.chunks(state.confirmed, log.end):
            self._indexer.push_unconfirmed(self._indexer.read_batch(offset, data))
        unflushed = min(max(before.flushed, log.start), log.end)
        if point is not None and not point.boot:
            # After a failed flush the kernel may report success without writing: write all unflushed bytes again.
            for offset, data in log.chunks(unflushed, log.end):
                log.overwrite(offset, data)
        # Before the first fetch, which says that all of this is on the disk.
        log.sync(unflushed, log.end)
        state.flushed = log.end
        # Also without a change: the file may claim more than the log has, and every start would find that damage again.
        self._checkpointer.save(durable=True, again=True)
        if state.queues_rebuilt or (ends is None and log.end > log.start):
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Make the queues and the list of their ends durable: the next start need not build them again."""
        try:
            checkpoint = self._checkpointer.checkpoint()
            checkpoint.run()
            self._checkpointer.checkpointed(checkpoint)
        except OSError as error:
            _log.warning("the consume queues of %s cannot be made durable: %s", self._root, error)

    def _usable_ends(self, plan: Plan, trusted: int) -> QueueEnds | None:
        """Return the list of queue ends, if all its records are still there."""
        ends, state = self._ends, self._state
        if ends is not None and ends.offset <= trusted:
            return ends
        why = "is missing" if ends is None else f"is of {ends.offset}, but the queues are trusted up to {trusted}"
        _log.warning(
            "the list of queue ends (config/%s) of %s %s: all consume queues are built from the log of %d to %d",
            queue_ends.NAME, self._root, why, self._log.start, state.confirmed,
        )  # fmt: skip
        return None

    def _open_queues(self, ends: QueueEnds, trusted: int, *, exact: bool) -> None:
        """Open all queues with the entries that `ends` lists, and build the damaged ones from the log below `trusted`.

        `exact`: no queue has later entries. Raises OSError.
        """
        queues, log = self._queues, self._log
        damaged: dict[ConsumeQueue, int] = {}
        """With the end of the queue."""
        start = trusted
        expired = ends.offset < log.start
        """Records behind the list have left the log: only the files have their entries, which give the next offsets."""
        for queue in queues:
            if queue.key not in ends.queues and (queue.truncate(trusted) if expired else queue.cut(0, 0)):
                queues.unsynced.update(queue.files())
        for (topic, queue_id), (first, end) in ends.queues.items():
            queue = queues.unopened(topic, queue_id)
            if ends.start != log.start:
                first = min(max(first, queue.first_in_files()), end)
            bad = self._damaged_from(queue, first, end)
            if bad is not None:
                damaged[queue] = end
                start = min(start, self._place_before(queue, first, bad))
                queue.cut(first, bad)
                queues.unsynced.update(queue.files())
            elif expired:
                if queue.truncate(trusted):
                    queues.unsynced.update(queue.files())
            elif not exact or queue.reaches_beyond(end):
                if queue.cut(first, end):
                    queues.unsynced.update(queue.files())
            else:
                queue.open_at(first, end)
            queues.apply_override(queue)
        if damaged:
            self._rebuild(damaged, max(start, log.start), trusted)

    def _damaged_from(self, queue: ConsumeQueue, first: int, end: int) -> int | None:
        """Return the first queue offset of the first file that is damaged as far as its ends show; None: none is."""
        bad = queue.damaged_from(first, end)
        if bad is None and end > first and not self._is_right(queue, end - 1, first, end):
            per_file = queue.file_size // ENTRY_SIZE
            bad = (end - 1) - (end - 1) % per_file
        return bad

    def _is_right(self, queue: ConsumeQueue, number: int, first: int, end: int) -> bool:
        """Whether an entry leads to its record, or to none that the log still has to have."""
        phys, size, _ = queue.entry_of(number, first, end)
        if size == BLANK_SIZE or phys < self._log.start:
            return True
        return self._indexer.leads_to_record(queue, number, phys, size)

    def _place_before(self, queue: ConsumeQueue, first: int, bad: int) -> int:
        """Return an offset of the log behind which all records of the queue from `bad` on lie."""
        per_file = queue.file_size // ENTRY_SIZE
        while bad > first:
            phys, size, _ = queue.entry_of(bad - 1, first, bad)
            if size != BLANK_SIZE and self._indexer.leads_to_record(queue, bad - 1, phys, size):
                return phys
            bad = max(bad - per_file, first)
        return self._log.start

    def _rebuild(self, damaged: dict[ConsumeQueue, int], start: int, stop: int) -> None:
        """Build these queues from the log of [start, stop). Raises OSError."""
        state, queues = self._state, self._queues
        names = ", ".join(f"{queue.key[0]}:{queue.key[1]}" for queue in list(damaged)[:10])
        more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
        _log.error(
            "files of %d consume queues are damaged or missing (%s%s): they are built from the log of %d to %d",
            len(damaged), names, more, start, stop,
        )  # fmt: skip
        for batch in self._indexer.valid_batches(start, stop):
            for queue, number, entry in batch.entries:
                if queue in damaged:
                    queue.begin_at(number)
                    queue.add(number, entry)
                    queue.next = queue.max
                    if queue.pending:
                        queues.dirty[queue] = None
            self._indexer.write_out(None)
        for queue, end in damaged.items():
            if queue.max < end:
                _log.error(
                    "the log has no records of %s:%d for the queue offsets %d to %d; they are not given again",
                    *queue.key, queue.max, end - 1,
                )  # fmt: skip
                # Consumers have committed offsets there: given again, they would name other messages.
                queue.skip_to(end, stop)
                if queue.pending:
                    queues.dirty[queue] = None
        self._indexer.write_out(None)
        state.queues_rebuilt += len(damaged)
        _log.warning("%d consume queues were built from the log", len(damaged))

    def _recover_epochs(self, plan: Plan, scanned: Scan, epoch_file: EpochFile | None, *, lost: bool) -> None:
        """Set the epochs, and the file that keeps them."""
        epochs = recovery_plan.epochs_after(plan, scanned, epoch_file)
        if lost and scanned.end and not (epochs and epochs[0].start == 0):
            epochs = extend_epochs(FOREIGN, epochs)  # RocketMQ wrote the beginning of the log.
        self._epochs.epochs = epochs
        if epoch_file is None or lost:
            self._epochs.set(epochs)  # The file marks the store as ours.
        elif epoch_file.epochs != epochs:
            self._epochs.set_lazily(epochs)

    def _mark_unsynced(self) -> None:
        """Mark the files that the last process wrote since its checkpoint: they may not be on the disk yet."""
        point = self._state.recovery_point
        for queue in self._queues:
            self._queues.unsynced.update(queue.files_since(point.durable))
        if self._index is not None:
            self._index.unsynced.update(self._index.files_since(point.durable_index))

    def _find_damage(self, scanned: Scan, point: RecoveryPoint | None, epoch_file: EpochFile | None) -> None:
        """Set `damage` when acknowledged records are missing; a file keeps it until `acknowledge_damage`."""
        state, mark = self._state, self._damaged
        state.damage = recovery_plan.find_damage(self._log, scanned, point, epoch_file)
        if state.damage is not None:
            _log.error(
                "the log ends at %d (%s), below acknowledged records: %s", scanned.end, scanned.reason, state.damage
            )
            try:
                atomic_write(mark, b"{}")
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                _log.warning("cannot write %s: %s", mark, error)
        elif is_there(mark):
            before = point or RecoveryPoint()
            state.damage = Damage(scanned.end, "found at an earlier start", before.flushed, before.confirmed)

    def acknowledge_damage(self) -> None:
        """Remove the file that keeps `damage`. Raises OSError."""
        self._damaged.unlink(missing_ok=True)

    def _mark_open(self) -> None:
        """Create `abort`: only a clean close removes it. On a full disk, remove the recovery point instead."""
        abort = self._root / "abort"
        try:
            with open(abort, "w") as mark:
                mark.write(str(os.getpid()))
        except OSError as error:
            _log.warning("cannot write %s: %s", abort, error)
            self._file.path.unlink(missing_ok=True)

    def _reindex(self, start: int, *, whole: bool) -> None:
        """Add to the queues, and to an index that is not behind, their missing entries of [start, confirmed).

        `whole`: the log has nothing before `start`, so the queues end where it says.
        """
        index, queues = self._index, self._queues
        ends: dict[ConsumeQueue, int] = {}
        for batch in self._indexer.valid_batches(start, self._state.confirmed):
            self._indexer.note_times(batch)
            live = index is not None and not index.behind and index.position == batch.start
            for queue, number, entry in batch.entries:
                if whole:
                    queue.begin_at(number)
                    ends[queue] = max(number + len(entry) // ENTRY_SIZE, ends.get(queue, 0))
                queue.add(number, entry)
                queue.next = queue.max
                if queue.pending:
                    queues.dirty[queue] = None
            self._indexer.write_out(None)
            if index is not None and live:
                index.pending += batch.keys or b""
                index.position = batch.end
                index.drain()
        for queue, end in ends.items():
            if queue.max > end and not self._state.unindexed and not queue.pending:
                queue.cut(queue.first, end)  # Entries that no record has: files that were damaged.
                queues.unsynced.update(queue.files())
        if index is not None:
            index.behind = index.position < self._state.confirmed

    def _recover_index(self, plan: Plan, start: int) -> None:
        """Truncate the index to its trusted part, and bring it up to `start`, where `_reindex` begins."""
        index, confirmed = self._index, self._state.confirmed
        if index is None:
            return
        index.position = confirmed
        if plan.trusted_index is not None:
            limit = min(plan.trusted_index, confirmed)
            if not plan.clean or index.end_phys >= limit:
                index.truncate(limit, rebuild=plan.rebooted)
            index.position = limit
        index.behind = index.position < start
        budget = index.position + _INDEX_AT_ONCE
        while index.behind and index.position < budget and self._indexer.catch_up(start):
            pass


def lock_store(root: Path) -> int:
    """Lock RocketMQ's lock file, as Java does; returns its descriptor. Raises StoreLocked, OSError."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # The lock is the process's: to close any other descriptor of this file would give it up.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(fd)
        raise StoreLocked(f"{root} is in use by another process") from error
    return fd


def lost_epochs(root: Path) -> EpochFile | None:
    """For a store of ours whose epoch file is missing: an empty one, to be filled from the log. None: it is not ours.

    Without the file, the store would look like one of RocketMQ, whose records all count as confirmed. Raises StoreError
    when the log no longer has all epochs, OSError.
    """
    config = root / "config"
    if not any(is_there(config / name) for name in ("recoveryPoint.json", queue_ends.NAME)):
        return None
    path, bases = config / "epochs.json", segment_bases(root / "commitlog")
    size = segment_size(root)
    if not bases or size is None:
        return None
    if bases[0] > 0:
        raise StoreError(f"{path} is missing, and the log begins at {bases[0]}: {EPOCHS_REMEDY}")
    _log.error("%s is missing: the leader epochs are read from the whole log", path)
    return EpochFile(size, ())


def segment_size(root: Path) -> int | None:
    """Return the segment size of a store that we have never had open; None for an empty one. Raises OSError."""
    bases = segment_bases(root / "commitlog")
    if not bases:
        return None
    if len(bases) > 1:
        return bases[1] - bases[0]
    return os.stat(root / "commitlog" / f"{bases[0]:020d}").st_size or None
