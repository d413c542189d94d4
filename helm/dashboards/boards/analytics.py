"""The dashboard "analytics"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import (
    BY_GROUP,
    BY_TOPIC,
    CLUSTER,
    FORECAST_STEPS,
    GROUPED,
    MEMBER,
    NOT_IN_TIME,
    RATE,
    TOPIC,
    graph,
    percentiles,
    stat,
)
from helm.dashboards.model import Board, Panel, Query, Row
from helm.dashboards.style import BAD, DAY, GOOD, IN, OUT, WARNING

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
                    "Possible savings",
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
                        f"max by ({GROUPED}) "
                        "(gantry_log_end_offset_bytes{@cluster} - gantry_log_start_offset_bytes{@cluster})",
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
                    height=6,
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
                    height=6,
                ),
                Panel(
                    "bars",
                    "Compaction would save",
                    (
                        Query(
                            "topk(10, max by (namespace, cluster, topic) "
                            "(gantry_operator_report_saved_bytes{@cluster}))",
                            "{{topic}}",
                            OUT,
                        ),
                    ),
                    "bytes",
                    text="Topics with the largest savings, from the last good run.",
                    height=6,
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
                    "Oldest unread",
                    "seconds",
                    Query(
                        f"topk(10, max by ({BY_GROUP}) (rocketmq_consumer_lag_latency_milliseconds{{@user}}) / 1000)",
                        "{{consumer_group}}",
                    ),
                    text="Retention must be longer than this.",
                ),
                graph(
                    "Read by the last report",
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
