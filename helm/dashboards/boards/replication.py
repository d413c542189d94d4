"""The dashboard "group and replication"."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.parts import (
    ANY_IS_BAD,
    CLUSTER,
    FORECAST_STEPS,
    GROUP,
    GROUPED,
    MEMBER,
    NO_ARCHIVE,
    NONE,
    NOT_IN_TIME,
    RATE,
    count,
    graph,
    latency,
    stat,
)
from helm.dashboards.model import Board, Query, Row
from helm.dashboards.style import BAD, GOOD, WARNING

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
                    "Without a master",
                    f"count(max by ({GROUPED}) (gantry_role_master{{@group}}) == 0) or vector(0)",
                    "Broker groups that no member leads.",
                    steps=ANY_IS_BAD,
                    words=NONE,
                    decimals=0,
                ),
                count(
                    "Masters that refuse",
                    "count(gantry_writable{@group} == 0 and gantry_role_master{@group} == 1) or vector(0)",
                    "Masters that take no sends: too few members are in sync, a disk is full, or they hand over.",
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
                    "New masters in 1 h",
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
                    Query(
                        f"max by ({GROUPED}, follower) (gantry_follower_lag_bytes{{@group}})",
                        "{{cluster}} {{group}}-{{follower}}",
                    ),
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
                        f"max by ({GROUPED}) (gantry_in_sync_members{{@group}} and gantry_role_master{{@group}} == 1)",
                        "{{cluster}} {{group}}",
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
            "Archive",
            (
                graph(
                    "Archive behind",
                    "seconds",
                    Query(f"min by ({GROUPED}) (gantry_archive_behind_seconds{{@group}})", "{{cluster}} {{group}}"),
                    Query("gantry_archive_interval_seconds{@group}", "interval of {{cluster}} {{group}}-{{member}}"),
                    text="How long the oldest confirmed record has waited for its upload; at a standby for its copy.",
                    empty=NO_ARCHIVE,
                ),
                graph(
                    "Uploads",
                    "bytes/s",
                    Query(f"rate(gantry_archive_uploaded_bytes_total{{@group}}[{RATE}])", MEMBER),
                    text="Bytes of objects that each member sent.",
                    empty=NO_ARCHIVE,
                ),
                graph(
                    "Size of the archive",
                    "bytes",
                    Query(f"max by ({GROUPED}) (gantry_archive_size_bytes{{@group}})", "{{cluster}} {{group}}"),
                    text="Bytes of all objects with records.",
                    empty=NO_ARCHIVE,
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
