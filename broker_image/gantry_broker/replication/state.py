"""The role that a member must remember over a restart: config/replica.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId, member_from_json
from gantry_broker.protocol import plausible
from gantry_broker.replication.members import Members, members_from_json, members_to_json


@dataclass(frozen=True, slots=True)
class HardState:
    """Durable before the member acts (rule 15)."""

    me: MemberId
    leadership: LeadershipRecord = field(default_factory=LeadershipRecord)
    """The newest assignment; older ones are refused, also after a restart."""
    leader_address: str | None = None
    unclean: bool = False
    """The newest assignment allowed a truncation below the confirmed offset (rule 3)."""
    vote: MemberId | None = None
    """Raft mode: its vote in the epoch of `leadership` (rule 24)."""
    first_members: Members = ()
    """Raft mode: the members of a group whose log does not name them yet."""

    def to_json(self) -> dict[str, Any]:
        return {
            "member": list(self.me),
            "leadership": self.leadership.to_json(),
            "leaderAddress": self.leader_address,
            "unclean": self.unclean,
            "vote": None if self.vote is None else list(self.vote),
            "firstMembers": members_to_json(self.first_members),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HardState:
        """Read the state. Raises KeyError, TypeError or ValueError when `data` is not what `to_json` writes."""
        address, vote = data["leaderAddress"], data.get("vote")
        return cls(
            member_from_json("member", data["member"]),
            LeadershipRecord.from_json(data["leadership"]),
            None if address is None else plausible.address("leaderAddress", address),
            bool(data["unclean"]),
            None if vote is None else member_from_json("vote", vote),
            members_from_json(data.get("firstMembers", [])),
        )
