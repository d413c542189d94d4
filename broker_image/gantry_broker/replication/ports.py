"""The ports of the core: a log and one small durable record. Both are synchronous.

`service.py` binds them to the message store and to config/replica.json. The simulation binds them to models that can
crash between any two of these calls. When a port raises, the core is as it was before the call, or stopped.
"""

from __future__ import annotations

from typing import Protocol

from gantry_broker.replication.members import MemberChange, Members
from gantry_broker.replication.state import HardState
from gantry_broker.store.log.epochs import LeaderEpochs


class Log(Protocol):
    """The log port. Offsets are bytes of the commit log and always record boundaries (rule 6)."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def flushed(self) -> int:
        """Everything below this offset is on disk."""
        ...

    @property
    def confirmed(self) -> int:
        """Readers see everything below this offset, and nothing above (rule 9)."""
        ...

    @property
    def leader_epochs(self) -> LeaderEpochs: ...

    def begin_epoch(self, epoch: int, now_ms: int) -> None:
        """Append the epoch's control record and extend the leader epochs durably (rule 7)."""
        ...

    def read_raw(self, at: int, max_bytes: int) -> bytes | memoryview:
        """Return whole records from `at` on; empty at the end. At least one record, even if it is larger than
        `max_bytes`.
        """
        ...

    def append_raw(self, at: int, data: bytes) -> None:
        """Append a leader's bytes verbatim. Raises ValueError unless they are whole records and `at` is the end."""
        ...

    def truncate(self, to: int) -> None:
        """Drop everything from `to` on, and what derives from it; durable on return (rule 5)."""
        ...

    def reset_state(self) -> bytes:
        """Return what a follower needs besides the records after a reset to `start`; opaque here."""
        ...

    def reset(self, to: int, leader_epochs: LeaderEpochs, state: bytes) -> None:
        """Replace the log with an empty one that starts at `to`, as if all before had expired; durable on return.

        `state` is the leader's `reset_state`.
        """
        ...

    def confirm(self, offset: int) -> None:
        """Raise the confirmed offset to `offset`, at most to the end; it never falls."""
        ...


class RaftLog(Log, Protocol):
    """A log that also knows the member changes in it (rule 27)."""

    @property
    def restored_end(self) -> int:
        """The end of the records that an archive gave this disk, 0 without: another group wrote them, so the changes
        of members among them do not count.
        """
        ...

    @property
    def restored_epoch(self) -> int:
        """The first leadership of the group is above this epoch: another site may go on from the same records."""
        ...

    @property
    def member_changes(self) -> tuple[MemberChange, ...]:
        """The changes in log order; a truncated change is gone."""
        ...

    def append_members(self, members: Members, now_ms: int) -> None:
        """Append a change record."""
        ...


class StateDisk(Protocol):
    def save(self, state: HardState) -> None:
        """Write the state; durable on return (rule 15)."""
        ...
