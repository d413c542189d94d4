"""Consumers that call the application, transactions, recall, TLS and users: the same program by both protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_broker.access.table import AccessTable, table_json
from gantry_broker.client import (
    BrokerError,
    ClientError,
    Consumer,
    Credentials,
    DeadLetters,
    FromWhere,
    InvalidMessage,
    Message,
    OrderedConsumer,
    Producer,
    ReceivedMessage,
    RetryLater,
    SimpleConsumer,
    TlsOptions,
    TransactionProducer,
    TransactionState,
    averagely_by_circle,
    sync,
)
from gantry_broker.client.grpc_push import pause_s
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.grpc_contract import v2

from tests.client.cluster import Cluster, Inbox, until
from tests.proxy import cluster as c
from tests.support.certificates import Authority

PLACES = ("remoting", "gRPC")
SOON = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [100]}}
"""Pauses of the groups' retries by gRPC, in milliseconds."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One broker, whose delay levels are short, too: they are the pauses by remoting."""
    settings = {"messageDelayLevel": " ".join(["1s"] * 18), "transactionTimeOut": 300, "transactionCheckInterval": 300}
    async with c.served(tmp_path, "a", **settings, recallMessageEnable=True, enablePropertyFilter=True) as cluster:
        for topic, kind in (("T", "NORMAL"), ("D", "DELAY"), ("F", "FIFO"), ("X", "TRANSACTION")):
            await c.make_topic(cluster, topic, kind)
        await c.make_group(cluster, "g", groupRetryPolicy=SOON)
        await c.make_group(cluster, "orderly", orderly=True, retries=2, groupRetryPolicy=SOON)
        for group, topics in (("g", ("T", "D", "X")), ("orderly", ("F",))):
            ordered = group == "orderly"
            async with SimpleConsumer(cluster.name_server, group, from_where=FromWhere.LAST, ordered=ordered) as first:
                for topic in topics:  # From now on the group is not new: a new one begins at the end.
                    await first.subscribe(topic)
                    assert await first.receive(wait_s=0) == []
                    await first.unsubscribe(topic)
        yield cluster


@pytest.fixture
async def places(cluster: Cluster) -> AsyncIterator[dict[str, str]]:
    """The addresses of one cluster by protocol."""
    async with c.proxied(cluster) as (proxy, _):
        yield {"remoting": cluster.name_server, "gRPC": f"grpc://127.0.0.1:{proxy.port}"}


async def reading(consumer: Consumer, topic: str) -> None:
    """Wait until a consumer reads a topic."""
    await until(lambda: any(queue.topic == topic for queue in consumer.assigned), f"{topic} is read")


async def commit(message: Message, transaction: str) -> TransactionState:
    return TransactionState.COMMIT


@pytest.mark.parametrize("place", PLACES)
async def test_a_consumer_gets_what_it_wants_and_what_failed_again(places: dict[str, str], place: str) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0" and message.reconsume_times == 0:
            raise RuntimeError("the first time")
        if message.body == b"2":
            raise RetryLater(-1)
        if message.body == b"4" and message.reconsume_times == 0:
            raise RetryLater(1)

    async with Producer(places[place]) as producer, Consumer(places[place], "g") as consumer:
        await consumer.subscribe("T", handle, "even || other")
        await reading(consumer, "T")
        for number in range(6):
            await producer.send(Message("T", str(number).encode(), "even" if number % 2 == 0 else "odd"))
        wanted = [(b"0", 0), (b"0", 1), (b"2", 0), (b"4", 0), (b"4", 1)]
        await until(lambda: len(seen) >= len(wanted), f"{wanted}: {seen}")
        await until(lambda: consumer.in_flight == 0, "nothing is in flight")
        await consumer.commit()
    assert sorted(seen) == wanted
    async with DeadLetters(places["remoting"]) as letters:
        assert (await letters.group("g")).waiting == 1
    async with SimpleConsumer(places[place], "g") as rest:
        await rest.subscribe("T", "even")
        assert await rest.receive(wait_s=0.5) == [], "each message was acknowledged"


@pytest.mark.parametrize("place", PLACES)
async def test_a_tag_may_be_long(places: dict[str, str], place: str) -> None:
    inbox, tag = Inbox(), "x" * 10_240
    async with Producer(places[place]) as producer, Consumer(places[place], "g") as consumer:
        await consumer.subscribe("T", inbox, tag)
        await reading(consumer, "T")
        await producer.send("T", b"x", tags=tag)
        await inbox.wait(1)


