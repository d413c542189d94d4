"""The part of a cluster in a pair of sites that share one archive, and its next step. Pure.

- Active: it takes writes, and archives.
- Demoting: it takes no writes any more. Each group archives its last byte and closes its archive with the token.
- Standby: its members follow the archive, serve reads and refuse writes. No member leads.
- Promoting: it becomes the archive's owner. After that each write of the former owner to the archive fails, so the end
  of the archive is final. Once a member of each group has all of it, the cluster is active.

`generation` rises with each change of the members' part, so late requests change nothing. Members keep what they were
told. A control plane that lost its state takes over the newest one that a member reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from gantry_broker.protocol import plausible

Role = Literal["Active", "Demoting", "Standby", "Promoting"]
MemberRole = Literal["Active", "Sealed", "Standby"]
_OF_MEMBERS: Final[dict[str, MemberRole]] = {
    "Active": "Active", "Demoting": "Sealed", "Standby": "Standby", "Promoting": "Standby",
}  # fmt: skip
_OF_A_CLUSTER: Final[dict[str, Role]] = {"Active": "Active", "Sealed": "Demoting", "Standby": "Standby"}


UNKNOWN: Final = -1
"""In `SiteState.ends`: the state was lost, and no member of the group has said its end since."""


class Refused(Exception):
    """A request that cannot be carried out. The text says what to do."""


@dataclass(frozen=True, slots=True)
class SiteState:
    """What the control plane keeps, and what its members get."""

    role: Role = "Active"
    generation: int = 0
    token: str = ""
    """Demoting: what closes the archive. Standby: of the last hand-over. Promoting: what the user gave."""
    origin: str = ""
    """The name of the last promotion."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """By group: where the archive ended at the last promotion; `UNKNOWN`: not known any more."""
    accept_loss: bool = False
    """Promoting: also without a hand-over. Demoting: also when the archive cannot be closed."""
    at_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "generation": self.generation,
            "token": self.token,
            "origin": self.origin,
            "ends": dict(self.ends),
            "acceptLoss": self.accept_loss,
            "atMs": self.at_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SiteState:
        """Read what `to_json` wrote. Raises ValueError, KeyError, TypeError for what is no state."""
        if value["role"] not in _OF_MEMBERS:
            raise ValueError(f"role {value['role']!r}")
        return cls(
            value["role"],
            plausible.version("generation", value["generation"]),
            str(value.get("token", "")),
            str(value.get("origin", "")),
            {
                str(k): plausible.number(str(k), v, UNKNOWN, plausible.MAX_OFFSET)
                for k, v in dict(value.get("ends") or {}).items()
            },
            bool(value.get("acceptLoss", False)),
            plausible.offset("atMs", value.get("atMs", 0)),
        )


@dataclass(frozen=True, slots=True)
class MemberSite:
    """What a member reports."""

    name: str
    group: str
    role: str = "Active"
    generation: int = 0
    token: str = ""
    origin: str = ""
    origin_end: int = 0
    follows: bool = False
    superseded: str = ""
    error: str = ""
    """Why it cannot read or write the archive now."""
    idle: bool = False
    leads: bool = False
    confirmed: int = 0
    """End of its confirmed log."""
    end: int = 0


def member_site(name: str, group: str, status: Mapping[str, Any]) -> MemberSite | None:
    """Read it from a line of a member's status; None: the member is of a version that knows no sites, or says what
    cannot be.
    """
    site = status.get("site")
    try:
        if not isinstance(site, Mapping) or site["role"] not in _OF_A_CLUSTER:
            return None
        return MemberSite(
            name,
            group,
            site["role"],
            plausible.version("generation", site["generation"]),
            str(site.get("token", "")),
            str(site.get("origin", "")),
            plausible.offset("origin_end", site.get("origin_end", 0)),
            site.get("follows") is True,
            str(site.get("superseded", ""))[: plausible.MAX_TEXT],
            str((status.get("archive") or {}).get("error", ""))[: plausible.MAX_TEXT],
            site.get("idle") is True,
            status.get("role") == "Master",
            plausible.offset("confirmed", status.get("confirmed", 0)),
            plausible.offset("end", status.get("end", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def follows_archive(status: Mapping[str, Any] | None) -> bool:
    """Whether a member is part of a standby, and has read its archive. `status`: a line of its status."""
    return status is not None and is_standby(status) and status["site"].get("follows") is True


def is_standby(status: Mapping[str, Any] | None) -> bool:
    """Whether a member is part of a standby."""
    site = (status or {}).get("site")
    return isinstance(site, Mapping) and site.get("role") == "Standby"


class _Seen(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def status(self) -> Mapping[str, Any] | None: ...


def members_sites(members: Iterable[_Seen]) -> list[MemberSite]:
    """Return what the members that answer say of their part."""
    sites = (member_site(m.name, m.group, m.status) for m in members if m.status is not None)
    return [site for site in sites if site is not None]


def adopt(state: SiteState, members: Sequence[MemberSite], groups: Iterable[str] = ()) -> SiteState:
    """Take over what members know better: this control plane lost its state, or its last write of it.

    `groups`: all groups. A member that lags must not hear a guess for the end of the archive of its group.
    """
    newest = max(members, key=lambda m: m.generation, default=None)
    if newest is None or newest.generation < state.generation:
        return state
    ends = {m.group: m.origin_end for m in members if m.generation == newest.generation and m.origin}
    if newest.generation == state.generation:
        learned = {g: end for g, end in ends.items() if state.ends.get(g) == UNKNOWN}
        return replace(state, ends={**state.ends, **learned}) if learned else state
    if newest.origin:
        ends = dict.fromkeys(groups, UNKNOWN) | ends
    return SiteState(_OF_A_CLUSTER[newest.role], newest.generation, newest.token, newest.origin, ends)


def first_state(members: Sequence[MemberSite], *, follows: bool) -> SiteState:
    """Return the state of a cluster that has never exchanged parts. `follows`: the spec has bootstrap.follow."""
    return SiteState("Standby" if follows and not any(m.role == "Active" for m in members) else "Active")


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a member must hear: the fields of `PUT /v1/site`."""

    role: MemberRole
    generation: int
    token: str = ""
    origin: str = ""
    origin_end: int = 0


