"""In which order the members of a group may be replaced by newer ones.

A planned change never uses failover: slaves first, one at a time, each only while everybody else is in sync; then the
master hands over to one that is already new; then the last one. A member that does not work may be replaced at any
time, since nobody waits for it; where it leaves, only once no other that leaves has a higher number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["done", "wait", "replace", "handover"]


@dataclass(frozen=True, slots=True)
class MemberState:
    """What matters of one member. `outdated`: it runs with another config or image than planned."""

    name: str
    number: int
    outdated: bool
    ready: bool
    in_sync: bool
    master: bool
    leaving: bool = False
    """The plan has it no more: it goes as soon as it may."""
    broken: bool = False
    """It does not work and will not by itself: it may be replaced at any time."""
    fit: bool = True
    """Nothing speaks against it as master."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next. `member`: which one is replaced or hands over; `to`: who takes the master's role."""

    kind: StepKind
    reason: str
    member: str | None = None
    to: str | None = None


def replacement_order(members: Sequence[MemberState]) -> list[str]:
    """Slaves from the highest number down, the master last."""
    return [m.name for m in sorted(members, key=lambda m: (m.master, -m.number))]


def next_step(members: Sequence[MemberState], still_counted: Sequence[int] = ()) -> Step:
    """The one thing that may be done now, or what is waited for. Called again after each change.

    `still_counted`: numbers of members that have gone and that the group still counts (mode Raft). Nobody else goes
    before it has forgotten them, or too few would be left for a majority.
    """
    todo = [m for m in members if m.outdated or m.leaving]
    if not todo and not still_counted:
        return Step("done", "every member is as planned")
    master = next((m for m in members if m.master), None)
    # Members leave from the highest number down: a broken one below another that leaves has to wait like that one.
    last = max((m.number for m in members if m.leaving), default=None)
    # A recorded master that is not heard, either, serves nobody; in a group of one there is no other to take over.
    broken = [m for m in todo if m.broken and not (m.master and m.in_sync) and (not m.leaving or m.number == last)]
    if broken:
        worst = min(broken, key=lambda m: -m.number)
        return Step("replace", f"{worst.name} does not work as it is, so nobody waits for it", worst.name)
    if still_counted:
        gone = ", ".join(map(str, still_counted))
        return Step("wait", f"member {gone} has gone and has not left the group yet; the next one is replaced then")
    if master is None:
        return Step("wait", "the group has no master; a member is replaced only while one serves")
    staying = [m for m in members if not m.leaving]
    away = [m for m in staying if not (m.ready and m.in_sync)]
    if away:
        names = ", ".join(m.name for m in away)
        return Step("wait", f"{names} is not in sync; the next member is replaced once everyone is")
    candidates = [m for m in staying if not m.outdated and not m.master]
    if master.leaving and candidates:
        # First of all: members leave from the highest number down, and the master is never the one to go.
        return _handover(master, candidates, "leaves the group")
    slaves = [m for m in todo if not m.master]
    if master.leaving:
        # Who stays first: whoever takes over must be new, and the leaving ones go after the master has handed over.
        slaves = [m for m in slaves if not m.leaving] or slaves
    if slaves:
        slave = max(slaves, key=lambda m: (m.leaving, m.number))
        return Step("replace", f"{slave.name} is a slave, and everyone is in sync", slave.name)
    if candidates:
        return _handover(master, candidates, "is the last to be replaced")
    if master.leaving:
        return Step("wait", f"{master.name} is master and nobody can take over, so it stays")
    return Step("replace", f"{master.name} is the only member: the group is away while it restarts", master.name)


def _handover(master: MemberState, candidates: Sequence[MemberState], why: str) -> Step:
    candidate = min(candidates, key=lambda m: (not m.fit, m.number))
    return Step("handover", f"{master.name} {why}, so it hands over first", master.name, candidate.name)
