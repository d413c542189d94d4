"""The client's decisions: allocation, flow limits, selection, subscriptions, keys."""

from __future__ import annotations

import socket
import time

import pytest
from gantry_broker.client.admin import parse_java_properties
from gantry_broker.client.errors import InvalidMessage
from gantry_broker.client.message import Message, ReceivedMessage
from gantry_broker.client.process_queue import FlowLimits, ProcessQueue
from gantry_broker.client.selection import RoundRobin, readable_queues, select_by_hash, writable_queues
from gantry_broker.client.session import parse_name_servers
from gantry_broker.client.subscription import subscription
from gantry_broker.client.uniqueid import create_unique_key
from gantry_broker.protocol.allocation import (
    STRATEGIES,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
)
from gantry_broker.protocol.bodies import BrokerData, QueueData, TopicRoute
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.message import decode_record, encode_record, pack_host
from hypothesis import given
from hypothesis import strategies as st

HOST = pack_host("127.0.0.1", 1)


def queues(count: int, broker: str = "a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def received(offset: int, body: bytes = b"x") -> ReceivedMessage:
    raw = encode_record(
        topic=b"T", body=body, queue_id=0, queue_offset=offset, phys_offset=0, born_ms=0, born_host=HOST, store_ms=0,
        store_host=HOST,
    )  # fmt: skip
    return ReceivedMessage(decode_record(raw), "a")


@given(st.integers(0, 40), st.integers(1, 12), st.sampled_from(sorted(STRATEGIES)))
def test_every_queue_has_exactly_one_reader(count: int, members: int, name: str) -> None:
    all_members = [f"10.0.0.{number}@1" for number in range(members)]
    allocations = [STRATEGIES[name](me, queues(count), all_members) for me in all_members]
    assert sorted(queue for share in allocations for queue in share) == queues(count)
    if name != "CONSISTENT_HASH":
        assert max(map(len, allocations)) - min(map(len, allocations)) <= 1


def test_allocations_match_rocketmq() -> None:
    numbers = [[queue.queue_id for queue in averagely(me, queues(8), ["a", "b", "c"])] for me in "abc"]
    assert numbers == [[0, 1, 2], [3, 4, 5], [6, 7]]
    numbers = [[queue.queue_id for queue in averagely_by_circle(me, queues(8), ["a", "b", "c"])] for me in "abc"]
    assert numbers == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert averagely("d", queues(8), ["a"]) == averagely_by_circle("d", queues(8), ["a"]) == []
    assert averagely("d", queues(2), ["a", "b", "c", "d"]) == [], "one member too many stays idle"
    assert by_config(queues(2))("x", queues(8), []) == queues(2)
    rooms = queues(3, "room1@a") + queues(3, "room2@b")
    assert by_machine_room(["room1"])("a", rooms, ["a", "b"]) == [rooms[0], rooms[2]]
    assert by_machine_room(["room1"])("b", rooms, ["a", "b"]) == [rooms[1]]


def test_few_queues_move_with_consistent_hashing() -> None:
    strategy = consistent_hash()
    before = {queue: me for me in "abcd" for queue in strategy(me, queues(100), list("abcd"))}
    after = {queue: me for me in "abc" for queue in strategy(me, queues(100), list("abc"))}
    assert all(after[queue] == me for queue, me in before.items() if me != "d")


@given(st.lists(st.integers(0, 19), unique=True))
def test_an_offset_is_committed_only_when_all_before_it_are_done(order: list[int]) -> None:
    process = ProcessQueue(0)
    messages = process.add([received(offset) for offset in range(20)], 25)
    done: set[int] = set()
    for index in order:
        process.done(messages[index])
        done.add(index)
        waiting = [offset for offset in range(20) if offset not in done]
        assert process.commit_offset == (waiting[0] if waiting else 25)
    assert len(process) == 20 - len(done)


def test_flow_limits() -> None:
    process = ProcessQueue(0)
    assert not process.full(FlowLimits(0, 0, 0)), "a queue without messages is always pulled"
    messages = process.add([received(offset, b"x" * 1000) for offset in range(10)], 10)
    assert process.full(FlowLimits(messages=10))
    assert process.full(FlowLimits(bytes=10_000))
    assert process.full(FlowLimits(span=8))
    assert not process.full(FlowLimits(11, 20_000, 9))
    assert process.add([received(3)], 10) == [], "known already"
    for message in messages:
        process.done(message)
    process.done(messages[0])
    assert (process.bytes, process.consumed, len(process)) == (0, 10, 0)


def route(order_conf: str | None = None) -> TopicRoute:
    return TopicRoute(
        [QueueData("b", 4, 2, 6), QueueData("a", 1, 1, 4), QueueData("c", 1, 1, 2), QueueData("d", 1, 1, 6)],
        [BrokerData("x", name, {0: "h:1"}) for name in "abc"] + [BrokerData("x", "d", {1: "h:2"})],
        order_conf,
    )


def test_writable_and_readable_queues() -> None:
    assert writable_queues("T", route()) == [*queues(2, "b"), *queues(1, "c")], "no master, no permission: no queue"
    assert writable_queues("T", route(), as_default=3) == [*queues(3, "b"), *queues(1, "c")]
    assert writable_queues("T", route("b:1;c:2;bad")) == [*queues(1, "b"), *queues(2, "c")]
    assert readable_queues("T", route()) == [*queues(1, "a"), *queues(4, "b"), *queues(1, "d")]


def test_round_robin() -> None:
    round_robin = RoundRobin(0)
    both = [*queues(2, "a"), *queues(2, "b")]
    assert [round_robin.choose(both) for _ in range(5)] == [*both, both[0]]
    assert {round_robin.choose(both, {"a"}).broker for _ in range(4)} == {"b"}
    assert round_robin.choose(both, {"a", "b"}) in both
    with pytest.raises(IndexError):
        round_robin.choose([])


@given(st.text(max_size=20) | st.integers(-(2**63), 2**63 - 1))
def test_a_key_has_one_queue(key: str | int) -> None:
    chosen = select_by_hash(queues(7), Message("T", b"x"), key)
    assert chosen == select_by_hash(queues(7), Message("T", b"y"), key)


def test_subscriptions() -> None:
    data = subscription("T", " TagA || b||")
    assert (data.tags, data.codes) == (["TagA", "b"], [2598919, 98])
    assert subscription("T", "").expression == "*"
    assert subscription("T", "a > 1", sql=True).expression_type == "SQL92"
    with pytest.raises(InvalidMessage):
        subscription("T", " || ")


def test_name_servers() -> None:
    assert parse_name_servers("a:1; b:2,c:3") == parse_name_servers(["a:1", "b:2 ", "c:3"]) == ["a:1", "b:2", "c:3"]
    with pytest.raises(ValueError, match="host:port"):
        parse_name_servers([])


def test_unique_keys_contain_address_and_time() -> None:
    now_ms = int(time.time() * 1000)
    keys = {create_unique_key(now_ms) for _ in range(1000)}
    assert len(keys) == 1000
    key = keys.pop()
    assert len(key) == 32
    assert key == key.upper()
    socket.inet_ntoa(bytes.fromhex(key[:8]))
    local = time.localtime(now_ms / 1000)
    month = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1)) * 1000
    assert month + int(key[20:28], 16) == now_ms


def test_java_properties() -> None:
    assert parse_java_properties("# c\na=1\n b = x=y \nnothing\n") == {"a": "1", "b": "x=y"}
