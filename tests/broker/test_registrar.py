"""A broker registers at a real NameServer: all topics once, then those that change."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker import source_servers
from gantry_broker.broker.metadata.tables import TOPIC_CHANGES, Tables
from gantry_broker.broker.registrar import SOURCE_STATE, loss
from gantry_broker.namesrv.routes import Registration
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.protocol.bodies import BrokerData, DataVersion, QueueData, TopicRoute
from gantry_broker.protocol.codes import GantryCode, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership

from tests.broker.conftest import Bench
from tests.support.running import until


def topic(name: str) -> dict[str, object]:
    return {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


def test_tables_know_the_topics_that_changed_since_a_version() -> None:
    tables = Tables()
    tables.apply({"at": 1, "topics": [topic("A")]})
    since = tables.topic_version.counter
    assert tables.topics_since(since) == set()
    tables.apply({"at": 2, "topics": [topic("B"), topic("C")]})
    tables.apply({"at": 3, "dropTopics": ["A"]})
    assert tables.topics_since(since) == {"A", "B", "C"}
    assert tables.topics_since(since + 5) is None
    assert tables.copy().topics_since(since) is None, "a copy knows no changes"
    tables.apply({"at": 4, "marks": {"drain": "closing"}})
    assert tables.topics_since(since) is None, "the permission of all topics has changed"
    for _ in range(TOPIC_CHANGES + 1):
        tables.apply({"at": 5, "topics": [topic("A")]})
    assert tables.topics_since(tables.topic_version.counter - TOPIC_CHANGES - 1) is None
    assert tables.topics_since(tables.topic_version.counter - TOPIC_CHANGES) == {"A"}


async def test_new_topics_are_registered_alone_and_all_topics_after_a_restart(
    tmp_path: Path, make_bench: Callable[..., Bench]
) -> None:
    def settings(port: int = 0, registration: int = 0) -> NameServerSettings:
        return NameServerSettings("ns", "127.0.0.1", port, 0, None, [], cluster="demo", registration_port=registration)

    server = NameServer(settings())
    await server.start()
    port, registration = server.port, server.registration_port
    assert registration is not None
    bench = make_bench(
        tmp_path / "b", name_servers=[f"127.0.0.1:{port}"], registration_addresses=[f"127.0.0.1:{registration}"]
    )
    bench.client._membership = Membership(Identity("demo", "demo-a", 0), None)
    await bench.lead()
    bench.broker.registrar.start()
    try:
        await until(lambda: server.service.routes.has_master())
        before = server.service.requests[RequestCode.REGISTER_BROKER]
        for number in range(30):
            assert (await bench.send(b"x", f"N{number}")).code == 0
            await bench.broker.registrar.registered()
        requests = server.service.requests
        assert {f"N{number}" for number in range(30)} <= set(server.service.routes.topics())
        assert requests[GantryCode.REGISTER_CHANGES] >= 20
        assert requests[RequestCode.REGISTER_BROKER] <= before + 2
        await bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "N3"})
        await bench.broker.registrar.registered()
        assert "N3" not in server.service.routes.topics()

        await server.close()
        server = NameServer(settings(port, registration))
        await server.start()
        await bench.broker.registrar.registered()
        await until(lambda: {"N1", "N2"} <= set(server.service.routes.topics()))
        assert "N3" not in server.service.routes.topics()
    finally:
        await bench.broker.registrar.close()
        await bench.close()
        await server.close()


@contextlib.asynccontextmanager
async def at_source(
    folder: Path, make_bench: Callable[..., Bench], **config: Any
) -> AsyncIterator[tuple[Bench, NameServer]]:
    """Give a leader, whose registrar has not begun, and the NameServer of the source from which it came."""
    server = NameServer(NameServerSettings("ns", "127.0.0.1", 0, 0, None, [], cluster="demo", registration_port=0))
    await server.start()
    bench = make_bench(folder, source_name_servers=[f"127.0.0.1:{server.registration_port}"], **config)
    bench.client._membership = Membership(Identity("demo", "demo-a", 0), None)
    await bench.lead()
    try:
        yield bench, server
    finally:
        await bench.broker.registrar.close()
        await bench.close()
        await server.close()


async def test_the_leader_registers_again_where_a_sources_nameserver_has_dropped_it(
    tmp_path: Path, make_bench: Callable[..., Bench]
) -> None:
    """RocketMQ's drops an address with the connection that has registered it last: perhaps a former leader's."""
    async with at_source(tmp_path / "b", make_bench) as (bench, server):
        registrar, routes, requests = bench.broker.registrar, server.service.routes, server.service.requests
        registrar.start()
        await until(routes.has_master)
        await until(lambda: RequestCode.GET_ROUTEINFO_BY_TOPIC in requests)
        registered = requests[RequestCode.REGISTER_BROKER]
        (entry,) = routes.groups["demo-a"].entries.values()
        assert routes.connection_lost(entry.registration.source, registrar._clock.now_ms())
        await until(lambda: requests[RequestCode.REGISTER_BROKER] > registered)
        await until(routes.has_master)
        asked, registered = requests[RequestCode.GET_ROUTEINFO_BY_TOPIC], requests[RequestCode.REGISTER_BROKER]
        await until(lambda: requests[RequestCode.GET_ROUTEINFO_BY_TOPIC] > asked + 1)
        assert requests[RequestCode.REGISTER_BROKER] == registered, "a NameServer that has it gets no topics again"


@pytest.mark.parametrize(
    ("addresses", "permissions", "text"),
    [
        ({0: "gantry:1", 900: "source:1"}, [7], ""),
        ({0: "source:1"}, [7], "leads clients of demo-a to source:1, not to gantry:1"),
        ({900: "source:1"}, [7], "to no broker"),
        (None, [7], "to no broker"),
        # What a broker of the source had stays in the route when the leader's address comes back.
        ({0: "gantry:1"}, [1], "the permission [1], not [7]"),
        ({0: "gantry:1"}, [], "the permission [], not [7]"),
    ],
)
def test_a_route_that_does_not_lead_to_the_leader_is_found(
    addresses: dict[int, str] | None, permissions: list[int], text: str
) -> None:
    brokers = [BrokerData("demo", "demo-b", {0: "other:1"})]
    if addresses is not None:
        brokers.append(BrokerData("demo", "demo-a", addresses))
    queues = [QueueData("demo-a", 1, 1, permission) for permission in permissions]
    found = loss(TopicRoute(queues, brokers), "demo-a", "gantry:1", 7)
    assert text in found
    assert bool(text) == bool(found)


async def test_topics_of_another_version_go_to_a_source_whose_route_was_lost(
    tmp_path: Path, make_bench: Callable[..., Bench]
) -> None:
    """RocketMQ's NameServers compare versions, and keep the permissions of one that they have."""
    async with at_source(tmp_path / "b", make_bench) as (bench, _):
        versions: list[DataVersion] = []
        request = bench.client.request

        async def answer(address: str, frame: Frame, timeout: float) -> Frame:
            if frame.code == RequestCode.REGISTER_BROKER:
                table = json.loads(frame.body)["topicConfigSerializeWrapper"]
                versions.append(DataVersion.from_json(table["dataVersion"]))
            got = await request(address, frame, timeout)
            if frame.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and len(versions) < 3:
                route = TopicRoute.from_json(json.loads(got.body))
                route.queues[0].perm = 1
                return Frame(0, body=json.dumps(route.to_json()).encode())
            return got

        bench.client.request = answer  # type: ignore[method-assign]
        bench.broker.registrar.start()
        await until(lambda: len(versions) == 3)
        assert {version.state_version for version in versions} == {SOURCE_STATE}
        assert len({version.timestamp for version in versions}) == 3


