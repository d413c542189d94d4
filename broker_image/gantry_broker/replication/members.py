"""The voters of a group in Raft mode: pure values and the arithmetic of majorities.

The last change record of the log names the members (rule 27). Before the first one they are what the first election
agreed on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol import plausible


class Voter(NamedTuple):
    """A member that votes and counts, and its address."""

    id: MemberId
    address: str


Members = tuple[Voter, ...]


class MemberChange(NamedTuple):
    """A change record of the log: in force once it is appended, undone when it is truncated."""

    at: int
    end: int
    members: Members


def ids(members: Members) -> frozenset[MemberId]:
    return frozenset(v.id for v in members)


def is_majority(some: Iterable[MemberId], members: Members) -> bool:
    return 2 * len(ids(members) & set(some)) > len(members)


def majority_offset(acked: Iterable[int]) -> int:
    """Return the offset that a majority has reached, given each member's acknowledgement."""
    falling = sorted(acked, reverse=True)
    return falling[len(falling) // 2] if falling else -1


def differ_by_one(before: Members, after: Members) -> bool:
    """Return whether the two lists differ by one member: then any two majorities of them share a member."""
    return len(ids(before) ^ ids(after)) == 1


def members_to_json(members: Members) -> list[list[Any]]:
    return [[v.id.member, v.id.incarnation, v.address] for v in members]


def members_from_json(data: Any) -> Members:
    """Read the members. Raises TypeError or ValueError when `data` is not what `members_to_json` writes."""
    return tuple(
        Voter(
            MemberId(plausible.member_number("member", m), plausible.incarnation("incarnation", i)),
            plausible.address("address", a),
        )
        for m, i, a in plausible.items("members", data, plausible.MAX_MEMBERS)
    )
