"""Up to where is what? The numbers from which recovery starts (`config/storePoint.json`), and RocketMQ's `checkpoint`.

All are offsets of the log and lower bounds. `durable` holds after a power loss; `written` holds as long as the machine
has not booted anew, because what a killed process wrote is still in the kernel's cache. Not so after a write or a flush
has failed: then the kernel may have let go of it, and no boot is named.
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

_CHECKPOINT: Final = Struct(">qqq")
_CHECKPOINT_SIZE: Final = 4096
_log = logging.getLogger(__name__)


@cache
def boot_id() -> str:
    """Different after every boot of the machine; "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """See the module's docstring. `flushed` and `confirmed` are of the log, the others of the queues and the index."""

    boot: str = ""
    clean: bool = False
    durable: int = 0
    durable_index: int = 0
    written: int = 0
    written_index: int = 0
    flushed: int = 0
    confirmed: int = 0
    reindexing: bool = False
    """All queues are being filed anew: what of them is there says nothing of the rest."""

    def at_most(self, offset: int) -> RecoveryPoint:
        """The same, with nothing above `offset` that is claimed to be there."""
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
        """None when there are none that can be understood: recovery then looks at the whole log."""
        try:
            data = orjson.loads(path.read_bytes())
            recovery_point = cls(**{name: value for name, value in data.items() if name in _NAMES})
            for name, value in asdict(recovery_point).items():
                expected = {"boot": str, "clean": bool, "reindexing": bool}.get(name, int)
                if type(value) is not expected or (isinstance(value, int) and value < 0):
                    raise ValueError(f"{name} is {value!r}")
        except FileNotFoundError:
            return None
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            _log.warning("%s: %s; the whole log is checked instead", path, error)
            return None
        return recovery_point

    def save(self, path: Path, *, durable: bool) -> None:
        """Raises OSError."""
        atomic_write(path, orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2), durable=durable)


_NAMES: Final = frozenset(field.name for field in fields(RecoveryPoint))
"""A later version may write more."""


class RecoveryPointFile:
    """Where the points are kept. Writing may happen in any thread; what was asked for first never replaces later ones.

    That order matters: points from before a cut, written after those of the cut, would claim records that are gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._asked = 0
        self._written = 0

    @property
    def busy(self) -> bool:
        """Something that was asked for is not written yet."""
        return self._written < self._asked

    def prepare(
        self, recovery_point: RecoveryPoint, *, durable: bool, after: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """What writes these points, and then calls `after`. It raises OSError."""
        self._asked += 1
        number = self._asked

        def write() -> None:
            with self._lock:
                if number < self._written:
                    return
                self._written = number
                recovery_point.save(self.path, durable=durable)
                after()

        return write

    def lower(self, recovery_point: RecoveryPoint) -> None:
        """Write points that claim less than those before, durably. Raises OSError.

        A disk without room loses the old ones instead: without points recovery looks at the whole log.
        """
        try:
            self.prepare(recovery_point, durable=True)()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.path.unlink(missing_ok=True)
            fsync_dir(self.path.parent)


def load_checkpoint(path: Path) -> tuple[int, int, int]:
    """Store times (ms) up to which RocketMQ had flushed log, queues and index; zeros when there is no checkpoint."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return (0, 0, 0)
    if len(data) < _CHECKPOINT.size:
        return (0, 0, 0)
    log_ms, queue_ms, index_ms = _CHECKPOINT.unpack_from(data)
    return log_ms, queue_ms, index_ms


def save_checkpoint(path: Path, log_ms: int, queue_ms: int, index_ms: int) -> None:
    """For RocketMQ's own tools; ours is `Points`. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size < _CHECKPOINT_SIZE:
            os.ftruncate(fd, _CHECKPOINT_SIZE)
        os.pwrite(fd, _CHECKPOINT.pack(log_ms, queue_ms, index_ms), 0)
    finally:
        os.close(fd)
