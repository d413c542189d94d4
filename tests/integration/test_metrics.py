"""The metrics of a real broker group while our client uses it, under the names that RocketMQ's own broker has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, Message, Producer, PullConsumer
from gantry_broker.protocol.codes import RequestCode
from gantry_operator.topics.seen import BrokerTables
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.rig.wire import Wire
from tests.support.broker_group import Group, MakeGroup, Member, until

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "rocketmq_metrics.json").read_text())["metrics"]
OTHERS = re.compile("rocketmq_(pop|timer|topic_create|storage_message_reserve)_?")
"""Metrics of 5.5.0 that Gantry has no values for: docs/metrics.md."""

Samples = dict[tuple[str, str, str], float]
"""(name, topic, consumer group) to value."""


QUEUES = 4
"""Queues of a topic that the producer creates."""


def commit(group: Group, name: str, queue: int, offset: int) -> None:
    """Commits an offset of a consumer group, as a client does."""
    with Wire(group.group_address) as wire:
        fields = {"consumerGroup": name, "topic": "Orders", "queueId": str(queue), "commitOffset": str(offset)}
        wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def page(member: Member) -> str:
    return (await member.http.get("/metrics")).text


def samples(text: str) -> Iterator[Any]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


async def values(member: Member) -> Samples:
    return {
        (s.name.removeprefix("rocketmq_"), s.labels.get("topic", ""), s.labels.get("consumer_group", "")): s.value
        for s in samples(await page(member))
    }


async def reach(member: Member, wanted: Samples) -> Samples:
    """Waits for these values, and returns all."""
    found: Samples = {}

    async def same() -> bool:
        found.update(await values(member))
        return all(found.get(key) == value for key, value in wanted.items())

    try:
        await until(same, "metrics", 20)
    except AssertionError:
        assert {key: found.get(key) for key in wanted} == wanted
    return found


@pytest.fixture
async def group(make_group: MakeGroup) -> Group:
    group = await make_group(2)
    await group.lead(0, [0, 1])
    await group.registered()
    return group


async def test_lag_counts_what_a_group_has_not_committed_and_not_pulled(group: Group) -> None:
    master = group.members[0]
    async with Producer(group.name_server) as producer:
        for number in range(30):
            await producer.send(Message("Orders", bytes(100), keys=str(number)))
        for queue in range(QUEUES):
            commit(group, "billing", queue, 0)
        key = ("Orders", "billing")
        async with PullConsumer(group.name_server, "billing", auto_commit=False) as consumer:
            await consumer.assign(await consumer.queues("Orders"))
            found = await reach(
                master,
                {
                    ("consumer_lag_messages", *key): 30,
                    ("consumer_inflight_messages", *key): 30,
                    ("consumer_ready_messages", *key): 0,
                    ("consumer_queueing_latency_milliseconds", *key): 0,
                    ("messages_in_total", "Orders", ""): 30,
                    ("messages_out_total", *key): 30,
                    ("message_size_count", "Orders", ""): 30,
                },
            )
        age = found["consumer_lag_latency_milliseconds", *key]
        assert age > 0
        for _ in range(5):
            await producer.send(Message("Orders", bytes(100)))
        await reach(master, {("consumer_lag_messages", *key): 35, ("consumer_ready_messages", *key): 5})
        later = (await values(master))["consumer_lag_latency_milliseconds", *key]
        assert later > age, "the oldest unread message grows older"
        for queue in range(QUEUES):
            commit(group, "billing", queue, 100)
        await reach(master, {("consumer_lag_messages", *key): 0, ("consumer_lag_latency_milliseconds", *key): 0})


async def test_a_queue_without_an_offset_counts_from_its_first_message_everywhere(group: Group) -> None:
    """Metrics, the tables of console and operator, and mqadmin's consumerProgress give one figure."""
    master = group.members[0]
    async with Producer(group.name_server) as producer, Admin(group.name_server) as admin:
        for number in range(300):
            await producer.send(Message("Orders", b"x", keys=str(number)))
        commit(group, "reader", 0, 60)
        commit(group, "reader", 1, 40)
        commit(group, "reader", 2, 10**9)  # Beyond the end: nothing of the queue is unread.
        ends = {queue.queue_id: row.max_offset for queue, row in (await admin.topic_stats("Orders")).items()}
        left = ends[0] - 60 + ends[1] - 40 + ends[3]
        await reach(master, {("consumer_lag_messages", "Orders", "reader"): left})
        tables = (await master.http.get("/v1/tables")).json()
        (row,) = [row for row in tables["lags"] if row["group"] == "reader"]
        assert sum(end - position for _, end, position in row["queues"]) == left
        assert {queue: position for queue, _, position in row["queues"]} == {0: 60, 1: 40, 2: ends[2], 3: 0}
        stats = await admin.consume_stats("reader")
        assert sum(o.broker_offset - o.consumer_offset for o in stats.values()) == left
        assert BrokerTables("a", tables).lag("reader") == left


