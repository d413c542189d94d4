"""Each way in which a master goes, many times over: the distribution of the gaps that a client sees.

On demand, for it takes long: `E2E_ROUNDS=20 e2e/run -k rounds` (one way: `-k "rounds and process-killed"`). The gap
that counts for a round is the longest between two acknowledged sends from the strike until the next one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from kube import SYSTEM, Cluster, Figure, Host, Load, containers, get, kubectl, until

ROUNDS = int(os.environ.get("E2E_ROUNDS", "0"))
REFUSED_GAP_MS = 5_000
SILENT_GAP_MS = 7_000
RESTARTS = 1
"""A container that died more often waits for the kubelet before it starts again, so its pod is made anew instead."""

Strike = Callable[[Cluster, Host, int], str | None]
"""Does it to the master once, and returns when somebody else leads; with a word about this round, if there is one."""


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
    host.separate(master, [p for p in [*others, *operators()] if p["metadata"]["name"] != old])
    try:
        demo.wait_other_master(old)
    finally:
        host.reunite(master)


def operators() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(SYSTEM, "pods", selector="app.kubernetes.io/name=gantry-operator")
    return found


def acting_operators_node() -> str:
    holder = get(SYSTEM, "lease", "gantry-operator")["spec"]["holderIdentity"]
    return str(next((p["spec"]["nodeName"] for p in operators() if p["metadata"]["name"] == holder), ""))


def both_operators_stand() -> bool:
    pods = [c for p in operators() for c in containers(p)]
    return len(pods) == 2 and all(c["ready"] for c in pods) and acting_operators_node() != ""


def lose_node(how: str, back: str, demo: Cluster, host: Host, turn: int) -> str:
    """The master's node, which may be the acting operator's, too: that is the worst case, and is told apart."""
    until("a standing-by operator", both_operators_stand, 120)
    master = demo.master()
    old, node = master["metadata"]["name"], master["spec"]["nodeName"]
    word = "with the acting operator" if acting_operators_node() == node else "without"
    host.node(how, node)
    try:
        demo.wait_other_master(old, 40)
        time.sleep(3)
    finally:
        host.node(back, node)
    until("the node is ready", lambda: "NotReady" not in kubectl("get", "nodes"), 120)
    return word


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


@dataclass(frozen=True)
class Way:
    strike: Strike
    limit_ms: int
    """The longest gap that still counts as holding."""
    planned: bool = False
    """No send may fail."""
    node: bool = False
    """The master's node goes, so the client must be on another."""


WAYS = {
    "pod-deleted": Way(delete_pod, REFUSED_GAP_MS, planned=True),
    "process-killed": Way(kill_process, REFUSED_GAP_MS),
    "frozen": Way(freeze, SILENT_GAP_MS),
    "cut-off": Way(separate, SILENT_GAP_MS),
    "node-killed": Way(partial(lose_node, "kill", "start"), SILENT_GAP_MS, node=True),
    "node-cut": Way(partial(lose_node, "cut", "heal"), SILENT_GAP_MS, node=True),
    "drained": Way(drain, REFUSED_GAP_MS, planned=True),
    "switch-over": Way(switch_over, REFUSED_GAP_MS, planned=True),
    "rolled-out": Way(roll_out, REFUSED_GAP_MS, planned=True),
}


def keep_apart(demo: Cluster, node: str) -> None:
    """Somebody leads who is not on this node."""

    def moved() -> bool:
        master = demo.master()
        if master["spec"]["nodeName"] != node:
            return True
        demo.switch_over()
        demo.wait_other_master(master["metadata"]["name"])
        return False

    until(f"the master is not on {node}", moved, 60)


def gaps_of(result: dict[str, Any], strikes: list[float]) -> list[int]:
    """For each strike (Unix seconds) the longest gap, in milliseconds, that ended before the next one. A gap too short
    to be worth a line in the result counts as that limit."""
    out = []
    for begun, ended in zip(strikes, [*strikes[1:], float("inf")], strict=True):
        found = [length for at, length in result["gaps"] if begun <= at < ended]
        out.append(round(1000 * max(found, default=result["shortestGapS"])))
    return out


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WAYS)
def test_rounds(demo: Cluster, host: Host, figure: Figure, name: str) -> None:
    way = WAYS[name]
    assert host.available, "needs access to the nodes' processes: kind or the local scripts"
    clients_node = demo.pods()[-1]["spec"]["nodeName"] if way.node else None
    load = Load(demo, f"n-{name}", 3600, node=clients_node, senders=2)
    strikes: list[float] = []
    words: list[str] = []
    for turn in range(ROUNDS):
        if clients_node is not None:
            keep_apart(demo, clients_node)
        epoch = demo.epoch()
        strikes.append(time.time())
        words.append(way.strike(demo, host, turn) or "")
        demo.wait_recovered(epoch)
    load.stop()
    result = load.result(400)
    gaps = gaps_of(result, strikes)
    ordered = sorted(gaps)
    worst = {k: result[k] for k in ("sendOk", "errors", "lost", "twice", "elsewhere", "errorSamples", "gaps")}
    percentiles = {"p50Ms": round(statistics.median(gaps)), "p99Ms": ordered[min(len(gaps) - 1, int(0.99 * len(gaps)))]}
    each = {w: [g for g, said in zip(gaps, words, strict=True) if said == w] for w in dict.fromkeys(words)}
    figure(f"rounds: {name}", {"n": ROUNDS, **percentiles, "maxMs": ordered[-1], "gapsMs": each, **worst})
    assert ordered[-1] < way.limit_ms, gaps
    assert not way.planned or result["errors"] == 0, result
