"""Pushes of metrics by OTLP to a real receiver, which decodes them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gantry_broker.client import Message, Producer
from gantry_broker.config import OtlpConfig
from gantry_broker.exposition import Family
from gantry_broker.histogram import LATENCY_S, Histogram
from gantry_broker.http.openmetrics import metric
from gantry_broker.http.otlp import OtlpPush
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.platforms.kubernetes import operator
from gantry_operator.platforms.kubernetes.operator import settings_from
from prometheus_client.core import Metric

from tests.client.cluster import Cluster, until
from tests.support.otlp_collector import Collector, texts


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="test", registration_port=0)) as server:
        cluster = Cluster(tmp_path, server)
        yield cluster
        await cluster.close()


def push(collector: Collector, families: list[Family]) -> OtlpPush:
    async def make() -> list[Metric]:
        return [metric(family) for family in families]

    return OtlpPush(OtlpConfig(endpoint=collector.endpoint, interval_s=1), make, "gantry-broker", "demo-a-0")


async def test_a_broker_pushes_what_its_page_shows(cluster: Cluster, collector: Collector) -> None:
    await cluster.add("a", otlp=OtlpConfig(endpoint=collector.endpoint + "/", interval_s=1))
    async with Producer(cluster.name_server) as producer:
        for _ in range(5):
            await producer.send(Message("T", b"x"))

    def sent() -> bool:
        found = collector.metrics().get("rocketmq_messages_in_total") if collector.pushes else None
        return found is not None and any(texts(p.attributes)["topic"] == "T" for p in found.sum.data_points)

    await until(sent, "the messages are in a push")
    found = collector.metrics()
    assert set(collector.paths) == {"/v1/metrics"}
    assert collector.resource()["service.name"] == "gantry-broker"
    assert collector.resource()["service.instance.id"] == "a-0"
    counter = found["rocketmq_messages_in_total"].sum
    (point,) = [p for p in counter.data_points if texts(p.attributes)["topic"] == "T"]
    assert counter.is_monotonic
    assert point.as_double == 5
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    (sends,) = found["gantry_send_latency_seconds"].histogram.data_points
    assert sends.count == sum(sends.bucket_counts) == 5
    assert tuple(sends.explicit_bounds) == LATENCY_S
    assert found["gantry_role_master"].gauge.data_points[0].as_double == 1
    await until(lambda: len(collector.pushes) > 2, "it goes on")
    exports = {
        texts(p.attributes)["result"]: p.as_double
        for p in collector.metrics()["gantry_otlp_exports_total"].sum.data_points
    }
    assert exports["done"] >= 1
    assert exports["failed"] == 0


async def test_the_operator_pushes_what_its_page_shows(collector: Collector) -> None:
    settings = settings_from(
        {"GANTRY_BROKER_IMAGE": "b", "GANTRY_OTLP_ENDPOINT": collector.endpoint, "GANTRY_OTLP_INTERVAL": "1s"}
    )
    assert settings.otlp == OtlpConfig(endpoint=collector.endpoint, interval_s=1)
    async with operator._pushing(settings.otlp, "op-0"):
        await until(lambda: bool(collector.pushes), "a push")
    assert collector.resource()["service.name"] == "gantry-operator"
    found = collector.metrics()
    assert found["gantry_operator_clusters"].gauge.data_points
    assert [texts(p.attributes)["component"] for p in found["gantry_build_info"].gauge.data_points] == ["operator"]
    assert "gantry_otlp_exports_total" in found


async def test_a_collector_that_refuses_is_tried_again() -> None:
    with Collector(400).running() as refusing:
        pushing = push(refusing, [Family("x", "gauge", "X.", [({}, math.inf)])])
        pushing.start()
        await until(lambda: pushing.results["failed"] >= 1, "a failure")
        refusing.status = 200
        await until(lambda: pushing.results["done"] >= 1, "a push")
        await pushing.close()
        assert refusing.metrics()["x"].gauge.data_points[0].as_double == math.inf


async def test_series_of_one_histogram_stay_apart(collector: Collector) -> None:
    first, second = Histogram((1, 2)), Histogram((1, 2))
    for value, times in ((0.5, 3), (1.5, 2), (9.0, 1)):
        first.observe(value, times)
    family = Family("h_seconds", "histogram", "H.", histograms=[({"topic": "a"}, first), ({"topic": "b"}, second)])
    pushing = push(collector, [family, Family("empty_total", "counter", "E.")])
    pushing.start()
    await until(lambda: bool(collector.pushes), "a push")
    await pushing.close()
    assert set(collector.metrics()) == {"h_seconds"}
    a, b = collector.metrics()["h_seconds"].histogram.data_points
    assert (texts(a.attributes), list(a.bucket_counts), a.count, a.sum) == ({"topic": "a"}, [3, 2, 1], 6, 13.5)
    assert not a.HasField("min")
    assert (texts(b.attributes), list(b.bucket_counts), b.count) == ({"topic": "b"}, [0, 0, 0], 0)


@pytest.mark.parametrize(
    ("endpoint", "interval", "named"),
    [("collector:4318", "60s", "otlp.endpoint"), ("http://c:4318", "500ms", "otlp.interval"),
     ("http://c:4318", "2h", "otlp.interval")],
)  # fmt: skip
def test_a_wrong_target_is_refused_by_name(endpoint: str, interval: str, named: str) -> None:
    good = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}]).model_dump(mode="json", exclude_none=True)
    good["spec"]["otlp"] = {"endpoint": endpoint, "interval": interval}
    with pytest.raises(ManifestError, match=named):
        parse_manifest(good)
    with pytest.raises(SystemExit, match="GANTRY_OTLP"):
        settings_from({"GANTRY_BROKER_IMAGE": "b", "GANTRY_OTLP_ENDPOINT": endpoint, "GANTRY_OTLP_INTERVAL": interval})
