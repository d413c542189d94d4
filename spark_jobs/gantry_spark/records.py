"""Validates the records of a block at once: headers, lengths, CRCs of bodies, topics."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.message import MAGIC_V1, MAGIC_V2
from gantry_core import row_slices
from zlib_ng.zlib_ng import crc32

from gantry_spark.layout import (
    RECORD_HEADER,
    Bools,
    Bytes,
    Ints,
    decode_utf8,
    gather_fixed,
    gather_slices,
    slices_and_gaps,
)

_SMALL_BODY: Final = 1200
"""Mean body size in bytes up to which a copy is cheaper than a view."""
_AT_ONCE: Final = 128 * 1024
"""Bytes of bodies copied at a time, so that their memory is reused while it is in the processor's cache."""


ROW_COLUMNS: Final = 12
BODY: Final = 6
"""The column of the rows that names bodies."""
_ROW_OF_FIELD: Final = {"size": 1, "queue_id": 2, "queue_offset": 3, "sys_flag": 4, "store_ms": 5, "body_len": 7}


@dataclass(frozen=True)
class Damage:
    """A range [start, end) of the log without records, and the reason."""

    start: int
    end: int
    reason: str


@dataclass
class CoreColumns:
    """What the compiled core has made of the records of a block."""

    data: memoryview
    topics: Any
    properties: dict[str, Any]
    """Columns of the properties that the read was to find."""

    def where(self, mask: Any) -> CoreColumns:
        """Return the columns of the records that the mask selects."""
        properties = {name: column.filter(mask) for name, column in self.properties.items()}
        return CoreColumns(self.data, self.topics.filter(mask), properties)


class Records:
    """The valid records of one block, as the rows of `gantry_core.record_rows`. Positions are offsets in `buf`."""

    def __init__(self, buf: Bytes, base: int, rows: Ints, core: CoreColumns | None = None) -> None:
        """`buf[0]` lies at offset `base` of the log. `core`: None: the compiled core has not found these records."""
        self.buf = buf
        self.base = base
        self.rows = rows
        self.core = core
        self.at, self.size, self.store_ms = rows[0], rows[1], rows[5]
        self.body_at, self.body_len = rows[6], rows[7]
        self.props_at, self.props_len = rows[10], rows[11]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def end(self) -> int:
        """The log offset after the last record. There is at least one record."""
        return self.base + int(self.at[-1]) + int(self.size[-1])

    @property
    def born_v6(self) -> Bools:
        return self._flagged(SysFlag.BORN_HOST_V6)

    @property
    def store_v6(self) -> Bools:
        return self._flagged(SysFlag.STORE_HOST_V6)

    def _flagged(self, bit: int) -> Bools:
        flags: Bools = (self.rows[4] & bit) != 0
        return flags

    @property
    def topics(self) -> Any:
        if self.core is not None:
            return self.core.topics
        return decode_utf8(gather_slices(self.buf, self.rows[8], self.rows[9]))

    @property
    def bodies(self) -> Any:
        if self.core is None:
            return gather_slices(self.buf, self.body_at, self.body_len)
        offsets, values = row_slices(self.core.data, self.rows.tobytes(), BODY)
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(values)])

    def field(self, name: str) -> Ints:
        """Return a field of the header by its name in `layout.RECORD_HEADER`, also for IPv6 hosts."""
        if name in _ROW_OF_FIELD:
            values: Ints = self.rows[_ROW_OF_FIELD[name]]
            return values
        kind, place = RECORD_HEADER.fields[name][:2] if RECORD_HEADER.fields else (np.dtype(">i8"), 0)
        at = self.at + place
        if name in ("reconsume", "prepared"):
            at += 12 * (self.born_v6.astype(np.int64) + self.store_v6)
        return gather_fixed(self.buf, at, kind).astype(np.int64)

    def where(self, keep: Bools) -> Records:
        """Return the records that the mask `keep` selects."""
        core = None if self.core is None else self.core.where(pa.array(keep))
        return Records(self.buf, self.base, np.compress(keep, self.rows, axis=1), core)


@dataclass
class CheckedBlock:
    """All records of a block. `structure` and `content` mark the valid ones."""

    buf: Bytes
    base: int
    at: Ints
    headers: Any
    structure: Bools
    content: Bools
    store_ms: Ints
    body_at: Ints
    body_len: Ints
    topic_at: Ints
    topic_len: Ints
    props_at: Ints
    props_len: Ints

    def records(self, malformed: int | None) -> Records:
        """Return the valid records before index `malformed` (None: all)."""
        keep = self.structure & self.content
        if malformed is not None:
            keep[malformed:] = False
        header = [self.headers[name] for name in ("size", "queue_id", "queue_offset", "sys_flag")]
        places = (self.body_at, self.body_len, self.topic_at, self.topic_len, self.props_at, self.props_len)
        rows = np.array([self.at, *header, self.store_ms, *places], dtype=np.int64)
        return Records(self.buf, self.base, rows if bool(keep.all()) else np.compress(keep, rows, axis=1))


def first_malformed(structure: Bools) -> int | None:
    """Return the index of the first record with an invalid structure, or None."""
    return None if bool(structure.all()) else int(np.argmin(structure))


