"""Restarts of ended processes, and the detection of running ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.platforms.local import children, process
from gantry_operator.platforms.local.children import (
    BACK_OFF_S,
    SUCCESSOR_FIRST_S,
    Children,
    lived_well,
    pause_before_start,
)
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.process_plan import ProcessPlan

from tests.support.running import until


def test_the_pauses_grow_to_a_limit() -> None:
    pauses = [pause_before_start(failures, False) for failures in range(8)]
    assert pauses == [*BACK_OFF_S, BACK_OFF_S[-1], BACK_OFF_S[-1]]


def test_a_member_leaves_the_processors_to_its_successor_first() -> None:
    assert pause_before_start(0, True) == SUCCESSOR_FIRST_S
    assert pause_before_start(0, False) < SUCCESSOR_FIRST_S
    assert pause_before_start(5, True) == BACK_OFF_S[-1]


def test_one_that_dies_soon_after_each_start_waits_longer_each_time() -> None:
    pause, failures, pauses = 0.0, 0, []
    for _ in range(7):
        failures = 0 if lived_well(2.0, pause) else failures
        pause = pause_before_start(failures, True)
        failures += 1
        pauses.append(pause)
    assert pauses == [1.0, 1.0, 1.0, 2.0, 5.0, 10.0, 10.0]


def test_one_that_is_killed_now_and_then_never_waits_long() -> None:
    pause, failures = 0.0, 0
    for _ in range(7):
        failures = 0 if lived_well(4.0, pause) else failures
        pause = pause_before_start(failures, True)
        failures += 1
        assert pause == SUCCESSOR_FIRST_S


def test_after_a_long_pause_a_longer_life_is_wanted() -> None:
    assert not lived_well(20.0, BACK_OFF_S[-1])
    assert lived_well(31.0, BACK_OFF_S[-1])


class Sleeps(ProcessPlan):
    """Replaces a broker."""

    def argv(self, folder: ClusterFolder) -> list[str]:
        words = [self.module, "--config", str(folder.config(self.name))]
        return [sys.executable, "-c", "import time; time.sleep(60)", *words]


async def _started_by_one_that_was_killed(plan: ProcessPlan, folder: ClusterFolder) -> subprocess.Popen[bytes]:
    """A process as an ended supervisor leaves it: with its config, without a record."""
    folder.config(plan.name).write_text(plan.config)
    found = subprocess.Popen(plan.argv(folder), cwd=folder.root)  # noqa: ASYNC220
    # The system does not list it at once.
    await until(lambda: Path(f"/proc/{found.pid}/cmdline").read_bytes())
    return found


reads_proc = pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc: run it on Linux"
)


@reads_proc
@pytest.mark.parametrize("planned", ["{}", '{"changed": 1}'])
async def test_a_process_without_a_record_is_replaced_where_its_config_changed_meanwhile(
    tmp_path: Path, planned: str
) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    before = await _started_by_one_that_was_killed(Sleeps("t-a-0", "sleeps", "{}"), folder)
    found = Children(folder, lambda *_: None, lambda: None)
    try:
        found.plan([Sleeps("t-a-0", "sleeps", planned)])
        assert found.pid("t-a-0") == before.pid
        assert found.table["t-a-0"].outdated is (planned != "{}")
        record = load_record(folder.process("t-a-0"))
        assert record is not None
        assert (record.config == found.table["t-a-0"].plan.digest) is (planned == "{}")
    finally:
        await found.stop("t-a-0")
        found.close()
        before.wait()


@reads_proc
@pytest.mark.parametrize("ran_before", [False, True])
async def test_a_process_that_cannot_be_written_down_is_kept_and_written_down_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran_before: bool
) -> None:
    """The disk is full for a moment. A second process would find the store in use, again and again."""
    folder = ClusterFolder(tmp_path)
    folder.make()
    plan = Sleeps("t-a-0", "sleeps", "{}")
    before = await _started_by_one_that_was_killed(plan, folder) if ran_before else None
    write, full = process.write_whole, True

    def write_whole(path: Path, text: str, **how: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write(path, text, **how)

    monkeypatch.setattr(process, "write_whole", write_whole)
    monkeypatch.setattr(children, "write_whole", write_whole, raising=False)
    monkeypatch.setattr(children, "RECORD_AGAIN_S", 0.1, raising=False)
    events: list[tuple[str, ...]] = []
    found = Children(folder, lambda *words: events.append(words), lambda: None)
    found.plan([plan])
    pid = found.pid("t-a-0")
    assert pid is not None, events
    assert before is None or pid == before.pid
    await asyncio.sleep(0.3)
    [warning] = [message for _, reason, message, _ in events if reason == "ProcessRecordNotWritten"]
    assert f"t-a-0 runs as process {pid}, but its record cannot be written" in warning
    assert load_record(folder.process("t-a-0")) is None
    full = False
    deadline = time.monotonic() + 5
    while (record := load_record(folder.process("t-a-0"))) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert (record.pid, record.config) == (pid, plan.digest)
    await found.stop("t-a-0")
    found.close()
    if before is not None:
        before.wait()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of processes as they are started. None of them is a real one, and none ends."""
    names: list[str] = []

    def start(name: str, *_: object, config: str, **__: object) -> process.ProcessRecord:
        names.append(name)
        return process.ProcessRecord(name, 1, "now", config)

    monkeypatch.setattr(children, "start", start)
    monkeypatch.setattr(children, "ExitWatch", lambda record, on_exit: None)
    monkeypatch.setattr(children, "started_with", lambda folder, modules: iter(()))
    return names


async def test_what_was_planned_while_nothing_started_is_started_later(tmp_path: Path, started: list[str]) -> None:
    """As by a supervisor that is started while its cluster hibernates, and by a change of the spec meanwhile."""
    folder = ClusterFolder(tmp_path)
    folder.make()
    table = Children(folder, lambda *event: None, lambda: None)
    plans = [ProcessPlan(name, "m", "{}") for name in ("a", "b")]
    table.plan(plans, keep_alive=False)
    table.plan(plans, keep_alive=False)
    assert started == []
    table.plan(plans)
    table.plan(plans)
    assert started == ["a", "b"]


async def test_nothing_that_waits_for_its_restart_starts_after_the_end_of_keeping_alive(
    tmp_path: Path, started: list[str]
) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    table = Children(folder, lambda *event: None, lambda: None)
    plans = [ProcessPlan("a", "m", "{}")]
    table.plan(plans)
    table._ended(table.table["a"])
    assert table.table["a"].restart is not None
    table.plan(plans, keep_alive=False)
    assert table.table["a"].restart is None
    table.plan(plans)
    assert started == ["a", "a"]
    table.close()
