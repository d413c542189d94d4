"""The health of a cluster in one line, its members, and the forecast of their disks. Pure; times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from gantry_broker.protocol.digits import whole_number

from gantry_operator.cluster.reach import no_master
from gantry_operator.cluster.second_site import follows_archive, is_standby
from gantry_operator.cluster.unsupervised import unsupervised as sentence
from gantry_operator.console.snapshot import OLD_S, MemberSeen, Snapshot

Tone = Literal["good", "warn", "bad", "none"]
PHASES: Final[Mapping[str, Tone]] = {
    "Running": "good",
    "Updating": "warn",
    "Creating": "warn",
    "Degraded": "warn",
    "Paused": "warn",
    "Pending": "warn",
    "Refused": "bad",
    "Unavailable": "bad",
    "Deleting": "warn",
}
BAD_IF: Final[Mapping[str, tuple[str, Tone]]] = {
    # condition: (the status that needs attention, how much)
    "Available": ("False", "bad"),
    "Degraded": ("True", "warn"),
    "Progressing": ("True", "warn"),
    "CertificatesValid": ("False", "warn"),
    "Ready": ("False", "bad"),
    "Archiving": ("False", "warn"),
    "DiskPressure": ("True", "warn"),
    "ReportComplete": ("False", "warn"),
}
CHANGING: Final = ("Creating", "Updating", "Paused", "Pending", "Deleting", "Hibernated")
"""Phases in which a cluster is not ready because somebody wanted it so: that needs attention, and is no fault."""
WORST: Final[Sequence[Tone]] = ("bad", "warn", "good", "none")
MEASURED_S: Final = 60.0
"""A growth that was measured over less time gives no forecast."""
FAR_S: Final = 90 * 86_400.0
"""Forecasts beyond this time are not worth a number."""


@dataclass(frozen=True, slots=True)
class ConditionLine:
    name: str
    status: str
    tone: Tone
    message: str
    since: str


@dataclass(frozen=True, slots=True)
class Health:
    """The line of a cluster. `summary` says what to look at."""

    phase: str
    tone: Tone
    summary: str
    conditions: Sequence[ConditionLine]
    ready: int
    members: int
    failover: Mapping[str, Any] | None
    age_s: float
    """Age of the oldest figure that should be new."""
    old: Sequence[str]
    """Which figures are old, and why."""
    standby: bool = False
    """The cluster follows the archive of another one."""
    silent: Sequence[str] = ()
    """A sentence about each broker group without a master that answers."""

    @property
    def unknown(self) -> str:
        """Why an empty table says nothing; empty: it does."""
        return "; ".join(self.silent)


@dataclass(frozen=True, slots=True)
class DiskView:
    used: int
    total: int
    full: bool
    full_in_s: float | None
    """Seconds until it is full at the present rate; None: it does not grow, or the rate is not known yet."""
    measuring: bool

    @property
    def share(self) -> float:
        return self.used / self.total if self.total else 0.0

    @property
    def tone(self) -> Tone:
        if self.full or self.share >= 0.95 or (self.full_in_s is not None and self.full_in_s < 86_400):
            return "bad"
        if self.share >= 0.85 or (self.full_in_s is not None and self.full_in_s < 7 * 86_400):
            return "warn"
        return "good"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member in the table. `address`: for clients; `lag`: bytes behind the master; None: not known."""

    name: str
    group: str
    role: str
    tone: Tone
    epoch: int | None
    """None, as of `start` and `end`: not known."""
    start: int | None
    end: int | None
    lag: int | None
    in_sync: bool | None
    """None: not known."""
    where: str
    address: str
    reason: str
    connections: int | None
    disk: DiskView | None
    age_s: float
    answers: bool


def disk_of(status: Mapping[str, Any], growth: tuple[float, float] | None) -> DiskView | None:
    """Return the disk of a member, with the time until it is full. `growth`: bytes a second, over how many seconds."""
    disk = status.get("disk")
    if not disk or not disk["total_bytes"]:
        return None
    rate, measured = growth or (0.0, 0.0)
    full_in = None
    if measured >= MEASURED_S and rate > 0:
        left = disk["free_bytes"] / rate
        full_in = left if left < FAR_S else None
    total = int(disk["total_bytes"])
    return DiskView(total - int(disk["free_bytes"]), total, bool(disk.get("full")), full_in, measured < MEASURED_S)


def members_of(snapshot: Snapshot, now: float) -> list[MemberView]:
    """All members: those of the status, with newer figures where a member has answered since."""
    views = []
    reported = {row["name"]: row for row in snapshot.status.get("members") or []}
    for name in sorted({*reported, *snapshot.members}, key=_natural):
        views.append(_member(reported.get(name) or {}, snapshot.members.get(name), name, snapshot, now))
    return views


def _natural(name: str) -> tuple[str, int]:
    head, _, number = name.rpartition("-")
    member = whole_number(number)
    return (name, -1) if member is None else (head, member)


