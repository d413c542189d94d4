"""Compression of bodies: zlib (the default of all clients), LZ4 or Zstandard (5.x clients).

The system flag names the kind. RocketMQ writes LZ4 and Zstandard bodies as streams (`CompressionType`, 5.5.0): LZ4
bodies are LZ4 frames, and Zstandard bodies may lack their length. Both libraries are loaded with the first such body,
because brokers and operators only move messages and need neither.
"""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Final

from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.errors import RecordError

_CHUNK_BYTES: Final = 256
"""Bytes of a Zstandard body in one step: 4 bytes can become 128 KiB, and `limit` is checked between steps."""


class Compression(Enum):
    """The compression of a producer's bodies; the value is the mark in the system flag. Clients of 4.x read only
    ZLIB.
    """

    ZLIB = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    LZ4 = SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4
    ZSTD = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD


def compress(body: bytes, kind: Compression = Compression.ZLIB) -> bytes:
    """Compresses a body at RocketMQ's default levels (zlib 5, Zstandard 5). The caller marks it with the kind's
    value.
    """
    if kind is Compression.LZ4:
        import lz4.frame

        smaller: bytes = lz4.frame.compress(body, store_size=False)
        return smaller
    if kind is Compression.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=5).compress(body)
    return zlib.compress(body, 5)


def decompress(body: bytes, sys_flag: int, limit: int) -> bytes:
    """Decompresses a body. Raises RecordError for a damaged body, one over `limit` bytes, or an unknown kind."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind in (0, SysFlag.COMPRESSION_ZLIB):
            return _zlib(body, limit)
        if kind == SysFlag.COMPRESSION_LZ4:
            return _lz4(body, limit)
        if kind == SysFlag.COMPRESSION_ZSTD:
            return _zstd(body, limit)
    except (zlib.error, RuntimeError) as error:
        raise _damaged(error) from None
    raise RecordError(f"unknown compression {kind >> 8} of the body; 1 (LZ4), 2 (Zstandard) and 3 (zlib) are known")


def _zlib(body: bytes, limit: int) -> bytes:
    engine = zlib.decompressobj()
    plain = engine.decompress(body, limit + 1)  # 0 would mean without a limit.
    if len(plain) > limit:
        raise _too_long(limit)
    if not engine.eof:
        raise _truncated()
    return plain


def _lz4(body: bytes, limit: int) -> bytes:
    import lz4.frame

    engine = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = engine.decompress(body, max_length=limit + 1)
    if len(plain) > limit:
        raise _too_long(limit)
    if not engine.eof:
        raise _truncated()
    return plain


def _zstd(body: bytes, limit: int) -> bytes:
    import zstandard

    engine = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    plain = bytearray()
    for start in range(0, len(body), _CHUNK_BYTES):
        if engine.eof:
            break
        try:
            plain += engine.decompress(body[start : start + _CHUNK_BYTES])
        except zstandard.ZstdError as error:
            raise _damaged(error) from None
        if len(plain) > limit:
            raise _too_long(limit)
    if not engine.eof:
        raise _truncated()
    return bytes(plain)


def _too_long(limit: int) -> RecordError:
    return RecordError(f"body is over {limit} bytes when decompressed")


def _damaged(error: Exception) -> RecordError:
    return RecordError(f"compressed body is damaged: {error}")


def _truncated() -> RecordError:
    return RecordError("compressed body is incomplete")
