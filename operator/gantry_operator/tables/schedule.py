"""When tables are due, and which of them one run takes. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gantry_broker.contracts.table_runs import TableOrder

from gantry_operator.api import cron
from gantry_operator.api.base import parse_duration
from gantry_operator.api.table import CONTINUOUS, DEFAULT_EVERY, Table, TableMaintenance, TableStatus

MAX_TABLES: Final = 64
"""Tables of one run. The others follow with the next one."""
MAX_ORDER: Final = 65_536
"""Characters of all schemas in one order, which is an argument of a process."""
CONTINUOUS_S: Final = 300.0
"""Seconds of a run with continuous tables. The next one follows at once, with the spec as it is then."""
FIRST_RETRY_S: Final = 15.0
LAST_RETRY_S: Final = 1_800.0
LONGEST_S: Final = 3_650 * 86_400.0
"""A longer interval counts as this one: dates have an end."""
LATE_FACTOR: Final = 3
LATE_S: Final = 900.0
"""A table is late when its last success is older than so many intervals and so many seconds."""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """The table of one BrokerTopic."""

    resource: str
    topic: str
    spec: Table
    generation: int = 1
    created: datetime = field(default=datetime(1970, 1, 1, tzinfo=UTC))

    def order(self, every: str, maintenance: TableMaintenance | None = None) -> TableOrder:
        """`every`: the cluster's default. `maintenance`: it is due now; None: it is not."""
        spec = self.spec
        definition = spec.avroSchema or ("" if spec.protobuf is None else spec.protobuf.descriptors)
        more: dict[str, Any] = {}
        if maintenance is not None:
            more = {"maintain": True, "snapshots_s": parse_duration(maintenance.snapshots)}
            if spec.retention is not None:
                more["rows_s"] = parse_duration(spec.retention)
        return TableOrder(
            topic=self.topic, format=spec.format, freeze=spec.freeze, mode=spec.mode, kind=spec.schema_,
            json_schema=spec.jsonSchema, every_s=interval_s(spec, every), definition=definition,
            message="" if spec.protobuf is None else spec.protobuf.message, partition_by=spec.partitionBy,
            on_bad_record=spec.onBadRecord, **more,
        )  # fmt: skip


def _every(spec: Table, every: str) -> str | None:
    """Return the time between two runs; None: the table has a schedule."""
    return None if spec.schedule is not None else spec.every or every


def interval_s(spec: Table, every: str) -> float | None:
    """Seconds between two runs; 0: they follow each other; None: the table has a schedule."""
    given = _every(spec, every)
    if given is None:
        return None
    return 0.0 if given == CONTINUOUS else parse_duration(given)


def _time(text: str | None) -> datetime | None:
    try:
        time = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time is None or time.tzinfo is not None else time.replace(tzinfo=UTC)


def maintenance_due(table: WantedTable, state: TableStatus, spec: TableMaintenance, now: datetime) -> bool:
    """Whether the next run of a table maintains it as well."""
    due = cron.next_run(spec.schedule, spec.timeZone, _time(state.lastMaintenance) or table.created)
    return due is not None and due <= now


def _size(spec: Table) -> int:
    """Characters of a table's schema."""
    return len(spec.jsonSchema or spec.avroSchema or ("" if spec.protobuf is None else spec.protobuf.descriptors))


def run_name(now: datetime) -> str:
    """Return the name of a run: its start in UTC, to the microsecond."""
    return now.astimezone(UTC).strftime("%Y%m%d%H%M%S%f")


def started_ms(name: str) -> int:
    """Milliseconds since 1970 at which the run with this name began; 0: this is no name of a run."""
    try:
        return int(datetime.strptime(name, "%Y%m%d%H%M%S%f").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return 0


def retry_s(failures: int) -> float:
    """Seconds until a run that failed is repeated. `failures`: in a row."""
    return min(FIRST_RETRY_S * float(1 << min(max(failures - 1, 0), 10)), LAST_RETRY_S)


def next_run(table: WantedTable, state: TableStatus, now: datetime, every: str = DEFAULT_EVERY) -> datetime | None:
    """Return the time from which the next run of a table may start; None: its schedule has no time any more.

    `every`: the cluster's default. A changed spec is tried at once if its last run failed.
    """
    last = _time(state.lastRun)
    if last is not None and last > now + timedelta(minutes=5):
        return now  # The clock was set back. Its run writes the time of the present clock.
    if state.failures and last is not None:
        if state.observedGeneration != table.generation:
            return now
        return last + timedelta(seconds=retry_s(state.failures))
    given = _every(table.spec, every)
    if given is None:
        assert table.spec.schedule is not None
        return cron.next_run(table.spec.schedule, table.spec.timeZone, last or table.created)
    if last is None or given == CONTINUOUS:
        return now
    return last + timedelta(seconds=min(parse_duration(given), LONGEST_S))


def choose(
    tables: Sequence[WantedTable], states: Mapping[str, TableStatus], now: datetime, every: str = DEFAULT_EVERY
) -> list[WantedTable]:
    """Return the tables of the next run: those that are due, the longest waiting first. `states`: by resource.

    A run with a continuous table lasts for `CONTINUOUS_S`, so it takes those that will be due meanwhile as well.
    """
    times = {one.resource: next_run(one, states.get(one.resource, TableStatus()), now, every) for one in tables}
    now_due = {r for r, at in times.items() if at is not None and at <= now}
    until = now
    if any(one.resource in now_due and interval_s(one.spec, every) == 0 for one in tables):
        until += timedelta(seconds=CONTINUOUS_S)
    due = []
    for one in tables:
        at = times[one.resource]
        if one.resource in now_due or (at is not None and at < until and one.spec.schedule is None):
            due.append((one.resource not in now_due, states.get(one.resource, TableStatus()).lastRun or "", one))
    chosen: list[WantedTable] = []
    size = 0
    for _, _, one in sorted(due, key=lambda d: (*d[:2], d[2].resource)):
        size += _size(one.spec)
        if chosen and (len(chosen) == MAX_TABLES or size > MAX_ORDER):
            break
        chosen.append(one)
    return chosen


def wait_s(
    tables: Sequence[WantedTable], states: Mapping[str, TableStatus], now: datetime, every: str = DEFAULT_EVERY
) -> float | None:
    """Seconds until a table is due; None: none will be."""
    times = [next_run(one, states.get(one.resource, TableStatus()), now, every) for one in tables]
    given = [at for at in times if at is not None]
    return None if not given else max(0.0, (min(given) - now).total_seconds())


def late_s(table: WantedTable, state: TableStatus, now: datetime, every: str = DEFAULT_EVERY) -> float | None:
    """Seconds since the last success of a table that is late; None: it is not late.

    A table with a schedule is late from the second time that it missed.
    """
    last = _time(state.lastSuccess) or table.created
    since = (now - last).total_seconds()
    given = _every(table.spec, every)
    if given is None:
        assert table.spec.schedule is not None
        first = cron.next_run(table.spec.schedule, table.spec.timeZone, last)
        second = None if first is None else cron.next_run(table.spec.schedule, table.spec.timeZone, first)
        limit = None if second is None else (second - last).total_seconds() + LATE_S
        return since if limit is not None and since > limit else None
    interval = 0.0 if given == CONTINUOUS else parse_duration(given)
    return since if since > LATE_FACTOR * interval + LATE_S else None
