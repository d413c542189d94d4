"""What a push consumer does by gRPC: it receives from each queue that the proxy names, and acknowledges each message.

While this client is there, the proxy keeps its messages from others, so a handler has the time that it needs. Of a
group with `consumeMessageOrderly` the messages of one receive are handled one after the other, and a failed one again
in place; of any other group a failed one comes again after the pause of the group's retry policy.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError, NoRoute
from gantry_broker.client.grpc_endpoint import CALL_S, GrpcReceiver
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.client.process_queue import FlowLimits
from gantry_broker.client.session import BACKOFF_FIRST, next_backoff
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.grpc_contract import ClientType
from gantry_broker.protocol.retry_policy import STEPS_S
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.client.spans import Spans

log = logging.getLogger(__name__)

SCAN_S: Final = 5.0
"""Seconds until the proxy is asked for queues again, as RocketMQ's clients do."""
AGAIN_S: Final = 1.0
"""The same after a failure."""
POLL_S: Final = 20.0
"""Seconds for which a receive waits at the proxy; proxies wait no longer."""
MOST: Final = 32
"""Messages of one receive."""
TRY_S: Final = 15.0
"""Seconds for which an acknowledgement is tried again while a broker group has no master."""
REFUSED_S: Final = 5.0
"""The longest pause after a refused receive."""
DEAD: Final = -1
"""The delay level that makes a dead letter."""
_FAILURES: Final = (RemotingError, ClientError)
_AGAIN: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR})

Handle = Callable[[ReceivedMessage], Awaitable[int | None]]
"""Calls the application. Returns None when it consumed the message, otherwise the delay level of the retry."""


class _Reading:
    """A queue that is read, and what is received from it and not finished."""

    __slots__ = ("bytes", "messages", "room", "task")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def add(self, message: ReceivedMessage) -> None:
        self.messages += 1
        self.bytes += len(message.record.body)

    def done(self, message: ReceivedMessage) -> None:
        self.messages -= 1
        self.bytes -= len(message.record.body)
        self.room.set()


