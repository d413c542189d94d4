"""The steps of a rollback, pure: what was recorded and what is seen gives the next actions and the next record.

After a cutover the former brokers get what was written since, by messages, beside the clients that go on. Then Gantry
ends writes and reads, the rest and the offsets arrive, and the former brokers take their place in the routes again. As
with the steps of a cutover, a record is written before its actions, so that a rollback that is killed goes on, or goes
back with an abort. Once the former brokers get their place there is no way back: they may take messages from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from gantry_broker.protocol.codes import FORMER_MASTER_ID

from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_steps import MASTER, READ, WRITE, Refused, SetSource, Settings, whole

BOTH: Final = READ | WRITE


class Phase(StrEnum):
    """Where a rollback is. The values are kept in files."""

    NONE = "none"
    COPYING = "copying-back"
    """The former brokers take messages of the copy; clients do not see them."""
    WRITES_OFF = "gantry-writes-off"
    """Gantry takes nothing from producers; consumers read on, and the rest is copied."""
    READERS_OFF = "gantry-readers-off"
    """Gantry gives nothing to consumers, so that they commit what they have had."""
    OFFSETS = "offsets"
    """The former brokers get the offsets of the consumer groups."""
    LEAVING = "leaving"
    """Gantry leaves the NameServers of the former cluster."""
    RETURNING = "returning"
    """The former brokers take their place again. There is no way back from here."""
    DONE = "rolled-back"
    ABORTING = "aborting-rollback"


PAUSED: Final = frozenset({Phase.WRITES_OFF, Phase.READERS_OFF, Phase.OFFSETS, Phase.LEAVING})
"""Phases in which clients wait, and from which an abort gives them back what they had."""
COPIES: Final = frozenset({Phase.COPYING, Phase.WRITES_OFF, Phase.READERS_OFF, Phase.OFFSETS})
"""Phases in which what was copied is needed."""
UNREADABLE: Final = frozenset({Phase.READERS_OFF, Phase.OFFSETS})
"""Those of them in which Gantry gives nothing, to a copy neither."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a rollback is. Times in seconds."""

    lag: int = 1_000
    """Messages that the copy may lack when Gantry ends writes."""
    settle: float = 6.0
    """How long consumers have to commit what they have had. They do so every five seconds."""
    quiet: float = 0.5
    """Gantry's queues must not have grown for so long."""
    quiet_at_most: float = 10.0
    """After this what Gantry had when writes ended is enough: deliveries of delayed messages may go on, and stay."""
    slaves: float = 30.0
    """How long the end waits for slaves of the former brokers that are in the routes."""
    silent: float = 10.0
    """How long the end waits for NameServers that do not answer. Gantry refuses everything then."""


