"""The status of a table from the report of its run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gantry_broker.contracts.table_runs import Reason, TableReport

from gantry_operator.api.table import DEFAULT_EVERY, TableStatus
from gantry_operator.tables.schedule import WantedTable, late_s, next_run

GOOD: Final[tuple[Reason, ...]] = ("Current", "Behind")
MAX_MESSAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableCondition:
    """The condition TableCurrent of a BrokerTopic, without its times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def utc(time: datetime) -> str:
    """As Kubernetes writes times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def after_run(table: WantedTable, before: TableStatus, started: datetime, report: TableReport) -> TableStatus:
    """Return the status after a run that has taken the table. `started`: its start. What is not known stays."""
    good = report.reason in GOOD
    new: dict[str, object] = {
        "name": before.name,
        "lastRun": utc(started),
        "reason": report.reason,
        "message": report.message[:MAX_MESSAGE],
        "failures": 0 if good else before.failures + 1,
        "observedGeneration": table.generation,
    }
    if report.reason == "Current" or report.success_ms is not None:
        at = started if report.success_ms is None else datetime.fromtimestamp(report.success_ms / 1000, UTC)
        new["lastSuccess"] = utc(at)
    for field, value in (
        ("rows", report.rows),
        ("bytes", report.size_bytes),
        ("files", report.files),
        ("behindRecords", report.behind),
        ("rejected", report.rejected),
        ("lost", report.lost),
    ):
        if value is not None:
            new[field] = value
    new["proposed"] = report.proposed
    if report.maintained_ms is not None:
        new["lastMaintenance"] = utc(datetime.fromtimestamp(report.maintained_ms / 1000, UTC))
    if report.last_commit_ms is not None:
        new["lastCommit"] = utc(datetime.fromtimestamp(report.last_commit_ms / 1000, UTC))
    return before.model_copy(update=new)


def condition(
    table: WantedTable,
    state: TableStatus,
    now: datetime,
    every: str = DEFAULT_EVERY,
    held: str = "",
    problem: str = "",
) -> TableCondition:
    """Whether the table follows its topic. `held`: why no run starts now, as the spec says; `problem`: what prevents
    runs.
    """
    if state.failures:
        return TableCondition("False", state.reason or "Failed", state.message or "the last run failed")
    if held:
        return TableCondition("Unknown", "Suspended", held)
    if problem:
        return TableCondition("Unknown", "NotStarted", problem)
    if state.lastRun is None:
        due = next_run(table, state, now, every)
        when = "has no time for it" if due is None else "now" if due <= now else f"at {utc(due)}"
        return TableCondition("Unknown", "Waiting", f"the first run starts {when}")
    late = late_s(table, state, now, every)
    if late is not None:
        return TableCondition(
            "False", "Late",
            f"the table has not caught up with its topic for {int(late) // 60} minutes: look at the last runs, and "
            "give them more room (spec.tables.executors and resources) or a longer spec.table.every",
        )  # fmt: skip
    rejected = f"; {state.rejected:,} messages are in {table.topic}__rejected" if state.rejected else ""
    lost = f"; {state.lost} losses of messages, see gantry table describe {table.topic}" if state.lost else ""
    more = f"; {state.message}" if state.message else ""
    return TableCondition("True", "Current", f"{state.rows or 0:,} rows{rejected}{lost}{more}")
