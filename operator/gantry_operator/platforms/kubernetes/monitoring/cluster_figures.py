"""What the operator measures about each cluster, as families of metrics.

The figures belong to the cluster's controller, so the series of a deleted cluster end with it. `families` is pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gantry_broker.exposition import Family
from gantry_broker.histogram import Histogram
from gantry_broker.protocol import plausible

from gantry_operator.api.status import AnalyticsStatus, BrokerClusterStatus, TableRow
from gantry_operator.cluster.observed import ObservedMember
from gantry_operator.cluster.platform import Change, Event
from gantry_operator.cluster.timestamps import unix_s

FAILOVER_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30)
"""Upper bounds of failover durations, in seconds."""
IN_SYNC_CHANGES: Final = {"InSyncSetExpanded": "expanded", "InSyncSetShrunk": "shrunk"}
"""The label `change` by the reason of the event."""


@dataclass(slots=True)
class ClusterFigures:
    """The figures of one cluster since this operator leads."""

    namespace: str
    cluster: str
    status: BrokerClusterStatus | None = None
    members: Sequence[ObservedMember] = ()
    failovers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By (group, planned, reason)."""
    durations: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    """By (planned, reason), in seconds."""
    last: dict[str, Change] = field(default_factory=dict)
    """By group."""
    in_sync_changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (group, change)."""

    def saw(self, status: BrokerClusterStatus, members: Sequence[ObservedMember]) -> None:
        """Note a new status, and the members that it is made of."""
        self.status, self.members = status, members

    def changed(self, change: Change) -> None:
        """Note a change of a master."""
        planned = str(change.planned).lower()
        self.failovers[change.group, planned, change.kind] += 1
        self.last[change.group] = change
        histogram = self.durations.setdefault((planned, change.kind), Histogram(FAILOVER_S))
        histogram.observe(change.duration_ms / 1000)

    def heard(self, event: Event) -> None:
        """Note an event of a group. Others than changes of the in-sync set do not count."""
        if event.reason in IN_SYNC_CHANGES:
            self.in_sync_changes[event.group, IN_SYNC_CHANGES[event.reason]] += 1


def _families() -> dict[str, Family]:
    gauge, counter = "gauge", "counter"
    rows: tuple[tuple[str, Any, str], ...] = (
        ("gantry_operator_cluster_available", gauge, "1 while clients can send and read."),
        ("gantry_operator_cluster_condition", gauge, "1 while the condition of the cluster is True."),
        ("gantry_operator_members", gauge, "Members of the group."),
        ("gantry_operator_members_ready", gauge, "Members that answer and work in their role."),
        ("gantry_operator_members_degraded", gauge, "Members that are not ready."),
        ("gantry_operator_in_sync_members", gauge, "Members in the in-sync set."),
        ("gantry_operator_group_master", gauge, "1 while a member leads the group."),
        ("gantry_operator_leader_epoch", gauge, "Epoch of the group's leadership."),
        ("gantry_operator_name_servers", gauge, "NameServers of the cluster."),
        ("gantry_operator_name_servers_ready", gauge, "NameServers that answer."),
        ("gantry_operator_proxies", gauge, "gRPC proxies of the cluster, as many as it is to have."),
        ("gantry_operator_proxies_ready", gauge, "gRPC proxies that answer."),
        ("gantry_operator_dead_letters", gauge, "Messages in the group's dead letter topics, as its master reports."),
        (
            "gantry_operator_disk_full_forecast_seconds",
            gauge,
            "Seconds until a member's disk is full, as it reports; +Inf: it does not fill, or that is not known.",
        ),
        ("gantry_operator_failovers_total", counter, "Changes of a master. A planned change is a switchover."),
        ("gantry_operator_last_failover_timestamp_seconds", gauge, "Time of the group's last change of a master."),
        ("gantry_operator_last_failover_duration_seconds", gauge, "Duration of the group's last change of a master."),
        ("gantry_operator_in_sync_changes_total", counter, "Changes of the recorded in-sync set."),
        (
            "gantry_operator_archive_verification_overdue",
            gauge,
            "1 while a verification of the group's archive that was due has not come.",
        ),
        ("gantry_operator_report_failed", gauge, "1 while the last run of the report failed."),
        ("gantry_operator_report_last_success_timestamp_seconds", gauge, "End of the last good run of the report."),
        ("gantry_operator_report_duration_seconds", gauge, "Duration of the last good run of the report."),
        ("gantry_operator_report_scanned_bytes", gauge, "Bytes of log that the last good run of the report read."),
        ("gantry_operator_report_saved_bytes", gauge, "Bytes that compaction would save, by the last good run."),
        ("gantry_operator_table_current", gauge, "1 while the table follows its topic, 0 while it stands still."),
        ("gantry_operator_table_rows", gauge, "Rows of the topic's table at the end of its last run."),
        ("gantry_operator_table_behind_records", gauge, "Messages that the table lacked at the end of its last run."),
        ("gantry_operator_table_rejected_rows", gauge, "Messages of the topic that did not fit its table."),
        (
            "gantry_operator_table_last_success_timestamp_seconds",
            gauge,
            "Start of the last run after which the table had all messages.",
        ),
        (
            "gantry_operator_failover_duration_seconds",
            "histogram",
            "Time from the detection of a lost master until the new one has taken the role.",
        ),
    )
    return {name: Family(name, kind, text) for name, kind, text in rows}


def families(clusters: Iterable[ClusterFigures]) -> list[Family]:
    """Return all families of the clusters."""
    by_name = _families()
    for figures in clusters:
        _add(by_name, figures)
    return list(by_name.values())


def _add(by_name: Mapping[str, Family], figures: ClusterFigures) -> None:
    here = {"namespace": figures.namespace, "cluster": figures.cluster}

    def add(name: str, value: float, **labels: str) -> None:
        by_name[f"gantry_operator_{name}"].add({**here, **labels}, value)

    if figures.status is not None:
        _add_status(add, figures.status)
    for member in figures.members:
        status = member.status or {}
        if member.master and status.get("role") == "Master":
            letters = _count(status.get("dead_letters"))
            if letters is not None:
                add("dead_letters", letters, group=member.group)
        disk = status.get("disk")
        full_in = _count(disk.get("full_in_s")) if isinstance(disk, Mapping) else None
        if status:
            add(
                "disk_full_forecast_seconds",
                math.inf if full_in is None else full_in,
                group=member.group,
                member=member.name,
            )
    groups = {} if figures.status is None else dict.fromkeys(row.group for row in figures.status.members)
    # They begin with 0, so that Prometheus sees the first one as an increase.
    never = {(group, *kind): 0 for group in groups for kind in (("false", "failover"), ("true", "handover"))}
    for (group, planned, reason), count in sorted((never | figures.failovers).items()):
        add("failovers_total", count, group=group, planned=planned, reason=reason)
    for group, change in sorted(figures.last.items()):
        labels = {"group": group, "planned": str(change.planned).lower(), "reason": change.kind}
        add("last_failover_timestamp_seconds", change.at_unix_ms / 1000, **labels)
        add("last_failover_duration_seconds", change.duration_ms / 1000, **labels)
    unchanged = {(group, kind): 0 for group in groups for kind in IN_SYNC_CHANGES.values()}
    for (group, kind), count in sorted((unchanged | figures.in_sync_changes).items()):
        add("in_sync_changes_total", count, group=group, change=kind)
    durations = by_name["gantry_operator_failover_duration_seconds"].histograms
    for (planned, reason), histogram in sorted(figures.durations.items()):
        durations.append(({**here, "planned": planned, "reason": reason}, histogram))


def _add_status(add: Any, status: BrokerClusterStatus) -> None:
    conditions = {c.type: c.status == "True" for c in status.conditions}
    add("cluster_available", conditions.get("Available", False))
    for condition, true in conditions.items():
        add("cluster_condition", true, condition=condition)
    for group in dict.fromkeys(row.group for row in status.members):
        rows = [row for row in status.members if row.group == group]
        masters = [row for row in rows if row.role == "Master"]
        ready = sum(row.ready for row in rows)
        add("members", len(rows), group=group)
        add("members_ready", ready, group=group)
        add("members_degraded", len(rows) - ready, group=group)
        add("in_sync_members", sum(row.inSync is True for row in rows), group=group)
        add("group_master", bool(masters), group=group)
        add("leader_epoch", max(row.epoch or 0 for row in masters or rows), group=group)
    for row in status.groups:
        if row.archive is not None and row.archive.verifySince is not None:
            add("archive_verification_overdue", row.archive.overdue, group=row.name)
    add("name_servers", len(status.nameServerMembers))
    add("name_servers_ready", sum(server.ready for server in status.nameServerMembers))
    if status.proxy is not None:
        add("proxies", status.proxy.replicas)
        add("proxies_ready", status.proxy.readyReplicas)
    if status.analytics is not None:
        _add_report(add, status.analytics)
    for table in status.tables:
        _add_table(add, table)


def _add_table(add: Any, table: TableRow) -> None:
    if table.current != "Unknown":
        add("table_current", table.current == "True", topic=table.topic)
    for name, value in (
        ("rows", table.rows),
        ("behind_records", table.behindRecords),
        ("rejected_rows", table.rejected),
        ("last_success_timestamp_seconds", unix_s(table.lastSuccess)),
    ):
        if value is not None:
            add(f"table_{name}", value, topic=table.topic)


def _add_report(add: Any, report: AnalyticsStatus) -> None:
    if report.lastResult is not None:
        add("report_failed", report.lastResult == "Failed")
    ended = unix_s(report.lastSuccess)
    for name, value in (
        ("last_success_timestamp_seconds", ended),
        ("duration_seconds", report.durationSeconds),
        ("scanned_bytes", report.scannedBytes),
    ):
        if value is not None:
            add(f"report_{name}", value)
    for topic in report.topSavings:
        add("report_saved_bytes", topic.savedBytes, topic=topic.topic)


def _count(value: object) -> int | None:
    """Return a number that a member reports; None: it reports none, or an impossible one."""
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= plausible.MAX_OFFSET
    return int(str(value)) if good else None
