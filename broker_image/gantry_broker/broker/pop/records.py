"""The records of the POP topic: changes of `PopState` in JSON, and all of the state in parts.

A record has the changes of one pass of the event loop: `q` names queues as [group, topic, queue], and each change in
`o` begins with its code and the place of its queue in `q`. Records expire with their segment, so the leader writes the
whole state again at times; the consumer offset of `POP_GROUP` in the POP topic is the first record of the last whole
state (the base). A new leader applies the records from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import orjson

from gantry_broker.broker.pop.queue import CHUNK, Key, Part, Queue
from gantry_broker.broker.pop.state import PopState

POP_GROUP: Final = "CID_RMQ_SYS_GANTRY_POP"
KIND: Final = "pop"

# [code, queue, ...]
POPPED: Final = 0
"""first offset, number of messages or their distances, pop time, invisible time, next offset"""
ADVANCED: Final = 1
"""next offset"""
FINISHED: Final = 10
"""pairs: an offset, and a bit n for the offset n behind it"""
RENEWED: Final = 3
"""offset, pop time, invisible time, suspended"""
ORDER: Final = 4
"""offsets, counts, given, first pop time of the attempt, pop time, invisible time, attempt, next offset"""
ORDER_RENEWED: Final = 5
"""offset, visible time, suspended"""
RESET: Final = 6
"""next offset"""
DROPPED: Final = 7
PART: Final = 8
"""low, high, next offset, first offsets, pop times, invisible times, bits, distances, renewals"""
EXPIRED: Final = 9
"""time: messages that were visible by then have gone to their retry topics (of any queue)"""

_WORD: Final = (1 << 32) - 1
Change = list[Any]


class Changes:
    """The changes of one pass, applied to the state as they come."""

    def __init__(self, state: PopState) -> None:
        self._state = state
        self._places: dict[Key, int] = {}
        self._changes: list[Change] = []
        self._finished: dict[Key, Change] = {}
        """The change that takes a queue's next acknowledgement: nothing else of the queue has changed since."""
        self.touched: dict[Key, Queue] = {}
        """Queues with changes."""

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def encode(self) -> bytes:
        """Return the record's body."""
        return orjson.dumps({"kind": KIND, "q": list(self._places), "o": self._changes})

    def take(self) -> bytes:
        """Return the record's body and begins the next record."""
        body = self.encode()
        self._places, self._changes, self._finished, self.touched = {}, [], {}, {}
        return body

    def _place(self, queue: Queue) -> int:
        key = queue.key
        self.touched[key] = queue
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._places)
        return place

    def add(self, key: Key, next_offset: int) -> Queue:
        """Make a queue that begins at that offset."""
        queue = self._state.add(key, next_offset)
        self._changes.append([ADVANCED, self._place(queue), next_offset])
        return queue

    def _begin(self, queue: Queue) -> int:
        """Return a queue's place for a change after which acknowledgements are changes of their own."""
        if self._finished:
            self._finished.pop(queue.key, None)
        return self._place(queue)

    def pop(self, queue: Queue, offsets: Sequence[int], pop_ms: int, invisible_ms: int, next_offset: int) -> None:
        self._state.pop(queue, offsets, pop_ms, invisible_ms, next_offset)
        start, count = offsets[0], len(offsets)
        shape: Any = count if offsets[-1] - start == count - 1 else [offset - start for offset in offsets]
        # `_begin`: an acknowledgement that comes later must not join a change before this one, or a reader of the log
        # would apply it too early, to nothing.
        self._changes.append([POPPED, self._begin(queue), start, shape, pop_ms, invisible_ms, next_offset])

    def advance(self, queue: Queue, next_offset: int) -> None:
        if next_offset > queue.next:
            self._state.advance(queue, next_offset)
            self._changes.append([ADVANCED, self._place(queue), next_offset])

    def finish(self, queue: Queue, offset: int) -> bool:
        if not self._state.finish(queue, offset):
            return False
        change = self._finished_of(queue)
        if len(change) > 2 and 0 <= (distance := offset - change[-2]) < 32:
            change[-1] |= 1 << distance
        else:
            change += (offset, 1)
        return True

    def finish_bits(self, queue: Queue, base: int, bits: int) -> int:
        """`finish` for the offset `base` + n of each bit n; returns the bits of those that were in flight."""
        done = self._state.finish_bits(queue, base, bits)
        if done:
            change, rest, at = self._finished_of(queue), done, base
            while rest:
                if word := rest & _WORD:
                    change += (at, word)
                rest >>= 32
                at += 32
        return done

    def _finished_of(self, queue: Queue) -> Change:
        change = self._finished.get(queue.key)
        if change is None:
            change = self._finished[queue.key] = [FINISHED, self._place(queue)]
            self._changes.append(change)
        return change

    def expire(self, queue: Queue, offset: int, now_ms: int) -> None:
        """Finishes a message whose time was over at `now_ms`."""
        if self.finish(queue, offset) and now_ms > self._state.expired_ms:
            self._state.expired_ms = now_ms
            self._changes.append([EXPIRED, self._place(queue), now_ms])

    def renew(self, queue: Queue, offset: int, pop_ms: int, invisible_ms: int, suspended: bool) -> None:
        if self._state.renew(queue, offset, pop_ms, invisible_ms, suspended):
            self._changes.append([RENEWED, self._place(queue), offset, pop_ms, invisible_ms, suspended])

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
        self._state.order_pop(queue, offsets, counts, given, since_ms, pop_ms, invisible_ms, attempt, next_offset)
        self._changes.append(
            [ORDER, self._begin(queue), offsets, counts, given, since_ms, pop_ms, invisible_ms, attempt, next_offset]
        )

    def order_renew(self, queue: Queue, offset: int, visible_ms: int, suspended: bool) -> None:
        if self._state.order_renew(queue, offset, visible_ms, suspended):
            self._changes.append([ORDER_RENEWED, self._place(queue), offset, visible_ms, suspended])

    def reset(self, queue: Queue, next_offset: int) -> None:
        self._state.reset(queue, next_offset)
        self._changes.append([RESET, self._begin(queue), next_offset])

    def drop(self, queue: Queue) -> None:
        self._changes.append([DROPPED, self._begin(queue)])
        del self.touched[queue.key]
        self._state.drop(queue.key)


