"""What a copy by messages has done, pure: which offset of a source's queue has which one at the target."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from gantry_broker.protocol.codes import Prop, SysFlag
from gantry_broker.protocol.digits import whole_number

MARK: Final = "GANTRY_COPY_OF"
"""The property of a copy: broker, queue and offset of its original. A copy that went on after a crash finds by it what
it had sent and not recorded.
"""
DROPPED: Final = frozenset({
    Prop.DELAY_TIME_LEVEL, Prop.TIMER_DELIVER_MS, Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS, Prop.TIMER_OUT_MS,
    Prop.TIMER_ROLL_TIMES, Prop.TIMER_DEL_UNIQKEY, Prop.TRANSACTION_PREPARED, Prop.POP_CK,
})  # fmt: skip
"""Properties that would delay, hide or hold a message again that was delivered already."""
KEPT_FLAGS: Final = int(SysFlag.COMPRESSED) | 0x700
"""Bits of the system flag that say how the body is compressed."""


class Place(NamedTuple):
    """Where an original is."""

    broker: str
    queue: int
    offset: int


def place_of(mark: str) -> Place | None:
    """Return the place that a mark names; None: it is no mark of a copy."""
    head, _, offset = mark.rpartition("/")
    broker, _, queue = head.rpartition("/")
    numbers = whole_number(queue), whole_number(offset)
    return Place(broker, *numbers) if broker and None not in numbers else None  # type: ignore[arg-type]


@dataclass(slots=True)
class QueueCopy:
    """One queue of the source, and its queue at the target."""

    broker: str
    queue: int
    to_broker: str
    to_queue: int
    to_start: int
    """The target's end when the copy began: nothing before it is ours."""
    runs: list[list[int]] = field(default_factory=list)
    """[offset, offset at the target, count]: so many messages one after the other on both sides."""
    next: int = 0
    """The offset to read next."""
    expired: int = 0
    """Messages that were gone at the source before they were read."""
    known: int = 0
    """Originals at the target in `runs`: the source has copies of them, which are not sent back."""

    def copied(self, offset: int, to: int) -> None:
        """Note a message. Raises ValueError for one that does not come after the last."""
        if self.runs and (offset < self.runs[-1][0] + self.runs[-1][2] or to < self.runs[-1][1] + self.runs[-1][2]):
            raise ValueError(f"{offset} at {to} does not come after {self.runs[-1]}")
        last = self.runs[-1] if self.runs else None
        if last is not None and (offset, to) == (last[0] + last[2], last[1] + last[2]):
            last[2] += 1
        else:
            self.runs.append([offset, to, 1])
        self.next = offset + 1

    def follows(self, to: int) -> bool:
        """Whether an offset at the target comes after the last copy."""
        return not self.runs or to >= self.runs[-1][1] + self.runs[-1][2]

    @property
    def to_next(self) -> int:
        """The offset at the target after the last copy."""
        return self.runs[-1][1] + self.runs[-1][2] if self.runs else self.to_start

    @property
    def messages(self) -> int:
        """Messages that were sent to the target."""
        return sum(run[2] for run in self.runs) - self.known

    def translate(self, offset: int) -> int:
        """Return the offset at the target at which a group goes on that stood at `offset`."""
        at = bisect_right(self.runs, offset, key=lambda run: run[0]) - 1
        if at < 0:
            return self.runs[0][1] if self.runs else self.to_start
        begin, to, count = self.runs[at]
        if offset < begin + count:
            return to + offset - begin
        return self.runs[at + 1][1] if at + 1 < len(self.runs) else to + count

    def origin(self, offset: int) -> str:
        """Return the value of `MARK`."""
        return f"{self.broker}/{self.queue}/{offset}"

    def offset_of(self, mark: str) -> int | None:
        """Return the original's offset; None: the copy is of another queue."""
        place = place_of(mark)
        return place.offset if place is not None and place[:2] == (self.broker, self.queue) else None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote. Raises KeyError, TypeError, ValueError."""
        copy = cls(
            str(value["broker"]), int(value["queue"]), str(value["toBroker"]), int(value["toQueue"]),
            int(value["toStart"]),
        )  # fmt: skip
        copy.runs = [[int(number) for number in run] for run in value["runs"]]
        if any(len(run) != 3 or min(run) < 0 for run in copy.runs):
            raise ValueError("runs has an entry that is no [offset, offset, count]")
        copy.next, copy.expired = int(value["next"]), int(value["expired"])
        copy.known = int(value.get("known", 0))
        return copy

    def to_json(self) -> dict[str, Any]:
        return {
            "broker": self.broker, "queue": self.queue, "toBroker": self.to_broker, "toQueue": self.to_queue,
            "toStart": self.to_start, "runs": self.runs, "next": self.next, "expired": self.expired,
            "known": self.known,
        }  # fmt: skip


def kept(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a copy has, besides its mark."""
    return {name: value for name, value in properties.items() if name not in DROPPED}
