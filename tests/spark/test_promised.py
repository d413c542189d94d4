"""What the report promises of compaction, and what brokers then save: a real broker, with the same messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from gantry_broker.broker.metadata.attributes import CLEANUP, TOMBSTONES
from gantry_broker.client import Admin
from gantry_broker.protocol.bodies import TopicConfig
from gantry_spark.report import Job, run

from tests.spark.live_cluster import LiveCluster, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
YOUNG, AGED = "Young", "Aged"
"""Topics whose tombstones are younger than their retention, and older."""
ROUNDS, KEYS, DELETED = 20, 25, 7


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveCluster]:
    made = LiveCluster(tmp_path, compactionScheduleInternal=200)
    yield made
    made.close()


def configure(live: LiveCluster, topic: str, attributes: dict[str, str]) -> None:
    async def work() -> None:
        async with Admin(live.name_server) as admin:
            for address in (await admin.masters()).values():
                await admin.create_topic_at(address, TopicConfig(topic, 1, 1, attributes=attributes))

    asyncio.run(work())


def saved(live: LiveCluster, topic: str) -> dict[str, Any]:
    tables = httpx.get(f"{live.urls[0]}/v1/tables?ages=false").json()
    found: dict[str, Any] = tables["topics"][topic].get("compaction") or {"seen_records": 0}
    return found


def test_brokers_save_what_the_report_has_promised(spark: SparkSession, live: LiveCluster, tmp_path: Path) -> None:
    for topic in (YOUNG, AGED):
        configure(live, topic, {})
        numbers = range(ROUNDS * KEYS)
        live.send(topic, [f"{n}".encode() + bytes(200) for n in numbers], [f"k{n % KEYS}" for n in numbers])
    rows = [(topic, f"k{n}", None) for topic in (YOUNG, AGED) for n in range(DELETED)]
    deleted = spark.createDataFrame(rows, "topic string, key string, value binary").coalesce(1)
    deleted.write.format("rocketmq").mode("append").option("nameServers", live.name_server).save()
    live.caught_up()
    job = Job(brokers=(f"a={live.urls[0]}",), tombstone_hours=24.0)
    promised = {row["topic"]: row for row in run(spark, job).report["topics"]}
    for topic in (YOUNG, AGED):
        assert promised[topic]["recommendation"] == "compact"
        assert f"gantry topic compact {topic}" in promised[topic]["reason"]
        assert promised[topic]["compacted"] is None

    count = ROUNDS * KEYS + DELETED
    kept = {YOUNG: KEYS, AGED: KEYS - DELETED}
    for topic, tombstone_ms in ((YOUNG, 86_400_000), (AGED, 0)):
        configure(live, topic, {CLEANUP: "COMPACTION", TOMBSTONES: str(tombstone_ms)})
    for topic in kept:
        until(lambda t=topic: (f := saved(live, t))["seen_records"] == count and f["kept_records"] == kept[t], topic)
    live.caught_up()
    after = {row["topic"]: row for row in run(spark, job).report["topics"]}
    both = after[YOUNG]
    assert both["compacted"]["savedBytes"] == promised[YOUNG]["savedBytes"] == both["savedBytes"] > 0
    assert both["compacted"]["savedRecords"] == promised[YOUNG]["supersededRecords"] == count - KEYS
    assert "The brokers compact this topic" in both["reason"]
    tombstones = after[AGED]["compacted"]["savedBytes"] - promised[AGED]["savedBytes"]
    assert DELETED * 80 < tombstones < DELETED * 300, "those that have aged since"
    assert after[AGED]["compacted"]["savedRecords"] == promised[AGED]["supersededRecords"] + DELETED
