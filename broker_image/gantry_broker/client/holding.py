"""Keeps messages from other members while they are worked on, also for longer than one invisible time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from gantry_broker.client.errors import BrokerError, ClientError
from gantry_broker.client.simple_consumer import PoppedMessage, SimpleConsumer
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

FAILURES: Final = (RemotingError, BrokerError, ClientError)


@dataclass(slots=True)
class _Held:
    message: PoppedMessage
    until: float
    """By the event loop's clock: from then on others may get it, finished or not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A renewal changes the handle that an acknowledgement needs."""


class Holding:
    """The messages of one consumer that are not finished. `start` and `close` surround its use."""

    def __init__(self, consumer: SimpleConsumer, invisible_s: float, longest_s: float) -> None:
        """`invisible_s`: others get the message these seconds after the death of this process. `longest_s`: others
        get it after these seconds although this process lives.
        """
        self._consumer = consumer
        self.invisible_s = invisible_s
        self.longest_s = longest_s
        self._held: dict[int, _Held] = {}
        self._renewal: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to renew. Needs a running event loop."""
        self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def close(self) -> None:
        """Give back all messages at once."""
        await end_tasks(self._renewal)
        await asyncio.gather(*(self.give_back(held.message) for held in list(self._held.values())))

    def __len__(self) -> int:
        return len(self._held)

    def take(self, message: PoppedMessage) -> None:
        """Hold a message from now on."""
        until = asyncio.get_running_loop().time() + self.longest_s
        self._held[id(message)] = _Held(message, until)

    async def finish(self, message: PoppedMessage) -> bool:
        """Acknowledge a message. False: it was held too long, and comes to another member. Raises as
        `SimpleConsumer.ack`.
        """
        held = self._held.pop(id(message), None)
        if held is None:
            return False
        async with held.lock:
            try:
                await self._consumer.ack(message)
            except BrokerError as error:
                if error.code != ResponseCode.NO_MESSAGE:
                    raise
                return False
        return True

    async def give_back(self, message: PoppedMessage) -> None:
        """Make a message visible at once. When no broker answers, it comes back after its invisible time."""
        held = self._held.pop(id(message), None)
        if held is None:
            return
        async with held.lock:
            try:
                await self._consumer.change_invisible_duration(message, 0)
            except FAILURES as error:
                log.info("%s comes back after %g s at most: %s", message.id, self.invisible_s, error)

    def release(self, message: PoppedMessage) -> None:
        """Renew it no longer: it becomes visible after its invisible time, as another attempt."""
        self._held.pop(id(message), None)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.invisible_s / 4)
            now = asyncio.get_running_loop().time()
            due = [held for held in self._held.values() if held.message.visible_at - now < self.invisible_s / 2]
            await asyncio.gather(*(self._renew_one(held, now) for held in due))

    async def _renew_one(self, held: _Held, now: float) -> None:
        message = held.message
        if now >= held.until:
            log.warning("message %s is worked on for more than %g s: others may get it", message.id, self.longest_s)
            self._held.pop(id(message), None)
            return
        async with held.lock:
            if id(message) not in self._held:
                return
            try:
                await self._consumer.change_invisible_duration(message, self.invisible_s)
            except FAILURES as error:
                log.warning("others may get message %s while it is worked on: %s", message.id, error)
                if isinstance(error, BrokerError) and error.code == ResponseCode.NO_MESSAGE:
                    self._held.pop(id(message), None)
