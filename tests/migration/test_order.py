"""The key-value configuration goes from the source's NameServers to the new ones."""

from __future__ import annotations

from gantry_broker.client import Admin
from gantry_broker.protocol.codes import ORDER_TOPIC_NAMESPACE
from gantry_broker.testing import broker
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration.cutover_edge import Edge, SourcePlace


async def test_the_order_configuration_and_named_namespaces_come_along() -> None:
    async with broker() as source, broker() as target:
        place = SourcePlace((source.name_servers,), kv_namespaces=("OURS", "EMPTY"))
        async with (
            Admin(source.name_servers) as theirs,
            Admin(target.name_servers) as ours,
            httpx.AsyncClient() as http,
            Edge(place, [], http) as edge,
        ):
            assert await edge.copy_kv(ours) == 0
            await theirs.put_kv(ORDER_TOPIC_NAMESPACE, "Orders", "a:4")
            await theirs.put_kv("OURS", "limit", "7")
            await theirs.put_kv("OTHER", "limit", "8")
            assert [await edge.copy_kv(ours) for _ in range(2)] == [2, 0]
            assert await ours.kv_table(ORDER_TOPIC_NAMESPACE) == {"Orders": "a:4"}
            assert (await ours.kv_table("OURS"), await ours.kv_table("OTHER")) == ({"limit": "7"}, {})
            await theirs.put_kv("OURS", "limit", "9")
            assert await edge.copy_kv(ours) == 1
            assert await ours.get_kv("OURS", "limit") == "9"