class GrpcPush:
    """The work of one push consumer."""

    def __init__(self, receiver: GrpcReceiver, handle: Handle, concurrency: int, limits: FlowLimits) -> None:
        self._receiver = receiver
        self._handle = handle
        self._limits = limits
        self._handlers = asyncio.Semaphore(concurrency)
        self._queues: dict[MessageQueue, _Reading] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._scan_now = asyncio.Event()
        self._scanner: asyncio.Task[None] | None = None
        self._going = asyncio.Event()
        self._going.set()
        self._closing = asyncio.Event()
        self._held = 0
        self.spans: Spans | None = None

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read; the number -1 is all of a broker group."""
        return sorted(self._queues)

    @property
    def in_flight(self) -> int:
        """The number of messages that are received and not finished."""
        return self._held

    async def start(self, *, ordered: bool) -> None:
        """Connect. `ordered`: wait for the settings, and raise ClientError for a group that is not orderly."""
        endpoint = self._receiver.endpoint
        await endpoint.start()
        if ordered:
            try:
                await endpoint.greeted(CALL_S)
                if not self._fifo():
                    raise ClientError(
                        f"group {self._receiver.group} is not orderly: create it with consumeMessageOrderly, or write "
                        "Consumer"
                    )
            except BaseException:
                await endpoint.close()
                raise
        self._scanner = asyncio.get_running_loop().create_task(self._scan_forever())

    async def close(self, patience_s: float) -> None:
        """Stop receiving, wait for running handlers, and leave the group: others get what is not handled."""
        self._closing.set()
        self._going.set()
        ended = [] if self._scanner is None else [self._scanner]
        self._scanner = None
        ended += [reading.task for reading in self._queues.values() if reading.task is not None]
        await end_tasks(*ended)
        if self._work:
            _, late = await asyncio.wait(self._work, timeout=patience_s)
            if late:
                log.warning("%s: %d handlers did not end within %g s", self._receiver.group, len(late), patience_s)
            await end_tasks(*late)
        self._queues.clear()
        await self._receiver.endpoint.close()

    def subscribe(self, topic: str, data: SubscriptionData) -> None:
        self._receiver.subscribe(topic, data)
        self._scan_now.set()

    def unsubscribe(self, topic: str) -> None:
        self._receiver.unsubscribe(topic)
        self._scan_now.set()

    def suspend(self) -> None:
        """Receive nothing more until `resume`."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def _subscription(self) -> Any:
        """Return what the proxy says of the group; None: it has not answered yet."""
        settings = self._receiver.endpoint.answered
        return None if settings is None else settings.subscription

    def _fifo(self) -> bool:
        subscription = self._subscription()
        return subscription is not None and bool(subscription.fifo)

    # Queues

    async def _scan_forever(self) -> None:
        complete = True
        while True:
            await set_within(self._scan_now, SCAN_S if complete else AGAIN_S)
            self._scan_now.clear()
            complete = True
            for topic in list(self._receiver.subscriptions):
                try:
                    assigned = await self._receiver.queues(topic)
                except _FAILURES as error:
                    refused = isinstance(error, BrokerError) and error.code not in _AGAIN
                    level = logging.WARNING if refused else logging.INFO
                    log.log(level, "%s: the queues of %s are unchanged: %s", self._receiver.group, topic, error)
                    complete = complete and refused  # What is refused is refused a second later, too.
                    continue
                await self._stop([queue for queue in self._queues if queue.topic == topic and queue not in assigned])
                for queue in assigned:
                    if queue not in self._queues and topic in self._receiver.subscriptions:
                        self._start(queue)
            await self._stop([queue for queue in self._queues if queue.topic not in self._receiver.subscriptions])

    def _start(self, queue: MessageQueue) -> None:
        reading = self._queues[queue] = _Reading()
        reading.task = asyncio.get_running_loop().create_task(self._receive_forever(queue, reading))

    async def _stop(self, queues: list[MessageQueue]) -> None:
        """Stop receives. What has been received is still handled."""
        readings = [self._queues.pop(queue) for queue in queues]
        await end_tasks(*(reading.task for reading in readings))

    async def _receive_forever(self, queue: MessageQueue, reading: _Reading) -> None:
        pause, attempt = BACKOFF_FIRST, uuid.uuid4().hex
        while not self._closing.is_set():
            await self._going.wait()
            while reading.messages >= self._limits.messages or reading.bytes >= self._limits.bytes:
                reading.room.clear()
                await reading.room.wait()
            begun_ns = time.time_ns()
            try:
                given = await self._receiver.pop(queue, MOST, None, POLL_S, attempt)
            except _FAILURES as error:
                busy = not isinstance(error, BrokerError) or error.code in _AGAIN
                log.log(logging.INFO if busy else logging.WARNING, "%s: %s: %s", self._receiver.group, queue, error)
                await asyncio.sleep(pause)
                pause = next_backoff(pause) if busy else min(pause * 2, REFUSED_S)
                continue
            pause, attempt = BACKOFF_FIRST, uuid.uuid4().hex
            messages = [(ReceivedMessage(record, queue.broker, queue.topic), handle) for record, handle in given]
            if messages and self.spans is not None:
                self.spans.received(queue.topic, [message for message, _ in messages], begun_ns)
            for message, _ in messages:
                reading.add(message)
            self._held += len(messages)
            if messages and self._fifo():
                await asyncio.wait({self._spawn(self._in_order(messages, reading))})
            else:
                for message, handle in messages:
                    self._spawn(self._one(message, handle, reading))

    # Messages

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def _done(self, message: ReceivedMessage, reading: _Reading) -> None:
        self._held -= 1
        reading.done(message)

    async def _one(self, message: ReceivedMessage, handle: str, reading: _Reading) -> None:
        try:
            async with self._handlers:
                if self._closing.is_set():
                    return  # The proxy gives it to others.
                level = await self._handle(message)
            if level is None:
                await self._ack(message, handle)
            elif level == DEAD:
                await self._to_dead_letters(message, handle)
            else:
                pause_s = self._pause_s(message) if level <= 0 else float(STEPS_S[min(level, len(STEPS_S)) - 1])
                change = self._receiver.change
                await self._finish(message, lambda: change(message.topic, message.id, handle, pause_s, suspend=False))
        finally:
            self._done(message, reading)

    async def _in_order(self, messages: list[tuple[ReceivedMessage, str]], reading: _Reading) -> None:
        """Handle messages one after the other. What is left when this client closes comes to another member."""
        for message, handle in messages:
            try:
                while not self._closing.is_set():
                    async with self._handlers:
                        level = await self._handle(message)
                    if level is None:
                        await self._ack(message, handle)
                        break
                    if level == DEAD or message.reconsume_times + 1 >= self._attempts():
                        await self._to_dead_letters(message, handle)
                        break
                    await self._wait(self._pause_s(message))
                    message.record.reconsume_times += 1
            finally:
                self._done(message, reading)

    async def _wait(self, seconds: float) -> None:
        """Wait before the next attempt in place, but not when this client closes."""
        await set_within(self._closing, seconds)

    def _attempts(self) -> int:
        """Return how often a message is delivered before it is a dead letter."""
        settings = self._receiver.endpoint.answered
        return max(int(settings.backoff_policy.max_attempts), 1) if settings is not None else 1

    def _pause_s(self, message: ReceivedMessage) -> float:
        """Return the pause of the group's retry policy before the next delivery."""
        settings = self._receiver.endpoint.answered
        return pause_s(settings.backoff_policy, message.reconsume_times) if settings is not None else AGAIN_S

    async def _ack(self, message: ReceivedMessage, handle: str) -> None:
        async def ack() -> None:
            if await self._receiver.ack(message.topic, [(message.id, handle)]):
                log.warning("%s: %r took too long: it comes again", self._receiver.group, message)

        await self._finish(message, ack)

    async def _to_dead_letters(self, message: ReceivedMessage, handle: str) -> None:
        attempt, most = message.reconsume_times + 1, self._attempts()
        to_dead_letters = self._receiver.to_dead_letters
        await self._finish(message, lambda: to_dead_letters(message.topic, message.id, handle, attempt, most))

    async def _finish(self, message: ReceivedMessage, ask: Callable[[], Awaitable[object]]) -> None:
        """Tell the proxy what became of a message, and again when a broker group has no master. If it cannot be told,
        the message comes again.
        """
        deadline, pause = time.monotonic() + TRY_S, BACKOFF_FIRST
        while True:
            try:
                await ask()
                return
            except _FAILURES as error:
                final = isinstance(error, BrokerError) and error.code not in _AGAIN
                if final or isinstance(error, NoRoute) or time.monotonic() + pause > deadline:
                    log.warning("%s: %r comes again: %s", self._receiver.group, message, error)
                    return
            await asyncio.sleep(pause)
            pause = next_backoff(pause)


def pause_s(policy: Any, reconsume_times: int) -> float:
    """Return the seconds before the next delivery by the policy that a proxy states. Pure."""
    if policy.WhichOneof("strategy") == "exponential_backoff":
        backoff = policy.exponential_backoff
        first_ms, most_ms = backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()
        factor = max(float(backoff.multiplier), 1.0) ** min(reconsume_times, 32)
        return float(min(first_ms * factor, most_ms)) / 1_000
    steps = policy.customized_backoff.next
    if not steps:
        return AGAIN_S
    return float(steps[min(reconsume_times, len(steps) - 1)].ToMilliseconds()) / 1_000


def push_receiver(addresses: str, group: str, credentials: Credentials | None, tls: object | None) -> GrpcReceiver:
    """Return what a push consumer receives by. Raises ValueError, TlsError."""
    return GrpcReceiver(addresses, group, credentials, tls, ClientType.PUSH_CONSUMER)
