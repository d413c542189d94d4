"""What is in flight: a state machine over the records of the POP topic. Pure: time is an argument.

A queue of one group has a `next` offset, from which messages are popped, and the batches that were popped before and
are not finished. A batch is one pop: its first offset, a bit for each message that is not finished, when it was popped
and for how long. Its messages become visible together, unless a renewal moved one of them (`moved`).

Batches are in columns of numbers, some 1,000 in a chunk: 24 bytes a batch, found by bisection. When they become visible
is in a wheel of buckets of `BUCKET_MS`, 8 bytes a batch. So a change costs the same however much is in flight.

All changes are absolute, and a change for a message that is not in flight does nothing: a stretch of the log, applied
again from a base (`records.py`), gives the same state.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby, repeat
from operator import add, floordiv
from typing import Final, NamedTuple

from gantry_broker.broker.pop.order import Order
from gantry_broker.broker.pop.queue import CHUNK, MAX_OFFSET, Key, Part, Queue, offsets_of

BUCKET_MS: Final = 50
"""Messages become visible at most this much late."""
MAX_QUEUES: Final = 1 << 20
BATCH_BYTES: Final = 33
CHUNK_BYTES: Final = 700
MOVED_BYTES: Final = 330
DIFF_BYTES: Final = 120
QUEUE_BYTES: Final = 1_000
ENTRY_BYTES: Final = 9
_BATCH, _MOVED, _ORDER = 0, 1, 2


class Expired(NamedTuple):
    """A message whose invisible time is over."""

    queue: Queue
    offset: int
    suspended: bool
    """The delivery does not count as an attempt."""
    pop_ms: int


class Bucket:
    __slots__ = ("entries", "live")

    def __init__(self) -> None:
        self.entries = array("Q")
        self.live = 0


class PopState:
    """All queues, and when their messages become visible."""

    def __init__(self) -> None:
        self.queues: dict[Key, Queue] = {}
        self.expired_ms = 0
        """Messages visible again by this time may have gone to their retry topics, whatever the clock says."""
        self.latest_ms = 0
        """The latest time at which something of this began."""
        self._by_index: list[Queue | None] = []
        self._free: list[int] = []
        self._buckets: dict[int, Bucket] = {}
        self._heap: list[int] = []
        self._in_heap: set[int] = set()
        self._due: array[int] = array("Q")
        """Entries of buckets whose time has come."""
        self._entries = 0
        self._batches = 0
        self._chunks = 0
        self._moved = 0
        self._gaps = 0

    def __len__(self) -> int:
        """Messages in flight."""
        return sum(queue.in_flight for queue in self.queues.values())

    @property
    def batches(self) -> int:
        """Batches in memory, finished ones that were not removed yet included."""
        return self._batches

    @property
    def bytes(self) -> int:
        """The memory of all of this, approximately; rather too much than too little."""
        return (
            self._batches * BATCH_BYTES
            + self._chunks * CHUNK_BYTES
            + self._moved * MOVED_BYTES
            + self._gaps * DIFF_BYTES
            + self._entries * ENTRY_BYTES
            + len(self.queues) * QUEUE_BYTES
            + len(self._in_heap) * 300
        )

    # ---- changes

    def add(self, key: Key, next_offset: int) -> Queue:
        """Return a queue, which begins at that offset when it is new."""
        queue = self.queues.get(key)
        if queue is None:
            index = self._free.pop() if self._free else len(self._by_index)
            queue = self.queues[key] = Queue(key, index, next_offset)
            if index == len(self._by_index):
                self._by_index.append(queue)
            else:
                self._by_index[index] = queue
        return queue

    def pop(self, queue: Queue, offsets: Sequence[int], pop_ms: int, invisible_ms: int, next_offset: int) -> None:
        """Add a batch of 1 to 32 messages, and continue at `next_offset`."""
        if pop_ms > self.latest_ms:
            self.latest_ms = pop_ms
        start = offsets[0]
        if queue.chunks and start <= queue.chunks[-1].starts[-1]:
            if queue.place(start) is not None:
                return  # The log has it twice: in a part that was written later, too.
            self._insert(queue, offsets, pop_ms, invisible_ms)
        else:
            self._chunks += queue.append(offsets, pop_ms, invisible_ms)
            self._batches += 1
        if offsets[-1] - start != len(offsets) - 1:
            self._gaps += queue.spread(start, [offset - start for offset in offsets])
        queue.advance(next_offset)
        if queue.order is not None:
            queue.forget_ordered(offsets)
        self._schedule((pop_ms + invisible_ms), queue.index << 43 | start << 2)

    def _insert(self, queue: Queue, offsets: Sequence[int], pop_ms: int, invisible_ms: int) -> None:
        """Put a batch before later ones: messages of a former orderly pop."""
        start = offsets[0]
        part = Part(start, start + 1, [start], [pop_ms], [invisible_ms], [(1 << len(offsets)) - 1], [], [])
        self._replace(queue, part)

    def advance(self, queue: Queue, next_offset: int) -> None:
        """Continue at `next_offset`: a filter refused the messages before it, or they are gone."""
        queue.advance(next_offset)

    def finish(self, queue: Queue, offset: int) -> bool:
        """End a message's flight; returns False when it was not in flight."""
        if queue.order is not None and queue.order.has(offset):
            return self._finish_ordered(queue, offset)
        place_of = queue.place(offset)
        if place_of is None:
            return False
        at, place, number = place_of
        if queue.moved:
            moved = queue.take_move(offset)
            if moved is not None:
                self._moved -= 1
                self._unschedule(moved[0] + moved[1])
        if queue.finish(at, place, 1 << number, 1):
            self._finished(queue, at, place)
        return True

    def finish_bits(self, queue: Queue, base: int, bits: int) -> int:
        """`finish` for the offset `base` + n of each bit n; returns the bits of those that were in flight."""
        at = bisect_right(queue.firsts, base) - 1
        # A renewed message has an entry of its own in the wheel, which only `finish` takes out.
        if at >= 0 and queue.order is None and not queue.moved:
            chunk = queue.chunks[at]
            place = bisect_right(chunk.starts, base) - 1
            start = chunk.starts[place]
            if start not in queue.diffs:  # So all of its messages are one after the other.
                shift = base - start
                in_flight = chunk.bits[place] & bits << shift if shift < 32 else 0
                if in_flight >> shift == bits or base + bits.bit_length() <= queue.behind(at, place):
                    if in_flight and queue.finish(at, place, in_flight, in_flight.bit_count()):
                        self._finished(queue, at, place)
                    return in_flight >> shift
        done = 0
        for offset in offsets_of(base, bits):
            if self.finish(queue, offset):
                done |= 1 << offset - base
        return done

    def _finished(self, queue: Queue, at: int, place: int) -> None:
        chunk = queue.chunks[at]
        if queue.diffs:
            # A batch that begins at this offset after a reset must not inherit the distances.
            self._gaps -= queue.join(chunk.starts[place])
        self._unschedule(chunk.pops[place] + chunk.waits[place])
        # Finished batches stay until they are the most of a chunk: to remove each at once would move the others.
        if not chunk.live or len(chunk.starts) > 32 + 2 * chunk.live:
            batches, chunks = queue.drop_finished(at)
            self._batches -= batches
            self._chunks -= chunks

    def _finish_ordered(self, queue: Queue, offset: int) -> bool:
        """Acknowledge a message of an orderly pop; it is finished with the last one before it."""
        order = queue.order
        assert order is not None
        if not order.acknowledge(offset):
            return False
        queue.forget_ordered(())
        if queue.order is not None and order.visible:
            self._schedule(order.visible_ms(), queue.index << 43 | _ORDER)
        return True

    def renew(self, queue: Queue, offset: int, pop_ms: int, invisible_ms: int, suspended: bool) -> bool:
        """Make a message in flight visible at a new time; returns False when it is not in flight."""
        if queue.place(offset) is None:
            return False
        moved = queue.move(offset, pop_ms, invisible_ms, suspended)
        # The entry of the batch stays: it is of the batch's other messages.
        if moved is None:
            self._moved += 1
        else:
            self._unschedule(moved[0] + moved[1])
        self.latest_ms = max(self.latest_ms, pop_ms)
        self._schedule(pop_ms + invisible_ms, queue.index << 43 | offset << 2 | _MOVED)
        return True

    def order_pop(
        self,
        queue: Queue,
        offsets: Sequence[int],
        counts: Sequence[int],
        given: int,
        since_ms: int,
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
        next_offset: int,
    ) -> None:
        """Replace the messages of an orderly queue that are not finished; the first `given` are with a client now."""
        self.latest_ms = max(self.latest_ms, pop_ms)
        queue.advance(next_offset)
        if not offsets:
            queue.set_order(None)
        else:
            queue.set_order(Order(list(offsets), list(counts), given, since_ms, pop_ms, invisible_ms, attempt))
            self._schedule(pop_ms + invisible_ms, queue.index << 43 | _ORDER)

    def order_renew(self, queue: Queue, offset: int, visible_ms: int, suspended: bool) -> bool:
        """Make a message of an orderly pop visible at a new time; returns False when it is not in flight."""
        order = queue.order
        if order is None or not order.renew(offset, visible_ms, suspended):
            return False
        self._schedule(visible_ms, queue.index << 43 | _ORDER)
        return True

    def reset(self, queue: Queue, next_offset: int) -> None:
        """Forget what is in flight and continue at that offset."""
        self._forget(queue)
        queue.restart(next_offset)

    def drop(self, key: Key) -> None:
        """Forget a queue."""
        queue = self.queues.pop(key, None)
        if queue is not None:
            self._forget(queue)
            queue.clear()
            self._by_index[queue.index] = None
            self._free.append(queue.index)  # Entries of the old queue may name the new one: `due` compares times.

    def _forget(self, queue: Queue) -> None:
        """Take a queue out of the totals. Entries of the wheel stay until their time: they lead to nothing."""
        self._chunks -= len(queue.chunks)
        self._batches -= sum([len(chunk.starts) for chunk in queue.chunks])
        self._moved -= len(queue.moved)
        self._gaps -= len(queue.diffs)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself; for tests, since it looks at every message."""
        queues = list(self.queues.values())
        for key, queue in self.queues.items():
            assert queue.key == key, f"{key} has the queue {queue.key}"
            assert self._by_index[queue.index] is queue, f"{key} has another queue's index"
            queue.check_invariants()
        free = [index for index, queue in enumerate(self._by_index) if queue is None]
        assert sorted(self._free) == free, "an index is lost, or free twice"
        assert self._batches == sum(len(chunk.starts) for queue in queues for chunk in queue.chunks), "batches"
        assert self._chunks == sum(len(queue.chunks) for queue in queues), "chunks"
        assert self._moved == sum(len(queue.moved) for queue in queues), "renewals"
        assert self._gaps == sum(len(queue.diffs) for queue in queues), "batches with gaps"
        entries = [entry for bucket in self._buckets.values() for entry in bucket.entries]
        assert self._entries == len(entries) + len(self._due), "entries of the wheel"
        assert set(self._buckets) <= self._in_heap == set(self._heap), "a bucket whose time would never come"
        # Without an entry a message would stay invisible for ever.
        waiting = set(entries) | set(self._due)
        for queue in queues:
            index = queue.index << 43
            for chunk in queue.chunks:
                for start, bits in zip(chunk.starts, chunk.bits, strict=True):
                    left = [offset for offset in queue.offsets(start, bits) if offset not in queue.moved]
                    assert not left or index | start << 2 in waiting, f"batch {start} of {queue.key} never ends"
            for offset in queue.moved:
                assert index | offset << 2 | _MOVED in waiting, f"renewal {offset} of {queue.key} is not in the wheel"

    # ---- time

    def _schedule(self, visible_ms: int, entry: int) -> None:
        bucket = self._bucket(visible_ms // BUCKET_MS)
        bucket.entries.append(entry)
        bucket.live += 1
        self._entries += 1

    def _schedule_all(self, queue: Queue, part: Part) -> None:
        """`_schedule` for the batches of a part, many at once: neighbours mostly become visible together."""
        index = queue.index << 43
        entries = array("Q", [index | start << 2 for start in part.starts])
        begin = 0
        for number, same in groupby(map(floordiv, map(add, part.pops, part.waits), repeat(BUCKET_MS))):
            end = begin + len(list(same))
            bucket = self._bucket(number)
            bucket.entries.extend(entries[begin:end])
            bucket.live += end - begin
            begin = end
        self._entries += len(entries)

    def _bucket(self, number: int) -> Bucket:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = Bucket()
            if number not in self._in_heap:
                self._in_heap.add(number)
                heapq.heappush(self._heap, number)
        return bucket

    def _unschedule(self, visible_ms: int) -> None:
        """Note that one entry of a bucket leads to nothing; the bucket shrinks when most do."""
        number = visible_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        bucket.live -= 1
        size = len(bucket.entries)
        # A queue that is acknowledged at once would leave 8 bytes a batch here until the invisible time is over.
        if bucket.live <= 0 or size > 64 + 2 * bucket.live:
            bucket_of = self._bucket_of
            bucket.entries = array("Q", [entry for entry in bucket.entries if 0 <= bucket_of(entry) <= number])
            self._entries -= size - len(bucket.entries)
            bucket.live = len(bucket.entries)
            if not bucket.live:
                del self._buckets[number]

    def _bucket_of(self, entry: int) -> int:
        """Return the bucket in which an entry belongs; -1: it leads to nothing."""
        index, number, kind = entry >> 43, entry >> 2 & MAX_OFFSET, entry & 3
        queue = self._by_index[index]
        if queue is None:
            return -1
        if kind == _ORDER:
            return -1 if queue.order is None else queue.order.visible_ms() // BUCKET_MS
        if kind == _MOVED:
            moved = queue.moved.get(number)
            return -1 if moved is None else (moved[0] + moved[1]) // BUCKET_MS
        batch = queue.batch(number)
        if batch is None or not batch[0].bits[batch[1]]:
            return -1
        return batch[0].visible_ms(batch[1]) // BUCKET_MS

    def next_due(self) -> int | None:
        """Return when `due` has something next, Unix ms; None: nothing is in flight."""
        if self._due:
            return 0
        while self._heap and self._heap[0] not in self._buckets:
            self._in_heap.discard(heapq.heappop(self._heap))
        return (self._heap[0] + 1) * BUCKET_MS if self._heap else None

    def due(self, now_ms: int, most: int) -> tuple[list[Expired], list[Queue]]:
        """Return messages whose time is over, about `most`, and orderly queues that are not blocked any more.

        The caller finishes each message, or gives it back (`give_back`).
        """
        expired: dict[tuple[int, int], Expired] = {}
        unlocked: list[Queue] = []
        while len(expired) < most:
            if not self._due:
                while self._heap and (self._heap[0] + 1) * BUCKET_MS <= now_ms:
                    number = heapq.heappop(self._heap)
                    self._in_heap.discard(number)
                    bucket = self._buckets.pop(number, None)
                    if bucket is not None:
                        self._due = bucket.entries
                        break
                if not self._due:
                    break
                self._due.reverse()
            # From here on it is in no bucket: a message that the caller neither finishes nor gives back would never be
            # visible again.
            entry = self._due.pop()
            self._entries -= 1
            queue = self._by_index[entry >> 43]
            if queue is None:
                continue
            number, kind = entry >> 2 & MAX_OFFSET, entry & 3
            if kind == _MOVED:
                moved = queue.moved.get(number)
                # Entries of former renewals are here, too: only the time of the last one counts.
                if moved is not None and moved[0] + moved[1] <= now_ms:
                    expired[queue.index, number] = Expired(queue, number, moved[2], moved[0])
            elif kind == _ORDER:
                order = queue.order
                if order is not None and order.visible_ms() <= now_ms:
                    unlocked.append(queue)
            else:
                batch = queue.batch(number)
                if batch is None or batch[0].visible_ms(batch[1]) > now_ms:
                    continue  # The batch is finished, or another one begins at its offset since a reset.
                chunk, place = batch
                for offset in queue.offsets(number, chunk.bits[place]):
                    if offset not in queue.moved:
                        expired[queue.index, offset] = Expired(queue, offset, False, chunk.pops[place])
        return list(expired.values()), unlocked

    def give_back(self, expired: Expired, at_ms: int) -> None:
        """Let `due` return a message again at that time."""
        queue, offset = expired.queue, expired.offset
        if offset in queue.moved:
            entry = queue.index << 43 | offset << 2 | _MOVED
        else:
            place = queue.place(offset)
            if place is None:
                return
            entry = queue.index << 43 | queue.chunks[place[0]].starts[place[1]] << 2
        self._schedule(at_ms, entry)

    # ---- all of it, in parts

    def part(self, queue: Queue, low: int, most: int = CHUNK) -> Part:
        """Return the batches from the offset `low` on, at most `most`."""
        at = max(bisect_right(queue.firsts, low) - 1, 0)
        starts: list[int] = []
        pops: list[int] = []
        waits: list[int] = []
        bits: list[int] = []
        high = -1
        while at < len(queue.chunks) and len(starts) < most:
            chunk = queue.chunks[at]
            place = bisect_left(chunk.starts, low)
            end = place + most - len(starts)
            piece = chunk.cut(place, end)
            starts += piece.starts
            pops += piece.pops
            waits += piece.waits
            bits += piece.bits
            if end < len(chunk.starts):
                high = chunk.starts[end]
                break
            at += 1
            if at < len(queue.chunks) and len(starts) >= most:
                high = queue.firsts[at]
        diffs: list[tuple[int, Sequence[int]]] = []
        if queue.diffs:
            diffs = [(start, queue.diffs[start]) for start in starts if start in queue.diffs]
        moved: list[tuple[int, int, int, bool]] = []
        if queue.moved:
            for start, left in zip(starts, bits, strict=True):
                for offset in queue.offsets(start, left):
                    if offset in queue.moved:
                        moved.append((offset, *queue.moved[offset]))
        return Part(low, high, starts, pops, waits, bits, diffs, moved)

    def take_part(self, queue: Queue, part: Part) -> None:
        """Replace the batches of a part's range by those of the part."""
        self.latest_ms = max(self.latest_ms, max(part.pops, default=0))
        self._replace(queue, part)
        self._schedule_all(queue, part)
        for offset, pop_ms, wait, suspended in part.moved:
            self.renew(queue, offset, pop_ms, wait, suspended)

    def _replace(self, queue: Queue, part: Part) -> None:
        change = queue.replace(part)
        self._batches += change.batches
        self._chunks += change.chunks
        self._moved += change.moved
        self._gaps += change.gaps
