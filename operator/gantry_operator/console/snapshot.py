"""Figures of one cluster at a moment: the only input of most pages. Times are Unix seconds unless a name says ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a cluster."""

    key: ClusterKey
    number: int = 0
    """Grows with each change."""
    resource: Mapping[str, Any] = field(default_factory=dict)
    resource_at: float = 0.0
    problem: str = ""
    """Why the resource could not be read; empty: it was."""
    members: Mapping[str, MemberSeen] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    points: Sequence[Point] = ()
    growth: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By member: bytes a second that its log grew by, and the seconds over which this was measured."""

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.resource.get("status") or {}
        return found
