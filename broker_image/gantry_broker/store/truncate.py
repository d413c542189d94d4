"""Ending the log earlier than it ends: everything that derives from it moves with it, durably (rule 5)."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gantry_broker.store.append import set_epochs, set_epochs_lazily
from gantry_broker.store.checkpoint import save_recovery_point
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.files import sync_names
from gantry_broker.store.indexing import check_boundary, truncate_unconfirmed
from gantry_broker.store.log.epochs import check_epochs, truncate_epochs
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore


def truncate(store: MessageStore, to: int) -> None:
    """See `MessageStore.cut`."""
    log = store.log
    if not log.start <= to <= log.end:
        raise OffsetGone(to, log.start, log.end)
    if to == log.end:
        return
    check_boundary(store, to)
    # First of all nothing may claim that there was more: a crash half way must not look like lost records.
    _lower_recovery_point(store, store.recovery_point.at_most(to))
    try:
        _truncate(store, to)
    except OSError as error:
        # Cut in one place and not in another: only a start brings all of it together again.
        store.mark_failed(error)
        raise
    except (BadRecords, ValueError) as error:
        store.mark_failed(error)
        raise OSError(errno.EIO, f"the log cannot be read while it is cut: {error}") from error


def _truncate(store: MessageStore, to: int) -> None:
    was_confirmed = store.confirmed
    store.flushed = min(store.flushed, to)
    store.confirmed = min(store.confirmed, to)
    store.log.truncate(to)
    epochs = truncate_epochs(store.epochs, to)
    if epochs != store.epochs:
        set_epochs_lazily(store, epochs)
    if to < was_confirmed or store.reset_in_progress:
        store.truncations += 1
        store.unconfirmed.clear()
        store.unindexed = {at: min(stop, to) for at, stop in store.unindexed.items() if at < to}
        store.queues.truncate(to)
        store.known_directories.clear()  # Files may come back by the names of those that go.
        if store.index is not None:
            store.index.truncate(to)
            store.index.behind = store.index.position < to
    else:
        truncate_unconfirmed(store, to)
    if to == 0:
        store.reset_in_progress = False  # What was to be emptied is empty.


def _lower_recovery_point(store: MessageStore, recovery_point: RecoveryPoint) -> None:
    store.recovery_point_file.lower(recovery_point)
    store.recovery_point = recovery_point


def reset(
    store: MessageStore, to: int, epochs: Sequence[tuple[int, int]], queue_starts: Mapping[tuple[str, int], int]
) -> None:
    """See `MessageStore.reset`."""
    if to < 0 or to % store.log.segment_size:
        raise ValueError(f"{to} is not the first offset of a segment of {store.log.segment_size} bytes")
    checked = check_epochs(epochs)
    _lower_recovery_point(store, RecoveryPoint(boot=boot_id()))
    store.truncations += 1
    set_epochs(store, ())
    store.reset_in_progress = True
    store.unconfirmed.clear()
    store.flushed, store.confirmed = min(store.flushed, to), min(store.confirmed, to)
    # The log last: while it is there nobody goes on with what is left half way.
    store.queues.clear()
    if store.index is not None:
        store.index.clear(to)
    store.log.reset(to)
    store.flushed = store.confirmed = to
    store.known_directories.clear()
    store.renumber = False
    store.unindexed.clear()
    for (name, queue_id), number in queue_starts.items():
        store.queues.unsynced.update(store.queues.queue(store.queues.topic(name), queue_id).rebase(number))
    sync_names(sorted(store.queues.unsynced))
    store.queues.unsynced.clear()
    set_epochs(store, checked)
    store.reset_in_progress = False
    save_recovery_point(store, durable=True)
