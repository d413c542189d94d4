"""A histogram of counts by size, as Prometheus wants it: cheap to add to, without a lock or a clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import mul
from typing import Final, NamedTuple

LATENCY_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of latencies, in seconds."""
RPC_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""Upper bounds of `rocketmq_rpc_latency_milliseconds`: those of RocketMQ 5.5.0."""
PUT_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper bounds of `putMessageDistributeTime` in the runtime info: those of RocketMQ's `StoreStatsService`."""
SIZE_BYTES: Final = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
"""Upper bounds of `rocketmq_message_size`, bytes: those of RocketMQ 5.5.0."""


class Exemplar(NamedTuple):
    """One value with the trace that it belongs to."""

    value: float
    trace_id: str
    span_id: str
    unix_ms: int


@lru_cache
def _texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(str, map(float, bounds)), "+Inf")


class Histogram:
    """Counts values by upper bound. `bounds` ascend; values above the last one count in `+Inf`."""

    __slots__ = ("_bounds", "_counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The last example of a bucket, by the bucket's number; most histograms have none."""

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    @property
    def counts(self) -> Sequence[int]:
        """How many values each bucket has by itself; the last one has those above all bounds."""
        return self._counts

    @property
    def series(self) -> int:
        """The number of its lines on a page of metrics."""
        return len(self._counts) + 2

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: Sequence[float]) -> None:
        """Count each value. Values that all lie in one bucket, as those of most batches do, cost one step."""
        counts, bounds = self._counts, self._bounds
        bucket = bisect_left(bounds, min(values))
        if bucket == len(bounds) or max(values) <= bounds[bucket]:
            counts[bucket] += len(values)
        else:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)

    def observe_alike(self, times: int, total: float, least: float, most: float) -> bool:
        """Count `times` values from `least` to `most`, if they all lie in one bucket. `total`: their sum."""
        bounds, bucket = self._bounds, 0
        if most > bounds[0]:
            bucket = bisect_left(bounds, least)
            if bucket < len(bounds) and most > bounds[bucket]:
                return False
        self._counts[bucket] += times
        self.sum += total
        return True

    def observe_weighted(self, values: Sequence[float], times: Sequence[int], count: int, scale: float = 1) -> None:
        """Count each value as often as its place in `times` says. `count`: the sum of `times`. `scale`: of the values
        to the unit of this histogram.
        """
        counts, bounds = self._counts, self._bounds
        first, rest = bounds[0], count
        if max(values) * scale > first:
            for value, weight in [pair for pair in zip(values, times, strict=True) if pair[0] * scale > first]:
                counts[bisect_left(bounds, value * scale)] += weight
                rest -= weight
        counts[0] += rest
        self.sum += scale * (sum(map(mul, values, times)) if count > len(times) else sum(values))

    def exemplify(self, exemplar: Exemplar) -> None:
        """Keep an example of a value that was counted; the one before in its bucket goes."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield each upper bound as text, with the count of all values up to it."""
        total = 0
        for bound, count in zip(_texts(tuple(self._bounds)), self._counts, strict=True):
            total += count
            yield bound, total
