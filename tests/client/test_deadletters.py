"""Dead letters: list, read and resend them."""

from __future__ import annotations

import pytest
from gantry_broker.client import (
    Admin,
    Consumer,
    DeadLetters,
    FromWhere,
    InvalidMessage,
    Message,
    NoRoute,
    Producer,
    ReceivedMessage,
    SendStatus,
)
from gantry_broker.client.deadletters import origin_topic
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
            await producer.send(Message(topic, body, "red", f"k{number}", {"colour": "blue"}))

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


async def test_a_letter_can_be_resent_to_a_topic(cluster: Cluster, inbox: Inbox) -> None:
    await kill(cluster, [b"one"])
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
        assert (message.topic, message.body, message.keys) == ("Resent", b"one", ("k0",))
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
