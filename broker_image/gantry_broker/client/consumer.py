"""The push consumer: it allocates queues, pulls messages, calls the application and commits offsets.

Each queue has one pulling task; `concurrency` workers call the handler. A message is consumed when the handler returns.
When the handler raises, the broker delivers the message again later, and after 16 retries keeps it as a dead letter.
Delivery is at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError
from gantry_broker.client.message import FromWhere, ReceivedMessage, check_group, check_topic
from gantry_broker.client.offsets import BrokerOffsets, FileOffsets, OffsetStore
from gantry_broker.client.process_queue import DEFAULT_LIMITS, FlowLimits, ProcessQueue
from gantry_broker.client.producer import Producer
from gantry_broker.client.proxy_address import proxy_of
from gantry_broker.client.pulling import Puller, PullStatus
from gantry_broker.client.queue_allocation import AllocationUnavailable, QueueAllocation
from gantry_broker.client.sendback import RETRY_TIMES, SendBack
from gantry_broker.client.session import BACKOFF_FIRST, Session, next_backoff, session_of
from gantry_broker.client.spans import Spans, spans_of
from gantry_broker.client.subscription import subscription
from gantry_broker.client.trace import GROUP_PREFIX, MessageTrace, consumed, now_ms
from gantry_broker.protocol.allocation import Strategy, averagely
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import ConsumerData, SubscriptionData
from gantry_broker.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue, dumps
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import RecordError
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import Started, end_tasks, set_within

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from gantry_broker.client.grpc_push import GrpcPush

log = logging.getLogger(__name__)

REBALANCE_SECONDS: Final = 20.0
COMMIT_SECONDS: Final = 5.0
REBALANCE_DELAY_SECONDS: Final = 1.0
"""After a broker's connection breaks, members register again one by one. Rebalancing waits this long for them."""
LOCAL_RETRY_SECONDS: Final = 5.0

_BY_GRPC: Final = {
    "from_where": "a new group begins at the end of each queue; reset its offsets for another place",
    "from_time_ms": "a new group begins at the end of each queue; reset its offsets for another place",
    "broadcasting": "write the NameServers as host:port, or a group of its own for each member",
    "offset_file": "brokers keep the offsets",
    "strategy": "members share all queues",
    "max_retries": "the group has retryMaxTimes",
    "suspend_s": "the group has groupRetryPolicy",
    "trace": "leave out trace=True, spans are there",
}
MessageHandler = Callable[[ReceivedMessage], Awaitable[object]]
_FAILURES = (RemotingError, ClientError, BodyError, BadField, RecordError)


