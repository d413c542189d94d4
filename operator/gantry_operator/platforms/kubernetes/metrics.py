"""The operator's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

RECONCILES = Counter("gantry_operator_reconciles_total", "Reconciliations by outcome.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "gantry_operator_reconcile_duration_seconds",
    "Duration of a reconciliation.",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
WRITES = Counter("gantry_operator_objects_applied_total", "Objects applied, by kind.", ["kind"], registry=REGISTRY)
FAILOVERS = Counter(
    "gantry_operator_failovers_total",
    "Changes of a master. A planned change is a switchover.",
    ["namespace", "cluster", "planned"],
    registry=REGISTRY,
)
FAILOVER_SECONDS = Histogram(
    "gantry_operator_failover_duration_seconds",
    "Time from the detection of a lost master until the new one has taken the role.",
    ["planned"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30),
    registry=REGISTRY,
)
LEADER = Gauge("gantry_operator_leader", "1 while this operator leads.", registry=REGISTRY)
CLUSTERS = Gauge("gantry_operator_clusters", "Clusters that this operator controls.", registry=REGISTRY)
AVAILABLE = Gauge(
    "gantry_operator_cluster_available", "1 while clients can send and read.", ["namespace", "cluster"],
    registry=REGISTRY,
)  # fmt: skip
CERTIFICATE_EXPIRY = Gauge(
    "gantry_operator_certificate_expiry_timestamp_seconds",
    "End of the validity of a certificate or authority, as Unix time, by the name of its Secret.",
    ["namespace", "cluster", "secret"],
    registry=REGISTRY,
)
API_CALLS = Gauge("gantry_operator_api_requests", "Requests made to the Kubernetes API.", registry=REGISTRY)
WATCH_AGE = Gauge(
    "gantry_operator_watch_age_seconds", "Time since the last data from a watch, bookmarks included.", ["kind"],
    registry=REGISTRY,
)  # fmt: skip
