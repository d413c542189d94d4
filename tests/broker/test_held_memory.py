"""What requests that wait may hold: a few bytes, or some KiB, of a peer become no large memory of the broker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata import tables
from gantry_broker.broker.metadata.snapshots import Frozen
from gantry_broker.broker.pull.filters import Filters
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.service import NameService
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.connection import Connection

from tests.broker.conftest import Bench, Wire
from tests.support.running import until

MIB = 1 << 20


def many_tags(seed: int, count: int = 2_000) -> str:
    return "||".join(f"{seed:x}{n:x}" for n in range(count))


def held_until_refused(filters: Filters, expression: Callable[[int], str], kind: str) -> list[object]:
    """Hold filters of one user until another one is refused."""
    held: list[object] = []
    for seed in range(1_000):
        try:
            held.append(filters.subscription("T", expression(seed), kind, "user a"))
        except RequestRejected:
            break
    with pytest.raises(RequestRejected, match="are over the limit of") as refused:
        filters.subscription("T", expression(1_000), kind, "user a")
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    return held


def test_large_filters_count_while_something_holds_them() -> None:
    filters = Filters(10 * MIB)
    held = held_until_refused(filters, many_tags, "TAG")
    assert 2 < len(held) < 20
    assert filters.held_bytes <= 5 * MIB, "one owner may hold as much as is free"
    assert filters.subscription("T", many_tags(0), "TAG", "user b")
    assert filters.subscription("T", "a || b", "TAG", "user a"), "a small one does not count"
    before = filters.held_bytes
    held.clear()
    assert filters.subscription("T", many_tags(200), "TAG", "user a")
    assert filters.held_bytes < before


def test_expressions_of_sql_count_too() -> None:
    filters = Filters(10 * MIB)
    held = held_until_refused(filters, lambda seed: f"a = {seed} AND " + "b = 1 AND " * 700 + "c = 1", "SQL92")
    assert len(held) < 100


def pulls(bench: Bench, count: int) -> Iterator[Frame]:
    for seed in range(count):
        yield bench.frame(
            RequestCode.PULL_MESSAGE,
            bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=60_000, subscription=many_tags(seed)),
        )


def pops(bench: Bench, count: int) -> Iterator[Frame]:
    for seed in range(count):
        ext = {
            "consumerGroup": "G", "topic": "T", "queueId": 3, "maxMsgNums": 1, "invisibleTime": 60_000,
            "pollTime": 60_000, "bornTime": bench.broker.clock.unix_ms(), "initMode": 1, "expType": "TAG",
            "exp": many_tags(seed),
        }  # fmt: skip
        yield bench.frame(RequestCode.POP_MESSAGE, ext)


@pytest.mark.parametrize("make", [pulls, pops])
async def test_requests_that_wait_with_large_filters_are_bounded(
    bench: Bench, make: Callable[[Bench, int], Iterator[Frame]]
) -> None:
    assert (await bench.send(b"x")).code == 0
    filters = bench.broker.filters
    filters._most_bytes = 8 * MIB
    held = Wire(40_001)
    for frame in make(bench, 40):
        bench.give(frame, wire=held)
        await until(lambda: not bench.broker.slices.queue)
    await until(lambda: held.frames)
    assert {frame.code for frame in held.frames} == {ResponseCode.SYSTEM_BUSY}
    assert len(held.frames) > 20, "the others wait"
    assert filters.held_bytes <= 5 * MIB
    small = bench.frame(
        RequestCode.PULL_MESSAGE, bench.pull_ext(offset=1, sysFlag=6, suspendTimeoutMillis=1, subscription="a || b")
    )
    before = len(held.frames)
    bench.give(small, wire=held)
    assert len(held.frames) == before, "a usual one waits"


async def test_a_poll_that_waits_holds_nothing_of_its_header(bench: Bench) -> None:
    assert (await bench.send(b"x")).code == 0
    for code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
        [frame] = pops(bench, 1)
        frame.ext |= {"exp": "*", "bulk": "y" * 200_000}
        frame.body = b"z" * 60_000
        frame.code = code
        bench.dispatcher.on_frames(bench.wire, [frame])
        await until(lambda: len(bench.broker.pop._waiting) or len(bench.broker.pop._notified))
        assert not frame.ext
        assert not frame.body
        bench.broker.pop.settle()


async def test_requests_that_wait_in_tasks_are_bounded_by_their_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    async def stored(change: object) -> None:
        await waits.wait()

    monkeypatch.setattr(bench.broker.changes, "append_and_wait", stored)
    bench.parts.processor._bytes_in_tasks.most = MIB
    frames = [
        bench.frame(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "bulk": "y" * 200_000}) for _ in range(20)
    ]
    for frame in frames:
        bench.give(frame)
        await asyncio.sleep(0)
    await until(lambda: len(bench.wire.frames) >= 10)
    assert {frame.code for frame in bench.wire.frames} == {ResponseCode.SYSTEM_BUSY}
    waits.set()
    await until(lambda: len(bench.wire.frames) == 20 and bench.parts.processor._bytes_in_tasks.taken == 0)
    assert (await bench.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})).code == 0


async def test_requests_that_a_closed_broker_never_began_are_let_go(
    bench: Bench, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(3):
        bench.give(bench.frame(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}))
    await bench.parts.processor.close()
    await asyncio.sleep(0)
    gc.collect()
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []


async def test_no_address_takes_all_places_of_requests_that_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to a client that does not answer waits for seconds: thousands of them would leave no place."""
    waits = asyncio.Event()

    async def stored(change: object) -> None:
        await waits.wait()

    monkeypatch.setattr(bench.broker.changes, "append_and_wait", stored)
    places = bench.parts.processor._task_places
    places.most = 9
    greedy, other = bench.wire, Wire()
    other.peer = ("10.0.0.1", 40_000)
    for wire, count in ((greedy, 12), (other, 1)):
        for _ in range(count):
            bench.give(bench.frame(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}), wire=wire)
            await asyncio.sleep(0)
    await until(lambda: len(greedy.frames) == 7)
    assert {frame.code for frame in greedy.frames} == {ResponseCode.SYSTEM_BUSY}
    assert not other.frames, "it waits"
    waits.set()
    await until(lambda: other.frames and places.taken == 0)
    assert other.frames[0].code == ResponseCode.SUCCESS


