"""Consumers in trouble: brokers that are gone, handlers that misbehave."""

from __future__ import annotations

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, OrderedConsumer
from onebroker import Cluster, Inbox, until

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_a_group_that_is_away_keeps_nobody_from_the_queues_of_others(
    empty_cluster: Cluster, inbox: Inbox, kind: type[Consumer]
) -> None:
    for group in ("a", "b", "c"):
        await empty_cluster.add(group)
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=1)
    async with kind(empty_cluster.name_server, "G", from_where=FromWhere.FIRST) as consumer:
        await consumer.session.route("T")
        await empty_cluster.brokers["a"].stop()
        await consumer.subscribe("T", inbox)
        await until(lambda: {queue.broker for queue in consumer.assigned if queue.topic == "T"} == {"b", "c"}, "queues")
        await empty_cluster.brokers["a"].start()
        await until(lambda: len({queue.broker for queue in consumer.assigned if queue.topic == "T"}) == 3, "queues")
