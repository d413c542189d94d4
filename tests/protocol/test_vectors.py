"""Round trips of every recorded frame and record: exact to the byte, JSON headers to the same meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import (
    ClusterInfo,
    Heartbeat,
    LockRequest,
    RegisterBody,
    SubscriptionGroup,
    TopicConfig,
    TopicRoute,
)
from gantry_broker.protocol.codes import SerializeType
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import (
    CheckTransactionHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    Header,
    OffsetAnswer,
    PullAnswer,
    PullHeader,
    PushReplyHeader,
    QueryMessageHeader,
    QueryOffsetHeader,
    QueueHeader,
    RegisterBrokerHeader,
    ResetOffsetHeader,
    RouteHeader,
    RunningInfoHeader,
    SearchOffsetHeader,
    SendAnswer,
    SendBackHeader,
    SendHeader,
    UnregisterBrokerHeader,
    UnregisterClientHeader,
    UpdateOffsetHeader,
)
from gantry_broker.protocol.message import decode_batch, decode_record, decode_records, encode_batch, parse_properties
from gantry_broker.protocol.offset_tables import (
    consume_stats_from_json,
    consume_stats_to_json,
    offset_table,
    topic_stats_from_json,
    topic_stats_to_json,
)

VECTORS = Path(__file__).resolve().parents[1] / "data" / "vectors" / "vectors.jsonl"

REQUESTS: dict[int, type[Header]] = {
    11: PullHeader, 12: QueryMessageHeader, 14: QueryOffsetHeader, 15: UpdateOffsetHeader, 17: CreateTopicHeader,
    29: SearchOffsetHeader, 30: QueueHeader, 31: QueueHeader, 32: QueueHeader, 35: UnregisterClientHeader,
    36: SendBackHeader, 37: EndTransactionHeader, 39: CheckTransactionHeader, 103: RegisterBrokerHeader,
    104: UnregisterBrokerHeader, 105: RouteHeader, 220: ResetOffsetHeader, 222: ResetOffsetHeader,
    307: RunningInfoHeader, 310: SendHeader, 320: SendHeader, 325: SendHeader, 326: PushReplyHeader, 361: PullHeader,
}  # fmt: skip
ANSWERS: dict[int, type[Header]] = {
    11: PullAnswer, 14: OffsetAnswer, 29: OffsetAnswer, 30: OffsetAnswer, 31: OffsetAnswer, 310: SendAnswer,
    320: SendAnswer, 325: SendAnswer, 361: PullAnswer,
}  # fmt: skip
OF_EVERY_REQUEST = {"bname", "ReqT"}
"""Fields that clients add to any request, and topics that only 5.x adds."""
ADDED_BY_5X = {37: {"topic"}, 39: {"topic"}, 30: {"committed"}}
REQUEST_BODIES: dict[int, Any] = {
    103: RegisterBody, 34: Heartbeat, 200: SubscriptionGroup, 41: LockRequest, 42: LockRequest,
}  # fmt: skip
ANSWER_BODIES: dict[int, Any] = {105: TopicRoute, 106: ClusterInfo, 351: TopicConfig}
NOT_KEPT = {
    "mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap",
    "heartbeatFingerprint", "withoutSub", "onlyThisBroker",
}  # fmt: skip
"""Fields of 5.x about features that Gantry lacks."""


def vectors() -> Iterator[dict[str, Any]]:
    with VECTORS.open() as file:
        for line in file:
            yield json.loads(line)


FRAMES = [vector for vector in vectors() if vector["kind"] in ("request", "response")]
RECORDS = [vector for vector in vectors() if vector.get("file", "").startswith("commitlog")]


def name(vector: dict[str, Any]) -> str:
    return f"{vector['version']}-{vector['kind']}-{vector['requestCode']}-{vector['serialize']}"


def json_header(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[5:8], "big")
    header: dict[str, Any] = orjson.loads(data[8 : 8 + size])
    if not header.get("extFields"):
        header.pop("extFields", None)  # absent and empty mean the same
    return header


def decode(vector: dict[str, Any]) -> Frame:
    decoder = FrameDecoder()
    [frame] = decoder.feed(bytes.fromhex(vector["hex"]))
    assert decoder.held == 0
    return frame


def test_nothing_is_missing() -> None:
    assert (len(FRAMES), len(RECORDS)) == (297, 24)


@pytest.mark.parametrize("vector", FRAMES, ids=name)
def test_a_frame_is_read_and_written_back(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    frame = decode(vector)
    assert (frame.code, frame.opaque) == (vector["code"], vector["opaque"])
    assert frame.is_response == (vector["kind"] == "response")
    assert frame.is_oneway == vector["oneway"]
    assert SerializeType(frame.serialize).name == vector["serialize"]
    assert frame.ext == (vector["header"].get("extFields") or {})
    assert frame.remark == vector["header"].get("remark")
    again = encode_frame(frame)
    if frame.serialize == SerializeType.ROCKETMQ:
        assert again == raw
    else:
        assert json_header(again) == json_header(raw)
        assert again.endswith(frame.body)
        assert FrameDecoder().feed(again) == [frame]


@pytest.mark.parametrize("vector", FRAMES, ids=name)
def test_a_header_is_read_and_written_back(vector: dict[str, Any]) -> None:
    frame = decode(vector)
    if frame.is_response:
        kind = ANSWERS.get(vector["requestCode"]) if frame.ext else None
    else:
        kind = REQUESTS.get(frame.code)
    if kind is None:
        return
    header = kind.from_ext(frame.ext) if frame.is_response else kind.parse(frame)
    again = header.short_ext() if frame.code in (310, 320, 325) and isinstance(header, SendHeader) else header.ext()
    extra = OF_EVERY_REQUEST | ADDED_BY_5X.get(frame.code, set())
    if frame.is_response:
        extra = {"groupSysFlag", "topicSysFlag"}
    assert {key: value for key, value in frame.ext.items() if key not in extra or key in again}.items() <= again.items()


@pytest.mark.parametrize("vector", [vector for vector in FRAMES if vector.get("bodyText", "")[:1] == "{"], ids=name)
def test_a_body_is_read_and_written_back(vector: dict[str, Any]) -> None:
    body = vector["bodyText"].encode()
    value = fastjson.loads(body)
    assert fastjson.loads(fastjson.dumps(value)) == value
    kind = (REQUEST_BODIES if vector["kind"] == "request" else ANSWER_BODIES).get(vector["requestCode"])
    if kind is not None:
        again = fastjson.loads(fastjson.dumps(kind.from_json(value).to_json()))
        assert_contains(again, value)


def assert_contains(again: Any, value: Any) -> None:
    """Checks that all fields are still present; fields of only one line of versions may be added."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in NOT_KEPT:
                assert_contains(again[key], item)
    elif isinstance(value, list):
        assert len(again) == len(value)
        for one, other in zip(again, value, strict=True):
            assert_contains(one, other)
    else:
        assert again == value


