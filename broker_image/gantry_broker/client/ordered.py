"""Orderly consumption: one message of a queue at a time, in order, by one member of the group at a time.

A member reads a queue only while it holds the queue's lock on the broker. It requests the lock when it starts the
queue, renews it every 20 s and releases it when it stops the queue. A failed message blocks its queue and is tried
again after a pause; after `max_retries` retries it goes to the retry topic.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from gantry_broker.client.consumer import Consumer, refuse_by_grpc
from gantry_broker.client.errors import BrokerError, ClientError
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.client.process_queue import ProcessQueue
from gantry_broker.client.session import BACKOFF_FIRST
from gantry_broker.client.trace import now_ms
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import LockRequest, locked_queues
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks, set_within

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 20.0
LOCK_RETRY_SECONDS: Final = 0.1
LOCK_SECONDS: Final = 30.0
"""A lock without a renewal expires here after this time; brokers keep it for 60 s."""
_PAUSE_STEP_SECONDS: Final = 0.05
UNLIMITED: Final = 2**31 - 1
SUSPEND_S: Final = 1.0


class OrderedConsumer(Consumer):
    """A consumer that handles the messages of one queue one after the other, in store order."""

    ordered = True
    _RETRIES = UNLIMITED

    def __init__(
        self,
        *args: Any,
        max_retries: int = UNLIMITED,
        suspend_s: float = SUSPEND_S,
        concurrency: int = 20,
        **options: Any,
    ) -> None:
        """`suspend_s`: seconds before a failed message is tried again; `concurrency`: queues with a running handler. By
        gRPC the group says both pauses and attempts, and `start` raises ClientError for a group that is not orderly.
        """
        super().__init__(*args, max_retries=max_retries, concurrency=concurrency, **options)
        if self._grpc is not None:
            refuse_by_grpc(suspend_s=suspend_s != SUSPEND_S)
        self._suspend_s = suspend_s
        self._locked: dict[MessageQueue, float] = {}
        self._buffers: dict[MessageQueue, asyncio.Queue[ReceivedMessage | None]] = {}
        self._workers_by_queue: dict[MessageQueue, asyncio.Task[None]] = {}
        self._concurrent_handlers = asyncio.Semaphore(concurrency)
        self._renewer: asyncio.Task[None] | None = None
        self._renew_now = asyncio.Event()

    async def start(self) -> None:
        await super().start()
        if self._grpc is not None:
            return
        self._renewer = asyncio.create_task(self._renew_forever())

    async def close(self, patience_s: float = 10.0) -> None:
        if self._renewer is not None:
            await end_tasks(self._renewer)
            self._renewer = None
        await super().close(patience_s)

    def _workers(self) -> list[asyncio.Task[None]]:
        return []

    def _disconnected(self, address: str) -> None:
        super()._disconnected(address)
        self._renew_now.set()  # a new master has no locks

    # Locks

    async def _lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Request locks, and return the queues whose locks this member now holds. An unreachable broker changes
        nothing.
        """
        held: set[MessageQueue] = set()
        for broker in sorted({queue.broker for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker == broker]
            body = fastjson.dumps(LockRequest(self.group, self.session.client_id, of_broker).to_json())
            try:
                address = await self.session.master(broker)
                frame = Frame(RequestCode.LOCK_BATCH_MQ, body=body)
                answer = await self.session.call_checked(address, frame, f"locks of {self.group}")
                granted = set(locked_queues(answer.body))
            except (RemotingError, BrokerError, ClientError, BodyError) as error:
                log.info("%s: locks at %s: %s", self.group, broker, error)
                continue
            now = time.monotonic()
            for queue in of_broker:
                if queue in granted:
                    self._locked[queue] = now
                    held.add(queue)
                else:
                    self._locked.pop(queue, None)
        return held

    async def _unlock(self, queue: MessageQueue) -> None:
        self._locked.pop(queue, None)
        body = fastjson.dumps(LockRequest(self.group, self.session.client_id, [queue]).to_json())
        try:
            address = await self.session.master(queue.broker)
            await self.session.call(address, Frame(RequestCode.UNLOCK_BATCH_MQ, body=body), 1.0)
        except (RemotingError, ClientError) as error:
            log.info("%s: cannot release the lock of %s, which expires: %s", self.group, queue, error)

    def _is_locked(self, queue: MessageQueue) -> bool:
        return time.monotonic() - self._locked.get(queue, -LOCK_SECONDS) < LOCK_SECONDS

    async def _renew_forever(self) -> None:
        complete = True
        while True:
            if await set_within(self._renew_now, RENEW_SECONDS if complete else LOCK_RETRY_SECONDS):
                self._renew_now.clear()
                await asyncio.sleep(BACKOFF_FIRST)
            queues = list(self._assigned)
            complete = len(await self._lock(queues)) == len(queues)

    async def _apply_allocation(self, topic: str, mine: Sequence[MessageQueue]) -> bool:
        await super()._apply_allocation(topic, [queue for queue in mine if queue in self._assigned])
        added = [queue for queue in mine if queue not in self._assigned]
        held = await self._lock(added) if added else set()
        started = await self._start_queues([queue for queue in added if queue in held])
        return started and len(held) == len(added)

    # Consuming

    def _on_queue_started(self, queue: MessageQueue, process: ProcessQueue) -> None:
        self._buffers[queue] = asyncio.Queue()
        self._workers_by_queue[queue] = asyncio.create_task(self._consume_queue(queue, process))

    def _stop_workers(self) -> list[asyncio.Task[None]]:
        for buffer in self._buffers.values():
            buffer.put_nowait(None)
        return list(self._workers_by_queue.values())

    async def _wait_for_handlers(self, queue: MessageQueue) -> None:
        buffer, task = self._buffers.get(queue), self._workers_by_queue.get(queue)
        if buffer is not None and task is not None:
            buffer.put_nowait(None)
            await asyncio.wait({task})
            self._buffers.pop(queue, None)
            self._workers_by_queue.pop(queue, None)

    async def _on_queue_stopped(self, queue: MessageQueue, process: ProcessQueue) -> None:
        """Releases the lock only after the last handler has ended and its offset is committed."""
        await self._wait_for_handlers(queue)
        await super()._on_queue_stopped(queue, process)
        await self.offsets.commit(wait=True, only=queue)
        await self._unlock(queue)

    def _on_pulled(
        self, queue: MessageQueue, process: ProcessQueue, messages: list[ReceivedMessage], next_offset: int
    ) -> None:
        buffer = self._buffers.get(queue)
        for message in process.add(messages, next_offset, now_ms()):
            if buffer is not None:
                buffer.put_nowait(message)

    async def _consume_queue(self, queue: MessageQueue, process: ProcessQueue) -> None:
        buffer = self._buffers[queue]
        while not process.dropped:
            message = await buffer.get()
            if message is None:
                return
            while not process.dropped:
                if not self._is_locked(queue):
                    self._renew_now.set()
                    await asyncio.sleep(0.1)
                    continue
                async with self._concurrent_handlers:
                    delay_level = await self.handle(message)
                if delay_level is None or await self._retries_exhausted(message):
                    was_full = process.full(self._limits)
                    process.done(message, now_ms())
                    if was_full:
                        async with self._capacity:
                            self._capacity.notify_all()
                    break
                await self._pause(process)

    async def _retries_exhausted(self, message: ReceivedMessage) -> bool:
        """Count a failure, and return True when retries are exhausted and the retry topic has the message."""
        if message.record.reconsume_times < self.max_retries:
            message.record.reconsume_times += 1
            return False
        return await self._send_back.send_copy(message, self.max_retries)

    async def _pause(self, process: ProcessQueue) -> None:
        for _ in range(max(1, round(self._suspend_s / _PAUSE_STEP_SECONDS))):
            if process.dropped:
                return
            await asyncio.sleep(_PAUSE_STEP_SECONDS)
