"""Pushes a process's metrics to an OpenTelemetry collector, by OTLP over HTTP.

The metrics are those of the page that Prometheus reads, under the same names. OpenTelemetry's packages are imported
only where OTLP is configured (extra `opentelemetry`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gantry_broker.exposition import Family
from gantry_broker.tasks import end_tasks
from gantry_broker.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

    from gantry_broker.config import OtlpConfig

log = logging.getLogger(__name__)

PATH: Final = "/v1/metrics"
"""Follows the endpoint, as OTLP wants it."""
TIMEOUT_S: Final = 5.0
"""Seconds of one export, all attempts included."""
MISSING: Final = "pip install 'gantry-mq[opentelemetry]'"


def metrics_data(metrics: Iterable[Metric], resource: Mapping[str, str], begun_ns: int, now_ns: int) -> MetricsData:
    """Return the metrics as OpenTelemetry has them. `begun_ns`: since when counters count, Unix nanoseconds."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    converted = [data for metric in metrics if (data := _converted(metric, begun_ns, now_ns)) is not None]
    scope = ScopeMetrics(InstrumentationScope("gantry", VERSION), converted, "")
    return MetricsData([ResourceMetrics(Resource(dict(resource)), [scope], "")])


def _converted(metric: Metric, begun_ns: int, now_ns: int) -> Any:
    """Return one metric, None if it has no series."""
    from opentelemetry.sdk.metrics import export as sdk

    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if metric.type == "histogram":
        histograms = _histograms(metric.samples, begun_ns, now_ns)
        return (
            sdk.Metric(metric.name, metric.documentation, "", sdk.Histogram(histograms, cumulative))
            if histograms
            else None
        )
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    points = [
        sdk.NumberDataPoint(sample.labels, begun_ns if metric.type == "counter" else 0, now_ns, float(sample.value))
        for sample in metric.samples
        if sample.name == name
    ]
    if not points:
        return None
    data = sdk.Sum(points, cumulative, True) if metric.type == "counter" else sdk.Gauge(points)
    return sdk.Metric(name, metric.documentation, "", data)


def _histograms(samples: Iterable[Sample], begun_ns: int, now_ns: int) -> list[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    points = []
    for key, rows in buckets.items():
        rows.sort()
        counts = [int(count) for _, count in rows]
        each = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
        # The lowest and the highest value are not known.
        unknown: Any = None
        points.append(
            HistogramDataPoint(
                dict(key), begun_ns, now_ns, counts[-1], sums.get(key, 0.0), each, [bound for bound, _ in rows[:-1]],
                unknown, unknown,
            )
        )  # fmt: skip
    return points


class OtlpPush:
    """Pushes at intervals from `start` to `close`. A collector that does not answer costs no more than its time-out."""

    def __init__(
        self, config: OtlpConfig, make: Callable[[], Awaitable[Iterable[Metric]]], service: str, instance: str
    ) -> None:
        """`make` returns the present metrics. `service`, `instance`: name the process at the collector."""
        self.results = {"done": 0, "failed": 0}
        self._config = config
        self._make = make
        self._resource = {"service.name": service, "service.version": VERSION, "service.instance.id": instance}
        self._begun_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None
        self._exporter: Any = None
        self._reported = False

    def start(self) -> None:
        """Begin to push. Without OpenTelemetry's packages the log says what to install."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            log.error("metrics are not pushed to %s: %s: %s", self._config.endpoint, error, MISSING)
            return
        url = self._config.endpoint.rstrip("/") + PATH
        # The exporter logs each failure; `_push` logs the first of a row.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=TIMEOUT_S)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End. What was not pushed yet is lost."""
        if self._task is not None:
            await end_tasks(self._task)
            await asyncio.to_thread(self._exporter.shutdown)

    def family(self) -> Family:
        """Return the family that counts the pushes."""
        rows: list[tuple[dict[str, str], float]] = [({"result": r}, n) for r, n in self.results.items()]
        return Family("gantry_otlp_exports_total", "counter", "Pushes of the metrics to a collector.", rows)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.interval_s)
            try:
                metrics = await self._make()
                good = await asyncio.to_thread(self._push, metrics)
            except Exception:
                log.exception("the push of metrics failed")
                good = False
            self.results["done" if good else "failed"] += 1
            if not good and not self._reported:
                log.warning("metrics could not be pushed to %s; it is tried again", self._config.endpoint)
            self._reported = not good

    def _push(self, metrics: Iterable[Metric]) -> bool:
        """In a thread: it makes the message and waits for the collector."""
        data = metrics_data(metrics, self._resource, self._begun_ns, time.time_ns())
        return bool(self._exporter.export(data).name == "SUCCESS")
