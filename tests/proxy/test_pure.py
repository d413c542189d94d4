"""Messages, handles, waits, routes and renewals: functions without I/O."""

from __future__ import annotations

import contextlib
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_broker.protocol import grpc_contract as contract
from gantry_broker.protocol.bodies import MAX_BITS, BatchAcks, QueueData
from gantry_broker.protocol.codes import Prop, SysFlag
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import Code, MessageType, Permission, v2
from gantry_broker.protocol.message import decode_record, encode_record, format_properties, java_hash, pack_host
from gantry_broker.protocol.pop_batches import batch_of, named, without_effect
from gantry_broker.protocol.pop_handle import Handle
from gantry_broker.protocol.retry_policy import EXPONENTIAL, Exponential, RetryPolicy
from gantry_broker.proxy import clients as clients_module
from gantry_broker.proxy import elements
from gantry_broker.proxy.answers import Refusal, overall, status_bytes
from gantry_broker.proxy.brokers import GroupConfig
from gantry_broker.proxy.clients import Clients, answered_settings
from gantry_broker.proxy.messages import (
    consistent_hash,
    received,
    received_part,
    stored_properties,
    sys_flag_of,
    type_of,
)
from gantry_broker.proxy.names import resource_name, topic_name
from gantry_broker.proxy.receiving import polling_ms, read_pop, tags_of
from gantry_broker.proxy.renewal import AHEAD_MS, FIRST_MS, LONGEST_MS, STEPS_MS, Renewals
from gantry_broker.proxy.sending import HalfMessage, Sending
from gantry_broker.proxy.service import queue_permissions
from gantry_broker.proxy.wire import ack_answer, queue_part, send_answer
from gantry_broker.remoting.errors import ConnectionLost
from google.protobuf.message import DecodeError

from tests.proxy.cluster import consumer, message, producer
from tests.support.present import present

HOST = pack_host("127.0.0.1", 10911)


def record(properties: dict[str, str], body: bytes = b"hello", topic: str = "T", **more: int) -> bytes:
    values = {"queue_id": 1, "queue_offset": 7, "phys_offset": 4_711, "sys_flag": 0, "reconsume_times": 0} | more
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=format_properties(properties),
        born_ms=1_700_000_000_123,
        born_host=HOST,
        store_ms=1_700_000_000_456,
        store_host=HOST,
        **values,
    )


def test_the_contract_has_its_own_pool() -> None:
    file = contract.describe()
    assert len({message.name for message in file.message_type}) == len(file.message_type)
    assert v2.Message.DESCRIPTOR.file.pool is not None
    for kind in file.message_type:
        numbers = [field.number for field in kind.field]
        assert len(set(numbers)) == len(numbers), kind.name


def test_a_message_keeps_what_its_producer_said() -> None:
    sent = message("T", tag="a", keys=["k1", "k2"], props={"p": "v", "ä": "ö"}, message_group="g", trace_context="t")
    properties = stored_properties(sent, "T", 0)
    assert properties[Prop.KEYS] == "k1 k2"
    assert type_of(properties) == MessageType.FIFO
    got = received(decode_record(record(properties)), sent.topic, handle="h")
    system = got.system_properties
    assert got.user_properties["ä"] == "ö"
    assert (system.tag, list(system.keys), system.message_group, system.trace_context) == ("a", ["k1", "k2"], "g", "t")
    assert (system.message_id, system.born_host) == (sent.system_properties.message_id, "here")
    assert (system.receipt_handle, system.delivery_attempt, system.queue_offset) == ("h", 1, 7)
    assert system.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
    assert system.store_timestamp.nanos == 456_000_000


def test_a_compressed_body_passes_through() -> None:
    """clients 667, 722: GZIP is zlib; the sender knows how it did that."""
    sent = message("T", b"compressed", encoding=2)
    flag = sys_flag_of(sent)
    assert flag == SysFlag.COMPRESSED
    got = received(decode_record(record(stored_properties(sent, "T", 0), sent.body, sys_flag=flag)), sent.topic)
    assert got.system_properties.body_encoding == 2
    assert got.body == b"compressed"


