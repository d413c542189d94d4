"""Who sent the newest messages of a topic, by the address that each message has: read while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gantry_broker.client import ReceivedMessage

from gantry_operator.cluster.message_walk import Wanted
from gantry_operator.console import operations as do
from gantry_operator.console.rows import ClientRow
from gantry_operator.console.sources import Source

READ_EVERY_S: Final = 10.0
KEPT: Final = 64
"""Topics whose senders are kept."""


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
        self._known: dict[str, Senders] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    def of(self, topic: str) -> Senders:
        """Return the last answer, and read again in the background if it is old."""
        found = self._known.pop(topic, Senders())
        while len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[topic] = found
        if (found.at is None or self._clock() - found.at >= READ_EVERY_S) and topic not in self._reading:
            self._reading[topic] = asyncio.create_task(self._read(topic))
        return found

    async def close(self) -> None:
        """End the reads."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, topic: str) -> None:
        found = Senders(self._clock(), problem="its newest messages could not be read")
        try:
            page = await do.walk(self._source, topic, Wanted(), None, older=True)
            found = Senders(self._clock(), senders_of(page.messages), len(page.messages))
        except do.OperationError as error:
            found = Senders(self._clock(), problem=str(error))
        finally:
            self._known[topic] = found
            self._reading.pop(topic, None)


def senders_of(messages: Iterable[ReceivedMessage]) -> list[Sender]:
    """Count messages by the address of their sender, the last sender first. Pure."""
    counts: dict[str, Sender] = {}
    for message in messages:
        host, port = message.record.born_host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        known = counts.get(address, Sender(address, 0, 0))
        counts[address] = Sender(address, known.messages + 1, max(known.last_ms, message.store_ms))
    return sorted(counts.values(), key=lambda s: (-s.last_ms, s.address))


def with_clients(senders: Sequence[Sender], clients: Mapping[str, ClientRow]) -> list[SenderRow]:
    """Add the connection of each sender. Pure."""
    by_address = {address: client for client in clients.values() for address in client.addresses}
    return [SenderRow(sender, by_address.get(sender.address)) for sender in senders]
