"""The operator's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantry_broker.exposition import Family
from gantry_broker.http.families import build_info
from gantry_broker.http.openmetrics import metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gantry_operator.platforms.kubernetes.monitoring.cluster_figures import ClusterFigures, families

REGISTRY = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=REGISTRY)

RECONCILES = Counter("gantry_operator_reconciles_total", "Reconciliations by outcome.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "gantry_operator_reconcile_duration_seconds",
    "Duration of a reconciliation.",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
WRITES = Counter("gantry_operator_objects_applied_total", "Objects applied, by kind.", ["kind"], registry=REGISTRY)
LEADER = Gauge("gantry_operator_leader", "1 while this operator leads.", registry=REGISTRY)
CLUSTERS = Gauge("gantry_operator_clusters", "Clusters that this operator controls.", registry=REGISTRY)
CERTIFICATE_EXPIRY = Gauge(
    "gantry_operator_certificate_expiry_timestamp_seconds",
    "End of the validity of a certificate or authority, as Unix time, by the name of its Secret.",
    ["namespace", "cluster", "secret"],
    registry=REGISTRY,
)
API_REQUESTS = Counter(
    "gantry_operator_api_requests_total",
    "Requests made to the Kubernetes API, by the status of the answer; none: there was no answer.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
CODES = frozenset({200, 201, 202, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 501, 502, 503, 504})
"""Statuses with a series of their own; of the others only the first digit shows."""


def api_request(verb: str, resource: str, status: int | None) -> None:
    """Count one request to the Kubernetes API. `status`: None: there was no answer."""
    code = "none" if status is None else str(status) if status in CODES else f"{status // 100}xx"
    API_REQUESTS.labels(verb, resource, code).inc()


WATCH_AGE = Gauge(
    "gantry_operator_watch_age_seconds", "Time since the last data from a watch, bookmarks included.", ["kind"],
    registry=REGISTRY,
)  # fmt: skip


class _Clusters(Collector):
    """The families of the clusters that this operator controls."""

    def __init__(self) -> None:
        self._shown: list[ClusterFigures] = []
        self.further: list[Callable[[], Family]] = []
        """Make families that are on the page, too."""

    def show(self, figures: ClusterFigures) -> None:
        self._shown.append(figures)

    def hide(self, figures: ClusterFigures) -> None:
        self._shown = [one for one in self._shown if one is not figures]

    def collect(self) -> Iterable[Metric]:
        return map(metric, [*families(self._shown), build_info("operator"), *(make() for make in self.further)])


SHOWN = _Clusters()
"""Figures between `show` and `hide` are on the page."""
REGISTRY.register(SHOWN)
