"""One queue of a group: the batches that were popped and are not finished, in columns of numbers.

`state.py` has all queues and schedules when their messages become visible. Pure: time is an argument.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, pairwise
from typing import Final, NamedTuple

from gantry_broker.broker.pop.order import Order

Key = tuple[str, str, int]
"""(group, topic, queue)."""
CHUNK: Final = 1_024
"""Batches of a full chunk."""
MAX_OFFSET: Final = (1 << 41) - 1
"""The highest queue offset that fits into an entry of the wheel of `state.py`."""


def offsets_of(base: int, bits: int) -> Iterator[int]:
    """Yield the offset `base` + n of each bit n."""
    while bits:
        low = bits & -bits
        yield base + low.bit_length() - 1
        bits ^= low


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
        # Only bits that are set may be given: `^` would bring a finished message back.
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
                return bits  # A client mostly acknowledges one whole pop: one comparison for all of it.
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
        # Only ever behind the last batch: `firsts` and `starts` stay sorted, and every search is a bisection.
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
        # Beside the columns: the other messages of the batch keep their time, and the bit still says that it flies.
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
        # Every search goes by `firsts`: it follows the first batch that is left.
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
