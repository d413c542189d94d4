"""Groups that use POP: their members in the faulted cluster, and the checks of what they received.

A message is delivered at least once (`checker` looks at `History.consumed`). After a successful acknowledgement it is
not delivered again. A queue of an orderly group goes on when everything before is acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from gantry_broker.client import BrokerError, ClientError, PoppedMessage, SimpleConsumer
from gantry_broker.remoting.errors import RemotingError

from tests.chaos.history import History, Log, Place, Popped

POPS, ORDERLY = "pops", "pops-orderly"
INVISIBLE_S = 3.0
WAIT_S = 2.0
FORGETS = {POPS: 0.02, ORDERLY: 0.002}
"""The share of deliveries that a member does not acknowledge."""
AT_ONCE = 32
OF_THE_TOPIC = "0"
"""The kind in a handle of a message that is no copy of the group's retry topic."""


class PopMembers:
    """The members of both groups. `orderly`: the group's pops are."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self._rng = random.Random(seed)
        self._clock = asyncio.get_running_loop().time
        for group in (POPS, ORDERLY):
            history.consumed[group] = Counter()
            history.popped[group] = []

    async def work(
        self,
        name_servers: str,
        topic: str,
        group: str,
        closing: asyncio.Event,
        sending: Callable[[], bool],
        stays_s: float | None,
    ) -> None:
        """A member; after `stays_s` another takes its place."""
        while not closing.is_set():
            consumer = SimpleConsumer(name_servers, group, invisible_s=INVISIBLE_S, ordered=group == ORDERLY)
            try:
                async with consumer:
                    await consumer.subscribe(topic)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(stays_s):
                            await self._receive(consumer, group, closing, sending)
            except (ClientError, RemotingError):
                await asyncio.sleep(0.2)

    async def _receive(
        self, consumer: SimpleConsumer, group: str, closing: asyncio.Event, sending: Callable[[], bool]
    ) -> None:
        while not closing.is_set():
            try:
                messages = await consumer.receive(AT_ONCE, wait_s=WAIT_S)
            except (ClientError, RemotingError):
                await asyncio.sleep(0.2)
                continue
            found = [(message, self._came(group, message)) for message in messages]
            kept = [pair for pair in found if not sending() or self._rng.random() >= FORGETS[group]]
            await asyncio.gather(*(self._ack(consumer, *pair) for pair in kept))

    def _came(self, group: str, message: PoppedMessage) -> Popped:
        record, words = message.record, message.handle.split(" ")
        place, pop_ms = None, int(words[1])
        if words[4] == OF_THE_TOPIC:
            place = Place(record.queue_id, record.queue_offset)
            self.history.show(place, message.body, group)
        popped = Popped(message.body, place, record.reconsume_times, pop_ms, self._clock())
        self.history.popped[group].append(popped)
        self.history.consumed[group][message.body] += 1
        return popped

    async def _ack(self, consumer: SimpleConsumer, message: PoppedMessage, popped: Popped) -> None:
        popped.acking = self._clock()
        try:
            await consumer.ack(message)
        except (ClientError, RemotingError, BrokerError):
            return
        popped.acked = self._clock()


def acked_again(history: History) -> Iterator[str]:
    """A message that was sent once is not delivered after an acknowledgement. Each delivery has a higher count, so a
    late answer to an earlier pop is none. A message that was sent again may have two copies. In order, a queue goes
    back to its first message that is not acknowledged (`_goes_back`).
    """
    never = float("inf")
    for group, deliveries in history.popped.items():
        acked: dict[bytes, Popped] = {}
        for popped in deliveries:
            if popped.acked < never and history.tries[popped.body] == 1:
                first = acked.setdefault(popped.body, popped)
                if popped.acked < first.acked:
                    acked[popped.body] = popped
        for popped in deliveries:
            done = acked.get(popped.body)
            if done is None or popped is done:
                continue
            if group == ORDERLY and _goes_back(popped, deliveries):
                continue
            if popped.times > done.times or (popped.times == done.times and popped.at > done.acked):
                yield (
                    f"ACKED AGAIN: {group} got {popped.body!r} for the {popped.times + 1}. time at {popped.place}, "
                    f"{popped.at - done.acked:.3f} s after its acknowledgement"
                )


def _goes_back(popped: Popped, deliveries: Sequence[Popped]) -> bool:
    """Whether an orderly queue may give a message again that was acknowledged.

    When the time of the first unfinished message is over, it comes again with all behind it, and their earlier
    acknowledgements count no more, as with RocketMQ. One pop may have room for a part of them: the next one has the
    rest.
    """
    if popped.place is None:
        return False
    if _behind_unfinished(popped, deliveries):
        return True
    mine = [other for other in deliveries if other.place == popped.place and other.at < popped.at]
    if not mine:
        return False
    before = max(mine, key=lambda other: other.at)
    return before.acked > popped.at or any(
        other.times > 0 and other.place.offset < popped.place.offset and before.at < other.at <= popped.at
        for other in deliveries
        if other.place is not None and other.place.queue == popped.place.queue
    )


def _behind_unfinished(popped: Popped, deliveries: Sequence[Popped]) -> bool:
    """Whether a message before it in its queue was not acknowledged yet when this one came."""
    if popped.place is None:
        return False
    last: dict[int, Popped] = {}
    """By offset: the newest delivery until then. A message that came again counts only by its new acknowledgement."""
    late = False
    for other in deliveries:
        at = other.place
        if at is None or at.queue != popped.place.queue or at.offset >= popped.place.offset:
            continue
        if other.at <= popped.at:
            if at.offset not in last or other.at >= last[at.offset].at:
                last[at.offset] = other
        elif at.offset not in last:
            late = True  # The answer to its first pop was lost.
    return late or any(other.acked > popped.at for other in last.values())


def too_early(history: History) -> Iterator[str]:
    """A message that was sent once is not delivered again within its invisible time. Holds while clocks agree."""
    for group, deliveries in history.popped.items():
        last: dict[bytes, Popped] = {}
        for popped in deliveries:
            before = last.get(popped.body)
            if before is not None and before.times < popped.times and history.tries[popped.body] == 1:
                span_s = (popped.pop_ms - before.pop_ms) / 1_000
                if span_s < INVISIBLE_S:
                    yield f"TOO EARLY: {group} got {popped.body!r} again {span_s:.3f} s after its last pop"
            last[popped.body] = popped


def out_of_order(history: History, final: Log) -> Iterator[str]:
    """A message of an orderly group comes when all before it in its queue are acknowledged, or in the same pop."""
    ends: dict[int, int] = {}
    """By queue: the offset up to which every message is acknowledged, or was about to be."""
    acking: dict[Place, float] = {}
    pops: dict[Place, set[int]] = {}
    deliveries = history.popped.get(ORDERLY, [])
    for popped in deliveries:
        if popped.place is not None:
            acking[popped.place] = min(acking.get(popped.place, float("inf")), popped.acking)
            pops.setdefault(popped.place, set()).add(popped.pop_ms)
    for popped in deliveries:
        if popped.place is None:
            yield f"OUT OF ORDER: the orderly group got {popped.body!r} from its retry topic"
            continue
        queue, offset = popped.place
        at = ends.get(queue, 0)
        while at < offset and acking.get(Place(queue, at), float("inf")) <= popped.at:
            at += 1
        ends[queue] = max(ends.get(queue, 0), at)
        for lower in range(at, offset):
            place = Place(queue, lower)
            if acking.get(place, float("inf")) > popped.at and popped.pop_ms not in pops.get(place, ()):
                yield (
                    f"OUT OF ORDER: the orderly group got {popped.body!r} at {popped.place} before "
                    f"{final.bodies.get(place)!r} at {place} was acknowledged"
                )
                break


def check_pops(history: History, final: Log, *, clocks_agree: bool) -> tuple[Iterator[str], ...]:
    """With replication Sync: Async may undo an acknowledgement."""
    kinds = (acked_again(history), out_of_order(history, final))
    return (*kinds, too_early(history)) if clocks_agree else kinds
