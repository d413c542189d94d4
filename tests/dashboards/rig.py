"""A real Prometheus that scrapes a real local cluster under load, and the operator's own page.

The operator's page has the figures of the local cluster's status, as the operator keeps them for a cluster in
Kubernetes, and the work of a real cluster controller beside an API server in memory.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
from gantry_broker.client import (
    ClientError,
    Consumer,
    FromWhere,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RetryLater,
)
from gantry_broker.remoting.errors import RemotingError
from gantry_operator.api.status import AnalyticsStatus, BrokerClusterStatus, ProxyStatus, TableRow, TopicSaving
from gantry_operator.cluster.member_http import TokenAuth
from gantry_operator.cluster.observed import ObservedMember
from gantry_operator.cluster.platform import Change, Event
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures
from gantry_operator.platforms.kubernetes.monitoring.health_server import HealthServer
from gantry_operator.platforms.kubernetes.reconcile.cluster_controller import ClusterController
from gantry_operator.platforms.local.ports import Ports

from helm.dashboards.model import selected
from tests.dashboards.programs import program
from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.test_cluster_controller import kept
from tests.local.cluster import Cluster, take_down
from tests.support.free_ports import free_port

NAMESPACE: Final = "shop"
SECOND: Final = 1
LETTER: Final = "cannot be processed"
"""The body of messages that become dead letters."""


class Prometheus:
    """Asks the HTTP interface of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=self.url, timeout=30)

    def ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query_range", query=expr, start=start, end=end, step=step)["result"]
        return found

    def targets_up(self) -> tuple[int, int]:
        """Targets that answer, of all."""
        states = [target["health"] for target in self.get("targets")["activeTargets"]]
        return states.count("up"), len(states)

    def close(self) -> None:
        self._http.close()


def expanded(expr: str, interval: str = "10s") -> str:
    """A panel's query as Grafana sends it with `All` chosen everywhere."""
    text = selected(expr).replace("$__rate_interval", interval)
    return re.sub(r"\$\{?(namespace|cluster|group|topic|consumer_group)\}?", ".*", text)


