"""Bad input on the codec: the codec reads it or refuses it with its own error."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from gantry_broker.protocol import headers
from gantry_broker.protocol.fastjson import loads
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.protocol.message import (
    RecordError,
    decode_batch,
    decode_record,
    decode_records,
    format_properties,
    parse_message_id,
    parse_properties,
)

from tests.fuzz import corpus

FRAMES = 70_000
RECORDS = 25_000
TEXTS = 10_000
HEADERS: list[Callable[[Frame], Any]] = [
    value.parse
    for value in vars(headers).values()
    if isinstance(value, type) and issubclass(value, headers.Header) and value is not headers.Header
]


def _read(data: bytes, cuts: list[int]) -> tuple[list[Frame], str | None]:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    edges = [0, *cuts, len(data)]
    for start, stop in pairwise(edges):
        try:
            frames += decoder.feed(data[start:stop])
        except FrameError as error:
            return frames + error.frames, error.reason
    return frames, None


@pytest.mark.parametrize("part", range(7))
def test_frames(part: int) -> None:
    rng = random.Random(f"frames {part}")
    for number in range(FRAMES // 7):
        data = corpus.bad_frame(rng)
        whole, refused = _read(data, [])
        cut, cut_refused = _read(data, sorted(rng.sample(range(len(data) + 1), min(len(data), rng.randint(1, 3)))))
        assert [repr(f) for f in whole] == [repr(f) for f in cut], f"part {part}, input {number}: the cuts matter"
        # A truncated input may have another reason, but must be refused.
        assert (refused is None) == (cut_refused is None), f"part {part}, input {number}: {refused} / {cut_refused}"
        for frame in whole:
            try:
                again = FrameDecoder().feed(encode_frame(frame))
            except FrameError:
                continue
            assert again == [frame], f"part {part}, input {number}"


def test_headers() -> None:
    rng = random.Random("headers")
    golden = corpus.golden()["client->server"]
    parsed = 0
    refusals = []
    for _ in range(5_000):
        data = corpus.hostile_fields(rng, rng.choice(golden))
        if data is None:
            continue
        try:
            frames = FrameDecoder().feed(data)
        except FrameError:
            continue
        for frame in frames:
            parse = rng.choice(HEADERS)
            for one in (parse, rng.choice(HEADERS)):
                try:
                    one(frame)
                    parsed += 1
                except headers.BadField as error:
                    refusals.append(error)
    assert parsed > 0
    assert refusals
    for refusal in refusals:
        assert refusal.field in str(refusal)
        assert len(str(refusal)) < 300, "a remark does not repeat an enormous value"


def test_records() -> None:
    rng = random.Random("records")
    golden = corpus.golden()["disk"]
    read = 0
    for _ in range(RECORDS):
        data = corpus.mutate(rng, rng.choice(golden)) if rng.random() < 0.9 else rng.randbytes(rng.randint(0, 200))
        for decode in (decode_record, decode_records, decode_batch):
            try:
                decode(data)
                read += 1
            except RecordError:
                pass
    assert read > 0


def test_texts() -> None:
    rng = random.Random("texts")
    good = format_properties({"KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": "7F00000100002A139A5500000000000A"})
    for _ in range(TEXTS):
        assert all(parse_properties(corpus.mutate(rng, good))), "a property without a name"
        text = corpus.mutate(rng, b"7F0000010000A1230000000000004E20").decode("latin-1")
        try:
            address, port, offset = parse_message_id(text)
        except ValueError:
            continue
        assert isinstance(port, int), (address, port, offset)


def test_fastjson_dialect() -> None:
    rng = random.Random("fastjson")
    samples = [b'{"a":{0:"x",1:"y"},"b":[1,2,{"c":null}]}', b'{{"brokerName":"b","queueId":1,"topic":"t"}:{"o":1}}']
    for number in range(10_000):
        data = corpus.mutate(rng, rng.choice(samples))
        try:
            loads(data)
        except ValueError:
            continue
        except Exception as error:
            pytest.fail(f"input {number}, {data!r}: {error!r}")
    for deep in (b"[" * 100_000, b'{"a":' * 100_000, b"{" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            loads(deep)


def test_announced_length_takes_no_memory() -> None:
    """A frame that announces 16 MiB takes memory only for its received bytes."""
    tracemalloc.start()
    decoders = [FrameDecoder() for _ in range(200)]
    for decoder in decoders:
        decoder.feed((16 * 1024 * 1024).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"{")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
