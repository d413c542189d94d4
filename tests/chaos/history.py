"""The history of all sends and reads of the clients, for the checker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """The place of a message: a queue, and an offset in it."""

    queue: int
    offset: int


@dataclass(slots=True)
class Sent:
    """One send of the application. Every send has a unique body. Times: seconds of one clock."""

    body: bytes
    began: float
    ended: float = float("inf")
    status: str = "unknown"
    """SEND_OK or another status, or the name of the error; "unknown" while the send runs."""
    place: Place | None = None
    """The place of the message, from the answer."""
    phys: int = -1
    """The same place, as an offset of the log."""
    via: int = 0
    """The connection that brought the acknowledgement; 0: unknown."""


@dataclass(slots=True)
class Popped:
    """One delivery of a message by POP."""

    body: bytes
    place: Place | None
    """None: a copy in the group's retry topic."""
    times: int
    """Deliveries before this one, by the broker's count."""
    pop_ms: int
    """When the broker popped it, by the broker's clock; the messages of one pop have one time."""
    at: float
    acking: float = float("inf")
    """The acknowledgement began."""
    acked: float = float("inf")
    """The acknowledgement was answered with success."""


class Led(NamedTuple):
    """A member that reported itself as leader."""

    name: str
    epoch: int
    confirmed: int


class Round(NamedTuple):
    """One round of status requests, between two times."""

    began: float
    ended: float
    leaders: tuple[Led, ...]


@dataclass
class History:
    """`Sent` in the order in which they began."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    tries: Counter[bytes] = field(default_factory=Counter)
    """The number of times that the client may have sent a body to a broker."""
    shown: dict[Place, dict[bytes, str]] = field(default_factory=dict)
    """By place: the bodies that readers saw there, each with its first reader."""
    ends: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By queue: the highest end in any answer, and its sender."""
    consumed: dict[str, Counter[bytes]] = field(default_factory=dict)
    """By consumer group: the messages that its members received."""
    popped: dict[str, list[Popped]] = field(default_factory=dict)
    """By consumer group: the deliveries to those that use POP, in the order of time."""
    leaders: dict[int, set[str]] = field(default_factory=dict)
    """By epoch: the members that reported themselves as its leader."""
    rounds: list[Round] = field(default_factory=list)
    """The members that reported themselves as leader, in the order of time."""
    reads: Counter[str] = field(default_factory=Counter)
    """The number of messages read from each member."""

    def show(self, place: Place, body: bytes, reader: str) -> None:
        self.shown.setdefault(place, {}).setdefault(body, reader)

    def reported_end(self, queue: int, end: int, reader: str) -> None:
        if end > self.ends.get(queue, (-1, ""))[0]:
            self.ends[queue] = (end, reader)

    def statuses(self) -> Counter[str]:
        return Counter(s.status for s in self.sent.values())

    def promised(self) -> list[Sent]:
        return [s for s in self.sent.values() if s.status == "SEND_OK"]


class Log(NamedTuple):
    """A member's queues at the end: bodies by place, and the offset after the last message by queue."""

    bodies: dict[Place, bytes]
    ends: dict[int, int]
