"""Families of metrics: plain data, so that pure code can make them and tests can compare them.

`openmetrics.py` writes the page of a broker. `text_page` is for the NameServer, a small process without the libraries
that `prometheus_client` loads (its web servers and TLS).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from gantry_broker.histogram import Histogram

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Kind = Literal["gauge", "counter", "histogram"]


class Labels(dict[str, str]):
    """Labels that do not change. Their text is made once, for series of which there are many."""

    __slots__ = ("_text",)
    _text: str

    def text(self) -> str:
        """Return them as a page has them, without braces."""
        try:
            return self._text
        except AttributeError:
            self._text = labels_text(self)
            return self._text


class Remembered(Generic[K, V]):
    """Values that a page makes and the next page needs again. What a page does not use is forgotten."""

    def __init__(self) -> None:
        self._last: dict[K, V] = {}
        self._next: dict[K, V] = {}

    def get(self, key: K, make: Callable[..., V], *args: object) -> V:
        """Return the value; `make` makes a new one from `args`."""
        value = self._next.get(key)
        if value is None:
            value = self._last.get(key)
            self._next[key] = value = make(*args) if value is None else value
        return value

    def turn(self) -> None:
        """Forget what the page that ends now did not use."""
        self._last, self._next = self._next, {}


@dataclass(slots=True)
class Family:
    """One metric with all its series. The name of a counter ends with `_total`."""

    name: str
    kind: Kind
    text: str
    """What it counts, in one sentence."""
    rows: list[tuple[dict[str, str], float]] = field(default_factory=list)
    histograms: list[tuple[dict[str, str], Histogram]] = field(default_factory=list)

    def add(self, labels: dict[str, str], value: float) -> None:
        self.rows.append((labels, value))

    @property
    def series(self) -> int:
        """The number of its lines on a page."""
        return len(self.rows) + sum(histogram.series for _, histogram in self.histograms)


def text_page(families: Iterable[Family]) -> str:
    """Return the page in Prometheus' text form. Histograms are left out."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.rows:
            inner = labels_text(labels)
            lines.append(f"{family.name}{{{inner}}} {value}" if inner else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


def whole_lines(family: Family, openmetrics: bool) -> Iterator[str]:
    """Yield the lines of a family whose values are all whole numbers and whose series all have labels.

    For families with a series for each topic or group: `prometheus_client` needs ten times the CPU time for them.
    """
    name = family.name
    shown = name.removesuffix("_total") if openmetrics and family.kind == "counter" else name
    yield f"# HELP {shown} {family.text}\n# TYPE {shown} {family.kind}\n"
    for labels, value in family.rows:
        yield f"{name}{{{_text(labels)}}} {value}\n"
    for labels, histogram in family.histograms:
        inner = _text(labels)
        count = 0
        lines = []
        for bound, count in histogram.cumulative():
            lines.append(f'{name}_bucket{{{inner},le="{bound}"}} {count}\n')
        yield f"{''.join(lines)}{name}_count{{{inner}}} {count}\n{name}_sum{{{inner}}} {histogram.sum}\n"


def _text(labels: dict[str, str]) -> str:
    return labels.text() if isinstance(labels, Labels) else labels_text(labels)


def labels_text(labels: dict[str, str]) -> str:
    """Return labels as a page has them, without braces."""
    return ",".join([f'{key}="{_escaped(label)}"' for key, label in labels.items()])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
