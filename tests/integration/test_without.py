"""Clients and brokers without a NameServer, and without a master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gantry_broker.client import Consumer, FromWhere, Producer, ReceivedMessage, SendStatus
from gantry_broker.namesrv.server import NameServer

from tests.support.free_ports import free_ports
from tests.support.patience import SLOW
from tests.support.running import until

if TYPE_CHECKING:
    from tests.integration.conftest import Group

HEARTBEAT_S = 30.0
"""The interval in which brokers register when nothing happens: a returned NameServer must be complete within it."""


class Observations:
    """Bodies that a consumer received."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.news = asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        self.bodies.add(message.body)
        self.news.set()

    async def all_of(self, wanted: set[bytes], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(SLOW * timeout_s):
            while not wanted <= self.bodies:
                self.news.clear()
                await self.news.wait()


async def send(producer: Producer, *bodies: bytes) -> set[bytes]:
    for body in bodies:
        assert (await producer.send("T", body)).status is SendStatus.SEND_OK
    return set(bodies)


async def test_running_clients_go_on_without_a_name_server_and_one_that_returns_is_complete(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    group = await make_group(2, led=True)
    port, registration_port, seen = group.names.port, group.names.registration_port or 0, Observations()
    async with (
        Producer(group.name_server) as producer,
        Consumer(group.name_server, "g", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("T", seen.take)
        sent = await send(producer, b"makes the topic")
        await until(lambda: "T" in group.names.service.routes.topics(), timeout_s=5.0)
        sent |= await send(producer, b"by its own route")
        await seen.all_of(sent)
        await group.names.close()
        sent |= await send(producer, *(b"alone-%d" % n for n in range(20)))
        await seen.all_of(sent)
        # Another master has the same address: no client needs a NameServer for it.
        await group.members[0].kill()
        await group.lead(1)
        sent |= await send(producer, b"after the switch")
        await seen.all_of(sent)
        async with NameServer(group.name_server_settings(port, registration_port)) as names:
            took = await until(lambda: "T" in names.service.routes.topics(), timeout_s=HEARTBEAT_S)
            assert took < HEARTBEAT_S / 3, "brokers should register at once, not with the heartbeat"
            async with Producer(group.name_server, "new") as other:
                sent |= await send(other, b"by a new client")
            await seen.all_of(sent)


async def test_brokers_may_start_before_the_name_server(make_group: Callable[..., Awaitable[Group]]) -> None:
    """apache/rocketmq-operator 50"""
    port, registration_port = free_ports(2)
    group = await make_group(1, registration_addresses=[f"127.0.0.1:{registration_port}"])
    await group.lead(0)
    async with NameServer(group.name_server_settings(port, registration_port)) as names:
        await until(lambda: "demo-a" in names.service.routes.groups, timeout_s=5.0)
        async with Producer(f"127.0.0.1:{port}") as producer:
            await send(producer, b"x")


async def test_a_backlog_is_read_from_a_slave_while_there_is_no_master(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    group = await make_group(2, led=True)
    async with Producer(group.name_server) as producer:
        sent = await send(producer, *(b"%d" % n for n in range(200)))
    seen, running = Observations(), Observations()
    async with Consumer(group.name_server, "running", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("T", running.take)
        await running.all_of(sent)
        first = Consumer(group.name_server, "slow", from_where=FromWhere.FIRST)
        # It knows its share of the queues and its offsets, but has not read anything when the master dies.
        first.suspend()
        async with first:
            await first.subscribe("T", seen.take)
            await until(lambda: sum(q.topic == "T" for q in first.assigned) == 4, timeout_s=10.0)
            await group.members[0].kill()
            first.resume()
            await seen.all_of(sent)
            # A slave that may be behind must not send back a consumer that has read everything.
            await asyncio.sleep(0.5)
            assert running.bodies == sent
            await group.lead(1)
            async with Producer(group.name_server) as producer:
                sent |= await send(producer, b"after")
            await seen.all_of(sent)
            await running.all_of(sent)
