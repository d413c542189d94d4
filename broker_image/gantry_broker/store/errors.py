"""What the store refuses, and why."""

from __future__ import annotations


class StoreError(Exception):
    """The root of everything that the store raises on purpose."""


class StoreFull(StoreError):
    """No room on the disk: nothing of what was to be written is in the log. Reads go on, later writes may succeed."""


class MessageTooLarge(StoreError):
    """A record that no segment, or no field of the record's layout, can hold."""


class OffsetGone(StoreError):
    """An offset outside of what the log holds: below `start` (retention) or beyond its end."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of the log, which has {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class BadRecords(StoreError):
    """Bytes that are not whole, undamaged records for the place where they are (`at`, an offset of the log)."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"no valid record at {at}: {reason}")
        self.at = at
        self.reason = reason


class StoreLocked(StoreError):
    """Another process has the store open."""


class FlushFailed(StoreError):
    """The disk refused to make bytes durable. What it holds is unknown, so the store takes no more writes."""