async def test_a_slow_handler_keeps_its_message_and_a_closing_one_gives_the_rest_to_others(
    places: dict[str, str],
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    first: list[bytes] = []

    async def slow(message: ReceivedMessage) -> None:
        first.append(message.body)
        begun.set()
        await go.wait()

    inbox = Inbox()
    async with Producer(places["gRPC"]) as producer, Consumer(places["gRPC"], "g", concurrency=1) as consumer:
        await consumer.subscribe("T", slow)
        await reading(consumer, "T")
        for number in range(3):
            await producer.send("T", str(number).encode())
        await begun.wait()
        await until(lambda: consumer.in_flight == 3, "all are here")
        with pytest.raises(ClientError, match="brokers know the progress"):
            consumer.progress()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.1)
        go.set()
        await closing
        assert len(first) == 1
        async with Consumer(places["gRPC"], "g") as other:
            await other.subscribe("T", inbox)
            await inbox.wait(2)
            assert sorted(first + inbox.bodies) == [b"0", b"1", b"2"]
            other.suspend()
            await other.unsubscribe("T")
            await until(lambda: other.assigned == [], "nothing is read")


@pytest.mark.parametrize("place", PLACES)
async def test_an_orderly_consumer_tries_again_in_place(places: dict[str, str], place: str) -> None:
    seen: list[bytes] = []
    options = {"suspend_s": 0.1, "max_retries": 2} if place == "remoting" else {}

    async def handle(message: ReceivedMessage) -> bool:
        seen.append(message.body)
        return message.body != b"1" or seen.count(b"1") > 1

    async with Producer(places[place]) as producer, OrderedConsumer(places[place], "orderly", **options) as consumer:
        await consumer.subscribe("F", handle)
        await reading(consumer, "F")
        for number in range(5):
            await producer.send("F", str(number).encode(), key="one")
        await until(lambda: len(seen) >= 6, f"{seen}")
        await until(lambda: consumer.in_flight == 0, "nothing is in flight")
    assert seen == [b"0", b"1", b"1", b"2", b"3", b"4"]


async def test_an_orderly_message_that_fails_too_often_is_a_dead_letter(places: dict[str, str]) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> bool:
        seen.append((message.body, message.reconsume_times))
        return message.body != b"bad"

    async with Producer(places["gRPC"]) as producer, OrderedConsumer(places["gRPC"], "orderly") as consumer:
        await consumer.subscribe("F", handle)
        await reading(consumer, "F")
        for body in (b"bad", b"good"):
            await producer.send("F", body, key="one")
        await until(lambda: (b"good", 0) in seen, f"{seen}")
    assert seen == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]
    async with DeadLetters(places["remoting"]) as letters:
        assert (await letters.group("orderly")).waiting == 1


@pytest.mark.parametrize("place", PLACES)
async def test_transactions(places: dict[str, str], place: str) -> None:
    inbox, asked = Inbox(), list[bytes]()

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return (
            TransactionState.COMMIT
            if asked.count(b"fails") > 1 and message.body == b"fails"
            else TransactionState.UNKNOWN
        )

    async def work(message: Message, transaction: str) -> TransactionState:
        if message.body == b"fails":
            raise RuntimeError("the work")
        return TransactionState.COMMIT if message.body == b"yes" else TransactionState.ROLLBACK

    async with TransactionProducer(places[place], "p", check) as producer, Consumer(places[place], "g") as consumer:
        await consumer.subscribe("X", inbox)
        await reading(consumer, "X")
        states = [
            (await producer.send_in_transaction(Message("X", body), work))[1] for body in (b"yes", b"no", b"fails")
        ]
        assert states == [TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN]
        await inbox.wait(2)
    assert inbox.bodies == [b"fails", b"yes"]
    assert asked.count(b"fails") >= 2, "the first time it was not known"