async def test_each_address_of_a_leader_has_a_connection_of_its_own_to_a_sources_nameserver(
    tmp_path: Path, make_bench: Callable[..., Bench]
) -> None:
    """RocketMQ's ends the connection of a silent address, and drops what else that has registered."""
    async with at_source(tmp_path / "b", make_bench, member_address="127.0.0.1:10912") as (bench, server):
        registrar, role, groups = bench.broker.registrar, bench.broker.role, server.service.routes.groups
        registrar.start()

        def master() -> Registration | None:
            """None: the former connection has ended, and the next registration is on its way."""
            found = groups["demo-a"].entries.get(0) if "demo-a" in groups else None
            return None if found is None else found.registration

        def registered(address: str) -> bool:
            found = master()
            return found is not None and found.address == address and found.source not in sources

        await until(master)
        sources = {found.source} if (found := master()) is not None else set()
        for lost in (True, False):
            role.address_lost = lost
            registrar.soon()
            await until(lambda: registered(role.address))
            if (found := master()) is not None:
                sources.add(found.source)


async def test_a_leader_leaves_a_sources_nameserver_and_registers_at_another_one(
    tmp_path: Path, make_bench: Callable[..., Bench]
) -> None:
    """The manifest of a migrated cluster names other NameServers: no member restarts for that."""
    servers = [
        NameServer(NameServerSettings("ns", "127.0.0.1", 0, 0, None, [], cluster="demo", registration_port=0))
        for _ in range(2)
    ]
    for server in servers:
        await server.start()
    first, second = (f"127.0.0.1:{server.registration_port}" for server in servers)
    bench = make_bench(tmp_path / "b", source_name_servers=[first])
    bench.client._membership = Membership(Identity("demo", "demo-a", 0), None)
    await bench.lead()
    registrar = bench.broker.registrar
    file = tmp_path / "broker.json"
    file.write_text(json.dumps({"source_name_servers": [first]}))
    registrar.start()
    following = asyncio.create_task(source_servers.follow(file, [first], registrar.use_sources, 0.02))
    try:
        await until(servers[0].service.routes.has_master)
        file.write_text("{")
        await asyncio.sleep(0.1)
        file.write_text(json.dumps({"source_name_servers": [second]}))
        await until(servers[1].service.routes.has_master)
        await until(lambda: not servers[0].service.routes.has_master())
        file.write_text("{}")
        await until(lambda: not servers[1].service.routes.has_master())
        assert not {first, second} & registrar._tasks.keys()
    finally:
        following.cancel()
        await registrar.close()
        await bench.close()
        for server in servers:
            await server.close()
