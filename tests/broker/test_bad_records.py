"""A record that the broker cannot work with: refused at send, passed over where an earlier release has stored it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from gantry_broker.broker import transactions
from gantry_broker.broker.clock import Clock as BrokerClock
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.broker.pop.retry import revived
from gantry_broker.broker.send import messages
from gantry_broker.broker.send.messages import (
    BROKER_ONLY,
    MOST_SENT,
    ROOM,
    check_properties,
    copy_of,
    timer_bucket,
    without_broker_properties,
)
from gantry_broker.protocol.codes import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    Prop,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.message import (
    MAX_PROPERTIES,
    BatchItem,
    Record,
    decode_records,
    encode_batch,
    encode_record,
    format_properties,
    pack_host,
    parse_properties,
)
from gantry_broker.store.types import Put

from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1"
MINUTE = 1_800_000_000_000 // 60_000 * 60_000
NO_NUMBERS = ["\u00b2", "\uff11", "1_0", " 1", "-1", "x", "9" * 30, ""]


def _filled(properties: str, most: int = MAX_PROPERTIES) -> str:
    """So many bytes of properties."""
    return properties + "\x02fill\x01" + "x" * (most - len(properties.encode()) - 6)


def _put(bench: Bench, topic: str, body: bytes, properties: str, queue_id: int = 0, tags: int = 0) -> Put:
    now = bench.broker.clock.unix_ms()
    return Put(topic, queue_id, 0, 0, now, bench.wire.peer_bytes, body, properties.encode(), tags_hash=tags)


async def _stored(bench: Bench, topic: str = "T", queue_id: int = 0) -> list[Record]:
    answer = await bench.ask(11, bench.pull_ext(topic, queueId=queue_id))
    return decode_records(answer.body) if answer.code == 0 else []


@pytest.mark.parametrize("name", ["TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"])
@pytest.mark.parametrize("text", NO_NUMBERS)
async def test_numbers_that_a_check_could_not_read_are_refused_at_send(bench: Bench, name: str, text: str) -> None:
    await bench.send(b"warm", properties="")
    for props in (f"{HALF}\x02{name}\x01{text}", f"{name}\x01{text}"):
        answer = await bench.send(b"half", properties=props)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"{name} is {text[:40]!r}" in (answer.remark or "")
        assert "from 0 to" in (answer.remark or "")
    assert bench.store.reader.max_offset(TRANS_HALF_TOPIC, 0) == 0
    assert (await bench.send(b"good", properties=f"{HALF}\x02{name}\x015")).code == 0


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "properties",
    [
        f"{HALF}\x02TRANSACTION_CHECK_TIMES\x01\u00b2\x02REAL_TOPIC\x01T\x02REAL_QID\x010",
        f"{HALF}\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01\u00b2\x02REAL_TOPIC\x01T\x02REAL_QID\x01\u00b2",
        _filled(f"{HALF}\x02REAL_TOPIC\x01T\x02REAL_QID\x010"),
    ],
    ids=["times", "immunity", "full"],
)
async def test_a_bad_half_message_of_an_earlier_release_ends_no_checks(
    bench: Bench, properties: str, again: bool
) -> None:
    broker = bench.broker
    await bench.check_at_any_age()
    bench.append(_put(bench, TRANS_HALF_TOPIC, b"bad", properties))
    await bench.send(b"good", properties=HALF, sysFlag=4)
    if again:
        await bench.lead()
        await broker.transactions.loaded.wait()
    await until(lambda: broker.transactions.undecided == 2)
    producer = type(bench.wire)(40_001)
    broker.clients.producers["PG"] = {producer: None}  # type: ignore[dict-item]
    bench.check_transactions()
    asked = [frame.body for frame in producer.frames if frame.code == RequestCode.CHECK_TRANSACTION_STATE]
    assert any(b"good" in body for body in asked)
    if "fill" in properties:
        assert bench.broker.stats.set_aside == {"transaction": 1}
        [given_up] = await _stored(bench, TRANS_CHECK_MAX_TIME_TOPIC)
        assert given_up.body == b"bad"
        await until(lambda: broker.transactions.undecided == 1)
    else:
        assert len(asked) == 2
        await until(lambda: broker.transactions.undecided == 2)


async def test_any_failure_of_one_check_leaves_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = bench.broker
    await bench.check_at_any_age()
    for body in (b"bad", b"good"):
        await bench.send(body, properties=HALF, sysFlag=4)
    await until(lambda: broker.transactions.undecided == 2)
    producer = type(bench.wire)(40_001)
    broker.clients.producers["PG"] = {producer: None}  # type: ignore[dict-item]
    encode = transactions.encode_record

    def fails(**fields: Any) -> bytes:
        if fields["body"] == b"bad":
            raise ZeroDivisionError
        return encode(**fields)

    monkeypatch.setattr(transactions, "encode_record", fails)
    bench.check_transactions()
    assert [frame.code for frame in producer.frames] == [RequestCode.CHECK_TRANSACTION_STATE]


async def test_a_check_is_due_when_the_wall_clock_steps_forward(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "LOOK_S", 0.01)
    checked = asyncio.Event()
    monkeypatch.setattr(bench.broker.transactions, "_check", checked.set)
    await bench.lead()
    ahead = BrokerClock.unix_ms() + 3_600_000
    monkeypatch.setattr(BrokerClock, "unix_ms", staticmethod(lambda: ahead))
    async with asyncio.timeout(10):
        await checked.wait()


async def test_a_clock_that_steps_forward_delivers_what_is_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine, or NTP: the sleep goes on by another clock."""
    now = MINUTE
    monkeypatch.setattr(BrokerClock, "unix_ms", staticmethod(lambda: now))
    assert (await bench.send(b"level", properties="DELAY\x0118")).code == 0
    assert (await bench.send(b"timer", properties=f"TIMER_DELIVER_MS\x01{MINUTE + 3_600_000}")).code == 0
    await until(lambda: bench.broker.delays._timer is not None)
    now = MINUTE + 3 * 3_600_000
    await until(lambda: bench.store.reader.max_offset("T", 0) == 2)


