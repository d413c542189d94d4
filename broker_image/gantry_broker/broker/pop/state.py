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
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, groupby, pairwise, repeat
from operator import add, floordiv
from typing import Final, NamedTuple

Key = tuple[str, str, int]
"""(group, topic, queue)."""

BUCKET_MS: Final = 50
"""Messages become visible at most this much late."""
CHUNK: Final = 1_024
"""Batches of a full chunk."""
MAX_QUEUES: Final = 1 << 20
MAX_OFFSET: Final = (1 << 41) - 1
"""The highest queue offset that fits into an entry of the wheel."""
BATCH_BYTES: Final = 33
CHUNK_BYTES: Final = 700
MOVED_BYTES: Final = 330
DIFF_BYTES: Final = 120
QUEUE_BYTES: Final = 1_000
ENTRY_BYTES: Final = 9
_BATCH, _MOVED, _ORDER = 0, 1, 2


def offsets_of(base: int, bits: int) -> Iterator[int]:
    """Yield the offset `base` + n of each bit n."""
    while bits:
        low = bits & -bits
        yield base + low.bit_length() - 1
        bits ^= low


class Expired(NamedTuple):
    """A message whose invisible time is over."""

    queue: Queue
    offset: int
    suspended: bool
    """The delivery does not count as an attempt."""
    pop_ms: int


class Order:
    """The messages of an orderly queue from the first unfinished one on; the first `given` of them are with a client.

    A message that is acknowledged before an earlier one stays: as in 5.5.0, when the time of the earlier one is over,
    both come again, so that the client can restore the order.
    """

    __slots__ = (
        "acked", "attempt", "counts", "given", "invisible_ms", "offsets", "pop_ms", "since_ms", "suspended", "visible",
    )  # fmt: skip

    def __init__(
        self,
        offsets: list[int],
        counts: list[int],
        given: int,
        since_ms: int,
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
    ) -> None:
        self.offsets = offsets
        self.counts = counts
        """Earlier deliveries of each message that ended without an acknowledgement."""
        self.given = given
        self.since_ms = since_ms
        """The first pop of the same attempt: a client may have popped more than once before it got an answer."""
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.attempt = attempt
        self.visible: dict[int, int] = {}
        """When a message that a renewal moved is visible."""
        self.suspended: set[int] = set()
        self.acked: set[int] = set()
        """Messages that are acknowledged while an earlier one is not. The next delivery forgets that."""

    @property
    def in_flight(self) -> int:
        return len(self.offsets) - len(self.acked)

    def visible_ms(self) -> int:
        """Return when the last unacknowledged message that is with a client becomes visible."""
        visible, usual, acked = self.visible, self.pop_ms + self.invisible_ms, self.acked
        with_client = self.offsets[: self.given]
        return max([visible.get(offset, usual) for offset in with_client if offset not in acked], default=0)

    def blocks(self, attempt: str | None, now_ms: int) -> bool:
        """Whether an orderly pop has to wait: messages are with a client, and not by the same attempt."""
        same = attempt is not None and self.attempt == attempt
        return not same and self.given > 0 and self.visible_ms() > now_ms

    def has(self, offset: int) -> bool:
        number = bisect_left(self.offsets, offset)
        return number < len(self.offsets) and self.offsets[number] == offset

    def remove(self, begin: int, count: int = 1) -> None:
        """Remove messages from the place `begin` on."""
        for offset in self.offsets[begin : begin + count]:
            self.visible.pop(offset, None)
            self.suspended.discard(offset)
            self.acked.discard(offset)
        del self.offsets[begin : begin + count]
        del self.counts[begin : begin + count]
        self.given -= max(min(self.given - begin, count), 0)

    def acknowledge(self, offset: int) -> bool:
        """Note that a message is acknowledged; return False when it already was. `forget` removes it in its turn."""
        if offset in self.acked:
            return False
        self.acked.add(offset)
        return True

    def renew(self, offset: int, visible_ms: int, suspended: bool) -> bool:
        """Make a message visible at a new time; return False when it is not with a client."""
        if offset not in self.offsets[: self.given] or offset in self.acked:
            return False
        self.visible[offset] = visible_ms
        if suspended:
            self.suspended.add(offset)
        else:
            self.suspended.discard(offset)
        return True

    def forget(self, offsets: Iterable[int]) -> None:
        """Remove messages, and then those at the beginning that are acknowledged."""
        for offset in offsets:
            if self.has(offset):
                self.remove(bisect_left(self.offsets, offset))
        done = 0
        while done < len(self.offsets) and self.offsets[done] in self.acked:
            done += 1
        self.remove(0, done)

    def check_invariants(self) -> None:
        """Raise AssertionError if the columns contradict each other."""
        assert self.offsets == sorted(set(self.offsets)), "offsets do not rise"
        assert len(self.counts) == len(self.offsets)
        assert 0 <= self.given <= len(self.offsets)
        # A queue drops an empty order. Its first message is not acknowledged: the consumer offset is there.
        assert self.offsets
        assert self.offsets[0] not in self.acked
        assert {*self.acked, *self.suspended, *self.visible} <= set(self.offsets), "notes on messages that are gone"

    def is_delivered(self, offset: int, pop_ms: int) -> bool:
        """Return whether a handle with that pop time is of a message's present delivery."""
        first, last = sorted((self.since_ms, self.pop_ms))
        present = first <= pop_ms <= last
        return present and offset in self.offsets[: self.given]

    def again(self, same_attempt: bool) -> list[tuple[int, int]]:
        """Return (offset, count) of all messages as the next pop gives them."""
        out = []
        for number, (offset, count) in enumerate(zip(self.offsets, self.counts, strict=True)):
            counts = number < self.given and not same_attempt and offset not in self.suspended
            out.append((offset, count + counts))
        return out


