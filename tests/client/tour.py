"""A tour through all features of the client, against any RocketMQ 4.9 cluster: `python tour.py HOST:PORT`.

Each stop checks the broker's part; the first failure ends the tour with its traceback. Delays are RocketMQ's defaults
(the first retry comes after 10 s, a transaction is checked after 6 s) unless configured otherwise.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    DeadLetters,
    FromWhere,
    Message,
    MessageQueue,
    OrderedConsumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Requester,
    SendStatus,
    Session,
    TransactionProducer,
    TransactionState,
    reply,
)

STAMP = f"{time.time_ns() // 1_000_000 % 10**9}"
"""Makes the topics and groups of this tour unique."""


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 60.0) -> None:
    """Waits until a condition is true; fails with `what` after a timeout."""
    deadline = time.monotonic() + seconds
    while True:
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        if held:
            return
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


async def until_polled(consumer: PullConsumer, got: list[ReceivedMessage], count: int) -> None:
    async def enough() -> bool:
        got.extend(await consumer.poll(0.2))
        return len(got) >= count

    await until(enough, f"{count} messages")


class Tour:
    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self.broker = ""

    async def topic(self, name: str, queues: int = 4, **options: bool) -> str:
        """Creates a topic of this tour and waits for its route."""
        topic = f"Tour{name}{STAMP}"
        async with Admin(self.name_server) as admin:
            [self.broker, *_] = await admin.create_topic(topic, queues=queues, **options)

            async def routed() -> bool:
                return topic in await admin.topics()

            await until(routed, f"a route for {topic}")
        return topic

    def consumer(self, name: str, **options: object) -> Consumer:
        return Consumer(self.name_server, f"tour{name}{STAMP}", from_where=FromWhere.FIRST, **options)  # type: ignore[arg-type]

    async def send_and_consume(self) -> None:
        topic = await self.topic("Plain")
        got: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message)

        async with Producer(self.name_server) as producer, self.consumer("Plain") as consumer:
            results = await asyncio.gather(
                *(producer.send(Message(topic, b"%d" % n, "A", f"k{n}", {"n": str(n)})) for n in range(100))
            )
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            await producer.send(topic, b"large " * 20_000, keys="large")
            await producer.send_batch([Message(topic, b"batch %d" % n) for n in range(10)])
            await producer.send_oneway(topic, b"oneway")
            await consumer.subscribe(topic, handle)
            await until(lambda: len(got) == 112, f"112 messages, {len(got)}")
            assert {m.id for m in got} >= {result.message_id for result in results}
            assert b"large " * 20_000 in {m.body for m in got}
            await consumer.commit()
        async with Admin(self.name_server) as admin:
            stats = await admin.consume_stats(f"tourPlain{STAMP}", topic)
            assert sum(item.broker_offset - item.consumer_offset for item in stats.values()) == 0
            [found] = await admin.query(topic, "large")
            assert found.body == b"large " * 20_000
            assert (await admin.view(results[7].offset_id, topic)).body == b"7"
            [found] = await admin.query(topic, results[8].message_id, unique=True)
            assert found.body == b"8"

    async def filters(self) -> None:
        topic = await self.topic("Filter")
        tags: list[str] = []
        numbers: list[str] = []

        async def by_tag(message: ReceivedMessage) -> None:
            tags.append(message.tags)

        async def by_sql(message: ReceivedMessage) -> None:
            numbers.append(message.properties["n"])

        async with Producer(self.name_server) as producer, self.consumer("Tag") as one, self.consumer("Sql") as two:
            for n in range(30):
                await producer.send(Message(topic, b"x", "ABC"[n % 3], properties={"n": str(n)}))
            await one.subscribe(topic, by_tag, "A || C")
            await two.subscribe(topic, by_sql, "n BETWEEN 5 AND 9", sql=True)
            await until(lambda: Counter(tags) == {"A": 10, "C": 10} and len(numbers) == 5, "what was wanted")
            assert sorted(numbers) == ["5", "6", "7", "8", "9"]
            with pytest.raises(BrokerError, match="SUBSCRIPTION_PARSE_FAILED"):
                await two.subscribe(topic, by_sql, "n BETWEEN", sql=True)

    async def order(self) -> None:
        topic = await self.topic("Order", order=True)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        failed = False

        async def handle(message: ReceivedMessage) -> None:
            nonlocal failed
            key, number = (int(part) for part in message.body.split(b"-"))
            if (key, number) == (1, 5) and not failed:
                failed = True
                raise RuntimeError("once, on purpose")
            seen[key].append(number)

        async with (
            Producer(self.name_server) as producer,
            OrderedConsumer(self.name_server, f"tourOrder{STAMP}", from_where=FromWhere.FIRST) as consumer,
        ):
            for number in range(20):
                for key in seen:
                    await producer.send(topic, b"%d-%d" % (key, number), key=key)
            await consumer.subscribe(topic, handle)
            await until(lambda: all(len(numbers) == 20 for numbers in seen.values()), "all in order", 40)
        assert failed
        assert all(numbers == list(range(20)) for numbers in seen.values())

    async def retry(self) -> None:
        topic = await self.topic("Retry")
        seen: list[int] = []

        async def handle(message: ReceivedMessage) -> bool:
            assert message.topic == topic
            seen.append(message.reconsume_times)
            return False

        group = f"tourRetry{STAMP}"
        async with (
            Producer(self.name_server) as producer,
            self.consumer("Retry", max_retries=1, rebalance_s=1.0) as consumer,
            Admin(self.name_server) as admin,
        ):
            await consumer.subscribe(topic, handle)
            await producer.send(topic, b"x")
            await until(lambda: seen == [0, 1], f"a retry: {seen}", 60)

            async def dead() -> bool:
                return f"%DLQ%{group}" in await admin.topics()

            await until(dead, "a dead letter", 60)
            await admin.topic_route(f"%DLQ%{group}")
            assert await admin.puller().max_offset(MessageQueue(f"%DLQ%{group}", self.broker, 0)) == 1

    async def dead_letters(self) -> None:
        topic, other = await self.topic("Dead"), await self.topic("Resent")
        group = f"tourDead{STAMP}"
        letters: list[ReceivedMessage] = []

        async def refuse(message: ReceivedMessage) -> bool:
            return False

        async with Producer(self.name_server) as producer, Admin(self.name_server) as admin:
            for n in range(3):
                await producer.send(Message(topic, b"%d" % n, "A", f"k{n}", {"n": str(n)}))
            async with self.consumer("Dead", max_retries=0) as consumer, DeadLetters(self.name_server) as dead:
                await consumer.subscribe(topic, refuse)

                async def buried() -> bool:
                    found = await dead.group(group)
                    return found is not None and found.letters == 3

                await until(buried, "three dead letters", 60)
                # RocketMQ makes the topic write-only; an administrator makes it readable.
                await admin.create_topic(f"%DLQ%{group}", queues=1)

                async def readable() -> bool:
                    route = await admin.topic_route(f"%DLQ%{group}")
                    return all(queue.perm & 4 for queue in route.queues)

                await until(readable, "the dead letters may be read", 60)
                letters += [letter async for page in dead.pages(group) for letter in page.letters]
                assert sorted(letter.body for letter in letters) == [b"0", b"1", b"2"]
                await dead.send_again(group, letters[0], to=other)
            async with self.consumer("Resent") as consumer:
                got: list[ReceivedMessage] = []

                async def keep(message: ReceivedMessage) -> None:
                    got.append(message)

                await consumer.subscribe(other, keep)
                await until(lambda: len(got) == 1, "the letter that was sent again")
        assert (got[0].body, got[0].keys, got[0].properties["n"]) == (
            letters[0].body, letters[0].keys, letters[0].properties["n"],
        )  # fmt: skip

    async def times(self) -> None:
        topic = await self.topic("Times", queues=1)
        async with Producer(self.name_server) as producer, Admin(self.name_server) as admin:
            for n in range(3):
                await producer.send(topic, b"%d" % n)
            await asyncio.sleep(1.1)
            between = int(time.time() * 1000)
            await asyncio.sleep(0.2)
            for n in range(3, 6):
                await producer.send(topic, b"%d" % n)
            queue, puller = MessageQueue(topic, self.broker, 0), admin.puller()
            assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 6)

            async def found() -> bool:
                return await puller.offset_at(queue, between) == 3

            await until(found, "the offset of that time")
            assert await puller.offset_at(queue, 0) == 0
        async with PullConsumer(
            self.name_server, f"tourTimes{STAMP}", from_where=FromWhere.TIMESTAMP, from_time_ms=between
        ) as consumer:
            await consumer.subscribe_to(topic)
            got: list[ReceivedMessage] = []
            await until_polled(consumer, got, 3)
            assert [message.body for message in got][-3:] == [b"3", b"4", b"5"]
            await consumer.seek_to_begin(queue)
            got.clear()
            await until_polled(consumer, got, 6)
            assert [message.body for message in got] == [b"%d" % n for n in range(6)]

    async def broadcast(self) -> None:
        topic = await self.topic("Cast")
        got: Counter[str] = Counter()

        def handler(name: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
            async def handle(message: ReceivedMessage) -> None:
                got[name] += 1

            return handle

        async with (
            Producer(self.name_server) as producer,
            self.consumer("Cast", broadcasting=True) as one,
            self.consumer("Cast", broadcasting=True) as two,
        ):
            await one.subscribe(topic, handler("one"))
            await two.subscribe(topic, handler("two"))
            for _ in range(20):
                await producer.send(topic, b"x")
            await until(lambda: got == {"one": 20, "two": 20}, "all messages in both members")

    async def sharing(self) -> None:
        topic = await self.topic("Share")
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        def mine(consumer: Consumer) -> int:
            return sum(1 for queue in consumer.assigned if queue.topic == topic)

        async with Producer(self.name_server) as producer, self.consumer("Share") as one:
            await one.subscribe(topic, handle)
            await until(lambda: mine(one) == 4, "one has all")
            async with self.consumer("Share") as two:
                await two.subscribe(topic, handle)
                await until(lambda: mine(one) == mine(two) == 2, "both have half")
                for n in range(40):
                    await producer.send(topic, b"%d" % n)
                await until(lambda: len(got) == 40, "all have come")
            await until(lambda: mine(one) == 4, "one has all again")

    async def polling(self) -> None:
        topic = await self.topic("Poll")
        async with (
            Producer(self.name_server) as producer,
            PullConsumer(self.name_server, f"tourPoll{STAMP}", from_where=FromWhere.FIRST) as consumer,
        ):
            for n in range(20):
                await producer.send(topic, b"%d" % n)
            await consumer.subscribe_to(topic)
            got: list[ReceivedMessage] = []
            while len(got) < 20:
                batch = await consumer.poll(10)
                assert batch
                got += batch
            queue = MessageQueue(topic, self.broker, 0)
            await consumer.seek(queue, 2)
            assert (await consumer.poll(10, 1))[0].queue_offset == 2
            await consumer.commit()
            assert await consumer.committed(queue) is not None

    async def delay(self) -> None:
        topic = await self.topic("Delay")
        came: dict[bytes, float] = {}

        async def handle(message: ReceivedMessage) -> None:
            came[message.body] = time.monotonic()

        async with Producer(self.name_server) as producer, self.consumer("Delay") as consumer:
            await consumer.subscribe(topic, handle)
            started = time.monotonic()
            await producer.send(Message(topic, b"level 1", delay_level=1))
            await producer.send(Message(topic, b"level 2", delay_level=2))
            await until(lambda: len(came) == 2, "both have come", 30)
        assert 0.9 < came[b"level 1"] - started < came[b"level 2"] - started

    async def transactions(self) -> None:
        topic = await self.topic("Trans")
        got: list[bytes] = []
        checked: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async def check(message: ReceivedMessage) -> TransactionState:
            checked.append(message.body)
            return TransactionState.COMMIT

        async def work(message: Message, transaction_id: str) -> TransactionState:
            return {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}.get(
                message.body, TransactionState.UNKNOWN
            )

        async with (
            TransactionProducer(self.name_server, f"tourTrans{STAMP}", check) as producer,
            self.consumer("Trans") as consumer,
        ):
            await consumer.subscribe(topic, handle)
            for body in (b"yes", b"no", b"perhaps"):
                await producer.send_in_transaction(Message(topic, body), work)
            await until(lambda: b"yes" in got, "what was committed")
            assert b"perhaps" not in got
            await until(lambda: sorted(got) == [b"perhaps", b"yes"], f"what was asked for: {got} {checked}", 120)
        assert set(checked) == {b"perhaps"}

    async def requests(self) -> None:
        topic = await self.topic("Ask")
        async with (
            Session(self.name_server) as session,
            Requester(self.name_server, f"tourAsk{STAMP}") as requester,
            Producer(session, f"tourReply{STAMP}") as producer,
            self.consumer("Ask") as consumer,
        ):

            async def handle(message: ReceivedMessage) -> None:
                await reply(producer, message, message.body.upper())

            await consumer.subscribe(topic, handle)
            await until(lambda: len(consumer.assigned) >= 4, "queues")
            answers = await asyncio.gather(*(requester.request(Message(topic, b"q%d" % n), 10) for n in range(5)))
            assert [answer.body for answer in answers] == [b"Q%d" % n for n in range(5)]

    async def administration(self) -> None:
        topic = await self.topic("Admin", queues=3)
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        group = f"tourAdmin{STAMP}"
        async with Admin(self.name_server) as admin, Producer(self.name_server) as producer:
            for n in range(9):
                await producer.send(topic, b"%d" % n)

            async def counted() -> bool:  # RocketMQ's broker fills its queues after its answer
                return [item.max_offset for item in (await admin.topic_stats(topic)).values()] == [3, 3, 3]

            await until(counted, "three in each queue")
            info = await admin.cluster_info()
            address = info.brokers[self.broker].addresses[0]

            async def sampled() -> bool:  # RocketMQ's broker fails here until it has its first samples
                try:
                    return "bootTimestamp" in await admin.runtime_info(address)
                except BrokerError:
                    return False

            await until(sampled, "runtime information")
            assert (await admin.broker_config(address))["brokerName"] == self.broker
            async with self.consumer("Admin") as consumer:
                await consumer.subscribe(topic, handle)
                await until(lambda: len(got) == 9, "all have come")
                await consumer.commit()
                connections = await admin.consumer_connections(group)
                assert connections is not None
                assert connections.connections[0].client_id == consumer.session.client_id
                assert group in await admin.topic_consumers(topic)
                assert set((await admin.reset_offsets(group, topic, 0)).values()) == {0}
                await until(lambda: len(got) >= 18, "all have come again", 40)
            assert group in await admin.groups(address)
            await admin.set_offset(group, MessageQueue(topic, self.broker, 1), 1)
            assert await admin.offset(group, MessageQueue(topic, self.broker, 1)) == 1
            await admin.put_kv("tour", "k", "v")
            assert await admin.get_kv("tour", "k") == "v"
            await admin.delete_kv("tour", "k")
            await admin.delete_group(group, offsets=True)
            await admin.delete_topic(topic)
            assert topic not in await admin.topics()


STOPS = (
    Tour.send_and_consume,
    Tour.filters,
    Tour.order,
    Tour.broadcast,
    Tour.sharing,
    Tour.polling,
    Tour.requests,
    Tour.administration,
    Tour.delay,
    Tour.retry,
    Tour.dead_letters,
    Tour.times,
    Tour.transactions,
)


async def main(name_server: str, only: list[str]) -> None:
    tour = Tour(name_server)
    for stop in STOPS:
        if only and stop.__name__ not in only:
            continue
        started = time.monotonic()
        await stop(tour)
        print(f"{stop.__name__}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
