"""Each official client does each main thing: the same expectations for Apache RocketMQ 5.5.0 and for Gantry."""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.access.table import AccessTable, table_json
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.message import format_properties

from benchmarks.rig.driver import Line, Result
from benchmarks.rig.processes import until
from tests.interop5.clients import Driven
from tests.interop5.conftest import World
from tests.interop5.systems import gantry_proxy
from tests.support.certificates import Authority

pytestmark = pytest.mark.timeout(240, func_only=True)  # without the first build of a client, which takes minutes
LATE_MS = 10_000
"""How much later than wanted something may happen on a busy machine."""


def numbers(lines: Iterable[Line]) -> list[int]:
    return sorted(line["n"] for line in lines)


def taken(result: Result) -> list[Line]:
    """The messages that the consumer acknowledged."""
    return [line for line in result.of("message") if line["ok"]]


@pytest.mark.main
def test_normal_messages_and_a_simple_consumer(world: World) -> None:
    topic, group = world.topic(), world.group()
    sent = world.produce(topic, 20, tags=["a", "b"]).of("sent")
    got = world.receive(topic, group, 20).of("message")
    assert numbers(got) == list(range(20))
    ids = {line["n"]: line["messageId"] for line in sent}
    for line in got:
        n = line["n"]
        assert (line["tag"], line["keys"], line["attempt"]) == ("ab"[n % 2], [f"k{n}"], 1)
        assert line["properties"]["n"] == str(n)
        assert line["messageId"] == ids[n]
        assert not line.get("corrupted")


@pytest.mark.main
@pytest.mark.needs("push")
def test_a_push_consumer(world: World) -> None:
    topic, group = world.topic(), world.group()
    consumer = world.start("push", topic=topic, group=group, count=40, settle_ms=500)
    consumer.wait_for("started")
    world.produce(topic, 40)
    got = consumer.finish().of("message")
    assert numbers(got) == list(range(40)), "each once"
    assert {line["attempt"] for line in got} == {1}


def test_acknowledged_messages_do_not_come_back(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 8)
    world.receive(topic, group, 8)
    world.produce(topic, 4, first=100)
    assert numbers(world.receive(topic, group, 4).of("message")) == [100, 101, 102, 103]


def test_a_message_without_ack_comes_back(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 3)
    got = world.receive(topic, group, 3, fail=1, invisible_ms=10_000, timeout_ms=60_000).of("message")
    tries: dict[int, list[int]] = defaultdict(list)
    for line in got:
        tries[line["n"]].append(line["attempt"])
    assert dict(tries) == {n: [1, 2] for n in range(3)}
    for n in range(3):
        first, second = (line["at"] for line in got if line["n"] == n)
        assert 9_000 <= second - first <= 10_000 + LATE_MS


@pytest.mark.needs("change")
@pytest.mark.nightly
def test_a_changed_invisible_time_counts(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 2)
    got = world.receive(topic, group, 2, fail=1, change_ms=10_000, invisible_ms=60_000, timeout_ms=50_000)
    lines = got.of("message")
    assert Counter(line["n"] for line in lines) == {0: 2, 1: 2}
    for n in range(2):
        first, second = (line["at"] for line in lines if line["n"] == n)
        assert 9_000 <= second - first <= 10_000 + LATE_MS


@pytest.mark.main
def test_order_with_a_simple_consumer(world: World) -> None:
    topic, group = world.topic("FIFO"), world.group(orderly=True)
    world.produce(topic, 24, "fifo", groups=3)
    check_order(taken(world.receive(topic, group, 24, timeout_ms=60_000)))


@pytest.mark.nightly
@pytest.mark.needs("push")
def test_order_with_a_push_consumer(world: World) -> None:
    topic, group = world.topic("FIFO"), world.group(orderly=True)
    world.produce(topic, 24, "fifo", groups=3)
    check_order(world.run("push", topic=topic, group=group, count=24, timeout_ms=60_000).of("message"))


def check_order(got: list[Line]) -> None:
    """Three message groups share 24 messages, and each came in order, each message once."""
    by_group: dict[str, list[int]] = defaultdict(list)
    for line in got:
        by_group[line["group"]].append(line["n"])
    assert dict(by_group) == {f"g{k}": list(range(k, 24, 3)) for k in range(3)}


@pytest.mark.needs("push", "retry in order")
def test_order_with_a_push_consumer_that_fails_first(world: World) -> None:
    topic, group = world.topic("FIFO"), world.group(orderly=True)
    world.produce(topic, 12, "fifo", groups=2)
    got = world.run("push", topic=topic, group=group, count=12, fail=1, timeout_ms=90_000).of("message")
    for key in ("g0", "g1"):
        seen = [(line["n"], line["ok"]) for line in got if line["group"] == key]
        mine = range(int(key[1]), 12, 2)
        assert seen == [(n, ok) for n in mine for ok in (False, True)], "a failed one holds its message group"


