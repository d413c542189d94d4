"""The page of metrics: RocketMQ's names, lag, histograms, and what a page costs."""

from __future__ import annotations

import asyncio
import random
import sys
from bisect import bisect_left
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from gantry_broker.broker.dead_letters import AT_ONCE, DeadLetters
from gantry_broker.broker.disk_forecast import FORECAST_MS, LONGEST_S, WINDOW, DiskForecast
from gantry_broker.broker.http.metrics_page import MetricsPage
from gantry_broker.broker.http.rocketmq_metrics import version_name
from gantry_broker.broker.latencies import MAX_ROWS, MAX_RPC, UNSUPPORTED, Latencies, RpcLatencies, sampled_trace
from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.exposition import Family, Labels, Remembered, text_page
from gantry_broker.histogram import LATENCY_S, SIZE_BYTES, Histogram
from gantry_broker.http.openmetrics import LARGE, content_type, metric, pieces
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from gantry_broker.store.types import DiskUsage
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as text_of_library
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_of_library
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from prometheus_client.registry import Collector

from benchmarks.rig.alone import broker_alone
from tests.support.present import present

MANY = 400
"""Topics and groups of a large page."""
LINES_A_PASS = 15_000
"""Lines of code that a page executes in one pass of the event loop, at most: a slice and the last step in it."""


@pytest.mark.parametrize("bounds", [LATENCY_S, SIZE_BYTES])
def test_a_histogram_counts_as_a_plain_model(bounds: tuple[float, ...]) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        histogram, values = Histogram(bounds), []
        for _ in range(rng.randint(1, 30)):
            some = [rng.choice([*bounds, 0, rng.random() * 2 * bounds[-1]]) for _ in range(rng.randint(1, 5))]
            how = rng.random()
            if how < 0.4:
                histogram.observe_all(some)
                values += some
            elif how < 0.7:
                weights = [rng.randint(1, 3) for _ in some]
                scale = rng.choice([1, 2])
                histogram.observe_weighted([v / scale for v in some], weights, sum(weights), scale)
                values += [value for value, weight in zip(some, weights, strict=True) for _ in range(weight)]
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


def page(families: list[Family], accept: str = "") -> str:
    return b"".join(pieces(families, accept)).decode()


class Metrics(Collector):
    """The families as the library has them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return [metric(family) for family in self._families]


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
        body = page(families, accept)
        assert content_type(accept).startswith(accept or "text/plain")
        found = {sample.name: sample for family in parse(body) for sample in family.samples}
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
        for text in (text_page(families), page(families))
    )
    assert mine == other


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_large_families_are_written_as_the_library_writes_them(accept: str) -> None:
    """The parsers see in a page of large families what the library's own page of them has."""
    rng = random.Random(7)
    names = [f"t-{n}" for n in range(LARGE)] + ['a"b\\c\nd', "ü"]
    counts, sizes, ages = (Family(f"x_{n}", "gauge", "Measures.") for n in range(3))
    counter, histograms = Family("y_total", "counter", "Counts."), Family("z_bytes", "histogram", "Spreads.")
    for name in names:
        labels = Labels(topic=name, cluster="c")
        counts.add(labels, rng.randrange(2**40))
        sizes.add(labels, rng.random())  # the library writes it: not whole numbers
        ages.add(labels, float("inf"))
        counter.add(labels, rng.randrange(10))
        histogram = Histogram(SIZE_BYTES)
        histogram.observe_all([rng.randrange(10**7) for _ in range(5)])
        histograms.histograms.append((labels, histogram))
    families = [counts, sizes, ages, counter, histograms]
    encode, parse = (text_of_library, prometheus) if not accept else (openmetrics_of_library, openmetrics)

    def seen(text: str) -> list[Any]:
        return [
            (f.name, f.type, f.documentation, sorted((s.name, sorted(s.labels.items()), s.value) for s in f.samples))
            for f in parse(text)
        ]

    assert seen(page(families, accept)) == seen(encode(Metrics(families)).decode())


def test_labels_are_kept_while_pages_use_them() -> None:
    known: Remembered[str, Labels] = Remembered()
    made: list[str] = []

    def make(name: str) -> Labels:
        made.append(name)
        return Labels(topic=name)

    for names in (["a", "b"], ["a"], ["a", "b"]):
        for name in names:
            assert known.get(name, make, name).text() == f'topic="{name}"'
        known.turn()
    assert made == ["a", "b", "b"]


async def test_a_page_of_many_topics_and_groups_holds_the_loop_for_short_slices_only(tmp_path: Path) -> None:
    """Counts executed lines instead of time: between two passes of the event loop a page executes few of them.

    The clock of the slices counts a line as a microsecond, which is more than it takes.
    """
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if event == "call" and asyncio.current_task() is not task:
            return None
        lines += event == "line"
        return count

    async with broker_alone(tmp_path) as process:
        broker, http = process.broker, process.parts.http
        for number in range(MANY):
            topic = f"topic-{number}"
            broker.meta.working.topics[topic] = TopicConfig(topic, 4, 4, 6)
            broker.meta.working.offsets[f"{topic}@group-{number}"] = dict.fromkeys(range(4), 0)
            broker.stats.add("TOPIC_PUT_NUMS", topic, 1)
            broker.stats.add("TOPIC_PUT_SIZE", topic, 1)
            present(broker.stats.sizes_of(topic)).observe_all([1])
            broker.stats.add("GROUP_GET_NUMS", f"{topic}@group-{number}", 1)
        broker.slices.clock = lambda: lines / 1e6
        make = MetricsPage(http._families, broker.slices, 0.1)
        passes: list[int] = []
        task = asyncio.ensure_future(make(""))
        sys.settrace(count)
        try:
            while not task.done():
                before = lines
                await asyncio.sleep(0)
                passes.append(lines - before)
        finally:
            sys.settrace(None)
        body, _ = task.result()
    assert body.count(b"\nrocketmq_consumer_lag_messages{") >= MANY
    assert sum(passes) > 3 * LINES_A_PASS, "it would fit into one pass"
    assert max(passes) <= LINES_A_PASS, passes


