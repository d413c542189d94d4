"""Records: round trips for any field, and errors for any damage."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.message import (
    MAGIC_BLANK,
    MAGIC_V2,
    BatchItem,
    Record,
    RecordError,
    decode_batch,
    decode_record,
    decode_records,
    encode_batch,
    encode_record,
    format_properties,
    java_hash,
    offset_message_id,
    pack_host,
    parse_message_id,
    parse_properties,
    tags_hash,
)
from hypothesis import given
from hypothesis import strategies as st

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.sampled_from([pack_host("10.1.2.3", 10911), pack_host("2001:db8::7", 65535)])
names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=10)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_record(
        topic=draw(st.binary(min_size=1, max_size=200).map(lambda raw: raw.hex().encode()[:200])),
        body=draw(st.binary(max_size=300)),
        properties=draw(st.binary(max_size=100)),
        queue_id=draw(int32),
        flag=draw(int32),
        queue_offset=draw(int64),
        phys_offset=draw(int64),
        sys_flag=draw(st.integers(0, 2**31 - 1)) & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        born_ms=draw(int64),
        born_host=draw(hosts),
        store_ms=draw(int64),
        store_host=draw(hosts),
        reconsume_times=draw(int32),
        prepared_offset=draw(int64),
    )


def sample(**changes: object) -> bytes:
    fields = {
        "topic": b"T", "body": b"hello", "properties": b"KEYS\x01a b\x02TAGS\x01x", "queue_id": 1, "queue_offset": 2,
        "phys_offset": 3, "born_ms": 4, "born_host": pack_host("127.0.0.1", 5), "store_ms": 6,
        "store_host": pack_host("127.0.0.1", 7),
    }  # fmt: skip
    return encode_record(**{**fields, **changes})  # type: ignore[arg-type]


@given(records())
def test_any_record_is_read_and_written_back(raw: bytes) -> None:
    record = decode_record(raw)
    assert record.encode() == raw
    assert record.size == len(raw)


@given(st.lists(records(), max_size=4), st.integers(0, 50))
def test_records_are_found_at_any_offset(raws: list[bytes], before: int) -> None:
    buffer = b"\0" * before + b"".join(raws)
    at = before
    for raw in raws:
        assert decode_record(buffer, at).encode() == raw
        at += len(raw)
    assert [record.encode() for record in decode_records(buffer[before:])] == raws


@given(records(), st.data())
def test_a_damaged_record_is_read_or_refused(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    damaged[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RecordError):
        assert isinstance(decode_record(bytes(damaged)), Record)


@given(records(), st.data())
def test_a_cut_record_is_refused(raw: bytes, data: st.DataObject) -> None:
    with pytest.raises(RecordError):
        decode_record(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_a_changed_body_does_not_match_its_crc() -> None:
    raw = bytearray(sample())
    raw[raw.index(b"hello")] ^= 1
    with pytest.raises(RecordError, match="CRC"):
        decode_record(bytes(raw))
    assert decode_record(bytes(raw), check_crc=False).body == b"iello"


def test_the_filler_of_a_segment_is_no_message() -> None:
    with pytest.raises(RecordError, match="filler"):
        decode_record(struct.pack(">iI", 200, MAGIC_BLANK) + bytes(192))


def test_a_long_topic_makes_a_record_of_version_2() -> None:
    record = decode_record(sample(topic=b"t" * 200))
    assert record.magic == MAGIC_V2
    assert record.topic == "t" * 200


def test_properties_contain_keys_tags_and_ids() -> None:
    record = decode_record(sample(properties=b"KEYS\x01a b\x02TAGS\x01x\x02UNIQ_KEY\x017F"))
    assert (record.keys, record.tags, record.uniq_key) == (("a", "b"), "x", "7F")
    assert record.offset_id == "7F000001000000070000000000000003"


@given(st.dictionaries(names, names | st.just(""), max_size=5))
def test_properties_are_read_and_written_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


@given(st.binary(max_size=100))
def test_any_bytes_parse_as_properties(raw: bytes) -> None:
    assert all(isinstance(value, str) for value in parse_properties(raw).values())


@pytest.mark.parametrize("bad", [{"": "x"}, {"a\x01": "x"}, {"a": "x\x02"}, {"a": "x" * 40_000}])
def test_ambiguous_properties_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(RecordError):
        format_properties(bad)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TagA", 2598919), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("é", 233), ("😀", 1772899)],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert tags_hash(text) == value


@given(
    st.sampled_from(["10.0.0.1", "255.255.255.255", "2001:db8::1"]), st.integers(0, 65535), st.integers(0, 2**63 - 1)
)
def test_message_ids_are_read_and_written_back(host: str, port: int, offset: int) -> None:
    assert parse_message_id(offset_message_id(host, port, offset)) == (host, port, offset)


@pytest.mark.parametrize("bad", ["", "7F", "Z" * 32, "7F" * 20, " " * 32])
def test_a_bad_message_id_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        parse_message_id(bad)


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50), int32), max_size=5))
def test_batches_are_read_and_written_back(items: list[tuple[bytes, bytes, int]]) -> None:
    batch = encode_batch(BatchItem(body, properties, flag) for body, properties, flag in items)
    assert [(item.body, item.properties, item.flag) for item in decode_batch(batch)] == items


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_batch_or_refused(raw: bytes) -> None:
    with suppress(RecordError):
        assert encode_batch(decode_batch(raw))[:4] == raw[:4]
