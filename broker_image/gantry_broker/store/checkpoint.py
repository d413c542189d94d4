"""Checkpoints and the recovery point: often for a killed process, seldom and with fsync for a power loss."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gantry_broker.store.files import fsync_dir, sync_file, write_back
from gantry_broker.store.index import queue_ends
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_ends import QueueEnds
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.epochs import EpochCache
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile, boot_id, save_checkpoint
from gantry_broker.store.state import StoreState, makes_disk_untrusted
from gantry_broker.store.warnings import RateLimitedWarnings

_SAVE_INTERVAL_MS: Final = 1_000
_QUEUES_AT_ONCE: Final = 128
_PART_AT_ONCE: Final = 8
"""One call writes out `_QUEUES_AT_ONCE` queues, or this fraction of the waiting ones if that is more."""
_MANY_FILES: Final = 256
"""From so many files on it pays to write the whole file system first: thousands of new queues have three names each."""
_SECONDS_AT_ONCE: Final = 0.005
"""A bound on the time of one call, however slow the disk is: senders wait meanwhile."""
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
"""A checkpoint is due after this many bytes of the log. Recovery reads them within a few seconds."""
_log = logging.getLogger(__name__)


class Checkpoint:
    """The files that must be durable before recovery can start at `offset`. `run` may go to another thread."""

    def __init__(
        self,
        state: StoreState,
        queues: QueueTable,
        offset: int,
        index: int,
        files: list[str],
        directories: list[str],
        ends: QueueEnds | None,
    ) -> None:
        self.offset = offset
        self.index = index
        self.ends = ends
        self.truncations = state.truncations
        self._state = state
        self._queues = queues
        self._files = files
        self._directories = directories

    def run(self) -> None:
        """Make the files durable; blocks on the disk. Raises OSError."""
        if len(self._files) >= _MANY_FILES:
            write_back(self._files[0])
        for path in self._files:
            sync_file(path)
        for path in self._directories:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(path)

    def requeue(self) -> None:
        """Leave the files of a failed run to the next checkpoint."""
        self._queues.unsynced.update(self._files)
        self._state.durable_names.difference_update(self._files)


class Checkpointer:
    """Keeps the recovery point of a store, on disk too."""

    def __init__(
        self,
        root: Path,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        epochs: EpochCache,
        indexer: Indexer,
        file: RecoveryPointFile,
        warnings: RateLimitedWarnings,
    ) -> None:
        self._background_writer: Callable[[Callable[[], None]], None] = _write_now
        self._root = root
        self._ends_path = root / "config" / queue_ends.NAME
        self._log = log
        self._ends: tuple[int, QueueEnds] | None = None
        """The ends of the queues of the last checkpoint, which wait until the log is durable so far, and the number of
        truncations before it.
        """
        self._state = state
        self._queues = queues
        self._index = index
        self._epochs = epochs
        self._indexer = indexer
        self._file = file
        self._warnings = warnings
        self._saved_ms = 0
        self._unsaved = False
        """The disk refused the last recovery point."""

    @property
    def due(self) -> bool:
        """Recovery would have to read more than `CHECKPOINT_BYTES`."""
        return self._state.confirmed - self._state.recovery_point.durable > CHECKPOINT_BYTES

    def set_background_writer(self, writer: Callable[[Callable[[], None]], None] | None) -> None:
        """Set the function that writes small files without a caller that waits; None: at once."""
        self._background_writer = writer or _write_now

    def run_periodic_tasks(self, now_ms: int) -> None:
        """Write out a bounded number of entries and save the recovery point; call it about ten times a second.

        A full disk is no error: the next call tries again.
        """
        some = max(_QUEUES_AT_ONCE, len(self._queues.dirty) // _PART_AT_ONCE)
        self._indexer.write_out(some, time.monotonic() + _SECONDS_AT_ONCE)
        second = now_ms - self._saved_ms >= _SAVE_INTERVAL_MS or now_ms < self._saved_ms
        index = self._index
        if index is not None:
            if not index.behind:
                index.drain()
            elif second or not index.stalled:
                # Three pieces a call are faster than new messages, and pieces with very many keys are few of them.
                # After a refusal the disk gets one try a second.
                until = time.monotonic() + _SECONDS_AT_ONCE
                for _ in range(3):
                    if not self._indexer.catch_up() or time.monotonic() > until:
                        break
            if index.gaps and not index.behind:
                self._fill_gaps()
        if second and self._state.unindexed:
            self._indexer.retry_unindexed()
        if second and not self._file.busy:
            self._saved_ms = now_ms
            self.save(durable=False, in_background=True)

    def _fill_gaps(self) -> None:
        until = time.monotonic() + _SECONDS_AT_ONCE
        for _ in range(8):
            self._indexer.fill_gap()
            if time.monotonic() > until:
                break

    def save(self, *, durable: bool, in_background: bool = False, again: bool = False) -> None:
        """Write the recovery point and RocketMQ's `checkpoint`; `again`: even if nothing has changed."""
        state = self._state
        ends = self._take_ends()
        if ends is not None:
            durable = True
            state.ends_offset = ends.offset
            higher = max(state.recovery_point.durable, ends.offset)
            state.recovery_point = replace(state.recovery_point, durable=higher)
            again = True
        point = self.current()
        if point == state.recovery_point and not again and not self._unsaved:
            return
        self._unsaved = False
        log_ms, index_ms = state.last_store_ms, self._index.end_ms if self._index is not None else 0
        path = self._root / "checkpoint"
        write = self._file.prepare(
            point,
            durable=durable,
            before=lambda: None if ends is None else ends.save(self._ends_path),
            after=lambda: save_checkpoint(path, log_ms, log_ms, index_ms),
        )
        state.recovery_point = point

        def run() -> None:
            try:
                write()
            except OSError as error:
                self._warnings.warn(f"cannot save {self._file.path}", error)
                self._unsaved = True
                if ends is not None and self._ends is None:
                    self._ends = (truncations, ends)

        truncations = state.truncations
        (self._background_writer if in_background else _write_now)(run)

    def _take_ends(self) -> QueueEnds | None:
        """Return the ends of the queues of the last checkpoint, once the log is durable so far and if it was not
        truncated.
        """
        if self._ends is None:
            return None
        truncations, ends = self._ends
        if truncations == self._state.truncations and ends.offset > self._state.flushed:
            return None
        self._ends = None
        return ends if truncations == self._state.truncations else None

    def save_clean(self) -> None:
        """Durably write the recovery point of a clean close. Raises OSError."""
        # Computed now: a full disk may have refused the last one.
        self._state.recovery_point = replace(self.current(), clean=True)
        self._file.prepare(self._state.recovery_point, durable=True)()

    def lower(self, point: RecoveryPoint) -> None:
        """Durably write a recovery point that claims less. Raises OSError."""
        if max(point.durable, point.written) < self._state.ends_offset:
            # The ends of the queues are no longer true. Without them, a start builds all queues from the log.
            self._ends = None
            self._file.lower(point, before=lambda: self._ends_path.unlink(missing_ok=True))
            self._state.ends_offset = 0
        else:
            self._file.lower(point)
        self._state.recovery_point = point

    def current(self) -> RecoveryPoint:
        """Return the recovery point of the store as it is now, without the mark of a clean close."""
        state = self._state
        before = state.recovery_point
        # Without the boot's name, the next start does not trust what the kernel still shows of a disk that failed.
        boot = "" if state.disk_untrusted else boot_id()
        if state.reset_in_progress:
            return RecoveryPoint(boot=boot)
        pending = self._queues.oldest_pending()
        # Entries in memory are lost with the process: the next start reads the log from the oldest of them on.
        written = state.confirmed if pending is None else min(pending, state.confirmed)
        return RecoveryPoint(
            boot=boot,
            clean=False,
            durable=before.durable,
            durable_index=before.durable_index,
            written=written if self._epochs_persisted() else before.written,
            written_index=state.confirmed if self._index is None else min(self._index.written, state.confirmed),
            flushed=state.flushed,
            confirmed=state.confirmed,
        )

    def _epochs_persisted(self) -> bool:
        """Whether recovery may start here: it learns the epochs of earlier records only from their file."""
        try:
            return self._epochs.persist()
        except OSError as error:
            self._warnings.warn(f"cannot write {self._epochs.path}", error)
            return False

    def write_some(self) -> int:
        """Write out some queues ahead of `checkpoint`; return how many. 0: few wait, or the disk refuses."""
        waiting = len(self._queues.dirty)
        if waiting <= _QUEUES_AT_ONCE:
            return 0
        self._indexer.write_out(_QUEUES_AT_ONCE, time.monotonic() + _SECONDS_AT_ONCE)
        return waiting - len(self._queues.dirty)

    def checkpoint(self) -> Checkpoint:
        """Write everything out; returns what `Checkpoint.run` must make durable."""
        state, queues, index = self._state, self._queues, self._index
        self._indexer.write_out(None)
        files = sorted(queues.unsynced)
        queues.unsynced.clear()
        index_at = state.confirmed
        if index is not None:
            if not index.behind:
                index.drain()
            files += sorted(index.unsynced)
            index.unsynced.clear()
            index_at = min(index.written, state.confirmed)
        directories: set[str] = set()
        for path in files:
            directory = os.path.dirname(path)
            if path not in state.durable_names:
                state.durable_names.add(path)
                directories.update((directory, os.path.dirname(directory), os.path.dirname(os.path.dirname(directory))))
        pending = queues.oldest_pending()
        offset = state.confirmed if pending is None else min(pending, state.confirmed)
        complete = pending is None and not state.unindexed
        ends = queues.ends(offset, self._log.start, self._indexer.steps) if complete else None
        return Checkpoint(state, queues, offset, index_at, files, sorted(directories), ends)

    def checkpointed(self, done: Checkpoint) -> None:
        """Record a checkpoint that has run. It does not count when a truncation came in between."""
        state = self._state
        before = state.recovery_point
        # After a truncation its files may have entries of records that are gone.
        if done.truncations == state.truncations and self._epochs_persisted():
            # A start trusts queues and log below this offset, so both have to be on the disk that far.
            offset = min(done.offset, state.flushed)
            state.recovery_point = replace(state.recovery_point, durable=offset, durable_index=min(done.index, offset))
            if done.ends is not None:
                self._ends = (done.truncations, done.ends)
        self.save(durable=True, in_background=True, again=state.recovery_point != before)

    def mark_failed(self, error: BaseException) -> None:
        """Take no more writes: after a failed write or fsync the content of the disk is unknown."""
        state = self._state
        if state.failed is None or (not state.disk_untrusted and makes_disk_untrusted(error)):
            _log.error("the disk of %s failed: %s", self._root, error)
            state.failed = error
            # Without fsync, which may fail as well: a start before the next boot of the machine reads it.
            self.save(durable=False, in_background=True)
            state.on_failed()


def _write_now(work: Callable[[], None]) -> None:
    work()
