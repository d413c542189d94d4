"""The whole state in parts, as a new leader reads it: of queues with many batches, and while they change."""

from __future__ import annotations

import random

import pytest
from gantry_broker.broker.pop.queue import CHUNK, Queue
from gantry_broker.broker.pop.records import Changes, apply_record, whole_state
from gantry_broker.broker.pop.state import PopState

KEY = ("G", "T", 0)


def _picture(queue: Queue) -> tuple[object, ...]:
    return list(queue.unfinished()), queue.count, queue.next, dict(queue.moved), dict(queue.diffs)


@pytest.mark.parametrize("finished", [0.01, 0.2, 0.6])
def test_a_new_leader_has_every_batch_of_a_long_queue(finished: float) -> None:
    numbers = random.Random(1)
    state, read = PopState(), PopState()
    changes, at = Changes(state), 0
    queue = changes.add(KEY, 0)

    def pop(batches: int) -> None:
        nonlocal at
        for number in range(batches):
            offsets = sorted(numbers.sample(range(at, at + 5), numbers.randint(1, 4)))
            at = offsets[-1] + 1
            changes.pop(queue, offsets, 1_000 + number, 5_000, at)

    def finish() -> None:
        for offset in list(queue.unfinished()):
            if numbers.random() < finished:
                changes.finish(queue, offset)
            elif numbers.random() < 0.01:
                changes.renew(queue, offset, 7_000, 9_000, False)

    pop(3 * CHUNK)
    finish()
    changes.take()  # What is before the base, no new leader reads.
    parts = whole_state(state)
    while True:
        if changes:
            list(apply_record(read, changes.take()))
        body = next(parts, None)
        if body is None:
            break
        list(apply_record(read, body))
        pop(20)
        if numbers.random() < 0.3:
            finish()
    assert _picture(read.queues[KEY]) == _picture(queue)
    assert len(read) == len(state)
