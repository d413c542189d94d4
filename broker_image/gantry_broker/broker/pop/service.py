"""The leader's POP service: pops, acknowledgements, renewals, waiting pops, expiry.

An answer leaves when the change behind it is replicated. What a client does not get, because it has gone or because
the replication failed, becomes visible again when its time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker.archive_reads import PULL_S, busy
from gantry_broker.broker.clock import SteadyClock
from gantry_broker.broker.errors import NotWritable, RequestRejected
from gantry_broker.broker.pop.expiry import Expiry
from gantry_broker.broker.pop.finding import FilteredPop, Finder, QueueKey, Taken, answer
from gantry_broker.broker.pop.log import PopLog
from gantry_broker.broker.pop.queue import Queue, offsets_of
from gantry_broker.broker.pop.requests import (
    MAX_MESSAGES,
    MAX_POLL_MS,
    Ack,
    AckResult,
    ChangeInvisible,
    InFlight,
    Pop,
    Popped,
    PopStatus,
)
from gantry_broker.broker.pop.waiting import MAX_NOTIFICATIONS, Pair, Waiter, WaitingPops
from gantry_broker.broker.pull.sql92 import FilterSyntaxError
from gantry_broker.protocol.codes import ResponseCode, SendStatus
from gantry_broker.protocol.pop_handle import ORDERLY_QUEUE, BadHandle, Handle, real_topic
from gantry_broker.tasks import set_within
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.after_confirm import AfterConfirm
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Change, Metadata
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.protocol.bodies import BatchAck
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

READY_S: Final = 2.0
"""Seconds that a request waits until a new leader has read the state. Clients wait for 3 s."""
MEMORY_SHARE: Final = 8
"""POP's state may take this part of the memory."""
MAX_UNSTORED: Final = 10_000
"""Requests that may wait for the replication of their change at the same time."""
AT_ONCE: Final = 64
"""NOTIFICATIONs that are answered in one pass."""
MAX_EARLY: Final = 10_000
"""Changes of offsets that are kept while a new leader reads the state."""


class _Waiting:
    """How many wait, of both kinds."""

    def __init__(self, *tables: WaitingPops) -> None:
        self._tables = tables

    def __len__(self) -> int:
        return sum(map(len, self._tables))


