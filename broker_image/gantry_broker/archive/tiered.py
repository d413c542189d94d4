"""Reads from the archive what the local log no longer has: by queue, time, key and place. All calls block.

A table on the local disk (`queue_index`) says which object has which records of a queue; `refresh` keeps it in step
with the manifest. Pieces of objects are kept in memory and on the disk (`read_cache`) within a bound. Several threads
may call it. A call that is `offline` asks nothing of the object store.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gantry_core import key_hash

from gantry_broker.archive.chain import GroupArchive
from gantry_broker.archive.errors import ArchiveError, Damaged, Missing, Replaced, TooWide, Unavailable
from gantry_broker.archive.manifest import Part, State
from gantry_broker.archive.queue_index import Held, Outlined, QueueIndex
from gantry_broker.archive.read_cache import ReadCache
from gantry_broker.archive.segment import Block, Columns, Directory, RangeReader
from gantry_broker.archive.threads import in_background
from gantry_broker.protocol.message import Record, RecordError, decode_record
from gantry_broker.store.log.record_reader import is_record_of

T = TypeVar("T")
_CALL: Final = threading.local()
"""Of the call that runs in this thread."""

log = logging.getLogger(__name__)

BLOCKS_BYTES: Final = 16 << 20
"""Blocks and rows of queues that are kept in memory, decompressed."""
READ_AHEAD: Final = 2 << 20
"""Stored bytes that one request of the object store brings, if so many blocks follow each other."""
MAX_SCAN: Final = 4_096
"""Records that one read examines when a filter rejects most of them; the next read continues there."""
AT_ONCE: Final = 4
"""Directories of objects that are fetched at the same time."""
MAX_PARTS: Final = 64
"""Objects that one query by key looks into."""
_ROW_BYTES: Final = 28


class NotCached(Exception):
    """An `offline` call needs the object store."""


class Below(NamedTuple):
    """Which part of a queue the archive serves: records below `number` whose place is at or above `visible_from`.

    `start`: the first offset of the local log, up to which the archive must be known.
    """

    number: int
    visible_from: int
    start: int


@dataclass(slots=True)
class Read:
    """The result of a read: whole records, their number, and where to go on."""

    data: bytes
    count: int
    next_offset: int


@dataclass(slots=True)
class Counters:
    """What was read so far."""

    fetched_bytes: int = 0
    """From the object store."""
    fetches: int = 0
    hits: int = 0
    """Pieces that the local disk had."""
    errors: int = 0


@dataclass(slots=True)
class View:
    """What is known of the archive. It is replaced as a whole."""

    start: int = 0
    """The first offset of the log that the archive has."""
    complete_to: int = 0
    """The table is complete from `start` up to here."""
    floors: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By queue: the first queue offset with a visible record."""
    damaged: tuple[Part, ...] = ()
    """Objects whose directories cannot be read: nobody knows which queues they have."""


