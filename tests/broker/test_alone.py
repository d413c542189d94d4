"""A member that no NameServer answers says so: a slave at once, a master when the others must have tried as well."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from gantry_broker.broker import health, registrar
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.namesrv.server import NameServer, NameServerSettings

from tests.support.free_ports import free_port, free_ports
from tests.support.running import until

ALONE = "no NameServer answers it"
PATIENCE_S = 10.0


async def name_server(registration_port: int) -> NameServer:
    server = NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="test", registration_port=registration_port))
    await server.start()
    return server


@pytest.mark.parametrize("leads", [True, False], ids=["master", "slave"])
async def test_a_member_without_a_name_server_should_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    monkeypatch.setattr(registrar, "RETRY_S", 0.05)
    first, second, port, group_port = free_ports(4)
    config = BrokerConfig(
        cluster="test", group="a", member=0, name="a-0", data_dir=tmp_path / "a", listen_host="127.0.0.1", port=port,
        http_port=free_port(), group_port=group_port, member_address=f"127.0.0.1:{port}",
        group_address=f"127.0.0.1:{group_port}",
        registration_addresses=[f"127.0.0.1:{first}", f"127.0.0.1:{second}"],
    )  # fmt: skip
    server = await name_server(first)
    process = BrokerProcess(config)
    await process.start()
    broker = process.broker
    try:
        me = broker.replication.me
        master = me if leads else MemberId(1, "other")
        leadership = LeadershipRecord().promoted(master, [me, master])
        assert (await broker.replication.assign(Assignment(leadership, f"127.0.0.1:{port}"))).accepted
        alone_s = 1.0 - (broker.settings.registerNameServerPeriod / 1000 if leads else 0)
        monkeypatch.setattr(health, "ALONE_S", alone_s)
        await until(lambda: process.broker.registrar.last_ok_ms, "one of two NameServers answers")
        assert broker.health.not_promotable == "", "one is enough"
        ended = time.monotonic()
        await server.close()
        await until(lambda: broker.health.not_promotable == ALONE, "it says that none answers")
        assert not leads or time.monotonic() - ended > 0.9, "a master waits until the others must have tried"
        if not leads:
            await asyncio.sleep(ended + 1.5 - time.monotonic())
        again = time.monotonic()
        server = await name_server(second)
        await until(lambda: broker.health.not_promotable == "", "one answers again")
        assert leads or time.monotonic() - again > 0.9, "nobody is better for having been answered a moment earlier"
    finally:
        await process.stop()
        await server.close()
