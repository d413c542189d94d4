"""Bytes of a log that come from elsewhere in larger pieces, of which the last one is kept for small reads around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Self

SMALL_READ: Final = 64 * 1024
"""Bytes: a larger read is one of a scan, which goes on behind it."""


class KeptBytes(ABC):
    """Bytes of one segment by log offset up to `limit`, as `scan.LogBytes` has them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept_at = 0
        self._kept: bytes | memoryview = b""

    @abstractmethod
    def _fetch(self, at: int, much: bool) -> tuple[int, bytes | memoryview]:
        """Return a piece that has the byte at `at`, and its offset; b"" when there is none. It is valid until the next
        call.

        `much`: the read is larger than `SMALL_READ`. Raises SourceError.
        """

    def map_range(self, offset: int, size: int) -> memoryview | None:
        """See `scan.LogBytes`. These bytes cannot be mapped."""
        return None

    def read_into(self, offset: int, into: memoryview) -> int:
        """See `scan.LogBytes`. Raises SourceError."""
        want = min(len(into), self._limit - offset)
        done = 0
        while done < want:
            at = offset + done
            if not 0 <= at - self._kept_at < len(self._kept):
                self._kept_at, self._kept = self._fetch(at, want > SMALL_READ)
                if not self._kept:
                    break
            inside = at - self._kept_at
            count = min(want - done, len(self._kept) - inside)
            into[done : done + count] = self._kept[inside : inside + count]
            done += count
        return done

    def close(self) -> None:
        """Give up what is kept."""
        self._kept = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