async def test_a_timer_message_without_room_for_the_counter_is_rolled_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = MINUTE
    monkeypatch.setattr(BrokerClock, "unix_ms", staticmethod(lambda: now))
    due = MINUTE + 5 * 86_400_000
    until_ms = MINUTE + 30_000
    fields = f"TIMER_DELIVER_MS\x01{due}\x02TIMER_OUT_MS\x01{until_ms}\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
    bucket = timer_bucket(until_ms)
    bad_topic = fields.replace("REAL_TOPIC\x01T", "REAL_TOPIC\x01../../x").replace(str(due), str(until_ms))
    broker = bench.broker
    broker.writer.append([
        _put(bench, TIMER_TOPIC, b"full", _filled(fields), bucket),
        _put(bench, TIMER_TOPIC, b"bad", bad_topic, bucket),
        _put(bench, TIMER_TOPIC, b"good", fields.replace(str(due), str(until_ms)), bucket),
    ])  # fmt: skip
    broker.writer.appended(None)
    await asyncio.sleep(0)
    now = MINUTE + 60_000
    bench.broker.delays._run()
    await until(lambda: [m.body for m in bench_records(bench)] == [b"good"])
    assert broker.stats.set_aside == {"timer": 1}
    assert bench.broker.delays.timers_waiting() == 1, "the full one waits in its next place"
    now = due + 60_000
    await until(lambda: {m.body for m in bench_records(bench)} == {b"good", b"full"})


def bench_records(bench: Bench) -> list[Record]:
    bench.broker.delays._run()
    return decode_records(bench.store.reader.get("T", 0, 0, 32, 1 << 20).data)


async def test_a_delayed_message_for_an_impossible_topic_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = MINUTE
    monkeypatch.setattr(BrokerClock, "unix_ms", staticmethod(lambda: now))
    for topic in ("../../x", "T"):
        text = f"DELAY\x011\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x010"
        bench.append(_put(bench, SCHEDULE_TOPIC, topic.encode(), text))
    await asyncio.sleep(0)
    now += 10_000
    await until(lambda: [m.body for m in bench_records(bench)] == [b"T"])
    assert bench.broker.stats.set_aside == {"delay": 1}


