"""Broker groups that go while a table reads their topic, on a local cluster of real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, Message, MessageQueue, Producer
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_spark.tables import job as job_module
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.offsets import PATIENCE_MS, losses_of
from gantry_spark.tables.spec import TableSpec

from tests.local.cluster import Cluster, running
from tests.spark.live_cluster import until
from tests.spark.test_stream_groups import has_group, write

TOPIC = "Orders"


def queues_of(group: str) -> list[MessageQueue]:
    return [MessageQueue(TOPIC, group, number) for number in range(2)]


def send(cluster: Cluster, group: str, bodies: Sequence[bytes]) -> None:
    async def work() -> None:
        async with Producer(cluster.name_servers) as producer:
            for number, body in enumerate(bodies):
                await producer.send(Message(TOPIC, body), queue=queues_of(group)[number % 2])

    asyncio.run(work())


def read_all(cluster: Cluster, group: str) -> None:
    """Let the other consumer group acknowledge everything."""

    async def work() -> None:
        async with Admin(cluster.name_servers) as admin:
            for queue in queues_of(group):
                await admin.set_offset("warehouse", queue, 1_000)

    asyncio.run(work())


def drain_of(cluster: Cluster, name: str) -> dict[str, Any]:
    (row,) = [row for row in cluster.resource()["status"]["groups"] if row["name"] == name]
    return row.get("drain") or {}


@pytest.mark.timeout(400)
def test_a_drain_waits_for_a_table_and_what_it_never_got_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [{"name": name, "members": 1} for name in "ab"]
    with running(Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=one)) as cluster:
        _drains(cluster, tmp_path, monkeypatch)


def _drains(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def prepare() -> None:
        async with Admin(cluster.name_servers) as admin:
            await admin.create_topic(TOPIC, queues=2)
            await admin.create_group(SubscriptionGroup("warehouse"))

    asyncio.run(prepare())
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    spec = TableSpec(TOPIC, cluster.name_servers, catalog, options={"timeoutMs": "5000"})

    def run() -> tuple[list[bytes], list[str]]:
        """Run the table. Return the bodies that it has, and its losses."""
        job = TableJob(spec, None)
        job.run()
        table = job.find()
        assert table is not None
        return sorted(table.scan().to_arrow().column("value").to_pylist()), losses_of(table.properties)

    # The table has everything when the drain begins, then it does not run, and more comes.
    sent = [b"a%d" % n for n in range(6)] + [b"b%d" % n for n in range(6)]
    send(cluster, "a", sent[:4])
    send(cluster, "b", sent[6:])
    assert run() == (sorted(sent[:4] + sent[6:]), [])
    write(cluster, "b")
    send(cluster, "a", sent[4:6])
    read_all(cluster, "a")
    until(lambda: drain_of(cluster, "a").get("phase") == "Draining", "sends are refused", 120)
    until(lambda: drain_of(cluster, "a").get("messages") is not None, "its report", 30)
    drain = drain_of(cluster, "a")
    assert drain["messages"] == 4, "of each queue one that has just come, and the last one that the table has"
    assert f"gantry group delete {spec.table_group} --force" in drain["message"]
    assert not drain.get("blocked")
    assert run() == (sorted(sent), [])
    until(lambda: not has_group(cluster, "a"), "the table lets it go", 60)
    assert run() == (sorted(sent), [])
    monkeypatch.setattr(job_module, "_now_ms", lambda: PATIENCE_MS * 10**6)
    assert run() == (sorted(sent), []), "also when it is away for long"
    monkeypatch.undo()

    # Another group of this name, of which the table does not get the last messages.
    write(cluster, "ab")
    until(lambda: spec.cluster().queues(TOPIC)[0].broker == "a", "the group has the topic", 60)
    more = [b"c%d" % n for n in range(6)]
    send(cluster, "a", more[:4])
    assert run() == (sorted(sent + more[:4]), [])
    send(cluster, "a", more[4:])
    read_all(cluster, "a")
    write(cluster, "b")
    assert "is deleted" in cluster.gantry("group", "delete", spec.table_group, "--force").stdout
    until(lambda: not has_group(cluster, "a"), "no one waits for the table", 120)
    assert run() == (sorted(sent + more[:4]), []), "its broker may come back"
    monkeypatch.setattr(job_module, "_now_ms", lambda: PATIENCE_MS * 10**6)
    found, losses = run()
    assert found == sorted(sent + more[:4])
    assert [text.partition(": ")[2] for text in losses] == [
        f"queue a:{number} of topic {TOPIC} no longer exists, and messages from offset 2 on may not have been read"
        for number in range(2)
    ]
    assert run()[1] == losses, "once"
