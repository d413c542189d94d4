"""One seeded history of POP consumption, checked against a plain model.

The model knows what clients observed. It lifts its rules where the history itself does (an offset was reset, a topic
deleted). At the end everything is consumed: each confirmed message was acknowledged, or is a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gantry_broker.broker.errors import NotStored, NotWritable, RequestRejected
from gantry_broker.broker.pop.requests import Ack, AckResult, ChangeInvisible, Pop, Popped
from gantry_broker.protocol.message import decode_records
from gantry_broker.protocol.pop_handle import BadHandle, Handle

from tests.pop.popbench import Message, messages_of
from tests.pop.world import BROKER, World, acknowledged, acknowledged_together

GROUPS = ("g", "two", "f", "o")
"""Plain, with two retries, with a filter, orderly."""


STEPS = {
    "send": 10, "pop": 16, "ack": 12, "stale_ack": 2, "change": 7, "time": 8, "clock_set_back": 1, "replicate": 12,
    "replicate_all": 6, "time_out": 2, "failover": 4, "write_all": 4, "flush_offsets": 2, "reset": 1,
    "delete_topic": 0.5, "delete_group": 0.5,
}  # fmt: skip
"""The steps of a history, with their weights."""


class Violation(AssertionError):
    """A rule that the history breaks."""


@dataclass
class Observed:
    """What the clients of one group observed of one message."""

    acked: bool = False
    perhaps: bool = False
    """An acknowledgement was not answered: the message may be finished."""
    acking: int = 0
    """Acknowledgements that are not answered yet."""
    free: bool = False
    """An offset was reset or a topic deleted: the message may be delivered again, or never."""
    attempts: int = 0
    """Answered deliveries that ended without acknowledgement or suspension; at least so many attempts count."""
    handle: Handle | None = None
    visible_ms: int = 0
    suspended: bool = False
    attempt: str | None = None
    unsure: bool = False
    """A change of the invisible time was not answered."""
    changes: int = 0
    changed_ms: int = 0
    """When the last change of the invisible time was asked for."""

    def again(self) -> None:
        """Forgets acknowledgements: the message comes again. One that is not answered yet may be a later one."""
        self.acked, self.perhaps = False, self.perhaps and self.acking > 0


@dataclass
class Model:
    observed: dict[tuple[str, bytes], Observed] = field(default_factory=lambda: defaultdict(Observed))
    sent: dict[bytes, tuple[int, str, int]] = field(default_factory=dict)
    """Confirmed messages that are there: queue, tag, number."""

    skipped: set[int] = field(default_factory=set)
    """Queues of the orderly group in which somebody has set the offset ahead of what is in flight."""
    peak_ms: int = 0
    """The highest time from which the clock was set back."""

    def delivered(self, group: str, message: Message, popped: Popped, attempt: str | None) -> None:
        observed = self.observed[group, message.body]
        where = f"group {group}, message {message.body!r} at {message.topic} {message.queue_id} {message.offset}"
        order = group == "o"
        if not observed.free:
            if observed.acked and not order:
                raise Violation(f"{where}: delivered again after its acknowledgement")
            same = attempt is not None and observed.attempt == attempt
            now = max(popped.pop_ms, self.peak_ms)
            again = (
                observed.attempt is not None
            )  # The same attempt may pop again, for a shorter time, without an answer.
            waits = observed.handle is not None and not observed.unsure and observed.visible_ms > now
            finished = order and (observed.acked or observed.perhaps)  # It comes again for the sake of the order.
            if waits and not again and not finished:
                raise Violation(f"{where}: delivered at {popped.pop_ms}, invisible until {observed.visible_ms}")
            if observed.handle is not None and not observed.suspended and not observed.unsure and not same:
                observed.attempts += 1
            if message.times < observed.attempts:
                raise Violation(f"{where}: attempt {message.times}, {observed.attempts} failed before")
        if order:
            observed.again()
        observed.handle, observed.visible_ms = message.handle, message.handle.visible_ms
        observed.suspended = False
        observed.unsure = observed.unsure and observed.changed_ms >= popped.pop_ms
        observed.attempt = attempt

    def ordered(self, messages: list[Message]) -> None:
        """Checks an orderly answer, before `delivered`: each queue's messages have no gap and begin at one that is not
        finished. The acknowledgements of all messages behind that one do not count any more.
        """
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for message in messages:
            queue, offset = message.queue_id, message.offset
            where = f"message {message.body!r} at {message.topic} {queue} {offset}"
            if ends.setdefault(queue, offset) != offset and queue not in self.skipped:
                raise Violation(f"orderly group: {where}: messages {ends[queue]} to {offset - 1} are left out")
            ends[queue] = offset + 1
            if queue not in begins:
                begins[queue] = offset
                observed = self.observed["o", message.body]
                if observed.acked and not observed.free:
                    raise Violation(f"orderly group: {where}: delivered again, and all before it are acknowledged")
        for (group, _), observed in self.observed.items():
            handle = observed.handle
            if group == "o" and handle is not None and handle.offset > begins.get(handle.queue_id, handle.offset):
                observed.again()

    def unanswered(self) -> None:
        """An orderly pop has no answer: it may have ended acknowledgements behind the first message."""
        for (group, _), observed in self.observed.items():
            if group == "o" and observed.acked:
                observed.acked, observed.perhaps = False, True

    def lift(self, bodies: Any, groups: Any = GROUPS) -> None:
        for group in groups:
            for body in bodies:
                observed = self.observed[group, body]
                observed.free, observed.handle, observed.acked = True, None, False


class History:
    """The random client, administrator and network of one seed."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.world = World(path)
        self.model = Model()
        self.number = 0
        self.unconfirmed: dict[bytes, tuple[int, int, str]] = {}
        """Messages that are not confirmed: end, queue, tag."""
        self.running: dict[asyncio.Task[Any], None] = {}
        self.attempts = 0
        self.steps: list[str] = []
        self.resets = 0
        self.latest = 0
        """The latest time of deliveries."""

    # ---- steps

    def step_send(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            queue, tag = self.random.randrange(2), self.random.choice("ab")
            body = b"m%d" % self.number
            self.unconfirmed[body] = (self.world.send("T", queue, body, tag), queue, tag)

    def step_pop(self) -> None:
        self.start_pop(self.random.choice(GROUPS), poll_ms=self.random.choice((0, 0, 60_000)))

    def start_pop(self, group: str, poll_ms: int = 0, most: int | None = None) -> None:
        order = group == "o"
        attempt = None
        if order and self.random.random() < 0.5:
            self.attempts += self.random.random() < 0.7
            attempt = f"a{self.attempts}"
        request = Pop(
            group=group,
            topic="T",
            queue_id=self.random.choice((-1, -1, 0, 1)) if poll_ms == 0 and most is None else -1,
            max_messages=most or self.random.randint(1, 5),
            invisible_ms=self.random.randint(1, 200) * 100,
            poll_ms=poll_ms,
            expression="a" if group == "f" else "*",
            order=order,
            attempt_id=attempt,
        )
        self.start(self.pop(request))

    async def pop(self, request: Pop) -> None:
        try:
            popped = await self.world.pop.pop(request)
        except (NotStored, NotWritable, RequestRejected):
            if request.order:
                self.model.unanswered()
            return
        messages = messages_of(popped, "T", BROKER)
        if request.order:
            self.model.ordered(messages)
        for message in messages:
            self.model.delivered(request.group, message, popped, request.attempt_id)

    def held(self) -> list[tuple[str, bytes, Observed]]:
        return [
            (*key, observed)
            for key, observed in self.model.observed.items()
            if observed.handle is not None and not observed.acked
        ]

    def step_ack(self) -> None:
        held = self.held()
        if not held:
            return
        chosen: dict[str, dict[bytes, Handle]] = defaultdict(dict)
        for group, body, observed in self.random.sample(held, min(len(held), self.random.randint(1, 4))):
            assert observed.handle is not None
            chosen[group][body] = observed.handle
        for group, handles in chosen.items():
            if self.number % 2:
                self.start(self.ack(group, handles))
            else:
                for body, handle in handles.items():
                    self.start(self.ack(group, {body: handle}))

    async def ack(self, group: str, handles: dict[bytes, Handle]) -> None:
        """Acknowledges messages together, or one by itself."""
        began, resets = self.world.pop_ms, self.resets
        earlier = {}
        for body, handle in handles.items():
            observed = self.model.observed[group, body]
            earlier[body] = observed.perhaps
            observed.acking += 1
            if not observed.free and handle == observed.handle:
                observed.perhaps = True
        try:
            if self.number % 2:
                results = await acknowledged_together(self.world.pop, group, "T", list(handles.values()))
            else:
                acks = [Ack(group=group, topic="T", handle=handle) for handle in handles.values()]
                results = await acknowledged(self.world.pop, *acks)
        except (NotStored, NotWritable, RequestRejected):
            return
        finally:
            for body in handles:
                self.model.observed[group, body].acking -= 1
        for (body, handle), result in zip(handles.items(), results, strict=True):
            self.acked(group, body, handle, result, earlier[body], began, resets)

    def acked(
        self, group: str, body: bytes, handle: Handle, result: AckResult, before: bool, began: int, resets: int
    ) -> None:
        observed = self.model.observed[group, body]
        if result is not AckResult.OK:
            observed.perhaps = before
        if resets != self.resets or observed.free:
            return
        if result is AckResult.OK and handle.visible_ms > began and handle == observed.handle and not observed.unsure:
            observed.acked = True  # After a change without an answer, the delivery may have ended before.
        refused = (
            result is AckResult.INVALID and handle == observed.handle and not observed.unsure and not observed.acked
        )
        if refused and handle.visible_ms > self.latest:
            raise Violation(f"group {group}, message {body!r}: {handle} is refused before its time")

    async def step_stale_ack(self) -> None:
        """Acknowledges with a handle of an earlier delivery: nothing may happen."""
        held = self.held()
        if not held:
            return
        group, _, observed = self.random.choice(held)
        h = observed.handle
        assert h is not None
        old = Handle(
            h.start_offset,
            h.pop_ms - 10_000_000,
            h.invisible_ms,
            h.revive_queue,
            h.kind,
            h.broker,
            h.queue_id,
            h.offset,
        )
        before = len(self.world.pop._log.state)
        if self.number % 2:
            self.start(self.quietly(acknowledged_together(self.world.pop, group, "T", [old])))
        else:
            self.start(self.quietly(acknowledged(self.world.pop, Ack(group=group, topic="T", handle=old))))
        await self.world.passes(2)
        if len(self.world.pop._log.state) < before:
            raise Violation(f"group {group}: the handle {old} of an earlier delivery has finished a message")

    async def quietly(self, work: Awaitable[Any]) -> None:
        with contextlib.suppress(NotStored, NotWritable, RequestRejected, BadHandle):
            await work

    def step_change(self) -> None:
        held = [item for item in self.held() if not item[2].perhaps]
        if held:
            group, body, observed = self.random.choice(held)
            assert observed.handle is not None
            self.start(self.change(group, body, observed.handle))

    async def change(self, group: str, body: bytes, handle: Handle) -> None:
        observed = self.model.observed[group, body]
        suspend = self.random.random() < 0.3
        observed.unsure = True
        observed.changes += 1
        observed.changed_ms = self.world.pop_ms
        number = observed.changes
        change = ChangeInvisible(
            group=group,
            topic="T",
            handle=handle,
            invisible_ms=self.random.choice((0, 1_000, 20_000, 60_000)),
            suspend=suspend,
        )
        try:
            renewed = await self.world.pop.change_invisible(change)
        except (NotStored, NotWritable, RequestRejected, BadHandle):
            return
        if observed.handle == handle and observed.changes == number:
            observed.handle, observed.visible_ms, observed.suspended, observed.unsure = (
                renewed,
                renewed.visible_ms,
                suspend,
                False,
            )

    def step_time(self) -> None:
        self.world.ms += self.random.choice((10, 500, 3_000, 9_000, 25_000))

    def step_clock_set_back(self) -> None:
        self.model.peak_ms = max(self.model.peak_ms, self.world.pop_ms)
        self.world.ms -= self.random.choice((700, 4_000, 3_600_000))

    def step_replicate(self) -> None:
        behind = [border for border in self.world.borders if border > self.world.store.state.confirmed]
        if behind:
            self.replicate(self.random.choice(behind))

    def step_replicate_all(self) -> None:
        self.replicate()

    def replicate(self, to: int | None = None) -> None:
        self.world.replicate(to)
        for body, (end, queue, tag) in list(self.unconfirmed.items()):
            if end <= self.world.store.state.confirmed:
                del self.unconfirmed[body]
                self.model.sent[body] = (queue, tag, len(self.model.sent))

    def step_time_out(self) -> None:
        self.world.time_out()

    async def step_failover(self) -> None:
        world = self.world
        # The next leader's clock goes on from what the log has of this one's.
        self.model.peak_ms = max(self.model.peak_ms, world.pop_ms)
        world.lose_role()
        await world.passes()
        behind = [border for border in world.borders if border >= world.store.state.confirmed]
        if behind:
            to = self.random.choice(behind)
            world.cut(to)
            self.unconfirmed = {body: item for body, item in self.unconfirmed.items() if item[0] <= to}
        world.lead()
        self.replicate()
        await world.until_ready()

    async def step_write_all(self) -> None:
        self.world.pop._log._since_whole = 1 << 30
        while self.world.pop.write_whole():
            await self.world.passes(1)
        self.world.changes.flush_offsets()

    def step_flush_offsets(self) -> None:
        self.world.changes.flush_offsets()

    async def step_reset(self) -> None:
        """Sets a group's offset, back or ahead."""
        await self.quiet()
        group, queue = self.random.choice(GROUPS), self.random.randrange(2)
        low, high = self.world.store.reader.min_offset("T", queue), self.world.store.reader.max_offset("T", queue)
        before = self.world.meta.working.offset("T", group, queue)
        if before < 0:
            return
        to = self.random.randint(low, high)
        self.resets += 1
        self.model.lift([body for body, (q, _, _) in self.model.sent.items() if q == queue], [group])
        if self.random.random() < 0.7:
            self.world.change({"offsets": {f"T@{group}": {str(queue): to}}})
            wanted = self.world.meta.working.offset("T", group, queue)
            state = self.world.pop._log.state.queues.get((group, "T", queue))
            if wanted != to or (state is not None and (state.in_flight or state.next != to)):
                raise Violation(f"the reset of group {group} to {to} is at {wanted}: {state and state.next}")
        else:
            self.world.meta.commit_offset("T", group, queue, to)
            if group == "o":
                self.model.skipped.add(queue)

    async def step_delete_topic(self) -> None:
        """Deletes the topic with its retry topics, as the broker's handler does, and creates it again."""
        await self.quiet()
        names = [name for name in self.world.meta.working.topics if name == "T" or name.endswith("+T")]
        keys = [key for key in self.world.meta.working.offsets if key.partition("@")[0] in names]
        self.resets += 1
        self.world.change({"dropTopics": names, "dropOffsets": keys, "dropData": self.world.store.log.end})
        self.replicate()
        self.model.lift(self.model.sent)
        self.model.sent.clear()
        await self.world.passes()
        self.world.change({"topics": [{"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]})
        self.replicate()
        left = [key for key, queue in self.world.pop._log.state.queues.items() if queue.in_flight]
        if any(key[1] in names for key in left):
            raise Violation(f"in flight in a deleted topic: {left}")

    async def step_delete_group(self) -> None:
        await self.quiet()
        group = self.random.choice(("g", "f"))
        config = self.world.meta.working.groups[group]
        self.resets += 1
        self.model.lift(self.model.sent, [group])
        self.world.change({"dropGroups": [group]})
        self.world.change({"groups": [config.to_json()]})
        self.replicate()

    # ---- running

    def start(self, work: Any) -> None:
        self.running[asyncio.get_running_loop().create_task(work)] = None

    def gather(self) -> None:
        for task in [task for task in self.running if task.done()]:
            del self.running[task]
            task.result()

    async def quiet(self) -> None:
        """All that was begun ends, waiting pops without messages."""
        for _ in range(3):
            self.replicate()
            await self.world.passes()
        self.world.pop._settle()
        while self.running:
            self.replicate()
            await self.world.passes(4)
            self.gather()

    def check_waiting(self) -> None:
        """No pop waits while there are messages for it."""
        world = self.world
        for group in ("g", "two"):
            request = Pop(group=group, topic="T")
            finder = world.pop._finder
            there = any(finder.has_messages(request, place, world.pop_ms) for place in finder.places(request))
            if world.pop.waiting(group, "T") and there:
                raise Violation(f"pops of group {group} wait beside messages")
        for queue in range(2):
            state = world.pop._log.state.queues.get(("o", "T", queue))
            blocked = state is not None and state.order is not None and state.order.visible_ms() + 50 > world.pop_ms
            there = state is not None and world.store.reader.max_offset("T", queue) > state.next
            if world.pop.waiting("o", "T") and there and not blocked and state is not None and not state.count:
                raise Violation("an orderly pop waits beside messages of a queue that is not blocked")

    def check_offsets(self) -> None:
        for (group, topic, queue), state in self.world.pop._log.state.queues.items():
            at = self.world.meta.working.offset(topic, group, queue)
            if at > state.lowest():
                raise Violation(
                    f"group {group}: the offset of {topic} {queue} is {at}, {state.lowest()} is not finished"
                )

    async def run(self, steps: int) -> None:
        world = self.world
        world.lead()
        await world.until_ready()
        names, weights = list(STEPS), list(STEPS.values())
        try:
            for name in self.random.choices(names, weights, k=steps):
                self.steps.append(name)
                self.latest = max(self.latest, world.pop_ms)
                done = getattr(self, f"step_{name}")()
                if done is not None:
                    await done
                await world.passes()
                await world.expire()
                self.gather()
                self.check_offsets()
                world.pop._log.state.check_invariants()
                if world.store.state.confirmed == world.store.log.end:
                    self.check_waiting()
            await self.quiet()
            await self.drain()
        except Exception as error:
            error.add_note(f"after {len(self.steps)} steps: {' '.join(self.steps[-30:])}")
            raise
        finally:
            for task in self.running:
                task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)
            world.close()

    async def drain(self) -> None:
        """Consumes everything; each message must have been acknowledged in the end, or be a dead letter."""
        if self.random.random() < 0.5:
            if self.random.random() < 0.5:
                await self.step_write_all()
                self.replicate()
            await self.step_failover()
            for _ in range(3):
                self.world.ms += self.random.choice((3_000, 9_000))
                await self.world.expire()
                for group in GROUPS:
                    self.start_pop(group, most=32)
                    await self.quiet()
            self.latest = max(self.latest, self.world.pop_ms)
        idle = 0
        while idle < 2:
            self.world.ms += 60_000
            self.latest = max(self.latest, self.world.pop_ms)
            await self.world.passes()
            await self.world.expire()
            before = sum(observed.acked for observed in self.model.observed.values())
            for group in GROUPS:
                for _ in range(3):
                    self.start_pop(group, most=32)
                    await self.quiet()
            for group, body, observed in self.held():
                assert observed.handle is not None
                self.start(self.ack(group, {body: observed.handle}))
            await self.quiet()
            progress = sum(observed.acked for observed in self.model.observed.values()) > before
            idle = 0 if progress else idle + 1
        self.check_end()

    def check_end(self) -> None:
        dead: dict[str, set[bytes]] = {}
        for group in GROUPS:
            got = self.world.store.reader.get(f"%DLQ%{group}", 0, 0, 10_000, 1 << 24)
            dead[group] = {record.body for record in decode_records(got.data)} if got.data else set()
            for body in dead[group]:
                observed = self.model.observed[group, body]
                if observed.acked and not observed.free and not observed.perhaps:
                    raise Violation(f"group {group}: the dead letter {body!r} was acknowledged")
        for (group, topic, queue), state in self.world.pop._log.state.queues.items():
            high = self.world.store.reader.max_offset(topic, queue)
            if state.lowest() != high:
                raise Violation(
                    f"group {group}: all of {topic} {queue} is consumed to {high}, the offset is {state.lowest()}"
                )
        for body, (queue, tag, _) in self.model.sent.items():
            for group in GROUPS:
                observed = self.model.observed[group, body]
                if (
                    observed.free
                    or observed.acked
                    or observed.perhaps
                    or body in dead[group]
                    or (group == "f" and tag != "a")
                ):
                    continue
                raise Violation(f"group {group}: message {body!r} of queue {queue} is lost")


def run_history(seed: int, path: Path, steps: int = 60) -> None:
    """Runs one history. Raises Violation."""

    async def run() -> None:
        await History(seed, path).run(steps)

    asyncio.run(run())


HISTORIES = int(os.environ.get("POP_HISTORIES", "160"))
