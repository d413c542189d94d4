"""Broker groups that come and go in the middle of a Spark stream, on a local cluster of real processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.client import Admin
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_spark import register

from tests.local.cluster import Cluster, Load, one_group, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = tuple[str, int, bytes]


class Stream:
    """A streaming query that is stopped and started again on its checkpoint. Its sink replaces a batch that comes
    again.
    """

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        register(spark)
        self.spark = spark
        self.folder = folder
        self.options = options
        self.batches: dict[int, list[Place]] = {}
        self.query: Any = None

    def start(self) -> None:
        columns = ("value", "partition", "offset")
        rows = self.spark.readStream.format("rocketmq").options(**self.options).load().select(*columns)
        out = rows.writeStream.option("checkpointLocation", str(self.folder)).foreachBatch(self._write)
        self.query = out.trigger(processingTime="200 milliseconds").start()

    def _write(self, rows: Any, number: int) -> None:
        self.batches[number] = [(r.partition, r.offset, bytes(r.value)) for r in rows.collect()]

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def places(self) -> list[Place]:
        return [place for number in sorted(self.batches) for place in self.batches[number]]

    def of_group(self, name: str) -> int:
        return sum(partition.startswith(f"{name}:") for partition, _, _ in self.places())

    def until(self, what: str, condition: Callable[[], Any], seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.query.isActive, f"{what}: {self.query.exception()}"
            assert time.monotonic() < end, f"not in {seconds:g} s: {what}; {self.query.lastProgress}"
            time.sleep(0.2)

    def grows(self, what: str) -> None:
        count = len(self.places())
        self.until(f"more messages {what}", lambda: len(self.places()) > count)


@contextmanager
def load_of(cluster: Cluster, topic: str) -> Iterator[Load]:
    """Send in another thread."""
    ready, stop = threading.Event(), threading.Event()
    loads: list[Load] = []

    async def work() -> None:
        async with Load.on(cluster, topic, "x", senders=1) as load:
            loads.append(load)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert ready.wait(60)
        yield loads[0]
    finally:
        stop.set()
        thread.join()


def write(cluster: Cluster, groups: str) -> None:
    cluster.write(nameServers={"replicas": 1}, brokerGroups=[{"name": name, "members": 1} for name in groups])
    cluster.up()


def has_group(cluster: Cluster, name: str) -> bool:
    return name in {row["name"] for row in cluster.resource()["status"]["groups"]}


@pytest.mark.timeout(400)
def test_groups_come_and_go_in_the_middle_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **one_group(1))) as cluster:
        _come_and_go(cluster, spark, tmp_path / "checkpoint")


def _come_and_go(cluster: Cluster, spark: SparkSession, checkpoint: Path) -> None:
    async def prepare() -> None:
        async with Admin(cluster.name_servers) as admin:
            await admin.create_topic("Orders", queues=2)
            await admin.create_group(SubscriptionGroup("warehouse"))

    asyncio.run(prepare())
    stream = Stream(
        spark, checkpoint, nameServers=cluster.name_servers, subscribe="Orders", startingOffsets="earliest",
        groupId="warehouse", maxOffsetsPerTrigger="2000", timeoutMs="3000",
    )  # fmt: skip
    try:
        with load_of(cluster, "Orders") as load:
            stream.start()
            stream.grows("of the first group")
            write(cluster, "ab")
            stream.until("messages of the added group", lambda: stream.of_group("b"))
            stream.restart()
            stream.grows("after a restart beside both groups")
            write(cluster, "b")
            stream.restart()
            stream.until("group a is drained", lambda: not has_group(cluster, "a"), 200)
            of_a = stream.of_group("a")
            stream.grows("of the group that stays")
            stream.restart()
            stream.grows("after a restart without the drained group")
            write(cluster, "ab")
            stream.until("messages of another group with its name", lambda: stream.of_group("a") > of_a)
            stream.restart()
            stream.grows("after the last restart")
        stream.until("every message", lambda: load.promised <= {body for _, _, body in stream.places()})
    finally:
        stream.stop()
    found = Counter(body for _, _, body in stream.places())
    assert [body for body, count in found.items() if count > 1] == []
    assert set(found) == load.promised
