"""Each way in which a master goes, many times over: the distribution of the gaps that a client sees.

On demand, for it takes long: `E2E_ROUNDS=20 e2e/run -k rounds` (one way: `-k "rounds and process-killed"`). The gap
that counts for a round is the longest between two acknowledged sends from the strike until the next one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from kube import Cluster, Figure, Host, Load, containers, get, kubectl, until

ROUNDS = int(os.environ.get("E2E_ROUNDS", "0"))
REFUSED_GAP_MS = 5_000
SILENT_GAP_MS = 12_000
RESTARTS = 1
"""A container that died more often waits for the kubelet before it starts again, so its pod is made anew instead."""

Strike = Callable[[Cluster, Host, int], None]
"""Does it to the master once, and returns when somebody else leads."""


def delete_pod(demo: Cluster, host: Host, turn: int) -> None:
    old = demo.master_name()
    kubectl("-n", demo.namespace, "delete", "pod", old, "--wait=false")
    demo.wait_other_master(old)


def kill_process(demo: Cluster, host: Host, turn: int) -> None:
    master = demo.master()
    old = master["metadata"]["name"]
    host.signal("KILL", old, master["spec"]["nodeName"])
    demo.wait_other_master(old)
    if sum(c["restartCount"] for c in containers(master)) >= RESTARTS:
        kubectl("-n", demo.namespace, "delete", "pod", old, "--wait=false")


def freeze(demo: Cluster, host: Host, turn: int) -> None:
    master = demo.master()
    old, node = master["metadata"]["name"], master["spec"]["nodeName"]
    host.signal("STOP", old, node)
    try:
        demo.wait_other_master(old)
        time.sleep(1)
    finally:
        host.signal("CONT", old, node)


def separate(demo: Cluster, host: Host, turn: int) -> None:
    """From everybody but its clients."""
    master = demo.master()
    old = master["metadata"]["name"]
    others = [p for p in get(demo.namespace, "pods", selector=f"gantry.dev/cluster={demo.name}")]
    operators = get("gantry-system", "pods", selector="app.kubernetes.io/name=gantry-operator")
    host.separate(master, [p for p in [*others, *operators] if p["metadata"]["name"] != old])
    try:
        demo.wait_other_master(old)
    finally:
        host.reunite(master)


def drain(demo: Cluster, host: Host, turn: int) -> None:
    master = demo.master()
    old, node = master["metadata"]["name"], master["spec"]["nodeName"]
    selector = f"gantry.dev/cluster={demo.name}"
    try:
        kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s",
            "--pod-selector", selector, timeout=150,
        )  # fmt: skip
    finally:
        kubectl("uncordon", node)
    demo.wait_other_master(old)


def switch_over(demo: Cluster, host: Host, turn: int) -> None:
    old = demo.master_name()
    demo.switch_over()
    demo.wait_other_master(old)


def roll_out(demo: Cluster, host: Host, turn: int) -> None:
    before = demo.uids()
    demo.patch({"spec": {"broker": {"fileReservedTime": 100 + turn}}})
    until("everybody is replaced", lambda: not set(demo.uids().values()) & set(before.values()), 150, 0.5)


WAYS: dict[str, tuple[Strike, int, bool]] = {
    "pod-deleted": (delete_pod, REFUSED_GAP_MS, True),
    "process-killed": (kill_process, REFUSED_GAP_MS, False),
    "frozen": (freeze, SILENT_GAP_MS, False),
    "cut-off": (separate, SILENT_GAP_MS, False),
    "drained": (drain, REFUSED_GAP_MS, True),
    "switch-over": (switch_over, REFUSED_GAP_MS, True),
    "rolled-out": (roll_out, REFUSED_GAP_MS, True),
}
"""What is done, the longest gap that still counts as holding, and whether no send may fail."""


def gaps_of(result: dict[str, Any], strikes: list[float]) -> list[int]:
    """For each strike (Unix seconds) the longest gap, in milliseconds, that ended before the next one. A gap too short
    to be worth a line in the result counts as that limit."""
    out = []
    for begun, ended in zip(strikes, [*strikes[1:], float("inf")], strict=True):
        found = [length for at, length in result["gaps"] if begun <= at < ended]
        out.append(round(1000 * max(found, default=result["shortestGapS"])))
    return out


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_rounds(demo: Cluster, host: Host, figure: Figure, way: str) -> None:
    strike, limit_ms, planned = WAYS[way]
    assert host.available, "needs access to the nodes' processes: kind or the local scripts"
    load = Load(demo, f"n-{way}", 3600, senders=2)
    strikes = []
    for turn in range(ROUNDS):
        epoch = demo.epoch()
        strikes.append(time.time())
        strike(demo, host, turn)
        demo.wait_recovered(epoch)
    load.stop()
    result = load.result(400)
    gaps = sorted(gaps_of(result, strikes))
    worst = {k: result[k] for k in ("sendOk", "errors", "lost", "twice", "elsewhere", "errorSamples", "gaps")}
    percentiles = {"p50Ms": round(statistics.median(gaps)), "p99Ms": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]}
    figure(f"rounds: {way}", {"n": ROUNDS, **percentiles, "maxMs": gaps[-1], "gapsMs": gaps, **worst})
    assert gaps[-1] < limit_ms, gaps
    assert not planned or result["errors"] == 0, result
