"""Clients during failovers, refusals and silences of brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    FromWhere,
    Message,
    MessageQueue,
    OrderedConsumer,
    Producer,
    SendFailed,
    SendStatus,
    session,
)
from gantry_broker.client import producer as producer_module
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BrokerData, QueueData, TopicRoute
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import SendAnswer
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.server import RemotingServer

from tests.client.cluster import Cluster, Inbox, until
from tests.support.free_ports import free_port
from tests.support.remoting import RequestOnly


async def restart(cluster: Cluster, group: str, away_s: float) -> None:
    """Imitates a failover: the address refuses connections for a while, then another process serves it."""
    await cluster.brokers[group].stop()
    await asyncio.sleep(away_s)
    await cluster.brokers[group].start()


async def test_sends_wait_for_the_next_master(cluster: Cluster, inbox: Inbox) -> None:
    sent: list[bytes] = []
    gap = 0.0
    stop = asyncio.Event()

    async def send(producer: Producer, name: int) -> None:
        nonlocal gap
        number = 0
        while not stop.is_set():
            started = time.monotonic()
            body = b"%d-%d" % (name, number)
            assert (await producer.send("T", body)).status is SendStatus.SEND_OK
            sent.append(body)
            gap = max(gap, time.monotonic() - started)
            number += 1

    async with Producer(cluster.name_server, timeout=60) as producer:
        senders = [asyncio.create_task(send(producer, name)) for name in range(8)]
        await until(lambda: len(sent) > 200, "sends before")
        await restart(cluster, "a", 0.4)
        back = len(sent)
        await until(lambda: len(sent) > back + 200, "sends after")
        stop.set()
        await asyncio.gather(*senders)
    assert gap < 20, "not for as long as a send may take"
    async with Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("T", inbox)
        await until(lambda: set(sent) <= set(inbox.bodies), "every acknowledged message is there", 20)


@pytest.mark.parametrize("kind", [Consumer, OrderedConsumer])
async def test_consumers_continue_with_the_next_master(cluster: Cluster, inbox: Inbox, kind: type[Consumer]) -> None:
    async with (
        Producer(cluster.name_server) as producer,
        kind(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("T", inbox)
        await producer.send("T", b"before")
        await inbox.wait(1)
        await consumer.commit()
        await restart(cluster, "a", 0.2)
        await producer.send("T", b"after", timeout=10)
        await inbox.wait(2, 15)
        assert inbox.bodies == [b"after", b"before"]
        async with Admin(cluster.name_server) as admin:

            async def known() -> bool:
                return await admin.consumer_connections("g") is not None

            await until(known, "the new master knows the consumer")


async def test_another_group_is_tried_at_once(empty_cluster: Cluster) -> None:
    await empty_cluster.add("a")
    await empty_cluster.add("b")
    async with Admin(empty_cluster.name_server) as admin, Producer(empty_cluster.name_server) as producer:
        await admin.create_topic("T", queues=2)
        results = [await producer.send("T", b"x") for _ in range(8)]
        assert {result.queue.broker for result in results} == {"a", "b"}
        await empty_cluster.brokers["b"].stop()
        started = time.monotonic()
        results = [await producer.send("T", b"x") for _ in range(20)]
        assert {result.queue.broker for result in results} == {"a"}
        assert time.monotonic() - started < 8, "ten of them would wait for a second and more each"


async def test_a_send_fails_without_a_new_master(cluster: Cluster) -> None:
    async with Producer(cluster.name_server, timeout=0.6) as producer:
        await producer.send("T", b"x")
        await cluster.brokers["a"].stop()
        started = time.monotonic()
        with pytest.raises(SendFailed, match=r"not acknowledged within 0\.6 s") as caught:
            await producer.send("T", b"x", queue=MessageQueue("T", "a", 0))
        assert time.monotonic() - started > 0.3
        assert len(caught.value.attempts) > 2


Answer = Callable[[Frame], Frame | None]


class Scripted(RequestOnly):
    """A NameServer and a broker of one topic in one server, with prepared answers to sends."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[Frame] = []
        self.address = ""
        self.second = ""
        """The address of another group, b, of the same topic; empty: there is none."""
        self.master = True
        """Whether group a has a master; without one it has a slave only."""
        self.busy_routes = 0
        """Questions for routes that are refused as by a NameServer without users."""
        self.routes_asked: asyncio.Event | None = None
        """When set: it no longer answers route requests, and sets the event for each."""

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                if self.routes_asked is not None:
                    self.routes_asked.set()
                    continue
                if self.busy_routes:
                    self.busy_routes -= 1
                    conn.send(refuse(ResponseCode.SYSTEM_BUSY)(frame))  # type: ignore[arg-type]
                    continue
                groups = {"a": self.address} | ({"b": self.second} if self.second else {})
                brokers = [
                    BrokerData("c", name, {0 if self.master or name == "b" else 1: address})
                    for name, address in groups.items()
                ]
                route = TopicRoute([QueueData(name, 2, 2, 6) for name in groups], brokers)
                conn.send(Frame.response_to(frame, 0, body=fastjson.dumps(route.to_json())))
            elif frame.code == RequestCode.SEND_MESSAGE_V2:
                self.seen.append(frame)
                answer = (self.answers.pop(0) if self.answers else ok)(frame)
                if answer is not None:
                    conn.send(answer)
                elif frame.ext["b"] == "Hangup":
                    conn.close()
            else:
                conn.send(Frame.response_to(frame, 0))


