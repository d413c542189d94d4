"""The order in which outdated members of a group are replaced.

A planned change never uses failover. Slaves come first, one at a time, while all other members are in sync. Then the
master hands over to a new member and is replaced last. A broken member may be replaced at any time. A broken member
that leaves waits until no leaving member has a higher number. A standby at a second site has no master: its members are
replaced one at a time, while all others follow the archive. Neither has a group that copies a RocketMQ until a cutover:
its first member, which follows the source, is replaced last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["done", "wait", "replace", "handover"]


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of one member. `outdated`: it runs with another config or image than planned."""

    name: str
    number: int
    outdated: bool
    ready: bool
    in_sync: bool
    master: bool
    leaving: bool = False
    """The plan does not contain it: it is removed as soon as possible."""
    broken: bool = False
    """It does not work and will not recover: it may be replaced at any time."""
    promotable: bool = True
    """No health check speaks against it as master."""
    standby: bool = False
    """Its cluster follows the archive of another one. `in_sync` says then that this member does."""
    copies: bool = False
    """Its group copies a RocketMQ, and no member leads. `in_sync` says then that the first member follows the source,
    and that any other one waits for it.
    """


@dataclass(frozen=True, slots=True)
class Step:
    """The next step. `member`: the member to replace or to hand over from; `to`: the next master."""

    kind: StepKind
    reason: str
    member: str | None = None
    to: str | None = None
    urgent: bool = False
    """Waiting for a better time would help no one: the member does not work, or leaves."""


def replacement_order(members: Sequence[MemberState]) -> list[str]:
    """Slaves from the highest number down, the master last."""
    return [m.name for m in sorted(members, key=lambda m: (m.master, -m.number))]


def next_step(members: Sequence[MemberState], still_counted: Sequence[int] = ()) -> Step:
    """Return the one step that is allowed now, or the reason to wait. Call it again after each change.

    `still_counted`: numbers of removed members that the group still counts (mode Raft). No other member leaves before
    the group has removed them. Otherwise too few would be left for a majority.
    """
    todo = [m for m in members if m.outdated or m.leaving]
    if not todo and not still_counted:
        return Step("done", "every member is as planned")
    master = next((m for m in members if m.master), None)
    # Members leave from the highest number down: a broken one below another that leaves has to wait like that one.
    last = max((m.number for m in members if m.leaving), default=None)
    # A recorded master that does not answer serves no client. A group of one has no other member to take over.
    broken = [m for m in todo if m.broken and not (m.master and m.in_sync) and (not m.leaving or m.number == last)]
    if broken:
        worst = min(broken, key=lambda m: -m.number)
        return Step("replace", f"{worst.name} does not work, so it is replaced at once", worst.name, urgent=True)
    if still_counted:
        gone = ", ".join(map(str, still_counted))
        return Step(
            "wait", f"member {gone} has ended and is still counted by the group; the next one is replaced afterwards"
        )
    if master is None:
        if any(m.standby or m.copies for m in members):
            return _next_without_master(members, todo)
        return Step("wait", "the group has no master; a member is replaced only while one serves")
    staying = [m for m in members if not m.leaving]
    away = [m for m in staying if not (m.ready and m.in_sync)]
    if away:
        names = ", ".join(m.name for m in away)
        return Step("wait", f"{names} is not in sync; the next member is replaced once all are")
    candidates = [m for m in staying if not m.outdated and not m.master]
    if master.leaving and candidates:
        # First of all: members leave from the highest number down, and the master is never removed.
        return _handover(master, candidates, "leaves the group")
    slaves = [m for m in todo if not m.master]
    if master.leaving:
        # Staying members first: the next master must be new, and members leave after the master has handed over.
        slaves = [m for m in slaves if not m.leaving] or slaves
    if slaves:
        slave = max(slaves, key=lambda m: (m.leaving, m.number))
        return Step("replace", f"{slave.name} is a slave, and all members are in sync", slave.name)
    if candidates:
        return _handover(master, candidates, "is the last to be replaced")
    if master.leaving:
        return Step("wait", f"{master.name} is master and no other member can take over, so it stays")
    return Step("replace", f"{master.name} is the only member: the group is unavailable while it restarts", master.name)


def _next_without_master(members: Sequence[MemberState], todo: Sequence[MemberState]) -> Step:
    """Return the step of a standby, or of a group that copies a RocketMQ. A member that does not follow comes first: it
    serves nobody, and the change may be what it lacks. Member 0, which follows the source, is the last one otherwise.
    """
    copies = any(m.copies for m in members)
    lacks = "does not follow the source, or is not up" if copies else "does not follow the archive"
    idle = [m for m in members if not (m.ready and m.in_sync)]
    away = [m.name for m in idle if not m.leaving and not m.outdated]
    if away:
        return Step("wait", f"{', '.join(away)} {lacks}; the next member is replaced once all do")
    first = max(todo, key=lambda m: (m.leaving, not m.leaving and m in idle, m.number))
    works = (
        "is part of a copy, and its group follows the source"
        if copies
        else "is part of a standby, and all members follow"
    )
    return Step("replace", f"{first.name} {lacks if first in idle else works}", first.name)


def _handover(master: MemberState, candidates: Sequence[MemberState], why: str) -> Step:
    candidate = min(candidates, key=lambda m: (not m.promotable, m.number))
    return Step("handover", f"{master.name} {why}, so it hands over first", master.name, candidate.name)


def why_replaced(cluster: str, started: Iterable[str], stopped: Iterable[str], replaced: Iterable[str]) -> list[str]:
    """Why a change replaces members that it does not name. All arguments are names of processes."""
    servers = f"{cluster}-namesrv-"
    number_changes = any(name.startswith(servers) for name in (*started, *stopped))
    if number_changes and any(not name.startswith(servers) for name in replaced):
        return [
            "the number of NameServers changes, and a broker reads at its start at which ones it registers: every "
            "broker is replaced, one at a time, and masters hand over first"
        ]
    return []
