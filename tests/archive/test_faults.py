"""A real broker whose object store fails in every way: senders go on, and the archive is whole in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gantry_broker.archive.archiver import Report
from gantry_broker.archive.inspection import verify
from gantry_broker.archive.opening import open_archive
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import ArchiveConfig

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.archive.test_broker import config, lead, put, until
from tests.support.present import present

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("fault", "times", "said"),
    [
        (429, 8, ""), (500, 8, "500"), (503, 8, "503"), (403, 2, "check the credentials"), ("cut", 8, ""),
        ("torn", 1, ""), ("lie", 1, "lost"), ("lost", 3, ""), ("old", 4, "lost"), ("old list", 12, ""),
    ],
)  # fmt: skip
async def test_the_archive_is_whole_after_each_fault(
    server: S3Server, tmp_path: Path, fault: str | int, times: int, said: str
) -> None:
    proxy = FaultyProxy(server.port)
    async with proxy.running():
        archive = ArchiveConfig(
            url=server.bucket(f"faulty-{fault}".replace(" ", "-")), endpoint=f"http://127.0.0.1:{proxy.port}",
            uid="u-1", interval_s=1, credentials=server.credentials(tmp_path / "keys"),
        )  # fmt: skip
        process = BrokerProcess(config(tmp_path, "shop", archive=archive))
        errors: set[str] = set()

        def report() -> Report:
            found = present(process.broker.archiving.report)
            errors.add(found.error)
            return found

        async with process:
            await lead(process)
            put(process, 0)
            await until(lambda: report().known and report().end > 0 and report().parts > 0)
            proxy.plan([fault] * times)
            for number in range(1, 50):
                put(process, number)
            while proxy.faults:  # Each upload asks for a list.
                await asyncio.sleep(0.05)
                report()  # An error is shown until the next try.
                put(process, 50)
            await until(lambda: process.store.state.confirmed == process.store.log.end)
            end = process.store.log.end
            await until(lambda: report().end >= end, 90)
        assert proxy.done[fault] == times
        assert proxy.most_puts == 1, "one part is in flight"
        assert any(said in error for error in errors if error) or not said, errors
        group = open_archive(archive.model_copy(update={"endpoint": server.endpoint})).group("a")
        state = group.load()
        assert state.end >= end
        assert verify(group, state).faults == ()
        assert not state.gaps


async def test_new_credentials_count_without_a_restart(server: S3Server, tmp_path: Path) -> None:
    """A mounted Secret changes its files while the broker uploads."""
    keys = server.credentials(tmp_path / "keys")
    archive = ArchiveConfig(
        url=server.bucket("rotation"), endpoint=server.endpoint, uid="u-1", interval_s=1, credentials=keys
    )
    process = BrokerProcess(config(tmp_path, "shop", archive=archive))

    def report() -> Report:
        return present(process.broker.archiving.report)

    async with process:
        await lead(process)
        put(process, 0)
        await until(lambda: report().known and report().parts > 0)
        (keys / "secretAccessKey").write_text("of-yesterday")
        put(process, 1)
        await until(lambda: "check the credentials" in report().error)
        server.credentials(keys)
        await until(lambda: report().end >= process.store.log.end and not report().error)