class PopService:
    """Only a leader serves; every answer waits until the change is replicated."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        broker: str,
        memory_bytes: int,
        *,
        meta: Metadata,
        writer: LogWriter,
        changes: MetadataChanges,
        creation: OnDemandCreation,
        role: RoleState,
        health: MemberHealth,
        filters: Filters,
        confirmed: AfterConfirm,
        archive_reads: ArchiveReads,
        counts: MessageCounts,
        stats: Stats,
        events: Events,
        slices: TimeSlices,
        clock: Clock,
    ) -> None:
        """`broker`: the name in handles; `memory_bytes`: of the process."""
        self._store = store
        self._settings = store.config.settings
        self._broker = broker
        self._meta = meta
        self._role = role
        self._filters = filters
        self._counts = counts
        self._slices = slices
        self._clock = SteadyClock(clock)
        self._loop = asyncio.get_running_loop()
        self._epoch = -1
        self._log = PopLog(
            store,
            store_host,
            meta=meta,
            writer=writer,
            role=role,
            health=health,
            clock=clock,
            pop_clock=self._clock,
        )
        self._archive_reads = archive_reads
        self._finder = Finder(store, meta, self._log, archive_reads, broker, memory_bytes // MEMORY_SHARE)
        self._waiting = WaitingPops()
        self._notified = WaitingPops(MAX_NOTIFICATIONS, MAX_NOTIFICATIONS)
        """Waiting NOTIFICATIONs."""
        self._expiry = Expiry(
            store,
            self._log,
            meta=meta,
            creation=creation,
            role=role,
            stats=stats,
            archive_reads=archive_reads,
            clock=self._clock,
            unlocked=self.wake,
        )
        self._early: list[tuple[Any, ...]] = []
        self._log.on_ready = self._ready
        self._log.on_written = self._expiry.arm
        meta.on_commit = self._committed
        changes.on_append = self._changing
        confirmed.wake_pops = self.wake
        confirmed.pops = _Waiting(self._waiting, self._notified)
        events.role_changed.subscribe(self._role_changed)

    # ---- requests

    async def pop(self, request: Pop) -> Popped:
        """Pops messages, or waits for some. The caller has checked topic, group, permission and ranges.

        Raises RequestRejected (SUBSCRIPTION_PARSE_FAILED, SYSTEM_BUSY), NotWritable, NotStored, OSError.
        """
        query = self._filtered(request)
        deadline = self._loop.time() + min(request.poll_ms, MAX_POLL_MS) / 1000
        await self.until_ready()
        late = self._loop.time() + PULL_S
        while True:
            self._may()
            taken = self._take(query)
            if taken.count:
                # Before the answer: a new leader that does not know of this pop would give the messages to others at
                # once.
                await self._log.stored()
                return self._answer(taken, request)
            if taken.archived:
                if self._loop.time() > late:
                    raise busy("others wait for it, too")
                for read in taken.archived:
                    await self._archive_reads.prepare(read, request.owner)
            elif not taken.more:
                break
            await self._slices.grant()
        if taken.full:
            return self._none(taken.now_ms, request, PopStatus.NO_MESSAGE)
        if self._loop.time() >= deadline:
            return self._none(taken.now_ms, request, PopStatus.POLLING_TIMEOUT)
        # Between the look above and this place nothing else runs: no message comes unseen.
        waiter = Waiter(query, self._loop.create_future())
        if not self._waiting.add(waiter):
            return self._none(taken.now_ms, request, PopStatus.POLLING_FULL)
        waiter.timer = self._loop.call_at(deadline, waiter.end, None)
        try:
            arrived = await waiter.future
        finally:
            waiter.timer.cancel()
            self._waiting.remove(waiter)
        if arrived is None:
            return self._none(self._clock.unix_ms(), request, PopStatus.POLLING_TIMEOUT)
        return self._answer(arrived, request)

    def pop_at_once(self, request: Pop, give: Callable[[Popped | Exception], None]) -> bool:
        """Pops messages that are there; `give` gets them when that is replicated, or NotWritable or NotStored.

        Returns False when there are none, for `pop`. Raises as `pop`.
        """
        if not self._log.ready.is_set():
            return False
        query = self._filtered(request)
        self._may()
        taken = self._take(query)
        if not taken.count:
            return False
        self._log.submit(lambda status: give(self._log.failure(status) or self._answer(taken, request)))
        return True

    def peek(self, request: Pop) -> Popped:
        """Return the messages that a pop would find, and changes nothing. Raises RequestRejected and OSError."""
        query = self._filtered(request)
        self._may()
        if not self._log.ready.is_set():
            raise self._busy()
        taken = self._finder.peek(query, self._clock.unix_ms())
        if not taken.count and taken.archived:
            self._archive_reads.prepare_soon(taken.archived[0])
            raise busy("the first message is on its way")
        if not taken.count:
            return self._none(taken.now_ms, request, PopStatus.NO_MESSAGE)
        return answer(taken, request)

    async def until_ready(self) -> None:
        """Wait until a new leader has read the state. Raises RequestRejected (SYSTEM_BUSY) and NotWritable."""
        if self._log.ready.is_set():
            return
        if not self._role.leading:
            raise NotWritable(self._role.refusal())
        if not await set_within(self._log.ready, READY_S):
            raise self._busy()

    def ack(self, ack: Ack) -> AckResult:
        """Finishes a message; `when_stored` says when that is certain. Raises RequestRejected (SYSTEM_BUSY) and
        NotWritable.
        """
        self._may()
        return self._ack(ack, self._clock.unix_ms())

    def ack_batches(self, batches: Iterable[tuple[BatchAck, int]]) -> list[int]:
        """Finishes messages of pops: those of an entry that the number beside it has bits for. Returns the bits of
        those that are finished now, or were before.

        `when_stored` says when that is certain. Raises RequestRejected (SYSTEM_BUSY) and NotWritable.
        """
        self._may()
        now = self._clock.unix_ms()
        return [self._ack_batch(entry, bits, now) if bits else 0 for entry, bits in batches]

    def when_stored(self, done: Callable[[bool], None]) -> None:
        """Call `done` when the acknowledgements so far are replicated (True), or are not in time."""
        self._log.submit(lambda status: done(status is SendStatus.SEND_OK))

    async def change_invisible(self, change: ChangeInvisible) -> Handle:
        """Give a message in flight a new invisible time. Raises BadHandle, RequestRejected, NotWritable, NotStored."""
        await self.until_ready()
        self._may()
        handle = change.handle
        queue = self._queue(change.group, change.topic, handle)
        now = self._clock.unix_ms()
        if queue is None:
            raise BadHandle("the message is not in flight")
        if handle.orderly:
            order = queue.order
            delivered = order is not None and order.is_delivered(handle.offset, handle.pop_ms)
            if order is None or not delivered or handle.offset in order.acked:
                raise BadHandle("the message is not in flight, or was delivered again")
            visible = now + change.invisible_ms
            self._log.changes.order_renew(queue, handle.offset, visible, change.suspend)
            await self._log.stored()
            return Handle(
                handle.offset, handle.pop_ms, visible - handle.pop_ms, ORDERLY_QUEUE, handle.kind, self._broker,
                handle.queue_id, handle.offset,
            )  # fmt: skip
        if not queue.is_delivered(handle.offset, handle.pop_ms):
            raise BadHandle("the message is not in flight, or was delivered again")
        pop_ms = queue.renewal_ms(handle.offset, now)
        invisible_ms = max(now + change.invisible_ms - pop_ms, 0)
        self._log.changes.renew(queue, handle.offset, pop_ms, invisible_ms, change.suspend)
        await self._log.stored()
        return Handle(
            handle.offset, pop_ms, invisible_ms, handle.revive_queue, handle.kind, self._broker, handle.queue_id,
            handle.offset,
        )  # fmt: skip

    # ---- what is there

    def in_flight(self, group: str, topic: str) -> list[InFlight]:
        """Return what is in flight by queue, of queues that POP knows; retry topics are topics of their own."""
        config = self._meta.working.topics.get(topic)
        queues = self._log.state.queues
        rows = [queues.get((group, topic, number)) for number in range(config.read_queues if config else 0)]
        return [InFlight(queue.key[2], queue.in_flight, queue.next) for queue in rows if queue is not None]

    @property
    def messages_in_flight(self) -> int:
        """Messages of all groups."""
        return len(self._log.state)

    @property
    def ready(self) -> bool:
        """Whether this member has the state of POP consumption: it leads, and has read it."""
        return self._log.ready.is_set()

    def waiting(self, group: str, topic: str) -> int:
        """Return how many pops wait."""
        return self._waiting.of(group, topic)

    async def has_messages(self, request: Pop) -> tuple[bool, bool]:
        """Return whether a pop would find messages, filters aside, now or within its time; and whether it could not
        wait, because too many wait.

        Raises RequestRejected (SYSTEM_BUSY) and NotWritable.
        """
        await self.until_ready()
        deadline = self._loop.time() + min(request.poll_ms, MAX_POLL_MS) / 1000
        waiter = Waiter(FilteredPop(request), self._loop.create_future())
        # It waits before the look, which may take several passes: no message comes unseen.
        held = request.poll_ms > 0 and self._notified.add(waiter)
        try:
            async for place in self._slices.sliced(self._finder.places(request)):
                if self._finder.has_messages(request, place, self._clock.unix_ms()):
                    return True, False
            if not held:
                return False, request.poll_ms > 0
            waiter.timer = self._loop.call_at(deadline, waiter.end, None)
            return await waiter.future is not None, False
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
            if held:
                self._notified.remove(waiter)

    def knows(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group has popped from this queue."""
        return (group, topic, queue_id) in self._log.state.queues

    def write_whole(self) -> bool:
        """Write the whole state at times; returns True while more of it waits. A task calls it every second."""
        return self._log.write_whole()

    def settle(self) -> None:
        """End all waiting pops without messages: their clients ask again, and are checked."""
        self._settle()

    def close(self) -> None:
        self._expiry.stop()
        self._log.stop()
        self._settle()

    # ---- parts of requests

    def _filtered(self, request: Pop) -> FilteredPop:
        """Return a pop with its filter. Raises RequestRejected."""
        request.max_messages = min(max(request.max_messages, 1), MAX_MESSAGES)
        begun = perf_counter()
        try:
            subscription = self._filters.subscription(
                request.topic, request.expression or "*", request.expression_type, request.owner
            )
            request.expression = subscription.data.expression  # One text for all pops with this filter.
            if subscription.is_tag:
                every = subscription.data.expression in ("", "*")
                return FilteredPop(request, None if every else subscription.codes or None, None, subscription)
            if not self._settings.enablePropertyFilter:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"The broker does not support consumer to filter message by {subscription.data.expression_type}",
                )
            return FilteredPop(request, None, self._filters.compiled(subscription.data.expression), subscription)
        except FilterSyntaxError as error:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
        finally:
            if request.expression_type not in ("", "TAG"):
                self._slices.charge(perf_counter() - begun)

    @staticmethod
    def _busy() -> RequestRejected:
        return RequestRejected(
            ResponseCode.SYSTEM_BUSY,
            "this master has just taken over and reads what is in flight; ask again",
        )

    def _may(self) -> None:
        """Check that state may change. Raises NotWritable and RequestRejected when nothing may change now."""
        if not self._role.may_append:
            raise NotWritable(self._role.refusal())
        if not self._log.ready.is_set():
            raise self._busy()
        if self._log.refused:
            raise NotWritable(self._log.refused)
        if self._log.waiting >= MAX_UNSTORED:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, "too many requests wait for replication; ask again")

    def _take(self, query: FilteredPop, places: Sequence[QueueKey] | None = None) -> Taken:
        begun = perf_counter()
        looked = self._finder.turn(query.request) if places is None else places
        taken = self._finder.take(query, self._clock.unix_ms(), looked)
        if self._log.changes:
            self._log.submit()
        if query.condition is not None:
            self._slices.charge(perf_counter() - begun)
        if taken.count:  # Otherwise `pop` waits for them. A queue that always has messages must not hold back others.
            for read in taken.archived:
                self._archive_reads.prepare_soon(read)
        return taken

    def _answer(self, taken: Taken, request: Pop) -> Popped:
        self._counts.gets(request.topic, request.group, taken.count, taken.size, {})
        return answer(taken, request)

    @staticmethod
    def _none(now_ms: int, request: Pop, status: PopStatus) -> Popped:
        return Popped(
            status=status,
            pop_ms=now_ms,
            invisible_ms=request.invisible_ms,
            revive_queue=ORDERLY_QUEUE if request.order else 0,
        )

    def _queue(self, group: str, topic: str, handle: Handle) -> Queue | None:
        """Return the queue that a handle names. Raises BadHandle when it is of another broker."""
        if handle.broker != self._broker:
            raise BadHandle(f"the handle is of broker {handle.broker[:80]!r}, this is {self._broker!r}")
        return self._log.state.queues.get((group, real_topic(topic, group, handle.kind), handle.queue_id))

    def _ack(self, ack: Ack, now_ms: int) -> AckResult:
        handle = ack.handle
        try:
            queue = self._queue(ack.group, ack.topic, handle)
        except BadHandle:
            return AckResult.INVALID
        if queue is None:
            return AckResult.INVALID
        if handle.offset >= queue.next:
            return AckResult.NO_MESSAGE
        if handle.orderly:
            order = queue.order
            matches = order is not None and order.is_delivered(handle.offset, handle.pop_ms)
        else:
            matches = queue.is_delivered(handle.offset, handle.pop_ms)
        if not matches:
            # Within its time it can only have been acknowledged before: the client repeats a request whose answer it
            # lost.
            over = handle.visible_ms <= max(now_ms, self._log.state.expired_ms)
            return AckResult.INVALID if over else AckResult.OK
        self._log.changes.finish(queue, handle.offset)
        if handle.orderly:
            order = queue.order
            if order is None or not order.given or order.visible_ms() <= now_ms:
                self.wake([queue.key[1:]])
        return AckResult.OK

    def _ack_batch(self, entry: BatchAck, bits: int, now_ms: int) -> int:
        start, pop_ms, until = entry.start_offset, entry.pop_ms, entry.pop_ms + entry.invisible_ms
        topic = real_topic(entry.topic, entry.group, entry.kind)
        queue = self._log.state.queues.get((entry.group, topic, entry.queue_id))
        if queue is None:
            return 0
        if entry.revive_queue == ORDERLY_QUEUE:
            done = 0
            for offset in offsets_of(start, bits):
                handle = Handle(
                    start, pop_ms, entry.invisible_ms, ORDERLY_QUEUE, entry.kind, self._broker, entry.queue_id, offset
                )
                if self._ack(Ack(group=entry.group, topic=entry.topic, handle=handle), now_ms) is AckResult.OK:
                    done |= 1 << offset - start
            return done
        done = queue.delivered_bits(start, bits, pop_ms)
        if done:
            self._log.changes.finish_bits(queue, start, done)
        rest = bits & ~done
        if rest and until > max(now_ms, self._log.state.expired_ms) and queue.next > start:
            done |= rest & (1 << min(queue.next - start, rest.bit_length())) - 1
        return done

    # ---- waiting pops

    def wake(self, places: Sequence[QueueKey]) -> None:
        """Try the waiting pops that may get messages of these queues,, and answers NOTIFICATIONs."""
        if not self._log.ready.is_set():
            return
        if self._notified:
            self._notify(
                deque(
                    (waiter, place)
                    for place in places
                    for pair in self._notified.pairs(place[0])
                    if self._finder.looks_in(pair, place[0])
                    for waiter in self._notified.waiters(pair)
                )
            )
        if not self._waiting:
            return
        todo: deque[tuple[Pair, QueueKey]] = deque()
        for place in places:
            for pair in self._waiting.pairs(place[0]):
                todo.append((pair, place))
        if todo:
            self._try(todo)

    def _notify(self, todo: deque[tuple[Waiter, QueueKey]]) -> None:
        """Answers NOTIFICATIONs whose queue has messages: some in each pass, for each answer is work of its own."""
        ends, answered = perf_counter() + SLICE_S, 0
        while todo:
            waiter, place = todo.popleft()
            request = waiter.query.request
            meant = place[0] != request.topic or request.queue_id in (-1, place[1])
            meant = meant and not waiter.future.done() and (place[0] == request.topic or not request.order)
            if meant and self._finder.has_messages(request, place, self._clock.unix_ms()):
                waiter.end(Taken(0))
                answered += 1
            if todo and (answered >= AT_ONCE or perf_counter() > ends):
                self._slices.charge(SLICE_S)
                self._slices.later(lambda: self._notify(todo))
                return

    def _try(self, todo: deque[tuple[Pair, QueueKey]]) -> None:
        """Try pops for one slice, and the rest in later passes."""
        ends = perf_counter() + SLICE_S
        while todo:
            pair, place = todo.popleft()
            if self._try_pair(pair, place, ends):
                todo.appendleft((pair, place))
            if todo and perf_counter() > ends:
                self._slices.charge(SLICE_S)
                self._slices.run(lambda: self._try(todo))
                return

    def _try_pair(self, pair: Pair, place: QueueKey, ends: float) -> bool:
        """Try the pops of one group for one queue; returns True when its time was over before all had their turn."""
        group, popped = pair
        topic, queue_id = place
        if not self._finder.looks_in(pair, topic):
            return False
        most = self._store.reader.max_offset(topic, queue_id)
        queues = self._log.state.queues
        for waiter in self._waiting.waiters(pair):
            request = waiter.query.request
            if request.closed():
                waiter.end(None)
                self._waiting.remove(waiter)
                continue
            if (topic == popped and request.queue_id not in (-1, queue_id)) or (topic != popped and request.order):
                continue
            if self._log.refused or not self._role.may_append or not self._log.ready.is_set():
                return False
            try:
                taken = self._take(waiter.query, [place])
            except RequestRejected:  # It waits on: the others must not wait for the archive.
                return False
            if taken.count:
                self._waiting.remove(waiter)
                self._give(waiter, taken)
            queue = queues.get((group, topic, queue_id))
            if queue is None or taken.full:
                return False
            order = queue.order
            if queue.next >= most and order is None:
                return False
            if order is not None and order.given and order.visible_ms() > taken.now_ms:
                return False  # The others wait until it is not blocked any more.
            if perf_counter() > ends:
                return True
        return False

    def _give(self, waiter: Waiter, taken: Taken) -> None:
        """Answers a waiting pop when its change is replicated."""

        def replicated(status: SendStatus | None) -> None:
            waiter.end(taken if status is SendStatus.SEND_OK else None)

        # The messages are taken for it. An empty answer now would leave them invisible until their time is over.
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._log.submit(replicated)

    def _settle(self) -> None:
        for waiter in (*self._waiting.take_all(), *self._notified.take_all()):
            waiter.end(None)

    # ---- what others change

    def _role_changed(self, leads: bool) -> None:
        epoch = self._role.epoch if self._role.leading else -1
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._expiry.stop()
        self._early.clear()
        if self._role.leading:
            self._log.lead()
        else:
            self._log.stop()
        self._settle()

    def _ready(self) -> None:
        early, self._early = self._early, []
        for kind, *args in early:
            (self._committed if kind == "commit" else self._changing)(*args)
        self._expiry.arm()

    def _committed(self, key: str, queue_id: int, offset: int) -> None:
        """Follows an offset that a client has committed: a pulling member, or `mqadmin`."""
        if self._log.committing or not self._role.leading:
            return
        if not self._log.ready.is_set():
            if len(self._early) < MAX_EARLY:
                self._early.append(("commit", key, queue_id, offset))
            return
        if not self._log.state.queues:
            return
        topic, _, group = key.rpartition("@")
        queue = self._log.state.queues.get((group, topic, queue_id))
        if queue is None:
            return
        if offset > queue.next:
            # Messages between the end and an offset behind it would never be delivered.
            self._log.changes.advance(queue, min(offset, self._store.reader.max_offset(topic, queue_id)))
        elif offset < queue.lowest():
            self._reset(queue, offset)
        else:
            queue.committed = -1
            self._log.commit([queue])  # Messages below it are in flight.
            return
        queue.committed = offset
        self._log.submit()

    def _reset(self, queue: Queue, offset: int) -> None:
        self._log.changes.reset(queue, offset)
        self._loop.call_soon(self.wake, [queue.key[1:]])

    def _changing(self, change: Change) -> None:
        """Follows a change of the tables that is about to be appended: its own record comes before it in the log."""
        offsets, dropped = change.get("offsets"), change.get("dropOffsets")
        topics, groups = change.get("dropTopics"), change.get("dropGroups")
        if not (offsets or dropped or topics or groups):
            return
        if not self._log.ready.is_set():
            if self._role.leading and len(self._early) < MAX_EARLY:
                self._early.append(("change", change))
            return
        changes, queues = self._log.changes, self._log.state.queues
        for key, values in (offsets or {}).items():
            topic, _, group = key.rpartition("@")
            for number, offset in values.items():
                queue = queues.get((group, topic, int(number)))
                if queue is not None and (offset != queue.next or queue.in_flight):
                    self._reset(queue, offset)
        if topics or groups or dropped:
            names, members, keys = set(topics or ()), set(groups or ()), set(dropped or ())
            for queue in list(queues.values()):
                group, topic, _ = queue.key
                if topic in names or group in members or f"{topic}@{group}" in keys:
                    changes.drop(queue)
        if changes:
            self._log.flush()
            self._expiry.arm()
