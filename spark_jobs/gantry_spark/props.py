"""Properties of many records at once: `name 0x01 value 0x02 name 0x01 value ...`, without a Python object a record.

The same rule as `gantry_broker.protocol.message.parse_properties`: a piece without 0x01 or without a name is left out,
and of a name that occurs twice the last value counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gantry_spark.layout import Bools, Bytes, Ints, as_text, buffers_of, take_fixed, take_slices

_NAME_END = 1
_PIECE_END = 2


@dataclass(frozen=True)
class Pairs:
    """All properties of a block: pair i belongs to `record[i]`; positions are into `data`."""

    data: Bytes
    records: int
    record: Ints
    name_at: Ints
    name_len: Ints
    value_at: Ints
    value_len: Ints

    def values(self, name: str) -> Any:
        """The value of one property for each record, null where it has none, as a pyarrow StringArray."""
        raw = name.encode()
        found = np.flatnonzero(self.name_len == len(raw))
        same = take_fixed(self.data, self.name_at[found], f"V{len(raw)}") == np.void(raw)
        found = found[same]
        chosen = np.full(self.records, -1, dtype=np.int64)
        chosen[self.record[found]] = found
        has = chosen >= 0
        pairs = chosen[has]
        packed = take_slices(self.data, self.value_at[pairs], self.value_len[pairs])
        return as_text(_spread(packed, has))

    def maps(self) -> Any:
        """All properties of each record as a pyarrow MapArray."""
        keep = self._last_of_each_name()
        at, length = self.name_at[keep], self.name_len[keep]
        names = as_text(take_slices(self.data, at, length))
        values = as_text(take_slices(self.data, self.value_at[keep], self.value_len[keep]))
        edges = np.zeros(self.records + 1, dtype=np.int32)
        np.cumsum(np.bincount(self.record[keep], minlength=self.records), out=edges[1:])
        return pa.MapArray.from_arrays(pa.array(edges, type=pa.int32()), names, values)

    def _last_of_each_name(self) -> Bools:
        """Marks the pairs that count; all of them unless a record has a name twice."""
        count = len(self.record)
        everything = np.ones(count, dtype=np.bool_)
        if not count:
            return everything
        codes = take_slices(self.data, self.name_at, self.name_len).dictionary_encode()
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


def _spread(packed: Any, has: Bools) -> Any:
    """`packed` laid out over the records that have a value, null elsewhere."""
    if bool(has.all()):
        return packed
    edges, data = buffers_of(packed)
    lengths = np.zeros(len(has) + 1, dtype=np.int64)
    lengths[1:][has] = np.diff(edges)
    offsets = np.cumsum(lengths).astype(np.int32)
    valid = np.packbits(has, bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(has), buffers)


def parse(buf: Bytes, at: Ints, length: Ints) -> Pairs:
    """The properties at `buf[at[i]:at[i] + length[i]]` of each record i."""
    edges, data = buffers_of(take_slices(buf, at, length))
    starts, ends = edges[:-1], edges[1:]
    size = len(data)
    # A piece begins where a record's properties begin, and after every 0x02.
    begins = np.zeros(size + 1, dtype=np.bool_)
    begins[1:] = data == _PIECE_END
    begins[starts[starts < ends]] = True
    begin = np.flatnonzero(begins[:size])
    index = np.searchsorted(begin, edges)
    owner = np.repeat(np.arange(len(at)), np.diff(index))
    # It ends before the next piece of its record, the last one where the record's properties end.
    stop = np.empty(len(begin), dtype=np.int64)
    stop[:-1] = begin[1:] - 1
    full = np.flatnonzero(starts < ends)
    stop[index[full + 1] - 1] = ends[full] - (data[ends[full] - 1] == _PIECE_END)
    marks = np.flatnonzero(data == _NAME_END)
    if len(marks) == len(begin) and bool(((marks > begin) & (marks < stop)).all()):
        return Pairs(data, len(at), owner, begin, marks - begin, marks + 1, stop - marks - 1)
    marks = np.append(marks, size)
    split = marks[np.searchsorted(marks[:-1], begin)]
    good: Bools = (split < stop) & (split > begin)
    begin, stop, split, owner = begin[good], stop[good], split[good], owner[good]
    return Pairs(data, len(at), owner, begin, split - begin, split + 1, stop - split - 1)
