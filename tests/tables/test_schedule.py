"""When tables are due, what one run takes, and what it means for the status."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gantry_broker.contracts.table_runs import RunReport, TableReport, from_text, to_text
from gantry_operator.api.table import Table, TableStatus
from gantry_operator.tables.outcome import after_run, condition, utc
from gantry_operator.tables.schedule import (
    MAX_ORDER,
    MAX_TABLES,
    WantedTable,
    choose,
    late_s,
    next_run,
    retry_s,
    run_name,
    started_ms,
    wait_s,
)

from tests.support.present import present

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def table(name: str = "Orders", generation: int = 1, **spec: Any) -> WantedTable:
    return WantedTable(name, name, Table.model_validate(spec), generation, NOW - timedelta(days=1))


def ran(ago: timedelta, **more: Any) -> TableStatus:
    at = utc(NOW - ago)
    return TableStatus(lastRun=at, lastSuccess=at, observedGeneration=1, **more)


def test_a_table_is_due_by_its_interval_or_its_schedule() -> None:
    minute = timedelta(minutes=1)
    assert next_run(table(every="1m"), TableStatus(), NOW) == NOW, "the first run comes at once"
    assert next_run(table(every="10m"), ran(4 * minute), NOW) == NOW + 6 * minute
    assert next_run(table(), ran(minute), NOW, every="2m") == NOW + minute, "the cluster's default"
    assert next_run(table(every="Continuous"), ran(minute), NOW) == NOW
    forever = present(next_run(table(every="9999999d"), ran(minute), NOW))
    assert forever > NOW + timedelta(days=3_000), "a time that no calendar has stops no other table"
    daily = table(schedule="0 3 * * *", timeZone="Europe/Berlin")
    assert next_run(daily, ran(minute), NOW) == datetime(2026, 5, 2, 1, 0, tzinfo=UTC)
    assert next_run(daily, TableStatus(), NOW) == datetime(2026, 5, 1, 1, 0, tzinfo=UTC), "missed since it was made"


@pytest.mark.parametrize("spec", [{"every": "1m"}, {"every": "1d"}, {"schedule": "0 3 * * *"}], ids=str)
@pytest.mark.parametrize("failures", [0, 3])
def test_a_table_is_due_when_the_clock_was_set_back(spec: dict[str, str], failures: int) -> None:
    """Otherwise it would wait until the clock has reached its last run, for which it was ahead."""
    ahead = TableStatus(lastRun=utc(NOW + timedelta(days=400)), failures=failures, observedGeneration=1)
    assert next_run(table(**spec), ahead, NOW) == NOW
    assert choose([table(**spec)], {"Orders": ahead}, NOW)


def test_a_failure_is_repeated_later_and_later_and_a_new_spec_at_once() -> None:
    assert [retry_s(n) for n in (1, 2, 3, 50)] == [15, 30, 60, 1800]
    failed = ran(timedelta(seconds=10), failures=2)
    assert next_run(table(every="1d"), failed, NOW) == NOW + timedelta(seconds=20)
    assert next_run(table(every="1d", generation=2), failed, NOW) == NOW


@pytest.mark.parametrize("seed", range(50))
def test_no_table_is_starved(seed: int) -> None:
    """Runs of any length, intervals of any kind: every due table gets its turn before another has two more."""
    chance = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"every": "1m"},
        {"every": "10s"},
        {"every": "Continuous"},
        {"schedule": "* * * * *"},
    ]
    tables = [table(f"t{n}", **chance.choice(kinds)) for n in range(chance.randint(1, 150))]
    states: dict[str, TableStatus] = {}
    turns = dict.fromkeys([t.resource for t in tables], 0)
    now = NOW
    for _ in range(12 * (1 + len(tables) // MAX_TABLES)):
        chosen = choose(tables, states, now)
        assert len(chosen) <= MAX_TABLES
        assert len({t.resource for t in chosen}) == len(chosen)
        assert (wait_s(tables, states, now) == 0) == bool(chosen)
        for one in chosen:
            turns[one.resource] += 1
            states[one.resource] = TableStatus(lastRun=utc(now), observedGeneration=1)
        now += timedelta(seconds=chance.randint(61, 200))
    assert min(turns.values()) >= 5, turns


def test_an_order_fits_into_an_argument() -> None:
    schema = '{"type": "object"}' + " " * 30_000
    large = [table(f"t{n}", schema="JsonSchema", jsonSchema=schema) for n in range(10)]
    chosen = choose(large, {}, NOW)
    assert 1 <= len(chosen) <= MAX_ORDER // 30_000
    assert chosen[0].order("5m").json_schema == schema


def test_a_lasting_run_takes_what_will_be_due_meanwhile() -> None:
    tables = [table("a", every="Continuous"), table("b", every="1m"), table("c", every="1d"), table("d", every="1m")]
    states = {"b": ran(timedelta(seconds=30)), "c": ran(timedelta(seconds=30)), "d": ran(timedelta(seconds=70))}
    assert [t.topic for t in choose(tables, states, NOW)] == ["a", "d", "b"]
    assert [t.topic for t in choose(tables[1:], states, NOW)] == ["d"]


def test_a_late_table_is_said_and_a_punctual_one_is_not() -> None:
    often, daily = table(every="1m"), table(schedule="0 3 * * *")
    assert late_s(often, ran(timedelta(minutes=17)), NOW) is None
    assert late_s(often, ran(timedelta(minutes=19)), NOW) == 19 * 60
    assert late_s(daily, ran(timedelta(hours=32)), NOW) is None
    assert late_s(daily, ran(timedelta(hours=62)), NOW) == 62 * 3600
    said = condition(often, ran(timedelta(minutes=19)), NOW)
    assert (said.status, said.reason) == ("False", "Late")
    assert "spec.tables.executors" in said.message


def test_the_status_after_a_run() -> None:
    wanted = table(generation=3)
    good = TableReport(topic="Orders", reason="Current", rows=7, behind=0, rejected=2, last_commit_ms=1_777_000_000_000)
    state = after_run(wanted, ran(timedelta(hours=1), failures=4, bytes=99), NOW, good)
    assert (state.lastRun, state.lastSuccess, state.failures, state.rows) == (utc(NOW), utc(NOW), 0, 7)
    assert state.bytes == 99, "what the run does not say stays"
    assert state.lastCommit == "2026-04-24T03:06:40Z"
    assert condition(wanted, state, NOW).message == "7 rows; 2 messages are in Orders__rejected"
    bad = after_run(wanted, state, NOW, TableReport(topic="Orders", reason="BadSchema", message="field x: rebuild it"))
    assert (bad.lastSuccess, bad.rows, bad.failures, bad.observedGeneration) == (utc(NOW), 7, 1, 3)
    assert condition(wanted, bad, NOW, held="suspended").reason == "BadSchema", "a fault stays to be seen"
    assert condition(wanted, state, NOW, held="suspended").message == "suspended"
    assert condition(wanted, state, NOW, problem="no image").reason == "NotStarted"
    assert condition(wanted, TableStatus(), NOW).reason == "Waiting"
    assert condition(wanted, TableStatus(lastRun="?", lastSuccess="x"), NOW).status == "False"


@pytest.mark.parametrize("tables", [0, 1, 40, 64])
def test_a_report_fits_into_a_termination_message(tables: int) -> None:
    reports = [
        TableReport(
            topic=f"topic-with-a-long-name-{n}", reason="Current", message="why not " * 60, rows=10**9 + n,
            size_bytes=10**12 + n, files=n, behind=n, rejected=n, lost=0, last_commit_ms=1_777_000_000_000 + n,
            success_ms=1_777_000_000_000 + 7 * n, messages=n,
        )
        for n in range(tables)
    ]  # fmt: skip
    text = to_text(RunReport(run="1", tables=reports), 4000)
    assert len(text.encode()) <= 4000
    back = present(from_text(text))
    assert [t.model_copy(update={"message": ""}) for t in back.tables] == [
        t.model_copy(update={"message": ""}) for t in reports
    ]


@pytest.mark.parametrize("text", [None, "", "{", "no report", "{}", '{"run": 3}', "c$}8", "\x00" * 9])
def test_other_texts_are_no_report(text: str | None) -> None:
    assert from_text(text) is None


def test_a_packed_report_cannot_fill_the_memory() -> None:
    import base64
    import zlib

    bomb = base64.b85encode(zlib.compress(b'{"run": "' + b"x" * 50_000_000 + b'"}', 9)).decode()
    assert from_text(bomb) is None


def test_a_run_is_named_after_its_start() -> None:
    assert started_ms(run_name(NOW)) == int(NOW.timestamp() * 1000)
    assert started_ms("by hand") == 0
