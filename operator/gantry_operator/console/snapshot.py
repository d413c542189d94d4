"""Figures of one cluster at a moment: the only input of most pages. Times are Unix seconds unless a name says ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from gantry_operator.console.rows import Tables

OLD_S: Final = 10.0
"""Figures of this age are marked as old."""


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A cluster in the path of a page. `space`: its namespace; `local` for a cluster of this machine."""

    space: str
    name: str

    @property
    def path(self) -> str:
        return f"/c/{self.space}/{self.name}"


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """One member as it answered last."""

    name: str
    group: str
    status: Mapping[str, Any] | None
    """Its last answer; None: it has never answered."""
    at: float
    """Time of that answer."""
    problem: str = ""
    """Why the last request failed; empty: it did not."""


@dataclass(frozen=True, slots=True)
class Point:
    """Messages a second of the whole cluster at a time."""

    at: float
    received: float
    sent: float


WINDOW_S: Final = 300.0
"""Seconds that the chart shows."""
GAP_S: Final = 10.0
"""Points that are further apart have nothing between them, unless all are that far apart."""


def with_point(points: Sequence[Point], new: Point) -> tuple[Point, ...]:
    """Add a point, and drop those out of the window. Answers of several broker groups within a second make one."""
    kept = [p for p in points if new.at - WINDOW_S <= p.at <= new.at - 1.0]
    return (*kept, new)


def runs_of(points: Sequence[Point], now: float) -> list[list[Point]]:
    """Return the points of the window before `now`, divided where nothing was measured."""
    seen = [p for p in points if now - WINDOW_S <= p.at <= now]
    steps = sorted(b.at - a.at for a, b in pairwise(seen))
    widest = max(GAP_S, 3 * steps[len(steps) // 2]) if steps else GAP_S
    runs: list[list[Point]] = []
    for point in seen:
        if runs and point.at - runs[-1][-1].at <= widest:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a cluster."""

    key: ClusterKey
    number: int = 0
    """Grows with each change."""
    resource: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why the resource could not be read; empty: it was."""
    members: Mapping[str, MemberSeen] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    points: Sequence[Point] = ()
    growth: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By member: bytes a second that its log grew by, and the seconds over which this was measured."""

    def silent(self, now: float) -> tuple[str, ...]:
        """Broker groups without a master that answers, and without figures of now: what they hold is not known."""
        led = {
            m.group
            for m in self.members.values()
            if m.status is not None and not m.problem and m.status.get("role") == "Master"
        }
        led |= {group for group, part in self.tables.parts.items() if now - part.at <= OLD_S}
        return tuple(sorted({m.group for m in self.members.values()} - led))

    def rates(self, now: float) -> tuple[float | None, float | None]:
        """Messages a second in and out; None: they are not known at this time."""
        newest = max((part.at for part in self.tables.parts.values()), default=0.0)
        if now - newest > OLD_S:
            return None, None
        return self.tables.received, self.tables.sent

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.resource.get("status") or {}
        return found
