"""The unconfirmed buffer: batches in memory that wait for their confirmation.

Memory stays bounded: with too many waiting records, the buffer drops later batches, and the store reads them from the
log again once they are confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from gantry_broker.store.batch import Batch

MAX_WAITING: Final = 50_000
"""The buffer holds at most about this many records."""


class UnconfirmedBuffer:
    """The waiting batches, oldest first. There may be gaps between them."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.waiting = 0

    def push(self, batch: Batch) -> None:
        """Append a batch, unless the buffer is full."""
        if self.waiting < MAX_WAITING:
            self.batches.append(batch)
            self.waiting += 1 + batch.count

    def pop(self, start: int, limit: int, begins_record: Callable[[int], bool]) -> Batch | None:
        """Take the batch that begins at `start`, or its part below `limit`; None when the buffer does not have it.

        Raises ValueError when `limit` lies within a record; the batch then stays. `begins_record` is asked as well: a
        batch knows the records that have entries only.
        """
        while self.batches and self.batches[0].end <= start:
            self._drop_first()
        if not self.batches or self.batches[0].start != start:
            return None
        if self.batches[0].end <= limit:
            return self._drop_first()
        batch, rest = self.batches[0].split(limit)
        if not begins_record(limit):
            raise ValueError(f"offset {limit} lies within a record")
        self.batches[0] = rest
        self.waiting -= batch.count
        return batch

    def _drop_first(self) -> Batch:
        batch = self.batches.popleft()
        self.waiting -= 1 + batch.count
        return batch

    def first_start(self, default: int) -> int:
        """Return the offset of the first batch; `default` for an empty buffer."""
        return self.batches[0].start if self.batches else default

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of [start, stop) that the buffer does not have."""
        missing = []
        for batch in self.batches:
            if start < batch.start < stop:
                missing.append((start, batch.start))
            start = max(start, batch.end)
        return [*missing, (start, stop)] if start < stop else missing

    def clear(self) -> None:
        """Drop all batches."""
        self.batches.clear()
        self.waiting = 0

    def check_invariants(self, confirmed: int, end: int) -> None:
        """Raise AssertionError if a batch is indexed already, is beyond the log, or overlaps another one; for tests."""
        batches = list(self.batches)
        assert self.waiting == sum(1 + batch.count for batch in batches), f"counts {self.waiting}"
        assert all(batch.start < batch.end <= end for batch in batches), f"a batch is beyond the log's end {end}"
        assert all(a.end <= b.start for a, b in pairwise(batches)), "batches overlap"
        # A batch below `confirmed` would be indexed twice.
        assert not batches or batches[-1].end > confirmed, "a batch is confirmed, and still waits"