@contextmanager
def prometheus(folder: Path, jobs: list[dict[str, Any]], rules: Path | None = None) -> Iterator[Prometheus]:
    """Run Debian's Prometheus, which scrapes each second."""
    folder.mkdir()
    config = {
        "global": {"scrape_interval": f"{SECOND}s", "evaluation_interval": f"{SECOND}s"},
        "scrape_configs": jobs,
        "rule_files": [] if rules is None else [str(rules)],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    words = [
        program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--storage.tsdb.retention.time=6h",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        asked = Prometheus(port)
        try:
            deadline = time.monotonic() + 60
            while not asked.ready():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield asked
        finally:
            asked.close()
            process.terminate()


def name_server(folder: Path) -> AbstractContextManager[int]:
    """A NameServer with an HTTP port, as in a pod; local ones have none. Yields the port."""
    return process(folder, "gantry_broker.namesrv", {"name": "t-namesrv-0"})


def proxy(folder: Path, name_servers: str) -> AbstractContextManager[int]:
    """A gRPC proxy. Yields its HTTP port."""
    servers = name_servers.split(";")
    return process(folder, "gantry_broker.proxy", {"name": "t-proxy-0", "name_servers": servers, "drain_s": 0})


@contextmanager
def process(folder: Path, module: str, config: dict[str, Any]) -> Iterator[int]:
    """A process with an HTTP page. Yields its port."""
    folder.mkdir()
    config |= {"listen_host": "127.0.0.1", "port": free_port(), "http_port": free_port()}
    (folder / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", module, "--config", str(folder / "config.json")]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            yield int(str(config["http_port"]))
        finally:
            process.terminate()


def jobs(cluster: Cluster, server: int, proxy_port: int, operator: int) -> list[dict[str, Any]]:
    """What the chart's PodMonitors make Prometheus scrape, with the labels that they add."""
    taken = Ports.load(cluster.folder.ports).taken
    members = [f"127.0.0.1:{port}" for use, port in sorted(taken.items()) if use.endswith("/http")]
    here = {"namespace": NAMESPACE}
    return [
        {"job_name": "brokers", "static_configs": [{"targets": members, "labels": here}]},
        {
            "job_name": "nameservers",
            "static_configs": [{"targets": [f"127.0.0.1:{server}"], "labels": here | {"cluster": "t"}}],
        },
        {
            "job_name": "proxies",
            "static_configs": [{"targets": [f"127.0.0.1:{proxy_port}"], "labels": here | {"cluster": "t"}}],
        },
        {
            "job_name": "operator",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{operator}"], "labels": {"namespace": "gantry-system"}}],
        },
    ]


REPORT: Final = AnalyticsStatus(
    lastResult="Succeeded",
    lastSuccess=None,
    durationSeconds=28.8,
    scannedBytes=1_400_000_000,
    topSavings=[
        TopicSaving(topic="Prices", savedBytes=310_000_000),
        TopicSaving(topic="Orders", savedBytes=42_000_000),
        TopicSaving(topic="Clicks", savedBytes=9_000_000),
    ],
)
"""In the form in which the operator reads it from the summary of a run in Kubernetes."""


class Figures:
    """Keeps the operator's figures of the local cluster current."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.figures = ClusterFigures(NAMESPACE, "t")
        self._http = httpx.Client(auth=TokenAuth(cluster.folder.token.read), timeout=1)
        self._events = 0
        self._epochs: dict[str, int] = {}
        self._report = REPORT.model_copy(update={"lastSuccess": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def close(self) -> None:
        self._http.close()

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(SECOND)

    def _look(self) -> None:
        status = BrokerClusterStatus.model_validate(self._cluster.resource()["status"])
        status.analytics = self._report
        status.tables = [TableRow(topic="Orders", current="True", reason="Current", rows=5)]
        status.proxy = ProxyStatus(replicas=1, readyReplicas=1)
        rows = [
            ObservedMember(
                row.name, row.group, number, self._said(row.name), row.ready,
                in_sync=row.inSync, master=row.role == "Master",
            )
            for number, row in enumerate(status.members)
        ]  # fmt: skip
        self.figures.saw(status, rows)
        last = status.lastFailover
        if last is not None and self._epochs.get(last.group) != last.epoch:
            self._epochs[last.group] = last.epoch
            at = int(datetime.fromisoformat(last.time).timestamp() * 1000)
            kind: Any = "handover" if last.planned else "failover"
            self.figures.changed(
                Change(
                    last.group, last.from_, last.to, last.reason, last.epoch, at, last.durationMs, last.planned, kind
                )
            )
        lines = self._cluster.folder.events.read_text().splitlines()
        for event in map(json.loads, lines[self._events :]):
            self.figures.heard(Event("Normal", event["reason"], event["message"], "a"))
        self._events = len(lines)

    def _said(self, member: str) -> dict[str, Any] | None:
        """The status that a member reports; None: it does not answer."""
        port = Ports.load(self._cluster.folder.ports).taken[f"{member}/http"]
        try:
            answer = self._http.get(f"http://127.0.0.1:{port}/v1/status")
        except httpx.HTTPError:
            return None
        return dict(answer.json()) if answer.status_code == 200 else None


@asynccontextmanager
async def operator_page(cluster: Cluster) -> AsyncIterator[int]:
    """The operator's HTTP page. Yields its port."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeApi(on_answer=metrics.api_request))
        controller = await stack.enter_async_context(kept(fake))
        # Its cluster has no pods. The figures shown are those of the cluster that runs.
        metrics.SHOWN.hide(controller.platform.figures)
        shown = Figures(cluster)
        metrics.SHOWN.show(shown.figures)
        stack.callback(metrics.SHOWN.hide, shown.figures)
        for gauge in (metrics.LEADER, metrics.CLUSTERS):
            gauge.set(1)
            stack.callback(gauge.set, 0)
        metrics.CERTIFICATE_EXPIRY.labels(NAMESPACE, "t", "t-a-tls").set(time.time() + 77 * 86_400)
        stack.callback(metrics.CERTIFICATE_EXPIRY.remove, NAMESPACE, "t", "t-a-tls")
        server = await stack.enter_async_context(HealthServer(0, "127.0.0.1"))
        server.follow(controller._shared.caches)
        stack.callback(shown.close)
        for work in (shown.run(), _passes(fake, controller)):
            stack.callback(asyncio.create_task(work).cancel)
        yield server.port


async def _passes(fake: FakeApi, controller: ClusterController) -> None:
    """Events about the cluster's objects, as a real API server sends them."""
    while True:
        for (kind, _, _), obj in list(fake.objects.items()):
            if kind == "StatefulSet" and "generation" not in obj["metadata"]:
                fake.put(obj | {"metadata": obj["metadata"] | {"generation": 1}})
        controller.look_again()
        await asyncio.sleep(SECOND)


class Traffic:
    """Producers and consumers of an imaginary shop. `each`: seconds between two messages of the busiest topic."""

    def __init__(self, name_servers: str, each: float = 0.02) -> None:
        self._servers = name_servers
        self._each = each

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(self._servers))
            for topic in ("Orders", "Prices", "Clicks"):
                await producer.send(Message(topic, b"first"))
            await producer.send(Message("Orders", LETTER.encode()))
            for topic, group, handler in (
                ("Orders", "billing", self._quick),
                ("Clicks", "statistics", self._quick),
                ("Orders", "mail", self._failing),
                ("Prices", "warehouse", self._slow),
            ):
                consumer = Consumer(self._servers, group, from_where=FromWhere.FIRST, max_retries=2, rebalance_s=1)
                await stack.enter_async_context(consumer)
                await consumer.subscribe(topic, handler)
            puller = PullConsumer(self._servers, "archive", from_where=FromWhere.FIRST, auto_commit=False)
            await stack.enter_async_context(puller)
            await puller.subscribe_to("Clicks")
            tasks = [
                asyncio.create_task(self._send(producer, "Orders", 400, self._each)),
                asyncio.create_task(self._send(producer, "Prices", 120, self._each * 2)),
                asyncio.create_task(self._send(producer, "Clicks", 60, self._each * 1.5)),
                asyncio.create_task(self._commit_first(puller)),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, producer: Producer, topic: str, size: int, each: float) -> None:
        number = 0
        while True:
            number += 1
            try:
                await producer.send(Message(topic, bytes(size + number % 7 * size), keys=f"k{number % 100}"))
            except (ClientError, RemotingError):
                await asyncio.sleep(0.2)
            await asyncio.sleep(each)

    async def _commit_first(self, consumer: PullConsumer) -> None:
        """Reads a little, commits it, and stops: a group that falls behind."""
        while not await consumer.poll(1):
            pass
        await consumer.commit()

    async def _quick(self, message: ReceivedMessage) -> None:
        return None

    async def _slow(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self._each * 60)

    async def _failing(self, message: ReceivedMessage) -> None:
        if message.body == LETTER.encode():
            raise RetryLater(-1)


@asynccontextmanager
async def rig(
    folder: Path, *, rules: Path | None = None, each: float = 0.02
) -> AsyncIterator[tuple[Cluster, Prometheus]]:
    """All of it. The caller waits for data."""
    cluster = Cluster(folder, archive={"url": f"file://{folder}/archive", "interval": "1s"})
    try:
        await asyncio.to_thread(cluster.up)
        servers = cluster.name_servers
        with name_server(folder / "nameserver") as server, proxy(folder / "proxy", servers) as proxy_port:
            async with Traffic(cluster.name_servers, each).running(), operator_page(cluster) as operator:
                with prometheus(folder / "prometheus", jobs(cluster, server, proxy_port, operator), rules) as asked:
                    yield cluster, asked
    finally:
        await asyncio.to_thread(take_down, cluster)
