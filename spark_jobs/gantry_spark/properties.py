"""Parses the properties of many records at once, without one Python object per record.

The format is `name 0x01 value 0x02 name 0x01 value ...`. The rules are those of
`gantry_broker.protocol.message.parse_properties`: a piece without 0x01 or without a name is ignored, and the last value
of a repeated name counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from gantry_core import row_maps, row_properties

from gantry_spark.layout import (
    Bools,
    Bytes,
    Ints,
    decode_utf8_lossy,
    gather_fixed,
    gather_slices,
    nullable_strings,
    offsets_and_bytes,
    strings,
)
from gantry_spark.records import CoreColumns, Records

_NAME_END = 1
_PIECE_END = 2


_WINDOW = 32
"""Bytes of a value that one step searches for its end."""
_PIECE = 256 * 1024
"""Bytes that one step searches for a name. Intermediate arrays of this size fit the processor's cache."""


@dataclass(frozen=True)
class Pairs:
    """All properties of a block. Pair i belongs to `record[i]`. Positions are offsets in `data`."""

    data: Bytes
    records: int
    record: Ints
    name_at: Ints
    name_len: Ints
    value_at: Ints
    value_len: Ints

    def maps(self) -> Any:
        """Return the properties of each record as a pyarrow MapArray."""
        keep = self._last_of_each_name()
        at, length = self.name_at[keep], self.name_len[keep]
        names = decode_utf8_lossy(gather_slices(self.data, at, length))
        values = decode_utf8_lossy(gather_slices(self.data, self.value_at[keep], self.value_len[keep]))
        edges = np.zeros(self.records + 1, dtype=np.int32)
        np.cumsum(np.bincount(self.record[keep], minlength=self.records), out=edges[1:])
        return pa.MapArray.from_arrays(pa.array(edges, type=pa.int32()), names, values)

    def _last_of_each_name(self) -> Bools:
        """Return a mask of the pairs that count: all of them unless a record repeats a name."""
        count = len(self.record)
        everything = np.ones(count, dtype=np.bool_)
        if not count:
            return everything
        codes = gather_slices(self.data, self.name_at, self.name_len).dictionary_encode()
        code = codes.indices.to_numpy().astype(np.int64)
        kinds = len(codes.dictionary)
        if kinds * self.records <= 16 * count:
            seen = np.zeros(kinds * self.records, dtype=np.bool_)
            seen[self.record * kinds + code] = True
            if int(np.count_nonzero(seen)) == count:
                return everything
        ids = self.record * kinds + code
        _, first_of_reversed = np.unique(ids[::-1], return_index=True)
        if len(first_of_reversed) == count:
            return everything
        keep = np.zeros(count, dtype=np.bool_)
        keep[count - 1 - first_of_reversed] = True
        return keep


class Properties:
    """The properties of a block's records."""

    def __init__(self, data: Bytes, edges: Ints) -> None:
        self._data = data
        self._edges = edges

    def values(self, name: str) -> Any:
        """Return one property of each record as a pyarrow StringArray, null if the record has no such property.

        Searching for one name is cheaper than parsing all properties.
        """
        data, records = self._data, len(self._edges) - 1
        raw = name.encode()
        at = _name_positions(data, raw)
        owner, in_order = self._owners(at)
        stop = self._edges[1:][owner]
        begins = (at == self._edges[:-1][owner]) | (data[at - 1] == _PIECE_END)
        good: Bools = begins & (at + len(raw) < stop)
        if not bool(good.all()):
            at, owner, stop, in_order = at[good], owner[good], stop[good], False
        value = at + len(raw) + 1
        stop = _value_ends(data, value, stop)
        if in_order:
            return decode_utf8_lossy(gather_slices(data, value, stop - value))
        # The last value in a record counts.
        chosen = np.full(records, -1, dtype=np.int64)
        chosen[owner] = np.arange(len(at))
        has = chosen >= 0
        pairs = chosen[has]
        return decode_utf8_lossy(_scatter(gather_slices(data, value[pairs], stop[pairs] - value[pairs]), has))

    def _owners(self, at: Ints) -> tuple[Ints, bool]:
        """Return the record of each position, and whether each record has exactly one position."""
        starts, ends = self._edges[:-1], self._edges[1:]
        if len(at) == len(starts) and bool(((at >= starts) & (at < ends)).all()):
            return np.arange(len(at)), True
        owner: Ints = np.searchsorted(self._edges, at, side="right") - 1
        return owner, False

    def maps(self) -> Any:
        """Return the properties of each record as a pyarrow MapArray."""
        return _pairs(self._data, self._edges).maps()


