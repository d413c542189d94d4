"""Apache RocketMQ opens a store that Gantry wrote: messages, topics, groups, offsets, delays, timers, half messages."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.exporting import CONF, LogFiles, convert, copy_files
from gantry_broker.broker.migration.member import MARK
from gantry_broker.client import Admin, Message, Producer
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import POP, RequestMode, SubscriptionGroup
from gantry_broker.protocol.codes import CONTROL_TOPIC, POP_TOPIC
from gantry_broker.protocol.message import decode_records
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.files import atomic_write
from gantry_broker.store.sealed import seal
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig
from gantry_broker.testing import SETTINGS, broker

from benchmarks.rig import gantry, rocketmq
from benchmarks.rig.driver import Driver, driver
from benchmarks.rig.target import Target
from tests.migration.scene import PATIENCE, put
from tests.support.present import present

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 4_000}
COUNT = 3_000
MANIFEST = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "demo"},
    "spec": {
        "brokerClusterName": "demo",
        "brokerGroups": [{"name": "a", "brokerName": "demo-a", "members": 1}],
        "broker": SMALL,
    },
}
TIMER_S = 45
"""Seconds until timer messages are due: RocketMQ is up by then."""


def fill(clients: Driver, target: Target) -> None:
    """What an application leaves behind."""
    for topic in ("Orders", "Later", "Timed", "Paid", "Gone", "Again"):
        clients.mqadmin("updateTopic", "-c", target.cluster, "-t", topic, "-r", "4", "-w", "4")
    put(clients, topic="Orders", count=COUNT, size=1000, run="run", threads=2, keys="k", tags="A,B",
                properties=True)  # fmt: skip
    # A consumer that ends commits in one direction only, and a busy machine may lose that. It also commits every five
    # seconds from the tenth on.
    clients.run("consume", topic="Orders", group="billing", run="run", count=COUNT, settle_ms=16_000)
    put(clients, topic="Orders", first=COUNT, count=100, size=100, run="run")
    for topic in ("Gone", "Again"):
        put(clients, topic=topic, count=20, size=100, run="run")
        clients.mqadmin("deleteTopic", "-c", target.cluster, "-t", topic)
    clients.mqadmin("updateTopic", "-c", target.cluster, "-t", "Again", "-r", "4", "-w", "4")
    put(clients, topic="Again", first=100, count=12, size=100, run="run")
    # Level 5 is a minute: RocketMQ delivers them.
    put(clients, topic="Later", count=9, size=100, run="run", delay_level=5)
    put(clients, topic="Timed", count=7, size=100, run="run", deliver_in_ms=TIMER_S * 1000)
    clients.run("transactions", topic="Paid", group="payers", run="run", count=4, plan="commit,unknown", stay_s=0)


def holds(clients: Driver, target: Target, server: str) -> None:
    """RocketMQ has all of it."""
    got = clients.run("consume", topic="Orders", group="all", run="run", count=COUNT + 100, keys="k", settle_ms=500)
    assert (got.summary["unique"], got.summary["strangers"], got.summary["repeated"]) == (COUNT + 100, 0, 0)
    again = clients.run("consume", topic="Orders", group="billing", run="run", count=100, settle_ms=1000)
    assert again.summary["received"] == 100, "billing goes on behind what it had committed"
    found = clients.run("query", topic="Orders", key="k17")
    assert [m["n"] for m in found.of("found")[0]["messages"]] == [17]
    topics = clients.mqadmin("topicList")
    assert "Orders" in topics
    assert "GANTRY" not in topics, topics
    assert "Gone" not in topics, topics
    seen = clients.run("consume", topic="Again", group="fresh", run="run", count=12, each=True, settle_ms=1000)
    assert {line["n"] for line in seen.of("message")} == set(range(100, 112)), "what was deleted stays away"
    later = clients.run("consume", topic="Later", group="late", run="run", count=9, timeout_s=100, settle_ms=1500)
    assert (later.summary["unique"], later.summary["repeated"]) == (9, 0)
    if server == "server55":
        timed = clients.run("consume", topic="Timed", group="timed", run="run", count=7, timeout_s=100, settle_ms=1500)
        assert (timed.summary["unique"], timed.summary["repeated"]) == (7, 0)
    checked = clients.start(
        "transactions", topic="Paid", group="payers", run="run", count=1, plan="commit,unknown-commit", stay_s=50
    )
    paid = clients.run("consume", topic="Paid", group="paid", run="run", count=4, settle_ms=500, timeout_s=60)
    # The producer sends number 0 once more, and tells the broker of itself every 30 s: so it knows whom to ask.
    assert paid.summary["unique"] == 4, "half messages are checked"
    checked.finish(90)
    # The queues go on: new messages get the next numbers, and all of them are read.
    put(clients, topic="Orders", first=COUNT + 100, count=50, size=100, run="run")
    more = clients.run("consume", topic="Orders", group="billing", run="run", count=50, settle_ms=1000)
    assert (more.summary["unique"], more.summary["repeated"]) == (50, 0)


def export(source: str, to: Path, manifest: Path) -> dict[str, Any]:
    words = ["export", "--from", source, "--to", str(to), "--file", str(manifest), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "gantry_operator.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["a"])


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("server", "client", "running"), [("server49", "49", False), ("server55", "55", True)])
def test_rocketmq_opens_what_gantry_wrote(
    java_side: Path, tmp_path: Path, server: str, client: str, running: bool
) -> None:
    out, manifest = tmp_path / "out", tmp_path / "cluster.yaml"
    manifest.write_text(json.dumps(MANIFEST))
    with gantry.single(tmp_path / "gantry", SMALL | {"transactionTimeOut": 600_000}) as ours:
        with driver(ours, client, "JSON", tmp_path) as clients:
            fill(clients, ours)
        if running:
            said = export(f"http://{ours.http}", out, manifest)
    if not running:
        said = export(str(tmp_path / "gantry" / "demo-a-0"), out, manifest)
    assert (said["delayed"], said["timers"]) == (9, 7), said
    # What RocketMQ makes of it is another question.
    offsets = fastjson.loads((out / "a" / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert sum(offsets["Orders@billing"].values()) == COUNT, offsets
    store = tmp_path / "rocketmq" / "store"
    store.parent.mkdir()
    (out / "a").rename(store)
    conf = dict(line.split("=", 1) for line in (store / CONF).read_text().splitlines())
    # Checks without a producer count, too.
    soon = {"transactionTimeOut": "1000", "transactionCheckInterval": "2000", "transactionCheckMax": "10000"}
    with (
        rocketmq.rocketmq(
            tmp_path / "rocketmq", PATIENCE | conf | soon, server=server, heap="512m", direct="512m"
        ) as apache,
        driver(apache, client, "JSON", tmp_path) as clients,
    ):
        holds(clients, apache, server)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def opened(folder: Path) -> MessageStore:
    """As any reader of RocketMQ's format opens it: without a file of ours."""
    store = MessageStore.open(StoreConfig(path=folder, settings=BrokerSettings.model_validate(SETTINGS)))
    store.indexer.confirm(store.log.end)
    return store


