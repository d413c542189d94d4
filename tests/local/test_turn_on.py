"""The steps of docs/security.md that turn everything on for a running cluster, under load: no send fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import ClientError, Credentials, Producer
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions

from tests.local.cluster import Cluster, Load, running

pytestmark = pytest.mark.timeout(400)
TOPIC = "o-1"
SHAPE: dict[str, Any] = {"nameServers": {"replicas": 2}, "brokerGroups": [{"name": "a", "members": 2}]}


def change(cluster: Cluster, authentication: str, tls: str) -> None:
    cluster.write(**SHAPE, security={"authentication": authentication, "tls": {"mode": tls}})
    cluster.up()
    cluster.until("the members are whole", cluster.whole, 60)


def create_user(cluster: Cluster) -> Credentials:
    cluster.gantry("user", "create", "orders", "--allow", "Topic:o-*:Pub,Sub")
    said = json.loads(cluster.gantry("user", "key", "orders", "-o", "json").stdout)
    return Credentials(said["accessKey"], said["secretKey"])


async def answer(cluster: Cluster, credentials: Credentials | None, tls: TlsOptions | None, timeout: float = 3) -> str:
    async with Producer(cluster.name_servers, "one", credentials=credentials, tls=tls) as producer:
        try:
            return (await producer.send(TOPIC, b"x", timeout=timeout)).status.name
        except (ClientError, RemotingError) as error:
            return str(error) or type(error).__name__


@asynccontextmanager
async def stage(cluster: Cluster, tag: str, credentials: Credentials | None) -> AsyncIterator[Load]:
    """A load of clients of this kind; each of its sends succeeds."""
    async with Load.on(cluster, TOPIC, tag, credentials=credentials) as load:
        yield load
        await load.more(50)
    assert (load.errors, dict(load.other)) == ([], {}), cluster.story()


async def test_everything_is_turned_on_without_a_failed_send(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **SHAPE)) as cluster:
        async with AsyncExitStack() as stages:
            unsigned, signed, encrypted = [await stages.enter_async_context(AsyncExitStack()) for _ in range(3)]
            await unsigned.enter_async_context(stage(cluster, "unsigned", None))
            await asyncio.to_thread(change, cluster, "Permissive", "Disabled")
            orders = await asyncio.to_thread(create_user, cluster)
            await signed.enter_async_context(stage(cluster, "signed", orders))
            await unsigned.aclose()
            await asyncio.to_thread(change, cluster, "Enabled", "Disabled")
            assert "not signed" in await answer(cluster, None, None)
            await asyncio.to_thread(change, cluster, "Enabled", "Permissive")
            assert cluster.tls is not None
            await encrypted.enter_async_context(stage(cluster, "encrypted", orders))
            await signed.aclose()
            await asyncio.to_thread(change, cluster, "Enabled", "Required")
            assert await answer(cluster, orders, cluster.tls, 30) == "SEND_OK"
            assert await answer(cluster, orders, None) != "SEND_OK", "clear text"
            assert await answer(cluster, None, cluster.tls) != "SEND_OK", "without a key"
        assert {c["type"]: c for c in cluster.resource()["status"]["conditions"]}["Secured"]["status"] == "True"
