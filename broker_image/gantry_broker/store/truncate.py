"""Ends the log at an earlier offset, or empties it, together with everything that derives from it, durably (rule 5)."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from gantry_broker.store.checkpoint import Checkpointer
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.files import sync_names
from gantry_broker.store.index.key_index import KeyIndex
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.indexing import Indexer
from gantry_broker.store.log.commit_log import CommitLog
from gantry_broker.store.log.epochs import EpochCache, check_epochs, truncate_epochs
from gantry_broker.store.log.record_reader import HEAD_SIZE, begins_at
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id
from gantry_broker.store.removals import Removals
from gantry_broker.store.state import StoreState
from gantry_broker.store.unconfirmed import UnconfirmedBuffer


class Truncator:
    """Truncates or resets a store."""

    def __init__(
        self,
        state: StoreState,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        epochs: EpochCache,
        unconfirmed: UnconfirmedBuffer,
        indexer: Indexer,
        checkpointer: Checkpointer,
        removals: Removals,
    ) -> None:
        self._state = state
        self._log = log
        self._queues = queues
        self._index = index
        self._epochs = epochs
        self._unconfirmed = unconfirmed
        self._indexer = indexer
        self._checkpointer = checkpointer
        self._removals = removals

    def truncate(self, to: int) -> None:
        """End the log at `to`, with everything that derives from it, durably (rule 5).

        The caller decides whether a truncation below the confirmed offset is allowed (rule 3). Raises OffsetGone when
        `to` is not in the log, ValueError when it lies within a record, OSError.
        """
        log = self._log
        if not log.start <= to <= log.end:
            raise OffsetGone(to, log.start, log.end)
        if to == log.end:
            return
        if not begins_at(log.read(to, min(HEAD_SIZE, log.room(to))), to, log.room(to)):
            raise ValueError(f"no record begins at {to}")
        self._removals.settle()  # Queues look for their first file, and a new file may get the name of a removed one.
        # Lower the recovery point first: after a crash half way, the missing records must not look like damage.
        self._checkpointer.lower(self._state.recovery_point.at_most(to))
        try:
            self._truncate(to)
        except OSError as error:
            # One part is truncated and another is not: only recovery brings them together again.
            self._checkpointer.mark_failed(error)
            raise
        except (BadRecords, ValueError) as error:
            self._checkpointer.mark_failed(error)
            raise OSError(errno.EIO, f"the log cannot be read during its truncation: {error}") from error

    def _truncate(self, to: int) -> None:
        state, index = self._state, self._index
        was_confirmed = state.confirmed
        # Before the bytes go: after a failure half way they must not claim more than is left.
        state.flushed = min(state.flushed, to)
        state.confirmed = min(state.confirmed, to)
        self._log.truncate(to)
        epochs = truncate_epochs(self._epochs.epochs, to)
        if epochs != self._epochs.epochs:
            # An epoch too many in the file does no harm: the next start scans from here on, and drops it.
            self._epochs.set_lazily(epochs)
        # The files of queues and index have only confirmed records. A cut above them concerns the buffer alone.
        if to < was_confirmed or state.reset_in_progress:
            state.truncations += 1
            self._unconfirmed.clear()
            self._indexer.steps.truncate(to)
            state.unindexed = {at: min(stop, to) for at, stop in state.unindexed.items() if at < to}
            self._queues.truncate(to)
            state.durable_names.clear()  # New files may get the names of removed ones.
            if index is not None:
                index.truncate(to)
                index.behind = index.position < to
        else:
            self._indexer.truncate_unconfirmed(to)
        if to == 0:
            state.reset_in_progress = False  # The log is empty, as the reset wants it.

    def reset(
        self,
        to: int,
        epochs: Sequence[tuple[int, int]] = (),
        queue_starts: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Empty the log, durably, and continue it at `to`, the first offset of a segment.

        A follower does so when the leader no longer has the records that the follower needs. `epochs` and
        `queue_starts` come from the leader: the epochs up to `to`, and the first queue offset at or after `to` of every
        queue (`MessageStore.queue_starts` of a leader that starts at `to`). Raises ValueError, StoreError for
        impossible epochs, OSError.
        """
        state, queues = self._state, self._queues
        if to < 0 or to % self._log.segment_size:
            raise ValueError(f"{to} is not the first offset of a segment of {self._log.segment_size} bytes")
        checked = check_epochs(epochs)
        self._removals.settle()
        # A start after a kill in here must trust neither the queues nor the index.
        self._checkpointer.lower(RecoveryPoint(boot=boot_id()))
        state.truncations += 1
        self._epochs.set(())
        state.reset_in_progress = True
        self._unconfirmed.clear()
        self._indexer.steps.clear()
        state.flushed, state.confirmed = min(state.flushed, to), min(state.confirmed, to)
        # The log goes last: while it is there, no reader and no start uses a half-finished reset.
        queues.clear()
        if self._index is not None:
            self._index.clear(to)
        self._log.reset(to)
        state.flushed = state.confirmed = to
        state.durable_names.clear()
        state.renumber = False
        state.unindexed.clear()
        for (name, queue_id), number in (queue_starts or {}).items():
            queues.unsynced.update(queues.queue(queues.topic(name), queue_id).rebase(number))
        sync_names(sorted(queues.unsynced))
        queues.unsynced.clear()
        # After all files: a log without epochs is how a follower recognises a copy that was broken off.
        self._epochs.set(checked)
        state.reset_in_progress = False
        self._checkpointer.save(durable=True)
