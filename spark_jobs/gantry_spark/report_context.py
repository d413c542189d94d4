"""What a report is about: its parameters, and the facts around the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gantry_spark.compacted import Compacted
from gantry_spark.forecast import Disk
from gantry_spark.summary import GroupOffset


@dataclass(frozen=True)
class Context:
    """The parameters and the environment of a report. Times are Unix milliseconds."""

    source: str
    now_ms: int
    since_ms: int | None = None
    tombstone_ms: int = 86_400_000
    reserved_hours: int = 72
    disks: Sequence[Disk] = ()
    offsets: Sequence[GroupOffset] = ()
    log_bytes: int = 0
    new_bytes: int = 0
    segments: int = 0
    notes: Sequence[str] = ()
    missing: Sequence[str] = ()
    """Parts that could not be read, such as the consumer groups of a log."""
    complete: bool = True
    """Whether all bytes of all logs are available. Otherwise the newest version of a key may be missing."""
    compacted: Mapping[str, Compacted] = field(default_factory=dict)
    """By topic, of those that the brokers compact."""
    hours: Mapping[int, int] | None = None
    """Bytes by hour since 1970 of the whole log, if the report covers a part of it. The whole log fills the disk."""
