"""Message features end to end: our client against one real broker, and against a group that changes its master."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    ClientError,
    Consumer,
    FromWhere,
    Message,
    Producer,
    ReceivedMessage,
    Requester,
    SendStatus,
    TransactionProducer,
    TransactionState,
    reply,
)
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.remoting.errors import RemotingError

if TYPE_CHECKING:
    from tests.integration.conftest import Group

SETTINGS = {
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    "enablePropertyFilter": True,
    "transactionTimeOut": 200,
    "transactionCheckInterval": 200,
    "transactionCheckMax": 3,
}


class Observations:
    """The messages of a consumer, with their times."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.times: list[float] = []
        self._more = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self.times.append(time.time())
        self._more.set()

    @property
    def bodies(self) -> list[bytes]:
        return [m.body for m in self.messages]

    async def count(self, wanted: int, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while len(self.messages) < wanted:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def group(make_group: Callable[..., Awaitable[Group]]) -> Group:
    made = await make_group(1, settings=SETTINGS)
    await made.lead(0)
    await made.registered()
    return made


async def test_delayed_and_timed_messages_come_when_they_are_due(group: Group) -> None:
    seen = Observations()
    async with (
        Producer(group.name_server) as producer,
        Consumer(group.name_server, "late", from_where=FromWhere.FIRST) as consumer,
    ):
        await producer.send(Message("Later", b"now"))
        await consumer.subscribe("Later", seen)
        await seen.count(1)
        sent = time.time()
        await producer.send(Message("Later", b"level", delay_level=1))
        due = int((time.time() + 1.5) * 1000)
        await producer.send(Message("Later", b"timed", deliver_at_ms=due))
        await seen.count(3)
    assert seen.bodies == [b"now", b"level", b"timed"]
    assert seen.times[1] >= sent + 1.0
    assert seen.times[2] * 1000 >= due


async def test_a_message_that_always_fails_is_retried_and_then_dead(group: Group) -> None:
    tried: list[int] = []
    dead = Observations()

    async def fail(message: ReceivedMessage) -> None:
        tried.append(message.reconsume_times)
        raise ValueError("cannot be consumed")

    async with Admin(group.name_server) as admin:
        await admin.create_group(SubscriptionGroup("failing", retry_max_times=2))
    async with (
        Producer(group.name_server) as producer,
        Consumer(group.name_server, "failing", from_where=FromWhere.FIRST, max_retries=2) as consumer,
    ):
        await producer.send(Message("Bad", b"poison", keys="k"))
        await consumer.subscribe("Bad", fail)
        async with Consumer(group.name_server, "undertaker", from_where=FromWhere.FIRST) as other:
            await other.subscribe("%DLQ%failing", dead)
            await dead.count(1)
    assert tried == [0, 1, 2]
    assert dead.bodies == [b"poison"]


async def test_transactions_commit_roll_back_and_are_checked(group: Group) -> None:
    seen = Observations()
    asked: list[bytes] = []
    given_up = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        if asked.count(b"never") == 3:
            given_up.set()
        return TransactionState.COMMIT if message.body == b"asked" else TransactionState.UNKNOWN

    def decide(state: TransactionState) -> Any:
        async def work(message: Message, transaction_id: str) -> TransactionState:
            return state

        return work

    async with Producer(group.name_server) as plain:
        await plain.send(Message("Paid", b"first"))
    async with (
        TransactionProducer(group.name_server, "tx", check) as producer,
        Consumer(group.name_server, "accounts", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("Paid", seen)
        for body, state in (
            (b"yes", TransactionState.COMMIT),
            (b"no", TransactionState.ROLLBACK),
            (b"asked", TransactionState.UNKNOWN),
            (b"never", TransactionState.UNKNOWN),
        ):
            await producer.send_in_transaction(Message("Paid", body), decide(state))
        await seen.count(3)
        async with asyncio.timeout(20):
            await given_up.wait()
        await asyncio.sleep(0.6)
    assert sorted(seen.bodies) == [b"asked", b"first", b"yes"]
    assert asked.count(b"asked") == 1
    assert asked.count(b"never") == 3


async def test_a_request_gets_its_reply(group: Group) -> None:
    async with (
        Producer(group.name_server) as producer,
        Requester(group.name_server, "asks") as requester,
        Consumer(group.name_server, "answers", from_where=FromWhere.FIRST) as consumer,
    ):
        await producer.send(Message("Prices", b"warm up"))

        async def answer(message: ReceivedMessage) -> None:
            if message.body == b"apples":
                await reply(producer, message, b"3 euros")

        await consumer.subscribe("Prices", answer)
        got = await requester.request(Message("Prices", b"apples"), timeout=15)
    assert got.body == b"3 euros"


async def test_sql_filters_on_the_broker(group: Group) -> None:
    seen = Observations()
    async with (
        Producer(group.name_server) as producer,
        Consumer(group.name_server, "picky", from_where=FromWhere.FIRST) as consumer,
    ):
        for number in range(20):
            await producer.send(
                Message("Sizes", b"%d" % number, properties={"size": str(number), "kind": "ab"[number % 2]})
            )
        await consumer.subscribe("Sizes", seen, "size > 10 AND kind = 'a'", sql=True)
        await seen.count(4)
    assert sorted(int(b) for b in seen.bodies) == [12, 14, 16, 18]


async def test_administration(group: Group) -> None:
    async with Admin(group.name_server) as admin, Producer(group.name_server) as producer:
        await admin.create_topic("Made", queues=2)
        for number in range(6):
            await producer.send(Message("Made", b"%d" % number, keys=f"key-{number}"))
        stats = await admin.topic_stats("Made")
        assert sum(s.max_offset for s in stats.values()) == 6
        found = await admin.query("Made", "key-3")
        assert [m.body for m in found] == [b"3"]
        address = (await admin.masters())["demo-a"]
        assert (await admin.runtime_info(address))["brokerVersionDesc"] == "V4_9_7"
        assert (await admin.broker_config(address))["maxMessageSize"] == "4194304"
        await admin.update_broker_config(address, {"maxMessageSize": "2048"})
        assert (await admin.broker_config(address))["maxMessageSize"] == "2048"
        await admin.delete_topic("Made")
        assert "Made" not in await admin.topics()


async def test_delays_and_half_messages_survive_a_failover(make_group: Callable[..., Awaitable[Group]]) -> None:
    group = await make_group(3, settings={**SETTINGS, "messageDelayLevel": "4s 5s"}, led=True)
    seen = Observations()

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def unknown(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    transactions = TransactionProducer(group.name_server, "tx", check)
    transactions.session._heartbeat_s = 1.0  # The new master knows whom to ask by the next heartbeat.
    async with transactions as producer:
        sent = time.time()
        await producer.send(Message("Both", b"early"))
        await producer.send(Message("Both", b"delayed", delay_level=1))
        await producer.send_in_transaction(Message("Both", b"half"), unknown)
        await group.members[0].kill()
        await group.lead(1, [1, 2])
        async with Consumer(group.name_server, "after", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("Both", seen)
            await seen.count(3, 60)
            await asyncio.sleep(0.5)
    assert sorted(seen.bodies) == [b"delayed", b"early", b"half"]
    assert seen.times[seen.bodies.index(b"delayed")] >= sent + 4.0


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not within 30 s")


async def test_a_setting_changed_at_run_time_holds_after_a_failover(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    """The setting is in the log: the new master has it at once, and the killed one when it comes back."""
    group = await make_group(3, led=True)
    async with Admin(group.name_server) as admin, Producer(group.name_server) as producer:
        await producer.send("T", b"x" * 3_000)
        await admin.update_broker_config(group.group_address, {"maxMessageSize": "2048", "fileReservedTime": "71"})
        await group.members[0].kill()
        await group.lead(1, [1, 2])

        async def holds(address: str) -> bool:
            try:
                config = await admin.broker_config(address)
            except (ClientError, RemotingError):
                return False
            return (config["maxMessageSize"], config["fileReservedTime"]) == ("2048", "71")

        await _until(lambda: holds(group.group_address))
        with pytest.raises(BrokerError, match="maxMessageSize is 2048"):
            await producer.send("T", b"x" * 3_000)
        assert (await producer.send("T", b"x" * 1_000)).status is SendStatus.SEND_OK
        await group.members[0].start()
        await group.send_assignments()
        for member in group.members:
            await _until(lambda address=member.address: holds(address))
