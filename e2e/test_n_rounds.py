"""Each way in which a master fails, many times: the distribution of the gaps that a client sees.

On demand, because it takes long: `E2E_ROUNDS=20 e2e/run -k rounds` (one way: `-k "rounds and process-killed"`). The gap
of a round is the longest between two acknowledged sends from the fault until the next one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
from kube import SYSTEM, Cluster, Figure, Host, Load, containers, get, kubectl, until

ROUNDS = int(os.environ.get("E2E_ROUNDS", "0"))
REFUSED_GAP_MS = 5_000
SILENT_GAP_MS = 7_000
RESTARTS = 1
"""A container that dies often waits for the kubelet before it starts again, so its pod is replaced instead."""

Strike = Callable[[Cluster, Host, int], None]
"""Causes the fault once, and returns when another member leads or has led since."""


def delete_pod(demo: Cluster, host: Host, turn: int) -> None:
    old = demo.master_name()
    kubectl("-n", demo.namespace, "delete", "pod", old, "--wait=false")
    demo.wait_other_master(old)


def kill_process(demo: Cluster, host: Host, turn: int) -> None:
    master = demo.master()
    old = master["metadata"]["name"]
    host.signal("KILL", master)
    demo.wait_other_master(old)
    if sum(c["restartCount"] for c in containers(master)) >= RESTARTS:
        kubectl("-n", demo.namespace, "delete", "pod", old, "--wait=false")


def freeze(demo: Cluster, host: Host, turn: int) -> None:
    master = demo.master()
    old = master["metadata"]["name"]
    host.signal("STOP", master)
    try:
        demo.wait_other_master(old)
        time.sleep(1)
    finally:
        host.signal("CONT", master)


def separate(demo: Cluster, host: Host, turn: int) -> None:
    """Cuts the member off from all but its clients."""
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


def lose_node(how: str, back: str, demo: Cluster, host: Host, turn: int) -> None:
    """Loses the master's node."""
    master = demo.master()
    old, node = master["metadata"]["name"], master["spec"]["nodeName"]
    beside = [p["metadata"]["name"] for p in operators() if p["spec"]["nodeName"] == node]
    host.node(how, node)
    try:
        demo.wait_other_master(old, 40)
        time.sleep(3)
    finally:
        host.node(back, node)
    until("the node is ready", lambda: "NotReady" not in kubectl("get", "nodes"), 120)
    for name in beside:
        # Its container has ended, and the kubelet would delay its start more in each round.
        kubectl("-n", SYSTEM, "delete", "pod", name)


def drain(demo: Cluster, host: Host, turn: int) -> None:
    node = demo.master()["spec"]["nodeName"]
    selector = f"gantry.dev/cluster={demo.name}"
    try:
        kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s",
            "--pod-selector", selector, timeout=150,
        )  # fmt: skip
    finally:
        kubectl("uncordon", node)
    # Until another member leads: where two members were on the node, the role may have returned to the first.


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
    """The longest gap that still passes."""
    planned: bool = False
    """No send may fail."""
    node: Literal["", "alone", "with-operator"] = ""
    """The master's node fails, so the client must be on another one. The acting operator is on it or not: with it is
    the worst
    case.
    """


WAYS = {
    "pod-deleted": Way(delete_pod, REFUSED_GAP_MS, planned=True),
    "process-killed": Way(kill_process, REFUSED_GAP_MS),
    "frozen": Way(freeze, SILENT_GAP_MS),
    "cut-off": Way(separate, SILENT_GAP_MS),
    "node-killed": Way(partial(lose_node, "kill", "start"), SILENT_GAP_MS, node="alone"),
    "node-cut": Way(partial(lose_node, "cut", "heal"), SILENT_GAP_MS, node="alone"),
    "nodes-operator-killed": Way(partial(lose_node, "kill", "start"), SILENT_GAP_MS, node="with-operator"),
    "nodes-operator-cut": Way(partial(lose_node, "cut", "heal"), SILENT_GAP_MS, node="with-operator"),
    "drained": Way(drain, REFUSED_GAP_MS, planned=True),
    "switch-over": Way(switch_over, REFUSED_GAP_MS, planned=True),
    "rolled-out": Way(roll_out, REFUSED_GAP_MS, planned=True),
}


def arrange(demo: Cluster, clients: str, where: str) -> None:
    """The master leads on a node that is not `clients`; the acting operator is there, too, or is not."""

    def arranged() -> bool:
        until("a standing-by operator", both_operators_stand, 120)
        acting, master = acting_operators_node(), demo.master()
        here = master["spec"]["nodeName"]
        if here != clients and (here == acting) == (where == "with-operator"):
            return True
        free = [p for p in demo.pods() if p["spec"]["nodeName"] != clients]
        able = [p for p in free if (p["spec"]["nodeName"] == acting) == (where == "with-operator")]
        if able:
            demo.switch_over(f"a={able[0]['metadata']['name']}")
            demo.wait_other_master(master["metadata"]["name"])
        else:
            # It gives its Lease back, and the other one, which lies elsewhere, acts.
            holder = get(SYSTEM, "lease", "gantry-operator")["spec"]["holderIdentity"]
            kubectl("-n", SYSTEM, "delete", "pod", holder)
        return False

    until(f"the master is where it should be, {where}", arranged, 120)


def gaps_of(result: dict[str, Any], strikes: list[float]) -> list[int]:
    """For each fault (Unix seconds) the longest gap, in milliseconds, that ended before the next fault. A gap too
    short for
    a line in the result counts as that limit.
    """
    out = []
    for begun, ended in zip(strikes, [*strikes[1:], float("inf")], strict=True):
        found = [length for at, length in result["gaps"] if begun <= at < ended]
        out.append(round(1000 * max(found, default=result["shortestGapS"])))
    return out


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WAYS)
def test_rounds(demo: Cluster, host: Host, figure: Figure, name: str) -> None:
    way = WAYS[name]
    clients = demo.pods()[-1]["spec"]["nodeName"] if way.node else None
    load = Load(demo, f"n-{name}", node=clients, senders=2)
    strikes: list[float] = []
    for turn in range(ROUNDS):
        if clients is not None:
            arrange(demo, clients, way.node)
        epoch = demo.epoch()
        strikes.append(time.time())
        way.strike(demo, host, turn)
        demo.wait_recovered(epoch)
    result = load.stop(400)
    gaps = sorted(gaps_of(result, strikes))
    worst = {k: result[k] for k in ("sendOk", "errors", "lost", "twice", "elsewhere", "errorSamples", "gaps")}
    percentiles = {"p50Ms": round(statistics.median(gaps)), "p99Ms": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]}
    figure(f"rounds: {name}", {"n": ROUNDS, **percentiles, "maxMs": gaps[-1], "gapsMs": gaps, **worst})
    assert gaps[-1] < way.limit_ms, gaps
    assert not way.planned or result["errors"] == 0, result
