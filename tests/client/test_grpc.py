"""The client by gRPC: the same program against a NameServer and against a proxy, with a real broker behind both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    InvalidMessage,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
    Requester,
    SendFailed,
    SendStatus,
    SimpleConsumer,
    sync,
)
from gantry_broker.client.proxy_address import proxy_of
from gantry_broker.protocol.codes import ResponseCode

from tests.proxy import cluster as c
from tests.support.free_ports import free_port

PLACES = ("remoting", "gRPC")


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The addresses of one cluster by protocol."""
    async with c.served(tmp_path, "a", "b", enablePropertyFilter=True) as cluster, c.proxied(cluster) as (proxy, _):
        for topic, kind in (("T", "NORMAL"), ("D", "DELAY"), ("F", "FIFO")):
            await c.make_topic(cluster, topic, kind)
        for group in ("g", "g2"):
            await c.make_group(cluster, group)
        yield {"remoting": cluster.name_server, "gRPC": f"grpc://127.0.0.1:{proxy.port}"}


async def all_of(consumer: SimpleConsumer, count: int) -> list[tuple[bytes, str, tuple[str, ...], str]]:
    found = []
    async with asyncio.timeout(30):
        while len(found) < count:
            for message in await consumer.receive(wait_s=2):
                found.append((message.body, message.tags, message.keys, message.properties.get("colour", "")))
                await consumer.ack(message)
    return sorted(found)


@pytest.mark.parametrize("reads", PLACES)
@pytest.mark.parametrize("sends", PLACES)
async def test_one_program_sends_and_receives_by_both(places: dict[str, str], sends: str, reads: str) -> None:
    async with Producer(places[sends]) as producer, SimpleConsumer(places[reads], "g", invisible_s=20) as consumer:
        await consumer.subscribe("T", "a || b")
        for number in range(6):
            body, tag = str(number).encode(), "abc"[number % 3]
            sent = await producer.send(Message("T", body, tag, f"k{number} shared", {"colour": "blue"}))
            assert sent.status is SendStatus.SEND_OK
            assert sent.message_id
        wanted = [(str(n).encode(), "abc"[n % 3], (f"k{n}", "shared"), "blue") for n in (0, 1, 3, 4)]
        assert await all_of(consumer, 4) == wanted
        assert await consumer.receive(wait_s=0.5) == []
        assert len({q.broker for q in await producer.queues("T")}) == 2


@pytest.mark.parametrize("place", PLACES)
async def test_a_message_that_is_not_acknowledged_comes_again(places: dict[str, str], place: str) -> None:
    async with Producer(places[place]) as producer, SimpleConsumer(places[place], "g") as consumer:
        await consumer.subscribe("T")
        await producer.send("T", b"again")
        (first,) = await consumer.receive(invisible_s=30, wait_s=10)
        assert first.delivery_attempt == 1
        await consumer.change_invisible_duration(first, 0.5)
        (second,) = await consumer.receive(invisible_s=30, wait_s=10)
        assert (second.id, second.delivery_attempt) == (first.id, 2)
        assert await consumer.ack_all([second]) == []
        assert await consumer.receive(wait_s=1) == []


@pytest.mark.parametrize("place", PLACES)
async def test_messages_of_a_former_subscription_are_not_received(places: dict[str, str], place: str) -> None:
    """A poll that waits goes on after `receive`, and what it brings goes back to the group."""
    async with Producer(places[place]) as producer, SimpleConsumer(places[place], "g") as consumer:
        await consumer.subscribe("T")
        assert await consumer.receive(wait_s=0.2) == []
        await consumer.unsubscribe("T")
        await consumer.subscribe("D")
        await producer.send("T", b"not now")
        assert await consumer.receive(wait_s=1) == []
        await consumer.subscribe("T", "*")
        (message,) = await consumer.receive(wait_s=15)
        assert (message.body, message.delivery_attempt) == (b"not now", 1)


