"""The dashboard "topics"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import BY_TOPIC, CLUSTER, NONE, RATE, TOPIC, graph, latency, percentiles, stat
from helm.dashboards.model import Board, Panel, Query, Row
from helm.dashboards.style import BAD, GOOD, WARNING

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
                    "Refused in all",
                    f"sum(rate(gantry_sends_refused_total{{@cluster}}[{RATE}])) or vector(0)",
                    "Sends that were not stored or not acknowledged, per second, of all topics.",
                    unit="per second",
                    steps=((None, GOOD), (0.01, WARNING), (1, BAD)),
                    words=NONE,
                    width=4,
                ),
                stat(
                    "Send latency, p99",
                    "histogram_quantile(0.99, "
                    f"sum by (le) (rate(gantry_send_latency_seconds_bucket{{@cluster}}[{RATE}])))",
                    "From the arrival of a send until its answer is written, of all topics.",
                    unit="seconds",
                    steps=((None, GOOD), (0.25, WARNING), (1, BAD)),
                    width=4,
                ),
                stat(
                    "In, all topics",
                    f"sum(rate(rocketmq_messages_in_total{{@topic}}[{RATE}]))",
                    "Messages stored for producers.",
                    unit="messages/s",
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Bytes, all topics",
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
                    "Active topics",
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
                            f"sum by ({BY_TOPIC}) (rocketmq_consumer_lag_messages{{@fresh}})", "Unread", unit="messages"
                        ),
                        Query(
                            f"max by ({BY_TOPIC}) (rocketmq_consumer_lag_latency_milliseconds{{@fresh}}) / 1000",
                            "Oldest unread",
                            unit="seconds",
                            steps=((None, GOOD), (600, WARNING), (3600, BAD)),
                        ),
                    ),
                    width=24,
                    height=6,
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
                        "topk(10, sum by (request_code) "
                        f"(rate(rocketmq_rpc_latency_milliseconds_count{{@cluster}}[{RATE}])))",
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
