"""The leader's POP service: pops, acknowledgements, renewals, waiting pops, expiry."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_broker.pop.handle import Handle
from gantry_broker.pop.requests import Ack, AckResult, ChangeInvisible, InFlight, Pop, Popped


class PopService:
    """Only a leader serves; every answer waits until the change is replicated."""

    async def pop(self, request: Pop) -> Popped:
        """Pops messages, or waits for some. The caller has checked topic, group, permission and ranges.

        Raises RequestRejected (SUBSCRIPTION_PARSE_FAILED, SYSTEM_BUSY), NotWritable, NotStored, StoreError.
        """
        raise NotImplementedError

    def peek(self, request: Pop) -> Popped:
        """Returns the messages that a pop would find, and changes nothing. Raises as `pop`."""
        raise NotImplementedError

    async def ack(self, acks: Sequence[Ack]) -> list[AckResult]:
        """Finishes messages. Raises RequestRejected (SYSTEM_BUSY) and NotWritable."""
        raise NotImplementedError

    async def change_invisible(self, change: ChangeInvisible) -> Handle:
        """Gives a message in flight a new invisible time. Raises BadHandle, RequestRejected, NotWritable, NotStored."""
        raise NotImplementedError

    def in_flight(self, group: str, topic: str) -> list[InFlight]:
        """Returns what is in flight by queue, of queues that POP knows; retry topics are topics of their own."""
        raise NotImplementedError

    def waiting(self, group: str, topic: str) -> int:
        """Returns how many pops wait."""
        raise NotImplementedError

    def has_messages(self, group: str, topic: str, queue_id: int = -1) -> bool:
        """Whether a pop would find messages now, filters aside (NOTIFICATION)."""
        raise NotImplementedError
