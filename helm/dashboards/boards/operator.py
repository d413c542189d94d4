"""The dashboard "operator"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import (
    ANY_IS_BAD,
    ANY_IS_WARNING,
    FORECAST_STEPS,
    GROUPED,
    NONE,
    OPERATOR,
    RATE,
    count,
    graph,
    percentiles,
    stat,
)
from helm.dashboards.model import Board, Panel, Query, Row, Variable
from helm.dashboards.style import BAD, GOOD, WARNING

C: Final = "@cluster"
OPERATORS: Final = Board(
    "gantry-operator",
    "Gantry / Operator",
    "Whether the operator leads and reconciles, what it decided, and how the API server answers.",
    (
        Variable("namespace", "Namespace", "gantry_operator_cluster_available"),
        Variable("cluster", "Cluster", 'gantry_operator_cluster_available{namespace=~"$namespace"}'),
    ),
    (
        Row(
            "",
            (
                stat(
                    "Leading operators",
                    "sum(gantry_operator_leader) or vector(0)",
                    "One operator acts, the others stand by.",
                    steps=((None, BAD), (1, GOOD), (2, BAD)),
                    words={0: "none"},
                    decimals=0,
                ),
                stat(
                    "Clusters not available",
                    f"sum(gantry_operator_clusters) - sum(gantry_operator_cluster_available{{{C}}})",
                    "Clusters whose clients cannot send or read.",
                    steps=ANY_IS_BAD,
                    words=NONE,
                    decimals=0,
                    empty=OPERATOR,
                ),
                count(
                    "Members not ready",
                    f"sum(gantry_operator_members_degraded{{{C}}})",
                    "Members that do not answer, or do not work in their role.",
                    bad=False,
                    empty=OPERATOR,
                ),
                count(
                    "NameServers missing",
                    f"sum(gantry_operator_name_servers{{{C}}} - gantry_operator_name_servers_ready{{{C}}})",
                    "NameServers that do not answer.",
                    bad=False,
                    empty=OPERATOR,
                ),
                stat(
                    "Failed passes",
                    f'sum(rate(gantry_operator_reconciles_total{{outcome="error"}}[{RATE}])) or vector(0)',
                    "Reconciliations that ended with an error, per second.",
                    unit="per second",
                    steps=((None, GOOD), (0.001, WARNING), (0.1, BAD)),
                    words=NONE,
                ),
                stat(
                    "Oldest watch",
                    "max(gantry_operator_watch_age_seconds)",
                    "Time since the last data from a watch of the API server.",
                    unit="seconds",
                    steps=((None, GOOD), (120, WARNING), (300, BAD)),
                    decimals=0,
                    empty=OPERATOR,
                ),
                stat(
                    "Last new master",
                    f"max(gantry_operator_last_failover_timestamp_seconds{{{C}}}) * 1000",
                    "The last failover or switchover.",
                    unit="time",
                    empty="none yet",
                ),
                stat(
                    "Certificate expires",
                    f"min(gantry_operator_certificate_expiry_timestamp_seconds{{{C}}}) * 1000",
                    "The first certificate or authority that ends.",
                    unit="time",
                    empty="no TLS",
                ),
            ),
        ),
        Row(
            "Clusters",
            (
                Panel(
                    "table",
                    "Groups",
                    (
                        Query(
                            f"max by ({GROUPED}) (gantry_operator_group_master{{{C}}})",
                            "Master",
                            unit="none",
                            words={0: "none", 1: "yes"},
                            steps=((None, BAD), (1, GOOD)),
                        ),
                        Query(f"max by ({GROUPED}) (gantry_operator_leader_epoch{{{C}}})", "Epoch", unit="none"),
                        Query(f"max by ({GROUPED}) (gantry_operator_members{{{C}}})", "Members", unit="none"),
                        Query(f"max by ({GROUPED}) (gantry_operator_members_ready{{{C}}})", "Ready", unit="none"),
                        Query(f"max by ({GROUPED}) (gantry_operator_in_sync_members{{{C}}})", "In sync", unit="none"),
                        Query(
                            f"max by ({GROUPED}) (gantry_operator_dead_letters{{{C}}})",
                            "Dead letters",
                            unit="messages",
                            words={0: "none"},
                            steps=ANY_IS_WARNING,
                        ),
                        Query(
                            f"min by ({GROUPED}) (gantry_operator_disk_full_forecast_seconds{{{C}}})",
                            "Disk full in",
                            unit="seconds",
                            words={"inf": "not in sight"},
                            steps=FORECAST_STEPS,
                        ),
                    ),
                    width=14,
                    height=6,
                    labels={"namespace": "Namespace", "cluster": "Cluster", "group": "Group"},
                    text="One line a broker group.",
                ),
                Panel(
                    "table",
                    "Conditions",
                    (
                        Query(
                            f"max by (namespace, cluster, condition) (gantry_operator_cluster_condition{{{C}}})",
                            "Is",
                            unit="none",
                            words={0: "False", 1: "True"},
                        ),
                    ),
                    width=10,
                    height=6,
                    labels={"namespace": "Namespace", "cluster": "Cluster", "condition": "Condition"},
                    text="The conditions of each BrokerCluster.",
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                graph(
                    "Changes of a master",
                    "short",
                    Query(
                        f"sum by (reason, planned) (gantry_operator_failovers_total{{{C}}})",
                        "{{reason}}, planned {{planned}}",
                    ),
                    text="By reason, since this operator leads. A planned change is a switchover.",
                ),
                graph(
                    "Duration of a change, p95",
                    "seconds",
                    Query(
                        "histogram_quantile(0.95, sum by (reason, le) "
                        f"(gantry_operator_failover_duration_seconds_bucket{{{C}}}))",
                        "{{reason}}",
                    ),
                    text="From the detection of a lost master until the new one has the role.",
                    empty="none yet",
                ),
                graph(
                    "Changes of in-sync sets",
                    "short",
                    Query(f"sum by (change) (gantry_operator_in_sync_changes_total{{{C}}})", "{{change}}"),
                    text="Members that left a set, or joined it, since this operator leads.",
                ),
            ),
        ),
        Row(
            "Work",
            (
                graph(
                    "Passes",
                    "per second",
                    Query(f"sum by (outcome) (rate(gantry_operator_reconciles_total[{RATE}]))", "{{outcome}}"),
                    text="Reconciliations by outcome.",
                ),
                graph(
                    "Duration of a pass",
                    "seconds",
                    *percentiles("gantry_operator_reconcile_duration_seconds", ""),
                    text="Of one reconciliation.",
                ),
                graph(
                    "Objects written",
                    "per second",
                    Query(f"sum by (kind) (rate(gantry_operator_objects_applied_total[{RATE}]))", "{{kind}}"),
                    text="Objects applied, by kind. A steady cluster has none.",
                ),
                graph(
                    "API requests",
                    "per second",
                    Query(f"sum by (verb) (rate(gantry_operator_api_requests_total[{RATE}]))", "{{verb}}"),
                    text="Requests to the Kubernetes API.",
                ),
                graph(
                    "Failed API requests",
                    "per second",
                    Query(
                        f'sum by (verb, code) (rate(gantry_operator_api_requests_total{{code!~"2.."}}[{RATE}]))',
                        "{{verb}} {{code}}",
                    ),
                    text="Requests without an answer, or with other codes than 2xx. 404 and 409 belong to the work.",
                    empty="none",
                ),
                graph(
                    "Age of watches",
                    "seconds",
                    Query("max by (kind) (gantry_operator_watch_age_seconds)", "{{kind}}"),
                    text="Time since the last data of a watch.",
                ),
            ),
        ),
        Row(
            "Process",
            (
                graph(
                    "CPU",
                    "cores",
                    Query(
                        f"rate(process_cpu_seconds_total[{RATE}]) and on (job, instance) gantry_operator_leader",
                        "{{instance}}",
                    ),
                    text="CPU time of each operator; 1 is a whole core.",
                    width=12,
                ),
                graph(
                    "Memory",
                    "bytes",
                    Query(
                        "process_resident_memory_bytes and on (job, instance) gantry_operator_leader", "{{instance}}"
                    ),
                    text="Resident memory of each operator.",
                    width=12,
                ),
            ),
        ),
    ),
)