def ask_as(bench: Bench, address: str) -> None:
    """Let further requests come from an address."""
    bench.wire = Wire()
    bench.wire.peer = (address, 40_000)


async def test_pairs_with_offsets_are_bounded_whoever_commits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await bench.send(b"x")).code == 0
    monkeypatch.setattr(tables, "MAX_OFFSETS", 5)
    known = bench.broker.meta.working.offsets
    for number in range(20):
        ask_as(bench, f"10.0.0.{number}")
        ext = bench.pull_ext(consumerGroup=f"G{number}", sysFlag=5, commitOffset=1, subscription="*")
        assert (await bench.ask(RequestCode.PULL_MESSAGE, {**ext, "sysFlag": 5 | 4})).code == 0
        assert len(known) <= 5
    ask_as(bench, "10.0.1.1")
    pair = {"topic": "T", "queueId": 0, "commitOffset": 1}
    refused = await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**pair, "consumerGroup": "G19"})
    assert refused.code != 0
    assert "the limit is 5" in (refused.remark or "")
    assert (await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**pair, "consumerGroup": "G0"})).code == 0
    for code, ext in (
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G0", "destGroup": "H", "topic": "T", "offline": "true"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "H", "timestamp": 0, "queueId": 0}),
    ):
        assert "the limit is 5" in ((await bench.ask(code, ext)).remark or "")
    bench.broker.meta.commit_offset("RMQ_SYS_TRANS_HALF_TOPIC", "G", 0, 1)
    assert len(known) == 6, "the broker's own"


