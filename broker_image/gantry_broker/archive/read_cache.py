"""Pieces of objects on the local disk, so that they are not fetched twice: a folder of files, bounded in bytes.

What was not used for longest goes first. The files are hints: their content has the checksums of the archive, the
reader checks them, and a file that is lost or damaged is fetched again. It may be called from several threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantry_broker.protocol.digits import whole_number

log = logging.getLogger(__name__)

FULL: Final = 0.8
"""With so much of the disk used the cache takes nothing more: messages need the room."""
ENTRY_COST: Final = 512
"""Bytes of disk and memory of an entry beside its content."""


def disk_used(folder: Path) -> float:
    """Return the used part of a folder's disk, 0 to 1. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return usage.used / usage.total if usage.total else 1.0


class ReadCache:
    """Bytes by name of the object and place in it."""

    def __init__(self, folder: Path, limit: int, used: Callable[[Path], float] = disk_used) -> None:
        """`limit`: bytes. Nothing is read before `open`."""
        self._folder = folder
        self._limit = limit
        self._used = used
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._total

    def open(self) -> None:
        """Find what an earlier process left. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        pieces = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".tmp") or _place_of(entry.name) is None:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    pieces.append((stat.st_mtime, entry.name, stat.st_size + ENTRY_COST))
        with self._lock:
            self._sizes = OrderedDict((name, size) for _, name, size in sorted(pieces))
            self._total = sum(self._sizes.values())
        self._trim(0)

    def get(self, name: str, at: int, size: int) -> bytes | None:
        """Return the bytes of a piece; None: it is not there, or has another size."""
        key = f"{name}@{at}"
        with self._lock:
            kept_size = self._sizes.get(key)
            if kept_size is None:
                return None
            self._sizes.move_to_end(key)
        try:
            data = (self._folder / key).read_bytes()
        except OSError:
            data = b""
        if len(data) == size:
            return data
        self.drop(name, at)
        return None

    def put(self, name: str, at: int, data: bytes) -> None:
        """Keep a piece, if there is room. A disk that refuses it is no error: it is fetched again."""
        key, cost = f"{name}@{at}", len(data) + ENTRY_COST
        if cost > self._limit:
            return
        path = self._folder / key
        temporary = path.with_name(f"{key}.{threading.get_ident()}.tmp")
        try:
            if self._used(self._folder) >= FULL:
                self._trim(cost, self._total - cost)
                return
            self._trim(cost)
            temporary.write_bytes(data)
            temporary.rename(path)
        except OSError as error:
            log.debug("the cache of the archive: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        with self._lock:
            self._total += cost - self._sizes.pop(key, 0)
            self._sizes[key] = cost

    def drop(self, name: str, at: int) -> None:
        """Forget a piece: its content is damaged, or its object has gone."""
        key = f"{name}@{at}"
        with self._lock:
            self._total -= self._sizes.pop(key, 0)
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()

    def keep_only(self, names: frozenset[str]) -> None:
        """Forget the pieces of all other objects."""
        with self._lock:
            gone = [key for key in self._sizes if key.rpartition("@")[0] not in names]
        for key in gone:
            name, _, at = key.rpartition("@")
            self.drop(name, int(at))

    def _trim(self, cost: int, limit: int | None = None) -> None:
        """Make room for so many bytes below the limit."""
        limit = self._limit if limit is None else limit
        while True:
            with self._lock:
                if not self._sizes or self._total + cost <= limit:
                    return
                key, size = self._sizes.popitem(last=False)
                self._total -= size
            with contextlib.suppress(OSError):
                (self._folder / key).unlink()


def _place_of(key: str) -> int | None:
    name, _, at = key.rpartition("@")
    return whole_number(at) if name else None
