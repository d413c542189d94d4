"""Costly work shares the event loop with everything else, whatever asks for it."""

from __future__ import annotations

import asyncio

from gantry_broker.timeslice import GRANT_S, SLICE_S, TimeSlices


class Clock:
    """Time that only work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def passes(slices: TimeSlices, done: list[int], wanted: int) -> list[int]:
    """How many steps each pass of the loop did until all were done."""
    counts = []
    before = len(done)
    while len(done) < wanted:
        await asyncio.sleep(0)
        counts.append(len(done) - before)
        before = len(done)
    return counts


async def test_a_pass_does_one_slice_of_work_and_the_rest_later_in_order() -> None:
    clock, done = Clock(), list[int]()
    slices = TimeSlices(clock)

    def step(number: int) -> None:
        clock.now += SLICE_S / 3.9
        done.append(number)

    for number in range(20):
        ran = slices.run(lambda n=number: step(n))  # type: ignore[misc]
        assert ran == (number < 4)
    assert done == [0, 1, 2, 3]
    counts = await passes(slices, done, 20)
    assert done == list(range(20))
    assert max(counts) <= 4, "no pass does more than its slice"
    await asyncio.sleep(0)
    assert slices.left_s == SLICE_S
    assert len(slices) == 0


async def test_one_step_that_is_longer_than_a_slice_is_measured_and_the_next_waits() -> None:
    clock, ran = Clock(), list[float]()
    slices = TimeSlices(clock)
    slices.on_ran = ran.append

    def long() -> None:
        clock.now += 0.2

    assert slices.run(long)
    assert not slices.run(long)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == [0.2, 0.2] or [round(r, 3) for r in ran] == [0.2, 0.2]


async def test_coroutines_that_go_over_many_things_take_turns() -> None:
    clock = Clock()
    slices = TimeSlices(clock)
    seen: list[tuple[str, int]] = []

    async def go_over(name: str) -> None:
        async for number in slices.sliced(range(40)):
            clock.now += GRANT_S / 4
            seen.append((name, number))

    tasks = [asyncio.create_task(go_over(name)) for name in "ab"]
    most = 0
    while not all(task.done() for task in tasks):
        before = clock.now
        await asyncio.sleep(0)
        most = max(most, round((clock.now - before) / GRANT_S))
    assert len(seen) == 80
    assert most * GRANT_S <= 2 * SLICE_S, "a look may lie across two passes"
    first = [name for name, _ in seen[:40]]
    assert {"a", "b"} == set(first), "neither waits until the other has ended"


async def test_a_cancelled_waiting_coroutine_delays_no_other() -> None:
    clock = Clock()
    slices = TimeSlices(clock)

    def long() -> None:
        clock.now += 1.0

    slices.run(long)
    slices.run(long)
    gone = asyncio.create_task(slices.grant())
    next_one = asyncio.create_task(slices.grant())
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(5):
        await next_one
    assert gone.cancelled()


async def test_a_step_that_waited_has_time_left_although_others_still_wait() -> None:
    clock = Clock()
    slices = TimeSlices(clock)
    left: list[float] = []

    def step() -> None:
        left.append(slices.left_s)
        clock.now += SLICE_S

    for _ in range(3):
        slices.run(step)
    async with asyncio.timeout(5):
        while len(left) < 3:  # noqa: ASYNC110 (one pass after the other)
            await asyncio.sleep(0)
    assert left == [SLICE_S] * 3
