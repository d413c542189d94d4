"""Filing what is confirmed: entries of consume queues, keys of the index, control records for who asked.

Also the tail, which waits for that, and the index when it has to read the log again.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PHYS_OFFSET_AT
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.files import sync_names
from gantry_broker.store.index.consume_queue import ConsumeQueue
from gantry_broker.store.index.key_index import BATCH
from gantry_broker.store.log.record_reader import FILLER_MIN, SIZE_AND_MAGIC
from gantry_broker.store.scrub import next_boundary, valid_prefix, verified_bytes
from gantry_broker.store.types import Confirmed
from gantry_broker.store.unconfirmed import Batch, parse

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_log = logging.getLogger(__name__)
_WRITE_OUT_AFTER: Final = 200_000
"""Entries that wait in memory at most before they are written out, whatever the timer does."""
_CATCH_UP: Final = 1 << 20
"""Bytes of the log that are read in one go to be filed again."""
_RETRIES_AT_ONCE: Final = 8
"""Places of which a call of `file_late` reads what lies there."""
WARN_AGAIN_S: Final = 60.0


def push_unconfirmed(store: MessageStore, batch: Batch) -> None:
    """A batch whose records were numbered elsewhere comes after the tail."""
    for queue, number, _ in batch.entries:
        queue.next = max(queue.next, number + 1)
    if batch.last_ms:
        store.last_store_ms = batch.last_ms
    store.unconfirmed.push(batch)


def read_batch(store: MessageStore, offset: int, data: bytes, *, keys: bool = True) -> Batch:
    """What a piece of our own log brings. Raises BadRecords when the disk no longer holds what it held."""
    batch = parse(
        offset,
        data,
        store.queues,
        store.log.segment_size,
        store.delays,
        check=False,
        keys=keys and store.index is not None,
    )
    if store.index is None:
        batch.keys = []
    return batch


def valid_batches(store: MessageStore, start: int, stop: int) -> Iterator[Batch]:
    """What [start, stop) of our own log brings, but for what cannot be read (`unfiled`): something is missing then
    between two batches. Raises OSError."""
    at, want, untrusted = start, _CATCH_UP, start
    while at < stop:
        if at >= untrusted:
            want = _CATCH_UP
        try:
            batch = read_batch(store, at, store.log.whole_records(at, want, stop))
        except (BadRecords, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EIO:
                raise
            if want > 1:
                want, untrusted = 1, at + _CATCH_UP  # What is sound before it comes one by one.
                continue
            _log.error("the record at %d cannot be filed: %s", at, error)
            store.unindexed[at] = boundary = next_boundary(store.log, at, stop)
            at, want = boundary, _CATCH_UP
            continue
        yield batch
        at = batch.end


def retry_unindexed(store: MessageStore) -> None:
    """What could not be read when a start had to file it: some that can be read now; `on_damage` is told of others."""
    for at in list(store.unindexed)[:_RETRIES_AT_ONCE]:
        stop = store.unindexed.pop(at)
        try:
            data = verified_bytes(store, at, min(stop - at, _CATCH_UP))
            fill_in(store, at, data)
            at += len(data)
        except OffsetGone:
            continue
        except (BadRecords, OSError) as error:
            if not isinstance(error, OSError) or error.errno == errno.EIO:
                store.on_damage(at)
        if at < stop:
            store.unindexed[at] = stop  # Next time others come first.


def fill_in(store: MessageStore, at: int, data: bytes) -> None:
    """File records that were damaged when it was their turn, where those after them have left blanks or none has come.

    Raises OSError.
    """
    touched: set[str] = set()
    try:
        for queue, number, entry in read_batch(store, at, data).entries:
            if number < queue.max:
                queue.fill_in(number, entry, touched)
            else:
                known = queue.next
                queue.add(number, entry)
                queue.next = max(known, queue.max)
                store.queues.dirty.setdefault(queue)
        sync_names(sorted(touched))
    except OSError:
        store.queues.unsynced |= touched
        raise


def confirm(store: MessageStore, offset: int, until: float = math.inf) -> Confirmed:
    """Records below `offset` cannot be undone any more: file them in queues and index.

    Ends early, after some of it, when it is later than `until` by `time.monotonic`, and at what cannot be read. Never
    goes back. Raises, and then it has filed nothing: ValueError above `end` or within a record; BadRecords; OSError.
    """
    if offset <= store.confirmed:
        return Confirmed(store.confirmed, [], [])
    if offset > store.log.end:
        raise ValueError(f"confirmed {offset} is above the end of the log at {store.log.end}")
    available: set[tuple[str, int]] = set()
    control: list[tuple[int, bytes]] = []
    unconfirmed = store.unconfirmed
    began = store.confirmed
    while store.confirmed < offset:
        batch = unconfirmed.pop(store.confirmed, offset)
        if batch is None:
            stop = min(offset, max(unconfirmed.first_start(offset), store.confirmed + 1))
            try:
                data = store.log.whole_records(store.confirmed, _CATCH_UP, stop)
                batch = read_batch(store, store.confirmed, data)
            except (BadRecords, ValueError, OSError):
                if store.confirmed == began:
                    raise
                break  # What was filed is to be told; the next call says why it goes no further.
        index_batch(store, batch, available)
        if batch.control:
            control += batch.control
        store.confirmed = batch.end
        if time.monotonic() >= until:
            break
    if store.queues.waiting > _WRITE_OUT_AFTER:
        write_out(store, None)
    if store.renumber and not unconfirmed.gaps(store.confirmed, store.log.end):
        _renumber(store)
    return Confirmed(store.confirmed, list(available), control)


def _renumber(store: MessageStore) -> None:
    """What had to make way in a queue may have had higher numbers than what came in its place."""
    for queue in store.queues:
        if queue.next >= 0:
            queue.next = queue.max
    for batch in store.unconfirmed.batches:
        for queue, number, _ in batch.entries:
            queue.next = max(queue.next, number + 1)
    store.renumber = False


def index_batch(store: MessageStore, batch: Batch, available: set[tuple[str, int]]) -> None:
    dirty = store.queues.dirty
    if batch.checked:
        for queue, _, entry in batch.entries:
            pending = queue.pending
            if not pending:
                dirty[queue] = None
            pending += entry
            available.add(queue.key)
    else:
        for queue, number, entry in batch.entries:
            known = queue.next  # With the tail's, which an empty queue's first entry must not take back.
            if queue.add(number, entry):
                store.renumber = True
                store.known_directories.clear()  # Files may come back by the names of those that went.
            queue.next = max(known, queue.max)
            if queue.pending:
                dirty.setdefault(queue)
            available.add(queue.key)
    store.queues.waiting += len(batch.entries)
    index = store.index
    if index is not None and not index.behind:
        if batch.keys is None:
            index.drain()
            index.behind = True
        else:
            index.pending += batch.keys
            index.position = batch.end
            if len(index.pending) >= BATCH:
                index.drain()


def check_boundary(store: MessageStore, offset: int) -> None:
    """A record or filler begins at `offset`, as it says itself. Raises ValueError."""
    room = store.log.room(offset)
    head = store.log.read(offset, min(PHYS_OFFSET_AT + 8, room))
    size, magic = SIZE_AND_MAGIC.unpack_from(head) if len(head) >= FILLER_MIN else (0, 0)
    if magic == MAGIC_BLANK and size == room:
        return
    if magic in (MAGIC_V1, MAGIC_V2) and int.from_bytes(head[PHYS_OFFSET_AT : PHYS_OFFSET_AT + 8]) == offset:
        return
    raise ValueError(f"no record begins at {offset}")


def truncate_unconfirmed(store: MessageStore, to: int) -> None:
    """Forget the batches at or above `to` and give their queue offsets back."""
    unconfirmed = store.unconfirmed
    touched: set[ConsumeQueue] = set()
    kept: list[Batch] = []
    for batch in unconfirmed.batches:
        touched.update(queue for queue, _, _ in batch.entries)
        if batch.start < to < batch.end:
            batch = batch.split(to)[0]
        if batch.end <= to:
            kept.append(batch)
    complete = not kept or all(a.end == b.start for a, b in pairwise(kept))
    complete = complete and (kept[0].start if kept else to) <= store.confirmed
    complete = complete and (kept[-1].end if kept else store.confirmed) == to
    unconfirmed.clear()
    shortened = list(touched if complete else store.queues)
    for queue in shortened:
        if queue.next >= 0:
            queue.next = queue.max
    if complete:
        for batch in kept:
            push_unconfirmed(store, batch)
    else:
        for offset, data in store.log.chunks(store.confirmed, to):
            push_unconfirmed(store, read_batch(store, offset, data))
    for queue in shortened:
        store.queues.apply_override(queue)


def write_out(store: MessageStore, limit: int | None, until: float | None = None) -> bool:
    """Move entries from memory to the queues' files: of so many queues, until then (of the monotonic clock).

    False when the disk has no room: they stay in memory.
    """
    try:
        store.queues.write_out(limit, until)
    except OSError as error:
        warn_rate_limited(store, "consume queues wait in memory", error)
        return False
    return True


def warn_rate_limited(store: MessageStore, what: str, error: OSError) -> None:
    """Logs what the disk refuses: what is tried again each second says so once a minute."""
    now, code = time.monotonic(), error.errno
    before, at = store.warned.get(what, (0, 0.0))
    if code != before or now - at >= WARN_AGAIN_S:
        store.warned[what] = (code, now)
        _log.warning("%s: %s", what, error)


def catch_up(store: MessageStore, limit: int | None = None) -> bool:
    """Let an index that is behind read a piece of the log, up to `limit` (a border; default: confirmed).

    False when it cannot go on or need not.
    """
    limit = store.confirmed if limit is None else limit
    index = store.index
    if index is None or not index.behind:
        return False
    index.position = max(index.position, store.log.start)
    if index.position >= limit:
        index.behind = False
        return False
    try:
        batch = read_batch(store, index.position, store.log.whole_records(index.position, _CATCH_UP, limit))
    except OSError as error:
        warn_rate_limited(store, f"the index waits at {index.position}", error)
        if error.errno == errno.EIO:
            store.on_damage(index.position)
        index.stalled = True
        return False
    except (BadRecords, ValueError):
        valid = valid_prefix(store, index.position, min(index.position + _CATCH_UP, limit))
        if not valid:
            index.stalled = True  # Until the record is mended.
            return False
        batch = read_batch(store, index.position, valid)
    index.behind = False
    index.pending += batch.keys or []
    index.position = batch.end
    if not index.drain():  # It is behind again, and has said so.
        return False
    index.behind = index.position < limit
    return index.behind
