"""The recovery point (`config/recoveryPoint.json`), from which recovery starts, and RocketMQ's `checkpoint`.

All numbers are offsets of the log and lower bounds. `durable` holds after a power loss. `written` holds until the
machine boots again, because the kernel's cache outlives a killed process. It does not hold after a failed write or
flush, when the kernel may have dropped the bytes; `boot` is then empty.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final

import orjson

from gantry_broker.store.files import NO_ROOM, atomic_write, fsync_dir
from gantry_broker.store.sealed import seal, unseal

_CHECKPOINT: Final = Struct(">qqq")
_CHECKPOINT_SIZE: Final = 4096
_log = logging.getLogger(__name__)


@cache
def boot_id() -> str:
    """Return an identifier that changes with every boot of the machine; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """How far each part of the store is. `flushed` and `confirmed` concern the log, the others queues and index."""

    boot: str = ""
    clean: bool = False
    durable: int = 0
    durable_index: int = 0
    written: int = 0
    written_index: int = 0
    flushed: int = 0
    confirmed: int = 0
    reindexing: bool = False
    """A start is rebuilding all queues. Until it has finished, the queues on disk are incomplete."""

    def at_most(self, offset: int) -> RecoveryPoint:
        """Return the same with every offset lowered to `offset`."""
        return RecoveryPoint(
            self.boot,
            self.clean,
            min(self.durable, offset),
            min(self.durable_index, offset),
            min(self.written, offset),
            min(self.written_index, offset),
            min(self.flushed, offset),
            min(self.confirmed, offset),
            self.reindexing,
        )

    @classmethod
    def load(cls, path: Path) -> RecoveryPoint | None:
        """Read the file; None when it is missing or invalid. Recovery then checks the whole log."""
        try:
            data = orjson.loads(unseal(path.read_bytes()))
            point = cls(**{name: value for name, value in data.items() if name in _NAMES})
            for name, value in asdict(point).items():
                expected = {"boot": str, "clean": bool, "reindexing": bool}.get(name, int)
                if type(value) is not expected or (isinstance(value, int) and value < 0):
                    raise ValueError(f"{name} is {value!r}")
        except FileNotFoundError:
            return None
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            _log.warning("%s is invalid: %s; recovery checks the whole log instead", path, error)
            return None
        return point

    def save(self, path: Path, *, durable: bool) -> None:
        """Replace the file; with `durable` also fsync it. Raises OSError."""
        atomic_write(path, seal(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)), durable=durable)


_NAMES: Final = frozenset(field.name for field in fields(RecoveryPoint))
"""Other names in the file are ignored: a later version may write more."""


class RecoveryPointFile:
    """The file of the recovery point. Any thread may write; an older request never replaces a newer one.

    The order matters: a recovery point from before a truncation would claim records that are gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._requested = 0
        self._written = 0
        """The newest request that is written or being written."""
        self._ended = 0
        """The newest request whose write has ended."""

    @property
    def busy(self) -> bool:
        """A requested write is not done yet."""
        return self._ended < self._requested

    def prepare(
        self,
        point: RecoveryPoint,
        *,
        durable: bool,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> Callable[[], None]:
        """Return a function that calls `before`, writes this point and calls `after`. The function raises OSError."""
        self._requested += 1
        number = self._requested

        def write() -> None:
            with self._lock:
                if number < self._written:
                    return
                self._written = number
                try:
                    before()
                    point.save(self.path, durable=durable)
                    after()
                finally:
                    self._ended = number

        return write

    def lower(self, point: RecoveryPoint, before: Callable[[], None] = lambda: None) -> None:
        """Durably write a recovery point with lower offsets, after a call of `before`. Raises OSError.

        A full disk removes the old file instead: recovery then checks the whole log.
        """
        try:
            self.prepare(point, durable=True, before=before)()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # No file is safe: the start checks the whole log. The old one would claim records that are about to go.
            self.path.unlink(missing_ok=True)
            fsync_dir(self.path.parent)


def load_checkpoint(path: Path) -> tuple[int, int, int]:
    """Store times (ms) up to which RocketMQ had flushed log, queues and index; zeros without a `checkpoint` file.

    Source: `StoreCheckpoint` of RocketMQ.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return (0, 0, 0)
    if len(data) < _CHECKPOINT.size:
        return (0, 0, 0)
    log_ms, queue_ms, index_ms = _CHECKPOINT.unpack_from(data)
    return log_ms, queue_ms, index_ms


def save_checkpoint(path: Path, log_ms: int, queue_ms: int, index_ms: int) -> None:
    """Write `checkpoint` for RocketMQ's tools; our recovery reads the recovery point. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size < _CHECKPOINT_SIZE:
            os.ftruncate(fd, _CHECKPOINT_SIZE)
        os.pwrite(fd, _CHECKPOINT.pack(log_ms, queue_ms, index_ms), 0)
    finally:
        os.close(fd)