@pytest.mark.main
def test_delayed_messages(world: World) -> None:
    topic, group = world.topic("DELAY"), world.group()
    sent = {line["n"]: line["at"] for line in world.produce(topic, 3, "delay", delay_ms=4_000).of("sent")}
    got = world.receive(topic, group, 3, timeout_ms=45_000).of("message")
    assert numbers(got) == [0, 1, 2]
    for line in got:
        assert 2_500 <= line["at"] - sent[line["n"]] <= 6_000 + LATE_MS, "the time is in whole seconds"


@pytest.mark.needs("recall")
@pytest.mark.nightly
def test_a_recalled_message_is_not_delivered(world: World) -> None:
    topic, group = world.topic("DELAY"), world.group()
    sent = world.produce(topic, 2, "delay", delay_ms=10_000).of("sent")
    recalled = world.run("recall", topic=topic, handle=sent[0]["recallHandle"])
    assert recalled.of("recalled"), recalled.errors
    assert numbers(world.receive(topic, group, 2, timeout_ms=25_000).of("message")) == [1]


@pytest.mark.main
def test_transactions_with_checks(world: World) -> None:
    topic, group = world.topic("TRANSACTION"), world.group()
    plan = ["commit", "rollback", "unknown-commit", "unknown-rollback"]
    producer = world.start("produce", topic=topic, kind="transaction", count=8, plan=plan, settle_ms=60_000)
    got = world.receive(topic, group, 4, timeout_ms=60_000, settle_ms=1_500).of("message")
    asked: set[int] = set()
    end = time.monotonic() + 30
    while asked != {2, 3, 6, 7} and time.monotonic() < end:
        line = producer.next(30)
        assert line is not None
        assert line["event"] != "error", line
        if line["event"] == "check":
            asked.add(line["n"])
    world.driven.stop(producer)
    assert numbers(got) == [0, 2, 4, 6]
    assert asked == {2, 3, 6, 7}, "only the undecided ones are asked for"


@pytest.mark.needs("push")
def test_a_failed_message_is_tried_again(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 4)
    got = world.run("push", topic=topic, group=group, count=4, fail=2, timeout_ms=90_000).of("message")
    tries: dict[int, list[int]] = defaultdict(list)
    for line in got:
        tries[line["n"]].append(line["attempt"])
    assert dict(tries) == {n: [1, 2, 3] for n in range(4)}


@pytest.mark.nightly
@pytest.mark.needs("push")
def test_dead_letters(world: World) -> None:
    check_dead_letters(world, orderly=False)


@pytest.mark.nightly
@pytest.mark.needs("push", "dead letters in order")
def test_dead_letters_of_an_orderly_group(world: World) -> None:
    check_dead_letters(world, orderly=True)


def check_dead_letters(world: World, orderly: bool) -> None:
    topic, group = world.topic("FIFO" if orderly else "NORMAL"), world.group(orderly, attempts=2)
    world.produce(topic, 2, "fifo" if orderly else "normal")
    consumer = world.start("push", topic=topic, group=group, count=2, fail=99, timeout_ms=90_000)
    dead = f"%DLQ%{group}"
    until("the dead letters", lambda: world.system.stored(dead, 1) == 2, 80)
    world.driven.stop(consumer)
    tries = Counter(line["n"] for line in consumer.finish().of("message"))
    assert tries == {0: 3, 1: 3}, "the first one and two more"


@pytest.mark.main
def test_tags(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 30, tags=["red", "green", "blue"])
    got = world.receive(topic, group, 20, expression="red || blue").of("message")
    assert numbers(got) == [n for n in range(30) if n % 3 != 1]


@pytest.mark.main
def test_sql92(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 30, tags=["red", "green"])
    got = world.receive(topic, group, 5, sql=True, expression="n BETWEEN 5 AND 14 AND TAGS = 'red'").of("message")
    assert numbers(got) == [6, 8, 10, 12, 14]


@pytest.mark.needs("push")
def test_a_push_consumer_with_sql92(world: World) -> None:
    topic, group = world.topic(), world.group()
    world.produce(topic, 30)
    got = world.run(
        "push", topic=topic, group=group, count=3, sql=True, expression="n IN ('3', '4') OR n > 28", settle_ms=500
    )
    assert numbers(got.of("message")) == [3, 4, 29]


