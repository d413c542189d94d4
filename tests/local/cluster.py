"""A local cluster of real processes, driven by the `gantry` command like a user."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from gantry_broker.client import ClientError, Consumer, Credentials, FromWhere, Producer, ReceivedMessage, SendStatus
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.certificates import client_options
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import load_saved, save_manifest
from gantry_operator.platforms.local.ports import Ports, http, registration, replication
from gantry_operator.platforms.local.process import start_mark
from gantry_operator.platforms.local.status import local_status

from tests.support.free_ports import free_ports
from tests.support.patience import SLOW

UP_S = 60
GAP_S, SILENT_GAP_S = 5.0, 15.0
"""Longest times without a success when a process dies, and when it is silent, on a busy machine. The benchmarks have
the figures.
"""
NO_PROXY = {"replicas": 0}
"""`gantry up` adds a proxy where the manifest says nothing. Most tests need none."""


class Cluster:
    """One local cluster with ports and a state folder of its own."""

    def __init__(self, base: Path, name: str = "t", **spec: Any) -> None:
        self.name = name
        self.folder = ClusterFolder(base / "cluster")
        self.file = base / "cluster.yaml"
        self.annotations: dict[str, str] = {}
        self.environment = os.environ | {"XDG_STATE_HOME": str(base / "state")}
        self.environment.pop("GANTRY_KUBERNETES", None)
        self.write(**spec)
        self.folder.make()
        made = BrokerCluster.model_validate(json.loads(self.file.read_text()))
        save_manifest(self.folder, made)
        ports = Ports(self.folder.ports)
        uses = [use for s in plan(made).name_servers for use in (s.name, registration(s.name))]
        uses += [f"group/{g.name}" for g in plan(made).groups]
        uses += [use for m in plan(made).members for use in (m.name, replication(m.name), http(m.name))]
        uses += [use for p in plan(made).proxies for use in (p.name, http(p.name))]
        ports.taken = dict(zip(uses, free_ports(len(uses)), strict=True))
        self.folder.ports.write_text(json.dumps(ports.taken))

    def write(self, **spec: Any) -> None:
        """Change the manifest. JSON is YAML."""
        usual = {"nameServers": {"replicas": 2}, "brokerGroups": [{"name": "a", "members": 3}], "proxy": NO_PROXY}
        wanted = usual | spec
        manifest = {
            "apiVersion": "gantry.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": self.name, "annotations": self.annotations},
            "spec": wanted,
        }
        self.file.write_text(json.dumps(manifest))

    def annotate(self, annotation: str, value: str) -> None:
        """Change an annotation of the manifest."""
        self.annotations[annotation] = value
        manifest = json.loads(self.file.read_text())
        manifest["metadata"]["annotations"] = self.annotations
        self.file.write_text(json.dumps(manifest))

    def gantry(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "gantry_operator.cli", *args],
            input=stdin, capture_output=True, text=True, env=self.environment, timeout=90, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"gantry {' '.join(args)}: {done.stdout}{done.stderr}{self.story()}"
        return done

    def up(self, *options: str) -> str:
        """Start it, or send it the present manifest. Returns what the command prints."""
        place = ("--dir", str(self.folder.root), "--detach", "--timeout", str(UP_S))
        return self.gantry("up", str(self.file), *place, *options).stdout

    def story(self) -> str:
        """The events and logs, for a test that fails."""
        logs = sorted((self.folder.root / "log").iterdir())
        text = "".join(f"\n--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in logs)
        events = self.folder.events
        return text + "\n--- events\n" + (events.read_text() if events.exists() else "")

    def resource(self) -> dict[str, Any]:
        """As `gantry status -o json` prints it, without the start of another process."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(local_status(self.folder)).to_object()).result()

    def members(self) -> dict[str, dict[str, Any]]:
        return {m["name"]: m for m in self.resource()["status"]["members"]}

    def master(self, group: str = "a") -> dict[str, Any]:
        return next(m for m in self.members().values() if m["group"] == group and m["role"] == "Master")

    @property
    def name_servers(self) -> str:
        ports = Ports.load(self.folder.ports)
        return ";".join(ports.address(use) for use in ports.taken if "-namesrv-" in use and "/" not in use)

    @property
    def tls(self) -> TlsOptions | None:
        """How clients call it."""
        return client_options(load_saved(self.folder), self.folder)

    def until(self, what: str, condition: Callable[[], Any], timeout_s: float = 30) -> Any:
        """What the condition returns, once it is true: within `SLOW` times `timeout_s`."""
        deadline = time.monotonic() + SLOW * timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(StopIteration):
                found = condition()
                if found:
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not within {SLOW * timeout_s:.0f} s: {what}{self.story()}")

    def whole(self) -> bool:
        """All members are in sync, and one leads."""
        members = self.members().values()
        return all(m.get("inSync") for m in members) and [m["role"] for m in members].count("Master") == 1

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Those with that reason, the oldest first."""
        lines = self.folder.events.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["reason"] == reason]

    def supervisor_pid(self) -> int:
        return int(json.loads(self.folder.supervisor.read_text())["pid"])

    def pids(self) -> list[int]:
        return [int(json.loads(p.read_text())["pid"]) for p in (self.folder.root / "run").glob("*.json")]


class Load:
    """Sends continuously and records the acknowledged messages, the refused ones, and their times."""

    def __init__(self, producer: Producer, topic: str, tag: str) -> None:
        self.producer = producer
        self.topic = topic
        self.tag = tag
        self.promised: set[bytes] = set()
        self.errors: list[str] = []
        self.other: Counter[str] = Counter()
        self.successes: list[float] = []
        self._number = 0
        self._stop = False
        self._wanted = 0
        self._reached = asyncio.Event()

    async def send(self) -> None:
        while not self._stop:
            self._number += 1
            body = f"{self.tag}-{self._number}".encode()
            try:
                result = await self.producer.send(self.topic, body)
            except (ClientError, RemotingError) as error:
                self.errors.append(str(error))
                await asyncio.sleep(0.01)
                continue
            if result.status == SendStatus.SEND_OK:
                self.promised.add(body)
                self.successes.append(time.monotonic())
                if len(self.promised) >= self._wanted:
                    self._reached.set()
            else:
                self.other[result.status.name] += 1
                await asyncio.sleep(0.005)

    def gap_s(self) -> float:
        """The longest time between two successes."""
        times = sorted(self.successes)
        return max((b - a for a, b in itertools.pairwise(times)), default=float("inf"))

    async def more(self, count: int, timeout_s: float = 30) -> None:
        """Until this many more were acknowledged."""
        self._wanted = len(self.promised) + count
        self._reached.clear()
        async with asyncio.timeout(SLOW * timeout_s):
            await self._reached.wait()

    @classmethod
    @asynccontextmanager
    async def on(
        cls, cluster: Cluster, topic: str, tag: str, senders: int = 4, credentials: Credentials | None = None
    ) -> AsyncIterator[Load]:
        async with Producer(cluster.name_servers, "load", credentials=credentials, tls=cluster.tls) as producer:
            load = cls(producer, topic, tag)
            tasks = [asyncio.create_task(load.send()) for _ in range(senders)]
            try:
                await load.more(20)
                yield load
            finally:
                load._stop = True
                await asyncio.gather(*tasks)


async def read_all(cluster: Cluster, topic: str, wanted: set[bytes], timeout_s: float = 30) -> Counter[bytes]:
    """Every body of the topic as a new group reads it, until all wanted ones came."""
    seen: dict[tuple[str, int, int], bytes] = {}
    missing = set(wanted)
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        place = (message.broker, message.record.queue_id, message.record.queue_offset)
        assert seen.setdefault(place, message.body) == message.body, f"{place} was shown with two bodies"
        missing.discard(message.body)
        if not missing:
            done.set()

    group = f"checker-{time.monotonic_ns()}"
    async with Consumer(cluster.name_servers, group, from_where=FromWhere.FIRST, tls=cluster.tls) as consumer:
        await consumer.subscribe(topic, handle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SLOW * timeout_s):
                await done.wait()
    return Counter(seen.values())


async def check_account(cluster: Cluster, load: Load) -> None:
    seen = await read_all(cluster, load.topic, load.promised)
    missing = load.promised - set(seen)
    assert not missing, f"{len(missing)} of {len(load.promised)} promised messages are lost{cluster.story()}"


def kill(pid: int, number: int) -> None:
    os.kill(pid, number)


def one_group(members: int) -> dict[str, Any]:
    """Return the fields of a small cluster: one NameServer, and group a of so many members."""
    return {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": members}]}


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start the cluster, and take it down at the end."""
    try:
        cluster.up()
        yield cluster
    finally:
        take_down(cluster)


def take_down(cluster: Cluster) -> None:
    """Also after a failed test: no process is left running."""
    pids = {pid: start_mark(pid) for pid in cluster.pids()}
    done = cluster.gantry("down", "--dir", str(cluster.folder.root), check=False)
    left = [pid for pid, mark in pids.items() if mark is not None and start_mark(pid) == mark]
    for pid in left:
        kill(pid, signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert not left, f"gantry down left processes: {left}"
