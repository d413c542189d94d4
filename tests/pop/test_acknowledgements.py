"""Acknowledgements of many messages at once do the same as one after the other, in the state and in the log."""

from __future__ import annotations

import random

import pytest
from gantry_broker.broker.pop.queue import Queue, offsets_of
from gantry_broker.broker.pop.records import Changes, apply_record
from gantry_broker.broker.pop.state import PopState

KEY = ("g", "T", 0)


def _filled(seed: int) -> tuple[PopState, Queue]:
    """A queue with batches of all kinds: with gaps, renewed messages, an orderly pop before them."""
    rng = random.Random(seed)
    state = PopState()
    queue = state.add(KEY, 0)
    if rng.random() < 0.3:
        state.order_pop(queue, [0, 1, 2], [0, 0, 0], 2, 1, 1, 1_000, None, 3)
    at = queue.next
    for number in range(rng.randint(1, 60)):
        at += rng.choice((0, 0, 0, 3))
        offsets = [at + n for n in range(rng.randint(1, 32)) if n == 0 or rng.random() < 0.95]
        state.pop(queue, offsets, 10 + number, 1_000, offsets[-1] + 1)
        at = offsets[-1] + 1
    for offset in list(queue.unfinished()):
        if rng.random() < 0.2:
            state.finish(queue, offset)
        elif seed % 3 == 0 and rng.random() < 0.05:
            state.renew(queue, offset, 100, 2_000, False)
    return state, queue


def _image(state: PopState) -> object:
    return {
        key: (queue.next, queue.count, queue.in_flight, list(queue.unfinished()), queue.diffs, queue.moved)
        for key, queue in state.queues.items()
    }


@pytest.mark.parametrize("seed", range(30))
def test_bits_finish_what_single_offsets_finish(seed: int) -> None:
    rng = random.Random(seed)
    (state, queue), (other, same) = _filled(seed), _filled(seed)
    for _ in range(200):
        base = rng.randrange(queue.next + 4)
        bits = rng.choice((1, 3, 0xFFFFFFFF, rng.getrandbits(32), rng.getrandbits(80))) or 1
        pop_ms = rng.choice((5, 40, 200))
        delivered = [offset for offset in offsets_of(base, bits) if same.is_delivered(offset, pop_ms)]
        assert list(offsets_of(base, queue.delivered_bits(base, bits, pop_ms))) == delivered
        done = [offset for offset in offsets_of(base, bits) if other.finish(same, offset)]
        assert list(offsets_of(base, state.finish_bits(queue, base, bits))) == done
        assert _image(state) == _image(other)
        assert state.batches >= other.batches - 64
    assert not queue.in_flight or list(queue.unfinished()) or queue.order is not None


@pytest.mark.parametrize("seed", range(30))
def test_the_log_has_acknowledgements_in_their_order(seed: int) -> None:
    """Also those of messages that were popped, or forgotten, within the same pass."""
    rng = random.Random(seed)
    state, read = PopState(), PopState()
    changes = Changes(state)
    queue = changes.add(KEY, 0)
    for number in range(300):
        what = rng.random()
        if what < 0.3:
            start = queue.next
            changes.pop(queue, range(start, start + rng.randint(1, 32)), number, 1_000, start + 32)
        elif what < 0.6 and queue.next:
            changes.finish_bits(queue, rng.randrange(queue.next), rng.getrandbits(rng.choice((1, 32, 70))))
        elif what < 0.95 and queue.next:
            at = rng.randrange(queue.next)
            for offset in range(at, at + 5):
                changes.finish(queue, offset)
        elif what > 0.99:
            changes.reset(queue, rng.randrange(queue.next + 1))
        if rng.random() < 0.1:
            list(apply_record(read, changes.take()))
            assert _image(read) == _image(state)


def test_acknowledgements_one_after_the_other_are_one_change() -> None:
    state = PopState()
    changes = Changes(state)
    queue = changes.add(KEY, 1_000_000)
    changes.pop(queue, range(1_000_000, 1_000_032), 1, 1_000, 1_000_032)
    changes.take()
    for offset in range(1_000_000, 1_000_032):
        assert changes.finish(queue, offset)
    single = changes.take()
    changes.pop(queue, range(1_000_032, 1_000_064), 1, 1_000, 1_000_064)
    changes.take()
    assert changes.finish_bits(queue, 1_000_032, 0xFFFFFFFF) == 0xFFFFFFFF
    assert len(single) == len(changes.take()) < 80
