"""The network between the members of a cluster: who reaches whom, and how fast. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:  # A command that has the links needs no models.
    from gantry_broker.contracts.models import MemberStatus

    from gantry_operator.cluster.live import MemberPlace

SILENT_MS: Final = 5_000
"""A follower that has not fetched for this long does not reach its leader: a held fetch comes back each second."""
LIMIT_MS: Final = 10.0
Level = Literal["good", "fair", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Link:
    """A way between a member and another member or a NameServer."""

    one: str
    other: str
    level: Level
    rtt_ms: float | None
    words: str


def links(
    places: Sequence[MemberPlace], statuses: Mapping[str, MemberStatus | str], limit_ms: float = LIMIT_MS
) -> list[Link]:
    """Return each pair of members of a group, and each member with each NameServer.

    `statuses`: by member; a text says why there is none.
    """
    pairs: list[Link] = []
    groups = sorted({place.group for place in places})
    for group in groups:
        members = sorted((p for p in places if p.group == group), key=lambda p: p.number)
        lead = _leader(members, statuses)
        pairs += [_pair(one, other, lead, statuses, limit_ms) for one, other in combinations(members, 2)]
    for place in places:
        pairs += _name_servers(place.name, statuses[place.name], limit_ms)
    return pairs


def verdict(links: Sequence[Link]) -> str:
    """One sentence about all of them."""

    def names(level: Level) -> str:
        return ", ".join(f"{link.one} to {link.other}" for link in links if link.level == level)

    if bad := names("bad"):
        return f"not everything is reached: {bad}"
    if slow := names("fair"):
        return f"all that is known is reached; slow: {slow}"
    if any(link.level == "unknown" for link in links):
        return "all that is known is reached within the limit"
    return "everything is reached within the limit"


def _leader(members: Sequence[MemberPlace], statuses: Mapping[str, MemberStatus | str]) -> str:
    """Return the member that leads its group, by the highest epoch; empty: none of those that answer."""
    masters = [
        (status.epoch, place.name)
        for place in members
        if not isinstance(status := statuses[place.name], str) and status.role == "Master"
    ]
    return max(masters, default=(0, ""))[1]


def _pair(
    one: MemberPlace, other: MemberPlace, lead: str, statuses: Mapping[str, MemberStatus | str], limit_ms: float
) -> Link:
    if lead not in (one.name, other.name):
        follower = next((p for p in (one, other) if not isinstance(statuses[p.name], str)), None)
        if follower is None:
            return Link(one.name, other.name, "unknown", None, "neither of them answers")
        peer = other if follower is one else one
        if lead:
            words = "no connection: followers have one to their leader alone"
            return Link(one.name, other.name, "unknown", None, words)
        return _as_the_follower_says(follower, peer, statuses, limit_ms) or Link(
            one.name, other.name, "unknown", None, "no member that answers leads the group"
        )
    leader, follower = (one, other) if one.name == lead else (other, one)
    status = statuses[leader.name]
    assert not isinstance(status, str)
    seen = next((f for f in status.followers if f.member.member == follower.number), None)
    claim = _as_the_follower_says(follower, leader, statuses, limit_ms)
    if claim is not None and claim.level == "bad":
        return claim
    if seen is None:
        return claim or Link(
            follower.name, leader.name, "unknown", None, f"{leader.name} has not heard of it since it leads"
        )
    if seen.last_fetch_ms > SILENT_MS:
        words = f"{follower.name} has not asked for records for {seen.last_fetch_ms / 1000:,.0f} s"
        return Link(follower.name, leader.name, "bad", None, words)
    if claim is not None and claim.rtt_ms is not None and (seen.rtt_us < 0 or claim.rtt_ms * 1000 < seen.rtt_us):
        return claim
    return _reached(follower.name, leader.name, seen.rtt_us, limit_ms)


def _as_the_follower_says(
    follower: MemberPlace, leader: MemberPlace, statuses: Mapping[str, MemberStatus | str], limit_ms: float
) -> Link | None:
    """Return the link as the follower's status has it; None: it says nothing about this leader."""
    status = statuses[follower.name]
    if isinstance(status, str) or status.leader_link.member is None:
        return None
    link = status.leader_link
    if link.member is None or link.member.member != leader.number or link.state == "none":
        return None
    if link.state == "connected":
        return _reached(follower.name, leader.name, link.rtt_us, limit_ms)
    words = "it refuses the connection" if link.state == "refused" else "it does not answer"
    return Link(follower.name, leader.name, "bad", None, words)


def _name_servers(name: str, status: MemberStatus | str, limit_ms: float) -> list[Link]:
    if isinstance(status, str):
        return [Link(name, "NameServers", "unknown", None, f"{name} does not say: {status}")]
    if not status.name_servers:
        return [Link(name, "NameServers", "unknown", None, f"{name} does not say: it runs an older version")]
    links = []
    for server in status.name_servers:
        if server.state == "connected":
            links.append(_reached(name, server.address, server.rtt_us, limit_ms))
        elif server.state == "unknown":
            links.append(Link(name, server.address, "unknown", None, "it has not registered there yet"))
        else:
            links.append(Link(name, server.address, "bad", None, "it cannot register there"))
    return links


def _reached(one: str, other: str, rtt_us: int, limit_ms: float) -> Link:
    if rtt_us < 0:
        return Link(one, other, "unknown", None, "connected; the system does not report the round trip")
    rtt_ms = rtt_us / 1000
    if rtt_ms > limit_ms:
        words = f"slower than {limit_ms:g} ms: with replication: Sync each send waits this long"
        return Link(one, other, "fair", rtt_ms, words)
    return Link(one, other, "good", rtt_ms, f"reached within {limit_ms:g} ms")
