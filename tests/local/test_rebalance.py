"""`gantry rebalance` on real processes under load: no failed send, nothing unread, and the queues are even."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, ReceivedMessage
from gantry_broker.protocol.bodies import TopicConfig
from gantry_operator.api.topic import BrokerTopic

from tests.local.cluster import Cluster, Load, running
from tests.local.test_groups import until

pytestmark = pytest.mark.timeout(300)


def test_queues_are_spread_under_load(tmp_path: Path) -> None:
    groups = [{"name": name, "members": 1} for name in "ab"]
    cluster = Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=groups)
    managed = BrokerTopic.make("kept", "t", topicName="Kept", queues=3)
    document = json.dumps(managed.model_dump(mode="json", exclude={"status"}, exclude_none=True))
    cluster.file.write_text(f"{cluster.file.read_text()}\n---\n{document}")
    with running(cluster):
        asyncio.run(_rebalance(cluster))


async def _rebalance(cluster: Cluster) -> None:
    async with Admin(cluster.name_servers) as admin:
        masters = await admin.masters()
        await admin.create_topic_at(masters["a"], TopicConfig("Orders", 8, 8))
        await admin.create_topic_at(masters["b"], TopicConfig("Orders", 2, 2))
    seen: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        seen.add(message.body)

    async def gantry(*words: str) -> dict[str, object]:
        place = ("--dir", str(cluster.folder.root), "-o", "json")
        done = await asyncio.to_thread(cluster.gantry, "rebalance", *words, *place)
        found: dict[str, object] = json.loads(done.stdout)
        return found

    async with (
        Consumer(cluster.name_servers, "billing", from_where=FromWhere.FIRST) as consumer,
        Load.on(cluster, "Orders", "x", senders=2) as load,
    ):
        await consumer.subscribe("Orders", handle)
        await load.more(200)
        refused = await asyncio.to_thread(cluster.gantry, "rebalance", "Kept", check=False)
        assert refused.returncode == 1
        assert "BrokerTopic kept spreads Kept" in refused.stderr
        shown = await gantry("Orders", "Kept", "--dry-run")
        assert shown["managed"] == ["Kept"]
        assert [(q["group"], q["write"], q["wanted"]) for q in shown["queues"]] == [("a", 8, 5), ("b", 2, 5)]  # type: ignore[attr-defined]
        done = await gantry("Orders", "--timeout", "60")
        assert done["waiting"] == []
        assert [(q["group"], q["write"], q["read"]) for q in done["queues"]] == [("a", 5, 5), ("b", 5, 5)]  # type: ignore[attr-defined]
        await load.more(200)
        assert not load.errors
    async with Consumer(cluster.name_servers, "billing", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("Orders", handle)
        await until("everything was read", lambda: not load.promised - seen)
