"""Ending the log earlier than it ends: everything that derives from it moves with it, durably (rule 5)."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gantry_broker.store.append import set_history, take_history
from gantry_broker.store.checkpoint import save_points
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.files import sync_names
from gantry_broker.store.indexing import check_border, shorten_tail
from gantry_broker.store.log.epochs import check_history, cut_history
from gantry_broker.store.recovery_point import Points, boot_id

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore


def cut(store: MessageStore, to: int) -> None:
    """See `MessageStore.cut`."""
    log = store.log
    if not log.start <= to <= log.end:
        raise OffsetGone(to, log.start, log.end)
    if to == log.end:
        return
    check_border(store, to)
    # First of all nothing may claim that there was more: a crash half way must not look like lost records.
    _lower_points(store, store.points.at_most(to))
    try:
        _cut(store, to)
    except OSError as error:
        # Cut in one place and not in another: only a start brings all of it together again.
        store.mark_failed(error)
        raise
    except (BadRecords, ValueError) as error:
        store.mark_failed(error)
        raise OSError(errno.EIO, f"the log cannot be read while it is cut: {error}") from error


def _cut(store: MessageStore, to: int) -> None:
    was_confirmed = store.confirmed
    store.flushed = min(store.flushed, to)
    store.confirmed = min(store.confirmed, to)
    store.log.cut(to)
    history = cut_history(store.history, to)
    if history != store.history:
        take_history(store, history)
    if to < was_confirmed or store.half_reset:
        store.cuts += 1
        store.tail.clear()
        store.unfiled = {at: min(stop, to) for at, stop in store.unfiled.items() if at < to}
        store.queues.cut(to)
        store.known_directories.clear()  # Files may come back by the names of those that go.
        if store.index is not None:
            store.index.cut(to)
            store.index.behind = store.index.position < to
    else:
        shorten_tail(store, to)
    if to == 0:
        store.half_reset = False  # What was to be emptied is empty.


def _lower_points(store: MessageStore, points: Points) -> None:
    store.points_file.lower(points)
    store.points = points


def reset(
    store: MessageStore, to: int, history: Sequence[tuple[int, int]], queue_starts: Mapping[tuple[str, int], int]
) -> None:
    """See `MessageStore.reset`."""
    if to < 0 or to % store.log.segment_size:
        raise ValueError(f"{to} is not the first offset of a segment of {store.log.segment_size} bytes")
    checked = check_history(history)
    _lower_points(store, Points(boot=boot_id()))
    store.cuts += 1
    set_history(store, ())
    store.half_reset = True
    store.tail.clear()
    store.flushed, store.confirmed = min(store.flushed, to), min(store.confirmed, to)
    # The log last: while it is there nobody goes on with what is left half way.
    store.queues.clear()
    if store.index is not None:
        store.index.clear(to)
    store.log.reset(to)
    store.flushed = store.confirmed = to
    store.known_directories.clear()
    store.renumber = False
    store.unfiled.clear()
    for (name, queue_id), number in queue_starts.items():
        store.queues.unsynced.update(store.queues.queue(store.queues.topic(name), queue_id).rebase(number))
    sync_names(sorted(store.queues.unsynced))
    store.queues.unsynced.clear()
    set_history(store, checked)
    store.half_reset = False
    save_points(store, durable=True)
