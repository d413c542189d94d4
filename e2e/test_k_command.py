"""`gantry` against Kubernetes, by context and namespace or as a plug-in of kubectl: its input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kube import Cluster, CommandFailed, kubectl, until

MEMBERS = ("demo-a-0", "demo-a-1", "demo-a-2")
HOLDS_ITS_DISK = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c commitlog"
"""Prints how many files of the log are open in a pod."""


def gantry(*words: str, stdin: str | None = None, plugin: bool = False, check: bool = True) -> str:
    scripts = Path(sys.executable).parent
    command = ["kubectl", "gantry"] if plugin else [str(scripts / "gantry")]
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, *words], input=stdin, capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    if check and done.returncode != 0:
        raise CommandFailed(f"{' '.join([*command, *words])}: {done.stdout}{done.stderr}")
    return done.stdout + ("" if check else done.stderr)


@pytest.fixture
def where(demo: Cluster) -> list[str]:
    context = kubectl("config", "current-context").strip()
    return ["--context", context, "-n", demo.namespace]


def test_status(demo: Cluster, where: list[str]) -> None:
    printed = until(
        "it shows that the cluster runs", lambda: t if "Running" in (t := gantry("status", *where)) else None
    )
    for words in ("demo", *MEMBERS):
        assert words in printed, printed
    until("it shows the master", lambda: "Master" in gantry("status", *where))
    status = json.loads(gantry("status", *where, "-o", "json"))["status"]
    assert {m["name"] for m in status["members"]} == set(MEMBERS)
    assert any(e["reason"] == "GroupBootstrapped" for e in status["events"])


def test_the_network_between_members_has_a_verdict(demo: Cluster, where: list[str]) -> None:
    said = json.loads(gantry("self-test", *where, "--limit", "1000", "-o", "json"))
    reached = [link for link in said["links"] if link["level"] == "good"]
    master = demo.master_name()
    assert {link["one"] for link in reached if link["other"] == master} == set(MEMBERS) - {master}, said
    assert {link["one"] for link in reached if "namesrv" in link["other"]} == set(MEMBERS), said
    assert all(0 < link["rtt_ms"] < 1000 for link in reached)


def test_topics_are_made_and_listed(where: list[str]) -> None:
    gantry("topic", "create", "Orders", "--queues", "4", *where)
    assert "Orders" in gantry("topic", "list", *where)


def test_messages_are_produced_and_consumed(where: list[str]) -> None:
    printed = json.loads(gantry("produce", "Three", "-", *where, "-o", "json", stdin="one\ntwo\nthree\n"))
    assert printed["acknowledged"] == 3, printed
    lines = gantry("consume", "Three", "--group", "reader", "--count", "3", "--timeout", "120", *where)
    assert sorted(lines.split()) == ["one", "three", "two"]


def test_a_switchover_answers_with_what_was_done(demo: Cluster, where: list[str]) -> None:
    epoch, old = demo.epoch(), demo.master_name()
    target = next(m["name"] for m in demo.status()["members"] if m["role"] == "Slave")
    # On a busy machine the target may be out of sync for a moment, and the command says so.
    said = until("it is done", lambda: gantry("switchover", "a", "--to", target, *where), 60, 2)
    assert target in said
    demo.wait_recovered_from(old, epoch)
    demo.same_leader(target, epoch + 1)
    refused = gantry("switchover", "b", *where, check=False)
    assert "b" in refused
    assert "a" in refused, "the groups that there are"


def test_a_member_is_fenced_for_a_look_and_given_back(demo: Cluster, where: list[str]) -> None:
    """Its pod stays, its broker is stopped, the others take messages, and it joins its group again."""
    member = next(m["name"] for m in demo.status()["members"] if m["role"] == "Slave")
    before = demo.uids()[member]

    def row() -> dict[str, Any]:
        return next(m for m in demo.status()["members"] if m["name"] == member)

    assert f"{member} is fenced" in gantry("fence", "on", member, *where)
    try:
        until("the status says so", lambda: "fenced" in row()["reason"])
        held = kubectl("-n", demo.namespace, "exec", member, "--", "sh", "-c", f"{HOLDS_ITS_DISK}; true")
        assert held.strip() == "0", "files of the store that a process has open"
        printed = json.loads(gantry("produce", "Orders", "--count", "5", *where, "-o", "json"))
        assert printed["acknowledged"] == 5, printed
    finally:
        gantry("fence", "off", member, *where)
    until("it is in sync again", lambda: row().get("inSync") and not row().get("reason"), 60)
    assert demo.uids()[member] == before, "its pod was never replaced"


def test_as_a_plug_in_of_kubectl(demo: Cluster) -> None:
    """The phase may be another than Running: on a busy node a member can be late for a moment after the switchover."""
    printed = gantry("status", "-n", demo.namespace, plugin=True)
    for words in ("demo", *MEMBERS, "Master"):
        assert words in printed, printed
    refused = gantry("status", "-n", "default", plugin=True, check=False)
    assert "has no BrokerCluster" in refused, refused
