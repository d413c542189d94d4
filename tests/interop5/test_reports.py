"""Failures that users of RocketMQ's clients and proxy reported: each test names its number.

"clients" is apache/rocketmq-clients, all others are numbers of apache/rocketmq. Where Apache RocketMQ 5.5.0 is right by
now, INTEROP=full asks it the same. clients 667 and 722 are in test_clients.py.
"""

from __future__ import annotations

import base64
import itertools
import os
import signal
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rig.driver import Running
from benchmarks.rig.processes import until
from tests.interop5.clients import RAW, Driven, ToolMissing
from tests.interop5.conftest import FULL, World
from tests.interop5.raw import RawClient, endpoints, message, number
from tests.interop5.systems import System

pytestmark = pytest.mark.timeout(240, func_only=True)  # without the first build of a client, which takes minutes
_NAMES = itertools.count(time.time_ns() // 1_000_000 % 1_000_000_000)


@dataclass
class Place:
    """A system and a driver of single calls."""

    system: System
    driven: Driven

    def client(self, address: str | None = None, **options: Any) -> RawClient:
        return RawClient(self.driven, self.system, f"raw@{next(_NAMES)}", address, **options)

    def topic(self, kind: str = "NORMAL", queues: int = 1) -> str:
        return self.system.topic(f"report_{next(_NAMES)}", kind, queues)

    def group(self, orderly: bool = False, attempts: int = 16) -> str:
        return self.system.group(f"reported_{next(_NAMES)}", orderly, attempts)


@pytest.fixture(scope="session", params=["gantry", "rocketmq"] if FULL else ["gantry"])
def place(
    request: pytest.FixtureRequest, _systems: Callable[[str], System], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    system = _systems(request.param)
    try:
        driven = RAW.session(tmp_path_factory.mktemp("raw"), system.target.prefix, system.endpoints, tls=False)
    except ToolMissing as e:
        pytest.skip(f"single calls are not made here: {e}")
    yield Place(system, driven)
    driven.close()


@pytest.mark.parametrize("kind", ["PUSH_CONSUMER", "SIMPLE_CONSUMER"])
def test_754_1092_order_holds_before_settings_arrive(place: Place, kind: str) -> None:
    """clients 754, 1092: a consumer that receives before its settings are there got an orderly group's messages out
    of order: the group's configuration says that it is orderly, not what the client has sent until now.
    """
    topic, group = place.topic("FIFO"), place.group(orderly=True)
    producer, other, early = place.client(), place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    for n in range(3):
        producer.send(message(topic, n, "FIFO", messageGroup="g"))
    known = other.settings(kind, topic, group)
    first = other.receive_all(topic, group, 1, batch=1)
    assert [number(one) for one in first] == [0]
    request = {
        "group": {"name": group}, "batchSize": 1, "longPollingTimeout": "5s", "invisibleDuration": "15s",
        "messageQueue": {"topic": {"name": topic}, "id": -1, "broker": {"name": place.system.target.broker_name}},
    }  # fmt: skip
    answers = early.ask("ReceiveMessage", request)
    assert not [answer for answer in answers if "message" in answer], "0 is in flight and holds its message group"
    late = early.settings(kind, topic, group)
    assert other.ack(topic, group, *first) == ["OK"]
    assert [number(one) for one in early.receive_all(topic, group, 1, batch=1)] == [1]
    early.stop(late)
    for client, stream in ((producer, telemetry), (other, known)):
        client.stop(stream)


def test_1168_1191_settings_carry_a_metric(place: Place) -> None:
    """clients 1168, 1191: Python's push consumer does not start when the settings have no `metric`."""
    topic, group = place.topic(), place.group()
    client = place.client()
    stream = client.settings("PUSH_CONSUMER", topic, group)
    settings = stream.lines[0]["settings"]
    assert "metric" in settings, settings
    assert settings["backoffPolicy"]["maxAttempts"] == 17
    assert len(settings["backoffPolicy"]["customizedBackoff"]["next"]) >= 16
    client.stop(stream)


def test_10510_872_pings_of_a_quiet_client_are_answered(place: Place) -> None:
    """10510, clients 872: keep-alive pings each second on a quiet connection ended in GOAWAY, ENHANCE_YOUR_CALM."""
    topic, group = place.topic(), place.group()
    client = place.client(**{
        "grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 3_000, "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0, "grpc.http2.min_time_between_pings_ms": 1_000,
    })  # fmt: skip
    stream = client.settings("SIMPLE_CONSUMER", topic, group)
    time.sleep(6)
    assert client.heartbeat("SIMPLE_CONSUMER", group) == "OK"
    assert not stream.done
    assert stream.queue.empty(), "the stream is still the first one"
    client.stop(stream)


def test_708_10827_the_same_attempt_gets_its_messages_again(place: Place) -> None:
    """clients 708, 10827: a receive of an orderly group that is tried again with its attempt id (its answer was lost)
    gets the same messages, and the head of the queue is not blocked until the invisible time is over.
    """
    topic, group = place.topic("FIFO"), place.group(orderly=True)
    producer, consumer = place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    known = consumer.settings("PUSH_CONSUMER", topic, group)
    for n in range(2):
        producer.send(message(topic, n, "FIFO", messageGroup="g"))
    options: dict[str, Any] = {"invisible_s": None, "autoRenew": True}
    first: list[dict[str, Any]] = []
    attempt = ""
    while not first:
        attempt = f"attempt-{next(_NAMES)}"
        first = consumer.receive(topic, group, attemptId=attempt, **options)
    again = consumer.receive(topic, group, attemptId=attempt, **options)
    assert [number(one) for one in again] == [number(one) for one in first]
    assert consumer.receive(topic, group, attemptId="another", **options) == []
    assert consumer.ack(topic, group, *again) == ["OK"] * len(again)
    for client, stream in ((producer, telemetry), (consumer, known)):
        client.stop(stream)


def test_599_7999_order_is_the_groups(place: Place) -> None:
    """clients 599, 7999: the group's configuration decides whether messages come in order, and the settings say it."""
    topic = place.topic("FIFO")
    producer = place.client()
    telemetry = producer.settings("PRODUCER", topic)
    for n in range(4):
        producer.send(message(topic, n, "FIFO", messageGroup="g"))
    for orderly in (True, False):
        group, consumer = place.group(orderly), place.client()
        stream = consumer.settings("PUSH_CONSUMER", topic, group)
        assert stream.lines[0]["settings"]["subscription"].get("fifo", False) is orderly
        first = consumer.receive_all(topic, group, 1, batch=1)
        assert [number(one) for one in first] == [0]
        second = consumer.receive(topic, group, batch=1)
        assert [number(one) for one in second] == ([] if orderly else [1])
        consumer.stop(stream)
    producer.stop(telemetry)


def test_7837_4783_renewal_begins_and_ends(place: Place) -> None:
    """7837: nobody renewed the invisible time of a push consumer's messages. 4783: it went on after the message had
    gone to the dead letters.
    """
    topic, group = place.topic(), place.group()
    producer, consumer, other = place.client(), place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    producer.send(message(topic, 1))
    streams = [one.settings("PUSH_CONSUMER", topic, group) for one in (consumer, other)]
    got = consumer.receive_all(topic, group, 1, invisible_s=None, autoRenew=True)
    assert [number(one) for one in got] == [1]
    assert other.receive(topic, group, invisible_s=None, autoRenew=True, poll_s=5) == []
    properties = got[0]["systemProperties"]
    answer = consumer.ask("ForwardMessageToDeadLetterQueue", {
        "group": {"name": group}, "topic": {"name": topic}, "receiptHandle": properties["receiptHandle"],
        "messageId": properties["messageId"], "deliveryAttempt": 1, "maxDeliveryAttempts": 1,
    })[0]  # fmt: skip
    assert answer["status"]["code"] == "OK", answer
    until("the dead letter", lambda: place.system.stored(f"%DLQ%{group}", 1) == 1, 30)
    assert consumer.receive(topic, group, invisible_s=None, autoRenew=True) == []
    assert place.system.stored(f"%DLQ%{group}", 1) == 1
    for client, stream in zip((producer, consumer, other), (telemetry, *streams), strict=True):
        client.stop(stream)


@pytest.mark.nightly
def test_7837_a_message_in_work_for_longer_than_its_invisible_time(place: Place) -> None:
    """7837: the proxy renews what a push consumer works on for longer than the invisible time, a minute."""
    topic, group = place.topic(), place.group()
    producer, consumer = place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    stream = consumer.settings("PUSH_CONSUMER", topic, group)
    producer.send(message(topic, 1))
    got = consumer.receive_all(topic, group, 1, invisible_s=None, autoRenew=True)
    assert len(got) == 1
    end = time.monotonic() + 80
    while time.monotonic() < end:
        consumer.heartbeat("PUSH_CONSUMER", group)
        assert consumer.receive(topic, group, invisible_s=None, autoRenew=True) == [], "it is in work"
    assert consumer.ack(topic, group, *got) == ["OK"], "the first handle still leads to it"
    producer.stop(telemetry)
    consumer.stop(stream)


@pytest.fixture
def second_proxy(place: Place, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The endpoints and the process id of one more proxy of the same system."""
    with place.system.another_proxy(tmp_path, "second") as started:
        yield started


def test_10278_a_handle_outlives_its_proxy(place: Place, second_proxy: tuple[str, int]) -> None:
    """10278: a proxy that crashes takes the handles of its renewals with it. Here another proxy takes the handle that
    the client has, also after a change of the invisible time.
    """
    topic, group = place.topic(), place.group()
    address, pid = second_proxy
    producer = place.client()
    telemetry = producer.settings("PRODUCER", topic)
    for n in range(2):
        producer.send(message(topic, n))
    doomed = place.client(address)
    doomed.settings("SIMPLE_CONSUMER", topic, group)
    got = doomed.receive_all(topic, group, 2, invisible_s=20)
    assert sorted(number(one) for one in got) == [0, 1]
    doomed.change_invisible(topic, group, got[0], 20)
    os.kill(pid, signal.SIGKILL)
    survivor = place.client()
    stream = survivor.settings("SIMPLE_CONSUMER", topic, group)
    assert survivor.ack(topic, group, *got) == ["OK", "OK"]
    assert survivor.receive(topic, group) == []
    producer.stop(telemetry)
    survivor.stop(stream)


# The Rust client sends its settings once, and a restarted proxy of Apache's then refuses each receive.
@pytest.mark.gantry_only("rust-5.0.0")
@pytest.mark.nightly
def test_1137_a_client_goes_on_after_a_restart_of_the_proxy(world: World, tmp_path: Path) -> None:
    """clients 1137: a restarted proxy does not know the settings of its clients, which fail for up to five minutes."""
    topic, group, port = world.topic(), world.group(), world.system.port()
    place: dict[str, Any] = {"endpoints": f"127.0.0.1:{port}"}
    with world.system.another_proxy(tmp_path, "restarted", port):
        consumer = world.start("simple", topic=topic, group=group, count=4, timeout_ms=90_000, **place)
        consumer.wait_for("started")
        producer = world.start(
            "produce", topic=topic, kind="normal", count=120, pause_ms=500, settle_ms=0, **place
        )  # fmt: skip
        producer.wait_for("sent")
        consumer.wait_for("message")
    with world.system.another_proxy(tmp_path, "restarted", port):
        began = time.monotonic()
        assert _next(producer, "sent") is not None
        assert _next(consumer, "message") is not None
        assert time.monotonic() - began < 30
        world.driven.stop(producer)
        world.driven.stop(consumer)
        producer.finish()
        consumer.finish()


def _next(running: Running, event: str) -> dict[str, Any] | None:
    """Returns the next such event after what has come until now."""
    while not running.done and not running.queue.empty():
        running.next(1)
    return running.wait_for(event, 60)


def test_9953_a_compressed_half_message_keeps_its_body(place: Place) -> None:
    """9953: a half message with a compressed body is stored again at its check or commit, and was compressed twice."""
    topic, group = place.topic("TRANSACTION"), place.group()
    producer, consumer = place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    stream = consumer.settings("SIMPLE_CONSUMER", topic, group)
    half = message(topic, 0, "TRANSACTION", bodyEncoding="GZIP", orphanedTransactionRecoveryDuration="1s")
    packed = base64.b64encode(zlib.compress(b"0 " + b"z" * 8_000)).decode()
    half["body"] = packed
    entry = producer.send(half)["entries"][0]
    asked = telemetry.wait_for("settings", 60)  # the check stores it again
    back = asked["recoverOrphanedTransactionCommand"]
    assert back["message"]["body"] == packed
    answer = producer.ask("EndTransaction", {
        "topic": {"name": topic}, "messageId": entry["messageId"], "transactionId": back["transactionId"],
        "resolution": "COMMIT", "source": "SOURCE_SERVER_CHECK",
    })[0]  # fmt: skip
    assert answer["status"]["code"] == "OK", answer
    got = consumer.receive_all(topic, group, 1)
    assert [one["body"] for one in got] == [packed]
    assert got[0]["systemProperties"]["bodyEncoding"] == "GZIP"
    consumer.ack(topic, group, *got)
    producer.stop(telemetry)
    consumer.stop(stream)


def test_endpoints_are_those_of_the_caller(place: Place) -> None:
    """A route names the endpoints that the client came through, so that it works behind a forwarded port."""
    topic, client = place.topic(), place.client()
    asked = endpoints("127.0.0.1:18081")
    asked["addresses"][0]["port"] = int(place.system.endpoints.rsplit(":", 1)[1])
    answer = client.ask("QueryRoute", {"topic": {"name": topic}, "endpoints": asked})[0]
    queues = answer["messageQueues"]
    assert {queue["acceptMessageTypes"][0] for queue in queues} == {"NORMAL"}
    assert [queue["broker"]["endpoints"] for queue in queues] == [asked] * len(queues)


@pytest.mark.nightly
def test_a_thousand_idle_clients(place: Place) -> None:
    """1,000 connections with telemetry streams stay while others send, and then each of them sends a message."""
    topic, group = place.topic(), place.group()
    settings = {"clientType": "PRODUCER", "publishing": {"topics": [{"name": topic}]}, "requestTimeout": "3s",
                "accessPoint": endpoints(place.system.endpoints)}  # fmt: skip
    idle = place.driven.start("connections", client="idle", count=1_000, first={"settings": settings})
    assert idle.wait_for("connected", 120)["count"] == 1_000
    producer, consumer = place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    stream = consumer.settings("SIMPLE_CONSUMER", topic, group)
    for n in range(50):
        producer.send(message(topic, 1_000 + n))
    time.sleep(20)
    place.driven.send(idle, [message(topic, n) for n in range(1_000)])
    assert idle.wait_for("sent", 120)["codes"] == {"OK": 1_000}
    got: set[int] = set()
    while len(got) < 1_050:
        batch = consumer.receive(topic, group, batch=32)
        assert batch, f"{len(got)} of 1,050 messages came"
        got |= {number(one) for one in batch}
        assert set(consumer.ack(topic, group, *batch)) == {"OK"}
    assert got == set(range(1_050))
    place.driven.stop(idle)
    assert idle.wait_for("connected")["count"] == 1_000, "each stream is still the first one"
    producer.stop(telemetry)
    consumer.stop(stream)


def test_order_of_each_message_group(place: Place) -> None:
    """Each message group has one queue, and comes in the order in which it was sent."""
    topic, group = place.topic("FIFO", 4), place.group(orderly=True)
    producer, consumer = place.client(), place.client()
    telemetry = producer.settings("PRODUCER", topic)
    stream = consumer.settings("SIMPLE_CONSUMER", topic, group)
    for n in range(12):
        producer.send(message(topic, n, "FIFO", messageGroup=f"g{n % 4}"))
    seen: dict[str, list[int]] = defaultdict(list)
    queues: dict[str, set[int]] = defaultdict(set)
    for _ in range(20):
        for one in consumer.receive(topic, group):
            properties = one["systemProperties"]
            seen[properties["messageGroup"]].append(number(one))
            queues[properties["messageGroup"]].add(properties.get("queueId", 0))
            assert consumer.ack(topic, group, one) == ["OK"]
        if sum(map(len, seen.values())) == 12:
            break
    assert dict(seen) == {f"g{k}": [k, k + 4, k + 8] for k in range(4)}
    assert all(len(found) == 1 for found in queues.values())
    producer.stop(telemetry)
    consumer.stop(stream)
