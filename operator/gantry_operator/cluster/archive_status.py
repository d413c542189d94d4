"""The archive in the cluster's status, from what the members say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gantry_operator.api import BrokerCluster
from gantry_operator.api.base import parse_duration
from gantry_operator.api.status import ArchiveRow, GroupRow
from gantry_operator.cluster.timestamps import utc

LATE = 10
"""An archive that is behind by more than so many intervals is late: the condition and the alert say so."""


def archive_row(said: Sequence[Mapping[str, Any]]) -> ArchiveRow | None:
    """Return the archive of a group; None: no member has one. `said`: the part `archive` of each member's status.

    The member that uploads knows most. The others read the manifest now and then, so the largest end is the newest.
    """
    if not said:
        return None
    known = [s for s in said if s.get("known")]
    failing = [s for s in said if s.get("error") and s.get("uploads")] or [s for s in said if s.get("error")]
    error = failing[0] if failing and (failing[0].get("uploads") or not known) else None
    row = ArchiveRow()
    if error is not None:
        row = ArchiveRow(error=str(error["error"]), errorTime=_time(error.get("error_ms")))
    if not known:
        return row
    best = max(known, key=lambda s: (int(s.get("end", 0)), bool(s.get("uploads"))))
    return row.model_copy(
        update={
            "recoverableFrom": _time(best.get("recoverable_from_ms")),
            "archivedUntil": _time(best.get("archived_ms")),
            "offset": int(best.get("end", 0)),
            "behindBytes": int(best.get("behind_bytes", 0)),
            "behindSeconds": int(best.get("behind_ms", 0)) // 1000,
            "bytes": int(best.get("size_bytes", 0)),
            "objects": int(best.get("objects", 0)),
            "gaps": int(best.get("gaps", 0)),
            "readMessages": sum(int(s.get("read_messages", 0)) for s in said),
            "readError": next((str(s["read_error"]) for s in said if s.get("read_error")), ""),
        }
    )


def archive_condition(
    groups: Sequence[GroupRow], cluster: BrokerCluster | None
) -> tuple[Literal["True", "False", "Unknown"], str, str] | None:
    """Whether the archive keeps up; None: the spec has none."""
    if cluster is None or cluster.spec.archive is None:
        return None
    late_s = LATE * parse_duration(cluster.spec.archive.interval)
    rows = {g.name: g.archive for g in groups if g.drain is None}
    unknown = [name for name, row in rows.items() if row is None or (row.offset is None and not row.error)]
    failing = [f"group {n}: {row.error}" for n, row in rows.items() if row is not None and row.error]
    if failing:
        return "False", "Failing", "; ".join(failing)
    if unknown or not rows:
        return "Unknown", "NotRead", f"no member has read the archive of {', '.join(unknown) or 'any group'} yet"
    late = [f"group {n} by {r.behindSeconds} s" for n, r in rows.items() if r is not None and _behind(r) > late_s]
    if late:
        return "False", "Behind", f"the archive is behind: {', '.join(late)}; see docs/runbooks.md"
    gaps = [f"group {n} lacks {r.gaps}" for n, r in rows.items() if r is not None and r.gaps]
    if gaps:
        said = "records left the disks before their upload, so a restore begins behind them"
        return "False", "Gap", f"{', '.join(gaps)} ranges of the log: {said}"
    return "True", "UpToDate", "the archive has all but the newest records of every group"


def _behind(row: ArchiveRow) -> int:
    return row.behindSeconds or 0


def _time(ms: Any) -> str | None:
    return utc(int(ms)) if ms else None
