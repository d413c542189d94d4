"""A topic that is deleted and created repeatedly. Deleted messages must not come back, later messages must stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from gantry_broker.client import Admin, ClientError, Producer
from gantry_broker.remoting.errors import RemotingError

from tests.chaos.history import History, Sent

DELETED_TOPIC = "Deleted"
SENDS = 5
"""Between two deletions."""
PAUSE_S = 0.2


class Deletions:
    """Rounds of messages, with an attempt to delete the topic between each two."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.rounds: list[list[Sent]] = [[]]
        self.attempted = 0
        """Rounds below this one may be deleted."""
        self.gone = 0
        """Rounds below this one are deleted: the broker acknowledged it."""

    async def work(self, name_servers: str, producer: Producer, goes_on: Callable[[], bool]) -> None:
        """Ends with a round that is not deleted."""
        async with Admin(name_servers) as admin:
            while goes_on():
                await self._send(producer)
                self.attempted = len(self.rounds)
                self.rounds.append([])
                with suppress(ClientError, RemotingError):
                    await admin.delete_topic(DELETED_TOPIC)
                    self.gone = self.attempted
                await asyncio.sleep(PAUSE_S)
        await self._send(producer)

    async def _send(self, producer: Producer) -> None:
        for number in range(SENDS):
            body = b"%d of round %d" % (number, len(self.rounds))
            sent = Sent(body, 0.0)
            self.rounds[-1].append(sent)
            with suppress(ClientError, RemotingError):
                sent.status = (await producer.send(DELETED_TOPIC, body)).status.name

    def check(self, shown: Mapping[str, set[bytes]]) -> Iterator[str]:
        """`shown`: the messages of the topic that each member shows at the end."""
        for number, sends in enumerate(self.rounds):
            # A message with several sends may have another copy that was stored after its deletion.
            known = {s.body for s in sends if s.status == "SEND_OK" and self._history.tries[s.body] <= 1}
            for member, bodies in shown.items():
                if number < self.gone:
                    for body in sorted(known & bodies):
                        yield f"NOT DELETED: {member} shows {body!r}, which was deleted with round {self.gone}"
                elif number >= self.attempted:
                    for sent in sends:
                        if sent.status == "SEND_OK" and sent.body not in bodies:
                            yield f"DELETED TOO MUCH: {sent.body!r} came after the last deletion; {member} lacks it"