def apply_record(state: PopState, body: bytes, hidden: frozenset[str] = frozenset()) -> Iterator[None]:
    """Apply a record's changes, with a pause after each. Leaves out the queues of `hidden` topics.

    Raises ValueError for a record that no broker has written.
    """
    value = orjson.loads(body)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        return
    keys: list[Key] = [(str(group), str(topic), int(queue)) for group, topic, queue in value["q"]]
    for change in value["o"]:
        key = keys[change[1]]
        # A topic that was created again must not get what was in flight in the deleted one.
        if key[1] not in hidden:
            apply_change(state, key, change)
        yield


def apply_change(state: PopState, key: Key, change: Change) -> None:
    """Apply one change."""
    code = change[0]
    if code == POPPED:
        start, shape, pop_ms, invisible_ms, next_offset = change[2:]
        offsets = range(start, start + shape) if isinstance(shape, int) else [start + distance for distance in shape]
        state.pop(state.add(key, start), offsets, pop_ms, invisible_ms, next_offset)
    elif code == FINISHED:
        queue = state.queues.get(key)
        if queue is not None:
            for base, bits in zip(change[2::2], change[3::2], strict=True):
                state.finish_bits(queue, base, bits)
    elif code == ADVANCED:
        state.advance(state.add(key, change[2]), change[2])
    elif code == RENEWED:
        queue = state.queues.get(key)
        if queue is not None:
            state.renew(queue, *change[2:])
    elif code == ORDER:
        state.order_pop(state.add(key, change[9]), *change[2:])
    elif code == ORDER_RENEWED:
        queue = state.queues.get(key)
        if queue is not None:
            state.order_renew(queue, *change[2:])
    elif code == RESET:
        state.reset(state.add(key, change[2]), change[2])
    elif code == DROPPED:
        state.drop(key)
    elif code == EXPIRED:
        state.expired_ms = max(state.expired_ms, change[2])
        state.latest_ms = max(state.latest_ms, change[2])
    elif code == PART:
        low, high, next_offset, starts, pops, waits, bits, diffs, moved = change[2:]
        queue = state.add(key, next_offset)
        state.advance(queue, next_offset)
        part = Part(low, high, list(accumulate(starts)), list(accumulate(pops)), waits, bits, diffs, moved)
        state.take_part(queue, part)


def whole_state(state: PopState) -> Iterator[bytes]:
    """Yield records with the whole state; it may change between two of them, whose changes the log has as well.

    Each record has what is there when it is taken. The caller writes all changes before it into the log first.
    """
    keys = list(state.queues)
    names: list[Key] = []
    changes: list[Change] = []
    size = 0
    for key in keys:
        low = 0
        while (queue := state.queues.get(key)) is not None:
            part = state.part(queue, low, _BATCHES)
            names.append(key)
            place = len(names) - 1
            fields = part._replace(starts=_distances(part.starts), pops=_distances(part.pops))
            changes.append([PART, place, *fields[:2], queue.next, *fields[2:]])
            if len(changes) == 1:
                changes.append([EXPIRED, place, state.expired_ms])
            size += 8 + len(part.starts) + len(part.moved)
            low = part.high
            if low < 0:
                order = queue.order
                if order is not None:
                    changes.append(
                        [ORDER, place, order.offsets, order.counts, order.given, order.since_ms, order.pop_ms,
                         order.invisible_ms, order.attempt, queue.next]
                    )  # fmt: skip
                    changes += [
                        [ORDER_RENEWED, place, offset, visible, offset in order.suspended]
                        for offset, visible in order.visible.items()
                    ]
                    if order.acked:
                        changes.append([FINISHED, place, *chain.from_iterable((at, 1) for at in sorted(order.acked))])
            if size >= _RECORD or (low < 0 and key == keys[-1]):
                yield orjson.dumps({"kind": KIND, "q": names, "o": changes})
                names, changes, size = [], [], 0
            if low < 0:
                break
    if changes:
        yield orjson.dumps({"kind": KIND, "q": names, "o": changes})


_RECORD: Final = 1_024
"""Batches and renewals of one record of the whole state, approximately."""
_BATCHES: Final = CHUNK
"""Batches of one part."""


def _distances(numbers: list[int]) -> list[int]:
    """Return each number's distance from the one before it, which are shorter."""
    return [later - earlier for earlier, later in zip([0, *numbers], numbers, strict=False)]