class Chunk:
    """Batches in rising order of their first offsets. Finished ones stay until `Queue` removes them together.

    The four columns have the same length: row n is batch n. `live` is the number of rows with bits; to add a row or to
    clear its last bit without it would make the queue forget a batch, or keep finished ones for ever.
    """

    __slots__ = ("bits", "first", "live", "pops", "starts", "waits")

    def __init__(self) -> None:
        self.starts = array("q")
        self.pops = array("q")
        self.waits = array("I")
        self.bits = array("I")
        self.first = 0
        """Batches before this place are finished."""
        self.live = 0

    @classmethod
    def of(cls, starts: Sequence[int], pops: Sequence[int], waits: Sequence[int], bits: Sequence[int]) -> Chunk:
        """Return a chunk of unfinished batches."""
        chunk = cls()
        chunk.starts, chunk.pops = array("q", starts), array("q", pops)
        chunk.waits, chunk.bits = array("I", waits), array("I", bits)
        chunk.live = len(chunk.starts)
        return chunk

    def append(self, start: int, pop_ms: int, invisible_ms: int, bits: int) -> None:
        """Add a batch behind all others."""
        self.starts.append(start)
        self.pops.append(pop_ms)
        self.waits.append(invisible_ms)
        self.bits.append(bits)
        self.live += 1

    def finish(self, place: int, bits: int) -> bool:
        """Clear these bits of a batch, which are set; return whether it has none left."""
        left = self.bits[place] ^ bits
        self.bits[place] = left
        if left:
            return False
        self.live -= 1
        return True

    def place_of(self, start: int) -> int | None:
        """Return the place of the batch that begins there."""
        place = bisect_left(self.starts, start)
        return place if place < len(self.starts) and self.starts[place] == start else None

    def visible_ms(self, place: int) -> int:
        return self.pops[place] + self.waits[place]

    def check_invariants(self) -> None:
        """Raise AssertionError if the columns contradict each other."""
        size = len(self.starts)
        assert len(self.pops) == len(self.waits) == len(self.bits) == size > 0, "columns of different lengths"
        assert all(a < b for a, b in pairwise(self.starts)), "batches do not rise"
        assert self.live == sum(1 for bits in self.bits if bits) > 0, "wrong number of unfinished batches"
        assert not any(self.bits[: self.first]), "an unfinished batch is before `first`"

    def cut(self, low: int, high: int) -> Chunk:
        """Return the unfinished batches in a range of places."""
        out = Chunk()
        bits = self.bits[low:high]
        for name in ("starts", "pops", "waits", "bits"):
            column = getattr(self, name)
            setattr(out, name, array(column.typecode, compress(column[low:high], bits)))
        out.live = len(out.bits)
        return out


class Change(NamedTuple):
    """By how much `PopState` has to correct its totals after a change of a queue."""

    batches: int
    chunks: int
    moved: int
    gaps: int


