"""Frames: any split of the stream gives the same frames, and bad bytes give errors."""

from __future__ import annotations

import struct
from contextlib import suppress

import orjson
import pytest
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame, encode_head
from hypothesis import given
from hypothesis import strategies as st

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
frames = st.builds(
    Frame,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    ext=st.dictionaries(text, text, max_size=4),
    body=st.binary(max_size=200),
    remark=st.none() | text.filter(bool),
    serialize=st.sampled_from([0, 1]),
    language=st.integers(0, 13),
    version=st.integers(0, 2**15 - 1),
)


@given(st.lists(frames, max_size=5), st.data())
def test_any_split_of_the_stream_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(frame) for frame in sent)
    decoder = FrameDecoder()
    got = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        got += decoder.feed(stream[at : at + size])
        at += size
    assert got == sent
    assert decoder.held == 0


@given(st.binary(max_size=300))
def test_random_bytes_give_frames_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder()
    with suppress(FrameError):
        decoder.feed(data)
        assert decoder.held <= len(data)


@given(frames, st.data())
def test_a_damaged_frame_gives_a_frame_or_a_frame_error(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        assert all(isinstance(value, str) for got in FrameDecoder().feed(bytes(raw)) for value in got.ext.values())


@given(frames)
def test_a_head_and_a_body_are_the_whole_frame(frame: Frame) -> None:
    whole, body = encode_frame(frame), frame.body
    frame.body = b""
    assert encode_head(frame, len(body)) + body == whole


def json_frame(header: object, body: bytes = b"") -> bytes:
    raw = orjson.dumps(header)
    return struct.pack(">iI", 4 + len(raw) + len(body), len(raw)) + raw + body


def test_frames_before_a_bad_one_are_not_lost() -> None:
    good = encode_frame(Frame(10, 1))
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(good + good + struct.pack(">iI", 8, 4) + b"nope")
    assert [frame.code for frame in caught.value.frames] == [10, 10]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (struct.pack(">iI", -1, 0), "contradict"),
        (struct.pack(">iI", 3, 0), "contradict"),
        (struct.pack(">iI", 10, 100), "contradict"),
        (struct.pack(">iI", 8, 7 << 24 | 4) + b"abcd", "serialize type 7"),
        (struct.pack(">iI", 8, 1 << 24 | 4) + b"abcd", "21 fixed bytes"),
        (struct.pack(">iI", 6, 2) + b"[]", "JSON list"),
        (json_frame({"code": 1, "opaque": 1, "extFields": {"a": {"b": 1}}}), "'a' is a JSON dict"),
        (json_frame({"code": "x", "opaque": 1}), "field code"),
        (json_frame({"code": 1, "opaque": 2**40}), "field opaque"),
        (json_frame({"code": 1, "opaque": 1, "flag": 1.5}), "field flag"),
        (json_frame({"code": 1, "opaque": 1, "extFields": [1]}), "extFields"),
        (struct.pack(">iI", 0x7FFFFFFF, 0xFFFFFF), "limit"),
    ],
)
def test_a_bad_frame_is_refused_with_the_reason(data: bytes, what: str) -> None:
    with pytest.raises(FrameError, match=what):
        FrameDecoder().feed(data)


def test_an_unusual_header_is_read_as_fastjson_does() -> None:
    header = {"code": 10, "opaque": 5, "extFields": {"a": 1, "b": True, "c": None, "d": "x"}, "language": "COBOL"}
    [frame] = FrameDecoder().feed(json_frame(header, b"body"))
    assert frame.ext == {"a": "1", "b": "true", "d": "x"}
    assert (frame.flag, frame.version, frame.body, frame.language) == (0, 0, b"body", 7)


def test_an_oversized_frame_is_refused_before_its_body_arrives() -> None:
    whole = encode_frame(Frame(10, 77, body=b"x" * 5000))
    decoder = FrameDecoder(max_frame=1000)
    assert decoder.feed(whole[:20]) == []
    with pytest.raises(FrameError, match="over the limit of 1000") as caught:
        decoder.feed(whole[20:400])
    assert caught.value.opaque == 77


def test_a_large_frame_in_small_reads_is_joined_once() -> None:
    frame = Frame(10, 1, body=bytes(8_000_000))
    whole = encode_frame(frame)
    decoder = FrameDecoder()
    got = []
    for at in range(0, len(whole), 4096):
        got += decoder.feed(whole[at : at + 4096])
    assert got == [frame]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(10, ext={"a": "\ud800"}),
        Frame(10, ext={"a": "\ud800"}, serialize=1),
        Frame(70_000, serialize=1),
        Frame(1, ext={"k" * 40_000: "v"}, serialize=1),
        Frame(1, ext={"k": "v" * 3_000_000}),
    ],
)
def test_an_unwritable_frame_is_an_error(frame: Frame) -> None:
    with pytest.raises(FrameError):
        encode_frame(frame)


@pytest.mark.parametrize("serialize", [0, 1])
def test_an_answer_has_the_form_of_its_request(serialize: int) -> None:
    request = Frame(10, 4711, serialize=serialize)
    answer = Frame.response_to(request, 17, "no such topic", {"a": "b"})
    assert (answer.opaque, answer.serialize, answer.is_response) == (4711, serialize, True)
    assert FrameDecoder().feed(encode_frame(answer)) == [answer]
