"""Writes a page of metrics with `prometheus_client`, in Prometheus' text form or as OpenMetrics.

The large families, those with a series for each topic or group, are written from prepared label texts; the library
would need most of a page's time for them. A test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as LibraryExemplar

from gantry_broker.exposition import Family, whole_lines
from gantry_broker.histogram import Exemplar

LARGE: Final = 50
"""Series from which on a family is written from prepared texts."""
LINES: Final = 100
"""Lines, about, that are written in one step. A step takes much less than a millisecond."""
_END: Final = b"# EOF\n"


def metric(family: Family) -> Metric:
    """Return a family as `prometheus_client` has it."""
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    out = Metric(name, family.text, family.kind)
    for labels, value in family.rows:
        out.add_sample(family.name, labels, value)
    for labels, histogram in family.histograms:
        for number, (bound, count) in enumerate(histogram.cumulative()):
            example = histogram.exemplars.get(number)
            out.add_sample(
                f"{name}_bucket", {**labels, "le": bound}, count, exemplar=None if example is None else _shown(example)
            )
        out.add_sample(f"{name}_count", labels, histogram.count)
        out.add_sample(f"{name}_sum", labels, histogram.sum)
    return out


def _shown(example: Exemplar) -> LibraryExemplar:
    ids = {"trace_id": example.trace_id, "span_id": example.span_id}
    return LibraryExemplar(ids, example.value, example.unix_ms / 1000)


class _One(Collector):
    """The collector of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [metric(self._family)]


def content_type(accept: str) -> str:
    """Return the type of the page for a request's header; OpenMetrics if it asks for that."""
    return choose_encoder(accept)[1]


def pieces(families: Iterable[Family], accept: str = "") -> Iterator[bytes]:
    """Yield the parts of a page. `accept`: the request's header."""
    encode, kind = choose_encoder(accept)
    openmetrics = kind.startswith("application/openmetrics-text")
    for family in families:
        if family.series >= LARGE and _is_plain(family):
            lines = whole_lines(family, openmetrics)
            while some := "".join(islice(lines, LINES if family.rows else LINES // 10)):
                yield some.encode()
            continue
        yield encode(_One(family)).removesuffix(_END)
    if openmetrics:
        yield _END


def _is_plain(family: Family) -> bool:
    """Whether `whole_lines` can write it."""
    return all([labels and type(value) is int for labels, value in family.rows]) and all(
        [labels and not histogram.exemplars for labels, histogram in family.histograms]
    )