async def test_only_the_master_reports_lag_and_a_new_master_knows_it(group: Group) -> None:
    key = ("Orders", "billing")
    async with Producer(group.name_server) as producer:
        for _ in range(10):
            await producer.send(Message("Orders", b"x"))
        for queue in range(QUEUES):
            commit(group, "billing", queue, 0)
        await reach(group.members[0], {("consumer_lag_messages", *key): 10})
    assert ("consumer_lag_messages", *key) not in await values(group.members[1])
    new = (await group.members[1].status()).member.value()
    answer = await group.members[0].handover(new, group.leadership)
    assert answer.ready, answer.reason
    await group.lead(1, [0, 1])
    await reach(group.members[1], {("consumer_lag_messages", *key): 10})
    assert ("consumer_lag_messages", *key) not in await values(group.members[0])


async def test_dead_letters_and_refused_sends_count(group: Group) -> None:
    master = group.members[0]

    async def refuse(message: Message) -> bool:
        return False

    async with Producer(group.name_server) as producer:
        await producer.send(Message("Orders", b"x"))
        async with Consumer(group.name_server, "billing", from_where=FromWhere.FIRST, max_retries=0) as consumer:
            await consumer.subscribe("Orders", refuse)
            await reach(master, {("send_to_dlq_messages_total", "Orders", "billing"): 1})
            await reach(master, {("gantry_dead_letters", "", "billing"): 1})
            assert (await master.status()).dead_letters == 1
            text = await page(master)
    assert "rocketmq_consumer_connections{" in text
    assert 'consume_mode="push"' in text


async def test_names_kinds_and_labels_are_those_of_rocketmq(group: Group) -> None:
    async with Producer(group.name_server) as producer:
        await producer.send(Message("Orders", b"x"))
        async with PullConsumer(group.name_server, "billing") as consumer:
            for queue in range(QUEUES):
                commit(group, "billing", queue, 0)
            await consumer.assign(await consumer.queues("Orders"))
            await reach(group.members[0], {("messages_out_total", "Orders", "billing"): 1})

            async def connected() -> bool:
                return "rocketmq_producer_connections{" in await page(group.members[0])

            await until(connected, "the producer's heartbeat")
            text = await page(group.members[0])
    found = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("rocketmq_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = {"kind": family.type, "labels": sorted(labels)}
    empty = {name for name, what in found.items() if not what["labels"]}
    assert empty <= {"rocketmq_consumer_connections", "rocketmq_send_to_dlq_messages_total"}
    expected = {name: what for name, what in RECORDED.items() if not OTHERS.match(name)}
    for name, what in expected.items():
        if name not in empty:
            assert found.get(name) == what, name


async def histogram(member: Member, name: str, **labels: str) -> tuple[float, float]:
    """The count and the sum of the histograms with these labels."""
    found = [s for s in samples(await page(member)) if labels.items() <= s.labels.items()]
    count, total = (sum(s.value for s in found if s.name == f"{name}_{what}") for what in ("count", "sum"))
    return count, total


async def test_the_time_of_a_held_pull_is_in_rocketmq_s_latency_and_not_in_ours(group: Group) -> None:
    """Held for a second, and answered at once when a message comes."""
    master = group.members[0]
    held = {"request_code": "pull_message", "is_long_polling": "true", "response_code": "success"}
    async with Producer(group.name_server) as producer:
        await producer.send(Message("Orders", b"x"))
        async with PullConsumer(group.name_server, "billing") as consumer:
            await consumer.assign(await consumer.queues("Orders"))

            async def waiting() -> bool:
                found = [s.value for s in samples(await page(master)) if s.name == "gantry_held_pulls"]
                return found == [QUEUES]

            await until(waiting, "held pulls")
            ours = await histogram(master, "gantry_pull_latency_seconds")
            assert await histogram(master, "rocketmq_rpc_latency_milliseconds", **held) == (0, 0)
            await asyncio.sleep(1)
            await producer.send(Message("Orders", b"x"))
            assert await consumer.poll()

            async def counted() -> bool:
                return (await histogram(master, "rocketmq_rpc_latency_milliseconds", **held))[0] == 1

            await until(counted, "the answer counts")
            assert (await histogram(master, "rocketmq_rpc_latency_milliseconds", **held))[1] >= 1_000
            later = await histogram(master, "gantry_pull_latency_seconds")
            assert later[0] >= ours[0] + 1
            assert later[1] - ours[1] < 1, "the second for which it was held is not in it"
    sends = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
    assert (await histogram(master, "rocketmq_rpc_latency_milliseconds", **sends))[0] == 2
    assert (await histogram(master, "gantry_replication_latency_seconds"))[0] == 2
    assert (await histogram(master, "gantry_event_loop_lag_seconds"))[0] > 0
