"""Arithmetic of epoch histories: where do two logs part?

A history names every leadership of a log and the offset of its first record (rule 7). A leadership has one writer, who
begins it once (rules 13 and 21), so two logs that hold the same (epoch, start) are equal up to that offset, and go on
being equal until the shorter of the two ends of that epoch. Nothing here reads a record.
"""

from __future__ import annotations

from gantry_broker.replication.types import EpochStart, History


def last_epoch(history: History) -> int:
    """The epoch of the last record; 0 for a log that never had a leadership."""
    return history[-1].epoch if history else 0


def epoch_end(history: History, index: int, end: int) -> int:
    """Where the epoch at `index` ends in a log that ends at `end`: the start of the next one, or `end`."""
    return history[index + 1].start if index + 1 < len(history) else end


def divergence(mine: History, my_end: int, theirs: History, their_end: int) -> int:
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


def extended(history: History, epoch: int, start: int) -> History:
    """History with one more leadership; one that wrote nothing leaves no trace.

    Raises ValueError unless the epoch is above, and the start not below the last one's.
    """
    if history and (epoch <= history[-1].epoch or start < history[-1].start):
        raise ValueError(
            f"epoch {epoch} from offset {start} cannot follow epoch {history[-1].epoch} from {history[-1].start}"
        )
    return (*cut(history, start), EpochStart(epoch, start))


def cut(history: History, end: int) -> History:
    """The history of a log that is cut to `end`: a leadership whose first record is gone is gone too (rule 5)."""
    return tuple(e for e in history if e.start < end)
