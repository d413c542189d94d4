"""Looks for messages to pop in the queues of a topic and of its retry topics, and takes them.

One step without a pause: what it reads and what it changes belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.archive_reads import ArchiveQuery
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.pop.queue import MAX_OFFSET, Key, Queue
from gantry_broker.broker.pop.requests import Pop, Popped, PopStatus
from gantry_broker.broker.pop.state import MAX_QUEUES
from gantry_broker.protocol.codes import RETRY_PREFIX, GetStatus, Prop
from gantry_broker.protocol.message import QUEUE_OFFSET_AT, Record, RecordError, decode_record, repack_properties
from gantry_broker.protocol.pop_handle import (
    NORMAL,
    ORDERLY_QUEUE,
    message_offset_info,
    order_count_info,
    retry_topic_v2,
    start_offset_info,
    topic_type,
)
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clients import Subscription
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.log import PopLog
    from gantry_broker.broker.pull.sql92 import Filter
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Got

RETRY_FIRST_EACH: Final = 5
"""One pop in so many looks at the retry topics first, the others last."""
MAX_TURNS: Final = 100_000
"""Pairs of group and topic whose turns are counted."""
RECENT_BYTES: Final = 1 << 30
"""A new group begins at the first message of a queue that lost none and begins within this much of the log's end."""
REST_OF: Final = 64
"""Queues of one topic up to which an answer counts the messages of all of them that are left."""

_HANDLE: Final = f"{Prop.POP_CK}\x01".encode()

QueueKey = tuple[str, int]
"""(topic, queue)."""


@dataclass(slots=True)
class FilteredPop:
    """A pop with its filter."""

    request: Pop
    codes: frozenset[int] | None = None
    """Tag codes of the messages; None: any."""
    condition: Filter | None = None
    subscription: Subscription | None = None
    """What the filter was made of: it counts while the pop waits (`Filters.subscription`)."""


@dataclass(slots=True)
class Taken:
    """What one pop takes."""

    now_ms: int
    count: int = 0
    size: int = 0
    data: list[bytes] = field(default_factory=list)
    parts: list[tuple[int, int, Sequence[int]]] = field(default_factory=list)
    """(type of topic, queue, offsets) of the messages."""
    orders: list[str] = field(default_factory=list)
    more: bool = False
    """A filter has refused messages, and there are more behind them."""
    full: bool = False
    """POP's memory is used up."""
    rest: int = 0
    archived: list[ArchiveQuery] = field(default_factory=list)
    """Reads that only the archive can answer, and has not yet."""
    reads: list[ArchiveQuery] = field(default_factory=list)
    """Reads of single records that the archive has answered: kept until all of their step are there."""


