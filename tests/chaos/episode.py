"""One seeded run: a new cluster, a plan of faults, and the check of the whole history.

The seed alone decides on the kind of group and on the faults. The machine decides how processes and faults interleave,
so a failed run may need some repetitions to fail again.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.archived import check_archive
from tests.chaos.bound import LEAVES_S, SETTLES_S, at_the_latest, within
from tests.chaos.checker import check, missing
from tests.chaos.cluster import GROUP, READY_S, Cluster, NotInTime, PortsTaken
from tests.chaos.faults import (
    ALONE,
    EVERY_FAULT,
    FAULTS,
    MORE,
    MORE_FROM,
    NEEDS_OWN_NETWORK,
    NEEDS_ROOT,
    STORE,
    STORE_FROM,
    Scene,
    Step,
    draw,
)
from tests.chaos.history import History, Log, Sent
from tests.chaos.lineage import Lineage
from tests.chaos.packets import is_own
from tests.chaos.store import can_archive
from tests.chaos.tail import judge
from tests.chaos.workload import Workload

STEPS = 8
SEES_ALL_S = 40.0
ARCHIVED_S = 90.0
"""A member that has failed several times looks again after up to a minute."""
BEGINS_S, STEP_S = 60.0, 30.0
"""The time limit of a run: a base, and an addition for each fault. A run of eight faults ends within a minute on an
idle machine.
"""
COMMON = ("kill", "freeze", "cut-off", "hand-over")
"""Drawn more often, because these faults meet the effects of the others."""


@dataclass(frozen=True)
class Plan:
    """The plan of a seed."""

    seed: int
    mode: str
    flush: str
    min_in_sync: int
    steps: tuple[Step, ...]
    replication: str = "Sync"

    @property
    def limit_s(self) -> float:
        """A run that takes longer has failed."""
        return BEGINS_S + STEP_S * len(self.steps) + ARCHIVED_S * self.archives

    def __str__(self) -> str:
        kind = f"{self.mode}, replication Async" if self.is_async else self.mode
        return f"seed {self.seed}: {kind}, flush {self.flush}, minInSyncReplicas {self.min_in_sync}"

    @property
    def archives(self) -> bool:
        """Whether the cluster has an archive: a fault is one of its store."""
        return any(step.kind in STORE for step in self.steps)

    @property
    def is_async(self) -> bool:
        return self.replication == "Async"


def can_fill_disks() -> bool:
    """Whether members can have small disks of their own (a tmpfs each)."""
    return os.geteuid() == 0 and sys.platform == "linux" and shutil.which("mount") is not None


def not_here() -> frozenset[str]:
    """Kinds of faults that this user cannot cause on this system."""
    cannot = (frozenset() if can_fill_disks() else NEEDS_ROOT) | (frozenset() if is_own() else NEEDS_OWN_NETWORK)
    return cannot if can_archive() else cannot | frozenset(STORE)


def make_plan(
    seed: int,
    *,
    kinds: Sequence[str] | None = None,
    mode: str | None = None,
    flush: str | None = None,
    steps: int = STEPS,
    replication: str = "Sync",
) -> Plan:
    """`kinds`: these faults in this order; `steps` then has no effect. With `replication` Async, a seed has another
    plan
    than without: always MasterSlave, and with more kinds of faults.
    """
    rng = random.Random(seed)
    drawn_mode = rng.choice(("MasterSlave", "Raft"))
    drawn_flush = rng.choice(("Async", "Sync"))
    minimum = rng.choice((1, 2))
    if replication == "Async":
        mode = "MasterSlave"
    more = [
        *(MORE if seed >= MORE_FROM else ()),
        *(STORE if seed >= STORE_FROM else ()),
        *(list(ALONE) * 3 if replication == "Async" else ()),
    ]
    cannot = not_here()
    possible = [k for k in (*FAULTS, *COMMON, *more) if k not in cannot]
    chosen = kinds if kinds is not None else [rng.choice(possible) for _ in range(steps)]
    drawn = tuple(draw(rng, kind) for kind in chosen)
    return Plan(seed, mode or drawn_mode, flush or drawn_flush, minimum, drawn, replication)


@dataclass
class Outcome:
    """The result of a plan."""

    plan: Plan
    problems: list[str]
    trace: list[str]
    history: History
    seconds: float
    story: str
    played: list[str]
    """The kinds of the faults that began."""
    lost: int | None
    """The number of SEND_OK that are missing in the log although it must have them; None: the logs were not read."""
    given_up: list[Sent]
    """The number of SEND_OK that are missing in the log as replication Async allows."""

    @property
    def summary(self) -> str:
        statuses = ", ".join(f"{n} {s}" for s, n in self.history.statuses().most_common())
        reads = sum(self.history.reads.values())
        pops = sum(map(len, self.history.popped.values()))
        promised, gone = len(self.history.promised()), len(self.given_up)
        if self.plan.is_async and self.lost is not None:
            statuses += f"; allowed by Async: {gone} of {promised} lost" + (
                f", {self.lost} others" if self.lost else ""
            )
        return (
            f"{self.plan}: {len(self.played)} faults, {len(self.history.leaders)} epochs, {statuses}; "
            f"{reads} read while it went on, {pops} popped; "
            f"{'nothing wrong' if not self.problems else 'WRONG'} ({self.seconds:.0f} s)"
        )


async def run(
    plan: Plan, cluster: Cluster, say: Callable[[str], None] = lambda line: None, keep: Path | None = None
) -> Outcome:
    """`say` gets the trace line by line. With `keep`, the folder of a failed run's cluster stays there."""
    began = time.monotonic()
    history, trace, problems = History(), [], []
    story = ""

    def log(line: str) -> None:
        trace.append(f"{time.monotonic() - began:6.1f} s  {line}")
        say(trace[-1])

    played: list[str] = []
    lost: int | None = None
    given_up: list[Sent] = []
    try:
        async with cluster:
            try:
                leader, logs, lineage, undeleted = await within(
                    _play(plan, cluster, history, played, log), plan.limit_s
                )
                agree = not any(step.kind == "clock-skew" for step in plan.steps)
                problems = check(history, logs, leader, lineage, clocks_agree=agree) + undeleted
                if lineage is None:
                    lost = len(missing(history, logs[leader]))
                else:
                    tail = judge(history, logs[leader], lineage)
                    lost, given_up = len(tail.wrong), tail.allowed
            except NotInTime as error:
                problems = [f"NOT IN TIME: {error}"]
            except Exception:
                # A run that is not in time needs its seed and trace, too.
                problems = [f"BROKE OFF: {traceback.format_exc()}"]
            if problems:
                story = cluster.story()
                if keep is not None:
                    with suppress(OSError):
                        shutil.copytree(cluster.folder.root, keep / f"seed-{plan.seed}", dirs_exist_ok=True)
    except NotInTime as error:  # The cluster did not start.
        problems, story = [f"NOT IN TIME: {error}"], cluster.story()
    for problem in problems:
        log(problem)
    return Outcome(plan, problems, trace, history, time.monotonic() - began, story, played, lost, given_up)


