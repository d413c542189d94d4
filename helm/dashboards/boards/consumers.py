"""The dashboard "consumer groups"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import (
    BY_BOTH,
    BY_GROUP,
    CLUSTER,
    CONSUMER,
    FEW,
    NONE,
    RATE,
    TOPIC,
    count,
    graph,
    latency,
    stat,
)
from helm.dashboards.model import Board, Panel, Query, Row
from helm.dashboards.style import BAD, GOOD, WARNING

LAG: Final = f"sum by ({BY_BOTH}) (rocketmq_consumer_lag_messages{{@own}})"
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
                    "Oldest unread",
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
                    f"count(sum by ({BY_GROUP}) (rocketmq_consumer_lag_messages{{@consumer}}) > 0 "
                    f"unless on ({BY_GROUP}) "
                    f"sum by ({BY_GROUP}) (rocketmq_consumer_connections{{@reader}}) > 0) or vector(0)",
                    "Groups with unread messages and no connected client.",
                    bad=False,
                    width=4,
                ),
                count(
                    "Dead letters in all",
                    'sum(gantry_dead_letters{@cluster,consumer_group=~"$consumer_group"}) or vector(0)',
                    "Messages in dead letter topics.",
                    bad=False,
                    width=4,
                ),
                stat(
                    "Unread in all",
                    "sum(rocketmq_consumer_lag_messages{@consumer})",
                    "Messages that are not committed, of all chosen groups.",
                    unit="messages",
                    width=4,
                    empty=FEW,
                ),
                stat(
                    "Consumer groups",
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
                        f"topk(10, max by ({BY_BOTH}) (rocketmq_consumer_lag_latency_milliseconds{{@own}}) / 1000)",
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
                            f"sum by ({BY_BOTH}) (rocketmq_consumer_inflight_messages{{@own}})",
                            "In flight",
                            unit="messages",
                        ),
                        Query(
                            f"sum by ({BY_BOTH}) (rocketmq_consumer_ready_messages{{@own}})",
                            "Not pulled",
                            unit="messages",
                        ),
                        Query(
                            f"max by ({BY_BOTH}) (rocketmq_consumer_lag_latency_milliseconds{{@own}}) / 1000",
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
                        f"topk(10, sum by ({BY_BOTH}) (rocketmq_consumer_inflight_messages{{@own}}))",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Messages that were pulled and are not committed.",
                ),
                graph(
                    "Not pulled",
                    "messages",
                    Query(
                        f"topk(10, sum by ({BY_BOTH}) (rocketmq_consumer_ready_messages{{@own}}))",
                        "{{consumer_group}}, {{topic}}",
                    ),
                    text="Messages that no consumer of the group has pulled.",
                ),
                graph(
                    "Waiting time before the pull",
                    "seconds",
                    Query(
                        f"topk(10, max by ({BY_BOTH}) "
                        "(rocketmq_consumer_queueing_latency_milliseconds{@own}) / 1000)",
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
                    "From the pull to its answer; of one that waited for messages, from their arrival.",
                    width=12,
                ),
                graph(
                    "Retries that wait",
                    "messages",
                    Query(
                        f'sum by ({BY_GROUP}) (rocketmq_consumer_lag_messages{{@reader,is_retry="true"}})',
                        "{{consumer_group}}",
                    ),
                    text="Unread messages of retry topics: deliveries that failed and come again.",
                    width=12,
                    empty="none",
                ),
            ),
        ),
    ),
)
