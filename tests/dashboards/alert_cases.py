"""For each alert: series with which it fires, and similar ones with which it does not.

Values are in promtool's notation, one a minute: `0+5x40` is 0, 5, 10, ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

C: Final = 'namespace="shop",cluster="demo"'
G: Final = f'{C},group="a"'
LAG: Final = f'{C},topic="Orders",consumer_group="billing",is_system="false"'
SYSTEM: Final = LAG.replace("false", "true")
Series = dict[str, str]
DAY: Final = 86_400


@dataclass(frozen=True)
class Case:
    """`fires` and `quiet`: values by series. `labels`: of the alert, besides `severity`. `at`: when, in minutes."""

    severity: str
    labels: dict[str, str]
    fires: Series
    quiet: tuple[Series, ...]
    at: int = 60


CLUSTER: Final = {"namespace": "shop", "cluster": "demo"}
GROUP: Final = CLUSTER | {"group": "a"}
MEMBER: Final = GROUP | {"member": "1"}
READER: Final = CLUSTER | {"topic": "Orders", "consumer_group": "billing"}

CASES: Final = {
    "GantryClusterUnavailable": Case(
        "critical", CLUSTER,
        {f"gantry_operator_cluster_available{{{C}}}": "0x60"},
        ({f"gantry_operator_cluster_available{{{C}}}": "0x59 1x5"}, {}),
    ),
    "GantryMasterMissing": Case(
        "critical", GROUP,
        {f"gantry_operator_group_master{{{G}}}": "1x58 0x5"},
        (
            {f"gantry_operator_group_master{{{G}}}": "1x60", f'gantry_role_master{{{G},member="0"}}': "1x60",
             f'gantry_role_master{{{G},member="1"}}': "0x60"},
        ),
    ),
    "GantryMasterRefusesSends": Case(
        "critical", MEMBER,
        {f'gantry_writable{{{G},member="1"}}': "0x60", f'gantry_role_master{{{G},member="1"}}': "1x60"},
        (
            # A slave never takes sends.
            {f'gantry_writable{{{G},member="1"}}': "0x60", f'gantry_role_master{{{G},member="1"}}': "0x60"},
            {f'gantry_writable{{{G},member="1"}}': "1x60", f'gantry_role_master{{{G},member="1"}}': "1x60"},
        ),
    ),
    "GantryUnderReplicated": Case(
        "warning", GROUP,
        {f"gantry_operator_in_sync_members{{{G}}}": "2x60", f"gantry_operator_members{{{G}}}": "3x60"},
        (
            {f"gantry_operator_in_sync_members{{{G}}}": "3x60", f"gantry_operator_members{{{G}}}": "3x60"},
            {f"gantry_operator_in_sync_members{{{G}}}": "3x57 2x3", f"gantry_operator_members{{{G}}}": "3x60"},
        ),
    ),
    "GantryMemberNotReady": Case(
        "warning", GROUP,
        {f"gantry_operator_members_degraded{{{G}}}": "1x60"},
        (
            {f"gantry_operator_members_degraded{{{G}}}": "0x60"},
            {f"gantry_operator_members_degraded{{{G}}}": "0x57 1x5"},
        ),
    ),
    "GantryReplicationLag": Case(
        "warning", MEMBER,
        {f'gantry_replication_lag_bytes{{{G},member="1"}}': "70000000x60"},
        ({f'gantry_replication_lag_bytes{{{G},member="1"}}': "67000000x60"},),
    ),
    "GantryFailoverLoop": Case(
        "critical", GROUP,
        {f'gantry_operator_failovers_total{{{G},planned="false",reason="failover"}}': "0x20 1x10 2x10 4x40"},
        (
            {f'gantry_operator_failovers_total{{{G},planned="false",reason="failover"}}': "0x20 1x40"},
            {f'gantry_operator_failovers_total{{{G},planned="true",reason="handover"}}': "0+1x60"},
        ),
    ),
    "GantryNameServerMissing": Case(
        "warning", CLUSTER,
        {f"gantry_operator_name_servers_ready{{{C}}}": "1x60", f"gantry_operator_name_servers{{{C}}}": "2x60"},
        ({f"gantry_operator_name_servers_ready{{{C}}}": "2x60", f"gantry_operator_name_servers{{{C}}}": "2x60"},),
    ),
    "GantryProxyMissing": Case(
        "warning", CLUSTER,
        {f"gantry_operator_proxies_ready{{{C}}}": "1x60", f"gantry_operator_proxies{{{C}}}": "2x60"},
        (
            {f"gantry_operator_proxies_ready{{{C}}}": "2x60", f"gantry_operator_proxies{{{C}}}": "2x60"},
            # One more is on its way.
            {f"gantry_operator_proxies_ready{{{C}}}": "2x60", f"gantry_operator_proxies{{{C}}}": "2x57 3x3"},
        ),
    ),
    "GantryCertificateExpiring": Case(
        "warning", CLUSTER | {"secret": "demo-a-tls"},
        {f'gantry_operator_certificate_expiry_timestamp_seconds{{{C},secret="demo-a-tls"}}': f"{13 * DAY}x90"},
        ({f'gantry_operator_certificate_expiry_timestamp_seconds{{{C},secret="demo-a-tls"}}': f"{15 * DAY}x90"},),
        at=90,
    ),
    "GantrySendsRefused": Case(
        "warning", GROUP,
        {f'gantry_sends_refused_total{{{G},code="2"}}': "0+6x60",
         f"gantry_send_latency_seconds_count{{{G}}}": "0+300x60"},
        (
            {f'gantry_sends_refused_total{{{G},code="2"}}': "0+2x60",
             f"gantry_send_latency_seconds_count{{{G}}}": "0+300x60"},
            {f'gantry_sends_refused_total{{{G},code="2"}}': "50x60",
             f"gantry_send_latency_seconds_count{{{G}}}": "9x60"},
        ),
    ),
    "GantryProxyRefuses": Case(
        "warning", CLUSTER,
        {f'gantry_proxy_refused_total{{{C},reason="connections"}}': "0+30x60",
         f"gantry_proxy_cut_total{{{C}}}": "0x60"},
        (
            {f'gantry_proxy_refused_total{{{C},reason="connections"}}': "0+5x60",
             f"gantry_proxy_cut_total{{{C}}}": "0+1x60"},
            # A burst that has ended.
            {f'gantry_proxy_refused_total{{{C},reason="connections"}}': "0+300x30 9000x30",
             f"gantry_proxy_cut_total{{{C}}}": "0x60"},
        ),
    ),
    "GantrySendsSlow": Case(
        "warning", GROUP,
        {f'gantry_send_latency_seconds_bucket{{{G},le="1"}}': "0+90x60",
         f'gantry_send_latency_seconds_bucket{{{G},le="2.5"}}': "0+100x60",
         f'gantry_send_latency_seconds_bucket{{{G},le="+Inf"}}': "0+100x60"},
        (
            {f'gantry_send_latency_seconds_bucket{{{G},le="1"}}': "0+100x60",
             f'gantry_send_latency_seconds_bucket{{{G},le="2.5"}}': "0+100x60",
             f'gantry_send_latency_seconds_bucket{{{G},le="+Inf"}}': "0+100x60"},
        ),
    ),
    "GantryConsumerLagGrowing": Case(
        "warning", READER,
        {f"rocketmq_consumer_lag_messages{{{LAG}}}": "1000+50x60"},
        (
            {f"rocketmq_consumer_lag_messages{{{LAG}}}": "9000-50x60"},
            {f"rocketmq_consumer_lag_messages{{{LAG}}}": "0+5x60"},
            {f"rocketmq_consumer_lag_messages{{{LAG}}}": "5000x60"},
            {f"rocketmq_consumer_lag_messages{{{SYSTEM}}}": "1000+50x60"},
        ),
    ),
    "GantryOldestUnreadTooOld": Case(
        "warning", READER,
        {f"rocketmq_consumer_lag_latency_milliseconds{{{LAG}}}": "3700000x60"},
        ({f"rocketmq_consumer_lag_latency_milliseconds{{{LAG}}}": "3500000x60"},),
    ),
    "GantryDeadLettersGrowing": Case(
        "warning", CLUSTER | {"consumer_group": "billing"},
        # The first one: the series begins with it.
        {f'gantry_dead_letters{{{G},consumer_group="billing"}}': "_x55 1x5",
         f"gantry_uptime_seconds{{{G}}}": "0+60x60"},
        (
            {f'gantry_dead_letters{{{G},consumer_group="billing"}}': "7x60",
             f"gantry_uptime_seconds{{{G}}}": "0+60x60"},
            # A cluster that Prometheus has just found may have old ones.
            {f'gantry_dead_letters{{{G},consumer_group="billing"}}': "_x55 7x5",
             f"gantry_uptime_seconds{{{G}}}": "_x55 900+60x5"},
        ),
    ),
    "GantryDiskFullWithinADay": Case(
        "warning", MEMBER,
        {f'gantry_disk_full_forecast_seconds{{{G},member="1"}}': "80000x60"},
        (
            {f'gantry_disk_full_forecast_seconds{{{G},member="1"}}': "90000x60"},
            {f'gantry_disk_full_forecast_seconds{{{G},member="1"}}': "Inf " * 61},
        ),
    ),
    "GantryDiskFull": Case(
        "critical", MEMBER,
        {f'gantry_disk_full{{{G},member="1"}}': "1x60"},
        ({f'gantry_disk_full{{{G},member="1"}}': "0x60"},),
    ),
    "GantryLogDamaged": Case(
        "warning", MEMBER,
        {f'gantry_log_damaged_places{{{G},member="1"}}': "2x60"},
        # Repaired within minutes.
        ({f'gantry_log_damaged_places{{{G},member="1"}}': "2x55 0x5"},),
    ),
    "GantryArchiveBehind": Case(
        "warning", GROUP,
        {
            f'gantry_archive_behind_seconds{{{G},member="0"}}': "900x60",
            f'gantry_archive_behind_seconds{{{G},member="1"}}': "700x60",
            f'gantry_archive_interval_seconds{{{G},member="1"}}': "60x60",
        },
        (
            {
                f'gantry_archive_behind_seconds{{{G},member="0"}}': "900x60",
                f'gantry_archive_behind_seconds{{{G},member="1"}}': "50x60",
                f'gantry_archive_interval_seconds{{{G},member="1"}}': "60x60",
            },
            {f'gantry_archive_failing{{{G},member="0"}}': "1x60", f'gantry_archive_failing{{{G},member="1"}}': "0x60"},
        ),
    ),
    "GantryArchiveGap": Case(
        "warning", GROUP,
        {f'gantry_archive_gaps{{{G},member="1"}}': "1x60"},
        ({f'gantry_archive_gaps{{{G},member="1"}}': "0x60"},),
    ),
    "GantryArchiveDamaged": Case(
        "critical", GROUP,
        {f'gantry_archive_faults{{{G},member="1"}}': "2x60"},
        ({f'gantry_archive_faults{{{G},member="1"}}': "0x60"},),
    ),
    "GantryArchiveNotVerified": Case(
        "warning", GROUP,
        {f"gantry_operator_archive_verification_overdue{{{G}}}": "1x60"},
        ({f"gantry_operator_archive_verification_overdue{{{G}}}": "0x60"},),
    ),
    "GantryEventLoopBlocked": Case(
        "warning", MEMBER,
        {f'gantry_event_loop_hold_seconds_total{{{G},member="1"}}': "0+9x60"},
        ({f'gantry_event_loop_hold_seconds_total{{{G},member="1"}}': "0+3x60"},),
    ),
    "GantryOperatorNotLeading": Case(
        "critical", {},
        {'gantry_operator_leader{pod="one"}': "0x60", 'gantry_operator_leader{pod="two"}': "0x60"},
        ({'gantry_operator_leader{pod="one"}': "0x60", 'gantry_operator_leader{pod="two"}': "1x60"},),
    ),
    "GantryOperatorNotReconciling": Case(
        "warning", {"job": "operator"},
        {'gantry_operator_reconciles_total{job="operator",outcome="error"}': "0+30x60",
         'gantry_operator_reconciles_total{job="operator",outcome="done"}': "0+30x60"},
        (
            {'gantry_operator_reconciles_total{job="operator",outcome="error"}': "0x30 3x30"},
            {'gantry_operator_watch_age_seconds{job="operator",kind="Pod"}': "70x60"},
        ),
    ),
    "GantryReportFailed": Case(
        "warning", CLUSTER,
        {f"gantry_operator_report_failed{{{C}}}": "1x60"},
        ({f"gantry_operator_report_failed{{{C}}}": "0x60"},),
    ),
    "GantryTableNotCurrent": Case(
        "warning", {**CLUSTER, "topic": "Orders"},
        {f'gantry_operator_table_current{{{C},topic="Orders"}}': "0x60"},
        ({f'gantry_operator_table_current{{{C},topic="Orders"}}': "1x60"},),
    ),
}  # fmt: skip

MORE: Final[tuple[tuple[str, dict[str, str], Series], ...]] = (
    # The other half of alerts that two kinds of series can raise.
    ("GantryMasterMissing", GROUP, {f'gantry_role_master{{{G},member="{n}"}}': "0x60" for n in range(3)}),
    (
        "GantryUnderReplicated", GROUP,
        {f'gantry_in_sync_members{{{G},member="0"}}': "2x60", f'gantry_role_master{{{G},member="0"}}': "1x60",
         f'gantry_role_master{{{G},member="1"}}': "0x60", f'gantry_role_master{{{G},member="2"}}': "0x60"},
    ),
    (
        "GantryCertificateExpiring", MEMBER | {"port": "client"},
        {f'gantry_certificate_expiry_timestamp_seconds{{{G},member="1",port="client"}}': "86400x90"},
    ),
    (
        "GantryEventLoopBlocked", CLUSTER | {"instance": "n-0"},
        {f'gantry_namesrv_event_loop_hold_seconds_total{{{C},instance="n-0"}}': "0+9x60"},
    ),
    ("GantryOperatorNotLeading", {}, {"up": "1x60"}),
    (
        "GantryOperatorNotReconciling", {"job": "operator"},
        {'gantry_operator_watch_age_seconds{job="operator",kind="Pod"}': "900x60"},
    ),
)  # fmt: skip
"""(alert, its labels, series with which it fires)"""
