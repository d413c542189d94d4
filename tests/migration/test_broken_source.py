"""A member follows a source that contradicts itself, or is killed while it follows: it stops for good, or goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration import ha, member
from gantry_broker.broker.migration.member import BROKEN, DONE, Migration, mark_of
from gantry_broker.broker.migration.source import Look, look_of
from gantry_broker.config import BrokerConfig, MigrateConfig
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore

from tests.migration.test_following import SEGMENT, Master, master_of, message, opened, written
from tests.support.free_ports import free_ports


class World:
    """What the source is now."""

    def __init__(self, store: MessageStore, master: Master) -> None:
        self.store, self.master = store, master
        self.cluster, self.settings = "demo", {"brokerPermission": "6"}
        self.starts_at = 0
        self.looks = 0
        self.slaves: dict[str, int | None] = {}

    def look(self) -> Look:
        self.looks += 1
        settings = {"haListenPort": str(self.master.port), "mappedFileSizeCommitLog": str(SEGMENT)} | self.settings
        runtime = {
            "commitLogMinOffset": str(self.starts_at), "commitLogMaxOffset": str(self.store.log.end),
            "brokerVersionDesc": "V4_9_7",
        }  # fmt: skip
        return look_of("broker-a", self.cluster, "127.0.0.1:1", settings, runtime, 0)

    def become(self, store: MessageStore) -> None:
        """Begin with another log, as a master whose disk was emptied."""
        self.store = self.master.store = store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"LOOK_S": 0.02, "ENDING_S": 0.01, "TABLES_S": 0.05}.items():
        monkeypatch.setattr(member, name, seconds)
    monkeypatch.setattr(ha, "pause_before", lambda promise: 0.02)


@contextlib.asynccontextmanager
async def world(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> AsyncIterator[World]:
    store = written(path, seed)
    async with master_of(store) as master:
        made = World(store, master)

        class Stub:
            def __init__(self, *args: Any, **more: Any) -> None: ...
            async def __aenter__(self) -> Stub:
                return self

            async def __aexit__(self, *exc: object) -> None: ...
            async def look(self) -> Look:
                return made.look()

            async def slave_ends(self, master: str) -> tuple[int, dict[str, int | None]]:
                return made.store.log.end, dict(made.slaves)

            async def tables(self, address: str) -> Tables:
                return Tables()

            async def timers_delivered_ms(self, address: str) -> None:
                return None

            async def first_offsets(self, address: str, topics: Any) -> dict[tuple[str, int], int]:
                return {}

        monkeypatch.setattr(member, "Source", Stub)
        try:
            yield made
        finally:
            made.store.close()


def config(path: Path) -> BrokerConfig:
    port, http = free_ports(2)
    return BrokerConfig(
        cluster="demo", group="broker-a", member=0, name="a-0", data_dir=path, port=port, http_port=http,
        listen_host="127.0.0.1", member_address=f"127.0.0.1:{port}", group_address=f"127.0.0.1:{port}",
        settings=BrokerSettings(mappedFileSizeCommitLog=SEGMENT, maxHashSlotNum=100, maxIndexNum=400),
        migrate=MigrateConfig(name_servers=["127.0.0.1:1"], broker="broker-a"),
    )  # fmt: skip


@contextlib.asynccontextmanager
async def running(made: BrokerConfig) -> AsyncIterator[tuple[Migration, asyncio.Task[None]]]:
    assert made.migrate is not None
    migration = Migration(made, made.migrate)
    task = asyncio.create_task(migration.run())
    try:
        yield migration, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(migration: Migration, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not wanted(status := migration.status()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return status


def found_below(path: Path, name: str) -> list[Path]:
    return list(path.rglob(name))


def whole(made: World) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status["flushed"] == made.store.log.end


def emptied(made: World, path: Path) -> None:
    made.become(written(path / "new", 2, 20))


def emptied_and_grown(made: World, path: Path) -> None:
    made.become(written(path / "new", 2, 900))


def expired(made: World, path: Path) -> None:
    made.become(written(path / "new", 2, 900))
    made.starts_at = made.store.log.end


def torn(made: World, path: Path) -> None:
    made.master.spoil = lambda at, data: struct.pack(">qi", at, len(data) + 4) + data
    made.store.appender.put([message(b"x" * 20_000)], 9_000)
    made.store.indexer.confirm(made.store.log.end)


def of_other_segments(made: World, path: Path) -> None:
    made.settings["mappedFileSizeCommitLog"] = str(2 * SEGMENT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (emptied, "it was emptied, or lost its end in a crash"),
        (emptied_and_grown, "differs from what it sent"),
        (expired, "has expired there"),
        (torn, "the source's offsets went ahead"),
        (of_other_segments, "'segmentSize': 131072"),
    ],
)
async def test_a_source_that_contradicts_itself_stops_it_for_good_and_nothing_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[World, Path], None], said: str
) -> None:
    made = config(tmp_path / "copy")
    async with world(tmp_path / "source", monkeypatch) as source:
        async with running(made) as (migration, _):
            await until(migration, whole(source))
        before = source.store
        change(source, tmp_path)
        for start in range(2):  # Also after a restart, and when the source seems to be well again.
            async with running(made) as (migration, task), httpx.AsyncClient() as client:
                status = await until(migration, lambda status: status["state"] == BROKEN)
                assert said in status["problem"]
                url = f"http://127.0.0.1:{made.http_port}"
                assert (await client.get(f"{url}/migration")).json()["state"] == BROKEN
                served = await client.get(f"{url}/v1/status")
                assert (served.status_code, served.json()["detail"][:21]) == (503, "the migration stopped")
                finish = await client.post(f"{url}/migration/finish", json={"end": 100})
                assert finish.status_code == 409
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", made.port)
                assert not task.done()
            assert (mark_of(made.data_dir) or {})["state"] == BROKEN
            if start == 0 and source.store is not before:
                source.store.close()
                source.become(before)
                source.starts_at = 0


@pytest.mark.parametrize("fault", ["topic", "start"])
async def test_a_beginning_that_cannot_be_stops_it_and_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async with world(tmp_path / "source", monkeypatch) as made:
        made.starts_at = SEGMENT if fault == "topic" else 7

        async def starts(self: Any, address: str, topics: Any) -> dict[tuple[str, int], int]:
            return {("../../evil", 0): 5} if fault == "topic" else {}

        monkeypatch.setattr(member.Source, "first_offsets", starts)
        async with running(config(tmp_path / "copy")) as (migration, task):
            status = await until(migration, lambda status: status["state"] == BROKEN)
            assert "cannot be continued" in status["problem"]
            assert not task.done()
    assert not found_below(tmp_path, "evil")


async def test_another_cluster_of_the_same_name_is_not_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config(tmp_path / "copy")
    async with world(tmp_path / "source", monkeypatch) as source:
        async with running(made) as (migration, _):
            await until(migration, whole(source))
        source.cluster = "other"
        async with running(made) as (migration, _):
            status = await until(migration, lambda status: status["state"] == BROKEN)
        assert "'cluster': 'other'" in status["problem"]


async def test_a_cluster_that_is_renamed_while_it_is_followed_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients know the cluster by its name, and so does the copy."""
    async with world(tmp_path / "source", monkeypatch) as source, running(config(tmp_path / "copy")) as (migration, _):
        await until(migration, whole(source))
        source.cluster = "other"
        status = await until(migration, lambda status: status["state"] == BROKEN)
        assert "is of cluster other now, and was of demo" in status["problem"]


