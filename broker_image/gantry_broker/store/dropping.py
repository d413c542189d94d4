"""Records that a deletion of their topic hides, and that come back when the deletion itself is undone.

The queues keep their numbers: in place of the entries are blanks, each with the offset of the log at which the deletion
lies and below which it hides records. When the log is cut to that offset or below, the deletion never was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gantry_broker.store.consumequeue import UNDONE, ConsumeQueue
from gantry_broker.store.files import NO_DESCRIPTORS, NO_ROOM, sync_names
from gantry_broker.store.filing import complain, fill_gap, sound_batches, write_out

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_log = logging.getLogger(__name__)


def drop_topic(store: MessageStore, topic: str, below: int) -> None:
    """See `MessageStore.drop_topic`."""
    store.dropping[topic] = max(below, store.dropping.get(topic, 0))
    drop_topics(store)


def drop_topics(store: MessageStore) -> None:
    """Blank what is to be shown no more; what the disk refuses waits for the next call."""
    table = store.queues
    for topic in [topic for topic in store.dropping if topic not in table.topics]:
        del store.dropping[topic]
    if not store.dropping or not _noted(store):
        return
    store.rewritten += 1
    for topic, below in list(store.dropping.items()):
        known = table.topics.get(topic)
        try:
            for queue_id in list(known.queues) if known else []:
                queue = table.find(topic, queue_id)
                if queue is not None:
                    queue.blank_before(below, table.unsynced)
                    table.dirty.pop(queue, None)
        except OSError as error:
            complain(store, f"topic {topic} is deleted, but not all of its queues", error)
        else:
            del store.dropping[topic]


def _noted(store: MessageStore) -> bool:
    """Written down before anything is hidden: of many files a power loss may leave some as they were."""
    if store.points.hiding:
        return True
    points = replace(store.points, hiding=True)
    try:
        store.points_file.lower(points)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS | NO_ROOM:
            complain(store, "deleted topics wait to be hidden", error)
        else:
            store.mark_failed(error)
        return False
    store.points = points
    return True


def undo_drops(store: MessageStore, end: int) -> None:
    """Show what deletions hid that the log, which ends at `end`, does not hold.

    The queues are filed again, from the first record of the log to what is confirmed; a start does it for all where it
    was interrupted. Deletions that stand have to be heard of again (`shown_again`). Raises OSError.
    """
    store.dropping = {topic: below for topic, below in store.dropping.items() if below < end}
    hidden = {queue: queue.hides_to() for queue in store.queues.loaded()}
    store.hidden_to = max((to for to in hidden.values() if to < end), default=-1)
    queues = {queue: None for queue, to in hidden.items() if to >= end}
    if not queues:
        return
    _log.warning(
        "deletions from %d on are undone: %d queues are filed again from %d to %d",
        end, len(queues), store.log.start, store.confirmed,
    )  # fmt: skip
    store.shown_again = True
    store.points = replace(store.points, clean=False, undoing=True, unheard=True)
    store.points_file.lower(store.points)
    ends = {queue: queue.max for queue in queues}
    _hide(queues, UNDONE)
    at, whole, refused = store.log.start, True, False
    for batch in sound_batches(store, at, store.confirmed, keys=False):
        whole, at = whole and batch.start == at, batch.end
        for queue, number, entry in batch.entries:
            if queue in queues:
                queue.add(number, entry)
                if queue.pending:
                    store.queues.dirty[queue] = None
        refused = not write_out(store, None)
        if refused:
            break
    whole = whole and at >= store.confirmed
    for queue, number in ends.items():
        if queue.shows_nothing:
            queue.rebase(0)  # Its next number is in the tail, or in a control record that is heard of again.
        elif not whole and not refused:
            fill_gap(store, queue, number)
        queue.next = queue.max
    if refused or not write_out(store, None):
        return  # The disk refuses them: the next start does it.
    sync_names(sorted(path for queue in queues for path in queue.files()))
    _hide(queues, 0)  # What is left are numbers of records that are not in the log any more.
    store.points, store.points_unsaved = replace(store.points, undoing=False), True


def _hide(queues: Iterable[ConsumeQueue], below: int) -> None:
    sync_names(sorted(path for queue in queues for path in queue.hide(below)))
