"""What the metrics say of the archive, and of compaction; nothing where there is neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantry_broker.exposition import Kind, Labels
from gantry_broker.http.families import Row

if TYPE_CHECKING:
    from gantry_broker.archive.archiver import Report
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.config import ArchiveConfig

MAX_TOPICS: Final = 500
"""Topics with series of their own, the busiest ones; the others count in the totals only."""

Described = tuple[str, Kind, str, list[Row]]
"""A family's name, type and help text, and its rows."""


def archive_families(
    report: Report | None, archive: ArchiveConfig | None, one: Callable[[float], list[Row]]
) -> list[Described]:
    """Return what is known of the archive; nothing without one. `one` makes the row of a value.

    Values of the manifest are absent until it was read: they are not known.
    """
    if report is None or archive is None:
        return []
    rows: list[Described] = [
        ("gantry_archive_interval_seconds", "gauge", "How much may be missing.", one(archive.interval_s)),
        ("gantry_archive_uploads", "gauge", "1 on the member that uploads.", one(int(report.uploads))),
        ("gantry_archive_failing", "gauge", "1 while the last step failed.", one(int(bool(report.error)))),
        ("gantry_archive_fenced", "gauge", "1 while another cluster owns it.", one(int(bool(report.fenced)))),
        ("gantry_archive_uploaded_bytes_total", "counter", "Bytes of objects sent.", one(report.uploaded_bytes)),
    ]
    if not report.known:
        return rows
    more: list[tuple[str, str, float]] = [
        ("gantry_archive_end_offset_bytes", "The archive has the log up to here.", report.end),
        ("gantry_archive_behind_bytes", "Confirmed bytes that the archive lacks.", report.behind_bytes),
        ("gantry_archive_behind_seconds", "How long the oldest of them has waited.", report.behind_ms / 1000),
        ("gantry_archive_size_bytes", "Bytes of its objects with records.", report.size),
        ("gantry_archive_objects", "Its objects with records.", report.parts),
        ("gantry_archive_gaps", "Ranges of the log that it lacks for ever.", report.gaps),
        ("gantry_archive_faults", "Its objects that are damaged or missing, as far as is known.", report.faults),
        (
            "gantry_archive_recoverable_from_timestamp_seconds",
            "Store time of its first record; 0: it has none.",
            report.recoverable_from_ms / 1000,
        ),
        (
            "gantry_archive_archived_timestamp_seconds",
            "Store time of its last record; 0: it has none.",
            report.archived_ms / 1000,
        ),
    ]
    if (checked := report.verification) is not None:
        more.append(
            ("gantry_archive_verified_timestamp_seconds", "When all of it was read back last.", checked.at_ms / 1000)
        )
    return [*rows, *((name, "gauge", text, one(value)) for name, text, value in more)]


def archive_read_families(reads: ArchiveReads, filled: int, one: Callable[[float], list[Row]]) -> list[Described]:
    """Return what was read from the archive for clients; nothing where none is read from it."""
    tiered = reads.tiered
    if tiered is None:
        return []
    served, counters = reads.served, tiered.counters
    return [
        ("gantry_archive_read_messages_total", "counter", "Messages for clients from it.", one(served.messages)),
        ("gantry_archive_read_bytes_total", "counter", "Bytes of these messages.", one(served.bytes)),
        ("gantry_archive_read_refused_total", "counter", "Requests that clients repeat.", one(served.refused)),
        ("gantry_archive_read_errors_total", "counter", "Failed calls for readers.", one(counters.errors)),
        ("gantry_archive_read_failing", "gauge", "1 while the last read failed.", one(int(bool(reads.error)))),
        ("gantry_archive_fetched_bytes_total", "counter", "Bytes fetched for readers.", one(counters.fetched_bytes)),
        ("gantry_archive_cache_hits_total", "counter", "Pieces that the disk had.", one(counters.hits)),
        ("gantry_archive_fill_bytes_total", "counter", "Bytes of the log taken from it.", one(filled)),
        ("gantry_archive_cache_bytes", "gauge", "What the disk keeps for readers.", one(tiered.cache_bytes)),
    ]


def compaction_families(
    compaction: Compaction, labels: Callable[[str], Labels], one: Callable[[float], list[Row]]
) -> list[Described]:
    """Return what compaction has done, by topic; nothing without compacted topics."""
    saved = [(labels(topic), compaction.saved(topic)) for topic in compaction.topics()[:MAX_TOPICS]]
    if not saved:
        return []
    return [
        (
            "gantry_compaction_seen_bytes",
            "gauge",
            "Bytes of the messages that compaction has looked at, by topic.",
            [(topic_labels, each.seen_bytes) for topic_labels, each in saved],
        ),
        (
            "gantry_compaction_kept_bytes",
            "gauge",
            "Bytes of those that it keeps.",
            [(topic_labels, each.kept_bytes) for topic_labels, each in saved],
        ),
        ("gantry_compaction_failing", "gauge", "1 while the last pass failed.", one(int(bool(compaction.error)))),
    ]
