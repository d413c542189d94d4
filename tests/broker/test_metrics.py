"""The page of metrics: RocketMQ's names, lag, histograms, and what a page costs."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest
from gantry_broker.exposition import Family, text_page
from gantry_broker.histogram import LATENCY_S, SIZE_BYTES, Histogram
from gantry_broker.http.openmetrics import render
from gantry_broker.http.rocketmq_metrics import version_name
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus


@pytest.mark.parametrize("bounds", [LATENCY_S, SIZE_BYTES])
def test_a_histogram_counts_as_a_plain_model(bounds: tuple[float, ...]) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        histogram, values = Histogram(bounds), []
        for _ in range(rng.randint(1, 30)):
            some = [rng.choice([*bounds, 0, rng.random() * 2 * bounds[-1]]) for _ in range(rng.randint(1, 5))]
            if rng.random() < 0.5:
                histogram.observe_all(some)
                values += some
            else:
                times = rng.randint(1, 4)
                histogram.observe(some[0], times)
                values += [some[0]] * times
        found = dict(histogram.cumulative())
        assert found["+Inf"] == histogram.count == len(values)
        assert histogram.sum == pytest.approx(sum(values))
        for bound in bounds:
            assert found[str(float(bound))] == sum(bisect_left(bounds, v) <= bounds.index(bound) for v in values)


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [(407, "v4_9_7"), (513, "v5_5_0"), (406, "v4_9_7_snapshot"), (213, "v4_0_0"), (211, "unknown"), (-1, "unknown"),
     (2**31 - 1, "unknown")],
)  # fmt: skip
def test_a_client_s_version_has_rocketmq_s_name(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name


def test_a_page_is_read_by_the_parsers_of_both_formats() -> None:
    labels = {"topic": 'a"b\\c\nd'}
    histogram = Histogram(LATENCY_S)
    histogram.observe(0.003, 4)
    families = [
        Family("x_total", "counter", "Counts.", [(labels, 3)]),
        Family("y", "gauge", "Measures.", [({}, 1.5)]),
        Family("z_seconds", "histogram", "Spreads.", histograms=[(labels, histogram)]),
    ]
    for accept, parse in (("", prometheus), ("application/openmetrics-text", openmetrics)):
        body, content_type = render(families, accept)
        assert content_type.startswith(accept or "text/plain")
        found = {sample.name: sample for family in parse(body.decode()) for sample in family.samples}
        assert (found["x_total"].labels, found["x_total"].value) == (labels, 3)
        assert found["y"].value == 1.5
        assert found["z_seconds_count"].value == 4


def test_the_small_writer_agrees_with_the_library() -> None:
    families = [
        Family("x_total", "counter", "Counts.", [({"topic": 'a"b\\c\nd'}, 3), ({}, 2**40)]),
        Family("y", "gauge", "Measures.", [({}, 1.5)]),
        Family("empty", "gauge", "Has no series."),
    ]
    mine, other = (
        [(f.name, f.type, f.documentation, f.samples) for f in prometheus(text)]
        for text in (text_page(families), render(families)[0].decode())
    )
    assert mine == other