@pytest.mark.main
def test_large_bodies(world: World) -> None:
    topic, group = world.topic(), world.group()
    size = 4 * 1024 * 1024 - 1024
    world.produce(topic, 2, size=size)
    got = world.receive(topic, group, 2, batch=2).of("message")
    assert [(line["size"], line.get("corrupted", False)) for line in got] == [(size, False)] * 2


@pytest.mark.needs("zlib")
def test_a_body_that_a_remoting_producer_compressed(world: World) -> None:
    """clients 667, 722: the API calls zlib GZIP, so the body passes as it is stored, with the digest of that."""
    topic, group = world.topic(), world.group()
    packed = zlib.compress(b"7 " + b"y" * 9_998)
    header = SendHeader(
        producerGroup="remoting", topic=topic, defaultTopic="TBW102", defaultTopicQueueNums=4, queueId=0,
        sysFlag=1 | 0x300, bornTimestamp=int(time.time() * 1000), flag=0,
        properties=format_properties({"UNIQ_KEY": f"01{time.time_ns():030X}"}).decode(),
    )  # fmt: skip
    with world.system.broker() as broker:
        broker.call(RequestCode.SEND_MESSAGE, header.ext(), packed)
    line = world.receive(topic, group, 1).of("message")[0]
    assert (line["n"], line["size"], line.get("corrupted", False)) == (7, 10_000, False)


@pytest.mark.main
@pytest.mark.gantry_only  # The users of Apache's brokers are configured in another way.
def test_the_right_key_and_wrong_ones(world: World, tmp_path: Path) -> None:
    """A proxy with users takes what their keys sign and what their rules allow, nothing else."""
    topic, group = world.topic(), world.group()
    rules = [
        {"type": "Topic", "name": topic, "actions": ["Pub", "Sub"]},
        {"type": "Group", "name": group, "actions": ["Sub"]},
    ]
    users = [
        {"name": "orders", "keys": ["the-right-key-of-orders"], "rules": rules},
        {"name": "guest", "keys": ["the-right-key-of-guest"], "rules": []},
    ]
    table = AccessTable.model_validate({"version": 1, "mode": "Enabled", "users": users})
    file = tmp_path / "access.json"
    file.write_bytes(table_json(table))
    access = {"access": {"file": str(file)}}
    port = world.system.port()
    with gantry_proxy(tmp_path, world.system.target, port, "guarded", more=access):
        place: dict[str, Any] = {"endpoints": f"127.0.0.1:{port}", "topic": topic}
        right = {**place, "access_key": "orders", "secret_key": "the-right-key-of-orders"}
        sent = world.run("produce", kind="normal", count=3, **right)
        assert len(sent.of("sent")) == 3, sent.errors
        got = world.run("simple", group=group, count=3, **right)
        assert numbers(got.of("message")) == [0, 1, 2], got.errors
        for user, key in (("orders", "a-wrong-key-of-orders"), ("guest", "the-right-key-of-guest"), (None, None)):
            refused = world.run("produce", kind="normal", count=1, **place, access_key=user, secret_key=key)
            assert refused.errors, (user, refused.lines)
            assert not refused.of("sent"), (user, key)
    assert world.system.stored(topic) == 3


@pytest.mark.needs("verification")
def test_tls_by_a_private_authority(world: World, tmp_path: Path) -> None:
    """A client that has the authority's certificate connects. Without it, or to another name, it does not."""
    topic, group, authority = world.topic(), world.group(), Authority()
    right = authority.issue(tmp_path, "127.0.0.1", name="right")
    wrong = authority.issue(tmp_path, "elsewhere.example", name="wrong")
    with ExitStack() as stack:
        here, _ = stack.enter_context(world.system.another_proxy(tmp_path, "right", tls=right))
        elsewhere, _ = stack.enter_context(world.system.another_proxy(tmp_path, "wrong", tls=wrong))

        def driver(name: str, endpoints: str, trust: Path | None) -> Driven:
            prefix = world.system.target.prefix
            driven = world.client.session(tmp_path / name, prefix, endpoints, trust, tls=True, topic=topic)
            stack.callback(driven.close)
            return driven

        trusting = driver("trusting", here, right.ca)
        sent = trusting.run("produce", kind="normal", count=3)
        assert len(sent.of("sent")) == 3, sent.errors
        got = trusting.run("simple", group=group, count=3)
        assert numbers(got.of("message")) == [0, 1, 2], got.errors
        for driven in (driver("without", here, None), driver("elsewhere", elsewhere, right.ca)):
            refused = driven.run("produce", kind="normal", count=1)
            assert refused.errors, refused.lines
            assert not refused.of("sent")
    assert world.system.stored(topic) == 3
