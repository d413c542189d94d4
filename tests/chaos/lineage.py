"""Which leaderships a log has gone through, and how each came about."""

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
    """Of the log that is left at the end."""

    epochs: tuple[tuple[int, int], ...]
    """(epoch, offset of its first record), in their order."""
    end: int
    """Offset after the last record."""
    changes: Mapping[int, str] = field(default_factory=dict)
    """By epoch how it came about: FAILOVER to another member, RESTART of the same one, or a planned HAND_OVER."""

    def at(self, offset: int) -> int:
        """The epoch that wrote what lies there; 0 below the first."""
        return max((epoch for epoch, start in self.epochs if start <= offset), default=0)

    def after(self, epoch: int) -> int | None:
        """The next one that has left something; None: it was the last."""
        return next((later for later, _ in self.epochs if later > epoch), None)

    def parts_from(self, epoch: int) -> int:
        """Where this log leaves the one that the epoch's master had."""
        return next((start for later, start in self.epochs if later > epoch), self.end)


def epochs_in(log: bytes) -> tuple[tuple[int, int], ...]:
    """Of a log from its first byte on. Raises RecordError."""
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
    """What the operator's events tell: a promotion without one was made by an operator that ended in that moment."""
    found = {}
    for event in events:
        told = _EPOCH.search(str(event["message"]))
        if told is not None:
            planned = event["reason"] == "SwitchoverStarted"
            found[int(told[1])] = HAND_OVER if planned else RESTART if event["type"] == "Normal" else FAILOVER
    return found
