"""The delivery scenario's messages and the expected fate of each. Shared by all of its processes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

PRODUCERS = 4
QUEUES = 8
"""Each producer has two queues for itself: a queue holds the messages of one key."""
TOPIC = "Deliveries"
ALL, ORDERED, FILTERED = "everything", "inorder", "fifths"
GROUPS = (ALL, ORDERED, FILTERED)
"""A concurrent group with retries, an orderly one, and one that pulls with a filter."""
POPPED, POPPED_ORDERED = "popped", "poppedinorder"
POP_GROUPS = (POPPED, POPPED_ORDERED)
"""A concurrent group and an orderly one whose members go through gRPC proxies."""
RETRIES = 16

LOG_ENTRY = struct.Struct("<BiqB")
"""One line of a member's log: key, number, monotonic ns, number of retries."""


@dataclass(frozen=True)
class Plan:
    """messages: of all producers; each key has the same number of them."""

    messages: int
    poison_every: int
    transient_every: int

    @property
    def per_key(self) -> int:
        return self.messages // QUEUES

    def poisoned(self, number: int) -> bool:
        """Whether the group ALL fails with it every time."""
        return number % self.poison_every == self.poison_every // 2

    def transient_failures(self, number: int) -> int:
        """The number of failures in the group ALL before it succeeds."""
        return 2 if number % self.transient_every == 3 and not self.poisoned(number) else 0

    def tag(self, number: int) -> str:
        return "fifth" if number % 5 == 0 else "rest"

    def wanted(self, group: str, number: int) -> bool:
        return group != FILTERED or number % 5 == 0


def body(key: int, number: int) -> bytes:
    return b"%d:%d" % (key, number)


def parse(content: bytes) -> tuple[int, int]:
    key, number = content.split(b":")
    return int(key), int(number)
