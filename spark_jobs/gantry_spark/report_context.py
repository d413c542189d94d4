"""What a report is about: its parameters, and the facts around the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gantry_spark.forecast import Disk
from gantry_spark.summary import GroupOffset


class Compacted(NamedTuple):
    """What the brokers' own compaction has done to a topic, in the names of `GET /v1/tables`."""

    seen_records: int = 0
    """Messages that it has looked at since the topic is compacted."""
    seen_bytes: int = 0
    kept_records: int = 0
    """Of them, those that it keeps."""
    kept_bytes: int = 0


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
