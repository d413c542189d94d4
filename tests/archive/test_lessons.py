"""What users of other systems lost by their archives, where no other module has it: a copy that hangs for ever, a
thread that ends silently, times in the wrong unit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from gantry_broker.archive.archiver import Archiver
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.objects import Location, Objects, ObjectStore, Patience
from gantry_broker.archive.upload import View
from gantry_operator.cli.app import app
from typer.testing import CliRunner

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.memory_objects import MemoryObjects
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.archive.test_broker import until
from tests.archive.test_topic_restore import Log


@contextlib.asynccontextmanager
async def archiving(log: Log, objects: Objects, folder: Path) -> AsyncIterator[Archiver]:
    """An archiver that looks at the log by itself, as in a broker."""

    def view() -> View:
        store = log.store
        return View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)

    archiver = Archiver(
        Archive(objects), group="a", uid="u", cluster="shop", log_dir=folder / "m" / "commitlog", view=view,
        turn=lambda: True, settings=lambda: log.settings, delays=(1_000,),
    )  # fmt: skip
    archiver.start()
    try:
        yield archiver
    finally:
        await archiver.close()


async def test_an_upload_that_hangs_is_said_and_made_up_for(server: S3Server, tmp_path: Path) -> None:
    log, proxy = Log(tmp_path), FaultyProxy(server.port)
    log.put("T", 0, 1)
    keys = server.credentials(tmp_path / "keys")
    async with proxy.running():
        place = Location(server.bucket("hangs"), f"http://127.0.0.1:{proxy.port}", keys)
        async with archiving(log, ObjectStore(place, Patience(1, 1)), tmp_path) as archiver:
            await until(lambda: archiver.report.end == log.store.log.end)
            proxy.always = "hang"
            log.put("T", 0, 50)
            await until(lambda: "cannot" in archiver.report.error and archiver.report.behind_ms > 0)
            assert archiver.report.behind_bytes == log.store.log.end - archiver.report.end > 0
            proxy.always = "pass"
            await until(lambda: archiver.report.end == log.store.log.end and not archiver.report.error)
            assert archiver.report.behind_ms == 0


class Broken(MemoryObjects):
    """A store whose library has a bug."""

    bugs = 2

    def create(self, name: str, data: bytes) -> bool:
        if self.bugs:
            self.bugs -= 1
            raise KeyError("a bug")
        return super().create(name, data)


async def test_an_error_that_nobody_expected_ends_no_uploads(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.put("T", 0, 1)
    async with archiving(log, Broken(), tmp_path) as archiver:
        await until(lambda: archiver.report.error == "KeyError: 'a bug'")
        await until(lambda: archiver.report.end == log.store.log.end and not archiver.report.error)


def test_times_are_those_of_the_records(tmp_path: Path) -> None:
    log = Log(tmp_path)
    url = (tmp_path / "bucket").as_uri()
    log.archive = log.archiver._archive = Archive(ObjectStore(Location(url)))
    log.archiver._group = log.archive.group("a")
    log.put("T", 0, 10)
    log.upload()
    state = log.archive.group("a").load()
    assert (state.first_ms, state.last_ms) == (1_700_000_000_000, 1_700_000_001_000)
    said = CliRunner().invoke(app, ["archive", "status", url, "-o", "json"])
    [group] = json.loads(said.stdout)["groups"]
    assert (group["recoverableFrom"], group["until"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.000Z")