@dataclass(frozen=True, slots=True)
class Group:
    """What is recorded of one group."""

    source: int = BOTH
    """The former broker's `brokerPermission` before the cutover."""
    gantry: int = BOTH
    """Gantry's `brokerPermission` before the rollback."""
    brokers: Mapping[str, int] = field(default_factory=dict)
    """The former group's other brokers, brokerId by address; at the end those that have not their settings back."""

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "gantry": self.gantry, "brokers": dict(self.brokers)}

    @property
    def permission(self) -> int:
        """What the former brokers get back."""
        return self.source or BOTH


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a rollback. `since`: Unix seconds of the present phase's begin."""

    phase: Phase = Phase.NONE
    since: float = 0.0
    groups: Mapping[str, Group] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase.value,
            "since": self.since,
            "groups": {name: group.to_json() for name, group in self.groups.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `to_json` wrote. Raises ValueError, KeyError, TypeError, AttributeError for another content."""
        groups = {
            str(name): Group(
                whole(item["source"], 0, 15) or 0,
                whole(item["gantry"], 0, 7) or 0,
                cutover_steps.brokers_of(item.get("brokers", {})),
            )
            for name, item in value["groups"].items()
        }
        return cls(Phase(value["phase"]), float(value["since"]), groups)


@dataclass(frozen=True, slots=True)
class Seen:
    """One group as it is now. None: not known."""

    problem: str = ""
    gantry: int | None = None
    """Gantry's `brokerPermission`."""
    released: bool | None = None
    """Whether Gantry stays away from the former cluster's NameServers."""
    listed: bool | None = None
    """Whether one of them still gives Gantry's address; None: none answers."""
    silent: bool = False
    """Whether some of them do not answer."""
    permission: int | None = None
    """The former broker's `brokerPermission`."""
    broker_id: int | None = None
    refuses: bool | None = None
    """Whether it refuses all sends."""
    brokers: Mapping[str, int] = field(default_factory=dict)
    """The former group's other brokers in the routes: brokerId by address."""
    settings: Mapping[str, Settings | None] = field(default_factory=dict)
    """Of these brokers, where they were asked; None: it does not answer."""
    returned: bool | None = None
    """Whether every NameServer gives the former broker as the master."""
    missing: int | None = None
    """Messages that the copy lacks."""
    quiet: float = 0.0
    """Seconds for which the copy is known to have had everything."""
    whole: bool = False
    """Whether the copy has all that Gantry had when it was told to take nothing more."""
    moved: bool = False
    """Whether the offsets were moved since reads ended."""


@dataclass(frozen=True, slots=True)
class SetGantry:
    """Change Gantry's `brokerPermission`."""

    group: str
    permission: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let Gantry leave the former cluster's NameServers, and stay away; or register there again."""

    group: str
    on: bool = True


@dataclass(frozen=True, slots=True)
class MoveOffsets:
    """Give the former broker the offsets of all consumer groups."""

    group: str


Action = SetSource | SetGantry | Release | MoveOffsets


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: write the record, then act. `waits`: for people, what is missing for the next phase."""

    record: Record
    actions: tuple[Action, ...] = ()
    waits: str = ""
    copies: bool = False
    """Whether the copy has to run in this phase."""


def still_owed(record: Record, seen: Mapping[str, cutover_steps.Seen]) -> dict[str, list[str]]:
    """Return by group the addresses of the former brokers that a rollback could not give their settings back."""
    return cutover_steps.owed_of(record.groups, seen) if record.phase is Phase.DONE else {}


def begin(
    record: Record, before: Mapping[str, cutover_steps.Group], seen: Mapping[str, Seen], now: float, *, cut_over: bool
) -> Record:
    """Begin a rollback, or go on with one. `before`: what the cutover recorded. `cut_over`: whether it is done. Raises
    Refused.
    """
    if record.phase is Phase.DONE:
        raise Refused("the rollback is done")
    if record.phase is Phase.ABORTING:
        raise Refused("an abort of the rollback is under way: finish it first (gantry migrate rollback --abort)")
    if record.phase is not Phase.NONE:
        return record
    if not cut_over:
        raise Refused("the cutover is not done: before its last steps gantry migrate abort goes back at once")
    for name, group in seen.items():
        if group.permission is None:
            raise Refused(f"group {name}: {group.problem or 'the former broker does not answer: start it again'}")
        # One that was started again has 0: RocketMQ's masters take no other at a start.
        if group.broker_id not in (FORMER_MASTER_ID, MASTER):
            raise Refused(
                f"group {name}: the former broker has brokerId={group.broker_id}, and {FORMER_MASTER_ID} since the "
                "cutover: name the broker that was the master then"
            )
        if group.gantry is None:
            raise Refused(f"group {name}: {group.problem or 'Gantry has no leader that answers'}")
    none = cutover_steps.Group()
    groups = {
        name: Group(before.get(name, none).permission or BOTH, group.gantry or BOTH, before.get(name, none).brokers)
        for name, group in seen.items()
    }
    return Record(Phase.COPYING, now, groups)


def step(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    """Return the next step of a rollback, or of its abort."""
    phase = record.phase
    if phase not in (Phase.NONE, Phase.DONE, Phase.ABORTING):
        groups = {
            n: replace(g, brokers=cutover_steps.noted(g.brokers, seen[n].brokers)) for n, g in record.groups.items()
        }
        record = replace(record, groups=groups)
    if phase is Phase.COPYING:
        return _copying(record, seen, limits, now)
    if phase is Phase.WRITES_OFF:
        return _writes_off(record, seen, limits, now)
    if phase is Phase.READERS_OFF:
        return _readers_off(record, seen, limits, now)
    if phase is Phase.OFFSETS:
        return _offsets(record, seen, now)
    if phase is Phase.LEAVING:
        return _leaving(record, seen, limits, now)
    if phase is Phase.RETURNING:
        return _returning(record, seen, limits, now)
    if phase is Phase.ABORTING:
        return _aborting(record, seen, now)
    return Step(record)


def opened(groups: Iterable[str], seen: Mapping[str, Seen]) -> list[Action]:
    """Return what is missing until the former brokers take messages, aside of the routes. One that was started again
    has its place there, and clients that found it would write where an abort leaves what they wrote.
    """
    return [a for name in groups if not (a := SetSource(name, BOTH, FORMER_MASTER_ID, False)).is_so(seen[name])]


def _set_gantry(record: Record, seen: Mapping[str, Seen], permission: int) -> list[Action]:
    return [SetGantry(name, permission) for name in record.groups if seen[name].gantry != permission]


def _missing(seen: Mapping[str, Seen]) -> int | None:
    counts = [group.missing for group in seen.values()]
    return None if None in counts else sum(count or 0 for count in counts)


def _copying(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    if actions := opened(record.groups, seen):
        return Step(record, tuple(actions), "the former brokers take messages")
    missing = _missing(seen)
    if missing is None or missing > limits.lag:
        waits_for = "the copy begins" if missing is None else f"{missing} messages are missing"
        return Step(record, waits=waits_for, copies=True)
    return Step(replace(record, phase=Phase.WRITES_OFF, since=now), copies=True)


def _writes_off(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    if actions := _set_gantry(record, seen, READ) + opened(record.groups, seen):
        return Step(record, tuple(actions), "Gantry stops taking messages", copies=True)
    missing, late = _missing(seen), not 0 <= now - record.since < limits.quiet_at_most
    settled = missing == 0 and all(group.quiet >= limits.quiet for group in seen.values())
    if not settled and not (late and all(group.whole for group in seen.values())):
        return Step(record, waits=f"{missing or 0} messages are missing", copies=True)
    return Step(replace(record, phase=Phase.READERS_OFF, since=now), copies=True)


def _readers_off(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    if actions := _set_gantry(record, seen, 0) + opened(record.groups, seen):
        return Step(record, tuple(actions), "Gantry stops giving messages to consumers")
    left = limits.settle - (now - record.since)
    if 0 < left <= limits.settle:
        return Step(record, waits=f"consumers commit what they have had: {left:.0f} s")
    return Step(replace(record, phase=Phase.OFFSETS, since=now))


def _offsets(record: Record, seen: Mapping[str, Seen], now: float) -> Step:
    actions = opened(record.groups, seen) + [MoveOffsets(name) for name in record.groups if not seen[name].moved]
    if actions:
        return Step(record, tuple(actions), "the offsets of consumer groups are moved")
    return Step(replace(record, phase=Phase.LEAVING, since=now))


def _leaving(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    actions = (*opened(record.groups, seen), *(Release(name) for name in record.groups if not seen[name].released))
    waits = 0 <= now - record.since < limits.silent
    if actions or any(seen[name].listed is not False or (seen[name].silent and waits) for name in record.groups):
        return Step(record, actions, "Gantry leaves the former NameServers")
    return Step(replace(record, phase=Phase.RETURNING, since=now))


def _returning(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    slaves = 0 <= now - record.since < limits.slaves
    given_back = {name: cutover_steps.given_back(name, group) for name, group in record.groups.items()}
    actions = tuple(
        back
        for name, back in given_back.items()
        if not back.is_so(seen[name])
        or (slaves and cutover_steps.lacking(back, seen[name].brokers, seen[name].settings))
    )
    waits = 0 <= now - record.since < limits.silent
    if actions or not all(seen[name].returned and not (seen[name].silent and waits) for name in record.groups):
        return Step(record, actions, "the former brokers take their place")
    groups = {
        name: replace(
            group, brokers=cutover_steps.owed(group.brokers, given_back[name], seen[name].brokers, seen[name].settings)
        )
        for name, group in record.groups.items()
    }
    return Step(replace(record, phase=Phase.DONE, since=now, groups=groups))


def abort(record: Record, now: float) -> Record:
    """Begin to go back to Gantry. Raises Refused past the point of no return."""
    if record.phase in (Phase.NONE, Phase.ABORTING):
        return record
    # Until they have their place again, no client reaches them.
    if record.phase in (*COPIES, Phase.LEAVING):
        return replace(record, phase=Phase.ABORTING, since=now)
    raise Refused(
        "the former brokers may have taken messages already, which Gantry lacks. Go on with gantry migrate rollback"
    )


def _aborting(record: Record, seen: Mapping[str, Seen], now: float) -> Step:
    actions: list[Action] = [
        SetGantry(name, group.gantry) for name, group in record.groups.items() if seen[name].gantry != group.gantry
    ]
    actions += [
        back
        for name in record.groups
        # A former broker that was stopped takes no messages.
        if seen[name].permission is not None
        and not (back := SetSource(name, 0, FORMER_MASTER_ID, True)).is_so(seen[name])
    ]
    actions += [Release(name, False) for name in record.groups if seen[name].released]
    if actions or any(seen[name].released is None for name in record.groups):
        return Step(record, tuple(actions), "Gantry gets its permission and its place back")
    return Step(Record(Phase.NONE, now))
