"""The binary layout of the commit log for numpy: the fixed header of a record, and vectorised access to fields.

The layout is that of `gantry_broker.protocol.message`. No function creates one Python object per record.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from gantry_broker.protocol.message import FIXED_V4

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Buffer = bytearray | memoryview

MIN_RECORD: Final = FIXED_V4 + 4
"""Size of the smallest record, in bytes: no body, a topic of one byte, no properties."""
MAX_RECORD: Final = 64 * 1024 * 1024
"""A size field above this many bytes is damage. Brokers refuse bodies over 16 MB."""
FILLER_HEADER_BYTES: Final = 8
"""Bytes of a filler's header: its size and its magic."""

RECORD_HEADER: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("phys", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("store_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume", ">i4"),
        ("prepared", ">i8"),
        ("body_len", ">i4"),
    ]
)
"""A record's header with two IPv4 hosts. Each IPv6 host moves the fields after it by 12 bytes."""

assert RECORD_HEADER.itemsize == FIXED_V4


def gather_fixed(buf: Bytes, at: Ints, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return one item of `dtype` from each byte position in `at`. Positions need no alignment."""
    item = np.dtype(dtype)
    width = item.itemsize
    if not len(at):
        return np.empty(0, dtype=item)
    windows: npt.NDArray[Any] = np.ndarray((len(buf) - width + 1,), dtype=f"V{width}", buffer=buf, strides=(1,))
    return windows[at].view(item)


def gather_slices(buf: Bytes, at: Ints, length: Ints) -> Any:
    """Return `buf[at[i]:at[i] + length[i]]` for every i as a pyarrow BinaryArray. Slices are sorted and disjoint.

    Arrow's filter copies the slices: it keeps every second element of an array of slices and gaps over `buf`.
    """
    count = len(at)
    if not count:
        return pa.array([], type=pa.binary())
    width = int(length[0])
    if width and bool((length == width).all()):
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        data = gather_fixed(buf, at, f"V{width}").view(np.uint8)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    keep = np.zeros(2 * count - 1, dtype=np.bool_)
    keep[::2] = True
    return slices_and_gaps(buf, at, length, None).filter(pa.array(keep))


def slices_and_gaps(buf: Bytes, at: Ints, length: Ints, valid: Any) -> Any:
    """Return slices and gaps in turn as one BinaryArray over `buf`. `valid`: the validity bits of the array."""
    edges = np.empty(2 * len(at), dtype=np.int32)
    edges[0::2] = at
    edges[1::2] = at + length
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [valid, pa.py_buffer(edges), pa.py_buffer(buf)])


def decode_utf8(values: Any) -> Any:
    """Decode a BinaryArray without an offset. Raises pa.ArrowInvalid if a value is not UTF-8."""
    data = values.buffers()[2]
    if data is None or int(np.max(np.frombuffer(data, dtype=np.uint8), initial=0)) >= 0x80:
        return values.cast(pa.string())
    # ASCII bytes need no check of single values.
    return values.view(pa.string())


def decode_utf8_lossy(values: Any) -> Any:
    """Decode a BinaryArray. Invalid UTF-8 becomes U+FFFD; only then single values become Python objects."""
    try:
        return decode_utf8(values)
    except pa.ArrowInvalid:
        texts = [None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, type=pa.string())


def offsets_and_bytes(values: Any) -> tuple[Ints, Bytes]:
    """Return the offsets (length + 1, from 0) and the bytes of a BinaryArray without nulls and without an offset."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[: len(values) + 1].astype(np.int64)
    raw = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return edges, raw[: int(edges[-1])]


def strings(offsets: bytes, values: bytes) -> Any:
    """Return a StringArray of the core's buffers."""
    return nullable_strings(0, b"", offsets, values)


def nullable_strings(nulls: int, valid: bytes, offsets: bytes, values: bytes) -> Any:
    """Return a StringArray of the core's buffers. `valid` counts where there are nulls."""
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.string(), len(offsets) // 4 - 1, buffers, nulls)
