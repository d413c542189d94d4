"""Faults on real processes: both modes, both flush kinds, every kind of fault, in about two minutes.

`run.py` draws longer plans by seed, for minutes or hours.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archive.s3 import built
from tests.chaos.episode import make_plan, not_here, play
from tests.chaos.faults import EVERY_FAULT
from tests.chaos.packets import why_not

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(500)
"""More than the limit of a run of six faults, which reports where it stands."""

PLANS = {
    ("MasterSlave", "Async", 1967): (
        "kill", "one-way", "hand-over", "slow-disk", "stop", "failing-calls", "kill-alone",
    ),
    ("MasterSlave", "Sync", 1389): (
        "cut-from-peers", "freeze", "full-disk", "new-disk", "supervisor-killed", "clients-cut", "slow-link",
        "kill-alone",
    ),
    ("Raft", "Async", 2273): (
        "kill-twice", "cut-off", "name-servers-away", "clock-skew", "unsupervised", "kill-all", "kill-alone",
    ),
    ("Raft", "Sync", 2500): (
        "bad-weather", "hand-over", "corrupted", "resets", "kill-in-bad-weather", "name-server-killed", "failing-calls",
        "kill-alone",
    ),
}  # fmt: skip
"""Seeds with short faults, most of them on the master, with some long ones and pauses between them. Each plan ends with
a
leader that dies while no slave follows it. Its last records are lost, which the other faults cause only by luck.
"""


@pytest.mark.parametrize(("mode", "flush", "seed"), PLANS)
def test_nothing_is_lost_moved_doubled_undone_or_left_unseen(mode: str, flush: str, seed: int) -> None:
    kinds = [k for k in PLANS[mode, flush, seed] if k not in not_here()]
    again = f"python -m tests.chaos.run --seed {seed} --mode {mode} --flush {flush} --fault {' --fault '.join(kinds)}"
    outcome = play(make_plan(seed, kinds=kinds, mode=mode, flush=flush), again=again)
    assert not outcome.problems, "\n".join([*outcome.trace, outcome.story, again])
    assert len(outcome.history.promised()) >= 90
    assert len(outcome.history.leaders) >= 2


ASYNC = {
    ("Async", 26804): ("kill-alone", "hand-over", "stop", "kill-in-bad-weather"),
    ("Sync", 48121): ("kill-alone", "kill-all", "cut-from-peers", "freeze", "corrupted"),
}
"""Both plans begin with a master that acknowledges for 0.3 s without slaves, and is killed. They corrupt a slave's log;
those of `PLANS` corrupt the master's.
"""


@pytest.mark.parametrize(("flush", "seed"), ASYNC)
def test_async_replication_loses_the_newest_tail_by_a_failover_and_nothing_else(flush: str, seed: int) -> None:
    kinds = ASYNC[flush, seed]
    again = f"python -m tests.chaos.run --seed {seed} --flush {flush} --replication Async"
    again += f" --fault {' --fault '.join(kinds)}"
    plan = make_plan(seed, kinds=kinds, flush=flush, replication="Async")
    outcome = play(plan, again=again)
    assert not outcome.problems, "\n".join([*outcome.trace, outcome.story, again])
    assert outcome.lost == 0
    assert outcome.given_up, "records that only the master had must be lost"
    assert len(outcome.history.promised()) >= 90


LOSSY = {"MasterSlave": ("packets-lost", "kill", "packets-lost"), "Raft": ("packets-lost", "freeze", "hand-over")}


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("mode", LOSSY)
def test_packets_are_lost(mode: str) -> None:
    """By the kernel, in a network of the run's own."""
    words = [sys.executable, "-m", "tests.chaos.run", "--seed", "7", "--mode", mode]
    for kind in LOSSY[mode]:
        words += ["--fault", kind]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert sum(map(int, re.findall(r"no packets are lost any more; (\d+) were", run.stdout))) > 0, run.stdout
    assert " 0 lost" in run.stdout.splitlines()[-1]


ARCHIVED = {("Raft", 2_001_018): ("store-away", "kill", "store-lies", "store-slow", "store-read-only", "hand-over")}


@pytest.mark.parametrize(("mode", "seed"), ARCHIVED)
def test_all_that_is_acknowledged_is_archived_by_a_store_that_fails(mode: str, seed: int) -> None:
    built()
    kinds = ARCHIVED[mode, seed]
    again = f"python -m tests.chaos.run --seed {seed} --mode {mode} --fault {' --fault '.join(kinds)}"
    outcome = play(make_plan(seed, kinds=kinds, mode=mode), again=again)
    assert not outcome.problems, "\n".join([*outcome.trace, outcome.story, again])
    assert len(outcome.history.promised()) >= 90


def test_every_fault_that_is_drawn_is_played() -> None:
    plans = (*PLANS.values(), *ASYNC.values(), *LOSSY.values(), *ARCHIVED.values())
    assert {kind for kinds in plans for kind in kinds} == set(EVERY_FAULT)
