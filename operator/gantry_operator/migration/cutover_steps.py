"""The steps of a cutover, pure: what was recorded and what is seen gives the next actions and the next record.

A record is written before the actions that belong to it. So a cutover that is killed at any step goes on with the same
command, or goes back with an abort. The first finish of a group is the point of no return: Gantry may take messages
from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol, Self

from gantry_broker.protocol.codes import FORMER_MASTER_ID

READ, WRITE = 4, 2
MASTER: Final = 0
MOST_PERMISSION: Final = 15
MOST_OFFSET: Final = 2**63 - 1
MOST_ADDRESS: Final = 255
"""Characters of a broker's address in a record."""
MOST_BROKERS: Final = 64
"""Brokers of a group in a record, which is an annotation on Kubernetes: NameServers may name any."""


class Phase(StrEnum):
    """Where a migration is. The values are kept in files."""

    FOLLOWING = "following"
    """The copies follow; the source is as it was."""
    ROUTING = "routing"
    """The source's NameServers give Gantry's address, which leads to the source for now."""
    ROUTED = "routed"
    """Clients learn that address: in their default configuration they look every 30 seconds."""
    READERS_OFF = "readers-off"
    """The source gives nothing to consumers any more, so that they commit what they have had."""
    WRITES_OFF = "writes-off"
    """The source takes nothing from producers any more, and stands aside in the routes."""
    FINISHING = "finishing"
    """Each group takes the last bytes and leads. There is no way back from here."""
    TAKING = "taking"
    """Gantry registers at the source's NameServers."""
    DONE = "done"
    ABORTING = "aborting"
    """The source gets its permission and its place back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a cutover is. Times in seconds."""

    lag: int = 64 << 20
    """Bytes that a copy may lack when a cutover begins."""
    routes: float = 32.0
    """How long clients have to learn Gantry's address before the source ends writes; 0: they learn it afterwards."""
    settle: float = 6.0
    """How long consumers have to commit what they have had. They do so every five seconds."""
    quiet: float = 0.5
    """The source's log must not have grown for so long."""
    slaves: float = 30.0
    """How long an abort waits for slaves of the source that are in the routes."""
    silent: float = 10.0
    """How long the end of a cutover waits for NameServers that do not answer, and an abort for brokers of the source
    that are not in the routes. Both sides register there again.
    """
    quiet_at_most: float = 10.0
    """After this the end that it has counts: deliveries of delayed messages may go on, and come again."""


