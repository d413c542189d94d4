"""A group under `gantry up` with continuous senders, for the cost of replication."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gantry import Cluster
from .processes import Started, until

EVERY_S = 1
HEALTHY_S = 60.0
TOPIC = "Replication"
"""A topic of eight queues, as an automatically created topic has; RocketMQ's BenchmarkTest has 1,024."""


@dataclass(frozen=True)
class Kind:
    """One kind of group."""

    name: str
    members: int

    @property
    def spec(self) -> dict[str, Any]:
        if self.name == "Raft":
            return {"mode": "Raft"}
        return {"replication": self.name, "minInSyncReplicas": min(2, self.members) if self.name == "Sync" else 1}


def manifest(kind: Kind, folder: Path) -> Path:
    """JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cluster.yaml"
    groups = [{"name": "a", "members": kind.members}]
    spec = {"nameServers": {"replicas": 1}, "brokerGroups": groups, **kind.spec}
    names = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "bench"}}
    file.write_text(json.dumps({**names, "spec": spec}))
    return file


def is_healthy(cluster: Cluster, count: int) -> bool:
    """Returns whether all members are in sync under one master."""
    members = cluster.members() or []
    masters = [m for m in members if m["role"] == "Master"]
    return len(members) == count and len(masters) == 1 and len(masters[0]["in_sync"]) == count


@contextlib.contextmanager
def group(kind: Kind, folder: Path) -> Iterator[Cluster]:
    with Cluster(folder / "cluster", manifest(kind, folder)) as cluster:
        until("a whole group", lambda: is_healthy(cluster, kind.members), HEALTHY_S)
        yield cluster


class Load:
    """One process of our client that sends without pause, as a context manager."""

    def __init__(
        self, cluster: Cluster, folder: Path, senders: int, size: int, seconds: int, bare: str | None = None
    ) -> None:
        self.log = folder / f"load-{time.monotonic_ns()}.log"
        servers = ";".join(cluster.status()["nameServers"])
        self._words = [
            sys.executable, str(Path(__file__).with_name("load.py")), "--namesrv", servers, "--senders",
            str(senders), "--size", str(size), "--seconds", str(seconds), "--every", str(EVERY_S), "--topic", TOPIC,
            *(["--bare", bare] if bare else []),
        ]  # fmt: skip

    def __enter__(self) -> Load:
        self._process = Started(self._words, self.log)
        self._process.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.__exit__(None, None, None)

    def lines(self) -> list[dict[str, Any]]:
        """Returns the cumulative counts, a line each second."""
        return [json.loads(line) for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]

    def wait_for(self, count: int) -> None:
        until(f"{count} lines of the senders", lambda: len(self.lines()) >= count, count * EVERY_S + 60)

    def rates(self, first: int, last: int) -> list[float]:
        """Returns SEND_OK a second in each second from one line to another."""
        lines = self.lines()
        pairs = zip(lines[first:last], lines[first + 1 : last + 1], strict=True)
        return [(b["sent"] - a["sent"]) / (b["seconds"] - a["seconds"]) for a, b in pairs]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def sent(self) -> int:
        return int(self.lines()[-1]["sent"])

    @property
    def failed(self) -> int:
        return int(self.lines()[-1]["failed"])