COPY = """
import pathlib, sys
from gantry_broker.broker.migration.exporting import copy_files
copy_files(*map(pathlib.Path, sys.argv[1:]))
"""


async def test_an_export_has_rocketmqs_files_only_and_what_waits(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    soon = time.time_ns() // 1_000_000 + 3_600_000
    async with broker(data_dir=data) as mq:
        async with Admin(mq.name_servers) as admin, Producer(mq.name_servers) as producer:
            for topic in ("T", "Gone", "Again"):
                await admin.create_topic(topic, queues=2)
                for number in range(6):
                    await producer.send(Message(topic, b"%d" % number, keys=f"k{number}"))
            for topic in ("Gone", "Again"):
                await admin.delete_topic(topic)
            await admin.create_topic("Again", queues=2)
            await producer.send(Message("Again", b"new"))
            for number in range(3):
                await producer.send(
                    Message("T", b"timed %d" % number, properties={"TIMER_DELIVER_MS": str(soon + number * 70_000)})
                )
            await producer.send(Message("T", b"delayed", delay_level=18))
            queue = (await admin.readable_queues("T"))[0]
            await admin.set_offset("billing", queue, 2)
            await admin.create_group(SubscriptionGroup("pops"))
            await admin.set_request_mode(RequestMode("T", "pops", POP, 2))
        # The lock of a store is another process's.
        words = [sys.executable, "-c", COPY, str(data), str(tmp_path / "other")]
        said = await asyncio.to_thread(lambda: subprocess.run(words, capture_output=True, text=True, check=False))
        assert "is in use by another process" in said.stderr
    before = {name: (data / name).read_bytes() for name in files(data)}
    copy_files(data, out)
    settings = BrokerSettings.model_validate(SETTINGS)
    found = await asyncio.to_thread(convert, out, settings, cluster="test", broker="test")
    assert {name: (data / name).read_bytes() for name in files(data)} == before, "the original is as it was"
    assert (found.timers, found.delayed) == (3, 1)
    config = {path.name for path in (out / "config").iterdir()}
    assert config == {
        "topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "messageRequestMode.json",
        "timercheck",
    }  # fmt: skip
    assert present(snapshots.load(out / "config")).tables.modes == {"T@pops": (POP, 2)}
    assert not {"abort", "lock"} & files(out)
    topics = json.loads((out / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {"T", "Again"} <= set(topics)
    assert not {"Gone", CONTROL_TOPIC, POP_TOPIC} & set(topics)
    assert not {"Gone", CONTROL_TOPIC, POP_TOPIC} & {path.name for path in (out / "consumequeue").iterdir()}
    offsets = fastjson.loads((out / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets["T@billing"] == {str(queue.queue_id): 2}
    first = int.from_bytes((out / "config" / "timercheck").read_bytes()[16:24], "big")
    store = opened(out)
    try:
        assert sum(store.reader.max_offset("T", number) for number in range(2)) == 6
        waits = store.reader.get("rmq_sys_wheel_timer", 0, first, 10, 1 << 20)
        assert [record.body for record in decode_records(waits.data)] == [b"timed 0", b"timed 1", b"timed 2"]
        bodies = []
        for number in range(2):
            at = 0
            while (got := store.reader.get("Again", number, at, 10, 1 << 20)).next_offset > at and at < got.max_offset:
                bodies += [record.body for record in decode_records(got.data)] if got.data else []
                at = got.next_offset
        assert bodies == [b"new"], "what was deleted stays away"
    finally:
        store.close(clean=False)
    with pytest.raises(MigrationError, match="is not empty"):
        copy_files(data, out)


def test_a_copy_of_a_rocketmq_that_leads_on_is_not_exported(tmp_path: Path) -> None:
    """It has no topics and offsets yet."""
    store = tmp_path / "store"
    for folder in ("commitlog", "config"):
        (store / folder).mkdir(parents=True)
    (store / "commitlog" / "0".zfill(20)).write_bytes(b"")
    atomic_write(store / MARK, seal(b'{"state": "following"}'), durable=False)
    with pytest.raises(MigrationError, match="a copy of a RocketMQ that leads on"):
        copy_files(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_a_log_whose_beginning_has_expired_keeps_its_offsets_and_tables(tmp_path: Path) -> None:
    data, copy, out, segment = tmp_path / "data", tmp_path / "copy", tmp_path / "out", 1 << 20
    rng = random.Random(1)  # Zeros would be compressed to nothing.
    async with (
        broker(data_dir=data, mappedFileSizeCommitLog=segment) as mq,
        Admin(mq.name_servers) as admin,
        Producer(mq.name_servers) as producer,
    ):
        await admin.create_topic("Early", queues=1)
        await producer.send(Message("Early", b"first"))
        await admin.create_topic("T", queues=1)
        queue = (await admin.readable_queues("T"))[0]
        for number in range(60):
            await producer.send(Message("T", b"%d " % number + rng.randbytes(50_000)))
        await admin.set_offset("billing", queue, 55)

        # Retention removes a segment once a later one has all tables.
        def written() -> bool:
            later = [path for path in (data / "commitlog").iterdir() if int(path.name) >= segment]
            return any(b'"topicName":"Early"' in path.read_bytes() for path in later)

        async with asyncio.timeout(20):
            while not await asyncio.to_thread(written):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)
    copy_files(data, copy)
    store = opened(copy)
    log = LogFiles(out, segment, segment)
    while data_of := store.reader.read_bytes(log.end, 300_000):
        log.write(data_of)
    log.close()
    first = store.reader.get("T", 0, 0, 1, 1)
    assert first.count == 1
    store.close(clean=False)
    found = await asyncio.to_thread(
        convert, out, BrokerSettings.model_validate(SETTINGS), cluster="test", broker="test"
    )
    assert (found.start, found.end) == (segment, log.end)
    topics = json.loads((out / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {"T", "Early"} <= set(topics)
    offsets = fastjson.loads((out / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets["T@billing"] == {"0": 55}
    store = opened(out)
    assert (store.reader.max_offset("T", 0), store.reader.max_offset("Early", 0)) == (60, 1)
    assert 0 < store.reader.min_offset("T", 0) < 40
    assert next(iter(decode_records(store.reader.get("T", 0, 59, 1, 1).data))).body.startswith(b"59 ")
    store.close(clean=False)
