"""Apache RocketMQ and a local cluster of Gantry in one network namespace, driven by commands as a user would."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports

from benchmarks.rig import groups, rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.support import samples

# Apache's broker refuses a send that has waited for 200 ms, or for a second in its store.
PATIENCE = {"waitTimeMillsInSendQueue": "10000", "osPageCacheBusyTimeOutMills": "10000"}
SMALL = {"mappedFileSizeCommitLog": "1048576"}


def as_documented(command: str, done: subprocess.CompletedProcess[str], number: int = 0, *may: str) -> None:
    """Compare what a command said with what docs/migration.md shows. `may`: begins of lines that come or not."""
    said = done.stdout + done.stderr
    found = samples.difference("migration.md", f"gantry {command}", said, number=number, may=may)
    assert not found, "docs/migration.md shows another output:\n" + "\n".join(found)


class Scene:
    """A source with the clients of one version, and the cluster that it moves to."""

    def __init__(self, base: Path, source: Target) -> None:
        self.base, self.source = base, source
        self.folder = base / "cluster"
        self.file = base / "cluster.yaml"
        self.environment = os.environ | {"XDG_STATE_HOME": str(base / "state")}
        self.environment.pop("GANTRY_KUBERNETES", None)
        self.segment = 1 << 20
        self.flags: Sequence[str] = ()
        """Of the clients' JVMs."""
        self._drivers: list[Driver] = []

    def write(self, **spec: Any) -> None:
        usual: dict[str, Any] = {
            "brokerClusterName": self.source.cluster,
            "nameServers": {"replicas": 1},
            "brokerGroups": [{"name": "a", "brokerName": self.source.broker_name, "members": 1}],
            "proxy": {"replicas": 0},
            "broker": {"mappedFileSizeCommitLog": self.segment},
            "bootstrap": {"fromRocketMQ": {"nameServers": [self.source.namesrv]}},
        }
        manifest = {
            "apiVersion": "gantry.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": "moved"},
            "spec": usual | spec | {"broker": usual["broker"] | spec.get("broker", {})},
        }
        self.file.write_text(json.dumps(manifest))

    def gantry(self, *words: str, check: bool = True, within_s: float = 120) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.source.prefix, sys.executable, "-m", "gantry_operator.cli", *words],
            capture_output=True, text=True, env=self.environment, timeout=within_s, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"gantry {' '.join(words)}: {done.stdout}{done.stderr}{self.story()}"
        return done

    def migrate(self, command: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.gantry("migrate", command, *words, "--dir", str(self.folder), check=check)

    def start(self, **spec: Any) -> subprocess.CompletedProcess[str]:
        self.write(**spec)
        return self.gantry("migrate", "start", str(self.file), "--dir", str(self.folder))

    @property
    def address(self) -> str:
        """Of the new cluster's group."""
        ports = Ports.load(ClusterFolder(self.folder).ports)
        return ports.address("group/a")

    def until_following(self) -> None:
        self.until(
            "the copy follows", lambda s: s["groups"]["a"]["lag"] is not None and s["groups"]["a"]["lag"] < 1 << 20
        )

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.migrate("status", "-o", "json").stdout))

    def resource(self) -> dict[str, Any]:
        return dict(json.loads(self.gantry("status", "--dir", str(self.folder), "-o", "json", check=False).stdout))

    def until(self, what: str, wanted: Callable[[dict[str, Any]], bool], within_s: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while True:
            found = self.status()
            if wanted(found):
                return found
            assert time.monotonic() < deadline, f"{what} is not so: {found}{self.story()}"
            time.sleep(0.5)  # Each look is a process.

    def story(self) -> str:
        logs = sorted((self.folder / "log").glob("*")) if (self.folder / "log").is_dir() else []
        return "".join(f"\n--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in logs)

    def driver(self, version: str) -> Driver:
        made = Driver(self.source, version, "JSON", self.base / f"driver-{len(self._drivers)}.log", self.flags)
        self._drivers.append(made)
        return made

    def close(self) -> None:
        for made in self._drivers:
            made.close()
        if self.folder.is_dir():
            self.gantry("down", "--dir", str(self.folder), check=False)


def put(clients: Driver, *, count: int, first: int = 0, **options: Any) -> set[int]:
    """Send messages with these numbers, again until each is acknowledged, and return the numbers. A RocketMQ that has
    just begun refuses the first ones on a busy machine: they are in no log.
    """
    wanted = missing = set(range(first, first + count))
    deadline = time.monotonic() + 120
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} messages of {options} are refused again and again"
        # Of numbers one after the other, each has the same difference to its place in the order.
        for _, pairs in itertools.groupby(enumerate(sorted(missing)), lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in pairs]
            done = clients.run("produce", first=numbers[0], count=len(numbers), each=True, **options)
            missing = missing - {line["n"] for line in done.of("sent")}
    return wanted


@contextlib.contextmanager
def scene(
    base: Path, server: str, settings: dict[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[Scene]:
    """`server`: server49 or server55. `flags`: of its JVMs. Raises JavaMissing, NamespaceUnavailable."""
    with rocketmq.rocketmq(
        base / "rocketmq", PATIENCE | SMALL | (settings or {}), server=server, heap="512m", direct="512m", flags=flags
    ) as source:
        made = Scene(base, source)
        try:
            yield made
        finally:
            made.close()


class Controlled(groups.ControllerGroup):
    """Two brokers of 5.5.0 whose controller chooses the master. An acknowledgement waits for both, as by default it
    does not: then a killed master loses the last ones by itself.
    """

    members = 2
    of_broker: ClassVar = groups.ControllerGroup.of_broker | PATIENCE | SMALL


class Elected(groups.DLedgerGroup):
    """Three brokers of 4.9.7 that elect their leader."""

    of_broker: ClassVar = groups.DLedgerGroup.of_broker | PATIENCE | SMALL


@contextlib.contextmanager
def replicated(base: Path, kind: type[groups.ApacheGroup] = Controlled) -> Iterator[tuple[Scene, groups.ApacheGroup]]:
    """A source of several brokers, and its group for faults. Raises JavaMissing, NamespaceUnavailable."""
    folder = base / "rocketmq"
    folder.mkdir()
    with groups.apache(kind, folder) as group:
        source = Target(
            "rocketmq", group.namesrv, group.master(), "demo", "demo-a", group.prefix, 0, group.pids(), group.log()
        )
        made = Scene(base, source)
        try:
            yield made, group
        finally:
            made.close()
