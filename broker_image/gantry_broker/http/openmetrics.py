"""Writes a page of metrics with `prometheus_client`, in Prometheus' text form or as OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from gantry_broker.exposition import Family


def metric(family: Family) -> Metric:
    """Return a family as `prometheus_client` has it."""
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    made = Metric(name, family.text, family.kind)
    for labels, value in family.rows:
        made.add_sample(family.name, labels, value)
    for labels, histogram in family.histograms:
        for bound, count in histogram.cumulative():
            made.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        made.add_sample(f"{name}_count", labels, histogram.count)
        made.add_sample(f"{name}_sum", labels, histogram.sum)
    return made


class _Families:
    """The collector of one page."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(metric, self._families)


def render(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page and its content type. `accept`: the request's header; OpenMetrics if it asks for that."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return encode(registry), content_type
