"""docs/metrics.md lists every metric of brokers, NameServers and operator, with its type and labels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gantry_broker.archive.archiver import Report
from gantry_broker.archive.tiered import Counters
from gantry_broker.archive.verified import Verification
from gantry_broker.broker.archive_reads import Served
from gantry_broker.broker.compaction import Saved
from gantry_broker.broker.http.archive_metrics import archive_families, archive_read_families, compaction_families
from gantry_broker.client import Message, Producer
from gantry_broker.config import ArchiveConfig, OtlpConfig
from gantry_broker.http.families import Row
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.service import metrics as name_server_page
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster.observed import ObservedMember
from gantry_operator.cluster.platform import Change, Event
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.client.cluster import Cluster

ROOT = Path(__file__).parents[2]
WITH_TLS = re.compile('"(gantry_(?:certificate|tls)_[a-z_]+)"')
COMMON = {"gantry": {"cluster", "group", "member"}, "rocketmq": {"cluster", "node_type", "node_id"}}
WITHOUT = ("gantry_build_info", "gantry_metrics_omitted_series", "gantry_otlp_exports_total")
"""Metrics of a broker without the common labels, besides those of processes."""

Rows = dict[str, tuple[str, set[str]]]
"""By name: type and labels."""


def documented(page: str, part: str) -> Rows:
    """The rows of the tables in one part of the page."""
    text = page.split(f"\n## {part}\n", 1)[1].split("\n## ", 1)[0]
    found: Rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.fullmatch("`([a-z_]+)`", cells[0])
        if name is not None:
            assert name[1] not in found, f"{name[1]} is there twice"
            found[name[1]] = cells[1], set(re.findall("`([a-z_]+)`", cells[2]))
    return found


def served(families: Iterable[Metric]) -> Rows:
    """The metrics of a page; no labels of those without a series."""
    found: Rows = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = family.type, labels
    return found


def compare(page: Rows, code: Rows, common: Iterable[str] = ()) -> None:
    assert set(page) == set(code), "the tables and the code have the same metrics"
    for name, (kind, labels) in code.items():
        assert page[name][0] == kind, name
        if labels:
            assert page[name][1] == labels - set(common), name


async def test_the_page_has_every_metric_with_its_type_and_labels(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    async with NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="test", registration_port=0)) as server:
        cluster = Cluster(tmp_path, server)
        broker = await cluster.add("a", otlp=OtlpConfig(endpoint="http://127.0.0.1:1", interval_s=3_600))
        async with Producer(cluster.name_server) as producer:
            context = f"00-{'ab' * 16}-{'cd' * 8}-01"
            await producer.send(Message("T", b"x", properties={"traceparent": context}))
            await producer.send(Message("T", b"x", properties={"traceparent": context}))  # to a topic that exists now
        assert broker.process is not None
        families = await broker.process.parts.http._metrics()
        examples = {
            (sample.name, sample.exemplar.labels["trace_id"])
            for family in families
            for sample in family.samples
            if sample.exemplar is not None
        }
        name_server = served(text_string_to_metric_families(name_server_page(server.service)))
        await cluster.close()
    what = ("gantry_send_latency_seconds_bucket", "gantry_append_latency_seconds_bucket")
    assert examples == {(name, "ab" * 16) for name in what}
    # Only brokers with an archive, and with compacted topics, have their metrics.
    place = ArchiveConfig(url="s3://b/p", uid="u")

    def one(value: float) -> list[Row]:
        return [(dict.fromkeys(COMMON["gantry"], ""), value)]

    tiered = SimpleNamespace(counters=Counters(), cache_bytes=0)
    reads: Any = SimpleNamespace(tiered=tiered, served=Served(), error="")
    compaction: Any = SimpleNamespace(topics=lambda: ["T"], saved=lambda topic: Saved(2, 2, 1, 1), error="")
    report = Report(known=True, verification=Verification(1, 1, 1, 1, 1, 1, 0))
    some = [*archive_families(report, place, one), *archive_read_families(reads, 0, one)]
    some += compaction_families(compaction, lambda topic: dict.fromkeys((*COMMON["gantry"], "topic"), ""), one)
    code = served(families) | {name: (kind, set(rows[0][0])) for name, kind, _, rows in some}
    rocketmq = {name: row for name, row in code.items() if name.startswith("rocketmq_")}
    compare(documented(page, "RocketMQ's metrics"), rocketmq, COMMON["rocketmq"])
    source = (ROOT / "broker_image" / "gantry_broker" / "remoting" / "tls_ports.py").read_text()
    secured = set(WITH_TLS.findall(source))
    assert len(secured) == 5
    own = documented(page, "Gantry's metrics of a broker")
    assert secured <= set(own)
    rest = {name: row for name, row in code.items() if name not in rocketmq}
    for name, (_, labels) in rest.items():
        plain = name.startswith("process_") or name in WITHOUT
        assert not labels or plain or labels >= COMMON["gantry"], name
    compare({n: row for n, row in own.items() if n not in secured}, rest, COMMON["gantry"])
    shared = {name for name in name_server if name in own}
    assert {f"gantry_{what}" for what in ("build_info", "refused_values_total", "access_refused_total")} <= shared
    compare(documented(page, "The NameServer's"), {n: row for n, row in name_server.items() if n not in shared})


def test_the_page_has_every_metric_of_the_operator() -> None:
    """One figure of each kind, so that each metric has its labels."""
    figures = ClusterFigures("mq", "demo")
    figures.changed(Change("a", "demo-a-0", "demo-a-1", "gone", 2, 1, 1, False))
    figures.heard(Event("Normal", "InSyncSetShrunk", "", "a"))
    condition = {"type": "Available", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    report = {
        "lastResult": "Succeeded", "lastSuccess": "2026-01-01T00:00:00Z", "durationSeconds": 1, "scannedBytes": 1,
        "topSavings": [{"topic": "T"}],
    }  # fmt: skip
    proxy = {"replicas": 2, "readyReplicas": 1}
    status = {
        "proxy": proxy,
        "members": [{"name": "demo-a-0", "group": "a"}],
        "conditions": [condition],
        "analytics": report,
    }
    line = {"role": "Master", "dead_letters": 0, "disk": {}}
    member = ObservedMember("demo-a-0", "a", 0, line, True, master=True)
    figures.saw(BrokerClusterStatus.model_validate(status), [member])
    metrics.api_request("GET", "pods", 200)
    metrics.WATCH_AGE.labels("Pod").set(0)
    metrics.RECONCILES.labels("done")
    metrics.WRITES.labels("Pod")
    metrics.CERTIFICATE_EXPIRY.labels("mq", "demo", "s")
    metrics.SHOWN.show(figures)
    try:
        found = served(text_string_to_metric_families(generate_latest(metrics.REGISTRY).decode()))
    finally:
        metrics.SHOWN.hide(figures)
        metrics.CERTIFICATE_EXPIRY.remove("mq", "demo", "s")
    own = {n: row for n, row in found.items() if n.startswith("gantry_") and not n.endswith("_created")}
    assert own.pop("gantry_build_info") == ("gauge", {"component", "core", "version"})
    page = (ROOT / "docs" / "metrics.md").read_text()
    compare(documented(page, "The operator's"), own)
