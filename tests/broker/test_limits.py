"""Limits of clients, groups, topics, filters, batches and locks: pure parts, and what a broker answers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from gantry_broker.broker.clients import Client, ClientTable, NotYourId, Subscription, TooManyClients
from gantry_broker.broker.locks import LOCK_MS, MAX_LOCKS, QueueLocks
from gantry_broker.broker.metadata.creation_limits import CreationRate, max_links, too_many_groups, too_many_topics
from gantry_broker.broker.pull.filters import Filters
from gantry_broker.broker.pull.held import HeldPulls
from gantry_broker.broker.pull.sql92 import MAX_DIGITS, MAX_TOKENS, FilterSyntaxError, compile_filter
from gantry_broker.protocol import heartbeats
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.heartbeats import heartbeat_fault
from gantry_broker.protocol.message import MAX_BATCH, BatchItem, encode_batch

from tests.broker.conftest import Numbered, Wire
from tests.support.present import present

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.broker.conftest import Bench


def beat(groups: int = 1, subscriptions: int = 1, tags: int = 0, text: str = "*") -> dict[str, Any]:
    one = {"topic": "T", "subString": text, "tagsSet": ["a"] * tags}
    consumer = {"groupName": "g", "subscriptionDataSet": [one] * subscriptions}
    return {"clientID": "c", "consumerDataSet": [consumer] * groups}


def test_heartbeats_are_judged_before_anything_is_made_of_them() -> None:
    assert heartbeat_fault(beat(heartbeats.MAX_GROUPS)) is None
    assert "names 501 groups, the limit is 500" in (heartbeat_fault(beat(heartbeats.MAX_GROUPS + 1)) or "")
    assert "2000 subscriptions" in (heartbeat_fault(beat(2, 1_001)) or "")
    assert "10010 tags, the limit is 10000" in (heartbeat_fault(beat(1, 1_001, 10)) or "")
    assert "16385 characters" in (heartbeat_fault(beat(text="x" * (heartbeats.MAX_EXPRESSION + 1))) or "")
    for odd in ([], None, {"consumerDataSet": 5}, {"consumerDataSet": [5, {"subscriptionDataSet": {}}]}):
        assert heartbeat_fault(odd) is None


class Link:
    closed = False

    def send(self, frame: Any) -> None: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


def test_members_and_subscriptions_are_counted_and_given_back() -> None:
    table = ClientTable(limit=10)
    links = [Link() for _ in range(4)]

    def join(link: Link, group: str, topics: int) -> None:
        wanted = [SubscriptionData(f"T{n}") for n in range(topics)]
        table.admit(link, {group: wanted}, ["P"])
        client = Client(link, f"c{links.index(link)}", "JAVA", 1, "h:1", 0)
        table.heartbeat_consumer(group, client, map(Subscription, wanted), "", "", "")
        table.heartbeat_producer("P", client)

    join(links[0], "G", 3)
    assert table.weight == 5
    join(links[0], "G", 3)
    assert table.weight == 5, "the same again counts once"
    join(links[1], "G", 3)
    with pytest.raises(TooManyClients, match="this broker has 7 members and subscriptions of groups, 7 more"):
        join(links[2], "H", 5)
    assert table.weight == 7
    assert table.find_client("c1") is not None
    for link in links:
        table.closed(link)
    assert table.weight == 0
    assert table.find_client("c1") is None
    assert (table.consumers, table.producers) == ({}, {})


def test_no_user_takes_the_last_places_of_the_table() -> None:
    table, links = ClientTable(limit=100), [Link() for _ in range(60)]

    def join(number: int, owner: str, topics: int = 1) -> None:
        link, group = links[number], f"G{number}"
        wanted = [SubscriptionData(f"T{n}") for n in range(topics)]
        table.admit(link, {group: wanted}, [], owner)
        table.heartbeat_consumer(group, Client(link, group, "JAVA", 1, "h:1", 0), map(Subscription, wanted), "", "", "")

    for number in range(25):
        join(number, "user a")
    with pytest.raises(TooManyClients, match="50 of the 50 members and subscriptions of groups here are of user a"):
        join(25, "user a")
    for number in range(26, 38):
        join(number, "user b")
    join(0, "user a")
    with pytest.raises(TooManyClients):
        join(0, "user a", topics=3)
    join(38, "user c", topics=3)
    for link in links:
        table.closed(link)
    assert (table.weight, table._paid, table._owner_of) == (0, {}, {})


def test_a_reply_goes_to_the_connection_that_is_open() -> None:
    """A client connects again before the broker has noticed the end of its former connection."""
    table = ClientTable(10)
    former, newest, older = Link(), Link(), Link()
    for link, at_ms in ((former, 1), (newest, 5), (older, 3)):
        table.heartbeat_producer("P", Client(link, "c", "GO", 1, "h:1", at_ms))
    assert present(table.find_client("c")).conn is newest
    newest.closed = True
    assert present(table.find_client("c")).conn is older
    older.closed = former.closed = True
    assert table.find_client("c") is None


@pytest.mark.parametrize("seed", range(20))
def test_a_client_id_belongs_to_its_first_user_while_connected(seed: int) -> None:
    """The model: for each open connection the ids that it got, and by whom."""
    rng = random.Random(seed)
    table, links, held = ClientTable(), [Link() for _ in range(6)], dict[tuple[Link, str], "str | None"]()
    for _ in range(600):
        link, client_id, user = rng.choice(links), rng.choice("xyz"), rng.choice(("ann", "bob", None))
        if rng.random() < 0.15:
            link.closed = rng.random() < 0.5  # The broker may not have noticed it.
            if not link.closed:
                table.closed(link)
                held = {key: owner for key, owner in held.items() if key[0] is not link}
            continue
        link.closed = False
        signed_only = rng.random() < 0.2 and user is not None
        others = {held[key] for key in held if key[1] == client_id and key[0] is not link and not key[0].closed}
        mine = others <= {user} or (signed_only and others <= {user, None})
        try:
            table.claim(client_id, user, link, signed_only=signed_only)
        except NotYourId:
            assert not mine
        else:
            assert mine
            for key in [key for key in held if key[1] == client_id]:
                held[key] = user
            held[link, client_id] = user
    for link in links:
        table.closed(link)
    assert (table._owners, table._ids) == ({}, {})


def test_ids_of_one_connection_are_bounded() -> None:
    table, link = ClientTable(), Link()
    for number in range(16):
        table.claim(f"c{number}", None, link)
    table.claim("c7", None, link)
    with pytest.raises(TooManyClients, match="16 client ids"):
        table.claim("one-more", None, link)


def test_groups_of_one_connection_are_bounded_over_all_its_heartbeats() -> None:
    table, link = ClientTable(), Link()
    client = Client(link, "c", "JAVA", 1, "h:1", 0)
    for n in range(heartbeats.MAX_GROUPS):
        table.admit(link, {f"g{n}": []}, [])
        table.heartbeat_consumer(f"g{n}", client, [], "", "", "")
    table.admit(link, {"g7": []}, [])
    with pytest.raises(TooManyClients, match="in 501 groups, the limit is 500"):
        table.admit(link, {"one-more": []}, [])


def test_names_come_into_being_at_a_limited_rate() -> None:
    rate = CreationRate(burst=10, per_second=2)
    assert rate.take(10, 1_000_000)
    assert not rate.take(1, 1_000_000)
    assert not rate.take(3, 1_001_000)
    assert rate.take(2, 1_001_000)
    assert not rate.take(11, 9_000_000), "never more than the burst"
    assert rate.take(10, 9_000_000)


def test_totals() -> None:
    assert too_many_topics(99, 1, 100) is None
    assert "there are 99 topics, 2 more" in (too_many_topics(99, 2, 100) or "")
    assert too_many_topics(500, 0, 100) is None, "what exists goes on"
    assert "raise maxSubscriptionGroups" in (too_many_groups(100, 1, 100) or "")
    assert (max_links(128 << 20), max_links(24 << 30)) == (32_768, 100_000)


def test_filters_are_bounded_by_tokens_digits_and_memory() -> None:
    assert compile_filter(" OR ".join(["a=1"] * 150))({"a": "1"})
    with pytest.raises(FilterSyntaxError, match=f"at most {MAX_TOKENS} are read"):
        compile_filter(" OR ".join(["a=1"] * 151))
    with pytest.raises(FilterSyntaxError, match=f"a number of {MAX_DIGITS + 1} characters"):
        compile_filter("a = " + "9" * (MAX_DIGITS + 1))
    larger = compile_filter("a > 5")
    assert larger({"a": "9" * MAX_DIGITS})
    assert not larger({"a": "9" * (MAX_DIGITS + 1)}), "what is longer is no number"
    filters = Filters()
    for n in range(200):
        filters.subscription("T", f"{n}" + "x" * 15_000, "TAG")
    assert sum(len(expression) for _, expression, _ in filters._subscriptions) <= Filters.MAX_CHARACTERS
    with pytest.raises(FilterSyntaxError, match="the limit is 16384"):
        filters.subscription("T", "x" * 20_000, "TAG")


def test_held_pulls_are_tried_in_parts() -> None:
    held: HeldPulls[Numbered] = HeldPulls()
    for n in range(10):
        held.hold("T", 0, Numbered(n), 100)
    tried: list[int] = []
    waiting = held.waiting("T", 0)

    def attempt(pull: Numbered) -> bool:
        tried.append(pull.number)
        return pull.number % 2 == 0

    held.try_each(waiting, attempt, lambda: len(tried) < 4)
    assert (tried, len(held), len(waiting)) == ([0, 1, 2, 3], 8, 6)
    assert [pull.number for pull in held.due(100, 2)] == [1, 3]
    held.try_each(waiting, attempt)
    assert tried == list(range(10))
    assert [pull.number for pull in held.due(100)] == [5, 7, 9]
    assert len(held) == 0


def test_locks_are_bounded_and_given_back() -> None:
    locks = QueueLocks()
    queues = [MessageQueue("T", "a", n) for n in range(MAX_LOCKS + 5)]
    assert len(locks.lock("G", "c", queues, 0)) == MAX_LOCKS // 2
    assert locks.lock("H", "d", queues[:1], 0) == []
    locks.unlock("G", "c", queues[:1])
    assert locks.lock("H", "d", queues[:1], 0) == queues[:1]
    locks.clear()
    assert len(locks) == 0


def test_no_address_takes_all_locks() -> None:
    locks = QueueLocks(most=100)
    queues = [MessageQueue("T", "a", n) for n in range(200)]
    for number in range(20):  # However many groups and clients it names.
        locks.lock(f"G{number}", f"c{number}", queues, 0, "address 192.0.2.9")
    assert len(locks) == 50
    assert len(locks.lock("H", "d", queues, 0, "address 192.0.2.1")) == 25
    assert len(locks.lock("H", "d", queues[:25], 10, "address 192.0.2.1")) == 25, "they are renewed"
    assert locks.lock("G0", "other", queues[:5], LOCK_MS + 1, "user u") == queues[:5], "expired ones go over"
    assert len(locks) == 75
    locks.expire(2 * LOCK_MS)
    assert len(locks) == 5
    assert len(locks.lock("I", "e", queues, 0, "address 192.0.2.9")) == 48


async def test_groups_of_a_heartbeat_are_made_with_one_record(bench: Bench) -> None:
    puts: list[int] = []
    put = bench.broker.writer.append
    bench.broker.writer.append = lambda records: (puts.append(len(records)), put(records))[1]  # type: ignore[method-assign]
    value = {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}"} for n in range(50)]}
    assert (await bench.ask(RequestCode.HEART_BEAT, body=orjson.dumps(value))).code == 0
    assert puts == [1]
    tables = bench.broker.meta.working
    assert all(f"g{n}" in tables.groups and f"%RETRY%g{n}" in tables.topics for n in range(50))
    assert (await bench.ask(RequestCode.HEART_BEAT, body=orjson.dumps(value))).code == 0
    assert puts == [1], "and nothing is written the second time"


async def test_topics_and_groups_end_at_their_setting(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(settings={"maxTopics": 100, "maxSubscriptionGroups": 100})
    await bench.lead()
    tables = bench.broker.meta.working
    topics = [{"topicName": f"t{n}"} for n in range(100 - len(tables.topics))]
    groups = [{"groupName": f"g{n}"} for n in range(100 - len(tables.groups))]
    many = orjson.dumps({"topicConfigList": topics})
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many)).code == 0
    many = orjson.dumps({"groupConfigList": groups})
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=many)).code == 0
    assert (await bench.send(b"x", topic="t1")).code == 0
    refused = await bench.send(b"x", topic="one-more")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "there are 100 topics, 1 more are requested, the limit is 100" in (refused.remark or "")
    refused = await bench.ask(RequestCode.HEART_BEAT, body=orjson.dumps(beat()))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "the limit is 100" in (refused.remark or "")
    assert "g" not in tables.groups


async def test_batches_are_bounded(bench: Bench) -> None:
    refused = await bench.ask(320, bench.send_ext(batch=True), encode_batch([BatchItem(b"x")]) * (MAX_BATCH + 1))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"over {MAX_BATCH} messages, which is the limit" in (refused.remark or "")
    assert "T" not in bench.broker.meta.working.topics


async def test_sends_that_make_topics_wait_their_turn_in_order(bench: Bench) -> None:
    bench.broker.slices.charge(1.0)
    frames = [bench.frame(310, bench.send_ext(f"T{n // 2}"), b"x") for n in range(20)]
    bench.give(*frames)
    assert bench.wire.throttled
    answers = [await bench.answer(frame.opaque) for frame in frames]
    assert {a.code for a in answers} == {0}
    assert not bench.wire.throttled
    assert [a.ext["queueOffset"] for a in answers] == ["0", "1"] * 10


async def test_costly_requests_beyond_a_slice_wait_and_all_are_answered(bench: Bench) -> None:
    bench.broker.slices.charge(1.0)
    frames = [bench.frame(RequestCode.GET_BROKER_RUNTIME_INFO) for _ in range(30)]
    bench.give(*frames)
    assert bench.wire.throttled
    assert {(await bench.answer(frame.opaque)).code for frame in frames} == {0}
    assert not bench.wire.throttled
    assert bench.parts.processor._bytes_in_turn.taken == 0


async def test_no_address_takes_the_memory_of_all_requests_that_wait_for_their_turn(bench: Bench) -> None:
    processor, other = bench.parts.processor, Wire()
    other.peer = ("10.0.0.1", 40_000)
    bench.broker.slices.charge(1.0)
    greedy = [bench.frame(RequestCode.GET_BROKER_RUNTIME_INFO, body=bytes(50_000)) for _ in range(10)]
    processor._bytes_in_turn.most = 450_000
    bench.give(*greedy)
    frame = bench.frame(RequestCode.GET_BROKER_RUNTIME_INFO, body=bytes(50_000))
    bench.give(frame, wire=other)
    codes = [(await bench.answer(each.opaque)).code for each in greedy]
    assert (codes.count(ResponseCode.SUCCESS), codes.count(ResponseCode.SYSTEM_BUSY)) == (4, 6)
    bench.wire = other
    assert (await bench.answer(frame.opaque)).code == ResponseCode.SUCCESS
    assert processor._bytes_in_turn.taken == 0
