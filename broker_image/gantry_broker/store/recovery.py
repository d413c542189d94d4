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
from gantry_broker.store.errors import StoreLocked
from gantry_broker.store.files import NO_ROOM, atomic_write, is_there
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog, segment_bases
from gantry_broker.store.log.epochs import EpochCache, EpochFile
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
    ) -> None:
        self._root = root
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._epochs = epochs
        self._indexer = indexer
        self._checkpointer = checkpointer
        self._file = file
        self._damaged = root / "config" / DAMAGED

    def recover(self, epoch_file: EpochFile | None) -> None:
        """Recover the store. `epoch_file`: its epoch file, None for a new or a foreign store.

        Raises StoreError, OSError.
        """
        state, log = self._state, self._log
        point = RecoveryPoint.load(self._file.path)
        plan = recovery_plan.plan(self._root, log, point, known=epoch_file is not None)
        bases = log.bases()
        log.start = recovery_plan.first_offset(bases, log.segment_size)
        state.verified_from = plan.scan_from
        lost_from = recovery_plan.lost_from(plan, point)
        found = scan(log, plan.scan_from, lost_from=lost_from) if bases else Scan(0, "an empty store")
        log.end = found.end
        before = point or RecoveryPoint()
        self._find_damage(found, point, epoch_file)
        if bases:
            log.truncate(found.end)
        state.last_store_ms = found.last_ms
        state.was_clean = plan.clean or not bases
        self._recover_epochs(plan, found, epoch_file)
        state.confirmed = recovery_plan.confirmed_after(plan, point, log.start, log.end)
        self._mark_open()
        trusted = min(state.confirmed if plan.trusted is None else plan.trusted, state.confirmed)
        if before.reindexing:
            trusted = log.start
        state.recovery_point = replace(before.at_most(trusted), reindexing=False)
        if point is not None and trusted <= log.start < max(point.durable, point.written):
            # The queues have been removed. If this start is interrupted, the next one must not take the entries written
            # by this one for all of them.
            claimed = replace(point, clean=False, durable_index=trusted, written_index=trusted, reindexing=True)
            self._file.lower(claimed)
        if not plan.clean or trusted != plan.trusted:
            self._queues.truncate(trusted)
        self._recover_index(plan, trusted)
        if not plan.clean and not plan.rebooted:
            self._mark_unsynced()
        self._reindex(trusted)
        for offset, data in log.chunks(state.confirmed, log.end):
            self._indexer.push_unconfirmed(self._indexer.read_batch(offset, data))
        unflushed = min(max(before.flushed, log.start), log.end)
        if point is not None and not point.boot:
            # After a failed flush the kernel may report success without writing: write all unflushed bytes again.
            for offset, data in log.chunks(unflushed, log.end):
                log.overwrite(offset, data)
        log.sync(unflushed, log.end)
        state.flushed = log.end
        # Also without a change: the file may claim more than the log has, and every start would find that damage again.
        self._checkpointer.save(durable=True, again=True)

    def _recover_epochs(self, plan: Plan, found: Scan, epoch_file: EpochFile | None) -> None:
        """Set the epochs, and the file that keeps them."""
        epochs = recovery_plan.epochs_after(plan, found, epoch_file)
        self._epochs.epochs = epochs
        if epoch_file is None:
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

    def _find_damage(self, found: Scan, point: RecoveryPoint | None, epoch_file: EpochFile | None) -> None:
        """Set `damage` when acknowledged records are missing; a file keeps it until `acknowledge_damage`."""
        state, mark = self._state, self._damaged
        state.damage = recovery_plan.find_damage(self._log, found, point, epoch_file)
        if state.damage is not None:
            _log.error("the log ends at %d (%s), below acknowledged records: %s", found.end, found.reason, state.damage)
            try:
                atomic_write(mark, b"{}")
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                _log.warning("cannot write %s: %s", mark, error)
        elif is_there(mark):
            before = point or RecoveryPoint()
            state.damage = Damage(found.end, "found at an earlier start", before.flushed, before.confirmed)

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

    def _reindex(self, start: int) -> None:
        """Add to the queues, and to an index that is not behind, their missing entries of [start, confirmed)."""
        index, queues = self._index, self._queues
        for batch in self._indexer.valid_batches(start, self._state.confirmed):
            live = index is not None and not index.behind and index.position == batch.start
            for queue, number, entry in batch.entries:
                queue.add(number, entry)
                queue.next = queue.max
                if queue.pending:
                    queues.dirty[queue] = None
            self._indexer.write_out(None)
            if index is not None and live:
                index.pending += batch.keys or []
                index.position = batch.end
                index.drain()
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
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(fd)
        raise StoreLocked(f"{root} is in use by another process") from error
    return fd


def segment_size(root: Path) -> int | None:
    """The segment size of a store that we have never had open; None for an empty one. Raises OSError."""
    bases = segment_bases(root / "commitlog")
    if not bases:
        return None
    if len(bases) > 1:
        return bases[1] - bases[0]
    return os.stat(root / "commitlog" / f"{bases[0]:020d}").st_size or None
