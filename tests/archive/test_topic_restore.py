"""One topic of an archive comes back in a running cluster under another name: whole, in order, once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.upload import Settings, View
from gantry_broker.broker.metadata.tables import encode_change
from gantry_broker.client import Admin, BrokerError, Message, MessageQueue, Producer
from gantry_broker.client.pulling import PullStatus
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig
from gantry_broker.testing import broker
from gantry_operator.cli.app import app
from gantry_operator.migration import from_archive
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.migration.from_archive import Goal
from typer.testing import CliRunner

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.memory_objects import MemoryObjects
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.local.cluster import Cluster, running
from tests.local.test_restore import made

pytestmark = pytest.mark.timeout(180)
QUEUES = 3
COUNT = 1_000
SEGMENT = 65_536
HOST = b"\x7f\0\0\1\0\0\0\1"
Content = dict[tuple[str, int], list[tuple[Any, ...]]]


async def content(servers: str, topic: str) -> Content:
    """By broker and queue: what a consumer would see of each message."""
    found: Content = {}
    async with Admin(servers) as admin:
        for queue in sorted(await admin.readable_queues(topic)):
            rows, at, puller = [], 0, admin.puller()
            while (got := await puller.pull(queue, at, subscription(topic), suspend_ms=0)).status is PullStatus.FOUND:
                rows += [
                    (m.body, m.tags, m.keys, m.id, m.record.born_ms, m.properties.get("colour")) for m in got.messages
                ]
                at = got.next_offset
            found[queue.broker, queue.queue_id] = rows
    return found


async def send(servers: str, first: int, count: int) -> None:
    async with Producer(servers) as producer:
        for number in range(first, first + count):
            await producer.send(
                Message(
                    "Orders",
                    b"%d " % number + random.Random(number).randbytes(8_000),
                    tags=f"t{number % 3}",
                    keys=f"k{number}",
                    properties={"colour": f"c{number}"},
                )
            )


async def test_a_topic_comes_back_up_to_a_time_though_the_command_is_killed(server: S3Server, tmp_path: Path) -> None:
    url, keys = server.bucket("topic"), server.credentials(tmp_path / "keys")
    place = {"url": url, "endpoint": server.endpoint, "encryption": {"secretName": "key"}}
    shop = made(tmp_path / "shop", server, "shop", archive=place | {"interval": "1s"})
    key_file = tmp_path / "config" / "gantry" / "secrets" / "key" / "encryptionKey"
    proxy = FaultyProxy(server.port)
    with running(shop):
        async with Admin(shop.name_servers) as admin:
            await admin.create_topic("Orders", queues=QUEUES)
        await send(shop.name_servers, 0, COUNT)
        expected = await content(shop.name_servers, "Orders")
        assert sum(map(len, expected.values())) == COUNT
        await asyncio.sleep(0.01)
        moment = time.time_ns() // 1_000_000
        await asyncio.sleep(0.01)
        await send(shop.name_servers, COUNT, 50)
        shop.until("all is archived", lambda: all(_archived(row) for row in shop.resource()["status"]["groups"]), 60)
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment / 1000)) + f".{moment % 1000:03d}Z"
        words = ["--topic", "Orders", "--as", "Back", "--time", text, "--state", str(tmp_path / "state")]
        words += ["--dir", str(shop.folder.root), "-o", "json"]
        reached = [url, "--credentials", str(keys), "--key-file", str(key_file)]
        async with proxy.running():
            await killed_at(
                proxy, shop, [*reached, "--endpoint", f"http://127.0.0.1:{proxy.port}", *words], tmp_path / "said"
            )
        begun = await content(shop.name_servers, "Back")
        assert 0 < sum(map(len, begun.values())) < COUNT, "it died in the middle"
        done = await asyncio.to_thread(shop.gantry, "restore", *reached, "--endpoint", server.endpoint, *words)
        assert json.loads(done.stdout)["messages"] == COUNT
        assert await content(shop.name_servers, "Back") == expected
        assert not (tmp_path / "state" / "index").exists()
        place_of = ["--dir", str(shop.folder.root)]
        done = await asyncio.to_thread(shop.gantry, "restore", "--topic", "Orders", "--as", "All", *place_of)
        assert f"topic All: {COUNT + 50} messages" in done.stdout
        assert await content(shop.name_servers, "All") == await content(shop.name_servers, "Orders")
        words = ["restore", "--topic", "Orders", "--as", "Orders", *place_of]
        shown = await asyncio.to_thread(shop.gantry, *words, "--dry-run", "-o", "json")
        assert [(row["group"], row["queues"]) for row in json.loads(shown.stdout)] == [("a", QUEUES), ("b", QUEUES)]
        assert sum(row["messages"] for row in json.loads(shown.stdout)) == COUNT + 50
        refused = await asyncio.to_thread(shop.gantry, *words, check=False)
        assert "the cluster has a topic Orders already" in refused.stderr


async def killed_at(proxy: FaultyProxy, shop: Cluster, words: list[str], said: Path) -> None:
    """Run the command, let the object store hang once the first messages are there, and kill it."""
    log = said.open("w")
    proxy.always, proxy.delay_s = "slow", 0.1
    running = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "gantry_operator.cli", "restore", *words],
        env=shop.environment,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )
    try:
        deadline = time.monotonic() + 60
        async with Admin(shop.name_servers) as admin:
            while not await sent(admin, "Back"):
                assert running.poll() is None, f"it ended: {said}"
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            proxy.always = "hang"
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
        proxy.always = "pass"


async def sent(admin: Admin, topic: str) -> int:
    """Messages of a topic that may not be there yet."""
    if await admin.session.route(topic, fresh=True) is None:
        return 0
    return sum(end.max_offset for end in (await admin.topic_stats(topic)).values())


def _archived(row: dict[str, Any]) -> bool:
    archive = row.get("archive") or {}
    return archive.get("behindBytes") == 0 and bool(archive.get("offset"))


class Log:
    """A log of one group and its archive, as a broker would have made them."""

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        settings = BrokerSettings(mappedFileSizeCommitLog=segment, maxHashSlotNum=100, maxIndexNum=400)
        self.store = MessageStore.open(StoreConfig(folder / "m", settings))
        self.now = 1_700_000_000_000
        self.store.appender.begin_epoch(1, b'{"kind":"epoch","epoch":1}', self.now)
        self.archive = Archive(MemoryObjects(1))
        self.archive.claim("u", "shop", self.now)
        self.settings = Settings(0, None, 20_000)
        self.archiver = Archiver(
            self.archive, group="a", uid="u", cluster="shop", log_dir=folder / "m" / "commitlog", view=lambda: None,
            turn=lambda: True, settings=lambda: self.settings, delays=(1_000,),
        )  # fmt: skip

    def change(self, **parts: Any) -> None:
        self.append([Put(CONTROL_TOPIC, 0, 0, 0, self.now, HOST, encode_change({"at": self.now, **parts}), b"")])

    def topic(self, name: str, queues: int) -> None:
        self.change(topics=[TopicConfig(name, queues, queues, attributes={"message.type": "FIFO"}).to_json()])

    def put(self, topic: str, queue: int, count: int) -> None:
        self.append([Put(topic, queue, 0, 0, self.now, HOST, b"%d" % n + bytes(900), b"") for n in range(count)])

    def drop(self, topic: str) -> None:
        self.change(dropTopics=[topic], dropData=self.store.log.end)

    def append(self, puts: list[Put]) -> None:
        self.now += 1_000
        self.store.appender.put(puts, self.now)
        self.store.indexer.confirm(self.store.log.end)

    def upload(self) -> Archive:
        view = View(
            self.store.log.start, self.store.state.confirmed, self.store.log.segment_size, self.store.epoch_cache.epochs
        )
        while self.archiver._step(view, self.settings, True):
            pass
        return self.archive


async def restore(archive: Archive, servers: str, folder: Path, topic: str, time_ms: int | None = None) -> Any:
    """As the command does it."""
    goal = from_archive.begin(archive, Goal("memory", "u", topic, "New", time_ms), folder)
    topics = from_archive.open_topics(archive, goal, folder)
    async with Admin(servers) as admin:
        await from_archive.check_target(admin, goal, folder)
        source = from_archive.ArchivedQueues(from_archive.by_broker(topics, {"a": "test"}))
        copy = await from_archive.copy_topic(source, admin, goal, folder, lambda sent, waits: None)
        configs = (await admin.topic_config(next(iter((await admin.masters()).values())))).topics
        return from_archive.summary(copy)["messages"], configs["New"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_operator.migration.copying.SETTLE_S", 0.05)


async def test_queues_without_messages_and_attributes_come_back_too(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.topic("T", 6)
    log.put("T", 4, 150)  # Over several segments and objects.
    log.topic("T", 6)  # A leader writes all tables into each segment.
    log.put("T", 1, 3)
    async with broker() as target:
        count, config = await restore(log.upload(), target.name_servers, tmp_path / "r", "T")
        assert (count, config.read_queues, config.attributes) == (153, 6, {"message.type": "FIFO"})
        assert (await restore(log.archive, target.name_servers, tmp_path / "r", "T"))[0] == 153, "once more: nothing"
        found = await content(target.name_servers, "New")
        assert [len(found["test", queue]) for queue in range(6)] == [0, 3, 0, 0, 150, 0]
        assert [row[0].rstrip(b"\0") for row in found["test", 4]] == [b"%d" % n for n in range(150)]


async def test_what_was_deleted_comes_back_only_from_before(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.topic("T", 2)
    log.put("T", 0, 80)
    moment = log.now
    log.drop("T")
    log.put("Other", 0, 80)
    archive = log.upload()
    with pytest.raises(Refused, match="topic T was deleted before: write --time"):
        from_archive.open_topics(archive, Goal("", "", "T", "New", None, {"a": log.store.log.end}), tmp_path / "x")
    log.topic("T", 2)
    log.put("T", 0, 5)
    async with broker() as target:
        assert (await restore(log.upload(), target.name_servers, tmp_path / "new", "T"))[0] == 5
    async with broker() as target:
        assert (await restore(archive, target.name_servers, tmp_path / "old", "T", moment))[0] == 80


async def test_what_cannot_be_is_said_before_anything_is_made(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.topic("T", 2)
    log.put("T", 0, 3)
    archive = log.upload()
    async with broker() as target:
        with pytest.raises(Refused, match="the archive has no topic Missing"):
            await restore(archive, target.name_servers, tmp_path / "missing", "Missing")
        with pytest.raises(Refused, match="the archive has no topic T at that time"):
            await restore(archive, target.name_servers, tmp_path / "early", "T", 5)
        async with Admin(target.name_servers) as admin:
            assert await admin.session.route("New", fresh=True) is None
        await restore(archive, target.name_servers, tmp_path / "r", "T")
        with pytest.raises(Refused, match="has another restore: topic T of memory"):
            await restore(archive, target.name_servers, tmp_path / "r", "Other")
        with pytest.raises(Refused, match="the cluster has a topic New already"):
            await restore(archive, target.name_servers, tmp_path / "again", "T")
    async with broker(brokerPermission=4) as target:
        with pytest.raises(BrokerError, match="NO_PERMISSION"):
            await restore(archive, target.name_servers, tmp_path / "denied", "T")


async def test_a_broker_that_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_archive, "AGAIN_S", 0.05)
    log = Log(tmp_path)
    log.topic("T", 1)
    log.put("T", 0, 60)
    archive = log.upload()
    failed: list[int] = []
    pull = from_archive.ArchivedQueues.pull

    async def away(self: Any, queue: MessageQueue, offset: int, *more: Any, **options: Any) -> Any:
        if offset >= 32 and len(failed) < 2:
            failed.append(offset)
            raise BrokerError("a send", 2, "busy")
        return await pull(self, queue, offset, *more, **options)

    monkeypatch.setattr(from_archive.ArchivedQueues, "pull", away)
    async with broker() as target:
        assert (await restore(archive, target.name_servers, tmp_path / "r", "T"))[0] == 60
        assert len((await content(target.name_servers, "New"))["test", 0]) == 60
    assert failed == [32, 32]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topic", "T"], "--topic needs --as"),
        (["file.yaml", "--as", "N"], "are for --topic"),
        ([], "name a manifest with spec.bootstrap.fromArchive, or a topic"),
        (["file:///x", "--topic", "T", "--as", "N", "--time", "yesterday"], "is no time with a zone"),
        (["file:///x", "--topic", "SCHEDULE_TOPIC_XXXX", "--as", "N"], "is one of the brokers' own"),
        (["file:///x", "--topic", "T", "--as", "a b"], "contains illegal characters"),
        (["file:///x", "--topic", "T", "--as", "TBW102"], "a name of the brokers' own topics"),
    ],
)
def test_words_that_do_not_fit_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    options = ["--dir", str(tmp_path)] if "--topic" in words else []
    (tmp_path / "cluster.json").write_text("{}")
    result = CliRunner().invoke(app, ["restore", *words, *options])
    assert result.exit_code != 0
    assert said in str(result.exception) + result.output
