"""An offset reset: what is asked for, and what a group would skip and get once more, by queue. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

EARLIEST, LATEST = "earliest", "latest"
CONFIRM: Final = ",confirm"
MAX_REQUEST: Final = 320
"""Characters of a request."""
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
FORM: Final = "write [TOPIC=]earliest, [TOPIC=]latest or [TOPIC=]TIME, with a time like 2026-11-25T10:00:00Z"
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$", re.ASCII)


class BadReset(ValueError):
    """A request that is none. The text says what to write."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """`topic` empty: all topics of the group. `timestamp`: ms since 1970; None: the end of each queue."""

    text: str
    """Without the confirmation."""
    topic: str
    timestamp: int | None
    confirmed: bool


def parse_time(text: str) -> int | None:
    """`earliest` (0), `latest` (None), or a time with its zone, in ms. Raises BadReset."""
    if text == EARLIEST:
        return 0
    if text == LATEST:
        return None
    if _TIME.fullmatch(text):
        try:
            ms = int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
        except (ValueError, OverflowError):
            ms = -1
        if 0 <= ms <= LAST_MS:
            return ms
    raise BadReset(f"{text[:80]!r} is no place: {FORM}")


def parse_reset(text: str) -> ResetRequest:
    """Read the annotation. Raises BadReset."""
    if len(text) > MAX_REQUEST:
        raise BadReset(f"the request has {len(text)} characters, {MAX_REQUEST} is the limit: {FORM}")
    request = text.strip()
    confirmed = request.endswith(CONFIRM)
    request = request.removesuffix(CONFIRM).strip()
    topic, equals, place = request.rpartition("=")
    if equals and not topic:
        raise BadReset(f"{request[:80]!r} names no topic: {FORM}")
    return ResetRequest(request, topic, parse_time(place), confirmed)


@dataclass(frozen=True, slots=True)
class ResetRow:
    """One queue. Offsets count messages; `committed` None: the group has no position in it."""

    broker: str
    queue: int
    first: int
    end: int
    committed: int | None
    target: int

    @property
    def skipped(self) -> int:
        """Messages that the group has not read and will not get."""
        return max(self.target - self._from, 0)

    @property
    def repeated(self) -> int:
        """Messages that the group has read and gets once more."""
        return max(self._from - self.target, 0)

    @property
    def _from(self) -> int:
        return self.first if self.committed is None else max(self.committed, self.first)


@dataclass(frozen=True, slots=True)
class ResetPreview:
    rows: list[ResetRow]

    @property
    def skipped(self) -> int:
        return sum(r.skipped for r in self.rows)

    @property
    def repeated(self) -> int:
        return sum(r.repeated for r in self.rows)

    @property
    def remaining(self) -> int:
        """Messages between the new position and the end."""
        return sum(r.end - r.target for r in self.rows)


def preview_of(rows: Iterable[tuple[str, int, int, int, int | None, int]]) -> ResetPreview:
    """From (broker, queue, first offset, end, committed offset, offset at the time). A target beyond the queue's
    messages counts as its first or last position.
    """
    return ResetPreview(
        [
            ResetRow(broker, queue, first, end, committed, min(max(target, first), end))
            for broker, queue, first, end, committed, target in rows
        ]
    )
