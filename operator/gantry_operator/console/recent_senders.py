"""Who sent the newest messages of a topic, by the address that each message has: read while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gantry_broker.client import ReceivedMessage

from gantry_operator.cluster.message_walk import Filters
from gantry_operator.console import operations as do
from gantry_operator.console.last_answers import LastAnswers
from gantry_operator.console.rows import ClientRow
from gantry_operator.console.sources import Source


class Sender(NamedTuple):
    """A program that sent some of the newest messages."""

    address: str
    messages: int
    """Of those that were read."""
    last_ms: int
    """When its newest one was stored."""


@dataclass(frozen=True, slots=True)
class Senders:
    """Senders of one topic, the last one first. `at`: seconds of the clock; None: nothing was read yet."""

    at: float | None = None
    rows: Sequence[Sender] = ()
    looked_at: int = 0
    """Messages that were read."""
    problem: str = ""


class SenderRow(NamedTuple):
    """A sender with its connection; None: it is not connected any more, or it sends through a proxy."""

    sender: Sender
    client: ClientRow | None


class RecentSenders:
    """The last answers for the topics that somebody looked at."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._answers = LastAnswers(Senders(), clock)

    def of(self, topic: str) -> Senders:
        """Return the last answer, and read again in the background if it is old."""
        failed = Senders(self._clock(), problem="its newest messages could not be read")
        return self._answers.of(topic, partial(self._read, topic), failed)

    async def close(self) -> None:
        """End the reads."""
        await self._answers.close()

    async def _read(self, topic: str) -> Senders:
        try:
            page = await do.walk(self._source, topic, Filters(), None, older=True)
        except do.OperationError as error:
            return Senders(self._clock(), problem=str(error))
        return Senders(self._clock(), senders_of(page.messages), len(page.messages))


def senders_of(messages: Iterable[ReceivedMessage]) -> list[Sender]:
    """Count messages by the address of their sender, the last sender first. Pure."""
    counts: dict[str, Sender] = {}
    for message in messages:
        host, port = message.record.born_host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        former = counts.get(address, Sender(address, 0, 0))
        counts[address] = Sender(address, former.messages + 1, max(former.last_ms, message.store_ms))
    return sorted(counts.values(), key=lambda s: (-s.last_ms, s.address))


def with_clients(senders: Sequence[Sender], clients: Mapping[str, ClientRow]) -> list[SenderRow]:
    """Add the connection of each sender. Pure."""
    by_address = {address: client for client in clients.values() for address in client.addresses}
    return [SenderRow(sender, by_address.get(sender.address)) for sender in senders]