def check(
    buf: Bytes, base: int, at: Ints, verify: bool, *, of_log: bool = True
) -> tuple[CheckedBlock | None, list[Damage]]:
    """Validate all records of a block at once, and return them with the damage of invalid contents.

    A record with an invalid content has a valid structure. `verify`: check the CRC of bodies. `of_log`: the block is a
    part of a log from offset `base` on, so each record's physical offset is its place.
    """
    if not len(at):
        return None, []
    headers = gather_fixed(buf, at, RECORD_HEADER)
    magic = headers["magic"]
    size = headers["size"].astype(np.int64)
    sys_flag = headers["sys_flag"]
    is_v2 = magic == MAGIC_V2
    ok: Bools = (magic == MAGIC_V1) | is_v2
    if of_log:
        ok &= headers["phys"] == base + at
    born_v6: Bools = (sys_flag & int(SysFlag.BORN_HOST_V6)) != 0
    store_v6: Bools = (sys_flag & int(SysFlag.STORE_HOST_V6)) != 0
    store_ms = headers["store_ms"].astype(np.int64)
    body_len = headers["body_len"].astype(np.int64)
    fixed = np.full(len(at), RECORD_HEADER.itemsize, dtype=np.int64)
    if bool((born_v6 | store_v6).any()):
        fixed += 12 * (born_v6.astype(np.int64) + store_v6)
        fits = at + fixed <= len(buf)
        ok &= fits
        safe = np.where(fits, at, 0)
        late = np.where(fits, fixed, RECORD_HEADER.itemsize)
        store_ms = gather_fixed(buf, safe + 56 + 12 * np.where(fits, born_v6, False), ">i8").astype(np.int64)
        body_len = gather_fixed(buf, safe + late - 4, ">i4").astype(np.int64)
    ok &= (size >= fixed + 4) & (body_len >= 0) & (fixed + body_len + 3 <= size)
    body_at = at + fixed
    end = at + size
    topic_at = _or_start(ok, body_at + body_len, at)
    topic_len = buf[topic_at].astype(np.int64)
    if bool(is_v2.any()):
        topic_len = np.where(is_v2, topic_len << 8 | buf[topic_at + 1], topic_len)
        topic_at = topic_at + is_v2
    topic_at = topic_at + 1
    ok &= topic_at + topic_len + 2 <= end
    props_at = _or_start(ok, topic_at + topic_len, at)
    props_len = buf[props_at].astype(np.int64) << 8 | buf[props_at + 1]
    props_at = props_at + 2
    ok &= props_at + props_len == end
    content, damage = _check_content(buf, base, at, headers, ok, body_at, body_len, topic_at, topic_len, verify)
    return (
        CheckedBlock(
            buf, base, at, headers, ok, content, store_ms, body_at, body_len, topic_at, topic_len, props_at, props_len,
        ),
        damage,
    )  # fmt: skip


def _or_start(ok: Bools, place: Ints, at: Ints) -> Ints:
    """Return `place` for valid records, and a position inside the block for the others."""
    return place if bool(ok.all()) else np.where(ok, place, at)


def body_crcs(buf: Bytes, at: Ints, length: Ints) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of `buf[at[i]:at[i] + length[i]]` for every i. Slices are sorted and disjoint.

    Arrow copies small bodies into bytes objects, some at a time, which is cheaper than a view of each. The gaps between
    them are nulls of the same array.
    """
    count = len(at)
    sums: list[int] = []
    if not count:
        return np.empty(0, dtype=np.uint32)
    mean = int(length.sum()) // count
    if mean > _SMALL_BODY:
        view = memoryview(buf.data)
        sums = [crc32(view[a:b]) for a, b in zip(at.tolist(), (at + length).tolist(), strict=True)]
    else:
        laid = slices_and_gaps(buf, at, length, pa.py_buffer(b"\x55" * (count // 4 + 1)))
        step = 2 * (_AT_ONCE // (mean + 1) + 1)
        for first in range(0, 2 * count, step):
            bodies = laid.slice(first, step).to_numpy(zero_copy_only=False)
            sums += map(crc32, bodies[::2].tolist())
    # The array module converts a list of numbers faster than numpy.
    return np.frombuffer(array("I", sums), dtype=np.uint32)


def _check_content(
    buf: Bytes,
    base: int,
    at: Ints,
    headers: Any,
    ok: Bools,
    body_at: Ints,
    body_len: Ints,
    topic_at: Ints,
    topic_len: Ints,
    verify: bool,
) -> tuple[Bools, list[Damage]]:
    """Check bodies and topics; return the mask of valid records, and the damage."""
    content = np.ones(len(at), dtype=np.bool_)
    bad: list[tuple[int, str]] = []
    if verify:
        rows = np.flatnonzero(ok)
        sums = body_crcs(buf, body_at[ok], body_len[ok])
        for index in rows[(sums & 0x7FFFFFFF) != headers["crc"][ok]].tolist():
            content[index] = False
            bad.append((index, "the body does not match its CRC"))
    topics = gather_slices(buf, topic_at[ok], topic_len[ok])
    try:
        decode_utf8(topics)
    except pa.ArrowInvalid:
        for index, raw in zip(np.flatnonzero(ok).tolist(), topics.to_pylist(), strict=True):
            if content[index] and not _is_utf8(raw):
                content[index] = False
                bad.append((index, "the topic is not UTF-8"))
    bad.sort()
    places = [(base + int(at[i]), base + int(at[i]) + int(headers["size"][i]), why) for i, why in bad]
    return content, [Damage(*place) for place in places]


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