def ok(frame: Frame) -> Frame:
    return Frame.response_to(frame, 0, ext=SendAnswer("7F00000100002A9F0000000000000000", 0, 0).ext())  # type: ignore[arg-type]


def refuse(code: int) -> Answer:
    return lambda frame: Frame.response_to(frame, code, "as written")


def silence(frame: Frame) -> None:
    return None


async def with_script(script: Scripted, work: Callable[[Producer], Awaitable[None]], **options: float) -> None:
    server = RemotingServer(script, "127.0.0.1", free_port())
    script.address = f"127.0.0.1:{await server.start()}"
    async with Producer(script.address, **options) as producer:  # type: ignore[arg-type]
        await work(producer)
    await server.close(0.1)


async def test_a_retried_send_keeps_its_unique_key() -> None:
    script = Scripted()
    script.answers = [silence, refuse(ResponseCode.SERVICE_NOT_AVAILABLE), refuse(ResponseCode.SYSTEM_BUSY), ok]

    async def work(producer: Producer) -> None:
        result = await producer.send("Hangup", b"x")
        keys = {frame.ext["i"].split("UNIQ_KEY\x01")[1].split("\x02")[0] for frame in script.seen}
        assert keys == {result.message_id}
        assert len(script.seen) == 4

    await with_script(script, work)


async def test_a_send_to_a_topic_without_a_master_leaves_others_their_turn() -> None:
    """The route names slaves only, as while a group elects its master. The send waits, and then succeeds."""
    script = Scripted()

    async def work(producer: Producer) -> None:
        await producer.send("T", b"x")
        script.master = False
        with pytest.raises(SendFailed, match="no master"):
            await producer.send("T", b"x", timeout=1.5)
        waiting = asyncio.create_task(producer.send("T", b"x", timeout=20))
        await asyncio.sleep(1.2)
        assert not waiting.done()
        script.master = True
        assert (await waiting).status is SendStatus.SEND_OK

    async with asyncio.timeout(30):
        unavailable = refuse(ResponseCode.SERVICE_NOT_AVAILABLE)
        script.answers = [lambda frame: ok(frame) if script.master else unavailable(frame)] * 1000
        await with_script(script, work)


async def test_a_name_server_without_users_is_asked_again() -> None:
    script = Scripted()
    script.busy_routes = 3

    async def work(producer: Producer) -> None:
        assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
        assert script.busy_routes == 0

    await with_script(script, work)


async def test_a_busy_broker_is_retried_until_the_timeout() -> None:
    script = Scripted()
    script.answers = [refuse(ResponseCode.SYSTEM_BUSY)] * 1000

    async def work(producer: Producer) -> None:
        with pytest.raises(SendFailed, match="as written"):
            await producer.send("T", b"x")
        assert 3 <= len(script.seen) <= 50

    await with_script(script, work, timeout=0.5)