# ---- latencies of requests


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (f"traceparent\x0100-{TRACE}-{SPAN}-01\x02CLUSTER\x01c", True),
        (f"A\x01b\x02TRACE_CONTEXT\x0100-{TRACE}-{SPAN}-01", True),
        (f"A\x01b\x02traceparent\x01cc-{TRACE}-{SPAN}-03-more\x02", True),
        (f"traceparent\x0100-{TRACE}-{SPAN}-00", False),  # not sampled
        (f"traceparent\x0100-{'0' * 32}-{SPAN}-01", False),
        (f"traceparent\x0100-{TRACE}-{'0' * 16}-01", False),
        (f"traceparent\x0100-{TRACE}-{SPAN}-01x", False),
        (f"traceparent\x0100-{TRACE.upper()}-{SPAN}-01", False),
        (f"xtraceparent\x0100-{TRACE}-{SPAN}-01", False),
        (f"A\x01traceparent-{TRACE}-{SPAN}-01", False),
        ("traceparent\x01", False),
        ("", False),
    ],
)
def test_the_trace_of_a_message_is_that_of_its_sampled_context(properties: str, found: bool) -> None:
    assert sampled_trace(properties.encode()) == ((TRACE, SPAN) if found else None)


def test_send_and_append_have_the_trace_of_a_message_in_openmetrics_only() -> None:
    latencies = Latencies()
    traced = f"traceparent\x0100-{TRACE}-{SPAN}-01\x02".encode()
    for number in range(3 * MAX_ROWS):
        assert sum(map(len, latencies.sends._rows.values())) < MAX_ROWS
        first = traced if number == 5 else b"CLUSTER\x01c"
        latencies.sends.add(RequestCode.SEND_MESSAGE_V2, (0.003, 0.0001, 0.002, 2, 2, 1_700_000_000_250, first))
    latencies.sends.add(RequestCode.SEND_MESSAGE_V2, (9.0, 0.0001, 8.0, 1, 1, 1_700_000_000_500, b""))
    latencies.sends.settle()
    latencies.sends.settle()  # nothing twice
    families = [
        Family(f"{name}_seconds", "histogram", "T.", histograms=[({"group": "a"}, getattr(latencies, name))])
        for name in ("send", "append", "replication")
    ]
    found = {}
    for family in openmetrics(page(families, "application/openmetrics-text")):
        for sample in family.samples:
            if sample.exemplar is not None:
                example = sample.exemplar
                found[sample.name, sample.labels["le"]] = example.labels, example.value, float(example.timestamp)
    ids = {"trace_id": TRACE, "span_id": SPAN}
    assert found == {
        ("send_seconds_bucket", "0.005"): (ids, 0.003, 1_700_000_000.25),
        ("append_seconds_bucket", "0.0005"): (ids, 0.0001, 1_700_000_000.25),
    }
    assert TRACE not in page(families)
    messages = 6 * MAX_ROWS + 1
    assert [h.count for h in (latencies.send, latencies.append, latencies.replication)] == [messages] * 3
    assert latencies.send.sum == pytest.approx(9 + 0.003 * (messages - 1))
    (labels, rpc), *more = latencies.rpc.rows()
    assert (labels["request_code"], rpc.count, more) == ("send_message_v2", messages, [])
    assert dict(rpc.cumulative())["3.0"] == messages - 1
    assert rpc.sum == pytest.approx(1000 * latencies.send.sum)


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
        found.note(number * FORECAST_MS, DiskUsage(1_000, free, 0.5))
        found.note(number * FORECAST_MS + 1, None)
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

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        return (0, 0) if topic.endswith("-0") else (2, 5)


def test_dead_letters_are_counted_in_parts() -> None:
    meta = Metadata(Tables())
    for number in range(AT_ONCE + 50):
        name = f"%DLQ%g-{number}"
        meta.working.topics[name] = TopicConfig(name, 1, 1, 6)
    meta.working.topics["Orders"] = TopicConfig("Orders", 4, 4, 6)
    reader: Any = Queues()
    letters = DeadLetters(meta, reader)
    assert letters.look(), "there are more"
    assert (letters.total, letters.by_group) == (0, {}), "a part is no figure yet"
    assert not letters.look()
    assert letters.total == 3 * (AT_ONCE + 49)
    assert "g-0" not in letters.by_group
    assert letters.by_group["g-1"] == 3
    meta.working.topics.clear()
    assert not letters.look()
    assert letters.total == 0