@pytest.mark.parametrize("place", PLACES)
async def test_a_delay_and_an_order(places: dict[str, str], place: str) -> None:
    async with Producer(places[place]) as producer, SimpleConsumer(places[place], "g") as consumer:
        await consumer.subscribe("D")
        due = int(time.time() * 1000) + 1_500
        await producer.send(Message("D", b"later", deliver_at_ms=due))
        (message,) = await consumer.receive(wait_s=15)
        assert message.body == b"later"
        assert message.store_ms >= due - 1_000
        await consumer.ack(message)
        await consumer.unsubscribe("D")
        await consumer.subscribe("F")
        for number in range(5):
            await producer.send("F", str(number).encode(), key="one")
        found = []
        while len(found) < 5:
            some = await consumer.receive(wait_s=5)
            found += some
            await consumer.ack_all(some)
        assert len({(m.broker, m.queue_id) for m in found}) == 1
        assert [m.body for m in sorted(found, key=lambda m: m.queue_offset)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_batch_and_a_filter_by_properties(places: dict[str, str]) -> None:
    async with Producer(places["gRPC"]) as producer, SimpleConsumer(places["gRPC"], "g2") as consumer:
        await consumer.subscribe("T", "size > 3", sql=True)
        batch = [Message("T", str(n).encode(), properties={"size": str(n)}) for n in range(6)]
        assert len((await producer.send_batch(batch)).message_id.split(",")) == 6
        assert [body for body, *_ in await all_of(consumer, 2)] == [b"4", b"5"]


@pytest.mark.parametrize("place", PLACES)
async def test_errors_are_the_same(places: dict[str, str], place: str) -> None:
    async with Producer(places[place]) as producer, SimpleConsumer(places[place], "g") as consumer:
        with pytest.raises(InvalidMessage):
            await producer.send("T", b"")
        with pytest.raises(InvalidMessage, match="TAGS"):
            await producer.send(Message("T", b"x", properties={"TAGS": "no"}))
        await consumer.subscribe("Nowhere")
        with pytest.raises(NoRoute):
            await consumer.receive(wait_s=0)
        await consumer.unsubscribe("Nowhere")
        await consumer.subscribe("T")
        await producer.send("T", b"late")
        (message,) = await consumer.receive(invisible_s=30, wait_s=10)
        await consumer.change_invisible_duration(message, 0.5)
        (other,) = await consumer.receive(invisible_s=30, wait_s=10)
        assert other.id == message.id
        with pytest.raises(BrokerError) as raised:
            await consumer.ack(message)
        assert raised.value.code == ResponseCode.NO_MESSAGE
        assert await consumer.ack_all([message, other]) == [message]


async def test_what_grpc_cannot_do_says_so(places: dict[str, str]) -> None:
    proxy = places["gRPC"]
    for make in (lambda: PullConsumer(proxy, "g"), lambda: Admin(proxy), lambda: Requester(proxy, "g")):
        with pytest.raises(ValueError, match=r"is a proxy: .* all other classes speak remoting"):
            make()
    with pytest.raises(ValueError, match="leave out ordered"):
        SimpleConsumer(proxy, "g", ordered=True)
    async with Producer(proxy) as producer:
        for message, said in (
            (Message("D", b"x", delay_level=3), "write deliver_at_ms"),
            (Message("T", b"x", wait_stored=False), "wait_stored"),
            (Message("T", b"x", flag=1), "flag"),
            (Message("T", b"", keys="k", deletes_key=True), "by remoting"),
        ):
            with pytest.raises(InvalidMessage, match=said):
                await producer.send(message)
        with pytest.raises(InvalidMessage, match="send_oneway"):
            await producer.send_oneway("T", b"x")
        with pytest.raises(InvalidMessage, match="write key"):
            await producer.send("T", b"x", queue=(await producer.queues("T"))[0])
        with pytest.raises(BrokerError, match="MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"):
            await producer.send("T", b"x", key="an order in a topic without one")


async def test_no_proxy_is_an_error_in_time() -> None:
    async with Producer(f"grpc://127.0.0.1:{free_port()}", timeout=1.0) as producer:
        with pytest.raises(SendFailed, match="T was not acknowledged within 1 s"):
            await producer.send("T", b"x")


async def test_without_asyncio(places: dict[str, str]) -> None:
    def work() -> list[bytes]:
        with sync.Producer(places["gRPC"]) as producer:
            producer.send("T", b"plain")
        with sync.SimpleConsumer(places["gRPC"], "g") as consumer:
            consumer.subscribe("T")
            found = consumer.receive(wait_s=10)
            for message in found:
                consumer.ack(message)
            return [message.body for message in found]

    assert await asyncio.to_thread(work) == [b"plain"]


def test_an_address_says_the_protocol() -> None:
    assert proxy_of("127.0.0.1:9876") is None
    assert proxy_of("grpc://a:1;grpc://b:2") == proxy_of(["grpc://a:1", "grpc://b:2"]) == "a:1,b:2"
    for wrong, said in (
        ("grpc://a", "HOST:PORT"), ("grpc://a:0", "HOST:PORT"), ("grpc://a:٣", "HOST:PORT"),
        ("grpc://a:1;b:2", "before all or none"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            proxy_of(wrong)