class Queue:
    """One queue of one group.

    Its chunks and `firsts`, the distances (`diffs`), the renewals (`moved`) and `count` speak of the same messages: no
    other class changes them.
    """

    __slots__ = ("chunks", "committed", "count", "diffs", "firsts", "index", "key", "moved", "next", "order")

    def __init__(self, key: Key, index: int, next_offset: int) -> None:
        self.key = key
        self.index = index
        self.next = next_offset
        self.chunks: list[Chunk] = []
        self.firsts: list[int] = []
        """The first offset of each chunk."""
        self.count = 0
        """Messages in flight, without those of an orderly pop."""
        self.diffs: dict[int, tuple[int, ...]] = {}
        """First offset of a batch to the distances of its messages from it, when they are not one after the other."""
        self.moved: dict[int, tuple[int, int, bool]] = {}
        """Offset to (pop time, invisible time, suspended) of the last renewal."""
        self.order: Order | None = None
        self.committed = -1
        """The consumer offset that was last committed for this queue."""

    @property
    def in_flight(self) -> int:
        return self.count + (0 if self.order is None else self.order.in_flight)

    def lowest(self) -> int:
        """Return the lowest offset that is not finished: the group's consumer offset."""
        if self.chunks:
            chunk = self.chunks[0]
            bits, place = chunk.bits, chunk.first
            while not bits[place]:
                place += 1
            chunk.first = place  # Bits are only ever cleared, so no later call has to look before it.
            low = self.offset_of(chunk.starts[place], (bits[place] & -bits[place]).bit_length() - 1)
            return low if self.order is None else min(low, self.order.offsets[0])
        return self.next if self.order is None else self.order.offsets[0]

    def offset_of(self, start: int, number: int) -> int:
        """Return the offset of a batch's message."""
        diffs = self.diffs.get(start)
        return start + (number if diffs is None else diffs[number])

    def place(self, offset: int) -> tuple[int, int, int] | None:
        """Return (chunk, place in it, number in the batch) of an unfinished message; None: it is not in flight."""
        at = bisect_right(self.firsts, offset) - 1
        if at < 0:
            return None
        chunk = self.chunks[at]
        place = bisect_right(chunk.starts, offset) - 1
        start = chunk.starts[place]
        number = offset - start
        diffs = self.diffs.get(start)
        if diffs is not None:
            at_diff = bisect_left(diffs, number)
            if at_diff == len(diffs) or diffs[at_diff] != number:
                return None
            number = at_diff
        # The batch is the last one that begins at or before the offset, which may lie behind its at most 32 messages.
        if number >= 32 or not chunk.bits[place] >> number & 1:
            return None
        return at, place, number

    def is_delivered(self, offset: int, pop_ms: int) -> bool:
        """Return whether a handle with that pop time is of a message's present delivery.

        A delivery has its first handle and one for each renewal. All of them count: a renewal's answer may be lost, or
        known to a proxy alone that has died since.
        """
        place = self.place(offset)
        if place is None:
            return False
        return pop_ms >= self.chunks[place[0]].pops[place[1]]

    def visible_ms(self, offset: int) -> int:
        """Return when a message in flight becomes visible; 0: it is not in flight."""
        place = self.place(offset)
        if place is None:
            return 0
        moved = self.moved.get(offset)
        if moved is not None:
            return moved[0] + moved[1]
        chunk = self.chunks[place[0]]
        return chunk.pops[place[1]] + chunk.waits[place[1]]

    def delivered_bits(self, base: int, bits: int, pop_ms: int) -> int:
        """`is_delivered` for the offset `base` + n of each bit n, which are mostly those of one batch."""
        at = bisect_right(self.firsts, base) - 1
        if at >= 0:
            chunk = self.chunks[at]
            place = bisect_right(chunk.starts, base) - 1
            start = chunk.starts[place]
            in_flight = not bits & ~chunk.bits[place] and start not in self.diffs
            if base == start and in_flight and pop_ms >= chunk.pops[place]:
                return bits
        return sum([1 << at - base for at in offsets_of(base, bits) if self.is_delivered(at, pop_ms)])

    def renewal_ms(self, offset: int, now_ms: int) -> int:
        """Return the pop time of a renewal's handle: not before the delivery began, whatever the clock says."""
        place = self.place(offset)
        return now_ms if place is None else max(now_ms, self.chunks[place[0]].pops[place[1]])

    def batch(self, start: int) -> tuple[Chunk, int] | None:
        """Return the chunk and the place of the batch that begins there, finished or not."""
        at = bisect_right(self.firsts, start) - 1
        if at < 0:
            return None
        place = self.chunks[at].place_of(start)
        return None if place is None else (self.chunks[at], place)

    def behind(self, at: int, place: int) -> int:
        """Return where the batch after this one begins."""
        starts = self.chunks[at].starts
        if place + 1 < len(starts):
            return starts[place + 1]
        return self.firsts[at + 1] if at + 1 < len(self.firsts) else MAX_OFFSET + 1

    def advance(self, next_offset: int) -> None:
        """Continue at `next_offset`, unless the queue is there or beyond."""
        if next_offset > self.next:
            self.next = next_offset

    def append(self, offsets: Sequence[int], pop_ms: int, invisible_ms: int) -> bool:
        """Add a batch behind all others; return whether a new chunk begins with it."""
        start, count = offsets[0], len(offsets)
        begins = not self.chunks or len(self.chunks[-1].starts) >= CHUNK
        if begins:
            self.chunks.append(Chunk())
            self.firsts.append(start)
        self.chunks[-1].append(start, pop_ms, invisible_ms, (1 << count) - 1)
        self.count += count
        return begins

    def spread(self, start: int, distances: Sequence[int]) -> bool:
        """Note the distances of a batch whose messages are not one after the other; return whether that is new."""
        new = start not in self.diffs
        self.diffs[start] = tuple(distances)
        return new

    def finish(self, at: int, place: int, bits: int, count: int) -> bool:
        """End the flight of `count` messages of a batch, set bits; return whether the batch is finished."""
        self.count -= count
        return self.chunks[at].finish(place, bits)

    def move(self, offset: int, pop_ms: int, invisible_ms: int, suspended: bool) -> tuple[int, int, bool] | None:
        """Renew a message in flight; return its last renewal."""
        before = self.moved.get(offset)
        self.moved[offset] = (pop_ms, invisible_ms, suspended)
        return before

    def take_move(self, offset: int) -> tuple[int, int, bool] | None:
        """Forget the renewal of a message that is finished, and return it."""
        return self.moved.pop(offset, None)

    def join(self, start: int) -> bool:
        """Forget the distances of a finished batch; return whether it had some."""
        return self.diffs.pop(start, None) is not None

    def set_order(self, order: Order | None) -> None:
        """Replace the messages of an orderly queue that are not finished."""
        self.order = order

    def restart(self, next_offset: int) -> None:
        """Forget what is in flight, and continue at that offset."""
        self.clear()
        self.next = next_offset

    def replace(self, part: Part) -> Change:
        """Put the columns of a part in the place of the batches of its range. Their renewals are not of the part."""
        gaps = sum([self.spread(start, distances) for start, distances in part.diffs])
        moved = 0
        chunks, low, high = self.chunks, part.low, part.high
        first = max(bisect_right(self.firsts, low) - 1, 0)
        if chunks and chunks[first].starts[-1] < low:
            first += 1
        last = len(chunks) if high < 0 else bisect_left(self.firsts, high)
        new: list[Chunk] = []
        tail: Chunk | None = None
        kept = set(part.starts) if first < last else ()
        for at in range(first, last):
            chunk = chunks[at]
            begin = bisect_left(chunk.starts, low)
            end = len(chunk.starts) if high < 0 else bisect_left(chunk.starts, high)
            # Only the first and the last chunk have batches outside the range. They stay, without finished ones.
            before, out, after = chunk.cut(0, begin), chunk.cut(begin, end), chunk.cut(end, len(chunk.starts))
            if before.live:
                new.append(before)
            if after.live:
                tail = after
            for start, bits in zip(out.starts, out.bits, strict=True):
                self.count -= bits.bit_count()
                for offset in self.offsets(start, bits) if self.moved else ():
                    if self.moved.pop(offset, None) is not None:
                        moved -= 1
                # Those of the part's own batches have been noted above: here they would be lost again.
                if start not in kept and self.diffs.pop(start, None) is not None:
                    gaps -= 1
        for begin in range(0, len(part.starts), CHUNK):
            end = begin + CHUNK
            new.append(
                Chunk.of(part.starts[begin:end], part.pops[begin:end], part.waits[begin:end], part.bits[begin:end])
            )
        if tail is not None:
            new.append(tail)
        batches = sum([c.live for c in new]) - sum([len(c.starts) for c in chunks[first:last]])
        change = Change(batches, len(new) - (last - first), moved, gaps)
        chunks[first:last] = new
        self.firsts[first:last] = [chunk.starts[0] for chunk in new]
        self.count += sum(map(int.bit_count, part.bits))
        return change

    def drop_finished(self, at: int) -> tuple[int, int]:
        """Remove the finished batches of a chunk; return how many batches and chunks went."""
        chunk = self.chunks[at]
        size = len(chunk.starts)
        if not chunk.live:
            del self.chunks[at], self.firsts[at]
            return size, 1
        less = chunk.cut(0, size)
        self.chunks[at], self.firsts[at] = less, less.starts[0]
        return size - less.live, 0

    def clear(self) -> None:
        """Forget what is in flight."""
        self.chunks, self.firsts, self.diffs, self.moved = [], [], {}, {}
        self.count = 0
        self.order = None

    def forget_ordered(self, offsets: Iterable[int]) -> None:
        """Remove messages from the orderly ones, and then those at the beginning that are acknowledged."""
        if self.order is not None:
            self.order.forget(offsets)
            if not self.order.offsets:
                self.order = None

    def check_invariants(self) -> None:
        """Raise AssertionError if the queue contradicts itself; for tests, since it looks at every message."""
        for chunk in self.chunks:
            chunk.check_invariants()
        assert self.firsts == [chunk.starts[0] for chunk in self.chunks], "`firsts` is not of these chunks"
        assert all(a.starts[-1] < b.starts[0] for a, b in pairwise(self.chunks)), "chunks overlap"
        in_flight = list(self.unfinished())
        assert self.count == len(in_flight) == len(set(in_flight)), f"counts {self.count}, has {len(in_flight)}"
        batches = {start for chunk in self.chunks for start, bits in zip(chunk.starts, chunk.bits, strict=True) if bits}
        assert set(self.diffs) <= batches, "distances of batches that are finished"
        assert set(self.moved) <= set(in_flight), "renewals of messages that are not in flight"
        assert all(offset < self.next for offset in in_flight), "a message from `next` on is in flight"
        if self.order is not None:
            self.order.check_invariants()
            assert not set(self.order.offsets) & set(in_flight), "in flight twice: orderly and not"

    def offsets(self, start: int, bits: int) -> Iterator[int]:
        """Yield the unfinished offsets of a batch."""
        diffs = self.diffs.get(start)
        while bits:
            low = bits & -bits
            number = low.bit_length() - 1
            yield start + (number if diffs is None else diffs[number])
            bits ^= low

    def unfinished(self) -> Iterator[int]:
        """Yield all unfinished offsets in rising order, without those of an orderly pop."""
        for chunk in self.chunks:
            for start, bits in zip(chunk.starts, chunk.bits, strict=True):
                yield from self.offsets(start, bits)


