"""What each dashboard shows. The first row is the health: green says that nothing needs a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from helm.dashboards.model import Board, Panel, Query, Row, Variable
from helm.dashboards.style import BAD, DAY, GOOD, HIGH, IN, LOW, MIDDLE, OUT, PLAIN, WARNING, Unit

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


def stat(
    title: str,
    expr: str,
    text: str,
    *,
    unit: Unit = "short",
    steps: Steps = NEUTRAL,
    width: int = 3,
    words: Mapping[float | str, str] | None = None,
    **more: Any,
) -> Panel:
    """One figure. It always has a value, or says in words why not."""
    return Panel("stat", title, (Query(expr),), unit, width, 4, text, steps, words or {}, **more)


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
    return f"{expr} * on (job, instance) group_left (namespace, cluster, group, member) (gantry_role_master{{@group}} * 0 + 1)"


MEMBER: Final = "{{cluster}} {{group}}-{{member}}"
GROUPED: Final = "namespace, cluster, group"

MASTERLESS: Final = stat(
    "Groups without a master",
    f"count(max by ({GROUPED}) (gantry_role_master{{@cluster}}) == 0) or vector(0)",
    "Broker groups that no member leads. Clients cannot send to them.",
    steps=ANY_IS_BAD,
    words=NONE,
    decimals=0,
)

OVERVIEW: Final = Board(
    "gantry-cluster",
    "Gantry / Cluster overview",
    "Whether clients can send and read, how much they do, and which member needs a look.",
    CLUSTER,
    (
        Row(
            "",
            (
                MASTERLESS,
                count(
                    "Members not in sync",
                    f"sum(count by ({GROUPED}) (gantry_role_master{{@cluster}}) - on ({GROUPED}) "
                    f"max by ({GROUPED}) (gantry_in_sync_members{{@cluster}} and gantry_role_master{{@cluster}} == 1)) or vector(0)",
                    "Members that are missing from the in-sync set of their group: one failure less is survived.",
                    bad=False,
                ),
                stat(
                    "Refused sends",
                    f"sum(rate(gantry_sends_refused_total{{@cluster}}[{RATE}])) or vector(0)",
                    "Sends that were not stored or not acknowledged, per second.",
                    unit="per second",
                    steps=((None, GOOD), (0.01, WARNING), (1, BAD)),
                    words=NONE,
                ),
                stat(
                    "Oldest unread message",
                    "max(rocketmq_consumer_lag_latency_milliseconds{@user}) / 1000",
                    "Age of the oldest message that a consumer group has not committed.",
                    unit="seconds",
                    steps=((None, GOOD), (600, WARNING), (3600, BAD)),
                    words=NONE,
                    decimals=0,
                    empty=FEW,
                ),
                count(
                    "Dead letters",
                    "sum(gantry_dead_letters{@cluster}) or vector(0)",
                    "Messages in dead letter topics. `gantry dlq list` names their groups.",
                    bad=False,
                ),
                stat(
                    "Disk full in",
                    "min(gantry_disk_full_forecast_seconds{@cluster})",
                    "The first member whose disk is full at the pace of the last hour.",
                    unit="seconds",
                    steps=FORECAST_STEPS,
                    words=NOT_IN_TIME,
                    decimals=1,
                ),
                stat(
                    "Certificate expires",
                    "min(gantry_certificate_expiry_timestamp_seconds{@cluster})",
                    "The first certificate of a broker that ends. The operator renews each 30 days before.",
                    unit="time",
                    empty="no TLS",
                    may_be_empty="brokers without TLS have no certificate",
                ),
                stat(
                    "Members",
                    "count(gantry_uptime_seconds{@cluster})",
                    "Brokers that answer Prometheus.",
                    decimals=0,
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Messages",
                    "messages/s",
                    Query(f"sum(rate(rocketmq_messages_in_total{{@user}}[{RATE}]))", "in", IN),
                    Query(f"sum(rate(rocketmq_messages_out_total{{@user}}[{RATE}]))", "out", OUT),
                    text="Messages stored for producers and given to consumers, without RocketMQ's own topics.",
                ),
                graph(
                    "Bytes",
                    "bytes/s",
                    Query(f"sum(rate(rocketmq_throughput_in_total{{@user}}[{RATE}]))", "in", IN),
                    Query(f"sum(rate(rocketmq_throughput_out_total{{@user}}[{RATE}]))", "out", OUT),
                    text="Stored bytes of those messages.",
                ),
                latency(
                    "Send latency",
                    "gantry_send_latency_seconds",
                    "@cluster",
                    "From the arrival of a send until its answer is written, with the wait for the in-sync set.",
                ),
            ),
        ),
        Row(
            "Groups and members",
            (
                Panel(
                    "table",
                    "Members",
                    (
                        Query(
                            f"max by ({GROUPED}, member) (gantry_role_master{{@cluster}})",
                            "Role",
                            unit="none",
                            words={0: "slave", 1: "master"},
                        ),
                        Query(f"max by ({GROUPED}, member) (gantry_epoch{{@cluster}})", "Epoch", unit="none"),
                        Query(
                            f"max by ({GROUPED}, member) (gantry_replication_lag_bytes{{@cluster}})",
                            "Lag",
                            unit="bytes",
                        ),
                        Query(
                            f"max by ({GROUPED}, member) (gantry_log_end_offset_bytes{{@cluster}}"
                            " - gantry_log_start_offset_bytes{@cluster})",
                            "Log",
                            unit="bytes",
                        ),
                        Query(
                            f"min by ({GROUPED}, member) (gantry_disk_free_bytes{{@cluster}}"
                            " / gantry_disk_size_bytes{@cluster})",
                            "Disk free",
                            unit="percent",
                            steps=((None, BAD), (0.1, WARNING), (0.25, GOOD)),
                        ),
                        Query(
                            f"max by ({GROUPED}, member) (gantry_uptime_seconds{{@cluster}})", "Up for", unit="seconds"
                        ),
                    ),
                    width=24,
                    height=8,
                    labels={"namespace": "Namespace", "cluster": "Cluster", "group": "Group", "member": "Member"},
                    text="One line a member.",
                ),
            ),
        ),
        Row(
            "What may become a problem",
            (
                graph(
                    "Unread messages",
                    "messages",
                    Query(
                        "topk(10, sum by (namespace, cluster, consumer_group) (rocketmq_consumer_lag_messages{@user}))",
                        "{{consumer_group}}",
                    ),
                    text="The ten consumer groups with the most messages that are not committed.",
                ),
                graph(
                    "Free disk",
                    "bytes",
                    Query("gantry_disk_free_bytes{@cluster}", MEMBER),
                    text="Free bytes of the disks that hold the logs.",
                ),
                graph(
                    "Event loop lag, p99",
                    "seconds",
                    Query(
                        f"histogram_quantile(0.99, sum by ({GROUPED}, member, le) "
                        f"(rate(gantry_event_loop_lag_seconds_bucket{{@cluster}}[{RATE}])))",
                        MEMBER,
                    ),
                    text="How late a timer of the event loop runs. All clients of a broker wait for its event loop.",
                ),
            ),
        ),
        Row(
            "Processes",
            (
                graph(
                    "CPU",
                    "cores",
                    Query(of_members(f"rate(process_cpu_seconds_total[{RATE}])").replace("@group", "@cluster"), MEMBER),
                    text="CPU time of each broker; 1 is a whole core.",
                ),
                graph(
                    "Memory",
                    "bytes",
                    Query(of_members("process_resident_memory_bytes").replace("@group", "@cluster"), MEMBER),
                    text="Resident memory of each broker.",
                ),
                graph(
                    "Connections",
                    "short",
                    Query("sum(gantry_connections{@cluster})", "brokers", IN),
                    Query('sum(gantry_namesrv_connections{namespace=~"$namespace"})', "NameServers", OUT),
                    text="Open connections of clients and members.",
                ),
            ),
        ),
    ),
)

REPLICATION: Final = Board(
    "gantry-group",
    "Gantry / Group and replication",
    "The members of broker groups: who leads, who is in sync, how fast the log is copied and written.",
    (*CLUSTER, GROUP),
    (
        Row(
            "",
            (
                stat(
                    "Groups without a master",
                    f"count(max by ({GROUPED}) (gantry_role_master{{@group}}) == 0) or vector(0)",
                    "Broker groups that no member leads.",
                    steps=ANY_IS_BAD,
                    words=NONE,
                    decimals=0,
                ),
                count(
                    "Masters that refuse",
                    "count(gantry_writable{@group} == 0 and gantry_role_master{@group} == 1) or vector(0)",
                    "Masters that take no sends: the in-sync set is below its minimum, the disk is full, or it hands over.",
                ),
                stat(
                    "Smallest in-sync set",
                    "min(gantry_in_sync_members{@group} and gantry_role_master{@group} == 1)",
                    "Members whose acknowledgement a SEND_OK waits for, in the group with the fewest.",
                    steps=((None, BAD), (2, GOOD)),
                    decimals=0,
                ),
                stat(
                    "Largest lag",
                    "max(gantry_replication_lag_bytes{@group})",
                    "Bytes that a slave lacks of its master's log.",
                    unit="bytes",
                    steps=((None, GOOD), (16 * 2**20, WARNING), (64 * 2**20, BAD)),
                ),
                stat(
                    "Epochs in an hour",
                    f"max(max by ({GROUPED}) (gantry_epoch{{@group}}) - on ({GROUPED}) "
                    f"min by ({GROUPED}) (min_over_time(gantry_epoch{{@group}}[1h])))",
                    "New masters in the last hour, planned ones too, in the group with the most.",
                    steps=((None, GOOD), (4, WARNING), (10, BAD)),
                    words=NONE,
                    decimals=0,
                ),
                count(
                    "Damaged places",
                    "sum(gantry_log_damaged_places{@group})",
                    "Damaged places of logs that await repair from another member.",
                ),
                stat(
                    "Disk full in",
                    "min(gantry_disk_full_forecast_seconds{@group})",
                    "The first member whose disk is full at the pace of the last hour.",
                    unit="seconds",
                    steps=FORECAST_STEPS,
                    words=NOT_IN_TIME,
                    decimals=1,
                ),
                stat(
                    "Longest hold",
                    "max(gantry_event_loop_longest_hold_seconds{@group})",
                    "The longest time that a broker's event loop was held, since its start.",
                    unit="seconds",
                    steps=((None, GOOD), (0.5, WARNING), (2, BAD)),
                ),
            ),
        ),
        Row(
            "Replication",
            (
                graph(
                    "Replication lag",
                    "bytes",
                    Query("gantry_replication_lag_bytes{@group}", MEMBER),
                    text="Bytes that a slave lacks of its master's log.",
                ),
                graph(
                    "Not acknowledged by followers",
                    "bytes",
                    Query("gantry_follower_lag_bytes{@group}", "{{cluster}} {{group}}-{{follower}}"),
                    text="As the master sees it: bytes of its log that a follower has not acknowledged.",
                ),
                latency(
                    "Replication latency",
                    "gantry_replication_latency_seconds",
                    "@group",
                    "From the append to the master's log until the record is confirmed.",
                ),
                graph(
                    "In-sync set",
                    "short",
                    Query(
                        "gantry_in_sync_members{@group} and gantry_role_master{@group} == 1", "{{cluster}} {{group}}"
                    ),
                    text="Size of the recorded in-sync set, as the master knows it.",
                    decimals=0,
                ),
                graph(
                    "Epoch",
                    "short",
                    Query(f"max by ({GROUPED}) (gantry_epoch{{@group}})", "{{cluster}} {{group}}"),
                    text="Each step is a new master.",
                    decimals=0,
                ),
                graph(
                    "Who leads",
                    "short",
                    Query("gantry_role_master{@group}", MEMBER),
                    text="1 on the master of the group.",
                    decimals=0,
                ),
            ),
        ),
        Row(
            "Log and disk",
            (
                graph(
                    "Growth of the log",
                    "bytes/s",
                    Query(f"rate(gantry_log_end_offset_bytes{{@group}}[{RATE}])", MEMBER),
                    text="Bytes appended to each member's log.",
                ),
                latency("Append latency", "gantry_append_latency_seconds", "@group", "Appends to the log, by message."),
                latency("Flush latency", "gantry_flush_latency_seconds", "@group", "Each fsync of the log."),
                graph(
                    "Not on disk",
                    "bytes",
                    Query("gantry_log_end_offset_bytes{@group} - gantry_log_flushed_offset_bytes{@group}", MEMBER),
                    text="Bytes of the log after the last fsync.",
                ),
                graph(
                    "Not confirmed",
                    "bytes",
                    Query("gantry_log_end_offset_bytes{@group} - gantry_log_confirmed_offset_bytes{@group}", MEMBER),
                    text="Bytes at the end of the log that no consumer may see yet.",
                ),
                graph(
                    "Free disk",
                    "percent",
                    Query("gantry_disk_free_bytes{@group} / gantry_disk_size_bytes{@group}", MEMBER),
                    text="Share of the disk that is free.",
                ),
            ),
        ),
        Row(
            "Input and event loop",
            (
                graph(
                    "Time that the event loop is held",
                    "percent",
                    Query(f"rate(gantry_event_loop_hold_seconds_total{{@group}}[{RATE}])", MEMBER),
                    text="Share of the time in holds of more than 50 ms.",
                ),
                graph(
                    "Refused input",
                    "per second",
                    Query(
                        f"sum(rate(gantry_refused_values_total{{@group}}[{RATE}])) or vector(0)", "impossible values"
                    ),
                    Query(
                        f"sum(rate(gantry_member_handshakes_failed_total{{@group}}[{RATE}])) or vector(0)",
                        "handshakes of members",
                    ),
                    Query(f"sum(rate(gantry_http_refused_total{{@group}}[{RATE}])) or vector(0)", "HTTP"),
                    Query(f"sum(rate(gantry_access_refused_total{{@group}}[{RATE}])) or vector(0)", "access"),
                    Query(f"sum(rate(gantry_connections_refused_total{{@group}}[{RATE}])) or vector(0)", "connections"),
                    text="What brokers refused, by the place that refused it.",
                ),
                graph(
                    "Pulls that wait",
                    "short",
                    Query("gantry_held_pulls{@group}", MEMBER),
                    text="Pulls that wait for messages.",
                ),
            ),
        ),
    ),
)

BY_TOPIC: Final = "namespace, cluster, topic"
TOPICS: Final = Board(
    "gantry-topics",
    "Gantry / Topics",
    "What producers send, by topic: rates, bytes, sizes, latency, and what was refused.",
    (*CLUSTER, TOPIC),
    (
        Row(
            "",
            (
                stat(
                    "Refused sends",
                    f"sum(rate(gantry_sends_refused_total{{@cluster}}[{RATE}])) or vector(0)",
                    "Sends that were not stored or not acknowledged, per second, of all topics.",
                    unit="per second",
                    steps=((None, GOOD), (0.01, WARNING), (1, BAD)),
                    words=NONE,
                    width=4,
                ),
                stat(
                    "Send latency, p99",
                    f"histogram_quantile(0.99, sum by (le) (rate(gantry_send_latency_seconds_bucket{{@cluster}}[{RATE}])))",
                    "From the arrival of a send until its answer is written, of all topics.",
                    unit="seconds",
                    steps=((None, GOOD), (0.25, WARNING), (1, BAD)),
                    width=4,
                ),
                stat(
                    "Messages in",
                    f"sum(rate(rocketmq_messages_in_total{{@topic}}[{RATE}]))",
                    "Messages stored for producers.",
                    unit="messages/s",
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Bytes in",
                    f"sum(rate(rocketmq_throughput_in_total{{@topic}}[{RATE}]))",
                    "Their stored bytes.",
                    unit="bytes/s",
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Mean size",
                    f"sum(rate(rocketmq_message_size_sum{{@topic}}[{RATE}])) "
                    f"/ sum(rate(rocketmq_message_size_count{{@topic}}[{RATE}]))",
                    "Stored bytes of a message.",
                    unit="bytes",
                    width=4,
                    decimals=0,
                ),
                stat(
                    "Topics",
                    f"count(count by ({BY_TOPIC}) (rocketmq_messages_in_total{{@topic}}))",
                    "Topics to which a message was sent since the start of the brokers.",
                    width=4,
                    decimals=0,
                ),
            ),
        ),
        Row(
            "By topic",
            (
                graph(
                    "Messages in",
                    "messages/s",
                    Query(
                        f"topk(10, sum by ({BY_TOPIC}) (rate(rocketmq_messages_in_total{{@topic}}[{RATE}])))",
                        "{{topic}}",
                    ),
                    text="The ten busiest topics.",
                    stacked=True,
                ),
                graph(
                    "Bytes in",
                    "bytes/s",
                    Query(
                        f"topk(10, sum by ({BY_TOPIC}) (rate(rocketmq_throughput_in_total{{@topic}}[{RATE}])))",
                        "{{topic}}",
                    ),
                    text="The ten topics with the most bytes.",
                    stacked=True,
                ),
                graph(
                    "Messages out",
                    "messages/s",
                    Query(
                        f"topk(10, sum by ({BY_TOPIC}) (rate(rocketmq_messages_out_total{{@topic}}[{RATE}])))",
                        "{{topic}}",
                    ),
                    text="Given to consumers; each group counts.",
                    stacked=True,
                ),
                Panel(
                    "table",
                    "Topics",
                    (
                        Query(
                            f"sum by ({BY_TOPIC}) (rate(rocketmq_messages_in_total{{@topic}}[{RATE}]))",
                            "In",
                            unit="messages/s",
                        ),
                        Query(
                            f"sum by ({BY_TOPIC}) (rate(rocketmq_throughput_in_total{{@topic}}[{RATE}]))",
                            "Bytes in",
                            unit="bytes/s",
                        ),
                        Query(
                            f"sum by ({BY_TOPIC}) (rate(rocketmq_messages_out_total{{@topic}}[{RATE}]))",
                            "Out",
                            unit="messages/s",
                        ),
                        Query(
                            f"sum by ({BY_TOPIC}) (rocketmq_consumer_lag_messages{{@topic}})", "Unread", unit="messages"
                        ),
                        Query(
                            f"max by ({BY_TOPIC}) (rocketmq_consumer_lag_latency_milliseconds{{@topic}}) / 1000",
                            "Oldest unread",
                            unit="seconds",
                            steps=((None, GOOD), (600, WARNING), (3600, BAD)),
                        ),
                    ),
                    width=24,
                    height=8,
                    labels={"namespace": "Namespace", "cluster": "Cluster", "topic": "Topic"},
                    text="One line a topic; unread is the sum over its consumer groups.",
                ),
            ),
        ),
        Row(
            "Size, latency and refusals",
            (
                graph(
                    "Message size",
                    "bytes",
                    *percentiles("rocketmq_message_size", "@topic"),
                    text="Stored bytes of a message, by RocketMQ's size classes.",
                ),
                latency(
                    "Send latency",
                    "gantry_send_latency_seconds",
                    "@cluster",
                    "From the arrival of a send until its answer is written, of all topics.",
                ),
                graph(
                    "Refused sends",
                    "per second",
                    Query(f"sum by (code) (rate(gantry_sends_refused_total{{@cluster}}[{RATE}]))", "code {{code}}"),
                    text="By the answer's code: docs/metrics.md.",
                    empty="none was refused",
                    may_be_empty="a code has a series once a send was refused with it",
                ),
            ),
        ),
        Row(
            "Clients",
            (
                graph(
                    "Producers",
                    "short",
                    Query(
                        "sum by (language, version) (rocketmq_producer_connections{@cluster})",
                        "{{language}} {{version}}",
                    ),
                    text="Connections by language and version of the client.",
                    decimals=0,
                ),
                graph(
                    "Requests",
                    "per second",
                    Query(
                        f"topk(10, sum by (request_code) (rate(rocketmq_rpc_latency_milliseconds_count{{@cluster}}[{RATE}])))",
                        "{{request_code}}",
                    ),
                    text="The ten most frequent requests of clients.",
                ),
                graph(
                    "Request latency, p99",
                    "milliseconds",
                    Query(
                        "topk(10, histogram_quantile(0.99, sum by (request_code, le) "
                        f'(rate(rocketmq_rpc_latency_milliseconds_bucket{{@cluster,is_long_polling="false"}}[{RATE}]))))',
                        "{{request_code}}",
                    ),
                    text="By request, without pulls that waited for messages.",
                ),
            ),
        ),
    ),
)

BY_GROUP: Final = "namespace, cluster, consumer_group"
BY_BOTH: Final = "namespace, cluster, topic, consumer_group"
LAG: Final = f"sum by ({BY_BOTH}) (rocketmq_consumer_lag_messages{{@consumer}})"
CONSUMERS: Final = Board(
    "gantry-consumers",
    "Gantry / Consumer groups",
    "How far consumer groups are behind, whether they catch up, and what they could not process.",
    (*CLUSTER, TOPIC, CONSUMER),
    (
        Row(
            "",
            (
                stat(
                    "Oldest unread message",
                    "max(rocketmq_consumer_lag_latency_milliseconds{@consumer}) / 1000",
                    "Age of the oldest message that a group has not committed.",
                    unit="seconds",
                    steps=((None, GOOD), (600, WARNING), (3600, BAD)),
                    words=NONE,
                    width=4,
                    decimals=0,
                    empty=FEW,
                ),
                count(
                    "Groups that fall behind",
                    f"count(deriv({LAG}[15m:1m]) > 0 and {LAG} > 1000) or vector(0)",
                    "Topics of groups whose lag is above 1,000 messages and has grown over 15 minutes.",
                    bad=False,
                    width=4,
                ),
                count(
                    "Lag without a consumer",
                    f"count(sum by ({BY_GROUP}) (rocketmq_consumer_lag_messages{{@consumer}}) > 0 unless on ({BY_GROUP}) "
                    f"sum by ({BY_GROUP}) (rocketmq_consumer_connections{{@reader}}) > 0) or vector(0)",
                    "Groups with unread messages and no connected client.",
                    bad=False,
                    width=4,
                ),
                count(
                    "Dead letters",
                    'sum(gantry_dead_letters{@cluster,consumer_group=~"$consumer_group"}) or vector(0)',
                    "Messages in dead letter topics.",
                    bad=False,
                    width=4,
                ),
                stat(
                    "Unread messages",
                    "sum(rocketmq_consumer_lag_messages{@consumer})",
                    "Messages that are not committed, of all chosen groups.",
                    unit="messages",
                    width=4,
                    empty=FEW,
                ),
                stat(
                    "Groups",
                    f"count(count by ({BY_GROUP}) (rocketmq_consumer_lag_messages{{@consumer}}))",
                    "Groups with a committed offset.",
                    width=4,
                    decimals=0,
                    empty=FEW,
                ),
            ),
        ),
        Row(
            "Lag",
            (
                graph(
                    "Unread messages",
                    "messages",
                    Query(f"topk(10, {LAG})", "{{consumer_group}}, {{topic}}"),
                    text="Messages that the group has not committed.",
                ),
                graph(
                    "Age of the oldest unread message",
                    "seconds",
                    Query(
                        f"topk(10, max by ({BY_BOTH}) (rocketmq_consumer_lag_latency_milliseconds{{@consumer}}) / 1000)",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="0: there is no unread message.",
                ),
                graph(
                    "Messages out",
                    "messages/s",
                    Query(
                        f"topk(10, sum by ({BY_BOTH}) (rate(rocketmq_messages_out_total{{@consumer}}[{RATE}])))",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Messages given to consumers.",
                ),
                Panel(
                    "table",
                    "Groups",
                    (
                        Query(LAG, "Unread", unit="messages"),
                        Query(
                            f"sum by ({BY_BOTH}) (rocketmq_consumer_inflight_messages{{@consumer}})",
                            "In flight",
                            unit="messages",
                        ),
                        Query(
                            f"sum by ({BY_BOTH}) (rocketmq_consumer_ready_messages{{@consumer}})",
                            "Not pulled",
                            unit="messages",
                        ),
                        Query(
                            f"max by ({BY_BOTH}) (rocketmq_consumer_lag_latency_milliseconds{{@consumer}}) / 1000",
                            "Oldest unread",
                            unit="seconds",
                            steps=((None, GOOD), (600, WARNING), (3600, BAD)),
                        ),
                        Query(
                            f"sum by ({BY_BOTH}) (rate(rocketmq_messages_out_total{{@consumer}}[{RATE}]))",
                            "Out",
                            unit="messages/s",
                        ),
                    ),
                    width=24,
                    height=8,
                    labels={
                        "namespace": "Namespace",
                        "cluster": "Cluster",
                        "consumer_group": "Consumer group",
                        "topic": "Topic",
                    },
                    text="One line a topic of a group.",
                ),
            ),
        ),
        Row(
            "On the way",
            (
                graph(
                    "In flight",
                    "messages",
                    Query(
                        f"topk(10, sum by ({BY_BOTH}) (rocketmq_consumer_inflight_messages{{@consumer}}))",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Messages that were pulled and are not committed.",
                ),
                graph(
                    "Not pulled",
                    "messages",
                    Query(
                        f"topk(10, sum by ({BY_BOTH}) (rocketmq_consumer_ready_messages{{@consumer}}))",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Messages that no consumer of the group has pulled.",
                ),
                graph(
                    "Waiting time before the pull",
                    "seconds",
                    Query(
                        f"topk(10, max by ({BY_BOTH}) (rocketmq_consumer_queueing_latency_milliseconds{{@consumer}}) / 1000)",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Age of the oldest message that is not pulled.",
                ),
            ),
        ),
        Row(
            "Failures and clients",
            (
                graph(
                    "Moved to dead letters",
                    "per second",
                    Query(
                        f"sum by ({BY_GROUP}) (rate(rocketmq_send_to_dlq_messages_total{{@consumer}}[{RATE}]))",
                        "{{consumer_group}}",
                        BAD,
                    ),
                    text="Messages that failed more often than their group allows.",
                    empty="none",
                    may_be_empty="a group has a series once it has a dead letter",
                ),
                graph(
                    "Dead letters",
                    "messages",
                    Query(
                        f'sum by ({BY_GROUP}) (gantry_dead_letters{{@cluster,consumer_group=~"$consumer_group"}})',
                        "{{consumer_group}}",
                    ),
                    text="Messages in each group's dead letter topic.",
                    empty="none",
                    may_be_empty="a group has a series once it has a dead letter",
                ),
                graph(
                    "Consumers",
                    "short",
                    Query(
                        "sum by (consumer_group, language, version) (rocketmq_consumer_connections{@reader})",
                        "{{consumer_group}}, {{language}} {{version}}",
                    ),
                    text="Connections by language and version of the client.",
                    decimals=0,
                ),
                latency(
                    "Pull latency",
                    "gantry_pull_latency_seconds",
                    "@cluster",
                    "From the pull to its answer, without the time that it waited for messages.",
                ),
                graph(
                    "Retries that wait",
                    "messages",
                    Query(
                        f'sum by ({BY_GROUP}) (rocketmq_consumer_lag_messages{{@reader,is_retry="true"}})',
                        "{{consumer_group}}",
                    ),
                    text="Unread messages of retry topics: deliveries that failed and come again.",
                    empty="none",
                    may_be_empty="a group has a retry topic once a delivery failed",
                ),
            ),
        ),
    ),
)

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
                    may_be_empty="watches exist beside a real API server only",
                ),
                stat(
                    "Last change of a master",
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
                    height=8,
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
                    height=8,
                    labels={"namespace": "Namespace", "cluster": "Cluster", "condition": "Condition"},
                    text="The conditions of each BrokerCluster.",
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                graph(
                    "Changes of a master in an hour",
                    "short",
                    Query(
                        f"sum by (reason, planned) (increase(gantry_operator_failovers_total{{{C}}}[1h]))",
                        "{{reason}}, planned {{planned}}",
                    ),
                    text="By reason. A planned change is a switchover.",
                    empty="none yet",
                    may_be_empty="a reason has a series once a master changed for it",
                ),
                graph(
                    "Duration of a change, p95",
                    "seconds",
                    Query(
                        "histogram_quantile(0.95, sum by (reason, le) "
                        f"(increase(gantry_operator_failover_duration_seconds_bucket{{{C}}}[1h])))",
                        "{{reason}}",
                    ),
                    text="From the detection of a lost master until the new one has taken the role.",
                    empty="none yet",
                    may_be_empty="a reason has a series once a master changed for it",
                ),
                graph(
                    "Changes of in-sync sets in an hour",
                    "short",
                    Query(
                        f"sum by (change) (increase(gantry_operator_in_sync_changes_total{{{C}}}[1h]))", "{{change}}"
                    ),
                    text="A member that left the set, or joined it.",
                    empty="none yet",
                    may_be_empty="a change has a series once it happened",
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
                        f'sum by (verb, resource, code) (rate(gantry_operator_api_requests_total{{code!~"2.."}}[{RATE}]))',
                        "{{verb}} {{resource}} {{code}}",
                    ),
                    text="Requests without an answer, or with another code than 2xx. 404 and 409 may be part of the work.",
                    empty="none",
                    may_be_empty="a code has a series once the API server answered with it",
                ),
                graph(
                    "Age of watches",
                    "seconds",
                    Query("max by (kind) (gantry_operator_watch_age_seconds)", "{{kind}}"),
                    text="Time since the last data of a watch.",
                    may_be_empty="watches exist beside a real API server only",
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

ANALYTICS: Final = Board(
    "gantry-analytics",
    "Gantry / Analytics",
    "How the logs grow, which topics cause it, what compaction would save, and when disks are full.",
    (*CLUSTER, TOPIC),
    (
        Row(
            "",
            (
                stat(
                    "Last report",
                    "min(gantry_operator_report_failed{@cluster})",
                    "The result of the last run of spec.analytics.",
                    unit="none",
                    steps=((None, GOOD), (1, BAD)),
                    words={0: "succeeded", 1: "failed"},
                    width=4,
                    empty="no report",
                    may_be_empty="local clusters have no schedule of reports",
                ),
                stat(
                    "Age of the report",
                    "time() - min(gantry_operator_report_last_success_timestamp_seconds{@cluster})",
                    "Time since the end of the last good run.",
                    unit="seconds",
                    steps=((None, GOOD), (2 * DAY, WARNING), (7 * DAY, BAD)),
                    width=4,
                    decimals=0,
                    empty="no report",
                ),
                stat(
                    "Compaction would save",
                    "sum(gantry_operator_report_saved_bytes{@cluster})",
                    "The three topics with the largest savings, from the last good run.",
                    unit="bytes",
                    width=4,
                    decimals=1,
                    empty="no report",
                ),
                stat(
                    "Disk full in",
                    "min(gantry_disk_full_forecast_seconds{@cluster})",
                    "The first member whose disk is full at the pace of the last hour.",
                    unit="seconds",
                    steps=FORECAST_STEPS,
                    words=NOT_IN_TIME,
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Bytes of the logs",
                    f"sum(max by ({GROUPED}) (gantry_log_end_offset_bytes{{@cluster}}"
                    " - gantry_log_start_offset_bytes{@cluster}))",
                    "One copy of each group's log.",
                    unit="bytes",
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Growth in a day",
                    "sum(increase(rocketmq_throughput_in_total{@topic}[1d]))",
                    "Bytes stored for producers in the last 24 hours.",
                    unit="bytes",
                    width=4,
                    decimals=1,
                ),
            ),
        ),
        Row(
            "Growth",
            (
                graph(
                    "Size of the logs",
                    "bytes",
                    Query(
                        f"max by ({GROUPED}) (gantry_log_end_offset_bytes{{@cluster}} - gantry_log_start_offset_bytes{{@cluster}})",
                        "{{cluster}} {{group}}",
                    ),
                    text="One copy of each group's log. Retention removes old segments.",
                ),
                graph(
                    "Growth by topic",
                    "bytes/s",
                    Query(
                        f"topk(10, sum by ({BY_TOPIC}) (rate(rocketmq_throughput_in_total{{@topic}}[{RATE}])))",
                        "{{topic}}",
                    ),
                    text="The ten topics that grow fastest.",
                    stacked=True,
                ),
                graph(
                    "Disk",
                    "percent",
                    Query("1 - gantry_disk_free_bytes{@cluster} / gantry_disk_size_bytes{@cluster}", MEMBER),
                    text="Share of each disk that is in use, by whatever uses it.",
                ),
            ),
        ),
        Row(
            "Topics",
            (
                Panel(
                    "bars",
                    "Bytes in the last day",
                    (
                        Query(
                            f"topk(10, sum by ({BY_TOPIC}) (increase(rocketmq_throughput_in_total{{@topic}}[1d])))",
                            "{{topic}}",
                            IN,
                        ),
                    ),
                    "bytes",
                    text="The ten topics with the most stored bytes.",
                ),
                Panel(
                    "bars",
                    "Messages in the last day",
                    (
                        Query(
                            f"topk(10, sum by ({BY_TOPIC}) (increase(rocketmq_messages_in_total{{@topic}}[1d])))",
                            "{{topic}}",
                            IN,
                        ),
                    ),
                    "messages",
                    text="The ten topics with the most messages.",
                ),
                Panel(
                    "bars",
                    "Compaction would save",
                    (
                        Query(
                            "topk(10, max by (namespace, cluster, topic) (gantry_operator_report_saved_bytes{@cluster}))",
                            "{{topic}}",
                            OUT,
                        ),
                    ),
                    "bytes",
                    text="Topics with the largest savings, from the last good run.",
                    empty="no report",
                ),
            ),
        ),
        Row(
            "Messages and unread history",
            (
                graph(
                    "Message size",
                    "bytes",
                    *percentiles("rocketmq_message_size", "@topic"),
                    text="Stored bytes of a message, by RocketMQ's size classes.",
                ),
                graph(
                    "Oldest unread message",
                    "seconds",
                    Query(
                        f"topk(10, max by ({BY_GROUP}) (rocketmq_consumer_lag_latency_milliseconds{{@user}}) / 1000)",
                        "{{consumer_group}}",
                    ),
                    text="Retention must be longer than this.",
                ),
                graph(
                    "Report: time and bytes read",
                    "bytes",
                    Query(
                        "max by (namespace, cluster) (gantry_operator_report_scanned_bytes{@cluster})", "{{cluster}}"
                    ),
                    text="Bytes of log that the last good run read. A later run reads only new ones.",
                    empty="no report",
                ),
            ),
        ),
    ),
)

BOARDS: Final = {
    "cluster-overview": OVERVIEW,
    "group-and-replication": REPLICATION,
    "topics": TOPICS,
    "consumer-groups": CONSUMERS,
    "operator": OPERATORS,
    "analytics": ANALYTICS,
}
"""By the name of the file."""
