"""A broker in this process that leads a group of one member, for measurements without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord

from .processes import free_port


@asynccontextmanager
async def broker_alone(folder: Path) -> AsyncIterator[BrokerProcess]:
    """Its store is in `folder`. It needs no NameServer."""
    port, http_port, group_port = (free_port() for _ in range(3))
    config = BrokerConfig.model_validate(
        {
            "cluster": "demo", "group": "demo-a", "member": 0, "name": "demo-a-0", "data_dir": str(folder),
            "listen_host": "127.0.0.1", "port": port, "http_port": http_port, "group_port": group_port,
            "member_address": f"127.0.0.1:{port}", "group_address": f"127.0.0.1:{group_port}", "name_servers": [],
            "settings": {"enablePropertyFilter": True},
        }
    )  # fmt: skip
    async with BrokerProcess(config) as process:
        replication = process.broker.replication
        leadership = LeadershipRecord(1, 1, replication.me, frozenset({replication.me}))
        await replication.assign(Assignment(leadership, config.member_address, False))
        yield process