@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize("fill", ["x", "\x01", "\u00e9"])
async def test_a_message_without_room_that_is_sent_back_is_a_dead_letter(bench: Bench, level: int, fill: str) -> None:
    bench.broker.creation.group_config("G")
    full = "a\x01" + fill * ((MAX_PROPERTIES - 2) // len(fill.encode()))
    bench.broker.creation.ensure_topic("T", 1, 6)
    bench.append(_put(bench, "T", b"full", full))
    await until(lambda: bench.store.reader.max_offset("T", 0) == 1)
    [record] = await _stored(bench)
    ext = {"offset": record.phys_offset, "group": "G", "delayLevel": level, "originMsgId": "x", "originTopic": "T"}
    assert (await bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    [letter] = await _stored(bench, "%DLQ%G")
    assert (letter.body, letter.reconsume_times) == (b"full", 1)
    assert bench.broker.stats.set_aside == {"retry": 1}


async def test_a_message_with_a_separator_in_a_value_is_retried(bench: Bench) -> None:
    """RocketMQ reads everything behind the first 0x01 as the value."""
    bench.broker.creation.group_config("G")
    assert (await bench.send(b"one", properties="a\x01b\x01c")).code == 0
    [record] = await _stored(bench)
    ext = {"offset": record.phys_offset, "group": "G", "delayLevel": 1, "originMsgId": "x", "originTopic": "T"}
    assert (await bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    await until(lambda: bench.store.reader.max_offset("%RETRY%G", 0) == 1)
    [again] = await _stored(bench, "%RETRY%G")
    assert again.props["a"] == "b\x01c"


@pytest.mark.parametrize("kind", ["plain", "half", "delayed", "timed", "batch"])
async def test_properties_leave_room_for_what_a_broker_adds(bench: Bench, kind: str) -> None:
    await bench.send(b"warm", properties="")
    now = bench.broker.clock.unix_ms()
    head = {
        "plain": "a\x01b", "half": HALF, "delayed": "DELAY\x013", "timed": f"TIMER_DELIVER_MS\x01{now + 9_000_000}",
        "batch": "a\x01b",
    }[kind]  # fmt: skip
    suffix = len("\x02CLUSTER\x01demo")

    async def send(size: int) -> Any:
        text = _filled(head, size)
        if kind != "batch":
            return await bench.send(b"m", properties=text)
        ext = bench.send_ext(batch=True, properties="")
        return await bench.ask(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch([BatchItem(b"m", text.encode())]))

    added = 0 if kind in ("plain", "half", "batch") else len(head) + 1
    assert (await send(MOST_SENT - suffix + added)).code == 0
    answer = await send(MOST_SENT - suffix + added + 1)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"at most {MOST_SENT}" in (answer.remark or "")


async def test_a_retry_that_its_consumer_sends_itself_takes_no_more_room(bench: Bench) -> None:
    """What RocketMQ's client adds to it was counted when the message was accepted."""
    bench.broker.creation.group_config("G")
    bench.broker.creation.ensure_topic("%RETRY%G", 1, 6)
    own = f"RETRY_TOPIC\x01{'T' * 127}\x02ORIGIN_MESSAGE_ID\x01{'A' * 32}\x02DELAY\x013"
    text = _filled("a\x01b", MOST_SENT - 20) + "\x02" + own
    assert (await bench.send(b"m", topic="%RETRY%G", properties=text, reconsumeTimes=1)).code == 0


@pytest.mark.parametrize("seed", range(30))
def test_the_room_is_enough_for_every_way_of_a_message(seed: int) -> None:
    """The longest names, and the properties of all ways at once."""
    dice = random.Random(seed)
    topic = "T" * dice.choice([1, 127])
    group = "G" * dice.choice([1, 120, 255 - len("%RETRY%") - len(topic) - 1])
    props = {"fill": ""}
    props["fill"] = dice.choice("x\u00e9\u20ac\U0001f600") * 40_000
    while len(format_size(props)) > MOST_SENT:
        props["fill"] = props["fill"][: -max(1, (len(format_size(props)) - MOST_SENT) // 4)]
    check_properties(props, len(format_size(props)))
    record = decode_records(record_of(topic, props, dice))[0]
    for step in range(12):
        props = parse_properties(record.properties)
        way = dice.choice(["pop", "back", "timer", "half"])
        if way == "pop":
            put = revived(record, group, 2**62, counts=dice.random() < 0.5, max_retries=dice.choice([0, 16]))
            assert Prop.POP_ORIGIN in parse_properties(put.properties), step
        elif way == "back":
            props |= {
                Prop.RETRY_TOPIC: topic, Prop.WAIT_STORE_MSG_OK: "false", Prop.DELAY_TIME_LEVEL: "18",
                Prop.ORIGIN_MESSAGE_ID: "A" * 56, Prop.DLQ_ORIGIN_TOPIC: topic, Prop.DLQ_ORIGIN_MESSAGE_ID: "A" * 56,
            }  # fmt: skip
            put = messages.delayed(copy_of(record, f"%RETRY%{group}", 0, props=props), props, [1] * 18, 2**61)
        elif way == "timer":
            put = copy_of(record, topic, 0, props=props)
            put = messages.timed(put, props, 2**62, 2**61, 2**60)
            props[Prop.TIMER_ROLL_TIMES] = str(messages.MAX_ROLLS)
            put = copy_of(record, put.topic, put.queue_id, props=props)
        else:
            props[Prop.TRANSACTION_CHECK_TIMES] = str(messages.MAX_CHECKS)
            put = messages.half(copy_of(record, topic, 0, props=props), props)
        assert len(put.properties) <= MAX_PROPERTIES - 600, "a handle fits, too"
        record.properties = put.properties
        record.topic = put.topic if way == "pop" else topic


def format_size(props: dict[str, str]) -> bytes:
    return "\x02".join(f"{name}\x01{value}" for name, value in props.items()).encode()


def record_of(topic: str, props: dict[str, str], dice: random.Random) -> bytes:
    return encode_record(
        topic=topic.encode(), body=b"b", properties=format_properties(props), queue_id=2**31 - 1,
        queue_offset=dice.randrange(2**62), phys_offset=dice.randrange(2**62), born_ms=1,
        born_host=pack_host("::1", 1), store_ms=1, store_host=pack_host("::1", 1),
    )  # fmt: skip


def test_room_is_what_is_left() -> None:
    assert MOST_SENT + ROOM == MAX_PROPERTIES


RECEIVED = "\x02".join(f"{name}\x01stale" for name in sorted(BROKER_ONLY))


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]
)
@pytest.mark.parametrize("kind", ["plain", "half", "delayed"])
async def test_properties_that_a_broker_alone_sets_are_removed_at_send(bench: Bench, code: int, kind: str) -> None:
    await bench.send(b"warm", topic="W", properties="")
    head = {"plain": "a\x01b", "half": HALF, "delayed": "DELAY\x0118"}[kind]
    text = f"{RECEIVED}\x02{head}\x02{RECEIVED}\x02"
    if code == RequestCode.SEND_MESSAGE:
        header = SendHeader.from_short(bench.send_ext(properties=text))
        answer = await bench.ask(code, header.ext(), b"m")
    else:
        answer = await bench.send(b"m", properties=text)
    assert answer.code == 0, answer.remark
    topic, queue_id = {"plain": ("T", 0), "half": (TRANS_HALF_TOPIC, 0), "delayed": (SCHEDULE_TOPIC, 17)}[kind]
    await until(lambda: bench.store.reader.max_offset(topic, queue_id) > 0)
    for record in decode_records(bench.store.reader.get(topic, queue_id, 0, 9, 1 << 20).data):
        left = {name: value for name, value in record.props.items() if name in BROKER_ONLY}
        expected = {} if kind == "plain" else {Prop.REAL_TOPIC: "T", Prop.REAL_QUEUE_ID: "0"}
        assert left == expected
        assert record.props["CLUSTER"] == "demo"


async def test_they_are_removed_from_the_messages_of_a_batch(bench: Bench) -> None:
    text = f"{RECEIVED}\x02a\x01b\x02{RECEIVED}\x02".encode()
    items = [BatchItem(b"m", text), BatchItem(b"m", text + b"c\x01\xff\x02"), BatchItem(b"m", b"c\x01\xff")]
    ext = bench.send_ext(batch=True, properties="")
    assert (await bench.ask(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(items))).code == 0
    found = await _stored(bench)
    assert [BROKER_ONLY & record.props.keys() for record in found] == [set()] * 3
    assert [record.props.get("c") for record in found] == [None, "\ufffd", "\ufffd"]
    assert [record.properties.decode() for record in found], "it is UTF-8"


@pytest.mark.parametrize("seed", range(10))
def test_nothing_else_is_removed(seed: int) -> None:
    dice = random.Random(seed)
    names = [*BROKER_ONLY, "a", "KEYS", "POP", "POP_CK2", "xPOP_CK"]
    for _ in range(200):
        pieces = [
            f"{dice.choice(names)}\x01{dice.choice(['', 'v', 'POP_CK', 'x' * 5])}" for _ in range(dice.randrange(8))
        ]
        text = "\x02".join(pieces) + dice.choice(["", "\x02"])
        props = parse_properties(text)
        expected = {name: value for name, value in props.items() if name not in BROKER_ONLY}
        without = without_broker_properties(text, props)
        assert props == expected == parse_properties(without)


@pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 225])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retryMaxTimes", -1), ("retryMaxTimes", 2**31), ("retryQueueNums", -1), ("retryQueueNums", 2**31),
        ("consumeTimeoutMinute", 2**31), ("groupSysFlag", 2**31), ("brokerId", 2**63), ("brokerId", -1),
        ("whichBrokerWhenConsumeSlowly", 2**63), ("retryMaxTimes", "x"), ("retryMaxTimes", 1.5),
    ],
)  # fmt: skip
async def test_a_group_has_numbers_that_java_can_read(bench: Bench, code: int, field: str, value: Any) -> None:
    """One number beyond Java's range made mqadmin and clients fail for all groups; a negative one made dead letters."""
    group = {"groupName": "G", field: value}
    body = group if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP else {"groupConfigList": [group]}
    answer = await bench.ask(code, body=orjson.dumps(body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"{field} is {value!r}; a whole number from " in (answer.remark or "")
    assert "G" not in bench.broker.meta.working.groups


async def test_a_send_back_without_a_limit_has_the_groups(bench: Bench) -> None:
    """`maxReconsumeTimes=-1` of a client's header means the default."""
    bench.broker.creation.group_config("G")
    await bench.send(b"m", properties="")
    [record] = await _stored(bench)
    ext = {"offset": record.phys_offset, "group": "G", "delayLevel": 1, "maxReconsumeTimes": -1}
    assert (await bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    await until(lambda: bench.store.reader.max_offset("%RETRY%G", 0) == 1)