async def test_a_refused_send_is_retried_twice() -> None:
    script = Scripted()
    script.answers = [refuse(ResponseCode.SYSTEM_ERROR)] * 10

    async def work(producer: Producer) -> None:
        with pytest.raises(BrokerError, match="SYSTEM_ERROR"):
            await producer.send("T", b"x")
        assert len(script.seen) == 3

    await with_script(script, work)


async def test_an_illegal_message_is_tried_once() -> None:
    script = Scripted()
    script.answers = [refuse(ResponseCode.MESSAGE_ILLEGAL)]

    async def work(producer: Producer) -> None:
        with pytest.raises(BrokerError, match="MESSAGE_ILLEGAL") as caught:
            await producer.send("T", b"x")
        assert (caught.value.code, caught.value.remark) == (ResponseCode.MESSAGE_ILLEGAL, "as written")
        assert len(script.seen) == 1

    await with_script(script, work)


async def test_the_four_statuses() -> None:
    script = Scripted()
    codes = [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
    script.answers = [lambda frame, code=code: Frame.response_to(frame, code, ext=ok(frame).ext) for code in codes]  # type: ignore[misc]

    async def work(producer: Producer) -> None:
        statuses = [(await producer.send("T", b"x")).status for _ in range(4)]
        assert statuses == [
            SendStatus.FLUSH_DISK_TIMEOUT,
            SendStatus.FLUSH_SLAVE_TIMEOUT,
            SendStatus.SLAVE_NOT_AVAILABLE,
            SendStatus.SEND_OK,
        ]

    await with_script(script, work)


async def test_a_silent_name_server_does_not_delay_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ran on one machine. The address stays, so the cached route suffices."""
    monkeypatch.setattr(session, "MIN_ROUTE_AGE_SECONDS", 0.0)
    script = Scripted()
    script.answers = [refuse(ResponseCode.SYSTEM_BUSY)] * 2

    async def work(producer: Producer) -> None:
        await producer.queues("T")
        script.routes_asked = asyncio.Event()
        started = time.monotonic()
        assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
        assert script.routes_asked.is_set()
        assert time.monotonic() - started < 2.5, "not for as long as a NameServer is given"

    await with_script(script, work, timeout=10)


async def test_an_attempt_at_a_silent_broker_times_out() -> None:
    script = Scripted()
    script.answers = [silence]

    async def work(producer: Producer) -> None:
        started = time.monotonic()
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
        assert time.monotonic() - started < 2.5, "not for the usual 3 s"
        assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK

    await with_script(script, work, timeout=0.3)


async def test_sends_avoid_a_silent_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "FIRST_SILENCE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(producer_module, "AVOID_SILENT_SECONDS", 1.0)
    frozen, script = Scripted(), Scripted()
    frozen.answers = [silence]
    second = RemotingServer(frozen, "127.0.0.1", free_port())
    script.second = f"127.0.0.1:{await second.start()}"

    async def work(producer: Producer) -> None:
        async def reached(sends: int) -> set[str]:
            return {(await producer.send("T", b"x")).queue.broker for _ in range(sends)}

        started = time.monotonic()
        while not frozen.seen:
            assert await reached(1) == {"a"}
        assert time.monotonic() - started < 2.0, "not for as long as the only group is given"
        assert await reached(6) == {"a"}
        assert len(frozen.seen) == 1
        await producer.send("T", b"x", queue=MessageQueue("T", "b", 0))
        assert len(frozen.seen) == 2, "who wants this queue gets it"
        assert await reached(6) == {"a", "b"}, "it answers again"
        frozen.answers = [silence]
        while frozen.answers:
            await reached(1)
        seen = len(frozen.seen)
        assert await reached(6) == {"a"}
        await asyncio.sleep(1.05)
        assert await reached(6) == {"a", "b"}, "it is tried again"
        assert len(frozen.seen) > seen

    try:
        await with_script(script, work)
    finally:
        await second.close(0.1)
