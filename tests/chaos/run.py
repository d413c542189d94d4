"""Breaks clusters of real processes, and checks that no message is lost, moved, doubled, undone or left unseen.

    python -m tests.chaos.run --seed 4711               # one run by its seed, with the trace
    python -m tests.chaos.run --minutes 10              # seeds 1, 2, 3, ..., every third run with Async
    python -m tests.chaos.run --minutes 480 --fresh --keep ~/failed    # for the night: new seeds
    python -m tests.chaos.run --seed 1 --fault freeze --fault kill --mode Raft --repeat 5

The exit code is 1 when a check failed or a run did not end. The output then has the seed, the trace and the command
that repeats the run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

if not __package__:  # As a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.chaos.run", *sys.argv[1:])

from tests.chaos.episode import STEPS, Outcome, Plan, can_fill_disks, make_plan, not_here, play
from tests.chaos.faults import EVERY_FAULT, MORE_FROM, NEEDS_OWN_NETWORK, STORE, STORE_FROM
from tests.chaos.packets import enter, is_own, why_not

SEEDS = 1_000_000
"""--fresh begins at a random seed of this many, from `STORE_FROM` on."""


def command(plan: Plan, options: argparse.Namespace) -> str:
    """The command that plays the same plan again."""
    words = [f"python -m tests.chaos.run --seed {plan.seed}"]
    words += [f"--fault {kind}" for kind in options.fault or ()]
    words += [f"--steps {options.steps}"] if options.steps != STEPS else []
    words += [f"--mode {options.mode}"] if options.mode and not plan.is_async else []
    words += [f"--flush {options.flush}"] if options.flush else []
    words += ["--replication Async"] if plan.is_async else []
    return " ".join(words)


def turn(count: int, options: argparse.Namespace) -> tuple[int, str]:
    """Seed and replication of the run after `count` others. Every third run is Async, with the seed of the run before
    it.
    """
    if options.replication or options.mode == "Raft":
        return options.first + count, options.replication or "Sync"
    thirds, rest = divmod(count, 3)
    return options.first + 2 * thirds + min(rest, 1), "Async" if rest == 2 else "Sync"


def has_time(outcomes: list[Outcome], began: float, limit_s: float) -> bool:
    """Whether another run fits, if it takes as long as the others."""
    gone = time.monotonic() - began
    return not outcomes or gone + gone / len(outcomes) <= limit_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--repeat", type=int, default=1, help="times that --seed is played (default 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="runs that fit into this time (default 10)")
    parser.add_argument("--first", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--fresh", action="store_true", help="a random first seed, which is printed")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"faults of a run (default {STEPS})")
    parser.add_argument("--fault", choices=sorted(EVERY_FAULT), action="append", help="these, in this order")
    parser.add_argument("--mode", choices=["MasterSlave", "Raft"], help="instead of the seed's choice")
    parser.add_argument("--flush", choices=["Async", "Sync"], help="instead of the seed's choice")
    parser.add_argument(
        "--replication", choices=["Sync", "Async"],
        help="of a group of mode MasterSlave; left out: Sync with --seed, else Async for every third run",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, help="folder for the clusters of runs that failed")
    options = parser.parse_args()
    if not is_own() and not why_not():
        enter()
    if not is_own():
        if NEEDS_OWN_NETWORK & set(options.fault or ()):
            parser.error(f"--fault packets-lost: {why_not()}")
        print(f"{why_not()}. The fault packets-lost is not drawn, so seeds from {MORE_FROM} on mean other plans")
    # As Ctrl-C, which a shell's background jobs ignore: the run's processes, disks and links end with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    if not can_fill_disks():
        print("without root no disk can be filled: the fault full-disk is not drawn, so seeds mean other plans")
    if STORE.keys() & not_here():
        if STORE.keys() & set(options.fault or ()):
            parser.error("the faults of an object store need the S3 server of tests/archive, which is built with Go")
        print(
            f"without Go there is no object store: its faults are not drawn, so seeds from {STORE_FROM} on mean "
            "other plans"
        )
    if options.fresh:
        options.first = STORE_FROM + random.SystemRandom().randrange(SEEDS)
        print(f"the first seed is {options.first}", flush=True)
    began = time.monotonic()
    seeds = [options.seed] * options.repeat if options.seed is not None else None
    outcomes: list[Outcome] = []
    while len(outcomes) < len(seeds) if seeds is not None else has_time(outcomes, began, options.minutes * 60):
        if seeds is None:
            seed, replication = turn(len(outcomes), options)
        else:
            seed, replication = seeds[len(outcomes)], options.replication or "Sync"
        plan = make_plan(
            seed, kinds=options.fault, mode=options.mode, flush=options.flush, steps=options.steps,
            replication=replication,
        )  # fmt: skip
        again = command(plan, options)
        outcome = play(plan, print if seeds is not None else lambda line: None, options.keep, again)
        outcomes.append(outcome)
        print(outcome.summary, flush=True)
        if outcome.problems:
            shown = outcome.problems if seeds is not None else outcome.trace
            print("\n".join(shown), f"{outcome.story}\nagain: {again}", sep="\n", flush=True)
    print(f"{len(outcomes)} runs in {time.monotonic() - began:.0f} s, {result_line(outcomes)}")
    return 1 if any(o.problems for o in outcomes) else 0


def result_line(outcomes: list[Outcome]) -> str:
    """The totals of all runs. Losses that Async allows are counted apart from losses that nothing allows."""
    faults = Counter(kind for o in outcomes for kind in o.played)
    # The messages of a run whose logs could not be read count as neither kept nor lost.
    ended = [o for o in outcomes if o.lost is not None]
    sync, asynchronous = [o for o in ended if not o.plan.is_async], [o for o in ended if o.plan.is_async]
    words = [f"{faults.total()} faults ({', '.join(f'{kind} {n}' for kind, n in sorted(faults.items()))})"]
    words += [f"{_promised(sync)} SEND_OK checked, {_lost(sync)} lost"] if sync or not asynchronous else []
    if asynchronous:
        gone = sum(len(o.given_up) for o in asynchronous)
        words += [f"with replication Async {_lost(asynchronous)} lost that it keeps, "
                  f"allowed by Async: {gone} of {_promised(asynchronous)}"]  # fmt: skip
    failed = [f"{o.plan.seed}{' (Async)' if o.plan.is_async else ''}" for o in outcomes if o.problems]
    return "; ".join([*words, f"failed seeds: {', '.join(failed) or 'none'}"])


def _promised(outcomes: list[Outcome]) -> int:
    return sum(len(o.history.promised()) for o in outcomes)


def _lost(outcomes: list[Outcome]) -> int:
    return sum(o.lost or 0 for o in outcomes)


if __name__ == "__main__":
    sys.exit(main())
