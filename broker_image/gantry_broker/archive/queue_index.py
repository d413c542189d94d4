"""Which objects of an archive have which records of a queue: a table on the local disk, made from their directories.

It is derived: a folder without it, with a damaged one or with one of another format gets a new one. Its rows have
checksums, since a wrong one would hide messages, and nobody would notice. Several threads may read it while one changes
it; each of its calls sees all of a change or nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.archive.manifest import Part
from gantry_broker.archive.segment import Block, Directory, Keys, Piece
from gantry_broker.protocol.plausible import MAX_OFFSET

FORMAT: Final = 2
_TABLES: Final = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE parts (
    start INTEGER PRIMARY KEY, name TEXT NOT NULL, upto INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, size INTEGER NOT NULL, segment INTEGER NOT NULL, outline BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE pieces (
    topic BLOB NOT NULL, queue INTEGER NOT NULL, first INTEGER NOT NULL, part INTEGER NOT NULL,
    length INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (topic, queue, first, part)
) WITHOUT ROWID;
CREATE INDEX pieces_of_part ON pieces (part);
CREATE TABLE covered (start INTEGER NOT NULL, upto INTEGER NOT NULL, checksum INTEGER NOT NULL);
"""
_PIECE: Final = "first, part, length, at, size, crc, (SELECT name FROM parts WHERE start = part)"
_PAGE: Final = 64
"""Rows that one query returns at most."""
_REMEMBERED: Final = 1_024
"""Queues whose records that were read last are remembered: a reader asks for the same ones many times."""
_REMEMBERED_PARTS: Final = 64
"""Objects that are remembered likewise."""
_TURN: Final = 500
"""Rows that are checked before other threads get their turn."""


class Outlined(NamedTuple):
    """An object that is known."""

    name: str
    start: int
    end: int
    first_ms: int
    last_ms: int
    size: int
    """Bytes of the object."""
    segment_size: int
    blocks: tuple[Block, ...]
    keys: Keys | None

    def directory(self, topic: str = "", queue_id: int = 0, piece: Piece | None = None) -> Directory:
        """Return the object's directory with one queue at most."""
        queues = {} if piece is None else {(topic, queue_id): piece}
        return Directory(
            self.start, self.end, self.segment_size, 0, self.first_ms, self.last_ms, (), self.blocks, queues, self.keys
        )


class Held(NamedTuple):
    """The records of a queue in one object."""

    part: int
    """Where the object begins in the log."""
    name: str
    piece: Piece

    @property
    def end(self) -> int:
        return self.piece.first + self.piece.length