async def test_queues_with_offsets_are_bounded_in_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await bench.send(b"x")).code == 0
    meta = bench.broker.meta
    meta.working.topics["T"] = TopicConfig("T", 4_096, 4_096)
    monkeypatch.setattr(tables, "MAX_OFFSET_QUEUES", 100)
    free = 100 - sum(map(len, meta.working.offsets.values()))
    for number in range(200):
        ask_as(bench, f"10.0.0.{number}")
        ext = {"topic": "T", "consumerGroup": f"G{number // 40}", "queueId": number, "commitOffset": 1}
        answer = await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert (answer.code == 0) == (number < free), answer.remark
    assert "queues with offsets, which is the limit" in (answer.remark or "")
    assert sum(map(len, meta.working.offsets.values())) == 100
    assert "T@G3" not in meta.working.offsets
    ext = {"topic": "T", "consumerGroup": "G0", "queueId": 0, "commitOffset": 2}
    assert (await bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0, "one that is known goes on"
    for code, asked in (
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G0", "destGroup": "H", "topic": "T", "offline": "true"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "H", "timestamp": 0, "queueId": 0}),
    ):
        assert "the limit is 100" in ((await bench.ask(code, asked)).remark or "")
    assert meta.commit_offset("RMQ_SYS_TRANS_HALF_TOPIC", "G", 0, 1), "the broker's own"


async def _brought(bench: Bench, address: str, groups: range, code: RequestCode, queues: int = 40) -> int:
    """Have an address bring offsets in a topic of 40 queues; return the queues with offsets after that."""
    ask_as(bench, address)
    for group in groups:
        for queue in range(queues):
            ext = {"topic": "T", "consumerGroup": f"G{group}", "queueId": queue, "commitOffset": 1, "sysFlag": 5,
                   "queueOffset": 0, "maxMsgNums": 1, "subscription": "*", "invisibleTime": 1_000}  # fmt: skip
            await bench.ask(code, ext)
    return sum(map(len, bench.broker.meta.working.offsets.values()))


@pytest.mark.parametrize(
    "code", [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE]
)
async def test_no_user_takes_all_offsets(bench: Bench, monkeypatch: pytest.MonkeyPatch, code: RequestCode) -> None:
    meta = bench.broker.meta
    monkeypatch.setattr(tables, "MAX_OFFSET_QUEUES", 130)
    meta.working.topics["T"] = TopicConfig("T", 40, 40)
    begun = sum(map(len, meta.working.offsets.values()))
    first = await _brought(bench, "10.0.0.1", range(5), code) - begun
    assert 0 <= first - (130 - begun) // 2 <= 1, "half of what was free"
    more = await _brought(bench, "10.0.0.2", range(5, 6), code)
    assert more - begun - first > 10, "others still find room"
    for group in range(5):
        await bench.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": f"G{group}", "cleanOffset": "true"})
    assert await _brought(bench, "10.0.0.1", range(6, 7), code) == begun + more - begun - first + 40, (
        "it was given back"
    )


async def test_no_user_takes_all_pairs_with_offsets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_OFFSETS", 41)
    bench.broker.meta.working.topics["T"] = TopicConfig("T", 40, 40)
    begun = len(bench.broker.meta.working.offsets)
    first = await _brought(bench, "10.0.0.1", range(41), RequestCode.UPDATE_CONSUMER_OFFSET, 1) - begun
    assert 0 <= first - (41 - begun) // 2 <= 1
    assert await _brought(bench, "10.0.0.2", range(41, 82), RequestCode.UPDATE_CONSUMER_OFFSET, 1) - begun - first > 5


def test_offsets_of_wide_topics_are_written_in_parts() -> None:
    meta = tables.Metadata(tables.Tables())
    meta.lead([])
    for group in range(20):
        for queue in range(4_096):
            meta.commit_offset("T", f"G{group}", queue, 1)
    seen = 0
    while meta.has_dirty:
        changes = meta.take_dirty(1, 8_192)
        sizes = [sum(map(len, change["offsets"].values())) for change in changes]
        assert sizes == [4_096] * 2
        seen += sum(sizes)
    assert seen == 20 * 4_096
    whole = [change["offsets"] for change in meta.working.all_changes(1) if "offsets" in change]
    assert [len(part) for part in whole] == [1] * 20


def test_a_snapshot_copies_offsets_in_its_own_thread() -> None:
    meta = tables.Metadata(tables.Tables())
    meta.confirm(10, tables.encode_change({"at": 1, "offsets": {"T@G": {"0": 1}}}))
    frozen = Frozen.of(meta)
    assert frozen.confirmed.offsets["T@G"] is meta.confirmed.offsets["T@G"], "the event loop copies no queue"
    meta.confirm(20, tables.encode_change({"at": 2, "offsets": {"T@H": {"0": 1}, "T@G": {"0": 2}}}))
    settled = frozen.settled()
    meta.confirm(30, tables.encode_change({"at": 3, "offsets": {"T@G": {"0": 3}}}))
    assert settled.confirmed.offsets == {"T@G": {0: 2}}
    assert settled.applied == 11, "a start reads the records from there on again"


def beat(**fields: Any) -> bytes:
    one = {"topic": "T", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1} | fields
    consumer = {"groupName": "G", "subscriptionDataSet": [one], "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}  # fmt: skip
    return orjson.dumps({"clientID": fields.get("client", "c"), "consumerDataSet": [consumer], "producerDataSet": []})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"client": "c" * 400_000}, "the field clientID has 400000 characters, the limit is 1024"),
        ({"topic": "T" * 400_000}, "the field topic has 400000 characters, the limit is 255"),
        ({"expressionType": "T" * 400_000}, "the field expressionType has 400000 characters"),
        ({"tagsSet": ["t" * 400_000]}, "the tags of the heartbeat have over 65536 characters"),
    ],
)
async def test_a_heartbeat_leaves_no_long_names(bench: Bench, fields: dict[str, Any], says: str) -> None:
    answer = await bench.ask(RequestCode.HEART_BEAT, body=beat(**fields))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert says in (answer.remark or "")
    assert not bench.broker.clients.consumers
    assert not bench.broker.clients._owners


async def test_characters_of_tags_count_as_places(bench: Bench) -> None:
    assert (await bench.ask(RequestCode.HEART_BEAT, body=beat(tagsSet=["t" * 50_000]))).code == 0
    assert bench.broker.clients.weight > 150


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("name", ["consumerGroup", "clientId", "topic", "brokerName"])
async def test_a_lock_leaves_no_long_names(bench: Bench, code: int, name: str) -> None:
    long = "x" * 200_000
    queue = {"topic": "T", "brokerName": "demo-a", "queueId": 0}
    body: dict[str, Any] = {"consumerGroup": "G", "clientId": "c", "mqSet": [queue]}
    (queue if name in queue else body)[name] = long
    answer = await bench.ask(code, body=orjson.dumps(body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert name in (answer.remark or "")
    assert len(answer.remark or "") < 1_000
    assert not bench.broker.locks._held


async def test_a_question_before_the_first_master_holds_its_topic_alone() -> None:
    service = NameService("ns", KvConfig(None))
    conn = Connection(service)
    service.on_open(conn)
    frame = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, 7, ext={"topic": "T", "bulk": "y" * 200_000})
    service.on_frames(conn, [frame])
    [(_, (_, kept))] = service._early._waiting
    assert (kept.ext, kept.opaque, kept.code) == ({"topic": "T"}, 7, frame.code)
