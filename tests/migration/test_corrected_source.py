"""The manifest of a cluster that follows a source names other addresses or keys: they count at the next try."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration import ha, member
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.following import Follower
from gantry_broker.broker.migration.guarding import Guarding
from gantry_broker.broker.migration.member import Migration, mark_of
from gantry_broker.broker.migration.source import Look
from gantry_broker.config import BrokerConfig
from gantry_operator.plan.process_config import restarts, text_of
from gantry_operator.platforms.local.folder import ClusterFolder

from tests.migration import test_broken_source as broken
from tests.migration.test_broken_source import World, until, whole
from tests.migration.test_following import ASYNC, SEGMENT, follow, master_of, message, opened, written
from tests.migration.test_plan import cluster, configs

WRONG, OURS, SAME, OTHER = (f"127.0.0.1:{number}" for number in range(1, 5))

pytestmark = pytest.mark.usefixtures("quick")
quick = broken.quick


class Sources:
    """What answers at each address of a NameServer, and how often each was asked for its tables."""

    def __init__(self) -> None:
        self.at: dict[str, World] = {}
        self.tables: dict[str, int] = {}
        self.secret = ""


@pytest.fixture
async def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sources]:
    made = Sources()

    class Stub:
        def __init__(self, servers: list[str], name: str, **more: Any) -> None:
            self.server, self.keys = servers[0], more["credentials"]

        async def __aenter__(self) -> Stub:
            return self

        async def __aexit__(self, *exc: object) -> None: ...

        @property
        def world(self) -> World:
            if self.server not in made.at:
                raise MigrationError(f"{self.server} does not answer")
            if made.secret and (self.keys is None or self.keys.secret_key != made.secret):
                raise MigrationError("the signature is wrong")
            return made.at[self.server]

        async def look(self) -> Look:
            return self.world.look()

        async def slave_ends(self, master: str) -> tuple[int, dict[str, int | None]]:
            return self.world.store.log.end, {}

        async def tables(self, address: str) -> Tables:
            made.tables[self.server] = made.tables.get(self.server, 0) + 1
            return Tables()

        async def register(self, look: Look, tables: Tables, address: str) -> None: ...

        async def timers_delivered_ms(self, address: str) -> None:
            return None

        async def first_offsets(self, address: str, topics: Any) -> dict[tuple[str, int], int]:
            return {}

    monkeypatch.setattr(member, "Source", Stub)
    ours, other = written(tmp_path / "ours", 1), written(tmp_path / "other", 2, 900)
    async with master_of(ours) as master, master_of(other) as their_master:
        made.at[OURS] = made.at[SAME] = World(ours, master)
        made.at[OTHER] = World(other, their_master)
        yield made
    ours.close()
    other.close()


class Manifest:
    """The config file of the member."""

    def __init__(self, base: Path) -> None:
        self.file, self.config = base / "broker.json", broken.config(base / "copy")
        self.name(WRONG)

    def name(self, server: str, **more: Any) -> None:
        assert self.config.migrate is not None
        update = {"name_servers": [server], **more}
        migrate = self.config.migrate.model_copy(update=update)
        self.config = self.config.model_copy(update={"migrate": migrate, "source_name_servers": [server]})
        self.file.write_text(text_of(self.config))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Migration]:
        config = BrokerConfig.load(self.file)
        assert config.migrate is not None
        migration = Migration(config, config.migrate, Guarding(config, self.file))
        task = asyncio.create_task(migration.run())
        try:
            yield migration
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(tmp_path)


def says(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: text in status["problem"]


async def test_an_address_that_was_wrong_is_corrected_without_a_restart(manifest: Manifest, sources: Sources) -> None:
    async with manifest.running() as migration:
        await until(migration, says(f"{WRONG} does not answer"))
        manifest.name(OURS)
        await until(migration, whole(sources.at[OURS]))
        assert migration._guarding.of(BrokerConfig.load(manifest.file)).source_name_servers == [OURS]


async def test_a_key_that_was_wrong_is_corrected_without_a_restart(
    manifest: Manifest, sources: Sources, tmp_path: Path
) -> None:
    sources.secret = "right-secret"
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "accessKey").write_text("rootuser")
    (folder / "secretKey").write_bytes(b"\xff\xfe wrong")
    manifest.name(OURS)
    async with manifest.running() as migration:
        await until(migration, says("the signature is wrong"))
        manifest.name(OURS, credentials=folder)
        await until(migration, says("accessKey and secretKey cannot be used"))
        (folder / "secretKey").write_text("right-secret")
        await until(migration, whole(sources.at[OURS]))


async def test_authorities_that_are_missing_are_said_and_the_member_goes_on(
    manifest: Manifest, sources: Sources, tmp_path: Path
) -> None:
    manifest.name(OURS, ca_file=tmp_path / "ca.crt")
    async with manifest.running() as migration:
        await until(migration, whole(sources.at[OURS]))


async def test_other_nameservers_of_the_same_source_are_followed_on(manifest: Manifest, sources: Sources) -> None:
    manifest.name(OURS)
    source = sources.at[OURS]
    async with manifest.running() as migration:
        await until(migration, whole(source))
        manifest.name(SAME)
        await until(migration, lambda _: (mark_of(manifest.config.data_dir) or {}).get("nameServers") == [SAME])
        del sources.at[OURS]
        source.store.appender.put([message(b"x" * 900)], 9_000)
        source.store.indexer.confirm(source.store.log.end)
        await until(migration, whole(source))
        await until(migration, lambda status: status["connected"] and not status["problem"])
        assert sources.tables[SAME] >= 1


def emptied(other: World, path: Path) -> None:
    other.store.close()
    other.become(written(path / "new", 2, 20))


def of_another_cluster(other: World, path: Path) -> None:
    other.cluster = "other"


def of_other_segments(other: World, path: Path) -> None:
    other.settings["mappedFileSizeCommitLog"] = str(2 * SEGMENT)


def of_other_bytes(other: World, path: Path) -> None:
    """Same names, and a longer log."""


@pytest.mark.parametrize("change", [of_other_bytes, emptied, of_another_cluster, of_other_segments])
async def test_another_source_is_refused_and_not_mixed_into_the_copy(
    manifest: Manifest, sources: Sources, tmp_path: Path, change: Callable[[World, Path], None]
) -> None:
    """The copy stays what it is, and goes on when the manifest names its source again: also after a restart."""
    change(sources.at[OTHER], tmp_path)
    source = sources.at[OURS]
    manifest.name(OURS)
    async with manifest.running() as migration:
        await until(migration, whole(source))
        await until(migration, lambda status: status["tablesAtMs"] is not None)
        manifest.name(OTHER)
        status = await until(migration, says(f"{OTHER}: another source than the one that was copied"))
        assert (status["state"], status["connected"]) == ("following", False)
        assert (await migration._finish_page(b'{"end": 100}'))[0] == 409
        assert (await migration._carry_page(b'{"on": true}'))[0] == 409
    async with manifest.running() as migration:
        await until(migration, says(f"{OTHER}: another source than the one that was copied"))
        assert OTHER not in sources.tables
        manifest.name(OURS)
        source.store.appender.put([message(b"x" * 900)], 9_000)
        source.store.indexer.confirm(source.store.log.end)
        await until(migration, whole(source))
    copy = opened(manifest.config.data_dir)
    assert copy.log.read_raw(0, 1 << 30) == source.store.log.read_raw(0, 1 << 30)
    copy.close()


async def test_where_nothing_has_arrived_another_source_is_taken(manifest: Manifest, sources: Sources) -> None:
    """Who wrote the address of another cluster may correct it, as long as that has given no byte."""
    wrong = sources.at[OTHER]
    wrong.cluster, wrong.master.port = "wrong", 1
    wrong.settings["mappedFileSizeCommitLog"] = str(2 * SEGMENT)
    manifest.name(OTHER)
    async with manifest.running() as migration:
        await until(migration, says("HA port 127.0.0.1:1 cannot be reached"))
        manifest.name(OURS)
        await until(migration, whole(sources.at[OURS]))
        assert (mark_of(manifest.config.data_dir) or {})["cluster"] == "demo"


async def test_a_cutover_goes_on_with_the_addresses_with_which_it_began(manifest: Manifest, sources: Sources) -> None:
    manifest.name(OURS)
    async with manifest.running() as migration:
        await until(migration, lambda status: status["connected"] and status["tablesAtMs"] is not None)
        migration._carries = True
        manifest.name(WRONG)
        await asyncio.sleep(0.2)
        assert migration.status()["connected"]
        migration._carries = False
        await until(migration, says(f"{WRONG} does not answer"))


async def test_logs_that_end_with_the_same_empty_rest_of_a_segment_are_two_logs(tmp_path: Path) -> None:
    """The last bytes of both are zeros: records before them are compared."""

    def filled(name: str, letter: bytes) -> Any:
        store = opened(tmp_path / name)
        for _ in range(4):  # Three messages fill a segment but for its rest.
            store.appender.put([message(letter * 20_000)], 1_000)
        store.indexer.confirm(store.log.end)
        return store

    ours, other = filled("ours", b"a"), filled("other", b"b")
    copy = opened(tmp_path / "copy")
    copy.appender.append_raw(0, ours.log.read_raw(0, SEGMENT))
    copy.indexer.confirm(copy.log.end)
    assert copy.log.end == SEGMENT
    assert not any(copy.reader.read_bytes(SEGMENT - ha.OVERLAP, ha.OVERLAP))
    async with master_of(other) as master:
        with pytest.raises(SourceBroken, match="differs from what it sent"):
            await Follower(copy).follow("127.0.0.1", master.port, lambda: ASYNC)
    async with master_of(ours) as master:
        await follow(copy, master, ASYNC, lambda: copy.log.end == ours.log.end)
    for store in (ours, other, copy):
        store.close()


def test_other_addresses_of_the_source_restart_no_member(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    made = [configs(cluster(bootstrap={"fromRocketMQ": {"nameServers": [server]}}), folder) for server in (WRONG, OURS)]
    for name in ("shop-a-0", "shop-a-1"):
        before, after = (BrokerConfig.model_validate(found[name]) for found in made)
        assert before != after
        assert restarts(before) == restarts(after)