class TieredLog:
    """The archive of one group for readers."""

    def __init__(
        self,
        group: GroupArchive,
        folder: Path,
        limit: int,
        *,
        rate: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder`: its own; `limit`: bytes of the cache in it; `rate`: bytes a second that are fetched at most."""
        self.view = View()
        self.counters = Counters()
        self._group = group
        self._folder = folder
        self._index = QueueIndex(folder / "index.db")
        self._cache = ReadCache(folder / "pieces", limit)
        self._rate = rate
        self._sleep = sleep
        self._clock = clock
        self._free_at = 0.0
        self._memory: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._memory_bytes = 0
        self._lock = threading.Lock()
        self._stripes = [threading.Lock() for _ in range(64)]
        self._synced: tuple[frozenset[str], Mapping[str, int]] | None = None

    # ---- what is known

    def open(self) -> None:
        """Take over what an earlier process knew. Raises OSError."""
        self._index.open()
        self._cache.open()
        self._synced = None
        covered = self._index.covered()
        self.view = View() if covered is None else View(*covered, self._floors({}, {}))

    def close(self) -> None:
        self._index.close()

    @property
    def index_is_damaged(self) -> bool:
        """Whether the table was found damaged: `open` makes a new one, which `refresh` fills."""
        return self._index.damaged

    @property
    def cache_bytes(self) -> int:
        """Bytes on the local disk."""
        return self._cache.size + self._index.size

    def refresh(self, state: State, below: int, watermarks: Mapping[str, int]) -> None:
        """Bring the table in step with a state of the manifest, for the log below an offset.

        `watermarks`: by topic, records below this offset of the log are deleted. Raises ArchiveError, OSError; what was
        known still counts then.
        """
        # Small parts of a segment that is not archived whole are merged soon.
        whole = state.end - state.end % state.segment_size if state.segment_size else 0
        used = [part for part in state.parts if part.end <= whole or part.start < below]
        names = self._index.names()
        missing = [part for part in used if part.name not in names]
        damaged = []
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            for part, look in [(part, in_background(partial(self._look_at, part))) for part in some]:
                result = look.result()
                if isinstance(result, Damaged):
                    log.error("the archive: %s", result)
                    damaged.append(part)
                else:
                    self._index.add(part, result)
        keep = {part.name for part in used}
        gone = [start for name, start in self._index.names().items() if name not in keep]
        complete_to = _complete_to(state, {part.name for part in used})
        if missing or gone or self.view.start != state.start or self.view.complete_to != complete_to:
            # First the view: a reader must not take what is about to leave the table for something that never was.
            # Nor does the view promise more than its floors say: that goes on below.
            sure = min(complete_to, self.view.complete_to)
            self.view = View(state.start, sure, self.view.floors, tuple(damaged))
            self._index.remove(gone)
            self._index.cover(state.start, complete_to)
            if gone:
                self._cache.keep_only(frozenset(keep))
        hidden = {topic: mark for topic, mark in watermarks.items() if mark > state.start}
        synced = (frozenset(keep), hidden)
        floors = self.view.floors
        if synced != self._synced:
            floors = self._floors(hidden, self._synced[1] if self._synced else {})
        self.view = View(state.start, complete_to, floors, tuple(damaged))
        self._synced = synced

    def _look_at(self, part: Part) -> Directory | Damaged:
        try:
            return self._group.directory_of(part)
        except Damaged as error:
            self.counters.errors += 1
            return error

    def _floors(self, hidden: Mapping[str, int], before: Mapping[str, int]) -> dict[tuple[str, int], int]:
        floors = {}
        for topic, queue_id, first in self._index.firsts():
            mark = hidden.get(topic, 0)
            floor: int | None = first
            if mark:
                before_floor = self.view.floors.get((topic, queue_id))
                counts = before.get(topic) == mark and before_floor is not None and before_floor >= first
                floor = before_floor if counts else self.first_from(topic, queue_id, mark)
            if floor is not None:
                floors[topic, queue_id] = floor
        return floors

    def spans(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return by queue the first queue offset in the archive and the one behind the last. Raises OSError."""
        return self._index.spans(topic)

    def first_from(self, topic: str, queue_id: int, mark: int) -> int | None:
        """Return the first queue offset whose record lies at or above an offset of the log; None without one. Raises
        ArchiveError, OSError.
        """
        held = self._index.reaching(topic, queue_id, mark)
        while held is not None:
            if held.part >= mark:
                return held.piece.first
            columns = self._columns(topic, queue_id, held, self._part(held), offline=False)
            row = next((row for row, place in enumerate(columns.places) if place >= mark), None)
            if row is not None:
                return columns.first + row
            held = self._index.at_or_behind(topic, queue_id, held.end)
        return None

    def expired_place(self, topic: str, since_ms: int, state: State) -> int:
        """Return the offset of the log below which the archive has no record of the topic of this time or later; the
        end of the archive when it has none at all.

        Records lie in the order of their times; where clocks differed, the younger ones are kept. Raises ArchiveError,
        OSError.
        """
        part = next((part for part in state.parts if part.last_ms >= since_ms), None)
        if part is None:
            return state.end
        if part.first_ms >= since_ms or part in self.view.damaged:
            return part.start
        expired_to = part.end
        for queue_id in self._index.queues_of(topic):
            held = self._index.reaching(topic, queue_id, part.start)
            if held is None or held.part != part.start:
                continue
            columns = self._columns(topic, queue_id, held, self._part(held), offline=False)
            for place, ms in zip(columns.places, columns.times, strict=True):
                if place >= 0 and ms >= since_ms:
                    expired_to = min(expired_to, place)
                    break
        return expired_to

    # ---- reads

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        below: Below,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None = None,
        condition: Callable[[Record], bool] | None = None,
        *,
        offline: bool = False,
    ) -> Read:
        """Read messages of a queue from `offset` on, as `Reader.get`. Raises ArchiveError, OSError, NotCached."""
        self._check_complete(below.start)
        out: list[bytes] = []
        total, scanned, at = 0, 0, offset
        name = topic.encode("utf-8", "surrogateescape")
        while at < below.number and scanned < MAX_SCAN:
            held = self._index.at_or_behind(topic, queue_id, at)
            if held is None or held.piece.first > at:
                behind = below.start if held is None else held.part
                self._check_damage(
                    f"messages of {topic} {queue_id}",
                    lambda part, behind=behind: below.visible_from < part.end and part.start < behind,  # type: ignore[misc]
                )
            if held is None or held.piece.first >= below.number:
                at = below.number
                break
            at = max(at, held.piece.first)
            part = self._part(held)
            if part.end <= below.visible_from:
                at = held.end
                continue
            columns = self._columns(topic, queue_id, held, part, offline)
            block, data = None, b""
            for row in range(at - columns.first, len(columns.places)):
                place, size = columns.places[row], columns.sizes[row]
                if at >= below.number or scanned >= MAX_SCAN:
                    break
                if place < below.visible_from or place < 0 or (codes is not None and columns.tags[row] not in codes):
                    at += 1
                    scanned += place >= below.visible_from
                    continue
                if len(out) >= max_count or (out and total + size > max_bytes):
                    return Read(b"".join(out), len(out), at)
                if block is None or not block.start <= place < block.end:
                    try:
                        block, data = self._block_at(part, place, offline)
                    except (ArchiveError, NotCached):
                        if out:  # The next read reports it.
                            return Read(b"".join(out), len(out), at)
                        raise
                begin = place - block.start
                if not is_record_of(data, begin, size, place, name, queue_id, at):
                    raise Damaged(f"the record of {topic} {queue_id} {at} is not at {place} of the archived log")
                raw = data[begin : begin + size]
                at += 1
                scanned += 1
                if condition is not None and not condition(_decoded(raw)):
                    continue
                out.append(raw)
                total += size
        return Read(b"".join(out), len(out), at)

    def offset_at_time(
        self, topic: str, queue_id: int, ms: int, below: Below, *, upper: bool = False, offline: bool = False
    ) -> int | None:
        """Return the first queue offset whose record was stored at `ms` or later; None without one below.

        `upper`: the last one whose record was stored at `ms` or earlier. Raises as `get`.
        """
        self._check_complete(below.start)
        look = self._index.stored_until if upper else self._index.stored_since
        for held in look(topic, queue_id, ms):
            if held.piece.first >= below.number:
                if upper:
                    continue
                break
            part = self._part(held)
            if part.end <= below.visible_from:
                if upper:
                    break
                continue
            columns = self._columns(topic, queue_id, held, part, offline)
            rows = range(min(len(columns.places), below.number - columns.first))
            for row in reversed(rows) if upper else rows:
                place, at_ms = columns.places[row], columns.times[row]
                if place >= below.visible_from and place >= 0 and (at_ms <= ms if upper else at_ms >= ms):
                    return columns.first + row
        self._check_damage(
            f"messages of {topic} {queue_id}", lambda part: part.first_ms <= ms if upper else part.last_ms >= ms
        )
        return None

    def store_time(self, topic: str, queue_id: int, offset: int, below: Below, *, offline: bool = False) -> int:
        """Return the store time of a record, ms; -1 without such a record. Raises as `get`."""
        self._check_complete(below.start)
        held = self._index.at_or_behind(topic, queue_id, offset)
        if held is None or not held.piece.first <= offset < held.end or offset >= below.number:
            return -1
        columns = self._columns(topic, queue_id, held, self._part(held), offline)
        row = offset - columns.first
        return columns.times[row] if columns.places[row] >= max(below.visible_from, 0) else -1

    def record(self, phys: int, start: int, watermarks: Mapping[str, int], *, offline: bool = False) -> Record:
        """Return the record at an offset of the log that a queue has. `start`: of the local log.

        Raises Missing without one, and as `get`.
        """
        self._check_complete(start)
        part = self._index.part_at(phys)
        if part is None:
            self._check_damage(f"offset {phys} of the log", lambda part: part.start <= phys < part.end)
            raise Missing(f"the archive does not have offset {phys} of the log: it begins at {self.view.start}")
        block, data = self._block_at(part, phys, offline)
        begin = phys - block.start
        size = int.from_bytes(data[begin : begin + 4])
        try:
            record = _decoded(data[begin : begin + size])
        except Damaged:
            raise Missing(f"no record begins at {phys} of the log") from None
        held = self._index.at_or_behind(record.topic, record.queue_id, record.queue_offset)
        if record.phys_offset == phys and held is not None and held.name == part.name:
            columns = self._columns(record.topic, record.queue_id, held, part, offline)
            row = record.queue_offset - columns.first
            visible = phys >= watermarks.get(record.topic, 0)
            if visible and 0 <= row < len(columns.places) and columns.places[row] == phys:
                return record
        raise Missing(f"no record begins at {phys} of the log")

    def query(
        self,
        topic: str,
        key: str,
        most: int,
        begin_ms: int,
        end_ms: int,
        unique: bool,
        max_bytes: int,
        start: int,
        visible_from: int,
        *,
        offline: bool = False,
    ) -> list[Record]:
        """Return records below the local log's start with a key, newest first; a unique key is searched from the
        oldest on, because it names one message.

        Raises as `get`; Unavailable when the time range has more objects than one query looks into.
        """
        self._check_complete(start)
        parts = self._index.parts_between(begin_ms, end_ms, start)
        hashed = key_hash(topic, key)
        records: list[Record] = []
        read = 0
        for number, begins in enumerate(parts if unique else reversed(parts)):
            if len(records) >= (1 if unique else most) or read > max_bytes:
                break
            part = self._index.part(begins)
            if part is None or part.end <= visible_from:
                continue
            if number >= MAX_PARTS:
                raise TooWide(
                    f"{len(parts)} objects of the archive may have the key, a query looks into {MAX_PARTS}: "
                    "write a shorter time range"
                )
            for place in reversed(self._places_of(part, topic, hashed, offline)):
                if len(records) >= most or read > max_bytes:
                    break
                if not visible_from <= place < start:
                    continue
                block, data = self._block_at(part, place, offline)
                begin = place - block.start
                record = _decoded(data[begin : begin + int.from_bytes(data[begin : begin + 4])])
                read += record.size
                if record.topic != topic or not begin_ms <= record.store_ms <= end_ms:
                    continue
                if record.uniq_key == key or (not unique and key in record.keys):
                    records.append(record)
        if len(records) < most:
            self._check_damage(
                f"messages with the key {key[:80]}", lambda part: part.last_ms >= begin_ms and part.first_ms <= end_ms
            )
        return records[:most]

    def _places_of(self, part: Outlined, topic: str, hashed: int, offline: bool) -> list[int]:
        """Return the places of an object's records that may have a key."""
        if part.keys is not None:
            hashes = self._loaded(
                (part.name, part.keys.at),
                lambda reader: reader.keys(part.directory()),
                lambda rows: len(rows[0]) * 12,
                part,
                offline,
            )
            low, high = bisect_left(hashes[0], hashed), bisect_left(hashes[0], hashed + 1)
            return list(hashes[1][low:high])
        # Written before archives had keys: all records of the topic.
        places: list[int] = []
        for queue_id in self._index.queues_of(topic):
            held = self._index.reaching(topic, queue_id, part.start)
            if held is not None and held.part == part.start:
                places += [p for p in self._columns(topic, queue_id, held, part, offline).places if p >= 0]
        return sorted(places)

    def _check_complete(self, start: int) -> None:
        view = self.view
        if view.complete_to < start:
            raise Unavailable(
                f"the archive is known up to {view.complete_to} of the log, the local log begins at {start}"
            )

    def _check_damage(self, what: str, may_be_in: Callable[[Part], bool]) -> None:
        """Raise Damaged when what seems not to be there may be in an object that cannot be read."""
        for part in self.view.damaged:
            if may_be_in(part):
                raise Damaged(f"{part.name} of the archive is damaged, and may have {what}")

    # ---- pieces

    def _part(self, held: Held) -> Outlined:
        """Return the object that has a piece. Raises Replaced."""
        part = self._index.part(held.part)
        if part is None or part.name != held.name:
            raise Replaced(f"{held.name} was merged with others, or left the archive, a moment ago")
        return part

    def _columns(self, topic: str, queue_id: int, held: Held, part: Outlined, offline: bool) -> Columns:
        held_columns: Columns = self._loaded(
            (part.name, held.piece.at),
            lambda reader: reader.columns(part.directory(topic, queue_id, held.piece), topic, queue_id),
            lambda columns: len(columns.places) * _ROW_BYTES,
            part,
            offline,
        )
        return held_columns

    def _block_at(self, part: Outlined, place: int, offline: bool) -> tuple[Block, bytes]:
        directory = part.directory()
        blocks = directory.blocks_of(place, place + 1)
        if not blocks:
            raise Damaged(f"{part.name} has no block with {place} of the log")
        block = blocks[0]
        data: bytes = self._loaded(
            (part.name, block.at), lambda reader: reader.block(directory, block), len, part, offline
        )
        return block, data

    def _loaded(
        self,
        key: tuple[str, int],
        read: Callable[[RangeReader], Any],
        size: Callable[[Any], int],
        part: Outlined,
        offline: bool,
    ) -> Any:
        """Return a piece from memory, from the disk or from the object store. Raises ArchiveError, NotCached."""
        piece = self._memory_get(key)
        if piece is not None:
            return piece
        stripe = self._stripes[hash(key) % len(self._stripes)]
        # An offline call never waits for one that is on its way to the object store.
        if not stripe.acquire(blocking=not offline):
            raise NotCached
        try:
            piece = self._memory_get(key)
            if piece is not None:
                return piece
            local = True
            try:
                piece = read(self._reader(part, offline=True))
            except (Damaged, NotCached) as error:
                if offline:
                    raise NotCached from None
                if isinstance(error, Damaged):
                    self._cache.drop(*key)
                local = False
            if not local:
                try:
                    piece = read(self._reader(part, offline=False))
                except Damaged:
                    self._cache.drop(*key)
                    raise
            self._memory_put(key, piece, size(piece))
            return piece
        finally:
            stripe.release()

    def _reader(self, part: Outlined, *, offline: bool) -> RangeReader:
        def fetch(at: int, size: int) -> bytes:
            data = self._cache.get(part.name, at, size)
            if data is not None:
                self.counters.hits += 1
                return data
            if offline:
                raise NotCached
            return self._fetch(part, at, size)

        return RangeReader(part.name, part.size, fetch, self._group.sealer)

    def _fetch(self, part: Outlined, at: int, size: int) -> bytes:
        """Get a piece from the object store, and the blocks behind it if it is a block."""
        pieces = [(at, size)]
        total = size
        number = next((i for i, block in enumerate(part.blocks) if block.at == at), None)
        if number is not None:
            for block in part.blocks[number + 1 :]:
                if total + block.size > READ_AHEAD or block.at != at + total:
                    break
                pieces.append((block.at, block.size))
                total += block.size
        _check_wanted()
        self._wait_for(total)
        _check_wanted()
        try:
            data = self._group.range_of(part.name, at, total)
        except ArchiveError:
            self.counters.errors += 1
            raise
        self.counters.fetches += 1
        self.counters.fetched_bytes += len(data)
        if len(data) != total:
            self.counters.errors += 1
            raise Damaged(f"{part.name}: {len(data)} of {total} bytes came from {at} on")
        for place, length in pieces:
            self._cache.put(part.name, place, data[place - at : place - at + length])
        return data[:size]

    def _wait_for(self, size: int) -> None:
        """Keep the rate."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock()
            begin = max(self._free_at, now - 1.0)
            self._free_at = begin + size / self._rate
            pause = begin - now
        if pause > 0:
            self._sleep(pause)

    def _memory_get(self, key: Any) -> Any:
        with self._lock:
            piece_and_size = self._memory.get(key)
            if piece_and_size is None:
                return None
            self._memory.move_to_end(key)
            return piece_and_size[0]

    def _memory_put(self, key: Any, value: Any, size: int) -> None:
        with self._lock:
            _, before = self._memory.pop(key, (None, 0))
            self._memory[key] = (value, size)
            self._memory_bytes += size - before
            while self._memory_bytes > BLOCKS_BYTES and len(self._memory) > 1:
                _, (_, gone) = self._memory.popitem(last=False)
                self._memory_bytes -= gone


def until_given_up(call: Callable[[], T], given_up: threading.Event) -> T:
    """Make a call that ends at its next fetch once `given_up` is set: it raises Unavailable then."""
    _CALL.given_up = given_up
    try:
        return call()
    finally:
        del _CALL.given_up


def _check_wanted() -> None:
    given_up: threading.Event | None = getattr(_CALL, "given_up", None)
    if given_up is not None and given_up.is_set():
        raise Unavailable("nobody waits for this read any more")


def _complete_to(state: State, names: set[str]) -> int:
    """Return how far these objects and the gaps follow each other from the archive's start on."""
    covered = sorted(
        [*((p.start, p.end) for p in state.parts if p.name in names), *((g.start, g.end) for g in state.gaps)]
    )
    at = state.start
    for start, end in covered:
        if start > at:
            break
        at = max(at, end)
    return at


def _decoded(raw: bytes) -> Record:
    try:
        return decode_record(raw)
    except RecordError as error:
        raise Damaged(f"a record of the archive: {error}") from None
