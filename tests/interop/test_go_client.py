"""The official Go client (`github.com/apache/rocketmq-client-go/v2` 2.1.2) against both systems: the main features.

Tests that wait for the client's own timers run against Apache RocketMQ only with INTEROP=full.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.headers import CreateTopicHeader

from benchmarks.rig.golang import GoCommand, Line
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.support.heartbeats import heartbeat

COUNT = 60
QUEUES = 4
BOTH = ["gantry", "rocketmq"]
LONG = pytest.mark.parametrize("either", BOTH if os.environ.get("INTEROP") == "full" else BOTH[:1], indirect=True)

Go = Callable[..., GoCommand]


@pytest.fixture(scope="session", params=BOTH)
def either(request: pytest.FixtureRequest, go_side: Path, _targets: Callable[[str], Target]) -> Target:
    """Gantry's broker, which needs no Java, then Apache RocketMQ's, which does."""
    name: str = request.param
    if name != "gantry":
        request.getfixturevalue("java_side")
    return _targets(name)


@pytest.fixture
def go(either: Target, tmp_path: Path) -> Iterator[Go]:
    """Starts a command of the Go driver; all end with the test."""
    started: list[GoCommand] = []

    def start(command: str, **options: Any) -> GoCommand:
        started.append(GoCommand(either, tmp_path / f"home-{len(started)}", command, **options))
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def topic(either: Target, fresh: str) -> str:
    """A topic of four queues with a route."""
    name = f"go_{fresh}"
    config = CreateTopicHeader(name, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
    with Wire(either.broker_address, prefix=either.prefix) as broker:
        broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, config.ext())
    routed(either, name)
    return name


def routed(either: Target, topic: str) -> None:
    """Waits for the route of a topic."""

    def known() -> bool:
        with Wire(either.namesrv, prefix=either.prefix) as names:
            return names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0

    until(f"a route for {topic}", known, 40)


def meet(either: Target, group: str) -> None:
    """Starts a consumer of the group for a moment, so that the group's retry topic exists and has a route."""
    beat = heartbeat(group, client="first")
    with Wire(either.broker_address, prefix=either.prefix) as broker:
        broker.call(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
    routed(either, f"%RETRY%{group}")


def numbers(lines: list[Line]) -> list[int]:
    return sorted(line["n"] for line in lines)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_sent_messages_are_consumed(go: Go, topic: str, mode: str) -> None:
    sent = go("produce", topic=topic, count=COUNT, mode=mode).finish()
    if mode != "oneway":
        assert {line["status"] for line in sent.of("sent")} == {0}
        assert len(sent.of("sent")) == (1 if mode == "batch" else COUNT)
    got = go("consume", topic=topic, group=f"g_{topic}", count=COUNT).finish().of("message")
    assert numbers(got) == list(range(COUNT))
    for line in got:
        n = line["n"]
        # Each message of a batch has its own properties, too, but this client sends none of them.
        assert (line["topic"], line["reconsume"]) == (topic, 0)
        assert (line["keys"], line["tags"], line["property"]) == (f"k{n}", "ab"[n % 2], str(n))


def test_large_bodies_are_compressed(go: Go, topic: str) -> None:
    go("produce", topic=topic, count=3, size=50_000).finish()
    got = go("consume", topic=topic, group=f"g_{topic}", count=3).finish().of("message")
    assert [line["size"] for line in got] == [50_000] * 3


def test_tags(go: Go, topic: str) -> None:
    go("produce", topic=topic, count=COUNT).finish()
    got = go("consume", topic=topic, group=f"g_{topic}", count=COUNT // 2, expression="a || c").finish()
    assert numbers(got.of("message")) == list(range(0, COUNT, 2))


def test_sql92(go: Go, topic: str) -> None:
    go("produce", topic=topic, count=COUNT).finish()
    got = go("consume", topic=topic, group=f"g_{topic}", count=11, sql="n BETWEEN 5 AND 14 OR n = '50'").finish()
    assert numbers(got.of("message")) == [*range(5, 15), 50]


def test_pull_from_every_queue(go: Go, topic: str, either: Target) -> None:
    go("produce", topic=topic, count=COUNT).finish()
    pulled = go(
        "pull", topic=topic, group=f"g_{topic}", count=COUNT, queues=QUEUES, broker=either.broker_name, stay=True
    )  # fmt: skip
    next_ones = pulled.wait_for("summary")["next"]
    got = pulled.of("message")
    assert numbers(got) == list(range(COUNT))
    for queue in range(QUEUES):
        assert [line["offset"] for line in got if line["queue"] == queue] == list(range(COUNT // QUEUES))
    with Wire(either.broker_address, prefix=either.prefix) as broker:

        def committed() -> list[int]:
            asked = ({"consumerGroup": f"g_{topic}", "topic": topic, "queueId": str(queue)} for queue in range(QUEUES))
            answers = [broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, each) for each in asked]
            return [int(answer.ext.get("offset", "-1")) for answer in answers]

        # The client's commit has no answer. Apache's broker executes it later than the next connection's request,
        # answers "none" until then, and may never read it when the client ends at once.
        until("the commit", lambda: committed() == next_ones, 10)


def test_order_by_sharding_key(go: Go, topic: str) -> None:
    sent = go("produce", topic=topic, count=COUNT, mode="sharded").finish()
    assert {line["status"] for line in sent.of("sent")} == {0}
    got = go("consume", topic=topic, group=f"g_{topic}", count=COUNT, orderly=True, fail=1).finish().of("message")
    queues: dict[int, list[int]] = defaultdict(list)
    for line in got:
        if line["n"] not in queues[line["queue"]]:
            queues[line["queue"]].append(line["n"])
    assert sorted(n for found in queues.values() for n in found) == list(range(COUNT))
    for found in queues.values():
        assert found == sorted(found), "a message that failed holds its queue"
    shards = [{n % 4 for n in found} for found in queues.values()]
    assert sum(len(shard) for shard in shards) == 4, "a key has one queue"


@LONG
def test_two_members_share_and_broadcasting_does_not(go: Go, topic: str) -> None:
    members = [go("consume", topic=topic, group=f"g_{topic}", count=COUNT) for _ in range(2)]
    broadcasting = [go("consume", topic=topic, group=f"b_{topic}", count=COUNT, broadcast=True) for _ in range(2)]
    for member in (*members, *broadcasting):
        member.wait_for("started")
    go("produce", topic=topic, count=COUNT).finish()
    for member in broadcasting:
        # A new member of a broadcasting group starts at the queues' ends, so it existed before.
        assert numbers(member.finish().of("message")) == list(range(COUNT))

    def together() -> set[int]:
        return {n for member in members for n in numbers(member.of("message"))}

    until("the members have all messages together", lambda: together() == set(range(COUNT)), 45)
    for _ in range(20):  # until the second member has its queues
        if all(member.of("message") for member in members):
            break
        go("produce", topic=topic, count=COUNT).finish()
    queues = [{line["queue"] for line in member.of("message")[-COUNT // 4 :]} for member in members]
    assert all(queues), queues


def test_delay_levels(go: Go, topic: str) -> None:
    consumer = go("consume", topic=topic, group=f"g_{topic}", count=4)
    consumer.wait_for("started")
    go("produce", topic=topic, count=4, delay_level=2).finish()
    got = consumer.finish().of("message")
    assert numbers(got) == [0, 1, 2, 3]
    for line in got:
        assert 1_900 <= line["waited"] <= 8_000, "level 2 is 2 s here"


@LONG
def test_a_failed_message_is_redelivered(go: Go, topic: str, either: Target) -> None:
    group = f"g_{topic}"
    meet(either, group)  # otherwise the client would find its retry topic up to 30 s later
    go("produce", topic=topic, count=4).finish()
    got = go("consume", topic=topic, group=group, count=4, fail=2).finish().of("message")
    tries: dict[int, list[int]] = defaultdict(list)
    for line in got:
        tries[line["n"]].append(line["reconsume"])
    assert dict(tries) == {n: [0, 1, 2] for n in range(4)}
    assert {line["topic"] for line in got} == {topic}, "the retry topic is not shown"


@LONG
def test_transactions(go: Go, topic: str) -> None:
    consumer = go("consume", topic=topic, group=f"g_{topic}", count=4, settle="3s")
    consumer.wait_for("started")
    sent = go(
        "transactions", topic=topic, group=f"t_{topic}", count=8, settle="6s",
        plan="commit,rollback,unknown-commit,unknown-rollback",
    )  # fmt: skip
    assert numbers(consumer.finish().of("message")) == [0, 2, 4, 6]
    assert {line["keys"] for line in sent.finish().of("check")} == {"k2", "k3", "k6", "k7"}


@LONG
def test_request_and_reply(go: Go, topic: str) -> None:
    server = go("reply", topic=topic, group=f"s_{topic}", count=3)
    server.wait_for("started")
    asked = go("request", topic=topic, group=f"r_{topic}", count=3, timeout="45s").finish()
    assert [line["body"] for line in asked.of("reply")] == ["re: 0", "re: 1", "re: 2"]
    server.finish()
