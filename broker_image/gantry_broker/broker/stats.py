"""Counts per topic and group, and their sums over the last minute, hour and day (mqadmin's `statsAll`, request 315)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.histogram import SIZE_BYTES, Histogram

if TYPE_CHECKING:
    from gantry_broker.protocol.frame import Sends
    from gantry_broker.store.types import Row, Stored

MAX_KEYS = 20_000
"""The most keys that are counted, so that memory is bounded. Further keys are ignored."""
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000

_SHAPE = ((MINUTE, 10_000), (HOUR, 600_000), (DAY, 3_600_000))
"""(window, distance of its samples), ms."""


class Counter:
    """A running sum with samples, so that the sum over a window is a difference of two of them."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self.times = 0
        self._samples = tuple(deque([(now_ms, 0, 0)], maxlen=window // step + 1) for window, step in _SHAPE)

    def sample(self, now_ms: int) -> None:
        for samples, (_, step) in zip(self._samples, _SHAPE, strict=True):
            if now_ms - samples[-1][0] >= step:
                samples.append((now_ms, self.value, self.times))

    def window(self, index: int, now_ms: int) -> dict[str, Any]:
        samples = self._samples[index]
        since = next((s for s in samples if now_ms - s[0] <= _SHAPE[index][0]), samples[-1])
        total, times = self.value - since[1], self.times - since[2]
        seconds = max((now_ms - since[0]) / 1000, 1.0)
        return {"sum": total, "tps": round(total / seconds, 2), "avgpt": round(total / times, 2) if times else 0.0}


PutCounters = tuple[list[Counter], list[Counter], Histogram | None]
"""Counters of messages, counters of their bytes, and their sizes."""

ASIDE: Final = ("delay", "timer", "transaction", "retry")
"""What a record was for that was passed over: a delivery by level or by time, a check, another delivery."""


class Stats:
    """Counters by (name, key): `TOPIC_PUT_NUMS`/topic, `GROUP_GET_NUMS`/"topic@group" and so on."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._counters: dict[tuple[str, str], Counter] = {}
        self.sizes: dict[str, Histogram] = {}
        """Stored bytes of the messages of producers, by topic."""
        self.put_counters: dict[str, PutCounters] = {}
        """What the sends to a topic move, by topic: the hot path finds all of it at once."""
        self.pulled: dict[str, dict[int, int]] = {}
        """The next offset that a group pulls, by "topic@group" and queue, since the start of this process."""
        self.refused: dict[int, int] = {}
        """Sends that were not stored or not acknowledged, by the code of the answer."""
        self.set_aside: dict[str, int] = {}
        """Records that the broker could not work with and passed over, by `ASIDE`."""
        self.started_ms = now_ms

    def leave_aside(self, kind: str) -> None:
        """Count a record that was passed over. `kind`: one of `ASIDE`."""
        self.set_aside[kind] = self.set_aside.get(kind, 0) + 1

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        counter = self._counters.get((name, key)) or self.counter(name, key)
        if counter is not None:
            counter.value += value
            counter.times += times

    def counter(self, name: str, key: str) -> Counter | None:
        """Return the counter; None: there are too many already."""
        counter = self._counters.get((name, key))
        if counter is None and len(self._counters) < MAX_KEYS:
            counter = self._counters[name, key] = Counter(self._now_ms)
        return counter

    def sample(self, now_ms: int) -> None:
        """Take a sample of each counter; call it about every ten seconds."""
        self._now_ms = now_ms
        for counter in self._counters.values():
            counter.sample(now_ms)

    def total(self, name: str, key: str) -> int:
        counter = self._counters.get((name, key))
        return 0 if counter is None else counter.value

    def tps(self, name: str, key: str, now_ms: int) -> float:
        """Return the rate per second over the last minute."""
        counter = self._counters.get((name, key))
        return 0.0 if counter is None else float(counter.window(0, now_ms)["tps"])

    def report(self, name: str, key: str, now_ms: int) -> dict[str, Any] | None:
        """Return the body of VIEW_BROKER_STATS_DATA; None: there is no count."""
        counter = self._counters.get((name, key))
        if counter is None:
            return None
        return {
            "statsMinute": counter.window(0, now_ms),
            "statsHour": counter.window(1, now_ms),
            "statsDay": counter.window(2, now_ms),
        }

    def sizes_of(self, topic: str) -> Histogram | None:
        """Return the stored bytes of the messages of a topic; None: there are too many topics already."""
        histogram = self.sizes.get(topic)
        if histogram is None and len(self.sizes) < MAX_KEYS:
            histogram = self.sizes[topic] = Histogram(SIZE_BYTES)
        return histogram

    def pulled_to(self, key: str, offsets: dict[int, int]) -> None:
        """Note the next offsets that a group pulls, by queue. `key`: "topic@group"."""
        queues = self.pulled.get(key)
        if queues is None:
            if len(self.pulled) >= MAX_KEYS:
                return
            queues = self.pulled[key] = {}
        queues.update(offsets)

    def refuse(self, code: int, count: int = 1) -> None:
        """Count sends that were not stored or not acknowledged. `code`: of the answer."""
        self.refused[code] = self.refused.get(code, 0) + count

    def counters(self) -> list[tuple[tuple[str, str], Counter]]:
        """Return all counters by (name, key), as they are now."""
        return list(self._counters.items())

    def rows(self, name: str) -> dict[str, int]:
        """Return key to running sum, for the metrics."""
        return {key: counter.value for (kind, key), counter in self._counters.items() if kind == name}

    def forget(self, names: set[str]) -> None:
        """Drop the counters of deleted topics or groups."""
        self.put_counters.clear()
        for entry in [e for e in self._counters if e[1] in names or not names.isdisjoint(e[1].split("@"))]:
            del self._counters[entry]
        for topic in names & self.sizes.keys():
            del self.sizes[topic]
        for key in [key for key in self.pulled if not names.isdisjoint(key.split("@"))]:
            del self.pulled[key]


class MessageCounts:
    """Counts what producers stored and what consumers got."""

    def __init__(self, stats: Stats, cluster: str) -> None:
        self.put_count = 0
        """Messages of producers since the start."""
        self.get_count = 0
        """Messages given to consumers since the start."""
        self._add = stats.add
        self._counter = stats.counter
        self._sizes_of = stats.sizes_of
        self._put_counters = stats.put_counters
        self._pulled_to = stats.pulled_to
        self._cluster = cluster

    def puts(self, puts: list[Row], stored: list[Stored]) -> None:
        """Count a batch of sends, once per topic."""
        self.put_count += len(puts)
        first = puts[0][0]
        if all([put[0] == first for put in puts]):
            self._put(first, [where[1] for where in stored])
            return
        sizes: dict[str, list[int]] = {}
        for put, where in zip(puts, stored, strict=True):
            sizes.setdefault(put[0], []).append(where[1])
        for topic, its_sizes in sizes.items():
            self._put(topic, its_sizes)

    def put_batch(self, topic: str, sizes: list[int]) -> None:
        """Count the messages of a batch send. `sizes`: stored bytes of each."""
        self.put_count += len(sizes)
        self._put(topic, sizes)

    def put_sends(self, sends: Sends) -> None:
        """Count plain sends, once per topic."""
        self.put_count += sends.messages
        for topic, _, messages, size, least, largest in sends.topics:
            histogram = self._sum(topic, messages, size)
            if histogram is not None and not histogram.observe_alike(messages, size, least, largest):
                histogram.observe_all(sends.sizes(topic))

    def _put(self, topic: str, sizes: list[int]) -> None:
        histogram = self._sum(topic, len(sizes), sum(sizes))
        if histogram is not None:
            histogram.observe_all(sizes)

    def _sum(self, topic: str, count: int, size: int) -> Histogram | None:
        """Add messages and their bytes to the counters of a topic; returns the histogram of the sizes, if any."""
        counters = self._put_counters.get(topic)
        if counters is None:
            counters = self._put_counters[topic] = self._counters_of(topic)
        numbers, totals, histogram = counters
        for counter in numbers:
            counter.value += count
            counter.times += count
        for counter in totals:
            counter.value += size
            counter.times += count
        return histogram

    def _counters_of(self, topic: str) -> PutCounters:
        counter = self._counter
        numbers = (counter("TOPIC_PUT_NUMS", topic), counter("BROKER_PUT_NUMS", self._cluster))
        sizes = (counter("TOPIC_PUT_SIZE", topic), counter("BROKER_PUT_SIZE", self._cluster))
        return [c for c in numbers if c is not None], [c for c in sizes if c is not None], self._sizes_of(topic)

    def gets(self, topic: str, group: str, count: int, size: int, next_offsets: dict[int, int]) -> None:
        """Count answered pulls. `size`: bytes; `next_offsets`: the first offset of the next pull, by queue."""
        self.get_count += count
        key = f"{topic}@{group}"
        self._add("GROUP_GET_NUMS", key, count)
        self._add("GROUP_GET_SIZE", key, size)
        self._add("BROKER_GET_NUMS", self._cluster, count)
        self._pulled_to(key, next_offsets)