@pytest.mark.parametrize("vector", [vector for vector in FRAMES if "messages" in vector], ids=name)
def test_pulled_messages_are_read_and_written_back(vector: dict[str, Any]) -> None:
    body = decode(vector).body
    records = decode_records(body)
    assert b"".join(record.encode() for record in records) == body
    for record, expected in zip(records, vector["messages"], strict=True):
        assert (record.topic, record.queue_id, record.queue_offset, record.phys_offset) == (
            expected["topic"], expected["queueId"], expected["queueOffset"], expected["physicOffset"],
        )  # fmt: skip
        assert record.props == expected["properties"]


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: f"{vector['version']}-{vector['offset']}")
def test_a_record_is_read_and_written_back(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    record = decode_record(raw)
    assert record.encode() == raw
    expected = vector["decoded"]
    assert "{}:{}".format(*record.born_host) == expected["bornHost"]
    assert "{}:{}".format(*record.store_host) == expected["storeHost"]
    assert (record.size, record.sys_flag, record.store_ms) == (
        expected["totalSize"], expected["sysFlag"], expected["storeTimestamp"],
    )  # fmt: skip
    assert parse_properties(record.properties) == expected["properties"]


def test_batches_are_read_and_written_back() -> None:
    batches = [decode(vector) for vector in FRAMES if vector["code"] == 320]
    assert len(batches) == 2
    for frame in batches:
        items = decode_batch(frame.body)
        assert len(items) == 10
        assert encode_batch(items) == frame.body


def test_tables_of_queues_are_read_and_written_back() -> None:
    seen = 0
    for vector in FRAMES:
        code, body = vector["requestCode"], vector.get("bodyText", "").encode()
        if vector["kind"] != "response" or not body or vector["code"] != 0:
            continue
        if code == 202:
            stats = topic_stats_from_json(body)
            assert topic_stats_from_json(fastjson.dumps(topic_stats_to_json(stats))) == stats
        elif code == 208:
            offsets, tps = consume_stats_from_json(body)
            again = consume_stats_from_json(fastjson.dumps(consume_stats_to_json(offsets, tps)))
            assert again == (offsets, tps)
        elif code == 222:
            assert sorted(queue.queue_id for queue in offset_table(body)) == [0, 1, 2, 3]
        else:
            continue
        seen += 1
    assert seen >= 6