class RetryLater(Exception):
    """Raised by a handler to get a message again. `delay_level` 0 lets the broker choose the delay, -1 makes a dead
    letter.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"retry with delay level {delay_level}")
        self.delay_level = delay_level


class Consumer(Started):
    """Consumes as a member of a group.

    async with Consumer("127.0.0.1:9876", "billing") as consumer:
        await consumer.subscribe("Orders", handle)
        ...

    With "grpc://HOST:PORT", a proxy, it speaks gRPC (docs/client.md says what that cannot do).
    """

    consume_type = "CONSUME_PASSIVELY"
    ordered = False
    _GRPC_TOO: ClassVar[bool] = True
    _RETRIES: ClassVar[int] = RETRY_TIMES

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        group: str,
        *,
        from_where: FromWhere = FromWhere.LAST,
        from_time_ms: int | None = None,
        broadcasting: bool = False,
        offset_file: Path | None = None,
        strategy: Strategy = averagely,
        concurrency: int = 20,
        limits: FlowLimits = DEFAULT_LIMITS,
        max_retries: int = RETRY_TIMES,
        commit_s: float = COMMIT_SECONDS,
        rebalance_s: float = REBALANCE_SECONDS,
        tls: TlsOptions | ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        trace: bool = False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """`from_where` applies only to a group without offsets; `from_time_ms` (default: half an hour ago) belongs
        to `FromWhere.TIMESTAMP`. With `broadcasting` every member gets every message, `offset_file` holds the
        offsets, and failed messages are not delivered again. `tls`: see `Session`; a given session has its own.
        `trace`, `tracer_provider`: as for `Producer`.
        """
        check_group(group)
        self.group = group
        self.broadcasting = broadcasting
        self.max_retries = max_retries
        self.started_ms = now_ms()
        self._grpc: GrpcPush | None = None
        proxy = proxy_of(name_servers) if self._GRPC_TOO else None
        if proxy is None:
            self.session = session_of(name_servers, credentials, tls)
            self.offsets: OffsetStore = FileOffsets(offset_file) if broadcasting else BrokerOffsets(self.session, group)
            self.puller = Puller(self.session, group)
            self._allocation = QueueAllocation(self.session, group, None if broadcasting else strategy)
            self._send_back = SendBack(self.session, group)
        else:
            refuse_by_grpc(
                from_where=from_where is not FromWhere.LAST,
                from_time_ms=from_time_ms is not None,
                broadcasting=broadcasting,
                offset_file=offset_file is not None,
                strategy=strategy is not averagely,
                max_retries=max_retries != self._RETRIES,
                trace=trace,
            )
            from gantry_broker.client.grpc_push import GrpcPush, push_receiver

            receiver = push_receiver(proxy, group, credentials, tls)
            self._grpc = GrpcPush(receiver, self.handle, concurrency, limits)
        self._from_where = from_where
        self._from_time_ms = self.started_ms - 1_800_000 if from_time_ms is None else from_time_ms
        self._concurrency = concurrency
        self._limits = limits
        self._commit_s = commit_s
        self._rebalance_s = rebalance_s
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._handlers: dict[str, MessageHandler] = {}
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._ready: asyncio.Queue[tuple[ReceivedMessage, ProcessQueue] | None] = asyncio.Queue()
        self._capacity = asyncio.Condition()
        self._rebalance_now = asyncio.Event()
        self._rebalance_not_before = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._suspended = False
        self._closing = False
        self._trace: MessageTrace | None = None
        if trace:
            self._trace = MessageTrace(Producer(self.session, f"{GROUP_PREFIX}{group[:200]}-CONSUME"))
        self._tracer_provider = tracer_provider
        self._spans: Spans | None = None

    # Start and stop

    async def start(self) -> None:
        if self._grpc is not None:
            self._spans = self._grpc.spans = spans_of(self._tracer_provider, self.group)
            await self._grpc.start(ordered=self.ordered)
            return
        await self.session.start()
        self._spans = self.puller.spans = spans_of(self._tracer_provider, self.group)
        if self._trace is not None:
            await self._trace.start()
        self.session.consumers[self.group] = self.consumer_data
        self.session.on_group_change.append(self._on_group_change)
        self.session.on_disconnect.append(self._disconnected)
        self.session.register_consumer_admin(self)
        self._tasks = [
            asyncio.create_task(self._rebalance_forever()),
            asyncio.create_task(self._commit_forever()),
            *self._workers(),
        ]
        if self._subscriptions:
            await self._register()

    async def close(self, patience_s: float = 10.0) -> None:
        """Stop pulling, wait up to `patience_s` seconds for running handlers, commit offsets and leave the
        group.
        """
        if self._closing:
            return
        self._closing = True
        if self._grpc is not None:
            await self._grpc.close(patience_s)
            return
        background = self._tasks[:2]
        await end_tasks(*background)
        running = list(self._assigned.values())
        for item in running:
            item.process.dropped = True
        await end_tasks(*(item.task for item in running))
        workers = self._stop_workers()
        if workers:
            _, late = await asyncio.wait(workers, timeout=patience_s)
            if late:
                log.warning("%s: %d handlers did not end within %g s", self.group, len(late), patience_s)
                await end_tasks(*late)
        await asyncio.gather(*(self._on_queue_stopped(queue, item.process) for queue, item in self._assigned.items()))
        self._assigned.clear()
        await self.offsets.commit(wait=True)
        if self._trace is not None:
            await self._trace.close()
        await self.session.unregister(consumer=self.group)
        self.session.consumers.pop(self.group, None)
        self.session.on_group_change.remove(self._on_group_change)
        self.session.on_disconnect.remove(self._disconnected)
        self.session.unregister_consumer_admin(self)
        await self.session.close()

    async def subscribe(self, topic: str, handler: MessageHandler, expression: str = "*", *, sql: bool = False) -> None:
        """Subscribe to a topic's messages with one of these tags ("A || B"), or that match an SQL92 condition.

        Raises InvalidMessage for a malformed expression, and BrokerError when a broker refuses it. By gRPC a condition
        that brokers refuse is said by the log, with each attempt to receive.
        """
        check_topic(topic)
        data = subscription(topic, expression, sql=sql)
        if self._grpc is not None:
            self._subscriptions[topic], self._handlers[topic] = data, handler
            self._grpc.subscribe(topic, data)
            return
        if sql:
            await self._check_with_broker(data)
        self._subscriptions[topic] = data
        self._handlers[topic] = handler
        retry = RETRY_PREFIX + self.group
        if not self.broadcasting and retry not in self._subscriptions:
            self._subscriptions[retry] = subscription(retry)
        if self._tasks:
            await self._register()

    async def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)
        if self._grpc is not None:
            self._grpc.unsubscribe(topic)  # The handler stays for messages that are here.
            return
        self._handlers.pop(topic, None)
        await self._register()

    def suspend(self) -> None:
        """Stop pulling until `resume`; already pulled messages are still consumed."""
        self._suspended = True
        if self._grpc is not None:
            self._grpc.suspend()

    def resume(self) -> None:
        self._suspended = False
        if self._grpc is not None:
            self._grpc.resume()

    @property
    def concurrency(self) -> int:
        """How many messages handlers have at a time, at most."""
        return self._concurrency

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this member reads. By gRPC the number -1 is all queues of a broker group."""
        return sorted(self._assigned) if self._grpc is None else self._grpc.queues

    @property
    def in_flight(self) -> int:
        """The number of messages that are pulled but not consumed yet."""
        if self._grpc is not None:
            return self._grpc.in_flight
        return sum(len(item.process) for item in self._assigned.values())

    def progress(self) -> dict[MessageQueue, ProcessQueue]:
        """Return what is pulled of each queue. Raises ClientError by gRPC, where brokers alone know it."""
        if self._grpc is not None:
            raise ClientError("by gRPC brokers know the progress of a group: see `gantry group describe`")
        return {queue: item.process for queue, item in self._assigned.items()}

    def subscriptions(self) -> list[SubscriptionData]:
        return list(self._subscriptions.values())

    def consumer_data(self) -> ConsumerData:
        """Return this consumer's part of a heartbeat."""
        return ConsumerData(
            self.group,
            self.consume_type,
            "BROADCASTING" if self.broadcasting else "CLUSTERING",
            self._from_where.value,
            self.subscriptions(),
        )

    def _workers(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._work()) for _ in range(self._concurrency)]

    def _stop_workers(self) -> list[asyncio.Task[None]]:
        """Stop the tasks that call handlers after their current message, and return them."""
        workers = self._tasks[2:]
        for _ in workers:
            self._ready.put_nowait(None)
        return workers

    async def _register(self) -> None:
        for topic in list(self._subscriptions):
            with contextlib.suppress(RemotingError, BrokerError, BodyError):
                await self.session.route(topic)
        await self.session.send_heartbeats()
        self._rebalance_now.set()

    async def _check_with_broker(self, data: SubscriptionData) -> None:
        """Validate a condition with CHECK_CLIENT_CONFIG, so that a bad one fails now and not at every pull."""
        route = await self.session.route(data.topic)
        body = {"clientId": self.session.client_id, "group": self.group, "subscriptionData": data.to_json()}
        for broker in route.brokers if route is not None else []:
            address = self.session.address(broker.name)
            if address is not None:
                frame = Frame(RequestCode.CHECK_CLIENT_CONFIG, body=dumps(body))
                await self.session.call_checked(address, frame, f"subscription {data.expression!r}")

    # Rebalance

    def _on_group_change(self, group: str) -> None:
        if group == self.group:
            self._rebalance_now.set()

    def _disconnected(self, address: str) -> None:
        self._rebalance_not_before = time.monotonic() + REBALANCE_DELAY_SECONDS

    async def _rebalance_forever(self) -> None:
        while True:
            await set_within(self._rebalance_now, self._rebalance_s)
            await asyncio.sleep(max(self._rebalance_not_before - time.monotonic(), 0))
            self._rebalance_now.clear()
            complete = True
            for topic in list(self._subscriptions):
                try:
                    complete = await self._apply_allocation(topic, await self._allocation.queues(topic)) and complete
                except (AllocationUnavailable, *_FAILURES) as error:
                    log.info("%s: the allocation of %s is unchanged: %s", self.group, topic, error)
                    complete = False
                except Exception:
                    log.exception("%s: the allocation of %s failed", self.group, topic)
            await self._stop_queues([queue for queue in self._assigned if queue.topic not in self._subscriptions])
            if not complete:
                asyncio.get_running_loop().call_later(1.0, self._rebalance_now.set)

    async def _apply_allocation(self, topic: str, mine: Sequence[MessageQueue]) -> bool:
        allocated = set(mine)
        await self._stop_queues([queue for queue in self._assigned if queue.topic == topic and queue not in allocated])
        return await self._start_queues([queue for queue in mine if queue not in self._assigned])

    async def _start_queues(self, queues: Sequence[MessageQueue]) -> bool:
        """Start reading queues, and return False when some cannot be read yet.

        It tries an unreachable broker once, so that this broker delays no queue of another one.
        """
        complete = True
        unreachable: set[str] = set()
        for queue in queues:
            if queue.broker in unreachable or self._closing:
                continue
            try:
                await self._start_queue(queue)
            except _FAILURES as error:
                log.info("%s: %s cannot be read yet: %s", self.group, queue, error)
                complete = False
                if not isinstance(error, BrokerError):
                    unreachable.add(queue.broker)
        return complete

    async def _start_queue(self, queue: MessageQueue) -> None:
        offset = await self.offsets.read(queue)
        if offset is None:
            offset = await self.puller.first_offset(queue, self._from_where, self._from_time_ms)
        self._start_queue_at(queue, offset)

    def _start_queue_at(self, queue: MessageQueue, offset: int) -> None:
        process = ProcessQueue(offset)
        task = asyncio.create_task(self._pull_forever(queue, process))
        self._assigned[queue] = AssignedQueue(process, task)
        self._on_queue_started(queue, process)
        log.info("%s: started reading %s at %d", self.group, queue, offset)

    async def _stop_queues(self, queues: Sequence[MessageQueue]) -> None:
        """Stop queues concurrently, because each may wait for a silent broker."""
        await asyncio.gather(*(self._stop_queue(queue) for queue in queues))

    async def _stop_queue(self, queue: MessageQueue) -> None:
        item = self._assigned.get(queue)
        if item is None:
            return
        await item.end()
        await self._on_queue_stopped(queue, item.process)
        await self.offsets.commit(wait=True, only=queue)
        self.offsets.forget(queue)
        if self._assigned.get(queue) is item:
            del self._assigned[queue]
        log.info("%s: stopped reading %s at %d", self.group, queue, item.process.commit_offset)

    def _on_queue_started(self, queue: MessageQueue, process: ProcessQueue) -> None:
        """Note that a queue's pulls start."""

    async def _on_queue_stopped(self, queue: MessageQueue, process: ProcessQueue) -> None:
        """Update the offset of a queue whose pulls have stopped."""
        self.offsets.update(queue, process.commit_offset)

    async def _wait_for_handlers(self, queue: MessageQueue) -> None:
        """Wait for the handlers of a stopped queue. The concurrent consumer does not need to."""

    async def reset_offsets(self, table: dict[MessageQueue, int]) -> None:
        """Move queues to other offsets, on an administrator's request through the broker."""
        for queue, offset in table.items():
            item = self._assigned.get(queue)
            if item is None or item.process.dropped:
                continue
            await item.end()
            await self._wait_for_handlers(queue)
            if self._assigned.get(queue) is item and not self._closing:
                self.offsets.update(queue, offset, backwards=True)
                self._start_queue_at(queue, offset)
                await self.offsets.commit(wait=True, only=queue)

    # Pulling

    async def _pull_forever(self, queue: MessageQueue, process: ProcessQueue) -> None:
        pause = BACKOFF_FIRST
        while not process.dropped:
            data = self._subscriptions.get(queue.topic)
            if (
                self._suspended or data is None
            ):  # Not subscribed. A rebalance stops this queue soon, unless the application subscribes again.
                await asyncio.sleep(0.1)
                continue
            if process.full(self._limits):
                await self._wait_for_capacity(process)
                continue
            try:
                commit = None if self.broadcasting else self._offset_for_pull(queue, process)
                result = await self.puller.pull(queue, process.next_offset, data, commit=commit)
            except _FAILURES as error:
                if not isinstance(error, BrokerError):
                    self.puller.failed(queue)
                log.info("%s: pull of %s: %s", self.group, queue, error)
                if isinstance(error, BrokerError):
                    pause = max(pause, 0.2)
                    if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                        await self.session.send_heartbeats()
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0) if isinstance(error, BrokerError) else next_backoff(pause)
                with contextlib.suppress(*_FAILURES):
                    await self.session.route_after_failure(queue.topic)
                continue
            pause = BACKOFF_FIRST
            if result.status is PullStatus.ILLEGAL:
                log.warning(
                    "%s: offset %d of %s is outside of %d to %d; continues at %d",
                    self.group, process.next_offset, queue, result.min_offset, result.max_offset, result.next_offset,
                )  # fmt: skip
                self.offsets.update(queue, result.next_offset, backwards=True)
            self._on_pulled(queue, process, result.messages, result.next_offset)

    def _on_pulled(
        self, queue: MessageQueue, process: ProcessQueue, messages: list[ReceivedMessage], next_offset: int
    ) -> None:
        for message in process.add(messages, next_offset, now_ms()):
            self._ready.put_nowait((message, process))

    async def _wait_for_capacity(self, process: ProcessQueue) -> None:
        async with self._capacity:
            await self._capacity.wait_for(lambda: process.dropped or not process.full(self._limits))

    # Consuming

    async def _work(self) -> None:
        while True:
            item = await self._ready.get()
            if item is None:
                return
            message, process = item
            if process.dropped or self._closing:
                continue
            was_full = process.full(self._limits)
            await self._consume(message, process)
            if was_full and not process.full(self._limits):
                async with self._capacity:
                    self._capacity.notify_all()

    async def _consume(self, message: ReceivedMessage, process: ProcessQueue) -> None:
        while True:
            delay_level = await self.handle(message)
            if delay_level is not None and not self.broadcasting:
                if process.dropped or self._closing:
                    return  # The offset is not committed: the queue's next reader gets the message.
                if not await self._send_back.send(message, delay_level, self.max_retries):
                    await asyncio.sleep(LOCAL_RETRY_SECONDS)
                    continue
            process.done(message, now_ms())
            return

    async def handle(self, message: ReceivedMessage) -> int | None:
        """Call the application. Returns None when it consumed the message, otherwise the delay level of the retry."""
        if self._spans is None and self._trace is None:
            return await self._call(message)
        begun_ms = now_ms()
        if self._spans is None:
            delay_level = await self._call(message)
        else:
            with self._spans.process(message) as span:
                delay_level = await self._call(message)
                if delay_level is not None:
                    self._spans.failed(span, "the message is delivered again")
        if self._trace is not None and self._trace.wants(message.topic):
            success = delay_level is None
            self._trace.add(consumed(message, self.group, begun_ms, now_ms() - begun_ms, success))
        return delay_level

    async def _call(self, message: ReceivedMessage) -> int | None:
        handler = self._handlers.get(message.topic)
        if handler is None:
            log.warning("%s: no handler for topic %s of %r; sent back", self.group, message.topic, message)
            return 0
        try:
            answer = await handler(message)
        except RetryLater as later:
            return later.delay_level
        except (Exception, asyncio.CancelledError) as error:
            caller = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and caller is not None and caller.cancelling():
                raise
            # The handler awaited a task that was cancelled. Its caller was not cancelled.
            log.exception("%s: handling %r failed", self.group, message)
            if self._spans is not None:
                self._spans.raised(error)
            return 0
        return 0 if answer is False else None

    # Offsets

    def _offset_for_pull(self, queue: MessageQueue, process: ProcessQueue) -> int | None:
        """Return the offset for a pull request, so that a new master learns it with the first pull."""
        return process.commit_offset

    def update_offsets(self) -> None:
        for queue, item in self._assigned.items():
            self.offsets.update(queue, item.process.commit_offset)

    async def commit(self) -> None:
        """Commit the offsets of consumed messages. The consumer also commits every few seconds and when it closes. By
        gRPC each message is acknowledged when its handler returns, and there is nothing to commit.
        """
        if self._grpc is not None:
            return
        self.update_offsets()
        await self.offsets.commit(wait=True)

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._commit_s)
            self.update_offsets()
            await self.offsets.commit()


def refuse_by_grpc(**given: bool) -> None:
    """Raise ValueError for options that are given and have no effect by gRPC. Pure."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"by gRPC a consumer has no {name}: {_BY_GRPC[name]}")


class AssignedQueue:
    """A queue that this member reads."""

    __slots__ = ("process", "task")

    def __init__(self, process: ProcessQueue, task: asyncio.Task[None]) -> None:
        self.process = process
        self.task = task

    async def end(self) -> None:
        """Stop the pulls. A cancellation meanwhile cancels the caller; `await task` does not show the difference."""
        self.process.dropped = True
        self.task.cancel()
        await asyncio.wait({self.task})
