"""Administration of a real cluster."""

from __future__ import annotations

import time

import pytest
from gantry_broker.client import Admin, BrokerError, Consumer, FromWhere, Message, MessageQueue, NoRoute, Producer
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.codes import Perm

from tests.client.cluster import Cluster, Inbox, until
from tests.support.present import present


async def test_topics(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin, Producer(cluster.name_server) as producer:
        assert await admin.create_topic("Mine", queues=3, write_queues=2) == ["a"]
        assert "Mine" in await admin.topics()
        route = await admin.topic_route("Mine")
        assert [(data.read_queues, data.write_queues, data.perm) for data in route.queues] == [(3, 2, 6)]
        for n in range(4):
            await producer.send("Mine", b"%d" % n)
        stats = await admin.topic_stats("Mine")
        assert {queue.queue_id: (item.min_offset, item.max_offset) for queue, item in stats.items()} == {
            0: (0, 2), 1: (0, 2), 2: (0, 0),
        }  # fmt: skip
        await admin.create_topic("Mine", queues=3, perm=Perm.READ)
        assert _perm(cluster, "Mine") == Perm.READ  # Routes are up to date when the answer to a change arrives.
        with pytest.raises(NoRoute):
            async with Producer(cluster.name_server) as other:
                await other.send("Mine", b"x")
        await admin.delete_topic("Mine")
        with pytest.raises(NoRoute):
            await admin.topic_route("Mine")


def _perm(cluster: Cluster, topic: str) -> int:
    return present(cluster.routes().route(topic)).queues[0].perm


async def test_an_ordered_topic_has_an_order_configuration(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin, Producer(cluster.name_server) as producer:
        await admin.create_topic("Ordered", queues=2, order=True)
        assert await admin.get_kv("ORDER_TOPIC_CONFIG", "Ordered") == "a:2"
        assert (await admin.topic_route("Ordered")).order_conf == "a:2"
        assert await producer.queues("Ordered") == [MessageQueue("Ordered", "a", 0), MessageQueue("Ordered", "a", 1)]


async def test_clusters_and_brokers(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        info = await admin.cluster_info()
        assert info.clusters == {"test": ["a"]}
        assert await admin.masters() == {"a": cluster.brokers["a"].address}
        assert await admin.masters("other") == {}
        address = cluster.brokers["a"].address
        runtime = await admin.runtime_info(address)
        assert {"putTps", "brokerVersionDesc", "commitLogMaxOffset", "bootTimestamp"} <= runtime.keys()
        assert (await admin.broker_config(address))["brokerName"] == "a"
        with pytest.raises(NoRoute, match="no master"):
            await admin.create_topic("T2", groups=["zzz"])
        with pytest.raises(NoRoute, match="cluster other"):
            await admin.create_topic("T2", cluster="other")


async def test_groups_offsets_and_connections(cluster: Cluster, inbox: Inbox) -> None:
    async with (
        Admin(cluster.name_server) as admin,
        Producer(cluster.name_server, "pg") as producer,
        Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer,
    ):
        for n in range(12):
            await producer.send(Message("T", b"%d" % n, "A"))
        await consumer.subscribe("T", inbox, "A")
        await inbox.wait(12)
        await consumer.commit()
        stats = await admin.consume_stats("g", "T")
        assert {queue: (item.consumer_offset, item.broker_offset) for queue, item in stats.items()} == {
            MessageQueue("T", "a", n): (3, 3) for n in range(4)
        }
        assert await admin.offset("g", MessageQueue("T", "a", 1)) == 3
        connections = present(await admin.consumer_connections("g"))
        assert [item.client_id for item in connections.connections] == [consumer.session.client_id]
        assert connections.subscriptions["T"] == "A"
        assert "g" in await admin.topic_consumers("T")
        assert await admin.consumer_connections("nobody") is None
        reset = await admin.reset_offsets("g", "T", 0)
        assert set(reset.values()) == {0}
        await inbox.wait(24)
        assert "g" in await admin.groups(cluster.brokers["a"].address)
    async with Admin(cluster.name_server) as admin:
        await admin.set_offset("g", MessageQueue("T", "a", 1), 1)
        assert await admin.offset("g", MessageQueue("T", "a", 1)) == 1


async def test_a_group_may_be_forbidden_to_consume(cluster: Cluster, inbox: Inbox) -> None:
    async with Admin(cluster.name_server) as admin, Producer(cluster.name_server) as producer:
        await admin.create_group(SubscriptionGroup("g", consume_enable=False))
        async with Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("T", inbox)
            await producer.send("T", b"x")
            await until(lambda: len(consumer.assigned) >= 4, "queues are assigned")
            assert inbox.messages == []
            await admin.create_group(SubscriptionGroup("g"))
            await inbox.wait(1)
        await admin.delete_group("g", offsets=True)


async def test_messages_are_found_by_key_id_and_offset(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin, Producer(cluster.name_server) as producer:
        results = [await producer.send(Message("T", b"%d" % n, keys=f"k{n % 3} all")) for n in range(9)]
        assert sorted(message.body for message in await admin.query("T", "k1")) == [b"1", b"4", b"7"]
        assert len(await admin.query("T", "all", count=5)) == 5
        [message] = await admin.query("T", results[4].message_id, unique=True)
        assert (message.body, message.broker) == (b"4", "a")
        assert (await admin.view(results[5].offset_id)).body == b"5"
        assert await admin.query("T", "nothing") == []
        assert await admin.query("T", "all", begin_ms=int(time.time() * 1000) + 60_000) == []
        with pytest.raises(ValueError, match="message id"):
            await admin.view("not an id")
        with pytest.raises(BrokerError):
            await admin.view(results[5].offset_id[:-2] + "FE")


async def test_write_permission_of_a_group(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        assert await admin.wipe_write_perm("a") > 0
        assert _perm(cluster, "T") == Perm.READ
        await admin.create_topic("Another")
        assert (_perm(cluster, "T"), _perm(cluster, "Another")) == (Perm.READ, Perm.READ)
        assert await admin.add_write_perm("a") > 0
        assert _perm(cluster, "T") == Perm.READ | Perm.WRITE


async def test_key_value_configuration(cluster: Cluster) -> None:
    async with Admin(cluster.name_server) as admin:
        assert await admin.get_kv("n", "k") is None
        assert await admin.kv_table("n") == {}
        await admin.put_kv("n", "k", "v")
        assert await admin.kv_table("n") == {"k": "v"}
        await admin.delete_kv("n", "k")
        assert await admin.get_kv("n", "k") is None
