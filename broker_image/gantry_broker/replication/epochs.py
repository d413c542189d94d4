"""Arithmetic of epoch histories: where do two logs part?

A history names every leadership of a log and the offset of its first record (rule 7). A leadership has one writer, who
begins it once (rules 13 and 21), so two logs that hold the same (epoch, start) are equal up to that offset, and go on
being equal until the shorter of the two ends of that epoch. Nothing here reads a record.
"""

from __future__ import annotations

from gantry_broker.replication.types import EpochStart, LeaderEpochs


def last_epoch(leader_epochs: LeaderEpochs) -> int:
    """The epoch of the last record; 0 for a log that never had a leadership."""
    return leader_epochs[-1].epoch if leader_epochs else 0


def epoch_end(leader_epochs: LeaderEpochs, index: int, end: int) -> int:
    """Where the epoch at `index` ends in a log that ends at `end`: the start of the next one, or `end`."""
    return leader_epochs[index + 1].start if index + 1 < len(leader_epochs) else end


def divergence(mine: LeaderEpochs, my_end: int, theirs: LeaderEpochs, their_end: int) -> int:
    """The offset up to which another log agrees with mine; at `their_end` their log is a prefix of mine.

    Walks the whole of their history (rule 1): each of their epochs must start in mine where it starts in theirs, and
    the last of them must not be longer in theirs than it is in mine.
    """
    agreed = 0
    for index, (theirs_at, mine_at) in enumerate(zip(theirs, mine, strict=False)):
        if theirs_at != mine_at:
            break
        agreed = min(epoch_end(theirs, index, their_end), epoch_end(mine, index, my_end))
    return agreed


def extended(leader_epochs: LeaderEpochs, epoch: int, start: int) -> LeaderEpochs:
    """History with one more leadership; one that wrote nothing leaves no trace.

    Raises ValueError unless the epoch is above, and the start not below the last one's.
    """
    if leader_epochs and (epoch <= leader_epochs[-1].epoch or start < leader_epochs[-1].start):
        raise ValueError(
            f"epoch {epoch} from offset {start} cannot follow "
            f"epoch {leader_epochs[-1].epoch} from {leader_epochs[-1].start}"
        )
    return (*truncate(leader_epochs, start), EpochStart(epoch, start))


def truncate(leader_epochs: LeaderEpochs, end: int) -> LeaderEpochs:
    """The history of a log that is cut to `end`: a leadership whose first record is gone is gone too (rule 5)."""
    return tuple(e for e in leader_epochs if e.start < end)
