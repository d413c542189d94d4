"""The preview of an offset reset: what a group skips and what it gets once more, by queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
