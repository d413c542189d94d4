"""gRPC consumers are seen by every tool: brokers know the clients of all proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_broker.broker.http import tables
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes
from gantry_broker.broker.proxied import EXPIRE_MS, ProxiedClients, TooManyProxied
from gantry_broker.broker.wiring import BrokerContext
from gantry_broker.client import Admin
from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.fields import BodyError, Fields
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.proxied import MAX_CLIENTS, ProxiedClient, announcement, ordinal_of, read_announcement
from gantry_broker.proxy import announcements

from tests.client.cluster import Cluster
from tests.proxy import cluster as c
from tests.support.present import present
from tests.support.running import until


def context_of(cluster: Cluster) -> BrokerContext:
    return present(cluster.brokers["a"].process).broker


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with c.served(tmp_path) as found:
        await c.make_topic(found, "T")
        await c.make_group(found, "g")
        yield found


async def test_a_grpc_consumer_is_a_member_of_its_group(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "LOOK_S", 0.05)
    broker = cluster.brokers["a"]
    async with Admin(cluster.name_server) as admin:
        with pytest.raises(NoRoute):
            await admin.topic_route("%RETRY%g")
        async with c.proxied(cluster) as (proxy, stub):
            push, simple = c.Line(stub, "push@1", x_mq_language="GOLANG"), c.Line(stub, "simple@1")
            settings = c.consumer("g", "T", kind=2)
            settings.user_agent.language, settings.user_agent.version = 4, "5.1.3"
            assert (await push.settings(settings)).status.code == 20_000
            assert (await simple.settings(c.consumer("g", "T"))).status.code == 20_000
            assert (await c.Line(stub, "producer@1").settings(c.producer("T"))).status.code == 20_000
            await until(lambda: len(context_of(cluster).clients.proxied.of_group("g")) == 2)
            found = present(await admin.consumer_connections("g"))
            shown = {one.client_id: (one.language, one.version, one.address, one.grpc) for one in found.connections}
            assert shown == {
                "push@1": ("GO", ordinal_of("5.1.3"), "127.0.0.1", ("GOLANG", "5.1.3")),
                "simple@1": ("PYTHON", ordinal_of("5.1.2"), "127.0.0.1", ("PYTHON", "5.1.2")),
            }
            assert (found.consume_type, found.subscriptions) == ("CONSUME_PASSIVELY", {"T": "*"})
            page = await tables.broker_tables(context_of(cluster), StoreTimes())
            assert {one["id"]: one["version"] for one in page["consumers"]["g"]["clients"]} == {
                "push@1": "5.1.3", "simple@1": "5.1.2",
            }  # fmt: skip
            assert await admin.topic_consumers("T") == ["g"]
            await cluster.has_topic("%RETRY%g")  # `mqadmin consumerProgress -g` asks for its route
            with pytest.raises(BrokerError, match="speaks gRPC"):
                await admin.client_subscriptions(broker.address, "g", "push@1")
            await push.end()
            await simple.end()
            for one in list(proxy.service.clients):
                proxy.service.clients.leave(one)
            await until(lambda: not context_of(cluster).clients.proxied.of_group("g"))
        assert await admin.consumer_connections("g") is None


async def test_members_go_with_the_connection_of_their_proxy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "LOOK_S", 0.05)
    proxied = context_of(cluster).clients.proxied
    async with c.proxied(cluster) as (_, stub):
        line = c.Line(stub, "one")
        await line.settings(c.consumer("g", "T"))
        await until(lambda: proxied.count == 1)
        await line.end()
    await until(lambda: proxied.count == 0)


async def test_an_announcement_beyond_its_limits_is_refused(cluster: Cluster) -> None:
    address = cluster.brokers["a"].address
    async with Session(cluster.name_server) as session:
        for body in (
            announcement([ProxiedClient(str(n), "g") for n in range(MAX_CLIENTS + 1)], []),
            {"clients": [{"id": "x" * 256, "group": "g"}]},
            {"clients": [{"id": "a\nb", "group": "g"}]},
            {"clients": [{"id": "a", "group": "no group!"}]},
            {"clients": [{"id": "a", "group": "g", "topics": {"T": "x" * 201}}]},
            {"clients": [{"id": "a"}]},
            {"clients": 1},
        ):
            answer = await session.call(address, Frame(GantryCode.PROXY_CLIENTS, body=fastjson.dumps(body)))
            assert answer.code == ResponseCode.SYSTEM_ERROR, body
    assert context_of(cluster).clients.proxied.count == 0


def test_the_table_of_clients() -> None:
    table = ProxiedClients(limit=6)
    one, two = ProxiedClient("1", "g", version="5.0.0"), ProxiedClient("2", "g", topics={"T": "*"})
    table.take("p", [one, two], [], 0)
    table.take("q", [ProxiedClient("1", "g", version="5.0.1")], [], 10)
    assert sorted((x.client_id, x.version) for x in table.of_group("g")) == [("1", "5.0.1"), ("2", "")]
    with pytest.raises(TooManyProxied, match="3 gRPC consumers"):
        table.take("q", [ProxiedClient("3", "h")], [], 11)
    assert (table.count, table.groups(), table.groups_of_topic("T")) == (3, ["g"], {"g"})
    table.take("p", [], [two], 12)
    table.take("r", [], [one], 12)  # another proxy's
    assert table.count == 2
    table.expire(EXPIRE_MS + 5)
    assert [x.version for x in table.of_group("g")] == ["5.0.1"]
    table.closed("q")
    table.closed("q")
    assert (table.count, table.groups(), table.of_group("g")) == (0, [], [])


def test_no_address_announces_all_clients() -> None:
    table = ProxiedClients(limit=40)
    for number in range(20):
        table.take(f"connection {number % 5}", [ProxiedClient(str(number), "g")], [], 0, "address 192.0.2.9")
    with pytest.raises(TooManyProxied, match="20 gRPC consumers of at most 40"):
        table.take("connection 9", [ProxiedClient("other", "g")], [], 0, "address 192.0.2.9")
    table.take("p", [ProxiedClient("x", "g")], [], 0, "address 192.0.2.1")
    assert table.count == 21
    for number in range(5):
        table.closed(f"connection {number}")
    assert table.count == 1


@pytest.mark.parametrize(
    ("version", "ordinal"),
    [("5.0.0", 413), ("5.0.8", 429), ("5.1.2", 437), ("5.1.2-SNAPSHOT", 437), ("", 413), ("5.².1", 413), ("9.9", 413)],
)
def test_versions_as_tools_of_4_9_7_know_them(version: str, ordinal: int) -> None:
    assert ordinal_of(version) == ordinal


def test_an_announcement_is_read_as_it_was_written() -> None:
    clients = [ProxiedClient("a", "g", "u", "RUST", "5.0.0", "10.0.0.1", False, {"T": "a || b"})]
    gone = [ProxiedClient("b", "h")]
    assert read_announcement(Fields(announcement(clients, gone), "x")) == (clients, gone)
    with pytest.raises(BodyError, match="16"):
        read_announcement(
            Fields(announcement([ProxiedClient("a", "g", topics={str(n): "*" for n in range(17)})], []), "x")
        )


async def test_a_new_master_hears_of_all_clients_at_once() -> None:
    sent: list[tuple[str, int]] = []

    class FakeSession:
        async def call(self, address: str, frame: Frame, timeout: float) -> Frame:
            sent.append((address, len(fastjson.loads(frame.body)["clients"])))
            return Frame(0)

    class FakeBrokers:
        session = FakeSession()
        masters = ("m1",)

        async def master_addresses(self) -> list[str]:
            return list(self.masters)

    from gantry_broker.proxy.brokers import GroupConfig
    from gantry_broker.proxy.clients import Clients, answered_settings

    clients, brokers = Clients(), FakeBrokers()
    announcer = announcements.Announcements(brokers, clients)  # type: ignore[arg-type]
    await announcer.look(0.0)
    for number in range(450):
        client = present(clients.enter(str(number), "here"))
        clients.set_settings(client, answered_settings(c.consumer("g", "T"), GroupConfig()))
    await announcer.look(1.0)
    assert sent == [("m1", 200), ("m1", 200), ("m1", 50)]
    sent.clear()
    await announcer.look(2.0)
    assert not sent
    brokers.masters = ("m1", "m2")
    await announcer.look(3.0)
    assert sent == [("m2", 200), ("m2", 200), ("m2", 50)]
    sent.clear()
    await announcer.look(21.5)
    assert sum(count for _, count in sent) == 450
    await asyncio.sleep(0)
