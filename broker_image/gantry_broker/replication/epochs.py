"""Arithmetic of leader epochs: the offset at which two logs diverge.

The leader epochs of a log name every leadership and the offset of its first record (rule 7). A leadership has one
writer, which begins it once (rules 13 and 21). So two logs that hold the same (epoch, start) are equal from that offset
to the shorter of the two ends of that epoch. Nothing here reads a record.
"""

from __future__ import annotations

from gantry_broker.store.log.epochs import LeaderEpochs


def last_epoch(leader_epochs: LeaderEpochs) -> int:
    """Return the epoch of the last record, 0 for a log that never had a leadership."""
    return leader_epochs[-1].epoch if leader_epochs else 0


def epoch_end(leader_epochs: LeaderEpochs, index: int, end: int) -> int:
    """Return where the epoch at `index` ends in a log that ends at `end`: the start of the next epoch, or `end`."""
    return leader_epochs[index + 1].start if index + 1 < len(leader_epochs) else end


def divergence(mine: LeaderEpochs, my_end: int, theirs: LeaderEpochs, their_end: int) -> int:
    """Return the offset up to which another log agrees with this one; at `their_end` their log is a prefix of this one.

    Checks all of their leader epochs (rule 1): each must start here where it starts in theirs, and the last one must
    not be longer in theirs than it is here.
    """
    agreed = 0
    for index, (theirs_at, mine_at) in enumerate(zip(theirs, mine, strict=False)):
        if theirs_at != mine_at:
            break
        # The shorter end of the two: behind it one log may go on with records that the other one never had.
        agreed = min(epoch_end(theirs, index, their_end), epoch_end(mine, index, my_end))
    return agreed


def truncate(leader_epochs: LeaderEpochs, end: int) -> LeaderEpochs:
    """Return the leader epochs of a log that is truncated to `end`, without the epochs whose first record is gone
    (rule 5).
    """
    return tuple(e for e in leader_epochs if e.start < end)