class CoreProperties:
    """As `Properties`, by the compiled core."""

    def __init__(self, core: CoreColumns, rows: Ints) -> None:
        self._core = core
        self._rows = rows

    def values(self, name: str) -> Any:
        """Return one property of each record as a pyarrow StringArray, null if the record has no such property."""
        values = self._core.properties.get(name)
        if values is None:
            values = nullable_strings(*row_properties(self._core.data, self._rows.tobytes(), name.encode()))
        return values

    def maps(self) -> Any:
        """Return the properties of each record as a pyarrow MapArray."""
        edges, names, values = row_maps(self._core.data, self._rows.tobytes())
        offsets = pa.Array.from_buffers(pa.int32(), len(edges) // 4, [None, pa.py_buffer(edges)])
        return pa.MapArray.from_arrays(offsets, strings(*names), strings(*values))


def properties_of(records: Records) -> CoreProperties | Properties:
    """Return the properties of the records of a block."""
    if records.core is not None:
        return CoreProperties(records.core, records.rows)
    return parse_properties(records.buf, records.props_at, records.props_len)


def parse_properties(buf: Bytes, at: Ints, length: Ints) -> Properties:
    """Return the properties at `buf[at[i]:at[i] + length[i]]` of each record i."""
    edges, data = offsets_and_bytes(gather_slices(buf, at, length))
    return Properties(data, edges)


def _name_positions(data: Bytes, name: bytes) -> Ints:
    """Return the positions of `name` followed by its end mark, anywhere in `data`."""
    width = len(name)
    pieces: list[Ints] = []
    for first in range(0, len(data) - width, _PIECE):
        piece = data[first : first + _PIECE + width]
        pieces.append(np.flatnonzero((piece[:-width] == name[0]) & (piece[width:] == _NAME_END)) + first)
    positions = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
    for place in range(1, width):
        if not len(positions):
            break
        same = data[positions + place] == name[place]
        if not bool(same.all()):
            positions = positions[same]
    return positions


def _value_ends(data: Bytes, at: Ints, limit: Ints) -> Ints:
    """Return the end of each value that begins at `at`: the next 0x02, or `limit`."""
    result = limit.copy()
    within = at + _WINDOW <= len(data)
    rows = slice(None) if bool(within.all()) else np.flatnonzero(within)
    hits = gather_fixed(data, at[rows], f"V{_WINDOW}").view(np.uint8).reshape(-1, _WINDOW) == _PIECE_END
    first = hits.argmax(axis=1)
    has_end = hits[np.arange(len(first)), first]
    ends = np.where(has_end, at[rows] + first, len(data))
    unresolved: Bools = np.ones(len(at), dtype=np.bool_)
    unresolved[rows] = ~has_end & (at[rows] + _WINDOW < limit[rows])
    result[rows] = np.minimum(ends, limit[rows])
    late = np.flatnonzero(unresolved)
    if len(late):
        marks = np.append(np.flatnonzero(data == _PIECE_END), len(data))
        result[late] = np.minimum(marks[np.searchsorted(marks, at[late])], limit[late])
    return result


def _scatter(packed: Any, has: Bools) -> Any:
    """Distribute `packed` over the records with a value; other records are null."""
    if bool(has.all()):
        return packed
    edges, data = offsets_and_bytes(packed)
    lengths = np.zeros(len(has) + 1, dtype=np.int64)
    lengths[1:][has] = np.diff(edges)
    offsets = np.cumsum(lengths).astype(np.int32)
    valid = np.packbits(has, bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(has), buffers)


def _pairs(data: Bytes, edges: Ints) -> Pairs:
    """Return all properties in the order of the records."""
    records = len(edges) - 1
    starts, ends = edges[:-1], edges[1:]
    size = len(data)
    # A piece begins at the start of a record's properties and after every 0x02.
    begins = np.zeros(size + 1, dtype=np.bool_)
    begins[1:] = data == _PIECE_END
    begins[starts[starts < ends]] = True
    begin = np.flatnonzero(begins[:size])
    index = np.searchsorted(begin, edges)
    owner = np.repeat(np.arange(records), np.diff(index))
    # A piece ends before the next piece of its record; the last piece ends with the record's properties.
    stop = np.empty(len(begin), dtype=np.int64)
    stop[:-1] = begin[1:] - 1
    full = np.flatnonzero(starts < ends)
    stop[index[full + 1] - 1] = ends[full] - (data[ends[full] - 1] == _PIECE_END)
    marks = np.flatnonzero(data == _NAME_END)
    if len(marks) == len(begin) and bool(((marks > begin) & (marks < stop)).all()):
        return Pairs(data, records, owner, begin, marks - begin, marks + 1, stop - marks - 1)
    marks = np.append(marks, size)
    split = marks[np.searchsorted(marks[:-1], begin)]
    good: Bools = (split < stop) & (split > begin)
    begin, stop, split, owner = begin[good], stop[good], split[good], owner[good]
    return Pairs(data, records, owner, begin, split - begin, split + 1, stop - split - 1)
