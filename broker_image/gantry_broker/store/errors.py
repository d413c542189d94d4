"""The errors that the store raises on purpose."""

from __future__ import annotations


class StoreError(Exception):
    """The base class of the store's errors."""


class StoreFull(StoreError):
    """The disk has no room. Nothing was appended. Reads work, and a later write may succeed."""


class MessageTooLarge(StoreError):
    """The record fits no segment, or a value fits no field of the record."""


class OffsetGone(StoreError):
    """The offset is not in the log: it lies below `start`, where retention removed it, or beyond `end`."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of the log, which has {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class BadRecords(StoreError):
    """The bytes at `at`, an offset of the log, are not whole, undamaged records of that place."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"no valid record at {at}: {reason}")
        self.at = at
        self.reason = reason


class StoreLocked(StoreError):
    """Another process has the store open."""


class FlushFailed(StoreError):
    """The disk failed to make bytes durable. Its content is unknown, so the store takes no more writes."""
