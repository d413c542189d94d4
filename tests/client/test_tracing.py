"""What is seen of a message on its way: OpenTelemetry's spans, and RocketMQ's own message trace."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Sequence

import pytest
from gantry_broker.client import (
    Admin,
    BrokerError,
    Consumer,
    FromWhere,
    Message,
    OrderedConsumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from gantry_broker.client.trace import MOST_CHARACTERS, MOST_TOGETHER, MOST_WAITING, MessageTrace, TraceRecord, batches
from gantry_broker.protocol.codes import TRACE_TOPIC
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.client.cluster import Cluster, Inbox, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Tracing:
    """A tracer provider of a program, and the spans that end."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


@pytest.fixture
async def traced(empty_cluster: Cluster) -> Cluster:
    """The cluster has the topic of the message trace."""
    await empty_cluster.add("a", messageDelayLevel="1s 1s 1s 1s", traceTopicEnable=True)
    async with Admin(empty_cluster.name_server) as admin:
        await admin.create_topic("T", queues=4)
    return empty_cluster


# ---- OpenTelemetry


async def test_a_message_carries_its_trace_from_the_sender_to_the_handler(
    cluster: Cluster, inbox: Inbox, tracing: Tracing
) -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        await inbox(message)

    async with (
        Producer(cluster.name_server, "shop", tracer_provider=tracing.provider) as producer,
        Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST, tracer_provider=tracing.provider) as consumer,
    ):
        await consumer.subscribe("T", handle)
        with tracing.provider.get_tracer("application").start_as_current_span("order") as order:
            result = await producer.send(Message("T", b"apples", tags="A", keys="4711 x"))
        await until(lambda: bool(tracing.spans("process T")), "the span of the handler")
    (send,), (process,), (receive,) = (tracing.spans(f"{what} T") for what in ("send", "process", "receive"))
    assert inbox.messages[0].properties["traceparent"].split("-")[1:3] == [
        f"{n:0{w}x}" for n, w in zip(ids(send), (32, 16), strict=True)
    ]
    assert send.parent is not None
    assert (send.context.trace_id, send.parent.span_id) == (
        order.get_span_context().trace_id,
        order.get_span_context().span_id,
    )
    assert process.parent is not None
    assert (process.context.trace_id, process.parent.span_id) == ids(send), "the sender's trace goes on"
    assert seen == [send.context.trace_id], "the handler's own spans belong to it"
    assert [(link.context.trace_id, link.context.span_id) for link in receive.links] == [ids(send)]
    assert attributes(send) == {
        "messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.destination.name": "T", "messaging.rocketmq.client_group": "shop",
        "messaging.message.body.size": 6, "messaging.rocketmq.message.tag": "A",
        "messaging.rocketmq.message.keys": ("4711", "x"), "messaging.message.id": result.message_id,
        "messaging.destination.partition.id": str(result.queue.queue_id), "gantry.broker": "a",
        "gantry.send_status": "SEND_OK",
    }  # fmt: skip
    assert attributes(process)["messaging.message.id"] == result.message_id
    assert attributes(process)["messaging.consumer.group.name"] == "g"


async def test_a_handler_that_fails_marks_its_span(cluster: Cluster, tracing: Tracing) -> None:
    async def fail(message: ReceivedMessage) -> None:
        raise ValueError("no apples")

    async with (
        Producer(cluster.name_server) as producer,
        Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST, tracer_provider=tracing.provider) as consumer,
    ):
        await consumer.subscribe("T", fail)
        await producer.send(Message("T", b"x", properties={"traceparent": PARENT}))
        await until(lambda: bool(tracing.spans("process T")), "the span of the handler")
    span = tracing.spans("process T")[0]
    assert not span.status.is_ok
    assert [e.attributes["exception.message"] for e in span.events if e.attributes] == ["no apples"]
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1], "another client's context"


async def test_clients_of_rocketmq_5_name_the_context_differently(cluster: Cluster, tracing: Tracing) -> None:
    async with (
        Producer(cluster.name_server) as producer,
        PullConsumer(
            cluster.name_server, "g", from_where=FromWhere.FIRST, tracer_provider=tracing.provider
        ) as consumer,
    ):
        frame, key = producer._frame(Message("T", b"x"), {"TRACE_CONTEXT": PARENT})
        await producer._deliver(frame, Message("T", b"x"), key, None, None, None, 3)
        await consumer.assign(await consumer.queues("T"))
        assert await consumer.poll()
    (receive,) = tracing.spans("receive T")
    assert [f"{link.context.trace_id:032x}" for link in receive.links] == [PARENT.split("-")[1]]


async def test_batches_one_way_sends_and_failures_have_spans(cluster: Cluster, tracing: Tracing) -> None:
    async with Producer(cluster.name_server, tracer_provider=tracing.provider) as producer:
        await producer.send_batch([Message("T", b"a"), Message("T", b"bc")])
        await producer.send_oneway(Message("T", b"d"))
        with pytest.raises(BrokerError):
            await producer.send(
                Message("T", b"x", delay_level=99, tags="far"),
                queue=(await producer.queues("T"))[0]._replace(queue_id=77),
            )
    batch, oneway, failed = tracing.spans("send T")
    assert attributes(batch)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in attributes(oneway)
    assert not failed.status.is_ok
    assert failed.events[0].name == "exception"


