"""Measures what many topics cost: `python benchmarks/many_topics.py --topics 10000`.

It starts a NameServer and a broker, and creates topics one by one through the broker. A row for each thousand has the
CPU time of both processes for one topic, in microseconds: equal rows are a cost that grows with the changes alone.

Then each topic gets its first message. One connection sends to a single topic all the time: before, and afterwards for
`--after` seconds. A row for each window of `--window` seconds has the broker's CPU time for one of these sends, in
microseconds. All figures are CPU time, so a busy machine changes them little. The last row is the longest time that
the broker's event loop was held.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from gantry_broker.protocol.codes import RequestCode
from rig import gantry
from rig.processes import exit_on_sigterm, usage
from rig.target import Target
from rig.wire import Wire

STEADY = "steady"
HOLD = "gantry_event_loop_longest_hold_seconds"


def create(wire: Wire, name: str) -> None:
    wire.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
    )  # fmt: skip


def send(wire: Wire, topic: str) -> None:
    wire.call(
        RequestCode.SEND_MESSAGE,
        {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0",
         "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0",
         "unitMode": "false", "batch": "false"},
        bytes(128),
    )  # fmt: skip


@contextmanager
def cost(what: str, pids: dict[str, int], count: int) -> Iterator[None]:
    """Print the CPU time of the processes for one of `count` steps."""
    before = {name: usage(pid).cpu_s for name, pid in pids.items()}
    yield
    texts = [f"{name} {(usage(pid).cpu_s - before[name]) / count * 1e6:7.0f}" for name, pid in pids.items()]
    print(f"{what:44s} {'  '.join(texts)}", flush=True)


def windows(target: Target, wire: Wire, label: str, seconds: float, window: float) -> None:
    """Send to one topic, and print a row for each window."""
    pid = target.broker_pids[0]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        before, count = usage(pid).cpu_s, 0
        window_ends = time.monotonic() + window
        while time.monotonic() < window_ends:
            send(wire, STEADY)
            count += 1
        spent = (usage(pid).cpu_s - before) / count * 1e6
        print(f"{label:44s} broker {spent:7.0f}  sends/s {count / window:7.0f}", flush=True)


def longest_hold_s(target: Target) -> float:
    page = httpx.get(f"http://{target.http}/metrics", timeout=60).text
    return float(next(line for line in page.splitlines() if line.startswith(HOLD)).split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--after", type=float, default=60, help="seconds of sends after the first messages (60)")
    parser.add_argument("--window", type=float, default=5, help="seconds of a window (5)")
    args = parser.parse_args()
    exit_on_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="many-topics-") as folder,
        gantry.single(Path(folder), {"maxTopics": args.topics + 100}) as target,
        Wire(target.broker_address) as wire,
    ):
        pids = {"broker": target.broker_pids[0], "NameServer": target.namesrv_pid}
        create(wire, STEADY)
        windows(target, wire, "a send, before", 2 * args.window, args.window)
        for first in range(0, args.topics, 1000):
            some = range(first, min(first + 1000, args.topics))
            with cost(f"a new topic, {some.start} to {some.stop}", pids, len(some)):
                for number in some:
                    create(wire, f"topic-{number}")
        windows(target, wire, "a send, with the topics", 2 * args.window, args.window)
        for first in range(0, args.topics, 1000):
            some = range(first, min(first + 1000, args.topics))
            with cost(f"a first message, {some.start} to {some.stop}", pids, len(some)):
                for number in some:
                    send(wire, f"topic-{number}")
        windows(target, wire, "a send, after the first messages", args.after, args.window)
        print(f"longest hold of the broker's event loop {longest_hold_s(target) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
