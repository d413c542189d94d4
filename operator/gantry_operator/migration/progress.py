"""A migration in the cluster's status: what happens, how far it is, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from gantry_broker.protocol import plausible

from gantry_operator.api.annotations import GROUP as API_GROUP
from gantry_operator.api.status import MigrationGroupRow, MigrationStatus
from gantry_operator.cluster.amounts import duration, size
from gantry_operator.cluster.timestamps import utc
from gantry_operator.migration import rollback_steps
from gantry_operator.migration.cutover_steps import RELEASE, RETURNING, Limits, Phase, Record, said_owed, still_owed
from gantry_operator.migration.rollback_steps import Phase as Rollback

SAID: Final = {
    Phase.FOLLOWING: "the copies follow the source",
    Phase.ROUTING: "the source's NameServers take over Gantry's addresses",
    Phase.ROUTED: "clients learn Gantry's addresses",
    Phase.READERS_OFF: "the source gives nothing to consumers any more",
    Phase.WRITES_OFF: "the source takes no messages any more",
    Phase.FINISHING: "each group takes the last bytes and leads; there is no way back",
    Phase.TAKING: "the source's NameServers take over the new addresses",
    Phase.DONE: "Gantry leads",
    Phase.ABORTING: "the source gets its permission back",
}
"""What happens in a phase."""
SAID_BACK: Final = {
    Rollback.NONE: "Gantry leads",
    Rollback.COPYING: "the source's brokers get what was written since the cutover",
    Rollback.WRITES_OFF: "Gantry takes no messages any more; the rest is copied",
    Rollback.READERS_OFF: "Gantry gives nothing to consumers any more",
    Rollback.OFFSETS: "the source's brokers get the offsets of consumer groups",
    Rollback.LEAVING: "Gantry leaves the source's NameServers",
    Rollback.RETURNING: "the source's brokers take their place; there is no way back",
    Rollback.DONE: "the source leads again",
    Rollback.ABORTING: "Gantry gets its permission and its place back",
}
"""The same of a rollback."""
END: Final = "stop the source's brokers, and do not start them again"
END_BACK: Final = "when the source's clients work, delete this cluster"
NEAR: Final = Limits().lag
"""Bytes that a copy may lack when a cutover begins, unless the request says more."""
ASK: Final = f"{API_GROUP}/migrate"
"""The annotation by which a person asks for a step."""
STATES: Final = ("following", "finishing", "broken")


def row_of(name: str, copy: Mapping[str, Any] | None, *, leads: bool) -> MigrationGroupRow:
    """Return one group. `copy`: what its member says of the copy; None: nothing. What cannot be is not known."""
    if leads:
        return MigrationGroupRow(name=name, state="leads")
    if copy is None:
        return MigrationGroupRow(name=name, problem="no member says that it follows the source")
    state, problem = copy.get("state"), str(copy.get("problem") or "")[: plausible.MAX_TEXT]
    start, end = _offset(copy.get("start")), _offset(copy.get("end"))
    return MigrationGroupRow(
        name=name,
        state=state if state in STATES else "",
        copiedBytes=None if start is None or end is None else max(end - start, 0),
        missingBytes=_offset(copy.get("lag")),
        bytesPerSecond=_offset(copy.get("rate")),
        problem=problem if state in STATES else problem or "the copy's status is not understood",
    )


def _offset(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= plausible.MAX_OFFSET else None


def status_of(
    record: Record,
    copies: Mapping[str, Mapping[str, Any] | None],
    request: str | None,
    waits: str = "",
    rolled: rollback_steps.Record | None = None,
) -> MigrationStatus:
    """Return the status. `copies`: by group, as `row_of` takes them. `request`: the annotation with a person's request,
    which is being carried out; None: there is none. `waits`: what the present step waits for. `rolled`: a rollback.
    """
    if rolled is not None and rolled.phase is not Rollback.NONE:
        return _status_back(rolled, list(copies), request, waits)
    done = record.phase is Phase.DONE
    rows = [
        row_of(name, copy, leads=done or (name in record.groups and record.groups[name].finished))
        for name, copy in copies.items()
    ]
    message, following = _following(rows) if record.phase is Phase.FOLLOWING else (SAID[record.phase], "")
    if lacking := said_lacking(record):
        message = f"{message}; {lacking}"
    if waits and record.phase is not Phase.FOLLOWING:
        message = f"{message}: {waits}"
    return MigrationStatus(
        phase=record.phase.value,
        since=utc(int(record.since * 1000)) if record.since > 0 else None,
        message=message[: plausible.MAX_TEXT],
        next=following or _next(record.phase, request, broken=any(row.state == "broken" for row in rows)),
        groups=rows,
    )


def _status_back(
    record: rollback_steps.Record, groups: Sequence[str], request: str | None, waits: str
) -> MigrationStatus:
    message = SAID_BACK[record.phase]
    if lacking := said_lacking_back(record):
        message = f"{message}; {lacking}"
    if waits:
        message = f"{message}: {waits}"
    left = record.phase in (Rollback.RETURNING, Rollback.DONE)
    return MigrationStatus(
        phase=record.phase.value,
        since=utc(int(record.since * 1000)) if record.since > 0 else None,
        message=message[: plausible.MAX_TEXT],
        next=_next_back(record.phase, request),
        groups=[MigrationGroupRow(name=name, state="left" if left else "leads") for name in groups],
    )


def _next_back(phase: Rollback, request: str | None) -> str:
    if phase is Rollback.DONE:
        return END_BACK
    what = "abort" if phase is Rollback.ABORTING else "rollback"
    going = "it goes on by itself" if request else f"annotate {ASK}={what} to go on"
    if phase in (Rollback.ABORTING, Rollback.RETURNING):
        return going
    return f"{going}; annotate {ASK}=abort to go back to Gantry"


def said_lacking_back(record: rollback_steps.Record) -> str:
    """Return which of the source's brokers a rollback could not give their settings back; empty: none."""
    return said_owed(rollback_steps.still_owed(record, {}), RELEASE, event="rollback")


