"""Which records of a queue compaction keeps. Pure: the same log gives the same rows.

A pass takes the records between the boundary and a later queue offset. Of each key it keeps the newest; the row of an
older record of the key goes. The order of the compaction records makes a kill between any two of them harmless: first
those that remove rows (their newer record is still readable, above the boundary), then those that set rows and move the
boundary. So no key ever has two rows, and once a tombstone is a row, no older record of its key is one: it can go
whenever it is old enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gantry_broker.store.compaction.record import MOST_ROWS, encode, pieces
from gantry_broker.store.index.compacted import NO_KEY, ROW, TOMBSTONE, Row

COPY_BYTES: Final = 1 << 20
"""Copies in one compaction record, at least one record."""


class Cleaned(NamedTuple):
    """The result of a pass."""

    dropped: list[int]
    """Queue offsets of rows that go, rising."""
    rows: list[Row]
    """New rows, by queue offset."""
    seen: int
    """Records looked at, and their bytes: `seen_bytes`."""
    seen_bytes: int


def clean(records: Iterable[Row], blocks: Sequence[bytes], now_ms: int, tombstone_ms: int) -> Cleaned:
    """Return what a pass over `records`, in the order of the queue, changes.

    `blocks`: the rows so far; `tombstone_ms`: how long tombstones stay after they were stored.
    """
    newest: dict[bytes, Row] = {}
    keyless: list[Row] = []
    seen = seen_bytes = 0
    for row in records:
        seen += 1
        seen_bytes += row.size
        if row.key == NO_KEY:
            keyless.append(row)
        else:
            newest[row.key] = row
    dropped = []
    too_old = now_ms - tombstone_ms
    for block in blocks:
        for number, _, _, _, stored, flags, key in ROW.iter_unpack(block):
            if key in newest or (flags & TOMBSTONE and key != NO_KEY and stored <= too_old):
                dropped.append(number)
    return Cleaned(dropped, sorted([*newest.values(), *keyless]), seen, seen_bytes)


def bodies_of(
    topic: str, queue_id: int, start: int, stop: int, seen: tuple[int, int], cleaned: Cleaned
) -> Iterator[bytes]:
    """Yield the bodies of the compaction records of a pass from queue offset `start` to `stop`, in their order.

    `seen`: records and bytes before the pass.
    """
    for part in pieces(cleaned.dropped):
        yield encode(topic, queue_id, start, seen, part, ())
    total = seen[0] + cleaned.seen, seen[1] + cleaned.seen_bytes
    for at in range(0, max(len(cleaned.rows), 1), MOST_ROWS):
        rows = cleaned.rows[at : at + MOST_ROWS]
        last = at + MOST_ROWS >= len(cleaned.rows)
        boundary = stop if last else rows[-1].number + 1
        if stop > start:
            yield encode(topic, queue_id, boundary, total if last else seen, (), rows)


def bodies_of_copies(
    topic: str,
    queue_id: int,
    boundary: int,
    seen: tuple[int, int],
    copies: Iterable[tuple[Row, bytes]],
    most_bytes: int = COPY_BYTES,
) -> Iterator[bytes]:
    """Yield the bodies of compaction records that hold copies of records. An empty copy: its row goes, for its bytes
    cannot be read any more.
    """
    rows: list[Row] = []
    data: list[bytes] = []
    gone: list[int] = []
    size = 0
    for row, raw in copies:
        if rows and (len(rows) + len(gone) >= MOST_ROWS or size + len(raw) > most_bytes):
            yield encode(topic, queue_id, boundary, seen, gone, rows, data)
            rows, data, gone, size = [], [], [], 0
        if not raw:
            gone.append(row.number)
            continue
        rows.append(row._replace(place=-1 - size))
        data.append(raw)
        size += len(raw)
    if rows or gone:
        yield encode(topic, queue_id, boundary, seen, gone, rows, data)
