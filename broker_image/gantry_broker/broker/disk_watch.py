"""How full the store's disk is, without a system call on the event loop: a slow disk may hold `statvfs` for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import DiskUsage

REFRESH_MS: Final = 5_000
"""Between two looks at the disk."""
MAX_AGE_S: Final = 30.0
"""An older usage is no longer known."""


class _Reading(NamedTuple):
    begun: float
    usage: DiskUsage | None


class DiskWatch:
    """The last usage of the disk that is known. The thread for the store's background work reads it."""

    def __init__(self, store: MessageStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._reading = False
        self._last = _Reading(0.0, None)

    def refresh(self) -> None:
        """Look at the disk in the background, unless a look is under way."""
        if not self._reading:
            self._reading = True
            self._store.in_background(self._read)

    def _read(self) -> None:
        begun, usage = self._now(), None
        try:
            usage = self._store.retention.disk()
        except OSError as error:
            self._store.warnings.warn("the disk does not say how full it is: its usage counts as not known", error)
        finally:
            self._last = _Reading(begun, usage)
            self._reading = False

    @property
    def usage(self) -> DiskUsage | None:
        """None: not known, as the last look failed, or was more than `MAX_AGE_S` ago."""
        return self.since(self._now() - MAX_AGE_S)

    def since(self, at: float) -> DiskUsage | None:
        """Return the usage, if the look at it began at this time of the clock or later; None: it is not known."""
        begun, usage = self._last
        return usage if begun >= max(at, self._now() - MAX_AGE_S) else None