class QueueIndex:
    """The table. Its calls raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self.damaged = False
        """A call has found the file damaged: `open` makes a new one."""
        self._last: OrderedDict[tuple[str, int], tuple[Held, int]] = OrderedDict()
        """By queue what `at_or_behind` found, and the queue offset up to which that is so."""
        self._parts: OrderedDict[int, Outlined] = OrderedDict()

    def open(self) -> None:
        """Open the table, or make a new one in place of what cannot be used."""
        # A call of SQLite crashes the process when another thread closes its connection meanwhile.
        with self._lock:
            self.close()
            self.damaged = False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._opened():
                return
            self.close()
            for name in (self._path, self._path.with_name(self._path.name + "-journal")):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            with self._as_os_error():
                self._db = self._connect()
                self._db.executescript(_TABLES)

    def _opened(self) -> bool:
        """Open the file that is there. False: it cannot be used."""
        try:
            self._db = self._connect()
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            return bool(version == FORMAT) and _is_whole(self._db)
        except sqlite3.Error:
            return False

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
        # A page that a crash of the machine takes would hide messages, and nobody would notice.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cache_size = -2048")
        return db

    def close(self) -> None:
        with self._lock:
            self._forget()
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def names(self) -> dict[str, int]:
        """Return the objects that are known, each with its first offset of the log."""
        return dict(self._rows("SELECT name, start FROM parts"))

    def covered(self) -> tuple[int, int] | None:
        """Return the range of the log that the table is complete for, as `cover` noted it last."""
        for row in self._rows("SELECT start, upto FROM covered"):
            return row[0], row[1]
        return None

    def cover(self, start: int, upto: int) -> None:
        """Note for which range of the log the table is complete."""
        with self._changing() as db:
            db.execute("DELETE FROM covered")
            db.execute("INSERT INTO covered VALUES (?, ?, ?)", (start, upto, _checksum(start, upto)))

    def add(self, part: Part, directory: Directory) -> None:
        """Add an object, in place of those in its range of the log."""
        keys = None if directory.keys is None else list(directory.keys)
        outline = orjson.dumps({"blocks": [list(block) for block in directory.blocks], "keys": keys})
        rows = [
            (_blob(topic), queue_id, piece.first, part.start, *piece[1:])
            for (topic, queue_id), piece in directory.queues.items()
            if piece.length
        ]
        values = (part.start, part.name, part.end, part.first_ms, part.last_ms, part.size, directory.segment_size)
        checksum = (_checksum(*values, outline) + sum(_checksum(*row) for row in rows)) & 0xFFFFFFFF
        replaced = "SELECT start FROM parts WHERE start < ? AND upto > ?"
        with self._changing() as db:
            db.execute(f"DELETE FROM pieces WHERE part IN ({replaced})", (part.end, part.start))
            db.execute("DELETE FROM parts WHERE start < ? AND upto > ?", (part.end, part.start))
            db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, outline, checksum))
            db.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def remove(self, starts: Iterable[int]) -> None:
        """Forget the objects that begin at these offsets."""
        with self._changing() as db:
            for start in starts:
                db.execute("DELETE FROM pieces WHERE part = ?", (start,))
                db.execute("DELETE FROM parts WHERE start = ?", (start,))

    def part(self, start: int) -> Outlined | None:
        """Return the object that begins at an offset of the log."""
        with self._lock:
            part = self._parts.get(start)
            if part is None:
                part = self._outlined("WHERE start = ?", start)
            if part is not None:
                _remember(self._parts, start, part, _REMEMBERED_PARTS)
            return part

    def part_at(self, phys: int) -> Outlined | None:
        """Return the object that has an offset of the log."""
        part = self._outlined("WHERE start <= ? ORDER BY start DESC LIMIT 1", phys)
        return part if part is not None and phys < part.end else None

    def parts_between(self, begin_ms: int, end_ms: int, below: int) -> list[int]:
        """Return where the objects begin that may have records of these times and begin below an offset, in order."""
        query = "SELECT start FROM parts WHERE last_ms >= ? AND first_ms <= ? AND start < ? ORDER BY start"
        return [start for (start,) in self._rows(query, begin_ms, end_ms, below)]

    def at_or_behind(self, topic: str, queue_id: int, number: int) -> Held | None:
        """Return the first records of a queue that end behind a queue offset."""
        with self._lock:
            last = self._last.get((topic, queue_id))
            if last is not None and last[0].piece.first <= number < last[1]:
                return last[0]
            held, following = self._look(topic, queue_id, number)
            if held is not None and held.piece.first <= number:
                until = held.end if following is None else min(held.end, following.piece.first)
                _remember(self._last, (topic, queue_id), (held, until), _REMEMBERED)
            return held

    def _look(self, topic: str, queue_id: int, number: int) -> tuple[Held | None, Held | None]:
        """Return what `at_or_behind` does, and the next records behind the queue offset if there are some."""
        key = (_blob(topic), queue_id)
        query = f"SELECT {_PIECE} FROM pieces WHERE topic = ? AND queue = ?"
        behind = self._rows(f"{query} AND first > ? ORDER BY first, part LIMIT 1", *key, number)
        following = _held(behind[0]) if behind else None
        for row in self._rows(f"{query} AND first <= ? ORDER BY first DESC, part DESC LIMIT 1", *key, number):
            held = _held(row)
            if number < held.end:
                return held, following
        return following, None

    def reaching(self, topic: str, queue_id: int, phys: int) -> Held | None:
        """Return the first records of a queue in an object that ends above an offset of the log."""
        query = (
            f"SELECT {_PIECE} FROM pieces WHERE topic = ? AND queue = ? AND "
            "(SELECT upto FROM parts WHERE start = part) > ? ORDER BY first, part LIMIT 1"
        )
        return next(map(_held, self._rows(query, _blob(topic), queue_id, phys)), None)

    def stored_since(self, topic: str, queue_id: int, ms: int) -> Iterator[Held]:
        """Yield the records of a queue in objects with a record of this time or later, in order."""
        query = (
            f"SELECT {_PIECE} FROM pieces WHERE topic = ? AND queue = ? AND first > ? AND "
            f"(SELECT last_ms FROM parts WHERE start = part) >= ? ORDER BY first, part LIMIT {_PAGE}"
        )
        behind = -1
        while rows := self._rows(query, _blob(topic), queue_id, behind, ms):
            yield from map(_held, rows)
            behind = rows[-1][0]

    def stored_until(self, topic: str, queue_id: int, ms: int) -> Iterator[Held]:
        """Yield the records of a queue in objects with a record of this time or earlier, the last ones first."""
        query = (
            f"SELECT {_PIECE} FROM pieces WHERE topic = ? AND queue = ? AND first < ? AND "
            f"(SELECT first_ms FROM parts WHERE start = part) <= ? ORDER BY first DESC, part DESC LIMIT {_PAGE}"
        )
        before = MAX_OFFSET
        while rows := self._rows(query, _blob(topic), queue_id, before, ms):
            yield from map(_held, rows)
            before = rows[-1][0]

    def queues_of(self, topic: str) -> list[int]:
        """Return the queues of a topic."""
        query = "SELECT DISTINCT queue FROM pieces WHERE topic = ? ORDER BY queue"
        return [queue for (queue,) in self._rows(query, _blob(topic))]

    def spans(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return by queue the first queue offset and the one behind the last."""
        query = "SELECT queue, MIN(first), MAX(first + length) FROM pieces WHERE topic = ? GROUP BY queue"
        return {queue: (first, end) for queue, first, end in self._rows(query, _blob(topic))}

    def firsts(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, queue and first queue offset of each queue."""
        for topic, queue_id, first in self._rows("SELECT topic, queue, MIN(first) FROM pieces GROUP BY topic, queue"):
            yield _text(topic), queue_id, first

    def _outlined(self, where: str, *values: Any) -> Outlined | None:
        query = f"SELECT name, start, upto, first_ms, last_ms, size, segment, outline FROM parts {where}"
        for name, start, upto, first_ms, last_ms, size, segment_size, outline in self._rows(query, *values):
            outlined = orjson.loads(outline)
            keys = outlined["keys"]
            blocks = tuple(Block(*block) for block in outlined["blocks"])
            known_keys = None if keys is None else Keys(*keys)
            return Outlined(name, start, upto, first_ms, last_ms, size, segment_size, blocks, known_keys)
        return None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._as_os_error():
            if self._db is None:
                raise OSError(f"{self._path} is closed")
            return self._db.execute(query, values).fetchall()

    def _forget(self) -> None:
        self._last.clear()
        self._parts.clear()

    @contextlib.contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # A full or failing disk is an OperationalError: the file is whole.
            self.damaged = self.damaged or not isinstance(error, sqlite3.OperationalError)
            raise OSError(f"the index of the archive: {error}") from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._as_os_error():
            if self._db is None:
                raise OSError(f"{self._path} is closed")
            self._forget()
            self._db.execute("BEGIN")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _remember(entries: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > most:
        entries.popitem(last=False)


def _held(row: Any) -> Held:
    first, part, length, at, size, crc, name = row
    return Held(part, name, Piece(first, length, at, size, crc))


def _blob(topic: str) -> bytes:
    return topic.encode("utf-8", "surrogateescape")


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")


def _checksum(*values: Any) -> int:
    return zlib.crc32(repr(values).encode())


def _is_whole(db: sqlite3.Connection) -> bool:
    """Return whether every row is as it was written. Raises sqlite3.Error for a file that cannot be read."""
    if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
        return False
    of_parts: dict[Any, int] = {}
    pieces = db.execute("SELECT topic, queue, first, part, length, at, size, crc FROM pieces")
    for number, row in enumerate(pieces):
        of_parts[row[3]] = of_parts.get(row[3], 0) + _checksum(*row)
        if number % _TURN == 0:
            time.sleep(0)
    parts = db.execute("SELECT start, name, upto, first_ms, last_ms, size, segment, outline, checksum FROM parts")
    for *values, checksum in parts:
        if (_checksum(*values) + of_parts.pop(values[0], 0)) & 0xFFFFFFFF != checksum:
            return False
        time.sleep(0)
    covered = db.execute("SELECT start, upto, checksum FROM covered").fetchall()
    return not of_parts and all(_checksum(start, upto) == checksum for start, upto, checksum in covered)
