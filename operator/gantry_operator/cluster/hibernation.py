"""The order in which a cluster stops for a while, and keeps its volumes and leadership records. Pure.

In each group the last one to stop is the leader, so that the newest records are on a disk that every later leader has
to follow: followers stop first, the leader last. NameServers stop after all brokers. No record is written or changed:
the next start continues with the epoch, the leader and the in-sync set of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group on its way. Members are numbers."""

    name: str
    wanted: int
    """Processes that should run now: the platform starts or stops to reach it, the highest numbers first."""
    running: frozenset[int]
    leader: int | None
    first_in_sync: bool = False
    """Member 0 has every acknowledged record, so it can lead."""


@dataclass(frozen=True, slots=True)
class Step:
    """`handover`: member 0 of the group is to lead. `shrink`: the group keeps `keep` processes. `end`: everything else
    stops. `done`: nothing runs.
    """

    kind: Literal["handover", "shrink", "wait", "end", "done"]
    reason: str
    group: str = ""
    keep: int = 0


def next_step(groups: Sequence[GroupState], name_servers: int, *, patient: bool = True) -> Step:
    """The next step. `name_servers`: those that run. Without `patience` a handover that fails is left out: the leader
    that stops together with its followers has acknowledged nothing that they lack.
    """
    for g in groups:
        if g.wanted <= 1:
            continue
        if patient and g.leader not in (None, 0) and g.leader in g.running and g.first_in_sync:
            return Step("handover", f"{g.name}: member 0 leads, and the others stop first", g.name)
        return Step("shrink", f"{g.name}: the followers stop", g.name, 1)
    for g in groups:
        if g.wanted == 1 and g.running - {0}:
            return Step("wait", f"{g.name}: {len(g.running - {0})} followers still stop", g.name)
    for g in groups:
        if g.wanted == 1:
            return Step("shrink", f"{g.name}: the leader stops last", g.name, 0)
    still = sum(len(g.running) for g in groups)
    if still:
        return Step("wait", f"{still} brokers still stop")
    return Step("end", "the NameServers stop") if name_servers else Step("done", "nothing runs")
