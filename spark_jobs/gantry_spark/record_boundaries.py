"""From one record to the next by their sizes: all borders of a block, found by many cursors at once.

Sizes lead from record to record, so borders come one after the other. To let numpy do it, cursors are set at places
spread over the block, each where the next magic follows, and all take their steps together. A cursor that ends
exactly where the next one began has found what a single walk would have found: by the sizes alone a walk that comes
to the next one's first place goes on as that did. Where one does not (a magic within a body, damage), a walk record by
record goes on from its end until it comes upon the first place of a later cursor. So the result is that of a single
walk whatever the bytes are.
"""

from __future__ import annotations

from math import isqrt
from struct import Struct
from typing import Final

import numpy as np

from gantry_spark.layout import MAGIC_V1, MIN_RECORD, Buffer, Bytes, Ints

SINGLE_WALK_RECORDS: Final = 1024
"""Records up to which a walk record by record is as cheap."""
_SAMPLE_RECORDS: Final = 16
"""Records that tell how many there are."""
_SEARCH_RECORDS: Final = 2
"""Mean records that are looked through for the place of a cursor; where there is none, it is left out."""
_size_at = Struct(">i").unpack_from
# V1 and V2 differ in the last byte only.
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]


def find_record_boundaries(
    buf: Buffer, filled: int, stop: int, single_walk_records: int = SINGLE_WALK_RECORDS
) -> tuple[Ints, int]:
    """Positions of whole records in `buf[:filled]` that start before `stop`, and the position after the last of them.

    By sizes alone: from 0 on, until a size is too small, or points beyond what is filled. With no more than about `few`
    records there is but one walk.
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
    found, ends = _advance_cursors(np.frombuffer(buf, dtype=np.uint8)[:filled], begins, last, filled)
    after = _merge_walks(buf, filled, last, begins, found, ends, pieces)
    return np.concatenate(pieces), after


def _walk(
    buf: Buffer, filled: int, at: int, last: int, most: int, until: frozenset[int] = frozenset()
) -> tuple[list[int], int, bool]:
    """Up to `most` positions record by record, the one after them, and whether the walk ended there for good."""
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
    """Where cursors begin: `at`, and about `count` places where a magic says that a record begins, in order."""
    places = [at]
    view = memoryview(buf)
    for nominal in range(at, last, max(1, (last - at) // count)):
        found = bytes(view[nominal + 4 : nominal + search_bytes]).find(_MAGIC_START)
        if found >= 0 and places[-1] < nominal + found <= last:
            places.append(nominal + found)
    return np.array(places, dtype=np.int64)


def _advance_cursors(whole: Bytes, begins: Ints, last: int, filled: int) -> tuple[list[Ints], Ints]:
    """Take all cursors' steps until each is at the next one's beginning, past it, or at a size that cannot be.

    The positions of each step, and for each cursor where it ended: before its limit when it met such a size.
    """
    sizes = np.ndarray((len(whole) - 3,), dtype=">i4", buffer=whole, strides=(1,))
    limits = np.append(begins[1:], last + 1)
    ends = begins.copy()
    found: list[Ints] = []
    at, limit = begins, limits
    cursor = np.arange(len(begins))
    while len(at):
        after = at + sizes[at]
        alive = (after >= at + MIN_RECORD) & (after <= filled)
        if not alive.all():
            ends[cursor[~alive]] = at[~alive]
            at, after, limit, cursor = at[alive], after[alive], limit[alive], cursor[alive]
        found.append(at)
        more = after < limit
        if not more.all():
            ends[cursor[~more]] = after[~more]
            after, limit, cursor = after[more], limit[more], cursor[more]
        at = after
    return found, ends


def _merge_walks(
    buf: Buffer, filled: int, last: int, begins: Ints, found: list[Ints], ends: Ints, pieces: list[Ints]
) -> int:
    """Put the cursors' positions together in the order of a single walk; the position after the last one."""
    # Stable, since that merges the steps, each of which is in order.
    positions = np.sort(np.concatenate(found), kind="stable")
    wrong = np.flatnonzero(ends[:-1] != begins[1:]).tolist()
    if not wrong:
        pieces.append(positions)
        return int(ends[-1])
    places = begins.tolist()
    until = frozenset(places)
    begin = 0
    for cursor in wrong:
        if places[cursor] < begin:
            continue  # The walk went past it.
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
