"""A cluster of this machine hibernates and goes on with every message. A log level changes without a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

MANIFEST: dict[str, Any] = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "night"},
    "spec": {
        "brokerClusterName": "DefaultCluster",
        "nameServers": {"replicas": 1},
        "brokerGroups": [{"name": "a", "members": 2, "brokerName": "broker-a"}],
    },
}


def gantry(*words: str) -> str:
    command = [sys.executable, "-m", "gantry_operator.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout or done.stderr


def wait_for(log: Path, text: str, timeout_s: float = 60) -> None:
    """A member reads its changed file some time after `gantry up` has written it."""
    deadline = time.monotonic() + timeout_s
    while text not in log.read_text():
        assert time.monotonic() < deadline, f"{text!r} is not in the log after {timeout_s} s: {log.read_text()}"
        time.sleep(0.1)


def test_a_cluster_hibernates_and_goes_on(tmp_path: Path) -> None:
    file, folder = tmp_path / "night.yaml", tmp_path / "cluster"
    where = ("--dir", str(folder))

    def up(**spec: Any) -> dict[str, Any]:
        file.write_text(yaml.safe_dump(MANIFEST | {"spec": MANIFEST["spec"] | spec}))
        gantry("up", str(file), *where, "--detach")
        found: dict[str, Any] = json.loads(gantry("status", *where, "-o", "json"))
        return found

    try:
        before = up()
        gantry("produce", "Orders", "--count", "300", *where)
        pids = {m["name"]: m["pid"] for m in before["status"]["members"]}
        after = up(logLevel="WARNING")
        assert {m["name"]: m["pid"] for m in after["status"]["members"]} == pids
        wait_for(folder / "log" / "night-a-0.log", "the log level is WARNING now")
        epoch = max(m["epoch"] for m in after["status"]["members"])
        asleep = up(logLevel="WARNING", hibernate=True)
        assert asleep["status"]["phase"] == "Hibernated"
        assert not list((folder / "run").glob("*-a-*.json"))
        assert {m["reason"] for m in asleep["status"]["members"]} == {"hibernated"}
        plan = json.loads(gantry("plan", *where, "-o", "json"))
        assert (plan["started"], plan["replaced"], plan["stopped"]) == ([], [], [])
        awake = up(logLevel="WARNING")
        assert min(m["epoch"] for m in awake["status"]["members"]) > epoch
        assert "300 messages" in gantry("consume", "Orders", "--group", "g", "--count", "300", "--quiet", *where)
    finally:
        gantry("down", *where, "--delete-data")
