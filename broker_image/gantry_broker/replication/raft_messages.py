"""What members of a group in Raft mode say to each other besides fetches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gantry_broker.replication.members import Members
from gantry_broker.replication.types import MemberId


class RaftRequestKind(Enum):
    FIND = "find"
    """Who leads? Asked by everybody that knows no leader, and by a new disk of everybody that it was told of."""
    PRE_VOTE = "pre-vote"
    """Would you vote for me? Changes nothing."""
    VOTE = "vote"
    BEGIN = "begin"
    """I lead this epoch: fetch from me."""
    TIMEOUT_NOW = "timeout-now"
    """You have everything: be elected now (a transfer)."""


@dataclass(frozen=True, slots=True)
class RaftRequest:
    kind: RaftRequestKind
    epoch: int
    """The epoch that is meant: the next one in a pre-vote."""
    member: MemberId
    address: str
    rank: tuple[int, int] = (0, 0)
    """(epoch of the last record, end) of the sender's log."""
    transfer: bool = False
    """The leader itself wants this election: it is held though the leader is heard."""
    members: Members = ()
    """Those of the sender: one that knows of no group yet learns from it that it votes."""


@dataclass(frozen=True, slots=True)
class RaftResponse:
    kind: RaftRequestKind
    asked: int
    """The epoch of the question."""
    member: MemberId
    epoch: int
    granted: bool = False
    leader: MemberId | None = None
    """Whom it follows in `epoch`; itself if it leads."""
    leader_address: str = ""
    uninitialized: bool = False
    """Its disk is empty and was never part of a group."""
    members: Members = ()
    """Those that it knows: one whose list is older learns from members of its own list who was added."""
