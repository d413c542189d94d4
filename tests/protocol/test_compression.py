"""Compressed bodies of every kind: round trips, damaged, incomplete and oversized ones."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.compression import Compression, compress, decompress
from gantry_broker.protocol.message import RecordError
from hypothesis import given
from hypothesis import strategies as st

ZLIB = Compression.ZLIB.value
kinds = pytest.mark.parametrize("kind", list(Compression))


@kinds
@given(body=st.binary(max_size=5_000), times=st.integers(1, 100))
def test_bodies_round_trip(kind: Compression, body: bytes, times: int) -> None:
    assert decompress(compress(body * times, kind), kind.value, len(body) * times) == body * times


@kinds
def test_a_damaged_body_is_refused(kind: Compression) -> None:
    small = compress(bytes(10_000_000), kind)
    with pytest.raises(RecordError, match="over 100 bytes"):
        decompress(small, kind.value, 100)
    whole = compress(b"x" * 1000, kind)
    for cut in range(1, len(whole)):
        with pytest.raises(RecordError, match=r"incomplete|damaged"):
            decompress(whole[:-cut], kind.value, 10_000)
    with pytest.raises(RecordError, match="damaged"):
        decompress(b"nonsense", kind.value, 100)


@kinds
@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_body_or_refused(kind: Compression, body: bytes) -> None:
    try:
        plain = decompress(body, kind.value, 1_000)
    except RecordError:
        return
    assert len(plain) <= 1_000


@kinds
def test_a_limit_of_no_bytes_is_one(kind: Compression) -> None:
    assert decompress(compress(b"", kind), kind.value, 0) == b""
    with pytest.raises(RecordError, match="over 0 bytes"):
        decompress(compress(bytes(1_000_000), kind), kind.value, 0)


def test_bodies_of_other_writers() -> None:
    assert decompress(b"plain", 0, 1) == b"plain"
    assert decompress(zlib.compress(b"old"), SysFlag.COMPRESSED, 100) == b"old", "4.x sets no kind"
    streamed = zstandard.ZstdCompressor().compressobj()
    assert decompress(streamed.compress(b"z" * 99) + streamed.flush(), Compression.ZSTD.value, 100) == b"z" * 99
    framed = lz4.frame.compress(b"l" * 99, content_checksum=True, block_linked=False)
    assert decompress(framed, Compression.LZ4.value, 100) == b"l" * 99
    with pytest.raises(RecordError, match="unknown compression 5"):
        decompress(b"", SysFlag.COMPRESSED | 5 << 8, 100)
