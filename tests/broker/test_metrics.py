"""The page of metrics: RocketMQ's names, lag, histograms, and what a page costs."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any

import pytest
from gantry_broker.broker.dead_letters import AT_ONCE, DeadLetters
from gantry_broker.broker.disk_forecast import FORECAST_MS, LONGEST_S, WINDOW, DiskForecast
from gantry_broker.broker.latencies import MAX_RPC, UNSUPPORTED, RpcLatencies
from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.exposition import Family, text_page
from gantry_broker.histogram import LATENCY_S, SIZE_BYTES, Histogram
from gantry_broker.http.openmetrics import render
from gantry_broker.http.rocketmq_metrics import version_name
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
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


# ---- latencies of requests


def test_requests_count_under_the_labels_of_rocketmq() -> None:
    rpc = RpcLatencies()
    rpc.observe(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, 0.002, 5)
    rpc.observe(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SUCCESS, 0.0, flag=FLAG_ONEWAY)
    rpc.observe(UNSUPPORTED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 0.0)
    rpc.observe_held(RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND, [15_000, 2])
    found = {(r["request_code"], r["response_code"], r["result"], r["is_long_polling"]): h for r, h in rpc.rows()}
    assert set(found) == {
        ("send_message_v2", "success", "success", "false"),
        ("update_consumer_offset", "success", "oneway", "false"),
        ("unsupported", "request_code_not_supported", "success", "false"),
        ("pull_message", "pull_not_found", "success", "true"),
    }
    sends = found["send_message_v2", "success", "success", "false"]
    assert (sends.count, sends.sum, dict(sends.cumulative())["1.0"], dict(sends.cumulative())["3.0"]) == (5, 10.0, 0, 5)
    assert found["pull_message", "pull_not_found", "success", "true"].sum == 15_002


def test_the_kinds_of_requests_are_bounded() -> None:
    rpc = RpcLatencies()
    for code in range(2 * MAX_RPC):
        rpc.observe(code, 0, 0.0)
    assert len(list(rpc.rows())) == MAX_RPC


# ---- the disk's end


def forecast(frees: list[int]) -> int | None:
    found = DiskForecast()
    for number, free in enumerate(frees):
        found.note(number * FORECAST_MS, free)
    return found.full_in_s


@pytest.mark.parametrize(
    ("frees", "seconds"),
    [
        ([], None),
        ([100], None),
        ([100, 90, 80, 70, 60], None),  # four minutes say little
        ([100, 90, 80, 70, 60, 50], 300),  # ten a minute
        ([100] * 10, None),
        ([50, 60, 70, 80, 90, 100], None),  # retention deletes more than is written
        ([10, 0, 0, 0, 0, 0], 0),
        ([2**60, *[2**60 - 1] * 5], None),  # in millions of years
        ([10**6] * 50 + [10**6 - 100 * n for n in range(WINDOW + 1)], (10**6 - 100 * WINDOW) // 100 * 60),
    ],
)
def test_the_disk_is_full_at_the_pace_of_the_last_hour(frees: list[int], seconds: int | None) -> None:
    assert forecast(frees) == seconds
    assert seconds is None or seconds <= LONGEST_S


# ---- dead letters


class Queues:
    """The part of a store that counts messages: two of five in each queue were deleted."""

    def max_offset(self, topic: str, queue: int) -> int:
        return 0 if topic.endswith("-0") else 5

    def min_offset(self, topic: str, queue: int) -> int:
        return 0 if topic.endswith("-0") else 2


def test_dead_letters_are_counted_in_parts() -> None:
    meta = Metadata(Tables())
    for number in range(AT_ONCE + 50):
        name = f"%DLQ%g-{number}"
        meta.working.topics[name] = TopicConfig(name, 1, 1, 6)
    meta.working.topics["Orders"] = TopicConfig("Orders", 4, 4, 6)
    store: Any = Queues()
    letters = DeadLetters(meta, store)
    assert letters.look(), "there are more"
    assert (letters.total, letters.by_group) == (0, {}), "a part is no figure yet"
    assert not letters.look()
    assert letters.total == 3 * (AT_ONCE + 49)
    assert "g-0" not in letters.by_group
    assert letters.by_group["g-1"] == 3
    meta.working.topics.clear()
    assert not letters.look()
    assert letters.total == 0
