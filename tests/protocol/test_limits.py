"""What each request code may bring."""

from __future__ import annotations

import struct

import pytest
from gantry_broker.broker.handlers.requests import json_body
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import FLAG_RESPONSE, GantryCode, RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import (
    MAX_FRAME,
    SMALL_FRAME,
    SMALL_HEADER,
    Frame,
    FrameDecoder,
    FrameError,
    encode_frame,
)
from gantry_broker.protocol.limits import HEADER, MAX_FIELDS
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.protocol.requests import BODIES, MEMBERS_BODIES, SENDS


def decoder(max_message: int = 100_000) -> FrameDecoder:
    return FrameDecoder(limits=RequestLimits(lambda: max_message))


@pytest.mark.parametrize("code", [*RequestCode, *GantryCode, 12_345])
@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize("members", [False, True])
def test_every_code_has_a_limit_and_only_what_is_over_it_is_refused(code: int, serialize: int, members: bool) -> None:
    limits = RequestLimits(lambda: 100_000, members=members)
    limit = limits.body(code)
    assert SMALL_FRAME <= limit <= MAX_FRAME
    if code not in (MEMBERS_BODIES if members else BODIES) and code not in SENDS:
        assert limit == SMALL_FRAME, "what is not in the table is small"
    wire_code = code if -0x8000 <= code <= 0x7FFF else None
    if serialize and wire_code is None:
        return  # the compact header has two bytes for a code
    made = FrameDecoder(limits=limits)
    within = encode_frame(Frame(code, 1, body=bytes(min(limit, MAX_FRAME - 1_000)), serialize=serialize))
    assert [f.opaque for f in made.feed(within)] == [1]
    assert made.refused == []
    if limit + 1_000 < MAX_FRAME:
        over = encode_frame(Frame(code, 2, body=bytes(limit + 1), serialize=serialize))
        last = encode_frame(Frame(code, 3, serialize=serialize))
        assert [f.opaque for f in made.feed(over + last)] == [3]
        [refusal] = made.refused
        assert refusal.request.opaque == 2
        assert str(limit) in refusal.remark
        assert str(limit + 1) in refusal.remark
        wanted = ResponseCode.MESSAGE_ILLEGAL if code in SENDS else ResponseCode.SYSTEM_ERROR
        assert refusal.code == wanted


@pytest.mark.parametrize("step", [1, 7, 1_000, 65_536])
def test_the_body_of_a_refused_request_is_never_kept(step: int) -> None:
    made = decoder()
    data = encode_frame(Frame(RequestCode.HEART_BEAT, 1, body=bytes(600_000)))
    data += encode_frame(Frame(RequestCode.GET_MIN_OFFSET, 2))
    if step == 1:
        data = data[:40_000]
    frames: list[Frame] = []
    for at in range(0, len(data), step):
        frames += made.feed(data[at : at + step])
        assert made.held < 8 + 200 + step
    assert [r.request.opaque for r in made.refused] == [1]
    assert made.unfinished == (step == 1)
    if step > 1:
        assert [f.opaque for f in frames] == [2]


def test_a_send_may_be_as_large_as_the_setting_says_now() -> None:
    size = [100_000]
    made = FrameDecoder(limits=RequestLimits(lambda: size[0]))
    frame = encode_frame(Frame(RequestCode.SEND_MESSAGE_V2, 1, body=bytes(150_000)))
    assert made.feed(frame) == []
    assert "maxMessageSize is 100000" in made.refused[0].remark
    size[0] = 200_000
    assert len(made.feed(frame)) == 1


def test_headers_are_limited_by_bytes_and_fields() -> None:
    made = decoder()
    assert made.feed(encode_frame(Frame(10, 1, ext={"properties": "x" * (HEADER + 1)}))) == []
    assert made.feed(encode_frame(Frame(10, 2, ext={f"field-{n}": "x" * 60 for n in range(MAX_FIELDS + 1)}))) == []
    assert [r.request.opaque for r in made.refused] == [1, 2]
    assert "257 fields" in made.refused[1].remark
    assert len(made.feed(encode_frame(Frame(RequestCode.PUT_KV_CONFIG, 3, ext={"value": "x" * (1 << 20)})))) == 1
    assert len(made.feed(encode_frame(Frame(10, 4, ext={"properties": "x" * SMALL_HEADER})))) == 1


def test_answers_to_own_requests_have_only_the_limit_of_a_frame() -> None:
    answer = encode_frame(Frame(0, 5, FLAG_RESPONSE, body=bytes(10_000_000)))
    assert len(decoder().feed(answer)) == 1


def test_an_unfinished_frame_in_single_bytes_costs_few_objects() -> None:
    made = FrameDecoder()
    data = encode_frame(Frame(10, 1, body=bytes(200_000)))
    most = 0
    for at in range(len(data)):
        frames = made.feed(data[at : at + 1])
        most = max(most, len(made._chunks))
    assert len(frames) == 1
    assert most < 200


def test_impossible_lengths_are_still_no_frame() -> None:
    from gantry_broker.protocol.frame import FrameError

    with pytest.raises(FrameError):
        decoder().feed(struct.pack(">iI", 100_000, 200_000) + bytes(100))


def _framed(header: bytes, serialize: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), serialize << 24 | len(header)) + header


def _costly(flag: int) -> list[bytes]:
    """Large headers of many parts: fields of both forms, and a list that is no field."""
    fields = b"".join([struct.pack(">h", 4) + b"%04x" % n + struct.pack(">i", 0) for n in range(25_000)])
    compact = struct.pack(">hBhiiii", 10, 0, 0, 7, flag, 0, len(fields)) + fields
    names = b",".join([b'"%04x":1' % n for n in range(25_000)])
    begin = b'{"code":10,"opaque":7,"flag":%d,' % flag
    nested = b",".join([b"[]"] * 80_000)
    return [
        _framed(compact, 1),
        _framed(begin + b'"extFields":{' + names + b"}}"),
        _framed(begin + b'"x":[' + nested + b"]}"),
    ]


@pytest.mark.parametrize("flag", [0, FLAG_RESPONSE])
@pytest.mark.parametrize("kind", range(3))
def test_a_header_of_many_parts_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, kind: int, flag: int
) -> None:
    read: list[str] = []
    monkeypatch.setattr("gantry_broker.protocol.frame._decode_compact", lambda *_: read.append("compact"))
    monkeypatch.setattr("gantry_broker.protocol.frame._decode_unusual_json", lambda *_: read.append("json"))
    with pytest.raises(FrameError, match="over 4096 names and values"):
        decoder().feed(_costly(flag)[kind])
    assert read == []


@pytest.mark.parametrize("text", ["a,[{" * 8_000, '"' * 20_000, "\\" * 20_001, '\\"' * 9_000])
def test_text_in_a_header_has_no_parts(text: str) -> None:
    (frame,) = decoder().feed(encode_frame(Frame(10, 4, ext={"properties": text})))
    assert frame.ext["properties"] == text


def test_a_large_body_in_the_dialect_is_for_members_alone() -> None:
    body = b"{" + b",".join([b'{"a":%d}:1' % n for n in range(8_000)]) + b"}"
    assert len(fastjson.loads(body)) == 8_000
    with pytest.raises(BodyError, match="is not JSON"):
        json_body(Frame(RequestCode.HEART_BEAT, body=body), "heartbeat")