async def test_a_producer_is_asked_about_half_messages_of_another(places: dict[str, str]) -> None:
    inbox = Inbox()

    async def never(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def always(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def work(message: Message, transaction: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async with Consumer(places["gRPC"], "g") as consumer:
        await consumer.subscribe("X", inbox)
        await reading(consumer, "X")
        async with TransactionProducer(places["gRPC"], "p", never) as producer:
            await producer.send_in_transaction(Message("X", b"left"), work)
            with pytest.raises(InvalidMessage, match="a transaction or deliver_at_ms"):
                await producer.send_in_transaction(Message("X", b"x", deliver_at_ms=int(time.time() * 1000)), work)
        async with TransactionProducer(places["gRPC"], "p", always, topics=["X"]):
            await inbox.wait(1)
    assert inbox.bodies == [b"left"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_recalled_message_does_not_come(places: dict[str, str], place: str) -> None:
    inbox = Inbox()
    async with Producer(places[place]) as producer, Consumer(places[place], "g") as consumer:
        await consumer.subscribe("D", inbox)
        await reading(consumer, "D")
        due = int(time.time() * 1000) + 4_000
        sent = [await producer.send(Message("D", body, deliver_at_ms=due)) for body in (b"not", b"this")]
        await producer.recall("D", sent[0].recall_handle)
        await inbox.wait(1)
        with pytest.raises(BrokerError):
            await producer.recall("D", "no handle")
    assert inbox.bodies == [b"this"]


async def test_users_and_tls(cluster: Cluster, tmp_path: Path) -> None:
    topics = [{"type": "Topic", "name": name, "actions": ["Pub", "Sub"]} for name in ("T", "X", "D")]
    rules = [*topics, {"type": "Group", "name": "g", "actions": ["Sub"]}]
    user = {"name": "orders", "keys": ["secret-of-orders"], "rules": rules}
    table = AccessTable.model_validate({"version": 1, "mode": "Enabled", "users": [user]})
    (tmp_path / "access.json").write_bytes(table_json(table))
    files = Authority().issue(tmp_path / "tls", "127.0.0.1", "localhost")
    served = {"mode": "Required", "cert_file": str(files.cert), "key_file": str(files.key)}
    access = {"file": str(tmp_path / "access.json")}
    async with c.proxied(cluster, access=access, tls=served) as (proxy, _):
        place, tls = f"grpc://localhost:{proxy.port}", TlsOptions(ca_file=files.ca)
        wrong = {"tls": tls, "credentials": Credentials("orders", "another-secret")}
        right = {"tls": tls, "credentials": Credentials("orders", "secret-of-orders")}
        inbox = Inbox()
        async with Consumer(place, "g", **right) as consumer:
            await consumer.subscribe("X", inbox)
            await consumer.subscribe("T", inbox)
            await reading(consumer, "T")
            async with TransactionProducer(place, "p", commit_later, **right) as producer:
                await producer.send_in_transaction(Message("X", b"in a transaction"), commit)
                await producer.send("T", b"plain")
                due = int(time.time() * 1000) + 60_000
                sent = await producer.send(Message("D", b"later", deliver_at_ms=due))
                await producer.recall("D", sent.recall_handle)
                with pytest.raises(BrokerError) as refused:
                    await producer.send("F", b"no right", key="one")
                assert refused.value.code == ResponseCode.NO_PERMISSION
            await inbox.wait(2)
        async with Producer(place, **wrong) as producer, SimpleConsumer(place, "g", **wrong) as simple:
            await simple.subscribe("T")
            for work in (producer.send("T", b"x"), simple.receive(wait_s=1)):
                with pytest.raises(BrokerError) as refused:
                    await work
                assert refused.value.code == ResponseCode.NO_PERMISSION
        with pytest.raises(BrokerError) as refused:
            await OrderedConsumer(place, "g", **wrong).start()
        assert refused.value.code == ResponseCode.NO_PERMISSION


async def commit_later(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


async def test_what_a_consumer_cannot_do_by_grpc_says_so(places: dict[str, str], tmp_path: Path) -> None:
    proxy = places["gRPC"]
    for options, said in (
        ({"from_where": FromWhere.FIRST}, "reset its offsets"), ({"from_time_ms": 1}, "reset its offsets"),
        ({"broadcasting": True}, "a group of its own"), ({"offset_file": tmp_path / "x"}, "brokers keep the offsets"),
        ({"strategy": averagely_by_circle}, "members share all queues"), ({"max_retries": 3}, "retryMaxTimes"),
        ({"trace": True}, "leave out trace=True"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Consumer(proxy, "g", **options)
    with pytest.raises(ValueError, match="groupRetryPolicy"):
        OrderedConsumer(proxy, "orderly", suspend_s=2)
    with pytest.raises(ClientError, match="group g is not orderly: create it with consumeMessageOrderly"):
        await OrderedConsumer(proxy, "g").start()


async def test_without_asyncio(places: dict[str, str]) -> None:
    def work() -> list[bytes]:
        found: list[bytes] = []
        with (
            sync.TransactionProducer(places["gRPC"], "p", lambda _: TransactionState.ROLLBACK) as producer,
            sync.Consumer(places["gRPC"], "g") as consumer,
        ):
            consumer.subscribe("X", lambda message: found.append(message.body))
            while not consumer.assigned:
                time.sleep(0.01)
            producer.send_in_transaction(Message("X", b"plain"), lambda *_: TransactionState.COMMIT)
            while not found:
                time.sleep(0.01)
        return found

    async with asyncio.timeout(30):
        assert await asyncio.to_thread(work) == [b"plain"]


def test_pauses_are_those_of_the_policy() -> None:
    policy = v2.RetryPolicy(max_attempts=5)
    assert pause_s(policy, 0) == 1.0
    policy.exponential_backoff.initial.FromMilliseconds(100)
    policy.exponential_backoff.max.FromMilliseconds(1_000)
    policy.exponential_backoff.multiplier = 3.0
    assert [pause_s(policy, times) for times in (0, 1, 2, 3, 10**6)] == [0.1, 0.3, 0.9, 1.0, 1.0]
    policy.customized_backoff.next.add().FromMilliseconds(50)
    policy.customized_backoff.next.add().FromMilliseconds(2_000)
    assert [pause_s(policy, times) for times in (0, 1, 2)] == [0.05, 2.0, 2.0]