def test_namespaces_stand_before_names() -> None:
    assert resource_name(v2.Resource(resource_namespace="ns", name="T")) == "ns%T"
    assert topic_name(v2.Resource(name="T")) == "T"
    for name in ("", " ", "a b", "x" * 128, "TBW102", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(Refusal) as error:
            topic_name(v2.Resource(name=name))
        assert error.value.code == Code.ILLEGAL_TOPIC


def test_message_groups_have_the_queue_that_apaches_proxy_gives_them() -> None:
    """Answers of Guava's `Hashing.consistentHash`."""
    assert consistent_hash(java_hash("g1"), 2) == 0
    assert consistent_hash(java_hash("abc-17"), 16) == 15
    assert consistent_hash(java_hash("negative-hash-x"), 7) == 3
    chance = random.Random(3)
    groups = [java_hash(f"group-{chance.random()}") for _ in range(2_000)]
    assert 100 < sum(consistent_hash(group, 8) != consistent_hash(group, 9) for group in groups) < 400


def test_a_pop_answer_gives_each_message_its_handle() -> None:
    retried = {Prop.POP_CK: "3 1000 60000 5 1 b 0 4", Prop.TAGS: "t"}
    body = record({}) + record(retried, topic="T", queue_id=0, queue_offset=4, reconsume_times=2)
    ext = {"popTime": "1000", "invisibleTime": "60000", "reviveQid": "3", "startOffsetInfo": "0 1 5;1 0 3"}
    popped = read_pop(Frame(0, ext=ext, body=body), "b")
    assert [(item.handle, item.attempt) for item in popped.items] == [
        ("5 1000 60000 3 0 b 1 7 4711", 1),
        ("3 1000 60000 5 1 b 0 4 4711", 3),
    ]
    assert popped.invisible_ms == 60_000
    ordered = {**ext, "reviveQid": "999", "orderCountInfo": "0 qo1%7 2;0 1 0"}
    assert read_pop(Frame(0, ext=ordered, body=record({})), "b").items[0].attempt == 3


@pytest.mark.parametrize(
    ("asked", "left", "version", "expected"),
    [
        (5_000, 20_000, "5.1.2", 5_000),
        (1, 20_000, "5.1.2", 5_000),
        (60_000, 90_000, "5.1.2", 20_000),
        (None, 21_500, "5.1.2", 20_000),
        (None, 9_000, "5.1.2", 7_500),
        (20_000, 7_000, "5.1.2", 7_000),
        (20_000, 1_000, "5.1.2", Code.ILLEGAL_POLLING_TIME),
        (20_000, 1_000, "5.0.2", Code.BAD_REQUEST),
        (20_000, 1_000, "", Code.BAD_REQUEST),
        (None, None, "", 20_000),
    ],
)
def test_how_long_a_receive_waits(asked: int | None, left: int | None, version: str, expected: int) -> None:
    if isinstance(expected, Code):
        with pytest.raises(Refusal) as error:
            polling_ms(asked, 3_000, left, version)
        assert error.value.code == expected
    else:
        assert polling_ms(asked, 3_000, left, version) == expected


def test_tags_of_an_expression() -> None:
    assert tags_of("*") is None
    assert tags_of("") is None
    assert tags_of("a || b") == {"a", "b"}


def test_queues_of_a_group_for_reading_and_writing() -> None:
    both, read, write = Permission.READ_WRITE, Permission.READ, Permission.WRITE
    assert queue_permissions(QueueData("b", 3, 2, 6)) == [(0, both), (1, both), (2, read)]
    assert queue_permissions(QueueData("b", 1, 2, 6)) == [(0, both), (1, write)]
    assert queue_permissions(QueueData("b", 2, 2, 4)) == [(0, read), (1, read)]
    assert queue_permissions(QueueData("b", 2, 2, 0)) == [(0, Permission.NONE)]


def test_settings_have_what_clients_wait_for() -> None:
    """clients 1168, 1191: without `metric` the push consumer of Python fails."""
    answer = answered_settings(producer("T"), None)
    assert answer.HasField("metric")
    assert (answer.backoff_policy.max_attempts, answer.publishing.max_body_size) == (3, 4 << 20)
    answer = answered_settings(consumer("g", "T"), GroupConfig(orderly=True, retry_times=3))
    assert answer.HasField("metric")
    assert (answer.backoff_policy.max_attempts, answer.subscription.fifo) == (4, True)
    assert answered_settings(answer, GroupConfig(True, 3)) == answer


def test_settings_have_the_retry_policy_of_the_group() -> None:
    steps = answered_settings(consumer("g", "T"), GroupConfig()).backoff_policy.customized_backoff.next
    assert [step.seconds for step in steps][:4] == [1, 5, 10, 30]
    policy = RetryPolicy(steps_ms=(250, 61_500))
    steps = answered_settings(consumer("g", "T"), GroupConfig(retry_policy=policy)).backoff_policy.customized_backoff
    assert [(step.seconds, step.nanos) for step in steps.next] == [(0, 250_000_000), (61, 500_000_000)]
    policy = RetryPolicy(EXPONENTIAL, Exponential(1_500, 90_000, 3), (1,))
    backoff = answered_settings(consumer("g", "T"), GroupConfig(retry_policy=policy)).backoff_policy
    assert backoff.WhichOneof("strategy") == "exponential_backoff"
    backoff = backoff.exponential_backoff
    assert (backoff.initial.nanos, backoff.max.seconds, backoff.multiplier) == (500_000_000, 90, 3.0)


def test_one_status_for_an_answer_with_several() -> None:
    assert overall([]) == Code.OK
    assert overall([Code.OK, Code.OK]) == Code.OK
    assert overall([Code.OK, Code.INVALID_RECEIPT_HANDLE]) == Code.MULTIPLE_RESULTS


# ---- renewals


def test_a_message_is_renewed_until_its_client_is_done() -> None:
    renewals = Renewals()
    renewals.add("c", "g", "T", "h0", FIRST_MS, 0)
    assert renewals.due(FIRST_MS - AHEAD_MS - 1) == []
    [due] = renewals.due(FIRST_MS - AHEAD_MS)
    assert (due.invisible_ms, due.last) == (STEPS_MS[0], False)
    assert renewals.due(FIRST_MS) == []  # it is under way
    renewals.renewed(due, "h1", 110_000)
    held = present(renewals.find("g", "T", "h0"))
    assert held.handle == "h1"
    assert renewals.remove("g", "T", "h0") is held
    assert renewals.due(10**9) == []  # 4783, 7837: nothing is renewed after its end
    assert len(renewals) == 0


def test_renewals_end_after_the_longest_time() -> None:
    renewals, now = Renewals(), 0
    renewals.add("c", "g", "T", "h", FIRST_MS, 0)
    spans = []
    while len(renewals):
        now += 1_000
        for due in renewals.due(now):
            spans.append(due.invisible_ms)
            renewals.renewed(due, f"h{now}", now + (due.invisible_ms or 0))
    assert spans[: len(STEPS_MS)] == list(STEPS_MS)
    assert spans.index(None) == len(spans) - 1  # the group's retry policy has the last pause
    assert LONGEST_MS <= now < LONGEST_MS + STEPS_MS[-1]


def test_a_failed_renewal_is_tried_again_until_the_message_is_visible() -> None:
    renewals, now, tries = Renewals(), FIRST_MS - AHEAD_MS, 0
    renewals.add("c", "g", "T", "h", FIRST_MS, 0)
    while len(renewals):
        for due in renewals.due(now):
            tries += 1
            renewals.failed(due, now, final=False)
        now += 100
    assert 3 <= tries < 20
    assert FIRST_MS <= now < FIRST_MS + 2_000


def test_what_a_client_leaves_goes_to_others() -> None:
    renewals = Renewals()
    for number in range(3):
        renewals.add("c", "g", "T", f"h{number}", FIRST_MS, 0)
    renewals.add("other", "g", "T", "x", FIRST_MS, 0)
    assert {held.handle for held in renewals.client_gone("c")} == {"h0", "h1", "h2"}
    assert len(renewals) == 1
    assert renewals.client_gone("c") == []


def test_the_same_handle_of_two_groups_is_two_deliveries() -> None:
    """Both groups popped the message in the same millisecond."""
    renewals = Renewals()
    for group in ("g", "other"):
        renewals.add(f"c of {group}", group, "T", "h", FIRST_MS, 0)
    first, second = renewals.due(FIRST_MS - AHEAD_MS)
    assert {first.held.group, second.held.group} == {"g", "other"}
    renewals.renewed(first, "h of g", 110_000)
    renewals.renewed(second, "h of other", 110_000)
    assert present(renewals.remove("g", "T", "h")).handle == "h of g"
    assert [due.held.group for due in renewals.due(110_000 - AHEAD_MS)] == ["other"]
    assert renewals.find("g", "Other", "h") is None


def test_seeded_histories_of_renewals() -> None:
    """A message is renewed only while its client works on it, never twice at once, and none is forgotten."""
    chance = random.Random(5)
    for _ in range(200):
        renewals, now, open_ones, busy = Renewals(), 0, {}, {}
        for step in range(150):
            now += chance.randrange(5_000)
            action = chance.random()
            if action < 0.3:
                name = f"h{step}"
                renewals.add(chance.choice("ab"), "g", "T", name, now + FIRST_MS, now)
                open_ones[name] = now + FIRST_MS
            elif action < 0.45 and open_ones:
                name = chance.choice(sorted(open_ones))
                renewals.remove("g", "T", name)
                del open_ones[name]
            for due in renewals.due(now):
                assert due.held.given in open_ones
                assert due.held.given not in busy
                busy[due.held.given] = due
            for name, due in list(busy.items()):
                if chance.random() < 0.6:
                    del busy[name]
                    if chance.random() < 0.8:
                        renewals.renewed(due, f"{name}+", now + due.invisible_ms)
                        if name in open_ones:
                            open_ones[name] = now + due.invisible_ms
                    else:
                        renewals.failed(due, now, final=False)
            for name in [name for name, at in open_ones.items() if renewals.find("g", "T", name) is None]:
                assert open_ones.pop(name) <= now  # it had become visible
        assert len(renewals) == len(open_ones)


def test_what_is_written_without_protobuf_is_what_protobuf_writes() -> None:
    draw = random.Random(29)
    topic = v2.Resource(name="T", resource_namespace="ns")
    names = ["p", "\u00fc" * 70, "x" * 200, Prop.TAGS, Prop.KEYS, Prop.SHARDING_KEY, Prop.TRACE_CONTEXT, Prop.BORN_HOST]
    names += [Prop.BORN_TIMESTAMP, Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, Prop.PRIORITY, Prop.TIMER_DELIVER_MS]
    names += [Prop.DLQ_ORIGIN_TOPIC, Prop.TRANSACTION_PREPARED]
    for _ in range(300):
        properties = {name: draw.choice(["7", "a b", "1795240234041", "z" * 300]) for name in draw.sample(names, 4)}
        one = decode_record(
            record(
                properties,
                draw.randbytes(draw.choice([1, 127, 5_000])),
                queue_id=draw.choice([0, 1, 300]),
                queue_offset=draw.choice([0, 200, 1 << 40]),
                sys_flag=draw.choice([0, int(SysFlag.COMPRESSED)]),
            )
        )
        expected = v2.ReceiveMessageResponse()
        received(one, topic, handle="h", attempt=3, out=expected.message)
        written = received_part(one, one.props, topic.SerializeToString(), "h", 3)
        assert v2.ReceiveMessageResponse.FromString(written) == expected
    ok, late = status_bytes(Code.OK, "OK"), status_bytes(Code.INVALID_RECEIPT_HANDLE, "late")
    for offset, handle in ((0, ""), (1 << 40, "again")):
        answer = v2.SendMessageResponse.FromString(send_answer(ok, "1,2", "1", offset, handle))
        [entry] = answer.entries
        assert (answer.status, entry.status) == (v2.Status(code=Code.OK, message="OK"),) * 2
        assert (entry.message_id, entry.transaction_id, entry.offset, entry.recall_handle) == (
            "1,2",
            "1",
            offset,
            handle,
        )
    acks = v2.AckMessageResponse.FromString(ack_answer(ok, [("m", "h" * 200, late), ("", "", ok)]))
    assert [(e.message_id, e.receipt_handle, e.status.message) for e in acks.entries] == [
        ("m", "h" * 200, "late"),
        ("", "", "OK"),
    ]


def test_a_batch_of_acknowledgements_has_one_entry_for_each_pop_of_a_queue() -> None:
    handles = [Handle(4, 9, 1, 0, 0, "a", 0, at) for at in (4, 6, 90)] + [Handle(4, 9, 1, 0, 1, "a", 0, 5)]
    batch = present(batch_of("g", "T", handles))
    again = BatchAcks.from_json(batch.to_json())
    assert [(entry.kind, entry.start_offset, entry.offsets) for entry in again.acks] == [
        (0, 4, [4, 6, 90]),
        (1, 4, [5]),
    ]
    assert without_effect(batch, Frame(0, ext={"noEffect": named([(0, 6), (1, 5)])})) == {handles[1], handles[3]}
    assert without_effect(batch, Frame(0, ext={"noEffect": ""})) == set()
    assert without_effect(batch, Frame(0)) is None
    for text, fault in {"2:1": "no entry", "x": "no entry", "0:": "no entry", "-1:4": "no entry"}.items():
        with pytest.raises(ValueError, match=fault):
            without_effect(batch, Frame(0, ext={"noEffect": text}))
    far = Handle(4, 9, 1, 0, 0, "a", 0, 4 + MAX_BITS * 8)
    before = Handle(4, 9, 1, 0, 0, "a", 0, 3)
    assert batch_of("g", "T", [far, far]) is batch_of("g", "T", [before]) is batch_of("g", "T", []) is None


async def test_a_decision_that_did_not_reach_a_broker_may_be_sent_again() -> None:
    sent: list[Frame] = []

    async def oneway(_: str, frame: Frame) -> None:
        if not sent:
            sent.append(frame)
            raise ConnectionLost("the master has gone")
        sent.append(frame)

    async def address(_broker: str, _topic: str) -> str:
        return "h:1"

    session = SimpleNamespace(remoting=SimpleNamespace(oneway=oneway))
    sending = Sending(SimpleNamespace(address=address, session=session), None, None)  # type: ignore[arg-type]
    sending._note_half("T", "t1", HalfMessage("a", "g", "m", 3, 400, time.monotonic() + 30))
    wanted = v2.EndTransactionRequest(transaction_id="t1", resolution="COMMIT")
    unclear = v2.EndTransactionRequest(transaction_id="t1", resolution=7)
    with pytest.raises(Refusal):
        await sending.end_transaction("T", unclear)
    with pytest.raises(ConnectionLost):
        await sending.end_transaction("T", wanted)
    assert (await sending.end_transaction("T", wanted)).status.code == Code.OK
    assert [frame.ext["commitLogOffset"] for frame in sent] == ["400", "400"]
    with pytest.raises(Refusal):
        await sending.end_transaction("T", wanted)


@pytest.mark.parametrize(
    "more",
    [
        {"tag": "t" * 16_385},
        {"keys": ["k" * 8_000] * 3},
        {"keys": ["ä" * 8_193]},
        {"tag": "t" * 8_000, "keys": ["k" * 8_000], "props": {"p": "v" * 400}},
        {"props": {"p": "v" * 16_384}},
    ],
)
def test_tag_and_keys_count_as_properties_of_the_client(more: dict[str, Any]) -> None:
    """As Apache's proxy 5.5.0 counts them: 16 KiB together."""
    with pytest.raises(Refusal, match="max is 16384") as caught:
        stored_properties(message("T", **more), "T", 0)
    assert caught.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE


def test_as_many_bytes_of_tag_keys_and_properties_as_are_allowed() -> None:
    stored = stored_properties(message("T", tag="t" * 8_000, keys=["k" * 8_000], props={"p": "v" * 383}), "T", 0)
    assert (len(stored["TAGS"]), len(stored["KEYS"]), len(stored["p"])) == (8_000, 8_000, 383)


def test_the_bytes_of_queues_are_those_of_protobuf() -> None:
    topic, place = v2.Resource(resource_namespace="n", name="T"), v2.Endpoints(scheme=1)
    place.addresses.add(host="h", port=8081)
    for number, permission, types in ((0, 1, ()), (3, 4, (1, 4)), (-1, 4, ()), (1_000, 2, (1,))):
        one = v2.MessageQueue(id=number, permission=permission, topic=topic, accept_message_types=types)
        one.broker.name = "a"
        one.broker.endpoints.CopyFrom(place)
        written = queue_part(topic.SerializeToString(), "a", place.SerializeToString(), types)(number, permission)
        assert written == one.SerializeToString()


def fields_of(value: Any) -> int:
    """The fields of a message and its submessages, as protobuf counts them."""
    count = 0
    for field, content in value.ListFields():
        if field.name == "user_properties":
            count += 3 * len(content)
        elif field.type == field.TYPE_MESSAGE:
            parts = content if field.is_repeated else [content]
            count += sum(1 + fields_of(part) for part in parts)
        elif field.is_repeated:
            count += len(content)
        else:
            count += 1
    return count


@pytest.mark.parametrize("seed", range(30))
def test_as_many_fields_as_a_message_has_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    sent = v2.SendMessageRequest()
    for _ in range(rng.randint(1, 30)):
        props = {str(n): "v" * rng.randint(0, 300) for n in range(rng.randint(0, 5))}
        one = message("T", b"x" * rng.randint(1, 2_000), keys=["k"] * rng.randint(0, 5), props=props)
        one.system_properties.queue_id = rng.choice((-1, 1, 2**31 - 1))
        sent.messages.add().CopyFrom(one)
    data = sent.SerializeToString()
    layout, fields = elements.layout_of(v2.SendMessageRequest), fields_of(sent)
    padded = data + b"\xfa\x07\xff\xff\x03" + b"\0" * 65_535  # so that the bytes alone do not prove it
    elements.check(padded, layout, fields + 1)
    with pytest.raises(elements.TooMany):
        elements.check(padded, layout, fields)
    elements.check(data, layout, len(data) // 2)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x08",
        b"\x08\xff",
        b"\xff" * 11,
        b"\x0b",
        b"\x0c",
        b"\x0f",
        b"\x0a\x80",
        b"\x0a\xff" * 6,
    ],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    unknown = b"\x7a\x40" + b"x" * 64
    with pytest.raises(DecodeError):
        elements.check(unknown + data, elements.layout_of(v2.TelemetryCommand), 10)


def test_any_bytes_are_counted_or_refused() -> None:
    rng = random.Random(7)
    layout = elements.layout_of(v2.TelemetryCommand)
    for _ in range(3_000):
        data = bytes(rng.choices(range(256), k=rng.randint(1, 200)))
        with contextlib.suppress(elements.TooMany, DecodeError):
            elements.check(data, layout, rng.randint(0, 50))


def test_each_packed_number_counts() -> None:
    with pytest.raises(elements.TooMany):
        elements.check(b"\x2a\x7f" + b"\1" * 127, elements.layout_of(v2.MessageQueue), 60)


def test_no_user_takes_the_last_places_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MAX_CLIENTS", 10)
    clients = Clients(10_000)
    mine = [clients.enter(f"c{number}", "192.0.2.1", "a") for number in range(8)]
    assert [client is not None for client in mine] == [True] * 5 + [False] * 3
    assert clients.enter("c0", "192.0.2.1", "a") is mine[0], "one that is known has its place"
    assert clients.enter("c0", "192.0.2.1"), "another owner finds one"
    settings = v2.Settings()
    settings.user_agent.hostname = "h" * 4_000
    given = 0
    for client in filter(None, mine):
        if not clients.has_room(client, settings):
            break
        clients.set_settings(client, settings)
        given += 1
    assert given == 1, "as much as is free"
    assert clients.has_room(present(clients.enter("other", "192.0.2.2")), settings)
    for client in clients:
        clients.leave(client)
    assert (clients.kept, clients._clients_of, clients._kept_of) == (0, {}, {})