def _member(row: Mapping[str, Any], seen: MemberSeen | None, name: str, snapshot: Snapshot, now: float) -> MemberView:
    status = {} if seen is None or seen.status is None else seen.status
    answers = seen is not None and seen.status is not None and not seen.problem
    role = str(status.get("role", row.get("role", "Unknown"))) if answers or seen is None else "Unknown"
    if answers and is_standby(status):
        role = "Standby"
    in_sync: bool | None = row.get("inSync")
    if status.get("in_sync") and status.get("member"):
        in_sync = _in_sync(snapshot, row.get("group") or status.get("group", ""), status, in_sync)
    reason = (
        str(status.get("reason") or "") if answers else (seen.problem if seen is not None else row.get("reason", ""))
    )
    works = (role in ("Master", "Slave") and in_sync is True) or (role == "Standby" and follows_archive(status))
    tone: Tone = "good" if works else "warn" if answers else "bad"
    pid = status.get("pid") or row.get("pid")
    return MemberView(
        name=name,
        group=str(row.get("group") or status.get("group", "")),
        role=role,
        tone=tone,
        epoch=status.get("epoch", row.get("epoch")),
        start=status.get("start"),
        end=status.get("end", row.get("maxOffset")),
        lag=int(status.get("lag_bytes", 0)) if answers else row.get("lag") if seen is None else None,
        in_sync=in_sync if answers or in_sync is False else None,
        where=str(row.get("node") or (f"pid {pid}" if pid else "")),
        address=str(status.get("address") or row.get("address", "")),
        reason=str(reason or ""),
        connections=status.get("connections"),
        disk=disk_of(status, snapshot.growth.get(name)),
        age_s=max(now - seen.at, 0.0) if seen is not None and seen.at else 0.0,
        answers=answers,
    )


def _in_sync(snapshot: Snapshot, group: str, status: Mapping[str, Any], before: bool | None) -> bool | None:
    """By the newest leadership that a member of the group reports: the in-sync set of the highest (epoch, version)."""
    best: Mapping[str, Any] | None = None
    for seen in snapshot.members.values():
        report = seen.status
        if report is None or seen.problem or report.get("group") != group:
            continue
        if best is None or (report["epoch"], report["version"]) > (best["epoch"], best["version"]):
            best = report
    return before if best is None else status["member"] in best["in_sync"]


def health_of(snapshot: Snapshot, now: float) -> Health:
    """Return the line of a cluster."""
    status = snapshot.status
    phase = str(status.get("phase") or "Unknown")
    conditions = [_condition(c, phase) for c in status.get("conditions") or []]
    members = members_of(snapshot, now)
    standby = any(m.role == "Standby" for m in members)
    ready = sum(
        m.tone == "good" if m.role == "Standby" else m.in_sync is True and m.role in ("Master", "Slave")
        for m in members
    )
    silent = [] if phase == "Hibernated" else [no_master(group) for group in snapshot.silent(now)]
    unsupervised = status.get("supervised") is False
    tones: list[Tone] = [
        PHASES.get(phase, "bad" if snapshot.problem else "none"),
        *(c.tone for c in conditions if c.tone != "good"),
    ]
    if silent or unsupervised:
        tones.append("bad")
    tone = min(tones, key=WORST.index)
    summary = sentence(status) if unsupervised else "; ".join(silent)
    summary = summary or next((c.message for c in conditions if c.tone == "bad"), "")
    summary = summary or next((c.message for c in conditions if c.tone == "warn"), "")
    away = [m.name for m in members if not m.answers]
    if tone == "good" and away:
        tone, summary = "warn", f"not answering: {', '.join(away)}"
    if not summary:
        available = [c.message for c in conditions if c.name == "Available"]
        summary = available[0] if available else snapshot.problem
    old = _old(snapshot, now)
    ages = [now - seen.at for seen in snapshot.members.values() if seen.at and not seen.problem]
    ages += [now - part.at for part in snapshot.tables.parts.values()]
    return Health(
        phase,
        tone,
        summary,
        conditions,
        ready,
        len(members),
        status.get("lastFailover"),
        max([0.0, *ages]),
        old,
        standby,
        silent + _unread(snapshot, now),
    )


def _condition(line: Mapping[str, Any], phase: str) -> ConditionLine:
    bad, how = BAD_IF.get(line["type"], ("", "none"))
    if line["type"] == "Ready" and phase in CHANGING:
        how = "warn"
    tone: Tone = how if line["status"] == bad else "none" if line["status"] == "Unknown" else "good"
    if line["type"] == "Secured":
        tone = "good" if line["status"] == "True" else "none"
    if line["type"] == "Progressing" and line["status"] == "False":
        tone = "none"
    return ConditionLine(
        line["type"],
        line["status"],
        tone,
        line.get("message", ""),
        line.get("lastTransitionTime", ""),
    )


def _unread(snapshot: Snapshot, now: float) -> list[str]:
    """Sentences about masters whose tables were not read yet."""
    if not snapshot.members:
        return ["no member has answered yet: cannot tell"]
    led = {m.group for m in snapshot.members.values()} - set(snapshot.silent(now))
    return [f"group {g} has not answered yet: cannot tell" for g in sorted(led - snapshot.tables.parts.keys())]


def _old(snapshot: Snapshot, now: float) -> list[str]:
    remarks = []
    if snapshot.problem:
        remarks.append(f"the cluster's status: {snapshot.problem}")
    for group, part in sorted(snapshot.tables.parts.items()):
        if now - part.at > OLD_S:
            remarks.append(f"topics and groups of broker group {group}: {now - part.at:.0f} s old")
    return remarks


def seconds_since(time: str, now: float) -> float | None:
    """Seconds since an RFC 3339 time; None: it is none."""
    try:
        return now - datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