def said_lacking(record: Record) -> str:
    """Return which of the source's brokers an abort could not give their settings back, and what to do; empty: none."""
    return said_owed(still_owed(record, {}), f"annotate {ASK}=abort")


def _following(rows: Sequence[MigrationGroupRow]) -> tuple[str, str]:
    """Return what happens while the copies follow, and what to do."""
    broken = [row for row in rows if row.state == "broken"]
    if broken:
        text = "; ".join(f"group {row.name} stopped for good: {row.problem}" for row in broken)
        names = ", ".join(row.name for row in broken)
        return text, f"delete the volume and the pod of the first member of group {names} to begin again"
    waiting = [row for row in rows if row.problem or row.state != "following" or row.missingBytes is None]
    if waiting:
        text = "; ".join(f"group {row.name}: {row.problem or 'it begins'}" for row in waiting)
        return text, "wait: it is tried again; where it lasts, remove what the message names"
    copied = sum(row.copiedBytes or 0 for row in rows)
    missing = sum(row.missingBytes or 0 for row in rows)
    rate = sum(row.bytesPerSecond or 0 for row in rows)
    text = f"{SAID[Phase.FOLLOWING]}: {size(copied)} are here, {size(missing)} are missing"
    late = [row.name for row in rows if (row.missingBytes or 0) > NEAR]
    if late:
        about = f", about {duration(missing / rate)} at {size(rate)}/s" if rate else ""
        return text + about, f"wait until no group lacks more than {size(NEAR)}: {', '.join(late)}"
    return text, f"annotate {ASK}=cutover to let Gantry take over"


def _next(phase: Phase, request: str | None, *, broken: bool) -> str:
    if phase is Phase.DONE:
        return f"{END}; or annotate {ASK}=rollback, with all of them up, to go back to them"
    if phase in RETURNING:
        going = "it goes on by itself" if request else f"annotate {ASK}=cutover to go on"
        return f"{going}; annotate {ASK}=abort to go back"
    if phase is Phase.FINISHING and broken:
        return f"annotate {ASK}=abort to go back: a copy stopped for good"
    what = "abort" if phase is Phase.ABORTING else "cutover"
    return "it goes on by itself" if request else f"annotate {ASK}={what} to go on"


def condition_of(status: MigrationStatus) -> tuple[Literal["True", "False"], str, str]:
    """Return status, reason and message of the condition `Migrating`."""
    if status.phase in (Phase.DONE.value, Rollback.DONE.value):
        reason = "Moved" if status.phase == Phase.DONE.value else "RolledBack"
        return "False", reason, f"{status.message}. Next: {status.next}"
    reason = "".join(word.capitalize() for word in status.phase.split("-"))
    if status.phase == Phase.FOLLOWING.value and any(row.problem or row.state == "broken" for row in status.groups):
        reason = "Stopped" if any(row.state == "broken" for row in status.groups) else "Waiting"
    return "True", reason, f"{status.message}. Next: {status.next}"


def news(before: MigrationStatus | None, now: MigrationStatus) -> list[tuple[str, str]]:
    """Return kind and text of the events between two looks: what a person wants to hear of once."""
    events: list[tuple[str, str]] = []
    if now.phase != Phase.FOLLOWING.value:
        return events
    rows = {} if before is None else {row.name: row for row in before.groups}
    for row in now.groups:
        old = rows.get(row.name, MigrationGroupRow(name=row.name))
        # Without digits: offsets and times change all the time.
        if row.problem and re.sub(r"\d+", "", row.problem) != re.sub(r"\d+", "", old.problem):
            events.append(("Warning", f"group {row.name}: {row.problem}"))
        elif row.state == "following" and row.missingBytes is not None:
            if old.state != "following" or old.missingBytes is None:
                events.append(("Normal", f"group {row.name} follows the source; {size(row.missingBytes)} are missing"))
            if row.missingBytes <= NEAR and (old.missingBytes is None or old.missingBytes > NEAR):
                events.append(("Normal", f"group {row.name} may be cut over: {now.next}"))
    return events
