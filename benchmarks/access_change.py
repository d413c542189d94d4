"""Measures when a change of a user holds at every broker and NameServer of a local cluster.

    python benchmarks/access_change.py --changes 20 -o json

Users are created, get a new key, and are deleted, in turn. The time ends when every process accepts the new key, or
refuses the deleted user. `--by gantry` uses `gantry user`, and the time begins when the command has written the change.
`--by mqadmin` sends what mqadmin sends to the master, and the time begins with the answer. `--kill` kills the master
(SIGKILL) at the moment of each change by `gantry user`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `benchmarks`.
    os.chdir(Path(__file__).resolve().parents[1])
    os.execl(sys.executable, sys.executable, "-m", "benchmarks.access_change", *sys.argv[1:])

from benchmarks.rig.access import Administration, Change, Key, Watched, another_key, creation, deletion
from benchmarks.rig.gantry import QUICKSTART, Cluster
from benchmarks.rig.processes import exit_on_sigterm, until

GOAL_S = 2.0
TOPIC = "o-1"


def by_mqadmin(cluster: Cluster, count: int) -> list[tuple[str, Change]]:
    """Makes so many changes at the master, as a super user: what was done, and when it held."""
    watched = Watched(cluster.folder, TOPIC)
    members = cluster.status()["members"]
    admin = watched.key(members[0]["name"].partition("-")[0], "admin")
    assert admin is not None
    master = next(m["name"] for m in members if m["role"] == "Master")
    found: list[tuple[str, Change]] = []
    for number in range(count):
        user, what = f"m{number // 3}", ("create", "rotate", "delete")[number % 3]
        secret = f"secret-of-{user}" if what == "create" else f"other-secret-of-{user}"
        requests = {
            "create": creation(user, secret, "o-*"), "rotate": [another_key(user, secret)], "delete": [deletion(user)]
        }[what]  # fmt: skip

        def act(requests: list[Administration] = requests) -> float:
            return watched.administer(admin, master, *requests)

        def key(made: Key = (user, secret)) -> Key:
            return made

        found.append((what, watched.change(act, key, what != "delete")))
    return found


def by_gantry(cluster: Cluster, count: int, kill: bool) -> list[tuple[str, Change]]:
    """Makes so many changes by the command: what was done, and when it held."""
    watched = Watched(cluster.folder, TOPIC)
    name = cluster.status()["members"][0]["name"].partition("-")[0]
    found: list[tuple[str, Change]] = []
    for number in range(count):
        user, what = f"u{number // 3}", ("create", "rotate", "delete")[number % 3]
        before = watched.key(name, user)
        words = ["user", what, user]
        if what == "create":
            words += ["--allow", "Topic:o-*:Pub,Sub"]

        def act(words: list[str] = words) -> None:
            if kill:
                master = next(m for m in cluster.status()["members"] if m["role"] == "Master")
                os.kill(cluster.processes()[master["name"]], signal.SIGKILL)
            cluster.gantry(*words)

        def key(user: str = user, what: str = what, before: Key | None = before) -> Key | None:
            if what == "delete":
                return before
            return None if (made := watched.key(name, user)) == before else made

        found.append((what, watched.change(act, key, what != "delete", within_s=60, quiet_s=3 if kill else 0.3)))
        if kill:
            until("all members are in sync", lambda: all(m.get("inSync") for m in cluster.status()["members"]), 60)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--by", choices=["gantry", "mqadmin"], default="gantry")
    parser.add_argument("--kill", action="store_true", help="kill the master at the moment of each change")
    parser.add_argument("--manifest", type=Path, default=QUICKSTART, help="the cluster (default: the quickstart)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="access-change-") as folder:
        manifest = Path(folder) / "cluster.yaml"
        manifest.write_text(options.manifest.read_text().rstrip() + "\n  security:\n    authentication: Enabled\n")
        with Cluster(Path(folder) / "cluster", manifest) as cluster:
            cluster.gantry("topic", "create", TOPIC, "--queues", "1")
            if options.by == "mqadmin":
                found = by_mqadmin(cluster, options.changes)
            else:
                found = by_gantry(cluster, options.changes, options.kill)
    rows = [
        {"change": what} | {
            name: {process: round(s, 3) for process, s in seconds.items()} for name, seconds in each._asdict().items()
        }
        for what, each in found
    ]  # fmt: skip
    wrong = max(each.longest_wrong_s for _, each in found)
    times = sorted(each.everywhere_s for _, each in found)
    answer: dict[str, Any] = {
        "changes": len(times), "by": options.by, "kill": options.kill, "least_s": round(times[0], 3),
        "median_s": round(statistics.median(times), 3), "most_s": round(times[-1], 3),
        "longest_wrong_s": round(wrong, 3), "goal_s": GOAL_S,
        "within_goal": sum(t <= GOAL_S for t in times), "rows": rows,
    }  # fmt: skip
    if options.output == "json":
        print(json.dumps(answer))
        return 0
    for what, each in found:
        last = max(each.held_s, key=lambda name: each.held_s[name])
        print(f"{what:7} {each.everywhere_s:6.3f} s, last at {last}")
    print(f"{len(times)} changes: {times[0]:.3f} to {times[-1]:.3f} s, median {answer['median_s']:.3f} s; "
          f"{answer['within_goal']} within {GOAL_S:g} s; wrong answers for {wrong:.3f} s at most")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