class Bucket:
    __slots__ = ("entries", "live")

    def __init__(self) -> None:
        self.entries = array("Q")
        self.live = 0


class Part(NamedTuple):
    """Some batches of a queue: all that it has from `low` on, below `high`; -1: to its end."""

    low: int
    high: int
    starts: list[int]
    pops: list[int]
    waits: list[int]
    bits: list[int]
    diffs: list[tuple[int, Sequence[int]]]
    """(first offset, distances) of batches with gaps."""
    moved: list[tuple[int, int, int, bool]]
    """(offset, pop time, invisible time, suspended)."""


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
            self._free.append(queue.index)

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
            entry = self._due.pop()
            self._entries -= 1
            queue = self._by_index[entry >> 43]
            if queue is None:
                continue
            number, kind = entry >> 2 & MAX_OFFSET, entry & 3
            if kind == _MOVED:
                moved = queue.moved.get(number)
                if moved is not None and moved[0] + moved[1] <= now_ms:
                    expired[queue.index, number] = Expired(queue, number, moved[2], moved[0])
            elif kind == _ORDER:
                order = queue.order
                if order is not None and order.visible_ms() <= now_ms:
                    unlocked.append(queue)
            else:
                batch = queue.batch(number)
                if batch is None or batch[0].visible_ms(batch[1]) > now_ms:
                    continue
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