def instruction(state: SiteState, member: MemberSite) -> Instruction | None:
    """Return what to tell a member; None: it knows."""
    role = _OF_MEMBERS[state.role]
    if member.generation > state.generation or (member.generation == state.generation and member.role == role):
        return None
    if state.generation == 0:
        return None  # Each member begins as its configuration says.
    sealed = role == "Sealed"
    end = state.ends.get(member.group, 0) if role == "Active" else 0
    if end == UNKNOWN:
        return None
    return Instruction(
        role, state.generation, state.token if sealed else "", state.origin if role == "Active" else "", end
    )


def demote(state: SiteState, members: Sequence[MemberSite], token: str, *, accept_loss: bool, now_ms: int) -> SiteState:
    """Begin to end the writes of an active cluster. Raises Refused. A superseded one becomes a standby at once."""
    if state.role == "Demoting":  # A request may be carried out again, so it gives nothing up by itself (`given_up`).
        return replace(state, accept_loss=True) if accept_loss and not state.accept_loss else state
    if state.role == "Standby" and (state.token or accept_loss):
        return state  # Who asks again gets the same token.
    if state.role != "Active":
        raise Refused(f"this cluster is {_in_words(state)}: there is nothing to demote")
    superseded = next((m for m in members if m.superseded), None)
    if superseded is not None and not accept_loss:
        raise Refused(
            f"{superseded.superseded}. What this cluster took since then is in no archive and is lost when it becomes "
            "the standby: copy what you need, then repeat with --accept-loss"
        )
    role: Role = "Demoting" if superseded is None else "Standby"
    demoting = role == "Demoting"
    return replace(
        state, role=role, generation=state.generation + 1, token=token if demoting else "",
        accept_loss=accept_loss and demoting, at_ms=now_ms,
    )  # fmt: skip


def demoted(state: SiteState, now_ms: int) -> SiteState:
    """Every group has closed its archive."""
    assert state.role == "Demoting"
    return replace(state, role="Standby", generation=state.generation + 1, accept_loss=False, at_ms=now_ms)


def given_up(state: SiteState, now_ms: int) -> SiteState:
    """Return the state after an archive that cannot be closed, for example since it is another cluster's, and a person
    has accepted the loss.
    """
    assert state.accept_loss
    return replace(demoted(state, now_ms), token="")


@dataclass(frozen=True, slots=True)
class Looked:
    """The archive of one group, as a member of the standby reads it. Times are Unix ms."""

    group: str
    owner: str
    """The name of the cluster that owns it."""
    closed: str
    archived_end: int
    archived_ms: int
    handed_over: tuple[str, ...] = ()
    """All groups of the archive that were handed over with the same token."""
    groups: tuple[str, ...] = ()
    """All groups of the archive."""


def not_here(looked: Sequence[Looked]) -> list[str]:
    """Return the groups of the archive that this cluster lacks, as far as they were not handed over."""
    archived = {name for g in looked for name in g.groups} - {name for g in looked for name in g.handed_over}
    return sorted(archived - {g.group for g in looked})


