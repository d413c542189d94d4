"""A follower's fetch and the leader's answer. `wire.py` encodes both as remoting frames."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.store.log.epochs import LeaderEpochs


class Position(NamedTuple):
    """The end of a log: the offset after its last record, and that record's epoch (rule 2)."""

    end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's fetch, which is its acknowledgement as well (rule 1)."""

    epoch: int
    """The epoch of the assignment that the follower acts on."""
    member: MemberId
    end: int
    flushed: int
    """The end on disk: the acknowledgement under SYNC_FLUSH (rule 11)."""
    leader_epochs: LeaderEpochs
    confirmed: int = 0
    """The follower's confirmed offset; the leader compares it with its own."""
    max_bytes: int = 1 << 20
    address: str = ""
    """Raft mode: the address of the follower, for the case that it becomes a member."""
    leader: MemberId | None = None
    """The member that the fetch is for. The address may belong to a member of another group by now, and epochs are
    small numbers.
    """

    @property
    def position(self) -> Position:
        return Position(self.end, self.leader_epochs[-1].epoch if self.leader_epochs else 0)


class AnswerKind(Enum):
    RECORDS = "records"
    """`data` continues the follower's log. It may be empty; then only `confirmed` is new."""
    TRUNCATE = "truncate"
    """The follower's log diverges from the leader's at `to`."""
    RESET = "reset"
    """The leader no longer has these bytes; the follower starts an empty log at `to`, with `leader_epochs`."""
    REFUSED = "refused"
    """Another epoch, no leader, or an impossible fetch; `reason` says which."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    kind: AnswerKind
    epoch: int
    """The leader's epoch; in a refusal the highest epoch that it has seen (which fences a leader, rule 14)."""
    asked: Position
    """The end of the follower's log at the fetch: an answer fits no other end (rule 2)."""
    confirmed: int = 0
    leader_end: int = 0
    to: int = 0
    divergence_offset: int = 0
    """TRUNCATE, RESET: the offset up to which both logs agree; the follower gives up what lies above it."""
    data: bytes | memoryview = b""
    """RECORDS: the records. RESET: what the log's owner needs besides them (`Log.reset_state`)."""
    leader_epochs: LeaderEpochs = ()
    reason: str = ""


def meant_for(me: MemberId, fetch: Fetch) -> bool:
    """Return whether the fetch is for this member. Otherwise nothing of it counts, not even its epoch."""
    return fetch.leader in (None, me)


def not_meant(me: MemberId, fetch: Fetch) -> FetchAnswer:
    """Refuse a fetch for another member, with epoch 0: the epoch of another group means nothing to the follower
    either.
    """
    return FetchAnswer(AnswerKind.REFUSED, 0, fetch.position, reason=f"this is {me}, not {fetch.leader}")
