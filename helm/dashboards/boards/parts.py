"""What the dashboards have in common: choices, limits with their colours, kinds of panels."""

from __future__ import annotations

from typing import Any, Final

from helm.dashboards.model import Panel, Query, Variable, Words
from helm.dashboards.style import BAD, DAY, GOOD, HIGH, LOW, MIDDLE, PLAIN, WARNING, Unit

RATE: Final = "$__rate_interval"
Steps = tuple[tuple[float | None, str], ...]

CLUSTER: Final = (
    Variable("namespace", "Namespace", "gantry_uptime_seconds"),
    Variable("cluster", "Cluster", 'gantry_uptime_seconds{namespace=~"$namespace"}'),
)
GROUP: Final = Variable("group", "Broker group", "gantry_uptime_seconds{@cluster}")
TOPIC: Final = Variable("topic", "Topic", "rocketmq_messages_in_total{@user}")
CONSUMER: Final = Variable("consumer_group", "Consumer group", "rocketmq_consumer_lag_messages{@user}")

ANY_IS_BAD: Final[Steps] = ((None, GOOD), (1, BAD))
ANY_IS_WARNING: Final[Steps] = ((None, GOOD), (1, WARNING))
NEUTRAL: Final[Steps] = ((None, PLAIN),)
NONE: Final = {0: "none"}
FORECAST_STEPS: Final[Steps] = ((None, BAD), (DAY, WARNING), (7 * DAY, GOOD))
NOT_IN_TIME: Final = {"inf": "not in sight"}
FEW: Final = "no consumer group has read yet"
OPERATOR: Final = "no operator is scraped"
NO_PROXY: Final = "no gRPC proxy is scraped"
NO_ARCHIVE: Final = "the cluster has no archive"


def stat(
    title: str,
    expr: str,
    text: str,
    *,
    unit: Unit = "short",
    steps: Steps = NEUTRAL,
    width: int = 3,
    words: Words | None = None,
    **more: Any,
) -> Panel:
    """One figure. It always has a value, or says in words why not."""
    return Panel("stat", title, (Query(expr),), unit, width, 3, text, steps, words or {}, **more)


def count(title: str, expr: str, text: str, *, bad: bool = True, **more: Any) -> Panel:
    """The number of things that are wrong: none is green."""
    return stat(title, expr, text, steps=ANY_IS_BAD if bad else ANY_IS_WARNING, words=NONE, decimals=0, **more)


def graph(title: str, unit: Unit, *queries: Query, width: int = 8, text: str = "", **more: Any) -> Panel:
    """Figures over time."""
    return Panel("graph", title, queries, unit, width, 8, text, **more)


def percentiles(metric: str, labels: str) -> tuple[Query, ...]:
    """Three percentiles of a histogram."""
    return tuple(
        Query(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{{labels}}}[{RATE}])))", name, colour)
        for q, name, colour in ((0.5, "p50", LOW), (0.95, "p95", MIDDLE), (0.99, "p99", HIGH))
    )


def latency(title: str, metric: str, labels: str, text: str, *, width: int = 8, **more: Any) -> Panel:
    return graph(title, "seconds", *percentiles(metric, labels), width=width, text=text, **more)


def of_members(expr: str) -> str:
    """A metric of the process alone, with the labels of its member."""
    return (
        f"{expr} * on (job, instance) group_left (namespace, cluster, group, member) "
        "(gantry_role_master{@cluster} * 0 + 1)"
    )


MEMBER: Final = "{{cluster}} {{group}}-{{member}}"
GROUPED: Final = "namespace, cluster, group"

BY_TOPIC: Final = "namespace, cluster, topic"
BY_GROUP: Final = "namespace, cluster, consumer_group"
BY_BOTH: Final = "namespace, cluster, topic, consumer_group"
