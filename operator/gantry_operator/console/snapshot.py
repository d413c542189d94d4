"""Figures of one cluster at a moment: the only input of most pages. Times are Unix seconds unless a name says ms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from gantry_operator.cluster.second_site import follows_archive
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


DETAIL_S: Final = 300.0
"""Seconds for which every point is kept."""
STEP_S: Final = 30.0
"""Seconds that one of the older points stands for."""
WINDOWS: Final = {"5m": DETAIL_S, "1h": 3600.0, "6h": 21_600.0}
"""Ranges of the chart, in seconds, by their names in a link. The longest bounds what is kept: about 1,000 points."""
GAP_S: Final = 10.0
"""Points that are further apart have nothing between them, unless all are that far apart."""


def with_point(points: Sequence[Point], new: Point) -> tuple[Point, ...]:
    """Add a point, make one of those that have become old, and drop those out of the longest window.

    Answers of several broker groups within a second make one.
    """
    start = bisect_left(points, new.at - max(WINDOWS.values()), key=_at)
    end = bisect_right(points, new.at - 1.0, key=_at)
    # Half a minute that is old as a whole and has several points becomes one.
    edge = (new.at - DETAIL_S) // STEP_S * STEP_S
    whole = bisect_left(points, edge, start, end, key=_at)
    first = bisect_left(points, edge - STEP_S, start, whole, key=_at)
    return (*points[start:first], *_mean(points[first:whole]), *points[whole:end], new)


def _at(point: Point) -> float:
    return point.at


def _mean(points: Sequence[Point]) -> Sequence[Point]:
    count = len(points)
    if count < 2:
        return points
    return [Point(points[-1].at, sum(p.received for p in points) / count, sum(p.sent for p in points) / count)]


def runs_of(points: Sequence[Point], now: float, window_s: float = DETAIL_S) -> list[list[Point]]:
    """Return the points of the window before `now`, divided where nothing was measured."""
    seen = [p for p in points if now - window_s <= p.at <= now]
    steps = sorted(b.at - a.at for a, b in pairwise(seen))
    widest = max(GAP_S, 3 * steps[len(steps) // 2]) if steps else GAP_S
    runs: list[list[Point]] = []
    for point in seen:
        far = 3 * STEP_S if point.at < now - DETAIL_S else widest
        if runs and point.at - runs[-1][-1].at <= max(far, widest):
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def chart_of(points: Sequence[Point], now: float, window_s: float) -> dict[str, Any]:
    """Return what the browser draws: the window in Unix seconds, times and both rates side by side. None is a gap."""
    times: list[float] = []
    received: list[float | None] = []
    sent: list[float | None] = []
    for run in runs_of(points, now, window_s):
        if times:
            times.append(round((times[-1] + run[0].at) / 2, 1))
            received.append(None)
            sent.append(None)
        for point in run:
            times.append(round(point.at, 1))
            received.append(round(point.received, 1))
            sent.append(round(point.sent, 1))
    return {"from": round(now - window_s, 1), "to": round(now, 1), "data": [times, received, sent]}


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

    def serving(self) -> dict[str, MemberSeen]:
        """By broker group the member that answers for it: its master, and in a standby one that follows the archive."""
        best: dict[str, tuple[tuple[bool, int, int], MemberSeen]] = {}
        for m in self.members.values():
            if m.status is None or m.problem:
                continue
            leads = m.status.get("role") == "Master"
            if not leads and not follows_archive(m.status):
                continue
            order = (leads, int(m.status["epoch"]), int(m.status["end"]))
            if m.group not in best or order > best[m.group][0]:
                best[m.group] = (order, m)
        return {group: m for group, (_, m) in best.items()}

    def silent(self, now: float) -> tuple[str, ...]:
        """Broker groups without a master that answers, and without figures of now: what they hold is not known."""
        led = set(self.serving())
        led |= {group for group, part in self.tables.parts.items() if now - part.at <= OLD_S}
        return tuple(sorted({m.group for m in self.members.values()} - led))

    def rates(self, now: float) -> tuple[float | None, float | None]:
        """Messages a second in and out; None: they are not known at this time."""
        newest = max((part.at for part in self.tables.parts.values()), default=0.0)
        if now - newest > OLD_S:
            return None, None
        return self.tables.received, self.tables.sent

    @property
    def groups_by_broker(self) -> dict[str, str]:
        """The names of the broker groups by RocketMQ's name of each, where the two differ."""
        listed = (self.resource.get("spec") or {}).get("brokerGroups") or []
        return {str(g["brokerName"]): str(g["name"]) for g in listed if g.get("brokerName")}

    @property
    def masters(self) -> dict[str, str]:
        """The member that answers for each broker group; without a group of which none does."""
        return {group: m.name for group, m in self.serving().items()}

    @property
    def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.resource.get("status") or {}
        return status