class Finder:
    """Takes messages for pops, and reads them for peeks."""

    def __init__(
        self,
        store: MessageStore,
        meta: Metadata,
        log: PopLog,
        archive_reads: ArchiveReads,
        broker: str,
        memory_bytes: int,
    ) -> None:
        """`broker`: the name in handles; `memory_bytes`: POP's memory, after which nothing is popped."""
        self._store = store
        self._settings = store.config.settings
        self._meta = meta
        self._log = log
        self._archive_reads = archive_reads
        self._broker = broker
        self._memory_bytes = memory_bytes
        self._turns: dict[tuple[str, str], int] = {}

    # ---- where to look

    def turn(self, request: Pop) -> Iterator[QueueKey]:
        """Return the queues in which the next pop of a group looks: each begins at another one."""
        key = request.group, request.topic
        turn = self._turns.get(key, 0)
        if turn == 0 and len(self._turns) >= MAX_TURNS:
            self._turns.clear()
        self._turns[key] = turn + 1
        return self.places(request, turn)

    def places(self, request: Pop, turn: int = 0) -> Iterator[QueueKey]:
        """Yield the queues in which a pop looks, in its order."""
        topic = request.topic
        retries_first = turn % RETRY_FIRST_EACH == RETRY_FIRST_EACH - 1
        if retries_first:
            yield from self._retries(request)
        config = self._meta.working.topics.get(topic)
        queues = 0 if config is None else config.read_queues
        if request.queue_id >= 0:
            if request.queue_id < queues:
                yield topic, request.queue_id
        else:
            for number in range(queues):
                yield topic, (number + turn) % queues
        if not retries_first:
            yield from self._retries(request)

    def _retries(self, request: Pop) -> Iterator[QueueKey]:
        topic = request.topic
        if request.order or topic.startswith(RETRY_PREFIX):
            return
        tables = self._meta.working
        for name in (retry_topic_v2(request.group, topic), tables.old_pop_retries(request.group, topic)):
            config = None if name is None else tables.topics.get(name)
            if name is not None and config is not None:
                for queue_id in range(config.read_queues):
                    yield name, queue_id

    def looks_in(self, pair: tuple[str, str], topic: str) -> bool:
        """Whether pops of a (group, topic) get messages of this topic, which may be one with their retries."""
        group, popped = pair
        return topic in (popped, retry_topic_v2(group, popped), self._meta.working.old_pop_retries(group, popped))

    def queue(self, request: Pop, topic: str, queue_id: int) -> Queue | None:
        """Return a queue, which begins where the group is; None: there are too many, or too many of who asks."""
        key: Key = (request.group, topic, queue_id)
        queue = self._log.state.queues.get(key)
        if queue is None:
            if len(self._log.state.queues) >= MAX_QUEUES:
                return None
            begin = self.begin(request.group, topic, queue_id, request.init_mode)
            if not self._log.has_room(key, begin, request.owner):
                return None
            queue = self._log.changes.add(key, begin)
        return queue

    def begin(self, group: str, topic: str, queue_id: int, init_mode: int) -> int:
        """Return where a group's first pop of a queue begins, as 5.5.0 does: never behind the end of the queue."""
        committed = self._meta.working.offset(topic, group, queue_id)
        low, high = self._store.reader.bounds(topic, queue_id)
        if committed >= 0:
            return min(committed, high)
        if init_mode == 0 or topic.startswith(RETRY_PREFIX):
            return self._archive_reads.min_offset(topic, queue_id)
        if low <= 0:
            first = self._store.reader.get(topic, queue_id, 0, 1, 1, None)
            if not first.data or self._store.log.end - int.from_bytes(first.data[28:36], "big") <= RECENT_BYTES:
                return 0
        return max(high - 1, 0)

    def has_messages(self, request: Pop, place: QueueKey, now_ms: int) -> bool:
        """Whether a pop of this queue would find messages, filters aside."""
        topic, queue_id = place
        queue = self._log.state.queues.get((request.group, topic, queue_id))
        if queue is None:
            try:
                at = self.begin(request.group, topic, queue_id, request.init_mode)
            except RequestRejected:  # Not known yet: the pop says so.
                return True
        elif request.order and queue.count:
            return False
        elif request.order and queue.order is not None:
            return not queue.order.blocks(request.attempt_id, now_ms)
        else:
            at = queue.next
        return self._store.reader.max_offset(topic, queue_id) > at

    # ---- taking

    def take(self, query: FilteredPop, now_ms: int, places: Iterable[QueueKey]) -> Taken:
        """Take messages of the places, in their order, up to the pop's number. Raises OSError."""
        taken = Taken(now_ms)
        request = query.request
        if self._log.state.bytes > self._memory_bytes:
            taken.full = True
            return taken
        queues, most = self._log.state.queues, self._store.reader.max_offset
        ends = perf_counter() + SLICE_S
        max_bytes = self._settings.maxTransferBytesOnMessageInMemory
        for topic, queue_id in places:
            room = request.max_messages - taken.count
            if room <= 0 or (taken.count and taken.size >= max_bytes):
                break
            if taken.more and perf_counter() > ends:
                break
            queue = queues.get((request.group, topic, queue_id))
            if queue is not None and queue.order is None and most(topic, queue_id) <= queue.next:
                continue  # Most queues that a pop looks at have nothing new.
            if queue is None:
                try:
                    queue = self.queue(request, topic, queue_id)
                except RequestRejected:  # It is not known where the archive begins: what was taken is given first.
                    if not taken.count:
                        raise
                    break
            if queue is None:
                taken.full = True
                continue
            self._forget_removed(queue)
            if request.order:
                self._take_ordered(query, queue, room, taken)
            else:
                self._take(query, queue, room, taken, ends)
        if taken.count:
            taken.rest = self._rest(request)
        return taken

    def _forget_removed(self, queue: Queue) -> None:
        """Continues behind messages that the log no longer has."""
        _, topic, queue_id = queue.key
        low = self._store.reader.min_offset(topic, queue_id)
        if queue.next < low and not self._archive_reads.may_have(topic, queue_id, queue.next):
            self._log.changes.advance(queue, self._archive_reads.bounds(topic, queue_id)[0])

    def _rest(self, request: Pop) -> int:
        config = self._meta.working.topics.get(request.topic)
        if config is None or config.read_queues > REST_OF:
            return 0
        queues, most = self._log.state.queues, self._store.reader.max_offset
        rest = 0
        for queue_id in range(config.read_queues):
            queue = queues.get((request.group, request.topic, queue_id))
            if queue is not None:
                rest += max(most(request.topic, queue_id) - queue.next, 0)
                if queue.order is not None:
                    rest += len(queue.order.offsets) - queue.order.given
        return rest

    def _take(self, query: FilteredPop, queue: Queue, room: int, taken: Taken, ends: float) -> None:
        changes, request = self._log.changes, query.request
        _, topic, queue_id = queue.key
        if queue.order is not None:
            if queue.order.visible_ms() > taken.now_ms:
                return
            self._take_former_order(queue, request.invisible_ms, room, taken)
            return
        got = self._read(query, topic, queue_id, queue.next, room, taken, ends)
        if got is None:
            return
        offsets, data, at = got
        if not offsets:
            changes.advance(queue, at)
            taken.more = taken.more or at < self._store.reader.max_offset(topic, queue_id)
            return
        changes.pop(queue, offsets, taken.now_ms, request.invisible_ms, at)
        self._give(taken, request, topic, queue_id, offsets, data)

    def _take_former_order(self, queue: Queue, invisible_ms: int, room: int, taken: Taken) -> None:
        """Give messages of an orderly pop whose time is over to a pop that is not orderly."""
        _, topic, queue_id = queue.key
        changes, order = self._log.changes, queue.order
        assert order is not None
        offsets: list[int] = []
        pieces: list[bytes] = []
        unacked = [offset for offset in order.offsets if offset not in order.acked][:room]
        records = self._each(queue, unacked, taken)
        if records is None:
            return
        for offset, data in zip(unacked, records, strict=True):
            if data:
                offsets.append(offset)
                pieces.append(data)
            else:
                changes.finish(queue, offset)
        if offsets:
            changes.pop(queue, offsets, taken.now_ms, invisible_ms, queue.next)
            taken.data.append(b"".join(pieces))
            taken.parts.append((topic_type(topic), queue_id, offsets))
            taken.count += len(offsets)

    def _take_ordered(self, query: FilteredPop, queue: Queue, room: int, taken: Taken) -> None:
        changes, request, order = self._log.changes, query.request, queue.order
        if queue.count:
            return  # Popped without order before: the queue is blocked until they are finished.
        _, topic, queue_id = queue.key
        same = order is not None and request.attempt_id is not None and order.attempt == request.attempt_id
        if order is not None and order.blocks(request.attempt_id, taken.now_ms):
            return
        offsets: list[int] = []
        counts: list[int] = []
        pieces: list[bytes] = []
        gone: list[int] = []
        again = [] if order is None else order.again(same)
        behind = again[room:]
        records = self._each(queue, [offset for offset, _ in again[:room]], taken)
        if records is None:
            return
        for (offset, count), data in zip(again, records, strict=False):
            if not data:
                gone.append(offset)
                continue
            offsets.append(offset)
            counts.append(count)
            pieces.append(data)
        at = queue.next
        if len(offsets) < room and not behind:
            got = self._read(query, topic, queue_id, at, room - len(offsets), taken, perf_counter() + SLICE_S)
            if got is not None:
                fresh, data, at = got
                offsets += fresh
                counts += [0] * len(fresh)
                pieces.append(data)
                taken.more = taken.more or (not fresh and at < self._store.reader.max_offset(topic, queue_id))
        if not offsets:
            for offset in gone:
                changes.finish(queue, offset)
            changes.advance(queue, at)
            return
        given = len(offsets)
        changes.order_pop(
            queue,
            offsets + [offset for offset, _ in behind],
            counts + [count for _, count in behind],
            max(given, order.given - len(gone)) if same and order is not None else given,
            order.since_ms if same and order is not None else taken.now_ms,
            taken.now_ms,
            request.invisible_ms,
            request.attempt_id,
            at,
        )
        counted = [(offset, count) for offset, count in zip(offsets, counts, strict=True) if count]
        kind = topic_type(topic)
        taken.orders.append(order_count_info(kind, queue_id, counted, given))
        taken.data.append(b"".join(pieces))
        taken.parts.append((kind, queue_id, offsets))
        taken.count += given
        taken.size += sum(map(len, pieces))

    def _archived(self, read: ArchiveQuery, taken: Taken) -> Got | None:
        """Return what was read of the archive for a step; None: nothing yet."""
        got = self._archive_reads.ready(read)
        if got is None:
            taken.archived.append(read)
        else:
            self._archive_reads.used(read)
        return got

    def _each(self, queue: Queue, offsets: Sequence[int], taken: Taken) -> list[bytes] | None:
        """Return one record each, b"" for one that is gone; None: some cannot be read now."""
        _, topic, queue_id = queue.key
        data: list[bytes] = []
        missing = False
        for offset in offsets:
            one = self._one(topic, queue_id, offset, taken)
            missing = missing or one is None
            data.append(one or b"")
        if missing:
            return None
        for read in taken.reads:
            self._archive_reads.used(read)
        taken.reads.clear()
        return data

    def _one(self, topic: str, queue_id: int, offset: int, taken: Taken) -> bytes | None:
        """Return one record, b"" when it is gone; None: it cannot be read now."""
        got: Got | None = self._store.reader.get(topic, queue_id, offset, 1, 1)
        gone = got is not None and got.status == GetStatus.OFFSET_TOO_SMALL
        if gone and self._archive_reads.may_have(topic, queue_id, offset):
            read = ArchiveQuery(topic, queue_id, offset, 1, 1)
            got = self._archive_reads.ready(read)
            (taken.archived if got is None else taken.reads).append(read)
        if got is None or got.damaged >= 0:
            return None
        if got.data and int.from_bytes(got.data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big") == offset:
            return without_handles(got.data)
        return b""

    def _read(
        self, query: FilteredPop, topic: str, queue_id: int, at: int, room: int, taken: Taken, ends: float
    ) -> tuple[list[int] | range, bytes, int] | None:
        """Return (offsets, records, where to go on) of messages behind `at`; None: there are none now."""
        high = self._store.reader.max_offset(topic, queue_id)
        # A larger offset does not fit into an entry of the wheel: it would lead to another queue.
        if at >= high or high > MAX_OFFSET:
            return None
        max_bytes = max(self._settings.maxTransferBytesOnMessageInMemory - taken.size, 1)
        got: Got | None = None
        if at < self._store.reader.min_offset(topic, queue_id) and self._archive_reads.may_have(topic, queue_id, at):
            request, key = query.request, ""
            matches: Callable[[Record], bool] | None = None
            if (condition := query.condition) is not None:
                matches = partial(_matches, condition)
                key = f"{request.expression_type} {request.expression}"
            read = ArchiveQuery(topic, queue_id, at, room, max_bytes, query.codes, matches, key)
            got = self._archived(read, taken)
            if got is None:
                return None
        elif query.condition is not None:
            condition = query.condition
            got = self._store.reader.get(
                topic, queue_id, at, room, max_bytes, None, lambda record: condition(record.props),
                lambda: perf_counter() > ends,
            )  # fmt: skip
        else:
            if query.codes is None:
                got = self._store.reader.together().try_get(topic, queue_id, at, room, max_bytes)
            if got is None:
                got = self._store.reader.get(topic, queue_id, at, room, max_bytes, query.codes)
        if not got.count:
            return None if got.damaged >= 0 or got.next_offset <= at else ([], b"", got.next_offset)
        data = got.data
        if got.next_offset - at == got.count:
            return range(at, got.next_offset), without_handles(data), got.next_offset
        offsets: list[int] = []
        place = 0
        while place < len(data):
            number = place + QUEUE_OFFSET_AT
            offsets.append(int.from_bytes(data[number : number + 8], "big"))
            place += int.from_bytes(data[place : place + 4], "big")
        return offsets, without_handles(data), got.next_offset

    def _give(self, taken: Taken, request: Pop, topic: str, queue_id: int, offsets: Sequence[int], data: bytes) -> None:
        kind = topic_type(topic)
        if kind != NORMAL and topic != request.topic:
            head = f"{offsets[0]} {taken.now_ms} {request.invisible_ms} 0 {kind} {self._broker} {queue_id} "
            data = as_of_topic(data, request.topic, head)
        taken.data.append(data)
        taken.parts.append((kind, queue_id, offsets))
        taken.count += len(offsets)
        taken.size += len(data)

    # ---- peeking

    def peek(self, query: FilteredPop, now_ms: int) -> Taken:
        """Read the messages that the next pop would find; it changes nothing. Raises OSError."""
        taken = Taken(now_ms)
        request = query.request
        ends = perf_counter() + SLICE_S
        for topic, queue_id in self.places(request):
            room = request.max_messages - taken.count
            if room <= 0:
                break
            queue = self._log.state.queues.get((request.group, topic, queue_id))
            at = self.begin(request.group, topic, queue_id, request.init_mode) if queue is None else queue.next
            at = max(at, self._archive_reads.bounds(topic, queue_id)[0])
            got = self._read(query, topic, queue_id, at, room, taken, ends)
            if got is not None and len(got[0]):
                self._give(taken, request, topic, queue_id, *got[:2])
        return taken


def _matches(condition: Filter, record: Record) -> bool:
    return condition(record.props)


def as_of_topic(data: bytes, topic: str, handle: str) -> bytes:
    """Return records of a retry topic as records of the topic that was asked for, each with its handle.

    `handle`: the handle without the message's offset.
    """
    out: list[bytes] = []
    place = 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        record = decode_record(data, place, check_crc=False)
        record.topic = topic
        props = record.props
        props[Prop.POP_CK] = f"{handle}{record.queue_offset}"
        try:
            record.properties = repack_properties(props)
            out.append(record.encode())
        except RecordError:  # No room for the handle: the client makes it from the answer's header.
            out.append(data[place : place + size])
        place += size
    return b"".join(out)


def without_handles(data: bytes) -> bytes:
    """Return records without the handle of an earlier delivery. A former release stored it where a client sent it."""
    if _HANDLE not in data:
        return data
    out: list[bytes] = []
    place = 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        piece = data[place : place + size]
        if _HANDLE in piece:
            record = decode_record(piece, check_crc=False)
            props = record.props
            if props.pop(Prop.POP_CK, None) is not None:
                with suppress(RecordError):
                    record.properties = repack_properties(props)
                    piece = record.encode()
        out.append(piece)
        place += size
    return b"".join(out)


def answer(taken: Taken, request: Pop) -> Popped:
    """Return the answer with what was taken."""
    return Popped(
        status=PopStatus.FOUND,
        data=b"".join(taken.data),
        count=taken.count,
        pop_ms=taken.now_ms,
        invisible_ms=request.invisible_ms,
        revive_queue=ORDERLY_QUEUE if request.order else 0,
        rest=taken.rest,
        start_offset_info=start_offset_info([(kind, queue, offsets[0]) for kind, queue, offsets in taken.parts]),
        message_offset_info=message_offset_info(taken.parts),
        order_count_info=";".join(taken.orders) if request.order else None,
    )
