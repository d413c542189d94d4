"""Validates the records of a block at once: headers, lengths, CRCs of bodies, topics."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from gantry_broker.protocol.codes import SysFlag
from zlib_ng.zlib_ng import crc32

from gantry_spark.layout import (
    MAGIC_V1,
    MAGIC_V2,
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


@dataclass(frozen=True)
class Damage:
    """A range [start, end) of the log without records, and the reason."""

    start: int
    end: int
    reason: str


@dataclass
class Records:
    """The valid records of one block. Arrays have one element per record. Positions are offsets in `buf`."""

    buf: Bytes
    base: int
    at: Ints
    headers: Any
    store_ms: Ints
    body_at: Ints
    body_len: Ints
    topics: Any
    props_at: Ints
    props_len: Ints
    born_v6: Bools
    store_v6: Bools

    def __len__(self) -> int:
        return len(self.at)

    @property
    def end(self) -> int:
        """The log offset after the last record. There is at least one record."""
        return self.base + int(self.at[-1]) + int(self.headers["size"][-1])

    def field(self, name: str) -> Ints:
        """Return a field of the header by its name in `layout.RECORD_HEADER`, also for IPv6 hosts."""
        if name in ("reconsume", "prepared") and bool((self.born_v6 | self.store_v6).any()):
            shift = 12 * (self.born_v6.astype(np.int64) + self.store_v6)
            kind, place = RECORD_HEADER.fields[name][:2] if RECORD_HEADER.fields else (np.dtype(">i8"), 0)
            return gather_fixed(self.buf, self.at + place + shift, kind).astype(np.int64)
        result: Ints = self.headers[name].astype(np.int64)
        return result

    def where(self, keep: Bools) -> Records:
        """Return the records that the mask `keep` selects."""
        return Records(
            self.buf,
            self.base,
            self.at[keep],
            self.headers[keep],
            self.store_ms[keep],
            self.body_at[keep],
            self.body_len[keep],
            self.topics.filter(pa.array(keep)),
            self.props_at[keep],
            self.props_len[keep],
            self.born_v6[keep],
            self.store_v6[keep],
        )


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
    topics: Any
    topic_rows: Bools
    props_at: Ints
    props_len: Ints
    born_v6: Bools
    store_v6: Bools

    def records(self, malformed: int | None) -> Records:
        """Return the valid records before index `malformed` (None: all)."""
        keep = self.structure & self.content
        if malformed is not None:
            keep[malformed:] = False
        if bool(keep.all()):
            return self._all(self.topics)
        good = self._all(pa.nulls(len(keep), pa.string()))
        found = good.where(keep)
        found.topics = self.topics.filter(pa.array(keep[self.topic_rows]))
        return found

    def _all(self, topics: Any) -> Records:
        return Records(
            self.buf, self.base, self.at, self.headers, self.store_ms, self.body_at, self.body_len, topics,
            self.props_at, self.props_len, self.born_v6, self.store_v6,
        )  # fmt: skip


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
    content, topics, damage = _check_content(buf, base, at, headers, ok, body_at, body_len, topic_at, topic_len, verify)
    return (
        CheckedBlock(
            buf, base, at, headers, ok, content, store_ms, body_at, body_len, topics, ok.copy(), props_at, props_len,
            born_v6, store_v6,
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
) -> tuple[Bools, Any, list[Damage]]:
    """Check bodies and topics; return the mask of valid records, the topics of the well-formed ones, and the damage."""
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
        topics = decode_utf8(topics)
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for index, raw in zip(np.flatnonzero(ok).tolist(), topics.to_pylist(), strict=True):
            try:
                texts.append(raw.decode())
            except UnicodeDecodeError:
                texts.append(None)
                if content[index]:
                    content[index] = False
                    bad.append((index, "the topic is not UTF-8"))
        topics = pa.array(texts, type=pa.string())
    bad.sort()
    places = [(base + int(at[i]), base + int(at[i]) + int(headers["size"][i]), why) for i, why in bad]
    return content, topics, [Damage(*place) for place in places]
