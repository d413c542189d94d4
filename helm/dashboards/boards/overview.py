"""The dashboard "cluster overview"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import (
    ANY_IS_BAD,
    CLUSTER,
    FEW,
    FORECAST_STEPS,
    GROUPED,
    MEMBER,
    NO_PROXY,
    NONE,
    NOT_IN_TIME,
    RATE,
    count,
    graph,
    latency,
    of_members,
    stat,
)
from helm.dashboards.model import Board, Panel, Query, Row
from helm.dashboards.style import BAD, GOOD, IN, OUT, WARNING

MASTERLESS: Final = stat(
    "Without a master",
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
                    f"max by ({GROUPED}) (gantry_in_sync_members{{@cluster}} and gantry_role_master{{@cluster}} == 1)) "
                    "or vector(0)",
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
                    "Oldest unread",
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
                    "min(gantry_certificate_expiry_timestamp_seconds{@cluster}) * 1000",
                    "The first certificate of a broker that ends. The operator renews each 30 days before.",
                    unit="time",
                    empty="no TLS",
                    may_be_empty="brokers without TLS have no certificate",
                ),
                stat(
                    "Brokers up",
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
                    height=6,
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
            "gRPC proxies",
            (
                graph(
                    "Clients of the proxies",
                    "short",
                    Query("sum(gantry_proxy_connections{@cluster})", "connections", IN),
                    Query("sum(gantry_proxy_clients{@cluster}) or vector(0)", "clients", OUT),
                    text="Open connections, and clients whose settings are known.",
                    empty=NO_PROXY,
                ),
                graph(
                    "Calls of the proxies",
                    "per second",
                    Query(f"sum by (code) (rate(gantry_proxy_answers_total{{@cluster}}[{RATE}]))", "{{code}}"),
                    text="Answers a second, by code.",
                    empty="no calls",
                    may_be_empty="a code has a series once a proxy has answered with it",
                ),
                graph(
                    "Work of the proxies",
                    "short",
                    Query("sum(gantry_proxy_renewed_handles{@cluster})", "messages in work", IN),
                    Query(
                        f"sum(rate(gantry_proxy_failed_renewals_total{{@cluster}}[{RATE}]))", "failed renewals/s", OUT
                    ),
                    Query(f"sum(rate(gantry_proxy_cut_total{{@cluster}}[{RATE}]))", "ended for memory/s"),
                    text="Messages whose invisible time a proxy renews for push consumers, and what goes wrong.",
                    empty=NO_PROXY,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                graph(
                    "CPU",
                    "cores",
                    Query(of_members(f"rate(process_cpu_seconds_total[{RATE}])"), MEMBER),
                    text="CPU time of each broker; 1 is a whole core.",
                ),
                graph(
                    "Memory",
                    "bytes",
                    Query(of_members("process_resident_memory_bytes"), MEMBER),
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
