"""A restore, and two sites that exchange their parts, while the object store fails by seed: no record is lost."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.archive import archiver
from gantry_broker.archive.errors import ArchiveError
from gantry_broker.broker import following, restoring
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.broker.restoring import restore_first
from gantry_broker.config import ArchiveConfig, ArchivePlace, RestoreConfig
from gantry_broker.contracts.models import SiteRequest, TakeAnswer, TakeRequest
from gantry_broker.contracts.sites import first_epoch
from gantry_broker.store.types import Put

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.archive.test_broker import config, lead, until
from tests.archive.test_sites import Member, activate, archived, followed, seal_and_close

pytestmark = pytest.mark.timeout(300)
SEEDS = int(os.environ.get("ARCHIVE_HISTORIES", "200")) // 100
OF_READERS = (429, 500, 503, "cut", "slow", "lost", "old", "old", "old list", "old list")
OF_WRITERS = ("torn", "lie", 403)
HOST = b"\x7f\0\0\1\0\0\0\1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon: the tests are about what is tried, not about how long one waits."""
    monkeypatch.setattr(restoring, "AGAIN_S", 0.05)
    monkeypatch.setattr(following, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(following, "LOOK_S", 0.1)
    monkeypatch.setattr(archiver, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(archiver, "LOOK_S", 0.1)
    for module in (archiver, following):
        monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.5)


@asynccontextmanager
async def faulty(server: S3Server, rng: random.Random, *kinds: str | int) -> AsyncIterator[FaultyProxy]:
    """Run a proxy that draws a fault for some of the requests."""
    proxy = FaultyProxy(server.port)
    proxy.lag, proxy.delay_s = rng.choice([1, 3, 20]), 0.05
    share = rng.choice([0.05, 0.15])
    proxy.draw = lambda: rng.choice(kinds) if rng.random() < share else "pass"
    proxy.plan([rng.choice(kinds)])  # One at least.
    async with proxy.running():
        yield proxy
        assert sum(proxy.done.values()) > proxy.done["pass"], "nothing has failed"


def place(server: S3Server, folder: Path, name: str, port: int) -> ArchivePlace:
    return ArchivePlace(
        url=server.bucket(name), endpoint=f"http://127.0.0.1:{port}", credentials=server.credentials(folder / "keys")
    )


def put(process: BrokerProcess, number: int, size: int = 20) -> None:
    body = b"%d " % number + random.Random(number).randbytes(size)
    process.broker.writer.append([Put("Orders", 0, 0, 0, process.broker.clock.unix_ms(), HOST, body, b"")])
    process.broker.writer.appended(None)


def log_of(process: BrokerProcess) -> bytes:
    log = process.store.log
    return b"".join(piece for _, piece in log.chunks(log.start, log.end))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_restore_comes_to_its_end(server: S3Server, tmp_path: Path, seed: int) -> None:
    archive = place(server, tmp_path, f"restored-{seed}", server.port)
    own = ArchiveConfig(**archive.model_dump(exclude_defaults=True), uid="u-1", interval_s=1)
    first = BrokerProcess(config(tmp_path, "shop", archive=own))
    async with first:
        await lead(first)
        for number in range(200):
            put(first, number, 20_000)
        await archived(first)
        for number in range(200, 210):
            put(first, number)
        await archived(first)
        wanted = log_of(first)
    async with faulty(server, random.Random(seed), *OF_READERS) as proxy:
        source = place(server, tmp_path, f"restored-{seed}", proxy.port)
        fields = source.model_dump(exclude_defaults=True)
        copy = config(tmp_path, "copy", restore=RestoreConfig(**fields, group="a", offset=len(wanted)))
        await restore_first(copy)
    second = BrokerProcess(copy)
    async with second:
        assert log_of(second) == wanted


def site(server: S3Server, folder: Path, name: str, where: ArchivePlace, *, follows: bool = False) -> Member:
    archive = ArchiveConfig(**where.model_dump(exclude_defaults=True), uid=f"u-{name}", interval_s=1)
    return Member(config(folder, name, archive=archive, follow=where if follows else None))


async def taken(process: BrokerProcess, token: str) -> TakeAnswer:
    """As the control plane does: what fails is asked again."""
    for _ in range(100):
        with contextlib.suppress(ArchiveError):
            return await process.broker.sites.take(TakeRequest(token=token))
    raise AssertionError("the archive is not taken over")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_two_sites_exchange_their_parts(server: S3Server, tmp_path: Path, seed: int) -> None:
    async with faulty(server, random.Random(seed), *OF_READERS, *OF_WRITERS) as proxy:
        where = place(server, tmp_path, f"sites-{seed}", proxy.port)
        one, two = site(server, tmp_path, "one", where), site(server, tmp_path, "two", where, follows=True)
        async with one.life() as first:
            await lead(first)
            for number in range(40):
                put(first, number)
            await archived(first)
            async with two.life() as second:
                for number in range(40, 60):
                    put(first, number)
                await until(lambda: first.store.state.confirmed == first.store.log.end)
                end = await seal_and_close(first, 1, "right")
                assert (await taken(second, "right")).archived_end == end
                await followed(second, end)
                assert log_of(second) == log_of(first)
                await activate(two, 2, end)
            first.broker.sites.put(SiteRequest(role="Standby", generation=2))
        async with two.life() as second:
            await lead(second, epoch=first_epoch(second.store.epoch_cache.last_epoch, "p-2"))
            for number in range(60, 80):
                put(second, number)
            await archived(second)
            async with one.life() as first:
                await followed(first, second.store.log.end)
                assert log_of(first) == log_of(second)
                assert first.store.reader.max_offset("Orders", 0) == 80