def promote(
    state: SiteState, looked: Sequence[Looked], token: str, origin: str, *, accept_loss: bool, now_ms: int
) -> SiteState:
    """Begin a promotion. Raises Refused, which says how much may be missing."""
    if state.role == "Promoting":  # A group that was not handed over holds it up.
        return replace(state, accept_loss=True) if accept_loss and not state.accept_loss else state
    if state.role != "Standby":
        raise Refused(f"this cluster is {_in_words(state)}: only a standby can be promoted")
    open_groups = [g for g in looked if not g.closed]
    other = [g for g in looked if g.closed and token and g.closed != token]
    if other and not accept_loss:
        raise Refused(f"group {other[0].group} was handed over with another token: see status.site of {other[0].owner}")
    if (open_groups or not token) and not accept_loss:
        if not open_groups:
            raise Refused(
                f"cluster {looked[0].owner} has handed over: write --token with the one that `gantry demote` printed "
                "there, which is in its status, too"
            )
        rows = "; ".join(
            f"group {g.group}: archived up to {max(now_ms - g.archived_ms, 0) // 1000} s ago (offset {g.archived_end})"
            for g in open_groups
        )
        absent = not_here(looked)
        if absent:
            rows += (
                f". The archive has group {', '.join(absent)} as well, and this cluster has no such group: add it to "
                "spec.brokerGroups first, unless it was removed there, too"
            )
        raise Refused(
            f"cluster {open_groups[0].owner} has not handed over, so what it took since its last upload may be "
            f"missing: {rows}. Run `gantry demote` there if it lives. If it is lost, repeat with --accept-loss"
        )
    lacking = sorted({name for g in looked for name in g.handed_over} - {g.group for g in looked})
    if lacking and not accept_loss:
        raise Refused(
            f"group {', '.join(lacking)} was handed over, too, and this cluster has no such group: add it to "
            "spec.brokerGroups, or repeat with --accept-loss to do without its messages"
        )
    return replace(state, role="Promoting", token=token, origin=origin, ends={}, accept_loss=accept_loss, at_ms=now_ms)


def taken(
    state: SiteState, ends: Mapping[str, int], members: Sequence[MemberSite], now_ms: int,
    needed: Mapping[str, int] | None = None,
) -> SiteState | str:  # fmt: skip
    """Check that the archive of each group is this cluster's, and ends there. Return the active state, or what it waits
    for.

    `needed`: by group, how many members must have all of it; one of a group that is missing.
    """
    assert state.role == "Promoting"
    for group, end in sorted(ends.items()):
        have = sorted((m.confirmed for m in members if m.group == group and m.role == "Standby"), reverse=True)
        if not have or have[0] < end:
            what = f"a member has it up to {have[0]}" if have else "no member answers"
            return f"group {group}: the archive ends at {end}, {what}"
        whole, enough = sum(at >= end for at in have), (needed or {}).get(group, 1)
        if whole < enough:
            return f"group {group}: the archive ends at {end}, {whole} of {enough} members have it"
    return replace(
        state, role="Active", generation=state.generation + 1, token="", ends=dict(ends), accept_loss=False,
        at_ms=now_ms,
    )  # fmt: skip


def site_condition(
    state: SiteState, members: Sequence[MemberSite], waits: str
) -> tuple[Literal["True", "False"], str, str] | None:
    """Return the condition `Standby`; None: the cluster is an ordinary one."""
    superseded = next((m.superseded for m in members if m.superseded), "")
    if state.role == "Active" and superseded:
        text = f"{superseded}; this one takes no writes. `gantry demote --accept-loss` makes it the standby"
        return "False", "Superseded", text
    if state.role == "Active":
        return None if state.generation == 0 else ("False", "Active", "this cluster takes writes and owns its archive")
    if state.role == "Demoting":
        return "False", "Demoting", waits or "writes have ended; the last bytes go to the archive"
    if state.role == "Promoting":
        return "True", "Promoting", waits or "the archive is taken over"
    behind = sorted({m.name for m in members if not m.follows})
    if behind or not members:
        return "True", "NotFollowing", f"members that have not read the archive yet: {', '.join(behind) or 'all'}"
    failing = sorted((m for m in members if m.error), key=lambda m: m.name)
    if failing:
        names = ", ".join(m.name for m in failing)
        return "True", "NotFollowing", f"members that cannot read the archive now: {names}: {failing[0].error}"
    token = f"; it handed over with token {state.token}" if state.token else ""
    return "True", "Following", f"every member follows the archive and serves reads{token}"


def _in_words(state: SiteState) -> str:
    return {"Active": "active", "Demoting": "handing over", "Standby": "a standby", "Promoting": "being promoted"}[
        state.role
    ]