async def test_a_connection_waits_for_slaves_that_followed_and_ends_with_those_that_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha, "SLAVES_S", 0.01)
    made = config(tmp_path / "copy")
    async with world(tmp_path / "source", monkeypatch) as source:
        source.settings["brokerRole"] = "SYNC_MASTER"
        end = source.store.log.end
        source.slaves = {"s": 5}
        async with running(made) as (migration, _):

            async def until_reports(wanted: str) -> None:
                status = await until(migration, lambda status: status["reports"] == wanted)
                if wanted == "away":
                    said = "own slaves do not follow"
                    status = await until(migration, lambda status: said in status["problem"])
                    assert not status["connected"]

            await until_reports("away")
            assert source.master.connections == 0
            source.slaves = {"s": end}
            await until_reports("neutral")
            await until(migration, whole(source))
            source.slaves = {"s": None}
            await until_reports("away")
            source.slaves = {}
            await until_reports("durable")
            # One that comes stands in for none until it has caught up.
            source.slaves = {"s": 5}
            await asyncio.sleep(0.1)
            await until_reports("durable")
            source.slaves = {"s": end}
            await until_reports("neutral")


@pytest.mark.parametrize("seed", range(4))
async def test_a_member_that_dies_and_links_that_break_lose_no_byte_up_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, made = random.Random(seed), config(tmp_path / "copy")
    async with world(tmp_path / "source", monkeypatch, seed) as source:
        plain, left = source.master.spoil, 0

        def breaks(at: int, data: bytes) -> bytes:
            nonlocal left
            left -= 1
            if left < 0:
                left = rng.randrange(2, 40)
                raise ConnectionError
            return plain(at, data)

        source.master.spoil = breaks
        for _ in range(4):
            end = source.store.log.start + rng.randrange(source.store.log.end)
            async with running(made) as (migration, _):
                await until(migration, lambda status, end=end: (status["end"] or 0) >= end)
            source.store.appender.put([message(rng.randbytes(500)) for _ in range(rng.randrange(1, 50))], 9_000)
            source.store.indexer.confirm(source.store.log.end)
        source.settings["brokerPermission"] = "0"
        async with running(made) as (migration, task):
            await until(migration, whole(source))
            status, _ = await migration._finish_page(b'{"end": %d}' % source.store.log.end)
            async with asyncio.timeout(20):
                await task
        assert status == 200
        assert (mark_of(made.data_dir) or {})["state"] == DONE
        copy = opened(made.data_dir)
        assert copy.log.read_raw(0, 1 << 30) == source.store.log.read_raw(0, 1 << 30)
        copy.close()