def test_without_a_tracer_opentelemetry_is_not_imported() -> None:
    code = "import sys, gantry_broker.client as c; c.Producer('127.0.0.1:1'); print('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


async def test_without_a_tracer_messages_have_no_context(cluster: Cluster, inbox: Inbox) -> None:
    async with (
        Producer(cluster.name_server) as producer,
        Consumer(cluster.name_server, "g", from_where=FromWhere.FIRST) as consumer,
    ):
        await consumer.subscribe("T", inbox)
        await producer.send(Message("T", b"x"))
        await inbox.wait(1)
        assert (producer._spans, consumer._spans) == (None, None)
    assert "traceparent" not in inbox.messages[0].properties


# ---- RocketMQ's message trace


async def records(cluster: Cluster, count: int) -> list[list[str]]:
    """The fields of the records in the trace's topic, once there are `count`."""
    found: list[list[str]] = []
    async with PullConsumer(cluster.name_server, "reader", from_where=FromWhere.FIRST) as consumer:
        await consumer.assign(await consumer.queues(TRACE_TOPIC))
        while len(found) < count:
            for message in await consumer.poll(20):
                for text in message.body.decode().removesuffix("\x02").split("\x02"):
                    found.append(text.split("\x01"))
                    assert found[-1][2 if text.startswith("SubAfter") else 5] in message.keys, (
                        "found by the message's id"
                    )
    return found


async def test_a_message_s_way_is_in_the_trace(traced: Cluster, inbox: Inbox) -> None:
    async with (
        Producer(traced.name_server, "shop", trace=True) as producer,
        Consumer(traced.name_server, "g", from_where=FromWhere.FIRST, trace=True) as consumer,
    ):
        await consumer.subscribe("T", inbox)
        result = await producer.send(Message("T", b"apples", keys="4711"))
        await inbox.wait(1)
    found = {fields[0]: fields for fields in await records(traced, 3)}
    pub, before, after = found["Pub"], found["SubBefore"], found["SubAfter"]
    assert pub[2:8] == ["DefaultRegion", "shop", "T", result.message_id, "null", "4711"]
    assert pub[9] == "6"
    assert pub[11:] == ["0", result.offset_id, "true"]
    assert before[2:4] == ["DefaultRegion", "g"]
    assert before[5:] == [result.message_id, "0", "4711"]
    assert (after[1], after[2], after[4:7], after[8]) == (before[4], result.message_id, ["true", "4711", "0"], "g")


async def test_failures_delays_batches_and_transactions_differ(traced: Cluster) -> None:
    async def refuse(message: ReceivedMessage) -> bool:
        return False

    async def commit(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(traced.name_server, "shop", check, trace=True) as producer:
        batch = await producer.send_batch([Message("T", b"a"), Message("T", b"bc")])
        await producer.send(Message("T", b"d", delay_level=1))
        await producer.send_in_transaction(Message("T", b"e"), commit)
        async with OrderedConsumer(traced.name_server, "g", from_where=FromWhere.FIRST, trace=True) as consumer:
            await consumer.subscribe("T", refuse)
            await until(lambda: bool(consumer._trace and consumer._trace._records), "a record")
    found = await records(traced, 7)
    pubs = [fields for fields in found if fields[0] == "Pub"]
    assert [fields[5] for fields in pubs[:2]] == batch.message_id.split(",")
    assert [fields[11] for fields in pubs] == ["0", "0", "3", "1"]
    (end,) = [fields for fields in found if fields[0] == "EndTransaction"]
    assert (end[5], end[11:]) == (pubs[3][5], ["COMMIT_MESSAGE", "false"])
    failed = next(fields for fields in found if fields[0] == "SubAfter")
    assert (failed[4], failed[6]) == ("false", "4")


class NoBroker:
    """Takes no record."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def send(self, message: Message, /) -> SendResult:
        self.sent.append(message)
        raise BrokerError("send", 1, "no such topic")


async def test_a_trace_that_cannot_be_written_is_dropped_and_memory_is_bounded() -> None:
    broker = NoBroker()
    seen = MessageTrace(broker)
    seen.add(TraceRecord(f"r{n}\x02", ("k",)) for n in range(MOST_WAITING + 5))
    seen.add([TraceRecord("x" * (MOST_CHARACTERS + 1), ("k",))])
    assert seen.dropped == 6
    await seen.start()
    await seen.close()
    assert seen.dropped == MOST_WAITING + 6
    assert sum(message.body.count(b"\x02") for message in broker.sent) == MOST_WAITING


@pytest.mark.parametrize("sizes", [[5] * 250, [MOST_CHARACTERS // 2 + 1] * 5, [5]])
def test_records_leave_together_within_the_limits(sizes: Sequence[int]) -> None:
    waiting = deque(TraceRecord("x" * size, (str(n),)) for n, size in enumerate(sizes))
    found = list(batches(waiting))
    assert "".join(text for text, _ in found) == "x" * sum(sizes)
    assert not waiting
    assert all(len(keys) <= MOST_TOGETHER and len(text) < 2 * MOST_CHARACTERS for text, keys in found)
    assert set().union(*(keys for _, keys in found)) == {str(n) for n in range(len(sizes))}


async def test_the_trace_of_a_missing_topic_harms_no_send(cluster: Cluster) -> None:
    async with Producer(cluster.name_server, "shop", trace=True) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
