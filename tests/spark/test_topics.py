"""The source and the sink `rocketmq` against a real broker. tests/interop/test_spark_topics.py runs the tour against
Apache RocketMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gantry_broker.client import Admin
from gantry_broker.client.selection import queue_of_key
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import MASTER_ID, Perm, Prop
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.testing import LocalBroker, broker
from gantry_spark.properties import properties_of
from gantry_spark.topics.options import WriteOptions
from gantry_spark.topics.pull import PullSettings, read_range
from gantry_spark.topics.queues import QueueRange
from gantry_spark.topics.sink import BATCH_MESSAGES, Row, Sender
from gantry_spark.topics.source import cluster_of

from tests.spark.topic_tour import Tour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with broker(messageDelayLevel="1s 2s") as running:
        yield running


def test_the_tour(spark: SparkSession, mq: LocalBroker, tmp_path: Path) -> None:
    Tour(spark, mq.name_servers, tmp_path, "Tour").run()


def test_rows_of_one_key_go_to_one_queue_of_a_compacted_topic(mq: LocalBroker) -> None:
    """And to the one that other clients select by hash."""

    async def prepare() -> list[dict[str, str]]:
        async with Admin(mq.name_servers) as admin:
            address = (await admin.topic_route(topics[0])).brokers[0].addresses[MASTER_ID]
            config = TopicConfig(topics[0], 4, 4, Perm.READ | Perm.WRITE, attributes={"cleanup.policy": "COMPACTION"})
            await admin.create_topic_at(address, config)
            return [await admin.topic_attributes(topic) for topic in topics]

    topics = [mq.create_topic(queues=4), mq.create_topic(queues=4)]
    assert asyncio.run(prepare()) == [{"cleanup.policy": "COMPACTION"}, {}]
    options = WriteOptions({"nameServers": mq.name_servers})
    cluster = cluster_of(options.access)
    used: list[dict[str, set[int]]] = []
    for topic in topics:
        sender = Sender(cluster, options)
        for n in range(2 * BATCH_MESSAGES):
            key = f"k{n % 7}"
            sender.add(topic, Row(b"x", {Prop.KEYS: key}, key, False))
        sender.finish()
        found: dict[str, set[int]] = {}
        for queue, bound in cluster.bounds(cluster.queues(topic)).items():
            wanted = QueueRange(queue, bound.first, bound.after)
            for records in read_range(cluster, wanted, PullSettings("g", (), True, False)):
                for key in properties_of(records).values("KEYS").to_pylist():
                    found.setdefault(key, set()).add(queue.queue_id)
        used.append(found)
    cluster.close()
    queues = [MessageQueue(topics[0], "test", n) for n in range(4)]
    assert used[0] == {f"k{n}": {queue_of_key(queues, f"k{n}").queue_id} for n in range(7)}
    assert all(len(found) > 1 for found in used[1].values())
