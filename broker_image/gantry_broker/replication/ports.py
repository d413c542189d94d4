"""What the core needs of the world: a log and one small durable record. Both are synchronous.

`service.py` binds them to the message store and to config/replica.json; the simulation to models that can crash between
any two of these calls. An exception of a port leaves the core as it was before the call that raised it, or stopped.
"""

from __future__ import annotations

from typing import Protocol

from gantry_broker.replication.members import MemberChange, Members
from gantry_broker.replication.state import HardState
from gantry_broker.replication.types import LeaderEpochs


class Log(Protocol):
    """Offsets are bytes of the commit log and always record borders (rule 6)."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def flushed(self) -> int:
        """Everything below is on disk."""
        ...

    @property
    def confirmed(self) -> int:
        """Everything below is shown to readers, and nothing above (rule 9)."""
        ...

    @property
    def leader_epochs(self) -> LeaderEpochs: ...

    def begin_epoch(self, epoch: int, now_ms: int) -> None:
        """Append the epoch's control record and extend the history durably (rule 7)."""
        ...

    def read_raw(self, at: int, max_bytes: int) -> bytes:
        """Whole records from `at` on; empty at the end. At least one record, though it be larger than `max_bytes`."""
        ...

    def append_raw(self, at: int, data: bytes) -> None:
        """Append a leader's bytes verbatim; raises ValueError unless they are whole records and `at` is the end."""
        ...

    def truncate(self, to: int) -> None:
        """Drop everything from `to` on, and what derives from it; durable when this returns (rule 5)."""
        ...

    def reset_state(self) -> bytes:
        """What a follower that is reset to `start` must know besides the records; opaque here."""
        ...

    def reset(self, to: int, leader_epochs: LeaderEpochs, state: bytes) -> None:
        """An empty log that starts at `to`, as if all before had expired; durable when this returns.

        `state` is the leader's `reset_state`.
        """
        ...

    def confirm(self, offset: int) -> None:
        """Move confirmed up to `offset`, at most to the end, never back."""
        ...


class RaftLog(Log, Protocol):
    """A log that also knows the changes of members that it holds (rule 27)."""

    @property
    def member_changes(self) -> tuple[MemberChange, ...]:
        """In the order of the log; a change that is cut is gone."""
        ...

    def append_members(self, members: Members, now_ms: int) -> None:
        """Append a change record."""
        ...


class StateDisk(Protocol):
    def save(self, state: HardState) -> None:
        """Durable when this returns (rule 15)."""
        ...
