"""Memory for blocks of the log, used again: to take it from the system for each block costs more time than the read."""

from __future__ import annotations


class Buffers:
    """Buffers of one size. Several threads may call."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer with any content."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(bytearray(self._size))

    def give(self, buffer: memoryview) -> None:
        """Take back a buffer that nobody reads any more."""
        self._free.append(buffer)
