"""Runs random schedules.

python -m tests.simulation.run --count 20000        that many, on all cores
python -m tests.simulation.run --forever            until stopped, from a random seed on (for the night)
python -m tests.simulation.run --seed 4711          one again, with its trace
python -m tests.simulation.run --seed 4711 --without 8    the same with the mutant of rule 8

For every violation it prints the command that repeats the schedule. Ctrl-C ends a run with its summary. The exit code
is 1 after a violation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial

if not __package__:  # As a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.simulation.run", *sys.argv[1:])

from tests.simulation.checker import Violation
from tests.simulation.machine import draw, run_seed
from tests.simulation.mutants import RULES, planted
from tests.simulation.profiles import PROFILES, RAFT_PROFILES
from tests.simulation.raft_world import draw_raft, run_raft_seed

CHUNK = 100


NAMES = (*PROFILES, *RAFT_PROFILES)


def run_one(seed: int, name: str) -> Violation | None:
    if name in RAFT_PROFILES:
        return run_raft_seed(seed, profile=RAFT_PROFILES[name])
    return run_seed(seed, profile=PROFILES[name].profile, make_operator=PROFILES[name].operator)


def run_chunk(first: int, names: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """The violations of `CHUNK` seeds; the profiles take turns."""
    found = []
    for seed in range(first, first + CHUNK):
        name = names[seed % len(names)]
        violation = run_one(seed, name)
        if violation is not None:
            found.append((seed, name, str(violation).splitlines()[0]))
    return found


def chunks(first: int, count: int | None) -> Iterator[int]:
    at = first
    while count is None or at < first + count:
        yield at
        at += CHUNK


def run_many(starts: Iterable[int], names: tuple[str, ...], jobs: int) -> Iterator[list[tuple[int, str, str]]]:
    work = partial(run_chunk, names=names)
    if jobs == 1:
        yield from map(work, starts)
        return
    # Only the process that distributes the work handles Ctrl-C: it ends the others.
    with multiprocessing.get_context("fork").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(work, starts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="schedules to run")
    parser.add_argument("--forever", action="store_true", help="until stopped")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this one and draw its trace")
    parser.add_argument("--profile", choices=sorted(NAMES), help="only this kind of schedule")
    parser.add_argument(
        "--without",
        type=int,
        action="append",
        default=[],
        choices=RULES,
        metavar="RULE",
        help="break the rule of docs/replication.md with this number; may be given more than once",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    with planted(*given.without):  # Forked worker processes inherit the mutant.
        return play(given)


def play(given: argparse.Namespace) -> int:
    names = (given.profile,) if given.profile else NAMES
    if given.seed is not None:
        name = names[given.seed % len(names)]
        print(f"profile {name}")
        if name in RAFT_PROFILES:
            lines = draw_raft(given.seed, profile=RAFT_PROFILES[name])
        else:
            kind = PROFILES[name]
            lines = draw(given.seed, profile=kind.profile, make_operator=kind.operator)
        print("\n".join(lines))
        return 0 if lines[-1] == "no violation" else 1
    first = random.SystemRandom().randrange(1 << 40) if given.forever else given.first
    started, done, failed = time.monotonic(), 0, 0

    def say() -> None:
        print(f"{done} schedules in {time.monotonic() - started:.0f} s, {failed} with a violation", flush=True)

    planted = "".join(f" --without {n}" for n in given.without)
    try:
        for found in run_many(chunks(first, None if given.forever else given.count), names, given.jobs):
            done += CHUNK
            for seed, name, text in found:
                failed += 1
                print(f"{text}\n  python -m tests.simulation.run --profile {name} --seed {seed}{planted}", flush=True)
            if done % 5_000 == 0:
                say()
    except KeyboardInterrupt:
        print("stopped")
    if done % 5_000:
        say()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