async def _play(
    plan: Plan, cluster: Cluster, history: History, played: list[str], log: Callable[[str], None]
) -> tuple[str, dict[str, Log], Lineage | None, list[str]]:
    """Return the leader at the end, the messages that every member shows, the log's lineage with Async, and the faults
    of deletions and of the archive.
    """
    async with Workload(cluster, history, plan.seed) as work:
        scene = Scene(cluster, log, work.sends_again)
        try:
            await work.sends_again(60)
            log("the group works")
            for step in plan.steps:
                log(f"[{step}]")
                played.append(step.kind)
                await EVERY_FAULT[step.kind](scene, step)
                if step.calm:
                    await scene.heal()
                    await scene.whole()
                    await work.sends_again()
                    log("whole again")
        finally:
            await scene.heal()
        log("the faults are over")
        await scene.whole()
        await work.sends_again()
        await work.stop_sending()
        leader, logs = await _read_logs(cluster, work)
        with suppress(NotInTime):  # The checker reports which messages were not seen.
            await work.caught_up(logs[leader], SEES_ALL_S)
        shown = {} if plan.is_async else {name: await work.read_deleted(name) for name in cluster.members}
        undeleted = list(work.deletions.check(shown))
        undeleted += await _of_archive(plan, cluster, leader, history)
        return leader, logs, await cluster.lineage(leader) if plan.is_async else None, undeleted


async def _of_archive(plan: Plan, cluster: Cluster, leader: str, history: History) -> list[str]:
    """Return the faults of the archive, once it has what the log has now. Raises NotInTime."""
    if cluster.store is None:
        return []
    group = cluster.store.open().group(GROUP)
    wanted = (await cluster.log(leader)).confirmed

    async def caught_up() -> bool:
        return (await asyncio.to_thread(group.load)).end >= wanted

    await cluster.until("the archive has all of the log", caught_up, ARCHIVED_S)
    final = (await cluster.log(leader))._replace(confirmed=wanted)
    promised = history.promised()
    return await asyncio.to_thread(lambda: list(check_archive(group, final, promised, sync=not plan.is_async)))


async def _read_logs(cluster: Cluster, work: Workload) -> tuple[str, dict[str, Log]]:
    """Read the logs once all members show the same end: slaves learn the last confirmed offset a moment later."""

    async def settled() -> bool:
        said = (await cluster.statuses()).values()
        ends = {s.confirmed for s in said}
        return len(said) == len(cluster.members) and len(ends) == 1 and all(s.end == s.confirmed for s in said)

    await cluster.until("all members confirm the end of the log", settled, 20.0)
    leader = await cluster.master()
    if leader is None:
        raise NotInTime("no member leads at the end")
    return leader, {name: await work.read(name) for name in cluster.members}


STARTS = 3
"""Tries to start a cluster, each on other ports."""


def play(plan: Plan, say: Callable[[str], None] = print, keep: Path | None = None, again: str = "") -> Outcome:
    """`run`, from outside of an event loop. Ends this process when even the cancellation does not end; the last line
    then has `again`, the command that repeats the run. Raises PortsTaken.
    """
    for _ in range(STARTS - 1):
        try:
            return _play_once(plan, say, keep, again)
        except PortsTaken as error:
            say(str(error))
    return _play_once(plan, say, keep, again)


def _play_once(plan: Plan, say: Callable[[str], None], keep: Path | None, again: str) -> Outcome:
    base = Path(tempfile.mkdtemp(prefix="gantry-chaos-"))
    cluster = Cluster(
        base / "cluster",
        plan.seed,
        mode=plan.mode,
        flush=plan.flush,
        min_in_sync=plan.min_in_sync,
        small_disks=any(s.kind in NEEDS_ROOT for s in plan.steps),
        replication=plan.replication,
        archives=plan.archives,
    )

    def clear_away() -> None:
        cluster.kill_everything()
        shutil.rmtree(base, ignore_errors=True)

    async def played(follow: Callable[[asyncio.AbstractEventLoop], None]) -> Outcome:
        follow(asyncio.get_running_loop())
        return await run(plan, cluster, say, keep)

    limit_s = READY_S + plan.limit_s + SETTLES_S + LEAVES_S
    try:
        with at_the_latest(limit_s, f"{plan}; again: {again}", clear_away) as follow:
            return asyncio.run(played(follow))
    finally:
        shutil.rmtree(base, ignore_errors=True)
