"""Removes files that nothing refers to any more, oldest first, in the background: a slow disk may hold an unlink."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from gantry_broker.store.warnings import RateLimitedWarnings


class Removals:
    """Files that wait for their removal. `add` and `settle` are for the thread of the store."""

    def __init__(self, warnings: RateLimitedWarnings) -> None:
        self.in_background: Callable[[Callable[[], None]], None] = _now
        self._warnings = warnings
        self._waiting: deque[str] = deque()
        self._removing = threading.Lock()
        self._ended = -math.inf

    @property
    def ended(self) -> float:
        """When the last file was removed, by the monotonic clock; infinity: some still wait. A usage of the disk that
        was read before is too high.
        """
        return math.inf if self._waiting else self._ended

    def add(self, paths: Iterable[str]) -> None:
        """Remove these files, closed ones, behind those that wait. After a failure the next call tries again."""
        self._waiting += paths
        if self._waiting:
            self.in_background(self._run)

    def settle(self) -> None:
        """Wait until all files are removed: names may be used again. Blocks on the disk. Raises OSError."""
        with self._removing:
            self._remove()

    def close(self) -> None:
        """Remove what waits, or leave it to the next start: no thread does afterwards. Blocks on the disk."""
        with self._removing:
            with contextlib.suppress(OSError):
                self._remove()
            self._waiting.clear()

    def _run(self) -> None:
        with self._removing:
            try:
                self._remove()
            except OSError as error:
                self._warnings.warn("expired files stay until the disk removes them", error)

    def _remove(self) -> None:
        # In their order, and none after a failure: a start after a crash must find a log without gaps, and queues that
        # have entries of all its records.
        while self._waiting:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._waiting[0])
            self._ended = time.monotonic()
            self._waiting.popleft()


def _now(work: Callable[[], None]) -> None:
    work()
