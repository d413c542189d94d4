"""Requests against a real store: what is stored, what is answered, and what bad input gets."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from gantry_broker.broker.handlers.admin import readable
from gantry_broker.broker.handlers.table import HANDLERS
from gantry_broker.broker.pull.sql92 import FilterSyntaxError
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ConsumerData, Heartbeat, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import BatchItem, decode_records, encode_batch
from gantry_broker.store import read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.failing_calls import raising
from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

EVERY_CODE = sorted({*HANDLERS, 10, 310, 320})
FIELDS = [
    "topic",
    "queueId",
    "queueOffset",
    "consumerGroup",
    "producerGroup",
    "group",
    "maxMsgNums",
    "sysFlag",
    "offset",
    "commitOffset",
    "suspendTimeoutMillis",
    "subVersion",
    "subscription",
    "expressionType",
    "timestamp",
    "key",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "delayLevel",
    "commitLogOffset",
    "tranStateTableOffset",
    "clientID",
    "commitOrRollback",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicFilterType",
    "defaultTopic",
    "statsName",
    "statsKey",
    "groupName",
    "srcGroup",
    "destGroup",
    "clientId",
    "index",
    "count",
    "isForce",
    "attributes",
    "order",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
    "n",
]


async def test_sends_of_one_read_are_stored_in_their_order(bench: Bench) -> None:
    frames = [bench.frame(310, bench.send_ext(queueId=n % 2), b"m%d" % n) for n in range(20)]
    bench.give(*frames)
    answers = [await bench.answer(f.opaque) for f in frames]
    assert [a.code for a in answers] == [0] * 20
    assert [int(a.ext["queueOffset"]) for a in answers] == [n // 2 for n in range(20)]
    pulled = await bench.ask(11, bench.pull_ext(queueId=1))
    assert [r.body for r in decode_records(pulled.body)] == [b"m%d" % n for n in range(1, 20, 2)]


async def test_both_serializations_are_answered_in_their_form(bench: Bench) -> None:
    for serialize in (0, 1):
        answer = await bench.ask(310, bench.send_ext(), b"x", serialize)
        assert (answer.code, answer.serialize) == (0, serialize)
        assert set(answer.ext) == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


@pytest.mark.parametrize(
    "text",
    ["A\x011\x02WAIT\x01true\x02B\x012", "WAIT\x01true\x02A\x011\x02B\x012\x02", "A\x011\x02B\x012\x02WAIT\x01true"],
)
async def test_wait_is_not_stored(bench: Bench, text: str) -> None:
    """As 4.9.7: it is about the answer. The first send of a topic takes the careful way, the second the fast one."""
    for _ in range(2):
        assert (await bench.send(b"x", properties=text)).code == 0
    assert (await bench.send(b"x", properties="WAIT\x01true")).code == 0
    *two, last = decode_records((await bench.ask(11, bench.pull_ext())).body)
    assert [record.props for record in two] == [{"A": "1", "B": "2", "CLUSTER": "demo"}] * 2
    assert last.props == {"CLUSTER": "demo"}


async def test_one_bad_send_does_not_touch_its_neighbours(bench: Bench) -> None:
    good = bench.frame(310, bench.send_ext(), b"good")
    bad = bench.frame(310, {**bench.send_ext(), "e": "many"}, b"bad")
    late = bench.frame(310, bench.send_ext(), b"late")
    bench.give(good, bad, late)
    assert (await bench.answer(good.opaque)).code == 0
    refused = await bench.answer(bad.opaque)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "queueId" in (refused.remark or "")
    assert (await bench.answer(late.opaque)).ext["queueOffset"] == "1"


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"topic": "no space"}, ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ({"topic": "x" * 128}, ResponseCode.SYSTEM_ERROR, "longer"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"topic": "rmq_sys_GANTRY_CONTROL"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"queueId": 99}, ResponseCode.SYSTEM_ERROR, "queueId"),
        ({"topic": "Unknown", "defaultTopic": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
        ({"properties": "DELAY\x01soon"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": "TIMER_DELIVER_MS\x01-5"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELIVER_MS"),
        ({"properties": "TIMER_DELAY_SEC\x019999999"}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({"properties": "p\x01" + "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        ({"properties": "p\x01" + "\0" * 31}, ResponseCode.MESSAGE_ILLEGAL, "zero bytes"),
    ],
)
async def test_refused_sends(bench: Bench, fields: dict[str, Any], code: int, says: str) -> None:
    before = bench.store.log.end
    answer = await bench.send(b"x", **fields)
    assert answer.code == code
    assert says in (answer.remark or "")
    assert bench.store.log.end == before or fields.get("queueId")


async def test_a_body_over_the_limit_is_refused(bench: Bench) -> None:
    assert (await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1024")).code == 0
    assert (await bench.send(b"x" * 1_024)).code == 0
    answer = await bench.send(b"x" * 1_025)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "maxMessageSize is 1024" in (answer.remark or "")


async def test_a_topic_without_write_permission_refuses(bench: Bench) -> None:
    await bench.send(b"x")
    await bench.broker.changes.append_and_wait({"topics": [TopicConfig("T", 4, 4, perm=4).to_json()]})
    assert (await bench.send(b"y")).code == ResponseCode.NO_PERMISSION
    await bench.broker.changes.append_and_wait({"topics": [TopicConfig("T", 4, 4, perm=2).to_json()]})
    assert (await bench.send(b"y")).code == 0
    assert (await bench.ask(11, bench.pull_ext())).code == ResponseCode.NO_PERMISSION


async def test_a_batch_is_one_answer_with_all_ids(bench: Bench) -> None:
    body = encode_batch([BatchItem(b"a", b"TAGS\x01x"), BatchItem(b"b"), BatchItem(b"c")])
    answer = await bench.ask(320, bench.send_ext(batch=True), body)
    assert answer.code == 0
    assert len(answer.ext["msgId"].split(",")) == 3
    pulled = decode_records((await bench.ask(11, bench.pull_ext())).body)
    assert [(r.body, r.props.get("TAGS"), r.props["CLUSTER"]) for r in pulled] == [
        (b"a", "x", "demo"),
        (b"b", None, "demo"),
        (b"c", None, "demo"),
    ]
    assert (await bench.ask(320, bench.send_ext(batch=True), b"\0\0\0\x09broken")).code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_one_way_send_is_stored_and_not_answered(bench: Bench) -> None:
    frame = bench.frame(310, bench.send_ext(), b"quiet")
    frame.flag = 2
    bench.give(frame)
    assert (await bench.ask(30, {"topic": "T", "queueId": 0})).ext == {"offset": "1"}
    assert all(f.opaque != frame.opaque for f in bench.wire.frames)


async def test_a_full_disk_refuses_sends_and_goes_on_reading(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.send(b"before")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", raising(OSError(errno.ENOSPC, "No space left on device")))
    answer = await bench.send(b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "disk is full" in (answer.remark or "")
    assert bench.broker.health.disk_full
    monkeypatch.setattr(os, "pwrite", real)
    assert [r.body for r in decode_records((await bench.ask(11, bench.pull_ext())).body)] == [b"before"]
    assert (await bench.send(b"after")).ext["queueOffset"] == "1"
    assert not bench.broker.health.disk_full


async def test_a_pull_waits_for_its_queue_and_only_for_matching_tags(bench: Bench) -> None:
    await bench.send(b"first")
    ext = bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=10_000, subscription="B")
    frame = bench.frame(11, ext)
    bench.give(frame)
    await bench.send(b"other tag")
    await asyncio.sleep(0)
    assert all(f.opaque != frame.opaque for f in bench.wire.frames)
    await bench.send(b"mine", properties="TAGS\x01B")
    answer = await bench.answer(frame.opaque)
    assert [r.body for r in decode_records(answer.body)] == [b"mine"]
    assert answer.ext["nextBeginOffset"] == "3"


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"), [(2, ResponseCode.PULL_NOT_FOUND, "2"), (9, ResponseCode.PULL_OFFSET_MOVED, "2")]
)
async def test_pulls_beyond_the_end(bench: Bench, offset: int, code: int, next_offset: str) -> None:
    await bench.send(b"a")
    await bench.send(b"b")
    answer = await bench.ask(11, bench.pull_ext(offset=offset))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, next_offset)
    assert answer.ext["maxOffset"] == "2"


@pytest.mark.parametrize(
    ("boundary", "ago", "ahead"),
    [({}, "0", "2"), ({"boundaryType": "LOWER"}, "0", "2"), ({"boundaryType": "upper"}, "0", "1")],
)
async def test_offsets_by_time_have_the_boundaries_of_5_x(
    bench: Bench, boundary: dict[str, str], ago: str, ahead: str
) -> None:
    await bench.send(b"a")
    await bench.send(b"b")
    for ms, offset in ((1, ago), (1 << 50, ahead)):
        answer = await bench.ask(29, {"topic": "T", "queueId": 0, "timestamp": ms, **boundary})
        assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, offset)


@pytest.mark.parametrize("boundary", ["", "MIDDLE", "UPPER ", "1"])
async def test_an_unknown_boundary_is_refused(bench: Bench, boundary: str) -> None:
    await bench.send(b"a")
    answer = await bench.ask(29, {"topic": "T", "queueId": 0, "timestamp": 1, "boundaryType": boundary})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "boundaryType" in (answer.remark or "")
    assert "LOWER or UPPER" in (answer.remark or "")


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"topic": "Absent"}, ResponseCode.TOPIC_NOT_EXIST, "Absent"),
        ({"queueId": 77}, ResponseCode.SYSTEM_ERROR, "queueId"),
        ({"maxMsgNums": 0}, ResponseCode.SYSTEM_ERROR, "maxMsgNums"),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info"),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR, "SQL92"),
        ({"consumerGroup": "bad group"}, ResponseCode.SYSTEM_ERROR, "group"),
    ],
)
async def test_refused_pulls(bench: Bench, fields: dict[str, Any], code: int, says: str) -> None:
    await bench.send(b"a")
    answer = await bench.ask(11, {**bench.pull_ext(), **fields})
    assert answer.code == code
    assert says in (answer.remark or "")


async def test_heartbeats_create_groups_with_retry_topics_and_notify_members(bench: Bench) -> None:
    def beat(name: str, expression: str = "*", version: int = 1) -> bytes:
        data = {"topic": "T", "subString": expression, "subVersion": version}
        consumer = {"groupName": "G", "subscriptionDataSet": [data]}
        return orjson.dumps({"clientID": name, "consumerDataSet": [consumer], "producerDataSet": []})

    assert (await bench.ask(34, body=beat("one"))).code == 0
    assert "%RETRY%G" in bench.broker.meta.working.topics
    assert orjson.loads((await bench.ask(38, {"consumerGroup": "G"})).body) == {"consumerIdList": ["one"]}

    def notifications() -> list[int]:
        return [f.code for f in bench.wire.frames if not f.is_response]

    await until(lambda: notifications() == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED])
    await bench.ask(34, body=beat("one", "x", 2))
    await until(lambda: notifications() == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] * 2)
    bench.dispatcher.on_close(bench.wire)  # type: ignore[arg-type]
    assert (await bench.ask(38, {"consumerGroup": "G"})).code == ResponseCode.SYSTEM_ERROR


async def test_offsets_of_a_new_group_are_as_in_4_9(bench: Bench) -> None:
    await bench.send(b"a")
    asked = {"consumerGroup": "new", "topic": "T", "queueId": 0}
    assert (await bench.ask(14, asked)).ext == {"offset": "0"}
    assert (await bench.ask(14, {**asked, "setZeroIfNotFound": "false"})).code == ResponseCode.QUERY_NOT_FOUND
    await bench.ask(15, {**asked, "commitOffset": 1})
    assert (await bench.ask(14, asked)).ext == {"offset": "1"}


async def test_a_deleted_topic_starts_without_its_old_messages(bench: Bench) -> None:
    await bench.send(b"old")
    await bench.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert (await bench.ask(215, {"topic": "T"})).code == 0
    assert (await bench.ask(11, bench.pull_ext())).code == ResponseCode.TOPIC_NOT_EXIST
    sent = await bench.send(b"new")
    low = int((await bench.ask(31, {"topic": "T", "queueId": 0})).ext["offset"])
    assert low == int(sent.ext["queueOffset"])
    pulled = await bench.ask(11, bench.pull_ext(offset=low))
    assert [r.body for r in decode_records(pulled.body)] == [b"new"]
    assert bench.broker.meta.working.offset("T", "G", 0) == -1


async def test_a_member_that_does_not_lead_refuses_writes_in_words(bench: Bench) -> None:
    await bench.send(b"a")
    bench.broker.replication.saw_epoch(99)
    answer = await bench.send(b"b")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "epoch 99" in (answer.remark or "")
    assert (await bench.ask(41, body=b'{"consumerGroup":"G","clientId":"c","mqSet":[]}')).code != 0


async def test_unknown_codes_are_not_supported(bench: Bench) -> None:
    for code in (1, 999, RequestCode.POP_LITE_MESSAGE, RequestCode.SWITCH_TIMER_ENGINE, 403, -5):
        assert (await bench.ask(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_request_without_its_fields_is_answered(bench: Bench, code: int) -> None:
    before = bench.store.log.end
    answer = await bench.ask(code)
    assert answer.remark is None or "Traceback" not in answer.remark
    if answer.code != 0:
        assert answer.remark
        assert "failed:" not in answer.remark, "an error that nobody thought of"
        assert bench.store.log.end == before


HOSTILE = st.one_of(
    st.sampled_from(["", "-1", "0", "99999999999999999999", "9223372036854775807", "null", "\x00", "%", "x" * 5_000]),
    st.text(max_size=40),
    st.integers(-(2**70), 2**70).map(str),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(EVERY_CODE),
    fields=st.dictionaries(st.sampled_from(FIELDS), HOSTILE, max_size=14),
    body=st.one_of(
        st.binary(max_size=200),
        st.sampled_from([b"{}", b"[]", b'{"mqSet":[{}]}', b'{"clientID":5}', b"null", b"a=b", b"\xff\xfe"]),
    ),
)
async def test_hostile_fields_get_an_answer_and_break_nothing(
    bench: Bench, code: int, fields: dict[str, str], body: bytes
) -> None:
    answer = await bench.ask(code, fields, body)
    assert answer.remark is None or "failed:" not in answer.remark, (code, fields, body, answer.remark)
    assert (await bench.send(b"still works", "Alive")).code == 0


async def test_a_broken_handler_costs_one_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> Frame:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setitem(bench.parts.processor.handlers, int(RequestCode.GET_BROKER_CONFIG), broken)
    answer = await bench.ask(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "on purpose" in (answer.remark or "")
    assert (await bench.send(b"x")).code == 0


async def test_queues_of_unconfigured_topics_are_cleaned_on_request(bench: Bench) -> None:
    await bench.send(b"kept", "Kept")
    await bench.send(b"gone", "Gone")
    bench.broker.changes.append({"dropTopics": ["Gone"]})  # as a store that was taken over may have it
    await bench.send(b"more", "Kept")
    store = bench.store
    assert store.reader.min_offset("Gone", 0) < store.reader.max_offset("Gone", 0)
    for _ in range(2):
        assert (await bench.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        end = store.log.end
    assert store.log.end == end, "nothing is left to be cleaned"
    assert store.reader.min_offset("Gone", 0) == store.reader.max_offset("Gone", 0)
    pulled = await bench.ask(11, bench.pull_ext("Kept"))
    assert [r.body for r in decode_records(pulled.body)] == [b"kept", b"more"]


async def test_the_runtime_info_has_what_tools_of_5_read(bench: Bench) -> None:
    """`exportMetrics` and rocketmq-exporter of 5.5.0 end with an exception without one of them."""
    assert (await bench.send(b"x")).code == 0
    answer = await bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = orjson.loads(answer.body)["table"]
    assert {"getTransferredTps", "getTransferedTps"} <= table.keys()
    assert len(table["putMessageDistributeTime"].split()) == 13
    assert sum(int(part.rpartition(":")[2]) for part in table["putMessageDistributeTime"].split()) == 1


async def test_running_figures_are_sizes_as_people_read_them(bench: Bench) -> None:
    await bench.send(b"x")
    table = orjson.loads((await bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert re.fullmatch(r"Total : [\d.]+ [KMGT]iB, Free : [\d.]+ [KMGT]iB\.", table["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+(\.\d [KM]i| )B", table["remainHowManyDataToFlush"])
    assert [readable(n) for n in (0, 1_023, 1_024, 1_536, 270_553_174_016)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "252.0 GiB",
    ]  # fmt: skip


async def test_offsets_are_reset_only_of_a_group_that_was_at_every_queue(bench: Bench) -> None:
    """As 4.9.7; `mqadmin` shows the first as an error, and after the second it writes the offsets itself."""
    for queue in range(4):
        await bench.send(b"x", queueId=queue)
    ask = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}
    answer = await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ask)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "THe consumer group <G> not exist")
    for queue in range(4):
        await bench.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": queue, "commitOffset": 1})
    answer = await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ask)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "Group: G Topic: T" in (answer.remark or "")
    answer = await bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**ask, "topic": "None"})
    assert (answer.code, "no topic in this broker" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_half_message_that_was_given_up_is_taken_up_again(bench: Bench) -> None:
    """RESUME_CHECK_HALF_MESSAGE, as 4.9.7: from the topic of those that were asked about too often."""
    given_up = {"topic": "TRANS_CHECK_MAX_TIME_TOPIC", "queueId": 0}
    settings = b"transactionCheckMax=1\ntransactionTimeOut=0"
    assert (await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings)).code == 0
    await bench.broker.transactions.loaded.wait()
    half = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02TRANSACTION_CHECK_TIMES\x011"
    assert (await bench.send(b"half", properties=half, sysFlag=4)).code == 0
    bench.broker.transactions._check()
    async with asyncio.timeout(10):
        while (answer := await bench.ask(30, given_up)).ext.get("offset") != "1":
            bench.broker.transactions._check()
            await asyncio.sleep(0.01)
    [lost] = decode_records((await bench.ask(11, bench.pull_ext("TRANS_CHECK_MAX_TIME_TOPIC"))).body)

    for wrong, says in (("", "msgId"), ("nonsense", "msgId"), (None, "msgId")):
        ext = {} if wrong is None else {"msgId": wrong}
        answer = await bench.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)
        assert (answer.code, says in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert (await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=5")).code == 0
    assert (await bench.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": lost.offset_id})).code == 0
    [_, again] = decode_records((await bench.ask(11, bench.pull_ext("RMQ_SYS_TRANS_HALF_TOPIC"))).body)
    assert (again.body, again.props["TRANSACTION_CHECK_TIMES"]) == (b"half", "0")
    end = {
        "producerGroup": "PG", "tranStateTableOffset": again.queue_offset, "commitLogOffset": again.phys_offset,
        "commitOrRollback": 8,
    }  # fmt: skip
    assert (await bench.ask(RequestCode.END_TRANSACTION, end)).code == 0
    [shown] = decode_records((await bench.ask(11, bench.pull_ext())).body)
    assert (shown.body, "TRANSACTION_CHECK_TIMES" in shown.props) == (b"half", False)


async def test_a_message_that_comes_during_a_read_is_announced_afterwards(bench: Bench) -> None:
    """It may be the last one of its queue for long."""
    await bench.send(b"first")
    frame = bench.frame(11, bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=100_000))
    bench.give(frame)
    bench.wire.paused = True
    await bench.send(b"second")
    await until(lambda: not bench.broker.confirmed.waits)
    bench.broker.pulls.expire(bench.broker.clock.now_ms())
    assert all(f.opaque != frame.opaque for f in bench.wire.frames)
    bench.wire.paused = False
    bench.broker.pulls.expire(bench.broker.clock.now_ms())
    assert [r.body for r in decode_records((await bench.answer(frame.opaque)).body)] == [b"second"]


async def test_a_pull_that_waits_sees_the_end_of_more_than_one_read_looks_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "MAX_SCAN", 4)
    await bench.send(b"first")
    frame = bench.frame(11, bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=100_000, subscription="B"))
    bench.give(frame)
    items = [BatchItem(tag.encode(), f"TAGS\x01{tag}".encode(), 0) for tag in "AAAAAB"]
    await bench.ask(RequestCode.SEND_BATCH_MESSAGE, bench.send_ext(batch=True), encode_batch(items))
    answer = await bench.answer(frame.opaque)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    again = bench.pull_ext(offset=int(answer.ext["nextBeginOffset"]), subscription="B")
    assert [r.body for r in decode_records((await bench.ask(11, again)).body)] == [b"B"]


async def test_a_wrong_condition_keeps_nothing_of_the_pulls_that_name_it(make_bench: Callable[..., Bench]) -> None:
    """Clients that do not ask before they subscribe pull with it again and again."""
    bench = make_bench(settings={"enablePropertyFilter": True})
    await bench.lead()
    await bench.send(b"x")
    depths = []
    for _ in range(3):
        answer = await bench.ask(11, bench.pull_ext(subscription="a >", expressionType="SQL92"))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        kept = bench.broker.filters._compiled["a >"]
        assert isinstance(kept, FilterSyntaxError)
        depths.append(len(list(traceback.walk_tb(kept.__traceback__))))
    assert depths[0] == depths[2]


async def test_the_progress_of_all_groups_takes_one_pass(bench: Bench) -> None:
    """With some thousand groups a pass for each took seconds, in which a broker answers nobody and is replaced."""
    await bench.send(b"x")
    passes = 0

    class Counted(dict[str, dict[int, int]]):
        def __iter__(self) -> Iterator[str]:
            nonlocal passes
            passes += 1
            return super().__iter__()

    tables = bench.broker.meta.working
    for number in range(20):
        tables.groups[f"G{number}"] = SubscriptionGroup(f"G{number}")
        bench.broker.meta.commit_offset("T", f"G{number}", 0, 1)
    tables.offsets = Counted(tables.offsets)
    answer = await bench.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    stats = fastjson.loads(answer.body)["consumeStatsList"]
    assert {f"G{number}" for number in range(20)} <= {group for entry in stats for group, rows in entry.items() if rows}
    assert passes == 1


async def test_members_that_come_or_go_together_cause_one_notification(bench: Bench) -> None:
    """At a failover all do; with a message for each of each, 2,000 members kept a master busy for seconds."""
    wires = [type(bench.wire)(50_000 + number) for number in range(6)]

    def notifications(code: int = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED) -> list[int]:
        return [sum(frame.code == code for frame in wire.frames if not frame.is_response) for wire in wires]

    for number, wire in enumerate(wires):
        consumer = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [])
        beat = Heartbeat(f"c{number}", [], [consumer])
        bench.give(bench.frame(RequestCode.HEART_BEAT, {}, fastjson.dumps(beat.to_json())), wire=wire)
    await until(lambda: notifications() == [1] * 6)
    for wire in wires[:3]:
        wire.closed = True
        bench.dispatcher.on_close(wire)  # type: ignore[arg-type]
    await until(lambda: notifications()[3:] == [2] * 3)
