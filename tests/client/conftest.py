"""Fixtures: a real NameServer and real brokers in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_broker.client import Admin
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings

from tests.client.cluster import Cluster, Inbox


@pytest.fixture
async def empty_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="test", registration_port=0)) as server:
        cluster = Cluster(tmp_path, server)
        yield cluster
        await cluster.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """One group, `a`, with the topic `T` of four queues."""
    await empty_cluster.add("a", enablePropertyFilter=True, messageDelayLevel="1s 1s 1s 1s")
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=4)
    return empty_cluster
