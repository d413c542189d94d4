"""Dead letters: list, read and resend them."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from gantry_broker.client import (
    Admin,
    Consumer,
    DeadLetters,
    FromWhere,
    InvalidMessage,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    ReceivedMessage,
    SendStatus,
    SimpleConsumer,
)
from gantry_broker.client.deadletters import Consumption, origin_topic
from gantry_broker.client.errors import CannotResend
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.codes import Prop

from tests.client.cluster import Cluster, Inbox, until

BIG = b"large " * 2_000


async def kill(cluster: Cluster, bodies: list[bytes], group: str = "g", topic: str = "T") -> None:
    """Makes messages dead letters of a group, with a handler that always fails."""

    async def refuse(message: ReceivedMessage) -> bool:
        return False

    async with (
        Producer(cluster.name_server) as producer,
        Consumer(cluster.name_server, group, from_where=FromWhere.FIRST, max_retries=0, rebalance_s=0.2) as consumer,
        DeadLetters(cluster.name_server) as dead,
    ):
        before = await dead.group(group)
        await consumer.subscribe(topic, refuse)
        for number, body in enumerate(bodies):
            await producer.send(Message(topic, body, "red", f"k{number}", {"colour": "blue"}, deletes_key=not body))

        async def all_dead() -> bool:
            now = await dead.group(group)
            return now is not None and now.letters == len(bodies) + (before.letters if before else 0)

        await until(all_dead, f"{len(bodies)} dead letters", 20)


async def letters(dead: DeadLetters, group: str = "g", *, waiting_only: bool = False) -> list[ReceivedMessage]:
    return [letter async for page in dead.pages(group, waiting_only=waiting_only) for letter in page.letters]


async def test_letters_are_listed_and_read(cluster: Cluster) -> None:
    async with DeadLetters(cluster.name_server) as dead:
        assert await dead.groups() == []
        assert await dead.group("g") is None
        await kill(cluster, [b"one", BIG])
        (found,) = await dead.groups()
        assert (found.group, found.letters, found.waiting) == ("g", 2, 2)
        assert found.last_ms > 1_600_000_000_000
        read = await letters(dead)
        assert sorted(x.body for x in read) == sorted([b"one", BIG])
        assert {origin_topic(x) for x in read} == {"T"}
        assert {x.keys for x in read} == {("k0",), ("k1",)}
        (again,) = await dead.find("g", read[0].id)
        assert again.body == read[0].body
        assert await dead.find("g", "0" * 32) == []
        with pytest.raises(NoRoute):
            await letters(dead, "nobody")
        with pytest.raises(InvalidMessage, match="group"):
            await dead.group("no such name")


async def test_a_resent_letter_goes_to_its_group_with_all_retries(cluster: Cluster, inbox: Inbox) -> None:
    other = Inbox()
    await kill(cluster, [b"one", BIG])
    async with (
        DeadLetters(cluster.name_server) as dead,
        Consumer(cluster.name_server, "g", rebalance_s=0.2) as consumer,
        Consumer(cluster.name_server, "other", rebalance_s=0.2) as stranger,
    ):
        await consumer.subscribe("T", inbox)
        await stranger.subscribe("T", other)
        async for page in dead.pages("g"):
            for letter in page.letters:
                assert (await dead.send_again("g", letter)).status is SendStatus.SEND_OK
        await inbox.wait(2)
        assert inbox.bodies == sorted([b"one", BIG])
        for message in inbox.messages:
            assert (message.topic, message.tags, message.reconsume_times) == ("T", "red", 0)
            assert message.properties["colour"] == "blue"
            assert message.id in {x.id for x in await letters(dead)}, "it is known by the same id"
            assert Prop.DLQ_ORIGIN_TOPIC not in message.properties
        assert other.messages == []


async def kill_by_pop(cluster: Cluster, bodies: list[bytes], group: str = "p", topic: str = "T") -> None:
    """Makes messages dead letters of a group whose members pop."""
    async with (
        Admin(cluster.name_server) as admin,
        Producer(cluster.name_server) as producer,
        SimpleConsumer(cluster.name_server, group, invisible_s=0.2) as consumer,
        DeadLetters(cluster.name_server) as dead,
    ):
        await admin.create_group(SubscriptionGroup(group, retry_max_times=0))
        await consumer.subscribe(topic)
        for body in bodies:
            await producer.send(Message(topic, body, "red"))
        got = 0
        while got < len(bodies):
            got += len(await consumer.receive(32, wait_s=1))

        async def all_dead() -> bool:
            now = await dead.group(group)
            return now is not None and now.letters == len(bodies)

        await until(all_dead, f"{len(bodies)} dead letters", 20)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_letter_of_a_group_that_pops_reaches_it(cluster: Cluster, connected: bool) -> None:
    """Members that pop never read %RETRY%group."""
    await kill_by_pop(cluster, [b"one", BIG])
    async with (
        DeadLetters(cluster.name_server) as dead,
        SimpleConsumer(cluster.name_server, "p", invisible_s=20) as consumer,
    ):
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.receive(1, wait_s=20)) if connected else None
        for letter in await letters(dead, "p"):
            assert (await dead.send_again("p", letter)).status is SendStatus.SEND_OK
        found = [] if waiting is None else await waiting
        ends = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < ends:
            found += await consumer.receive(32, wait_s=1)
        assert sorted(message.body for message in found) == sorted([b"one", BIG])
        assert {(message.topic, message.tags, message.delivery_attempt) for message in found} == {("T", "red", 1)}
        await asyncio.gather(*map(consumer.ack, found))


async def test_a_letter_is_refused_when_no_topic_reaches_its_group(cluster: Cluster) -> None:
    await kill_by_pop(cluster, [b"one"])
    async with DeadLetters(cluster.name_server) as dead, Admin(cluster.name_server) as admin:
        (letter,) = await letters(dead, "p")
        await admin.set_offset("p", MessageQueue("%RETRY%p", "a", 0), 0)
        with pytest.raises(CannotResend, match=r"both pulled and popped before.*--consume pull, or --consume pop"):
            await dead.send_again("p", letter)
        assert await dead.topic_for("p", letter, way="pull") == "%RETRY%p"
        assert await dead.topic_for("p", letter, way="pop") == "%RETRY%p+T"
        await admin.create_group(SubscriptionGroup("p", orderly=True))
        dead._consumptions.clear()
        with pytest.raises(CannotResend, match=r"in order.*--to T"):
            await dead.send_again("p", letter, way="pop")


@pytest.mark.parametrize("seed", range(20))
def test_how_a_group_consumes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        pulls_now, pops_now, pulled, popped, letter = (rng.random() < 0.5 for _ in range(5))
        known = Consumption(pulls_now, pops_now, pulled, popped)
        way = known.way(letter_popped=letter)
        if pulls_now or pops_now:
            assert way == ("pull" if pulls_now else "pop"), "who is there reads it"
        elif pulled and popped:
            assert way is None
        elif pulled or popped:
            assert way == ("pull" if pulled else "pop")
        else:
            assert way == ("pop" if letter else None)


@pytest.mark.parametrize("body", [b"one", b""])
async def test_a_letter_can_be_resent_to_a_topic(cluster: Cluster, inbox: Inbox, body: bytes) -> None:
    """Without a body it deletes its key in a compacted topic."""
    await kill(cluster, [body])
    async with (
        DeadLetters(cluster.name_server) as dead,
        Consumer(cluster.name_server, "resent", from_where=FromWhere.FIRST, rebalance_s=0.2) as consumer,
        Admin(cluster.name_server) as admin,
    ):
        await admin.create_topic("Resent", queues=1)
        await consumer.subscribe("Resent", inbox)
        (letter,) = await letters(dead)
        await dead.send_again("g", letter, to="Resent")
        await inbox.wait(1)
        (message,) = inbox.messages
        assert (message.topic, message.body, message.keys) == ("Resent", body, ("k0",))
        assert Prop.RETRY_TOPIC not in message.properties


async def test_a_mark_counts_waiting_letters_and_only_grows(cluster: Cluster) -> None:
    await kill(cluster, [b"%d" % n for n in range(40)])
    async with DeadLetters(cluster.name_server) as dead:
        pages = [page async for page in dead.pages("g")]
        assert [len(page.letters) for page in pages] == [32, 8]
        await dead.mark(pages[0])
        assert (await dead.groups())[0].waiting == 8
        assert len(await letters(dead, waiting_only=True)) == 8
        await dead.mark(pages[1])
        await dead.mark(pages[0])
        assert (await dead.groups())[0].waiting == 0
        assert await letters(dead, waiting_only=True) == []
        assert len(await letters(dead)) == 40
        await kill(cluster, [b"late"])
        assert [x.body for x in await letters(dead, waiting_only=True)] == [b"late"]