@dataclass(frozen=True, slots=True)
class Group:
    """What is recorded of one group."""

    permission: int | None = None
    """The source's `brokerPermission` before the cutover."""
    end: int | None = None
    """The end of the source's log, once it takes no more writes."""
    finished: bool = False
    brokers: Mapping[str, int] = field(default_factory=dict)
    """The source's other brokers that a cutover changes, or has changed and not given back: brokerId by address."""
    source: str = ""
    """The source's address, as it was seen last; empty: it was not. A master that is started again asks for its place,
    which NameServers of 5.x do not give it. It is in no route then.
    """

    def to_json(self) -> dict[str, Any]:
        return {
            "permission": self.permission,
            "end": self.end,
            "finished": self.finished,
            "brokers": dict(self.brokers),
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a migration. `since`: Unix seconds of the present phase's begin."""

    phase: Phase = Phase.FOLLOWING
    since: float = 0.0
    groups: Mapping[str, Group] = field(default_factory=dict)
    carried: bool = False
    """Whether Gantry's address was given to clients before the source ended writes."""
    aside: bool = False
    """Whether the source has another number meanwhile, since its NameServers would give its place back to it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase.value,
            "since": self.since,
            "carried": self.carried,
            "aside": self.aside,
            "groups": {name: group.to_json() for name, group in self.groups.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `to_json` wrote. Raises ValueError, KeyError, TypeError, AttributeError for another content."""
        groups = {
            str(name): Group(
                whole(item["permission"], 0, MOST_PERMISSION),
                whole(item["end"], 0, MOST_OFFSET),
                item["finished"] is True,
                brokers_of(item.get("brokers", {})),
                str(item.get("source", ""))[:MOST_ADDRESS],
            )
            for name, item in value["groups"].items()
        }
        carried = value.get("carried") is True
        return cls(Phase(value["phase"]), float(value["since"]), groups, carried, value.get("aside", carried) is True)

    @property
    def number(self) -> int:
        """The source's `brokerId` while it takes messages."""
        return FORMER_MASTER_ID if self.aside else MASTER


def under_way(record: Record) -> str:
    """Return the phase of a cutover, or of its abort, that is under way; empty: there is none."""
    return "" if record.phase in (Phase.FOLLOWING, Phase.DONE) else record.phase.value


def brokers_of(value: Any) -> dict[str, int]:
    """Return brokerIds by address, as a record has them. Raises ValueError, AttributeError."""
    return {str(address): whole(number, 0, FORMER_MASTER_ID - 1) or 0 for address, number in value.items()}


def whole(value: Any, low: int, high: int) -> int | None:
    """Return a number of a record, or None. Raises ValueError."""
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise ValueError(f"{value!r} is no number of {low} to {high}")
    return value


@dataclass(frozen=True, slots=True)
class Seen:
    """One group as it is now. None: not known."""

    state: str | None = None
    """Of the copy: following, finishing, broken; "leads" once Gantry serves the group."""
    problem: str = ""
    copy_end: int | None = None
    source_end: int | None = None
    quiet: float = 0.0
    """Seconds for which the source's log is known not to have grown."""
    permission: int | None = None
    """The source's `brokerPermission`."""
    broker_id: int | None = None
    """The source's `brokerId`."""
    refuses: bool | None = None
    """Whether the source refuses all sends."""
    brokers: Mapping[str, int] = field(default_factory=dict)
    """Brokers in the source's routes: brokerId by address. Without its master, unless a controller may choose another;
    without Gantry's."""
    settings: Mapping[str, Settings | None] = field(default_factory=dict)
    """Of these brokers, where they were asked; None: it does not answer."""
    source: str = ""
    """The source's address; empty: not known."""
    can_carry: bool = False
    """Whether the copy's member can pass clients on to the source."""
    carries: bool | None = None
    """Whether it does so, and its address is registered."""
    routed: bool | None = None
    """Whether every NameServer of the source that answers gives Gantry's address as the master's; None: none does."""
    listed: bool = False
    """Whether a NameServer of the source gives Gantry's address as the master's."""
    keeps_place: bool = False
    """Whether the source's NameServers keep Gantry's address although the source registers as the master, too."""
    silent: tuple[str, ...] = ()
    """NameServers of the source that do not answer."""

    @property
    def lag(self) -> int | None:
        if self.copy_end is None or self.source_end is None:
            return None
        return max(self.source_end - self.copy_end, 0)


class Settings(Protocol):
    """What is seen of a source's settings. None: not known."""

    @property
    def permission(self) -> int | None: ...
    @property
    def broker_id(self) -> int | None: ...
    @property
    def refuses(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class SetSource:
    """Change the settings of a group's source: its permission and its number."""

    group: str
    permission: int
    broker_id: int
    refuses: bool
    """Whether it refuses all sends. RocketMQ checks `brokerPermission` at a send for ordered topics only; it is the
    setting `startAcceptSendRequestTimeStamp` that refuses sends. Source: `AbstractSendMessageProcessor.msgCheck` and
    `preSend` of 4.9.7 and 5.5.0, and their answers.
    """

    def is_so(self, seen: Settings) -> bool:
        """Whether the source has these settings already."""
        return (seen.permission, seen.broker_id, seen.refuses) == (self.permission, self.broker_id, self.refuses)


@dataclass(frozen=True, slots=True)
class Finish:
    """Let the copy of a group take the log up to `end`, and lead."""

    group: str
    end: int


@dataclass(frozen=True, slots=True)
class Carry:
    """Let a copy's member pass clients on to the source, with its address in the routes; or end that."""

    group: str
    on: bool


Action = SetSource | Finish | Carry


def noted(before: Mapping[str, int], seen: Mapping[str, int]) -> Mapping[str, int]:
    """Return brokers by address with the brokerIds that they have outside of a cutover, `MOST_BROKERS` of them."""
    numbers = {**before, **{address: number % FORMER_MASTER_ID for address, number in seen.items()}}
    return dict(list(numbers.items())[:MOST_BROKERS])


def lacking(
    given_back: SetSource, brokers: Mapping[str, int], settings: Mapping[str, Settings | None]
) -> frozenset[str]:
    """Return the addresses of `brokers`, which are in the routes, without those that have what `given_back` gives."""
    addresses = set()
    for address, number in brokers.items():
        if number >= FORMER_MASTER_ID:
            addresses.add(address)
        elif address in settings:
            has = settings[address]
            if has is None or has.permission != given_back.permission or has.refuses is not False:
                addresses.add(address)
    return frozenset(addresses)


def owed(
    known: Mapping[str, int], given_back: SetSource, brokers: Mapping[str, int], settings: Mapping[str, Settings | None]
) -> Mapping[str, int]:
    """Return those of the `known` brokers that have not got back what `given_back` gives. One is done with when it is
    in the routes with its own settings, at this address or, as a slave, at another one.
    """
    lack = lacking(given_back, brokers, settings)
    numbers = {number for address, number in brokers.items() if address not in lack and number != MASTER}
    return {
        address: number
        for address, number in known.items()
        if not (address in brokers and address not in lack) and number not in numbers
    }


RELEASE: Final = "run gantry migrate release --name-servers ADDRESSES"
"""What gives a source its settings back without the cluster, where no more is known."""


class Former(Protocol):
    """What is known of a source from before a cutover."""

    @property
    def permission(self) -> int | None: ...

    @property
    def brokers(self) -> Mapping[str, int]: ...


def given_back(name: str, group: Former) -> SetSource:
    """Return what a group's source had before the cutover."""
    return SetSource(name, READ | WRITE if group.permission is None else group.permission, MASTER, False)


def still_owed(record: Record, seen: Mapping[str, Seen]) -> dict[str, list[str]]:
    """Return by group the addresses of the source's brokers that an abort could not give their settings back."""
    return owed_of(record.groups, seen) if record.phase is Phase.FOLLOWING else {}


def owed_of(groups: Mapping[str, Former], seen: Mapping[str, Seen]) -> dict[str, list[str]]:
    """Return by group the addresses of the known brokers that have not got their settings back."""
    nothing = Seen()
    by_group = {}
    for name, group in groups.items():
        now = seen.get(name, nothing)
        if addresses := sorted(owed(group.brokers, given_back(name, group), now.brokers, now.settings)):
            by_group[name] = addresses
    return by_group


def said_owed(by_group: Mapping[str, Sequence[str]], remedy: str, *, event: str = "abort") -> str:
    """Name brokers of `still_owed` and the remedy; empty: there are none. `event`: what gave the others theirs."""
    if not by_group:
        return ""
    names = "; ".join(f"group {name}: {', '.join(addresses)}" for name, addresses in by_group.items())
    return (
        f"these brokers of the source were down at the {event}, and refuse clients until they have brokerPermission, "
        f"brokerId and startAcceptSendRequestTimeStamp back: {names}. Start them, then {remedy}"
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: write the record, then act. `waits`: for people, what is missing for the next phase."""

    record: Record
    actions: tuple[Action, ...] = ()
    waits: str = ""


class Refused(Exception):
    """The step cannot be made; nothing was changed."""


def altered(source: Settings) -> str:
    """Return why a source is not as clients need it, and how to give it back what it lacks; empty: it is. A cutover of
    another cluster may be under way, or one was never aborted: what it took would be recorded as the source's own.
    """
    permission, number = source.permission, source.broker_id
    usable = permission is not None and permission & (READ | WRITE) == READ | WRITE
    if usable and number == MASTER and source.refuses is False:
        return ""
    refuses = {None: "?", True: "in the future", False: "past"}[source.refuses]
    return (
        f"the source is not a master that clients read and write (brokerPermission={permission}, brokerId={number}, "
        f"startAcceptSendRequestTimeStamp {refuses}): end the cutover that did this (gantry migrate abort of that "
        "cluster), or set brokerPermission=6, brokerId=0 and startAcceptSendRequestTimeStamp=0 "
        "(mqadmin updateBrokerConfig)"
    )


def begin(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Record:
    """Begin a cutover, or go on with one. Raises Refused."""
    if record.phase is Phase.DONE:
        raise Refused("the cutover is done")
    if record.phase is Phase.ABORTING:
        raise Refused("an abort is under way: finish it first (gantry migrate abort)")
    if record.phase is not Phase.FOLLOWING:
        return record
    for name, group in seen.items():
        if group.state == "broken":
            raise Refused(f"group {name}: the migration stopped: {group.problem}")
        if group.state != "following" or group.lag is None or group.permission is None:
            raise Refused(f"group {name} is not ready: {group.problem or 'it does not follow the source'}")
        if group.lag > limits.lag:
            raise Refused(
                f"group {name} lacks {group.lag >> 20} MiB: wait until it is below {limits.lag >> 20} MiB "
                "(gantry migrate status)"
            )
        if problem := altered(group):
            raise Refused(f"group {name}: {problem}")
    # A slave that the last abort could not reach is given back by the next one.
    left = {name: group.brokers for name, group in record.groups.items()}
    groups = {name: Group(permission=group.permission, brokers=left.get(name, {})) for name, group in seen.items()}
    if limits.routes > 0 and all(group.can_carry for group in seen.values()):
        aside = not all(group.keeps_place for group in seen.values())
        return Record(Phase.ROUTING, now, groups, carried=True, aside=aside)
    return Record(Phase.READERS_OFF, now, groups)


def step(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    """Return the next step of a cutover, or of an abort. Raises Refused when a group of the record is not there."""
    if unknown := sorted(record.groups.keys() - seen.keys()):
        raise Refused(
            f"the spec has no group {', '.join(unknown)}, which is in the cutover: add it again as it was, then go "
            "on or abort"
        )
    if record.phase not in (Phase.FOLLOWING, Phase.ABORTING, Phase.DONE):
        groups = {
            n: replace(g, brokers=noted(g.brokers, seen[n].brokers), source=seen[n].source or g.source)
            for n, g in record.groups.items()
        }
        record = replace(record, groups=groups)
    if record.phase is Phase.ROUTING:
        return _routing(record, seen, now)
    if record.phase is Phase.ROUTED:
        return _routed(record, seen, limits, now)
    if record.phase is Phase.READERS_OFF:
        return _readers_off(record, seen, limits, now)
    if record.phase is Phase.WRITES_OFF:
        return _writes_off(record, seen, limits, now)
    if record.phase is Phase.FINISHING:
        return _finishing(record, seen, limits, now)
    if record.phase is Phase.TAKING:
        return _taking(record, seen, limits, now)
    if record.phase is Phase.ABORTING:
        return _aborting(record, seen, limits, now)
    return Step(record)


def _carried(record: Record, seen: Mapping[str, Seen]) -> tuple[Action, ...]:
    """Carry clients on, also with a member that was started again."""
    return tuple(Carry(name, True) for name in record.groups if record.carried and seen[name].carries is False)


def _routing(record: Record, seen: Mapping[str, Seen], now: float) -> Step:
    # Gantry's address first: a client that finds a route without a master keeps it for 30 seconds.
    waits = "the source's NameServers take over Gantry's addresses"
    if actions := _carried(record, seen):
        return Step(record, actions, waits)
    if not all(seen[name].carries for name in record.groups):
        return Step(record, waits=waits)
    # RocketMQ 5.x delivers nothing that waits, and stores no acknowledgement of POP, under another number.
    aside = [
        change
        for name, group in record.groups.items()
        if record.aside
        and not (change := SetSource(name, group.permission or 0, FORMER_MASTER_ID, False)).is_so(seen[name])
    ]
    if aside or not all(seen[name].routed and not seen[name].silent for name in record.groups):
        return Step(record, tuple(aside), _named(waits, seen))
    return Step(replace(record, phase=Phase.ROUTED, since=now))


def _routed(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    if actions := _carried(record, seen):
        return Step(record, actions, "clients are carried to the source")
    if not record.aside and any(seen[name].carries and seen[name].routed is False for name in record.groups):
        # The source has got its place back: it has to leave it.
        return Step(replace(record, phase=Phase.ROUTING, since=now, aside=True))
    left = limits.routes - (now - record.since)
    if 0 < left <= limits.routes:
        return Step(record, waits=f"clients learn Gantry's address: {left:.0f} s")
    return Step(replace(record, phase=Phase.READERS_OFF, since=now))


def _readers_off(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    actions: list[Action] = list(_carried(record, seen))
    for name, group in record.groups.items():
        change = SetSource(name, (group.permission or 0) & ~READ, record.number, False)
        if not change.is_so(seen[name]):
            actions.append(change)
    if actions:
        return Step(record, tuple(actions), "the source stops giving messages to consumers")
    left = limits.settle - (now - record.since)
    if 0 < left <= limits.settle:
        return Step(record, waits=f"consumers commit what they have had: {left:.0f} s")
    return Step(replace(record, phase=Phase.WRITES_OFF, since=now))


def _ended(record: Record, seen: Mapping[str, Seen]) -> tuple[SetSource, ...]:
    """Return what is missing until no source takes messages. One that was stopped needs nothing."""
    return tuple(
        change
        for name in record.groups
        if not (change := SetSource(name, 0, FORMER_MASTER_ID, True)).is_so(seen[name])
        and seen[name].permission is not None
    )


def _writes_off(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    actions: list[Action] = list(_carried(record, seen))
    actions += [a for name in record.groups if not (a := SetSource(name, 0, FORMER_MASTER_ID, True)).is_so(seen[name])]
    if actions:
        # A source that was started again may have taken messages behind an end that was noted.
        groups = {name: replace(group, end=None) for name, group in record.groups.items()}
        return Step(replace(record, groups=groups), tuple(actions), "the source stops taking messages")
    late = not 0 <= now - record.since < limits.quiet_at_most
    groups, waits = {}, ""
    for name, group in record.groups.items():
        groups[name], missing = _last(name, group, seen[name], limits, late)
        waits = waits or missing
    if waits:
        return Step(replace(record, groups=groups) if late else record, waits=waits)
    return Step(replace(record, phase=Phase.FINISHING, since=now, groups=groups))


def _last(name: str, group: Group, seen: Seen, limits: Limits, late: bool) -> tuple[Group, str]:
    """Return the group with the end of its source's log, once that is known, and what is missing until the copy has it.
    Behind the point of no return the copy needs the source no more.
    """
    if seen.source_end is None or seen.copy_end is None:
        return group, f"group {name}: {seen.problem or 'the source does not answer'}"
    if seen.quiet >= limits.quiet:
        group = replace(group, end=seen.source_end)
    elif late:
        group = replace(group, end=seen.source_end if group.end is None else group.end)
    else:
        return group, f"group {name}: the end of the source's log settles"
    if seen.state != "following":
        return group, f"group {name}: {seen.problem or 'it does not follow the source'}"
    missing = (group.end or 0) - seen.copy_end
    return group, f"group {name}: {missing} bytes are missing" if missing > 0 else ""


def _finishing(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    groups = {name: replace(g, finished=g.finished or seen[name].state == "leads") for name, g in record.groups.items()}
    if all(group.finished for group in groups.values()):
        return Step(replace(record, phase=Phase.TAKING, since=now, groups=groups))
    # One that was started again without a file that keeps its settings takes messages: its end is to be found again.
    if actions := _ended(record, seen):
        again = {a.group for a in actions if not groups[a.group].finished}
        groups |= {name: replace(groups[name], end=None) for name in again}
        return Step(replace(record, groups=groups), actions, "a source that was started again stops taking messages")
    late = not 0 <= now - record.since < limits.quiet_at_most
    finishes: list[Action] = []
    waits = ""
    for name, group in groups.items():
        if group.finished:
            continue
        missing = ""
        if group.end is None:
            groups[name], missing = _last(name, group, seen[name], limits, late)
        end = groups[name].end
        if not missing and end is not None and seen[name].state in ("following", "finishing"):
            finishes.append(Finish(name, end))
        text = missing or f"group {name} takes the last bytes and begins to lead"
        waits = waits or (f"{text}: {seen[name].problem}" if seen[name].state == "broken" else text)
    return Step(replace(record, groups=groups), tuple(finishes), waits)


def _taking(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    actions = _ended(record, seen)
    waits = 0 <= now - record.since < limits.silent
    if not actions and all(seen[name].routed and not (seen[name].silent and waits) for name in record.groups):
        return Step(replace(record, phase=Phase.DONE, since=now))
    return Step(record, actions, _named("the source's NameServers take over the new addresses", seen))


def _named(waits: str, seen: Mapping[str, Seen]) -> str:
    silent = sorted({server for group in seen.values() for server in group.silent})
    return f"{waits}; {', '.join(silent)} does not answer" if silent else waits


RETURNING: Final = frozenset({Phase.ROUTING, Phase.ROUTED, Phase.READERS_OFF, Phase.WRITES_OFF})
"""Phases from which an abort is always possible."""


def abort(record: Record, now: float, seen: Mapping[str, Seen] | None = None) -> Record:
    """Begin to go back. `seen`: where it is known. Raises Refused past the point of no return."""
    if record.phase is Phase.ABORTING or (record.phase is Phase.FOLLOWING and not record.groups):
        return record
    stopped = record.phase is Phase.FINISHING and _cannot_lead(record, seen or {})
    if stopped or record.phase in (*RETURNING, Phase.FOLLOWING):
        return replace(record, phase=Phase.ABORTING, since=now)
    if record.phase is Phase.DONE:
        raise Refused(
            "Gantry leads, and may have taken messages already, which the source lacks: gantry migrate rollback "
            "returns to it"
        )
    raise Refused(
        "Gantry may have taken messages already, which the source lacks: an abort is possible until the source's log "
        "has its last end. Go on with gantry migrate cutover"
    )


def _cannot_lead(record: Record, seen: Mapping[str, Seen]) -> bool:
    """Whether a copy has stopped for good while no group leads or may begin to: going on would never end."""
    states = [None if group.finished or name not in seen else seen[name].state for name, group in record.groups.items()]
    return "broken" in states and all(state in ("broken", "following") for state in states)


def _aborting(record: Record, seen: Mapping[str, Seen], limits: Limits, now: float) -> Step:
    # The routes lead to Gantry's address until the source registers as the master again.
    carries = {name: seen[name].carries for name in record.groups if record.carried}
    ended = tuple(Carry(name, False) for name, on in carries.items() if on)
    # A member that is dead registers nothing.
    unknown = None in carries.values() and 0 <= now - record.since < limits.quiet_at_most
    if ended or unknown:
        return Step(record, ended, "Gantry leaves the routes")
    waits = 0 <= now - record.since < limits.slaves
    back_of = {name: given_back(name, group) for name, group in record.groups.items()}
    listed = {name: record.carried and seen[name].listed for name in record.groups}
    actions = tuple(
        back
        for name, back in back_of.items()
        if not back.is_so(seen[name])
        # A change of its settings makes it register at once.
        or (waits and (listed[name] or lacking(back, seen[name].brokers, seen[name].settings)))
    )
    if actions:
        return Step(record, actions, "the source gets its permission back")
    # One that is away has kept what the cutover set, in its file: a later abort gives it back.
    groups = {
        name: Group(group.permission, brokers=left)
        for name, group in record.groups.items()
        if (left := owed(group.brokers, back_of[name], seen[name].brokers, seen[name].settings))
    }
    if groups and 0 <= now - record.since < limits.silent:  # One that has just been started is soon in the routes.
        away = ", ".join(address for group in groups.values() for address in group.brokers)
        return Step(record, waits=f"{away} of the source is not in the routes")
    return Step(Record(Phase.FOLLOWING, now, groups))
