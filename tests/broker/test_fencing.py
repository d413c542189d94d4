"""A member follows the fence in its config file: the broker stops, process and `/livez` stay, the files are free."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from gantry_broker.broker.fencing import fenced_in
from gantry_broker.broker.process import run
from gantry_broker.config import BrokerConfig
from gantry_broker.store.recovery import lock_store

from tests.support.free_ports import free_port


@pytest.mark.parametrize("begins_fenced", [False, True])
async def test_a_broker_stops_for_its_fence_and_starts_after_it(tmp_path: Path, begins_fenced: bool) -> None:
    port, http_port, replication = free_port(), free_port(), free_port()
    config = BrokerConfig(
        cluster="t", group="a", member=0, name="t-a-0", data_dir=tmp_path / "store", listen_host="127.0.0.1",
        port=port, http_port=http_port, replication_port=replication, replication_address=f"127.0.0.1:{replication}",
        member_address=f"127.0.0.1:{port}", group_address=f"127.0.0.1:{port}", fenced=begins_fenced,
    )  # fmt: skip
    (tmp_path / "store").mkdir()
    file = tmp_path / "config.json"

    def write(fenced: bool) -> None:
        made = file.with_suffix(".new")
        made.write_text(config.model_copy(update={"fenced": fenced}).model_dump_json())
        made.rename(file)

    async def answers(status: int) -> bool:
        try:
            found = await client.get("/v1/status")
        except httpx.HTTPError:
            return False
        return found.status_code == status

    write(begins_fenced)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port}") as client:
        process = asyncio.create_task(run(config, file))
        try:
            for fenced in (True, False, True) if begins_fenced else (False, True, False):
                write(fenced)
                async with asyncio.timeout(20):
                    while not await answers(503 if fenced else 200):
                        assert not process.done(), process.exception()
                        await asyncio.sleep(0.05)
                assert (await client.get("/livez")).status_code == 200, "nothing replaces the pod"
                if fenced:
                    assert "it is fenced" in (await client.get("/readyz")).text
                    os.close(lock_store(config.data_dir))
            # A file that is being replaced, or damaged, changes nothing.
            for damaged in (b"", b"[]", b'{"fenced": 1}'):
                file.write_bytes(damaged)
                assert fenced_in(file) is None
        finally:
            process.cancel()
            await asyncio.gather(process, return_exceptions=True)
