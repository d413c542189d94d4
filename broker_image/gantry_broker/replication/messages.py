"""What a follower asks its leader, and what it is answered. `wire.py` puts both into remoting frames."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gantry_broker.replication.types import LeaderEpochs, MemberId


class Position(NamedTuple):
    """Where a log ends: the offset after its last record, and that record's epoch (rule 2)."""

    end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's question, which is its acknowledgement as well (rule 1)."""

    epoch: int
    """The epoch of the assignment that the follower acts on."""
    member: MemberId
    end: int
    flushed: int
    """The end on disk: what is acknowledged under SYNC_FLUSH (rule 11)."""
    leader_epochs: LeaderEpochs
    confirmed: int = 0
    """What the follower knows to be confirmed, so that the leader sees whether it has news."""
    max_bytes: int = 1 << 20
    address: str = ""
    """Raft mode: where others reach the asker, should it become a member."""
    leader: MemberId | None = None
    """Whom it means. An address may have come to belong to a member of another group, and epochs are small numbers."""

    @property
    def position(self) -> Position:
        return Position(self.end, self.leader_epochs[-1].epoch if self.leader_epochs else 0)


class AnswerKind(Enum):
    RECORDS = "records"
    """`data` continues the asker's log; it may be empty, then only `confirmed` is news."""
    TRUNCATE = "truncate"
    """The asker's log leaves the leader's at `to`."""
    RESET = "reset"
    """The leader no longer has the bytes from there; the asker starts an empty log at `to`, with `history`."""
    REFUSED = "refused"
    """Another epoch than the asker's, no leader, or an impossible question; `reason` says which."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    kind: AnswerKind
    epoch: int
    """The leader's epoch; in a refusal the highest epoch that it has seen (which fences a master, rule 14)."""
    asked: Position
    """Where the asker's log ended: an answer fits no other (rule 2)."""
    confirmed: int = 0
    leader_end: int = 0
    to: int = 0
    divergence_offset: int = 0
    """CUT, RESET: the offset up to which both logs agree; what the asker gives up lies above it."""
    data: bytes = b""
    """RECORDS: the records. RESET: what the log's owner must know besides them (`Log.reset_state`)."""
    leader_epochs: LeaderEpochs = ()
    reason: str = ""


def meant_for(me: MemberId, fetch: Fetch) -> bool:
    """Whether the asker means this member: nothing of a stranger's question counts, not even its epoch."""
    return fetch.leader in (None, me)


def not_meant(me: MemberId, fetch: Fetch) -> FetchAnswer:
    """Epoch 0: that of another group says nothing to the asker either."""
    return FetchAnswer(AnswerKind.REFUSED, 0, fetch.position, reason=f"this is {me}, not {fetch.leader}")
