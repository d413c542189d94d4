"""Finds the record boundaries of a block by the size fields, with many cursors at once.

A size field leads from one record to the next, so boundaries follow one after the other. For numpy, this module places
cursors across the block, each before a record magic, and advances all of them together. A cursor that ends exactly at
the start of the next cursor has found the boundaries that a single walk finds, since sizes alone determine the walk.
Otherwise (a magic inside a body, or damage) a single walk continues from the cursor's end until it meets the start of a
later cursor. The result equals that of a single walk for every input.
"""

from __future__ import annotations

from math import isqrt
from struct import Struct
from typing import Final

import numpy as np
from gantry_broker.protocol.message import MAGIC_V1

from gantry_spark.layout import MIN_RECORD, Buffer, Bytes, Ints

SINGLE_WALK_RECORDS: Final = 1024
"""Number of records up to which a single walk is as cheap."""
_SAMPLE_RECORDS: Final = 16
"""Records of the sample that estimates the number of records."""
_SEARCH_RECORDS: Final = 2
"""Search range for a cursor's start, in mean record sizes. A cursor without a start is left out."""
_size_at = Struct(">i").unpack_from
# V1 and V2 differ only in the last byte.
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]


def find_record_boundaries(
    buf: Buffer, filled: int, stop: int, single_walk_records: int = SINGLE_WALK_RECORDS
) -> tuple[Ints, int]:
    """Return the positions of whole records in `buf[:filled]` that start before `stop`, and the end of the last one.

    The walk starts at 0. It stops at a size that is too small or exceeds the filled bytes. `single_walk_records`: up to
    about this many records there is only one walk.
    """
    last = min(stop - 1, filled - MIN_RECORD)
    sample, at, stopped = _walk(buf, filled, 0, last, _SAMPLE_RECORDS)
    first = np.array(sample, dtype=np.int64)
    if stopped:
        return first, at
    expected = (last - at) * len(sample) // at
    if expected <= single_walk_records:
        rest, at, _ = _walk(buf, filled, at, last, filled)
        return np.concatenate([first, np.array(rest, dtype=np.int64)]), at
    begins = _cursor_starts(buf, at, last, isqrt(8 * expected), _SEARCH_RECORDS * at // len(sample))
    pieces = [first]
    steps, ends = _advance_cursors(np.frombuffer(buf, dtype=np.uint8)[:filled], begins, last, filled)
    after = _merge_walks(buf, filled, last, begins, steps, ends, pieces)
    return np.concatenate(pieces), after


def _walk(
    buf: Buffer, filled: int, at: int, last: int, most: int, until: frozenset[int] = frozenset()
) -> tuple[list[int], int, bool]:
    """Walk up to `most` records; return their positions, the end of the last one, and whether the walk has stopped."""
    starts: list[int] = []
    while at <= last and len(starts) < most:
        (size,) = _size_at(buf, at)
        if size < MIN_RECORD or at + size > filled:
            return starts, at, True
        starts.append(at)
        at += size
        if at in until:
            return starts, at, False
    return starts, at, at > last


def _cursor_starts(buf: Buffer, at: int, last: int, count: int, search_bytes: int) -> Ints:
    """Return the starts of the cursors in order: `at`, and about `count` places with a record magic."""
    places = [at]
    view = memoryview(buf)
    for nominal in range(at, last, max(1, (last - at) // count)):
        distance = bytes(view[nominal + 4 : nominal + search_bytes]).find(_MAGIC_START)
        if distance >= 0 and places[-1] < nominal + distance <= last:
            places.append(nominal + distance)
    return np.array(places, dtype=np.int64)


def _advance_cursors(whole: Bytes, begins: Ints, last: int, filled: int) -> tuple[list[Ints], Ints]:
    """Advance all cursors until each has reached the next cursor's start or an impossible size.

    Returns the positions of each step, and the end of each cursor. An end before the cursor's limit is an impossible
    size.
    """
    sizes = np.ndarray((len(whole) - 3,), dtype=">i4", buffer=whole, strides=(1,))
    limits = np.append(begins[1:], last + 1)
    ends = begins.copy()
    steps: list[Ints] = []
    at, limit = begins, limits
    cursor = np.arange(len(begins))
    while len(at):
        after = at + sizes[at]
        alive = (after >= at + MIN_RECORD) & (after <= filled)
        if not alive.all():
            ends[cursor[~alive]] = at[~alive]
            at, after, limit, cursor = at[alive], after[alive], limit[alive], cursor[alive]
        steps.append(at)
        more = after < limit
        if not more.all():
            ends[cursor[~more]] = after[~more]
            after, limit, cursor = after[more], limit[more], cursor[more]
        at = after
    return steps, ends


def _merge_walks(
    buf: Buffer, filled: int, last: int, begins: Ints, steps: list[Ints], ends: Ints, pieces: list[Ints]
) -> int:
    """Merge the cursors' positions in the order of a single walk, and return the end of the last record."""
    # A stable sort merges the steps, because each step is sorted.
    positions = np.sort(np.concatenate(steps), kind="stable")
    broken = np.flatnonzero(ends[:-1] != begins[1:]).tolist()
    if not broken:
        pieces.append(positions)
        return int(ends[-1])
    places = begins.tolist()
    until = frozenset(places)
    begin = 0
    for cursor in broken:
        if places[cursor] < begin:
            continue  # The single walk has passed this cursor.
        at = int(ends[cursor])
        cut = places[cursor + 1]
        low, high = np.searchsorted(positions, [begin, cut])
        pieces.append(positions[low:high])
        if at >= cut and at in until:
            begin = at
            continue
        walked, at, stopped = _walk(buf, filled, at, last, filled, until)
        pieces.append(np.array(walked, dtype=np.int64))
        if stopped:
            return at
        begin = at
    pieces.append(positions[np.searchsorted(positions, begin) :])
    return int(ends[-1])
