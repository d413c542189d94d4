"""Messages between members of a group in Raft mode, besides fetches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.replication.members import Members


class RaftRequestKind(Enum):
    FIND = "find"
    """Which member leads? Sent by every member that knows no leader, and by a new disk to every member that it
    knows.
    """
    PRE_VOTE = "pre-vote"
    """Would you vote for me? A pre-vote changes nothing."""
    VOTE = "vote"
    BEGIN = "begin"
    """I lead this epoch: fetch from me."""
    TIMEOUT_NOW = "timeout-now"
    """You have all records: hold an election now (a transfer)."""


@dataclass(frozen=True, slots=True)
class RaftRequest:
    kind: RaftRequestKind
    epoch: int
    """The epoch that is meant; in a pre-vote the next one."""
    member: MemberId
    address: str
    rank: tuple[int, int] = (0, 0)
    """(epoch of the last record, end) of the sender's log."""
    transfer: bool = False
    """The leader itself wants this election: receivers allow it although they hear the leader."""
    members: Members = ()
    """The sender's members: a new disk learns from them that it votes."""


@dataclass(frozen=True, slots=True)
class RaftResponse:
    kind: RaftRequestKind
    asked: int
    """The epoch of the request."""
    member: MemberId
    epoch: int
    granted: bool = False
    leader: MemberId | None = None
    """The member that it follows in `epoch`; itself if it leads."""
    leader_address: str = ""
    uninitialized: bool = False
    """Its disk is empty and was never part of a group."""
    members: Members = ()
    """The members that it knows: a member with an older list learns of added ones from members of its own list."""
