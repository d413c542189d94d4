"""Clusters that begin with the archive of another one: what was in the middle of something goes on there."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gantry_broker.archive.opening import open_archive
from gantry_broker.broker.restoring import Progress
from gantry_broker.broker.restoring import fill as restore_fill
from gantry_broker.client import Consumer, FromWhere, Message, ReceivedMessage, SimpleConsumer
from gantry_broker.client.transaction_state import TransactionState
from gantry_broker.client.transactions import TransactionProducer
from gantry_broker.config import ArchivePlace, BrokerConfig, RestoreConfig
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.local.cluster import Cluster, running, take_down
from tests.support.free_ports import free_port

pytestmark = pytest.mark.timeout(300)
COMMITTED, POPPED = 40, 3
COPIES = ("one", "two") if os.environ.get("LOCAL") == "full" else ("one",)


def made(base: Path, server: S3Server, name: str, **spec: object) -> Cluster:
    base.mkdir()
    cluster = Cluster(
        base, name, nameServers={"replicas": 1},
        brokerGroups=[{"name": "a", "members": 1}, {"name": "b", "members": 1}], **spec,
    )  # fmt: skip
    secrets = base.parent / "config" / "gantry" / "secrets" / "key"
    secrets.mkdir(parents=True, exist_ok=True)
    (secrets / "encryptionKey").write_text(base64.b64encode(bytes(range(32))).decode())
    cluster.environment |= {
        "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "XDG_CONFIG_HOME": str(base.parent / "config"),
    }  # fmt: skip
    return cluster


async def begin_things(servers: str) -> None:
    """Messages, a group's progress, messages in flight, a delayed one, and a transaction without a decision."""

    async def nothing(message: Message, transaction: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async def unknown(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(servers, "senders", unknown) as producer:
        for number in range(100):
            await producer.send("Orders", b"order %d" % number)
        for number in range(POPPED):
            await producer.send("Jobs", b"job %d" % number)
        await producer.send(Message("Later", b"in a moment", deliver_at_ms=time.time_ns() // 1_000_000 + 12_000))
        await producer.send_in_transaction(Message("Paid", b"half"), nothing)
    read: list[bytes] = []
    enough = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        read.append(message.body)
        if len(read) >= COMMITTED:
            enough.set()

    async with Consumer(servers, "billing", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("Orders", handle)
        async with asyncio.timeout(30):
            await enough.wait()
    async with SimpleConsumer(servers, "workers", from_where=FromWhere.FIRST, invisible_s=20) as popping:
        await popping.subscribe("Jobs")
        got = 0
        async with asyncio.timeout(30):
            while got < POPPED:
                got += len(await popping.receive(POPPED))


async def bodies(servers: str, topic: str, group: str, count: int, timeout_s: float) -> list[bytes]:
    found: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        found.append(message.body)
        if len(set(found)) >= count:
            done.set()

    async with Consumer(servers, group, from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe(topic, handle)
        async with asyncio.timeout(timeout_s):
            await done.wait()
    return found


async def what_goes_on(servers: str) -> None:
    """In a restored cluster: each thing that was begun comes to its end."""
    orders = await bodies(servers, "Orders", "auditors", 100, 30)
    assert set(orders) == {b"order %d" % n for n in range(100)}
    rest = await bodies(servers, "Orders", "billing", 100 - 2 * COMMITTED, 30)
    assert len(set(rest)) < 100, "the group goes on where it was"
    assert await bodies(servers, "Later", "waiting", 1, 60) == [b"in a moment"]
    jobs: set[bytes] = set()
    async with SimpleConsumer(servers, "workers", from_where=FromWhere.FIRST, invisible_s=20) as popping:
        await popping.subscribe("Jobs")
        async with asyncio.timeout(60):
            while len(jobs) < POPPED:
                for message in await popping.receive(POPPED):
                    jobs.add(message.body)
                    await popping.ack(message)
    decided = asyncio.Event()

    async def commit(message: ReceivedMessage) -> TransactionState:
        decided.set()
        return TransactionState.COMMIT

    async with TransactionProducer(servers, "senders", commit) as producer:
        for _ in range(8):  # Both brokers know the producer then, and ask it.
            await producer.send("Paid", b"other")
        await producer.session.send_heartbeats()
        async with asyncio.timeout(60):
            await decided.wait()
        assert set(await bodies(servers, "Paid", "payers", 2, 60)) == {b"half", b"other"}


async def test_restores_have_everything_that_was_begun(server: S3Server, tmp_path: Path) -> None:
    place = {
        "url": server.bucket("restored"), "endpoint": server.endpoint, "encryption": {"secretName": "key"},
    }  # fmt: skip
    quick = {"transactionCheckInterval": 3_000, "transactionTimeOut": 3_000}
    shop = made(tmp_path / "shop", server, "shop", archive=place | {"interval": "1s"}, broker=quick)
    copies = [
        made(tmp_path / name, server, name, bootstrap={"fromArchive": place | {"cluster": "shop"}}, broker=quick)
        for name in COPIES
    ]
    with running(shop):
        await begin_things(shop.name_servers)
        shop.until("all is archived", lambda: all(_archived(row) for row in shop.resource()["status"]["groups"]), 60)
    try:
        said = json.loads(copies[0].gantry("restore", str(copies[0].file), "--dry-run", "-o", "json").stdout)
        assert [row["group"] for row in said] == ["a", "b"]
        await asyncio.gather(*(asyncio.to_thread(c.up) for c in copies))
        await asyncio.gather(*(what_goes_on(c.name_servers) for c in copies))
    finally:
        for copy in copies:
            take_down(copy)


def _archived(row: dict[str, object]) -> bool:
    archive = row.get("archive") or {}
    assert isinstance(archive, dict)
    return archive.get("behindBytes") == 0 and bool(archive.get("offset"))


async def test_a_killed_restore_goes_on(server: S3Server, tmp_path: Path) -> None:
    """The process dies while it fetches; the next one fetches only the rest."""
    url = server.bucket("killed")
    keys = server.credentials(tmp_path / "keys")
    place = ArchivePlace(url=url, endpoint=server.endpoint, credentials=keys)
    end = fill(tmp_path / "source", place, parts=6)
    proxy = FaultyProxy(server.port)
    async with proxy.running():
        config = BrokerConfig.model_validate(
            {
                "cluster": "copy", "group": "a", "member": 0, "name": "copy-a-0", "data_dir": tmp_path / "copy",
                "listen_host": "127.0.0.1", "port": free_port(), "http_port": free_port(),
                "member_address": "127.0.0.1:1", "group_address": "127.0.0.1:1",
                "settings": {"mappedFileSizeCommitLog": 1 << 20},
                "restore": RestoreConfig(
                    url=url, endpoint=f"http://127.0.0.1:{proxy.port}", credentials=keys, group="a"
                ).model_dump(),
            }
        )  # fmt: skip
        file = tmp_path / "config.json"
        file.write_text(config.model_dump_json())
        mark = tmp_path / "copy" / "config" / "restoring.json"

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", "gantry_broker.broker", "--config", str(file)],
                stderr=subprocess.DEVNULL, env=os.environ.copy(),
            )  # fmt: skip

        def upto() -> int:
            try:
                return int(json.loads(mark.read_text())["upto"])
            except (OSError, ValueError):
                return 0

        assert config.restore is not None
        await asyncio.to_thread(restore_fill, config.restore, tmp_path / "probe", Progress())
        requests = proxy.done.total()
        proxy.plan(["pass"] * (requests - 3) + ["hang"] * 100)  # The last objects do not come.
        running = start()
        try:
            deadline = time.monotonic() + 60
            while not (proxy.done["hang"] and 2 * upto() > end):
                assert running.poll() is None
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
        begun = upto()
        assert 0 < begun < end, "it died in the middle"
        proxy.plan([])
        before = proxy.done.total()
        running = start()
        try:
            restored = tmp_path / "copy" / "config" / "restored.json"
            deadline = time.monotonic() + 60
            while not restored.exists():
                assert running.poll() is None
                assert upto() in (0, *range(begun, end + 1)), "it never falls behind what was there"
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            assert json.loads(restored.read_text())["end"] == end
            assert proxy.done.total() - before <= requests - 3, "it does not fetch what is there"
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
    store = MessageStore.open(StoreConfig(tmp_path / "copy", config.settings))
    source = MessageStore.open(StoreConfig(tmp_path / "source", config.settings))
    assert store.log.read_raw(0, 1 << 20) == source.log.read_raw(0, 1 << 20)
    assert store.log.end == end
    store.close()
    source.close()


def test_a_restore_takes_an_address_that_was_corrected(server: S3Server, tmp_path: Path) -> None:
    """At its next try: a change of `bootstrap` alone replaces no member."""
    url = server.bucket("corrected")
    keys = server.credentials(tmp_path / "keys")
    fill(tmp_path / "source", ArchivePlace(url=url, endpoint=server.endpoint, credentials=keys), parts=2)
    spec = {
        "nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}],
        "broker": {"mappedFileSizeCommitLog": 1 << 20},
    }  # fmt: skip
    archive = {"url": url, "cluster": "shop"}
    base = tmp_path / "copy"
    base.mkdir()
    wrong = archive | {"endpoint": f"http://127.0.0.1:{free_port()}"}
    cluster = Cluster(base, "copy", bootstrap={"fromArchive": wrong}, **spec)
    cluster.environment |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    try:
        words = ("up", str(cluster.file), "--dir", str(cluster.folder.root), "--detach", "--timeout", "4")
        said = cluster.gantry(*words, check=False)
        assert said.returncode != 0
        if "cannot restore from the archive" not in said.stderr:  # On a busy machine no member has tried by then.
            cluster.until("it says why", lambda: "cannot restore" in cluster.gantry(*words, check=False).stderr, 60)
        cluster.write(bootstrap={"fromArchive": archive | {"endpoint": server.endpoint}}, **spec)
        cluster.up()
        cluster.until("the records are there", lambda: cluster.master()["maxOffset"] > 2 << 20, 30)
    finally:
        take_down(cluster)


def fill(folder: Path, place: ArchivePlace, parts: int) -> int:
    """Archive a log in so many parts; return its end."""
    from gantry_broker.archive.archiver import Archiver
    from gantry_broker.archive.upload import Settings, View
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.types import Put

    store = MessageStore.open(StoreConfig(folder, BrokerSettings(mappedFileSizeCommitLog=1 << 20)))
    store.appender.begin_epoch(1, b'{"kind":"epoch"}', 1)
    settings = Settings(interval_ms=0, part=1 << 20)
    archiver = Archiver(
        open_archive(place), group="a", uid="u", cluster="shop", log_dir=folder / "commitlog", view=lambda: None,
        turn=lambda: True, settings=lambda: settings, delays=(1_000,),
    )  # fmt: skip
    for _ in range(parts):
        while True:
            store.appender.put([Put("T", 0, 0, 0, 1, b"\x7f\0\0\1\0\0\0\1", os.urandom(60_000), b"")], 1)
            if store.log.end % (1 << 20) > 900_000:
                break
        store.indexer.confirm(store.log.end)
        view = View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)
        while archiver._step(view, settings, True):
            pass
        store.appender.put([Put("T", 0, 0, 0, 1, b"\x7f\0\0\1\0\0\0\1", os.urandom(200_000), b"")], 1)
    store.indexer.confirm(store.log.end)
    view = View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)
    while archiver._step(view, settings, True):
        pass
    end = store.log.end
    store.close()
    return end
