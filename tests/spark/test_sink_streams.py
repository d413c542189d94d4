"""Streams that write to a topic, in Spark: a failover in the middle, and a batch that Spark repeats."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.client import Admin
from gantry_spark.topics.columns import spark_schema
from gantry_spark.topics.options import ReadOptions
from gantry_spark.topics.source import TopicReader

from tests.spark.test_topic_streams import send
from tests.support.broker_group import MakeGroup, make_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["make_group"]

COLUMNS = spark_schema(("value", "msgId"))


def written(servers: str) -> list[tuple[bytes, str]]:
    """Value and unique key of every message in the topic."""
    reader = TopicReader(COLUMNS, ReadOptions({"nameServers": servers, "subscribe": "Out"}, stream=False))
    tasks = reader.partitions()
    return [(r["value"], r["msgId"]) for task in tasks for batch in reader.read(task) for r in batch.to_pylist()]


@pytest.mark.timeout(240)
async def test_a_failover_loses_no_row_and_a_repetition_keeps_its_keys(
    spark: SparkSession, make_group: MakeGroup, tmp_path: Path
) -> None:
    group = await make_group(2)
    await group.lead(0)
    await group.registered()
    servers = group.name_server
    async with Admin(servers) as admin:
        for topic in ("In", "Out"):
            await admin.create_topic(topic, queues=2)
    sent = await asyncio.to_thread(send, servers, "In", 0, 120)
    await group.all_in_sync()
    options = {"nameServers": servers, "subscribe": "In", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}

    def start() -> Any:
        # Spark looks for a sink in Python in the active session, and a thread has none.
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        frame = spark.readStream.format("rocketmq").options(**options).load().select("value")
        out = frame.writeStream.format("rocketmq").option("nameServers", servers).option("topic", "Out")
        return out.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    query = await asyncio.to_thread(start)
    while not await asyncio.to_thread(written, servers):
        assert query.isActive
    await group.members[0].kill()
    await group.lead(1, [1])
    await asyncio.to_thread(query.awaitTermination)
    found = await asyncio.to_thread(written, servers)
    assert {value for value, _ in found} == set(sent)
    keys: dict[bytes, set[str]] = {}
    for value, key in found:
        keys.setdefault(value, set()).add(key)
    assert all(len(of_value) == 1 for of_value in keys.values()), "what came twice has one key"

    # The last batch was written, and the process ended before it noted that.
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    again = await asyncio.to_thread(start)
    await asyncio.to_thread(again.awaitTermination)
    repeated = await asyncio.to_thread(written, servers)
    assert len(repeated) == len(found) + 40
    assert {key for _, key in repeated} == {key for _, key in found}
