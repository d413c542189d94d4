"""The polling consumer: `poll` returns messages on request (RocketMQ's lite pull)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from gantry_broker.client.consumer import Consumer
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.client.process_queue import ProcessQueue
from gantry_broker.client.selection import readable_queues
from gantry_broker.client.subscription import subscription
from gantry_broker.client.trace import now_ms
from gantry_broker.protocol.codes import RETRY_PREFIX
from gantry_broker.protocol.fastjson import MessageQueue


class PullConsumer(Consumer):
    """Consumes on request, as a member of a group (`subscribe_to`) or from given queues (`assign`).

        async with PullConsumer("127.0.0.1:9876", "audit") as consumer:
            await consumer.subscribe_to("Orders")
            for message in await consumer.poll():
                ...

    Messages from `poll` count as consumed. With `auto_commit` False only `commit()` commits them.
    """

    consume_type = "CONSUME_ACTIVELY"
    _GRPC_TOO = False

    def __init__(self, *args: Any, auto_commit: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self._auto_commit = auto_commit
        self._assigned_by_hand = False
        self._paused: set[MessageQueue] = set()

    def _workers(self) -> list[asyncio.Task[None]]:
        return []

    async def subscribe_to(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        """Shares a topic's queues with the other members of the group. Raises as `Consumer.subscribe`."""
        await self.subscribe(topic, _no_handler, expression, sql=sql)
        self._subscriptions.pop(RETRY_PREFIX + self.group, None)  # this consumer sends nothing back

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic; none when it does not exist."""
        route = await self.session.route(topic)
        return readable_queues(topic, route) if route is not None else []

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, independent of other members."""
        self._assigned_by_hand = True
        chosen = list(queues)
        for topic in {queue.topic for queue in chosen}:
            await self.session.route(topic)
            self._subscriptions.setdefault(topic, subscription(topic, expression))
        await self._stop_queues([queue for queue in self._assigned if queue not in chosen])
        for queue in chosen:
            if queue not in self._assigned:
                await self._start_queue(queue)

    async def poll(self, timeout: float = 5.0, max_messages: int = 32) -> list[ReceivedMessage]:
        """Wait up to `timeout` seconds for a first message, and return up to `max_messages` available ones."""
        messages: list[ReceivedMessage] = []
        try:
            async with asyncio.timeout(timeout):
                while not messages:
                    self._accept(await self._ready.get(), messages)
        except TimeoutError:
            return messages
        while len(messages) < max_messages and not self._ready.empty():
            self._accept(self._ready.get_nowait(), messages)
        async with self._capacity:
            self._capacity.notify_all()
        return messages

    def _accept(self, item: tuple[ReceivedMessage, ProcessQueue] | None, messages: list[ReceivedMessage]) -> None:
        if item is not None and not item[1].dropped:
            messages.append(item[0])
            item[1].done(item[0], now_ms())

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Move to another offset of an assigned queue. Raises KeyError for other queues."""
        if queue not in self._assigned:
            raise KeyError(f"{queue} is not read by this consumer")
        await self.reset_offsets({queue: offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.puller.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.puller.max_offset(queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset in a queue; None: there is none."""
        return await self.offsets.read(queue)

    def _offset_for_pull(self, queue: MessageQueue, process: ProcessQueue) -> int | None:
        return process.commit_offset if self._auto_commit else self.offsets.pending(queue)

    async def _commit_forever(self) -> None:
        if self._auto_commit:
            await super()._commit_forever()

    async def close(self, patience_s: float = 10.0) -> None:
        if not self._auto_commit:
            for queue in self._assigned:
                self.offsets.forget(queue)
        await super().close(patience_s)

    async def _on_queue_stopped(self, queue: MessageQueue, process: ProcessQueue) -> None:
        if self._auto_commit:
            await super()._on_queue_stopped(queue, process)

    async def _apply_allocation(self, topic: str, mine: Sequence[MessageQueue]) -> bool:
        return True if self._assigned_by_hand else await super()._apply_allocation(topic, mine)


async def _no_handler(message: ReceivedMessage) -> None:
    raise RuntimeError(f"{message!r}: a pull consumer has no handler")
