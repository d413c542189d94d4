"""The leaderships in the history of a log, and the cause of each."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gantry_broker.protocol.message import MAGIC_BLANK, decode_record
from gantry_broker.store.log.epochs import EPOCH_PROPERTY

FAILOVER, RESTART, HAND_OVER = "failover", "restart", "hand-over"
_HEAD = struct.Struct(">II")
_EPOCH = re.compile(r" becomes master in epoch (\d+): ")


@dataclass(frozen=True)
class Lineage:
    """The lineage of the log that is left at the end."""

    epochs: tuple[tuple[int, int], ...]
    """(epoch, offset of its first record), in their order."""
    end: int
    """Offset after the last record."""
    changes: Mapping[int, str] = field(default_factory=dict)
    """By epoch, its cause: FAILOVER to another member, RESTART of the same member, or a planned HAND_OVER."""

    def at(self, offset: int) -> int:
        """The epoch of the record at the offset; 0 below the first."""
        return max((epoch for epoch, start in self.epochs if start <= offset), default=0)

    def after(self, epoch: int) -> int | None:
        """The next epoch with a record in the log; None: it is the last."""
        return next((later for later, _ in self.epochs if later > epoch), None)

    def parts_from(self, epoch: int) -> int:
        """The offset at which this log diverges from the log of the epoch's master."""
        return next((start for later, start in self.epochs if later > epoch), self.end)


def epochs_in(log: bytes) -> tuple[tuple[int, int], ...]:
    """The epochs in a log, from its first byte on. Raises RecordError."""
    found, at = [], 0
    while at < len(log):
        size, magic = _HEAD.unpack_from(log, at)
        if magic != MAGIC_BLANK:
            record = decode_record(log, at)
            if EPOCH_PROPERTY in record.props:
                found.append((int(record.props[EPOCH_PROPERTY]), record.phys_offset))
        at += size
    return tuple(found)


def changes_in(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The changes in the operator's events. A promotion without an event was made by an operator that ended at that
    moment.
    """
    found = {}
    for event in events:
        named = _EPOCH.search(str(event["message"]))
        if named is not None:
            planned = event["reason"] == "SwitchoverStarted"
            found[int(named[1])] = HAND_OVER if planned else RESTART if event["type"] == "Normal" else FAILOVER
    return found
