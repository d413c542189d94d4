"""The official `mqadmin` 4.9.7 on a consumer group that only uses gRPC, through a real proxy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import grpc
import pytest
from gantry_broker.client import Admin
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.process import Proxy

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.proxy import cluster as c


@pytest.fixture
def admin(system: Target, drivers: Callable[[Target, str, str], Driver]) -> Driver:
    return drivers(system, "49", "JSON")


@pytest.mark.parametrize("system", ["gantry"], indirect=True)
async def test_members_and_progress_of_a_group_that_only_uses_grpc(system: Target, admin: Driver) -> None:
    fresh = "only-grpc"
    group = f"{fresh}-g"
    await asyncio.to_thread(admin.mqadmin, "updateTopic", "-t", fresh, "-c", system.cluster, "-r", 2, "-w", 2)
    config = ProxyConfig.model_validate(
        {"name_servers": [system.namesrv], "listen_host": "127.0.0.1", "port": 0, "drain_s": 1.0}
    )
    async with Proxy(config) as proxy, grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        stub = c.Stub(channel)
        line = c.Line(stub, "reader@1")
        settings = c.consumer(group, fresh, kind=2)
        settings.user_agent.language, settings.user_agent.version = 4, "5.1.3"
        assert (await line.settings(settings)).status.code == 20_000
        await c.received(stub, "reader@1", c.receive(group, fresh, system.broker_name, auto=True, invisible=None))
        async with Admin(system.namesrv) as ours:
            await until_members(ours, group)
        said = await asyncio.to_thread(admin.mqadmin, "consumerProgress", "-g", group)
        assert "No topic route" not in said
        assert re.search(rf"^{re.escape(fresh)} +{re.escape(system.broker_name)} ", said, re.MULTILINE), said
        said = await asyncio.to_thread(admin.mqadmin, "consumerConnection", "-g", group)
        assert re.search(r"^\S* *reader@1 +127\.0\.0\.1 +GO +V5_1_3", said, re.MULTILINE), said
        await line.end()


async def until_members(ours: Admin, group: str) -> None:
    async with asyncio.timeout(20):
        while await ours.consumer_connections(group) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
