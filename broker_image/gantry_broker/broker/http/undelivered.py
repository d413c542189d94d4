"""Messages that are on their way to a topic: delayed ones, those with a delivery time, and half messages.

They wait in topics of the system, so no consumer group shows them as unread, and they are lost with their topic. A look
is of one moment, after which the ends of the topic's queues are read: a message that was delivered meanwhile is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.contracts.models import MAX_UNDELIVERED, Undelivered
from gantry_broker.protocol.codes import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, Perm, Prop
from gantry_broker.protocol.message import decode_records, parse_properties

if TYPE_CHECKING:
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.transactions import Transactions
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

CONFIRM_S: Final = 3.0
BATCH: Final = 512
BATCH_BYTES: Final = 1 << 20


class Parts(Protocol):
    """What these functions use of a member."""

    store: MessageStore
    replication: ReplicationService
    role: RoleState
    meta: Metadata
    transactions: Transactions
    slices: TimeSlices


class _Queue(NamedTuple):
    """A part of a queue of the system in which messages wait."""

    topic: str
    number: int
    begin: int
    end: int
    only: AbstractSet[int] | None = None
    """The offsets that wait; None: all but `done`."""
    done: AbstractSet[int] = frozenset()


class UndeliveredMessages:
    """Looks for messages of topics. It remembers one for each topic, and so most looks read that one alone."""

    def __init__(self, broker: Parts) -> None:
        self._broker = broker
        self._waited: dict[str, tuple[str, int, int]] = {}
        """By topic: a message that waited at the last look, as (topic of the system, queue, offset)."""

    async def of(self, topics: Collection[str]) -> dict[str, Undelivered]:
        """Look for messages of these topics; at most `MAX_UNDELIVERED`, the others are unknown. Works in slices."""
        broker, tables = self._broker, self._broker.meta.working
        states: dict[str, Undelivered] = dict.fromkeys(topics, "unknown")
        looked_for = list(states)[:MAX_UNDELIVERED]
        closed = {name for name in looked_for if (t := tables.topics.get(name)) is None or not t.perm & Perm.WRITE}
        epoch = broker.replication.epoch
        # Only confirmed messages are in queues. None of these topics comes later: the topics take none.
        if not closed or not await self._confirmed(decisions=True) or not self._leads(epoch):
            return states
        queues = self._queues()
        self._waited = {name: place for name, place in self._waited.items() if name in closed}
        left = set(closed)
        for name, place in self._waited.items():
            if _waits(queues, place):
                states[name] = _kind(place[0])
                left.discard(name)
        if left and not await self._search(queues, left, states):
            return states
        if await self._confirmed() and self._leads(epoch):
            states |= dict.fromkeys(left, "none")
        return states

    def _leads(self, epoch: int) -> bool:
        role, replication = self._broker.role, self._broker.replication
        return role.leading and role.epoch_confirmed and replication.epoch == epoch

    async def _confirmed(self, *, decisions: bool = False) -> bool:
        """Wait until all that the log has now is confirmed, and all `decisions` on half messages are known. False: not
        in time.
        """
        store, end, transactions = self._broker.store, self._broker.store.log.end, self._broker.transactions
        deadline = asyncio.get_running_loop().time() + CONFIRM_S
        while store.state.confirmed < end or (decisions and not transactions.all_read):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def _queues(self) -> list[_Queue]:
        """Return what waits at this moment."""
        store, tables = self._broker.store, self._broker.meta.working
        half = frozenset(self._broker.transactions.waiting)
        queues = [_Queue(TRANS_HALF_TOPIC, 0, min(half), max(half) + 1, only=half)] if half else []
        for number in store.queues.queue_numbers(SCHEDULE_TOPIC):
            begin = tables.delay.get(number + 1, 0)
            queues.append(_Queue(SCHEDULE_TOPIC, number, begin, store.reader.max_offset(SCHEDULE_TOPIC, number)))
        for number in store.queues.queue_numbers(TIMER_TOPIC):
            done = frozenset(tables.timer_done.get(number, ()))
            begin = tables.timer.get(number, 0)
            queues.append(_Queue(TIMER_TOPIC, number, begin, store.reader.max_offset(TIMER_TOPIC, number), done=done))
        return [
            q._replace(begin=begin)
            for q in queues
            if (begin := max(q.begin, store.reader.min_offset(q.topic, q.number))) < q.end
        ]

    async def _search(self, queues: list[_Queue], left: set[str], states: dict[str, Undelivered]) -> bool:
        """Move topics from `left` to `states`. False: a part of the queues is not readable."""
        marks = {name: f"{Prop.REAL_TOPIC}\x01{name}".encode() for name in left}
        async for queue, data in self._broker.slices.sliced(self._batches(queues)):
            if data is None:
                return False
            # Most batches have none of these names, and need not be decoded.
            here = {name for name in left if marks[name] in data}
            for record in decode_records(data) if here else ():
                if not _waits([queue], (queue.topic, queue.number, record.queue_offset)):
                    continue
                props = parse_properties(record.properties)
                name = props.get(Prop.REAL_TOPIC, "")
                if name in left and Prop.TIMER_DEL_UNIQKEY not in props:  # Otherwise it recalls another one.
                    states[name] = _kind(queue.topic)
                    self._waited[name] = (queue.topic, queue.number, record.queue_offset)
                    left.discard(name)
            if not left:
                return True
        return True

    def _batches(self, queues: list[_Queue]) -> Iterator[tuple[_Queue, bytes | None]]:
        """Yield records, and None once some cannot be read."""
        for queue in queues:
            at = queue.begin
            while at < queue.end:
                got = self._broker.store.reader.get(queue.topic, queue.number, at, BATCH, BATCH_BYTES)
                if got.damaged >= 0 or got.next_offset <= at:
                    yield queue, None
                    return
                if got.data:
                    yield queue, got.data
                at = got.next_offset


def _waits(queues: list[_Queue], place: tuple[str, int, int]) -> bool:
    topic, number, offset = place
    return any(
        q.begin <= offset < q.end and offset not in q.done and (q.only is None or offset in q.only)
        for q in queues
        if (q.topic, q.number) == (topic, number)
    )


def _kind(topic: str) -> Undelivered:
    return "half" if topic == TRANS_HALF_TOPIC else "delayed"
