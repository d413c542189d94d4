"""Breaks clusters of real processes, and checks that nothing was lost, moved, doubled, undone or left unseen.

    python tests/chaos/run.py --seed 4711               # one run by its seed, with the trace
    python tests/chaos/run.py --minutes 10              # seeds 1, 2, 3, ...
    python tests/chaos/run.py --minutes 480 --fresh --keep ~/failed    # for the night: seeds that were never played
    python tests/chaos/run.py --seed 1 --fault freeze --fault kill --mode Raft --repeat 5

The exit code is 1 when something was wrong or a run did not end; the seed, the trace and the command for the same run
are printed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gantry_chaos.episode import STEPS, Outcome, Plan, can_fill_disks, make_plan, play
from gantry_chaos.faults import FAULTS

SEEDS = 1_000_000
"""--fresh begins at one of so many."""


def command(plan: Plan, options: argparse.Namespace) -> str:
    """What plays the same plan again."""
    words = [f"python tests/chaos/run.py --seed {plan.seed}"]
    words += [f"--fault {kind}" for kind in options.fault or ()]
    words += [f"--steps {options.steps}"] if options.steps != STEPS else []
    words += [f"--mode {options.mode}"] if options.mode else []
    words += [f"--flush {options.flush}"] if options.flush else []
    return " ".join(words)


def has_time(outcomes: list[Outcome], began: float, limit_s: float) -> bool:
    """For one more, if that takes as long as the others did."""
    gone = time.monotonic() - began
    return not outcomes or gone + gone / len(outcomes) <= limit_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--repeat", type=int, default=1, help="times that --seed is played (default 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="as many runs as end within (default 10)")
    parser.add_argument("--first", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--fresh", action="store_true", help="a first seed that is drawn, and printed")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"faults of a run (default {STEPS})")
    parser.add_argument("--fault", choices=sorted(FAULTS), action="append", help="these, in this order")
    parser.add_argument("--mode", choices=["MasterSlave", "Raft"], help="instead of the seed's choice")
    parser.add_argument("--flush", choices=["Async", "Sync"], help="instead of the seed's choice")
    parser.add_argument("--keep", type=Path, help="folder for the clusters of runs that failed")
    options = parser.parse_args()
    # As Ctrl-C, which a shell's background jobs ignore: the cluster's processes, disks and links end with the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    if not can_fill_disks():
        print("without root no disk can be filled: the fault full-disk is not drawn, so seeds mean other plans")
    if options.fresh:
        options.first = random.SystemRandom().randrange(SEEDS)
        print(f"the first seed is {options.first}", flush=True)
    began = time.monotonic()
    seeds = [options.seed] * options.repeat if options.seed is not None else None
    outcomes: list[Outcome] = []
    while len(outcomes) < len(seeds) if seeds is not None else has_time(outcomes, began, options.minutes * 60):
        seed = options.first + len(outcomes) if seeds is None else seeds[len(outcomes)]
        plan = make_plan(seed, kinds=options.fault, mode=options.mode, flush=options.flush, steps=options.steps)
        again = command(plan, options)
        outcome = play(plan, print if seeds is not None else lambda line: None, options.keep, again)
        outcomes.append(outcome)
        print(outcome.summary, flush=True)
        if outcome.problems:
            shown = outcome.problems if seeds is not None else outcome.trace
            print("\n".join(shown), f"{outcome.story}\nagain: {again}", sep="\n", flush=True)
    failed = [o.plan.seed for o in outcomes if o.problems]
    faults = Counter(kind for o in outcomes for kind in o.played)
    # What was acknowledged in a run whose logs could not be read is neither kept nor lost.
    promised = sum(len(o.history.promised()) for o in outcomes if o.lost is not None)
    print(f"{len(outcomes)} runs in {time.monotonic() - began:.0f} s, {faults.total()} faults "
          f"({', '.join(f'{kind} {n}' for kind, n in sorted(faults.items()))}), {promised} SEND_OK looked for, "
          f"{sum(o.lost or 0 for o in outcomes)} lost; "
          f"failed seeds: {', '.join(map(str, failed)) or 'none'}")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
