"""The archive in the cluster's status, from what the members say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from gantry_operator.api import cron
from gantry_operator.api.archive import Verification
from gantry_operator.api.base import parse_duration
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import ArchiveRow, GroupRow
from gantry_operator.cluster.timestamps import utc

LATE = 10
"""An archive that is behind by more than so many intervals is late: the condition and the alert say so."""

PATIENCE: Final = timedelta(hours=24)
"""A verification may take so long after it was due, but no longer than until the next one is due."""


def archive_row(reports: Sequence[Mapping[str, Any]]) -> ArchiveRow | None:
    """Return the archive of a group; None: no member has one. `reports`: the part `archive` of each member's status.

    The member that uploads knows most. The others read the manifest now and then, so the largest end is the newest.
    """
    if not reports:
        return None
    informed = [s for s in reports if s.get("known")]
    failing = [s for s in reports if s.get("error") and s.get("uploads")] or [s for s in reports if s.get("error")]
    # No member of a standby uploads, and each one reads for itself.
    shown = failing and (failing[0].get("uploads") or not informed or len(failing) == len(reports))
    error = failing[0] if shown else None
    row = ArchiveRow()
    if error is not None:
        row = ArchiveRow(error=str(error["error"]), errorTime=_time(error.get("error_ms")))
    if not informed:
        return row
    checked = max(reports, key=lambda s: int(s.get("verified_ms", 0)))
    best = max(informed, key=lambda s: (int(s.get("end", 0)), bool(s.get("uploads"))))
    # The member that knows what a verification found knows what the manifest says, too.
    damage = checked if checked.get("verified_ms") else best
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
            "verified": _time(checked.get("verified_ms")),
            "verifiedUntil": _time(checked.get("verified_until_ms")),
            "verifiedOffset": int(checked["verified_end"]) if checked.get("verified_ms") else None,
            "faults": int(damage.get("faults", 0)),
            "fault": str(damage.get("fault", "")),
            "readMessages": sum(int(s.get("read_messages", 0)) for s in reports),
            "readError": next((str(s["read_error"]) for s in reports if s.get("read_error")), ""),
        }
    )


def with_schedule(
    groups: Sequence[GroupRow], before: Iterable[GroupRow], cluster: BrokerCluster | None, now: str
) -> list[GroupRow]:
    """Add to each group's archive whether a verification by the schedule is overdue. `before`: the former rows; `now`:
    as text, in UTC.
    """
    archive = None if cluster is None else cluster.spec.archive
    if cluster is None or archive is None or archive.verify is None or cluster.spec.hibernate:
        return list(groups)
    since = {g.name: g.archive.verifySince for g in before if g.archive is not None}
    rows = []
    for group in groups:
        row = group.archive or ArchiveRow()
        row = row.model_copy(update={"verifySince": since.get(group.name) or now})
        row = row.model_copy(update={"overdue": _overdue(row, archive.verify, datetime.fromisoformat(now))})
        rows.append(group.model_copy(update={"archive": row}))
    return rows


def archive_condition(
    groups: Sequence[GroupRow], cluster: BrokerCluster | None
) -> tuple[Literal["True", "False", "Unknown"], str, str] | None:
    """Whether the archive keeps up, and was whole when it was read back; None: the spec has none."""
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
    damaged = [
        f"group {n}: {r.faults} objects are damaged or missing (verified {r.verified or 'never'}): {r.fault}"
        for n, r in rows.items()
        if r is not None and r.faults
    ]
    if damaged:
        return "False", "Damaged", f"{'; '.join(damaged)}; see docs/runbooks.md"
    gaps = [f"group {n} lacks {r.gaps}" for n, r in rows.items() if r is not None and r.gaps]
    if gaps:
        meaning = "records left the disks before their upload, so a restore ends before them or begins behind them"
        return "False", "Gap", f"{', '.join(gaps)} ranges of the log: {meaning}"
    overdue = [f"group {n} ({r.verified or 'never'})" for n, r in rows.items() if r is not None and r.overdue]
    if overdue:
        return "False", "NotVerified", f"the archive was not read back when it was due: {', '.join(overdue)}"
    return "True", "UpToDate", "the archive has all but the newest records of every group"


def _overdue(row: ArchiveRow, verify: Verification, now: datetime) -> bool:
    """Whether a verification that was due after the last one, or since the schedule applies, has not come."""
    times = (datetime.fromisoformat(at) for at in (row.verified, row.verifySince) if at is not None)
    # A verification of the future ended by a clock that was wrong: nobody knows when it was.
    last = max((at for at in times if at <= now + PATIENCE), default=now)
    try:
        due = cron.next_run(verify.schedule, verify.timeZone, last)
        next_due = None if due is None else cron.next_run(verify.schedule, verify.timeZone, due)
    except cron.ScheduleError:
        return False
    return due is not None and now > min(due + PATIENCE, next_due or due + PATIENCE)


def _behind(row: ArchiveRow) -> int:
    return row.behindSeconds or 0


def _time(ms: Any) -> str | None:
    return utc(int(ms)) if ms else None
