"""Computes the status of the resource from observations. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.security import Authentication
from gantry_operator.api.status import (
    AnalyticsStatus,
    BrokerClusterStatus,
    CertificateRow,
    Condition,
    DrainRow,
    GroupRow,
    LastFailover,
    MemberRow,
    MigrationStatus,
    Phase,
    ProxyStatus,
    SiteRow,
    TableRow,
)
from gantry_operator.certificates.schedule import EXPIRING
from gantry_operator.cluster.archive_status import archive_condition, archive_row, with_schedule
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.platform import Change
from gantry_operator.cluster.second_site import MemberSite, SiteState, adopt, members_sites, site_condition
from gantry_operator.cluster.timestamps import unix_s, utc

EventKind = Literal["Normal", "Warning"]
Answer = Literal["True", "False", "Unknown"]
HIBERNATED = "spec.hibernate is true: nothing runs, and volumes and leadership records are kept"
_ASLEEP: tuple[Answer, Answer, Answer] = ("False", "False", "False")
BLOCKED = "Blocked"
"""Reason of Progressing while something prevents that the spec is carried out."""
Aspect = Literal[
    "Ready", "Available", "Progressing", "Degraded", "Secured", "CertificatesValid", "Draining", "Unbalanced",
    "DiskPressure", "ReportComplete", "TablesCurrent", "Archiving", "Standby", "Migrating"
]  # fmt: skip


def status_of(
    cluster: BrokerCluster | None,
    old: BrokerClusterStatus,
    observed: ObservedState,
    now: str,
    generation: int,
    paused: bool = False,
) -> BrokerClusterStatus:
    """Return the new status. `now` is an RFC 3339 time. A condition keeps its time unless it changes."""
    rows = [_kept_row(m, old) or _row(m) if m.group in observed.blind else _row(m) for m in observed.members]
    if observed.refused:
        return _refused(old, observed, rows, now, generation)
    if observed.hibernated:
        rows = [_asleep(r, old) for r in rows]
    sites = members_sites(observed.members)
    site = adopt(observed.site or SiteState(), sites)
    standby = site.role in ("Standby", "Promoting")
    ready = sum(r.ready for r in rows)
    if observed.hibernated:
        available, progressing, degraded = ((answer, "Hibernated", HIBERNATED) for answer in _ASLEEP)
    else:
        available = _serves_reads(observed, sites) if standby else _available(observed, old)
        degraded = _degraded(observed, rows)
        progressing = _progressing(observed, paused, available[0], degraded)
    groups = with_schedule(group_rows(observed, old, now), old.groups, cluster, now)
    answers: list[tuple[Aspect, tuple[Answer, str, str] | None]] = [
        ("Ready", _ready(available, progressing, degraded)),
        ("Available", available),
        ("Progressing", progressing),
        ("Degraded", degraded),
        *_further_answers(cluster, old, observed, site, sites, groups, now),
    ]
    conditions = [_condition(old, kind, *answer, now, generation) for kind, answer in answers if answer is not None]
    return BrokerClusterStatus(
        observedGeneration=generation,
        phase="Hibernated" if observed.hibernated else _phase(old, available[0], progressing[0], degraded[0], paused),
        conditions=conditions,
        mode=cluster.spec.mode if cluster is not None else old.mode,
        version=observed.version,
        boundVolumes=observed.bound_volumes,
        volumeSize=observed.volume_size,
        readyMembers=f"{ready}/{len(rows)}",
        masters=_masters(rows),
        members=rows,
        groups=groups,
        nameServers=[s.address for s in observed.name_servers],
        nameServerMembers=list(observed.name_servers),
        addresses=observed.addresses,
        site=site_row(site) if site != SiteState() else None,
        lastFailover=observed.last_failover or old.lastFailover,
        proxy=observed.proxy,
        certificates=list(observed.certificates),
        analytics=observed.analytics or old.analytics,
        tables=list(old.tables if observed.tables is None else observed.tables),
        migration=_migration(cluster, observed, old),
    )


def _further_answers(
    cluster: BrokerCluster | None,
    old: BrokerClusterStatus,
    observed: ObservedState,
    site: SiteState,
    sites: Sequence[MemberSite],
    groups: Sequence[GroupRow],
    now: str,
) -> Iterator[tuple[Aspect, tuple[Answer, str, str] | None]]:
    """Yield the other conditions, in their order; None: the cluster does not have this one."""
    yield "Secured", _secured(observed.authentication, observed.loopback)
    yield "CertificatesValid", _certificates_valid(observed.certificates, now) if observed.certificates else None
    draining = observed.drains or any(c.type == "Draining" for c in old.conditions)
    yield "Draining", _draining(observed.drains) if draining else None
    yield "Archiving", archive_condition(groups, cluster)
    joined = {m.group for m in observed.members if m.status is not None and _part(m.status, "marks").get("joined")}
    balance = unbalanced([g for g in groups if g.drain is None and g.name in joined], old)
    yield "Unbalanced", _former(old, "Unbalanced") if observed.blind else balance
    yield "Standby", site_condition(site, sites, observed.site_waits)
    yield "DiskPressure", disk_pressure(observed, old)
    yield "Migrating", _migrating(cluster, observed, old)
    yield "ReportComplete", _report_complete(observed.analytics or old.analytics)
    yield "TablesCurrent", _tables_current(old.tables if observed.tables is None else observed.tables)


def _migration(
    cluster: BrokerCluster | None, observed: ObservedState, old: BrokerClusterStatus
) -> MigrationStatus | None:
    if observed.migration is not None:
        return observed.migration.status
    return old.migration if _migrates(cluster) else None


def _migrates(cluster: BrokerCluster | None) -> bool:
    return cluster is None or (cluster.spec.bootstrap is not None and cluster.spec.bootstrap.fromRocketMQ is not None)


def _migrating(
    cluster: BrokerCluster | None, observed: ObservedState, old: BrokerClusterStatus
) -> tuple[Answer, str, str] | None:
    if observed.migration is not None:
        return observed.migration.answer, observed.migration.reason, observed.migration.message
    return _former(old, "Migrating") if _migrates(cluster) else None


def _refused(
    old: BrokerClusterStatus, observed: ObservedState, rows: list[MemberRow], now: str, generation: int
) -> BrokerClusterStatus:
    """Return the status under a refused spec: the last valid spec still applies. It shows leaders, members and the
    refusal.
    """
    message = f"the spec is refused and the running cluster is unchanged: {observed.refused}"
    changed = {
        "Ready": _condition(old, "Ready", "False", "InvalidSpec", message, now, generation),
        "Progressing": _condition(old, "Progressing", "False", "InvalidSpec", message, now, generation),
    }
    update: dict[str, Any] = {"phase": "Refused", "observedGeneration": generation}
    if rows or any(observed.available.values()):
        changed["Available"] = _condition(old, "Available", *_available(observed, old), now, generation)
        changed["Degraded"] = _condition(old, "Degraded", *_degraded(observed, rows), now, generation)
    elif not any(c.type == "Available" for c in old.conditions):
        changed["Available"] = _condition(old, "Available", "False", "InvalidSpec", message, now, generation)
    if rows:
        update |= {
            "readyMembers": f"{sum(r.ready for r in rows)}/{len(rows)}",
            "masters": _masters(rows),
            "members": rows,
            "lastFailover": observed.last_failover or old.lastFailover,
        }
    kept = [changed.pop(c.type, c) for c in old.conditions]
    return old.model_copy(update=update | {"conditions": kept + list(changed.values())})


def _former(old: BrokerClusterStatus, kind: Aspect) -> tuple[Answer, str, str] | None:
    """Return what a condition said; None: there was none."""
    before = next((c for c in old.conditions if c.type == kind), None)
    return None if before is None else (before.status, before.reason, before.message)


def _kept_row(m: ObservedMember, old: BrokerClusterStatus) -> MemberRow | None:
    """Return the former row of a member of which nothing is known yet; None: something is, or there is no row."""
    if m.status is not None or m.problem:
        return None
    return next((r for r in old.members if r.name == m.name), None)


def _row(m: ObservedMember) -> MemberRow:
    s = m.status
    if s is None:
        reason = m.problem or "it does not answer"
        return MemberRow(name=m.name, group=m.group, inSync=m.in_sync, node=m.node, reason=reason)
    role = str(s.get("role", "Unknown"))
    site = _part(s, "site")
    if site.get("role") == "Standby":
        role = "Standby"
    in_sync = m.in_sync is True
    serving = role == "Master" or (role == "Slave" and in_sync) or (role == "Standby" and bool(site.get("follows")))
    return MemberRow(
        name=m.name,
        group=m.group,
        role=role,
        brokerId=int(s.get("broker_id", -1)),
        epoch=int(s.get("epoch", 0)),
        maxOffset=int(s.get("end", 0)),
        lag=int(s.get("lag_bytes", 0)),
        inSync=m.in_sync,
        ready=m.pod_ready and serving,
        address=str(s.get("address", "")),
        node=m.node,
        reason=str(s.get("reason", "")),
    )


def _serves_reads(observed: ObservedState, sites: Sequence[MemberSite]) -> tuple[Answer, str, str]:
    """Available, of a standby: clients can read. Writes go to the other cluster."""
    groups = sorted({m.group for m in observed.members})
    lacking = [g for g in groups if not any(s.follows for s in sites if s.group == g)]
    if lacking or not groups:
        return "False", "NotFollowing", f"no member has read the archive of group {', '.join(lacking) or 'any'} yet"
    return "True", "Standby", "reads are served; writes are refused, because the cluster follows another one"


def site_row(state: SiteState) -> SiteRow:
    """Return the state as the status has it, from which a control plane goes on (`site_of`)."""
    since = utc(state.at_ms) if state.at_ms else None
    return SiteRow(
        role=state.role, generation=state.generation, token=state.token, origin=state.origin, ends=dict(state.ends),
        acceptLoss=state.accept_loss, since=since,
    )  # fmt: skip


def site_of(row: Mapping[str, Any]) -> SiteState:
    """Read the state from the row of the status. Raises ValueError, KeyError, TypeError for what is no row."""
    state = SiteState.from_json(row)
    return replace(state, at_ms=int((unix_s(row.get("since")) or 0) * 1000))


def _asleep(row: MemberRow, old: BrokerClusterStatus) -> MemberRow:
    """Return a member of a cluster that hibernates, with its last epoch and end."""
    last = next((r for r in old.members if r.name == row.name), row)
    return row.model_copy(
        update={"epoch": last.epoch, "maxOffset": last.maxOffset, "reason": "hibernated", "node": None, "ready": False}
    )


def _available(observed: ObservedState, old: BrokerClusterStatus) -> tuple[Answer, str, str]:
    no_answer = set(observed.drains) | observed.blind
    bad = {g: why for g, why in observed.available.items() if why is not None and g not in no_answer}
    groups = {m.group for m in observed.members} - no_answer
    for group in groups & {g for g, why in observed.available.items() if why is None}:
        mine = [m for m in observed.members if m.group == group]
        if all(m.status is None for m in mine):  # The last check was before they fell silent.
            bad[group] = "none of its members answers"
    if bad:
        reasons = "; ".join(f"group {g}: {_with_cause(why, observed, g)}" for g, why in sorted(bad.items()))
        return "False", "ProbeFailed", reasons
    former = _former(old, "Available") if observed.blind - set(observed.drains) else None
    if former is not None:
        return former
    groups |= observed.blind - set(observed.drains)
    unknown = sorted(groups - (set(observed.available) - observed.blind))
    if unknown or not groups:
        reasons = ", ".join(_with_cause(g, observed, g) for g in unknown)
        return "False", "ProbePending", f"not checked yet: {reasons or 'no broker runs'}"
    return "True", "ProbeSucceeded", "a message was sent to every group and read back"


CAUSES_SHOWN = 3
NO_POD = "there is no pod"
"""Of a member or NameServer of which Kubernetes says nothing else."""


def _with_cause(symptom: str, observed: ObservedState, group: str) -> str:
    """Return what is said of a group, behind the reason why its members or all NameServers do not run: that is the
    cause.
    """
    mine = (m for m in observed.members if m.group == group)
    silent = [(m.name, m.problem) for m in mine if m.status is None and not m.pod_ready and m.problem]
    servers = [(s.name, s.reason) for s in observed.name_servers if s.reason]
    if any(s.ready for s in observed.name_servers):
        servers = []
    names_of: dict[str, list[str]] = {}
    for name, why in (*silent, *servers):
        if why not in symptom and why != NO_POD:  # Without more it is a symptom, too.
            names_of.setdefault(why, []).append(name)
    causes = [f"{', '.join(names)}: {why}" for why, names in names_of.items()][:CAUSES_SHOWN]
    return "; ".join([*causes, symptom])


def _degraded(observed: ObservedState, rows: Sequence[MemberRow]) -> tuple[Answer, str, str]:
    if observed.problems:
        return "True", "ReconcileFailed", "; ".join(observed.problems)
    away = [f"{r.name} ({r.reason or r.role})" for r in rows if not r.ready]
    if away:
        return "True", "MembersNotReady", f"not ready: {', '.join(away)}"
    servers = [f"{s.name} ({s.reason})" if s.reason else s.name for s in observed.name_servers if not s.ready]
    if servers:
        return "True", "NameServersNotReady", f"not ready: {', '.join(servers)}"
    proxy = observed.proxy
    if proxy is not None and proxy.readyReplicas < proxy.replicas:
        reasons = [f"{r.name} ({r.reason})" for r in proxy.members if not r.ready]
        ready = f"{proxy.readyReplicas} of {proxy.replicas} proxies are ready"
        return "True", "ProxiesNotReady", f"{ready}: {', '.join(reasons)}" if reasons else ready
    return "False", "AllMembersReady", "every member is ready and in sync"


def proxy_events(before: ProxyStatus | None, now: ProxyStatus | None) -> list[tuple[EventKind, str, str]]:
    """Kind, reason and message of each event about the proxies: all serve, none serves, they are gone."""
    if now is None:
        return [] if before is None else [("Normal", "ProxiesRemoved", "the spec has no proxies any more")]
    full = before is not None and before.replicas > 0 and before.readyReplicas >= before.replicas
    some = before is not None and before.readyReplicas > 0
    if now.readyReplicas >= now.replicas > 0 and not full:
        return [("Normal", "ProxiesReady", f"gRPC clients are served at {now.address} ({now.readyReplicas} proxies)")]
    if some and now.readyReplicas == 0 < now.replicas:
        return [("Warning", "NoProxyReady", "no proxy is ready: gRPC clients are not served")]
    return []


def _progressing(
    observed: ObservedState, paused: bool, available: Answer, degraded: tuple[Answer, str, str]
) -> tuple[Answer, str, str]:
    if paused:
        return "False", "Paused", "the annotation gantry.dev/paused stops changes; failover continues"
    if observed.problems:
        doing = "".join(f"; meanwhile: {p}" for p in observed.progress)
        return "False", BLOCKED, f"the spec is not carried out: {'; '.join(observed.problems)}{doing}"
    if observed.silent:
        return "Unknown", "SupervisorSilent", f"not known: {observed.silent}"
    if observed.progress:
        return "True", "Reconciling", "; ".join(observed.progress)
    if degraded[0] == "True" and available != "True":
        return "True", "WaitingForMembers", degraded[2]
    if degraded[0] == "True":
        return "False", "Reconciled", f"no change is under way; {degraded[2]}"
    return "False", "Reconciled", "the cluster matches the spec"


def _ready(*parts: tuple[Answer, str, str]) -> tuple[Answer, str, str]:
    """Return the one condition for programs. `parts`: Available, Progressing, Degraded; the first bad one is the
    reason, or the first that is not known.
    """
    for (status, reason, message), good in zip(parts, ("True", "False", "False"), strict=True):
        if status not in (good, "Unknown"):
            return "False", reason, message
    for status, reason, message in parts:
        if status == "Unknown":
            return "Unknown", reason, message
    return "True", "Ready", "clients can use the cluster, and it is as the spec says"


def _certificates_valid(rows: Sequence[CertificateRow], now: str) -> tuple[Answer, str, str]:
    """RFC 3339 times in UTC with whole seconds compare as text."""
    remedy = "read the operator's events and its log; if the Secret is yours, renew it"
    unreadable = [r.name for r in rows if not r.notAfter]
    if unreadable:
        return "False", "Unreadable", f"no certificate can be read in {', '.join(unreadable)}: {remedy}"
    expired = [f"{r.name} at {r.notAfter}" for r in rows if r.notAfter <= now]
    if expired:
        return "False", "Expired", f"expired: {', '.join(expired)}: {remedy}"
    soon = (datetime.fromisoformat(now) + EXPIRING).strftime("%Y-%m-%dT%H:%M:%SZ")
    expiring = [f"{r.name} at {r.notAfter}" for r in rows if r.notAfter <= soon]
    if expiring:
        return "False", "Expiring", f"soon to expire: {', '.join(expiring)}: {remedy}"
    first = min(rows, key=lambda r: r.notAfter)
    return "True", "Valid", f"the first to expire is {first.name} at {first.notAfter}"


def _secured(authentication: Authentication, loopback: bool) -> tuple[Answer, str, str]:
    if authentication == "Disabled" and loopback:
        return "False", "AuthenticationDisabled", "every program on this machine may do everything"
    if authentication == "Disabled":
        message = (
            "every client that reaches a port may do everything: write spec.security.authentication: Permissive, then "
            "Enabled"
        )
        return "False", "AuthenticationDisabled", message
    if authentication == "Permissive":
        message = (
            "requests without a signature are allowed: write spec.security.authentication: Enabled once "
            "gantry_access_anonymous_total stays the same"
        )
        return "False", "AuthenticationPermissive", message
    return "True", "AuthenticationEnabled", "every request of a client needs a signature"


def _draining(drains: Mapping[str, DrainRow]) -> tuple[Answer, str, str]:
    if not drains:
        return "False", "NoGroupLeaves", "no broker group leaves"
    blocked = any(row.blocked for row in drains.values())
    message = "; ".join(f"group {g} ({row.phase}): {row.message}" for g, row in sorted(drains.items()))
    return "True", "DrainBlocked" if blocked else "GroupsLeave", message


def group_rows(observed: ObservedState, old: BrokerClusterStatus, now: str) -> list[GroupRow]:
    """Return a row for each broker group, by what its members say."""
    members: dict[str, list[ObservedMember]] = {group: [] for group in observed.drains}
    for m in observed.members:
        members.setdefault(m.group, []).append(m)
    before = {row.name: row for row in old.groups}
    return [
        before[name]
        if name in observed.blind and name in before and all(m.status is None for m in mine)
        else _group_row(name, mine, observed.drains.get(name), before[name].diskFull if name in before else None, now)
        for name, mine in sorted(members.items())
    ]


def _group_row(
    name: str, members: Sequence[ObservedMember], drain: DrainRow | None, before: str | None, now: str
) -> GroupRow:
    statuses = [m.status for m in members if m.status is not None]
    master = next((s for s in statuses if s.get("role") == "Master"), {})
    rates, disk = _part(master, "rates"), _part(master, "disk")
    full = [seconds for s in statuses if (seconds := _part(s, "disk").get("full_in_s", -1)) >= 0]
    return GroupRow(
        name=name,
        members=len(members),
        messagesIn=float(rates.get("messages_in", 0)),
        bytesIn=float(rates.get("bytes_in", 0)),
        messagesOut=float(rates.get("messages_out", 0)),
        diskBytes=int(disk.get("total_bytes", 0)),
        diskUsedBytes=int(disk.get("total_bytes", 0)) - int(disk.get("free_bytes", 0)),
        diskFull=_forecast(min(full), before, now) if full else None,
        drain=drain,
        archive=archive_row([_part(s, "archive") for s in statuses if s.get("archive") is not None]),
    )


def _part(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = status.get(name)
    return part if isinstance(part, Mapping) else {}


FORECAST_MOVES = 0.1
"""A forecast keeps its value until it moves by this part of the time that is left: the status is not written for less.
"""


def _forecast(seconds: int, before: str | None, now: str) -> str:
    """When the disk will be full."""
    present = datetime.fromisoformat(now)
    after = present + timedelta(seconds=seconds)
    if before is not None and abs((after - datetime.fromisoformat(before)).total_seconds()) <= seconds * FORECAST_MOVES:
        return before
    return after.strftime("%Y-%m-%dT%H:%M:%SZ")


UNBALANCED = 1.5
BALANCED = 1.3
"""The load of the busiest group, as a multiple of the mean, from which and below which the condition changes."""
LEAST_BYTES = 100_000.0
LEAST_MESSAGES = 100.0
"""A second, in the whole cluster: with less load a difference does not matter."""


def unbalanced(rows: Sequence[GroupRow], old: BrokerClusterStatus) -> tuple[Answer, str, str] | None:
    """Return the condition over the groups that stay and have all topics; None: there is only one."""
    if len(rows) < 2:
        return None
    was = any(c.type == "Unbalanced" and c.status == "True" for c in old.conditions)
    by_bytes = sum(r.bytesIn for r in rows) >= LEAST_BYTES
    if not by_bytes and sum(r.messagesIn for r in rows) < LEAST_MESSAGES:
        return "False", "LittleLoad", "there is too little load to compare the groups"
    load = {r.name: r.bytesIn if by_bytes else r.messagesIn for r in rows}
    mean = sum(load.values()) / len(load)
    busiest = max(load, key=lambda name: load[name])
    shares = ", ".join(
        f"group {r.name} {r.messagesIn:.0f} messages and {r.bytesIn / 1_000:.0f} kB a second" for r in rows
    )
    if load[busiest] > mean * (BALANCED if was else UNBALANCED):
        text = f"group {busiest} has {load[busiest] / mean:.1f} times the mean load: {shares}; see `gantry rebalance`"
        return "True", "LoadDiffers", text
    return "False", "LoadIsEven", "the load of the groups is about the same"


LOW_DISK = 0.10
ENOUGH_DISK = 0.12
"""Free part of a broker's disk below which the condition begins, and from which it ends."""
SOON_S = 86_400
"""A disk that is full within this time is said, as by the alert GantryDiskFullWithinADay."""


def disk_pressure(observed: ObservedState, old: BrokerClusterStatus) -> tuple[Answer, str, str] | None:
    """Return the condition over the disks of all members that answer; None: no disk is known. What is free counts, not
    only refused sends: the log's present segment may have room while nothing else has.
    """
    former = _former(old, "DiskPressure")
    disks = [(m.name, _part(m.status, "disk")) for m in observed.members if m.status is not None]
    disks = [(name, disk) for name, disk in disks if int(disk.get("total_bytes", 0)) > 0]
    if not disks or (observed.blind and len(disks) < len(observed.members)):
        return former
    below = ENOUGH_DISK if former is not None and former[0] == "True" else LOW_DISK
    refusing, full, low, soon = [], [], [], []
    for name, disk in disks:
        free = int(disk.get("free_bytes", 0)) / int(disk["total_bytes"])
        seconds = int(disk.get("full_in_s", -1))
        if disk.get("full"):
            refusing.append(name)
        elif free <= 0:
            full.append(name)
        elif free < below:
            low.append(name)
        elif 0 <= seconds < SOON_S:
            soon.append(name)
    remedy = "write a larger spec.storage.size, or a shorter spec.broker.fileReservedTime"
    if refusing:
        others = f"; nothing is free either: {', '.join(full)}" if full else ""
        message = f"the disk is full, and sends are refused: {', '.join(refusing)}{others}: {remedy}"
        return "True", "DiskFull", message
    if full:
        message = f"the disk is full: {', '.join(full)}; sends go on only while files that are open have room: {remedy}"
        return "True", "DiskFull", message
    if low:
        return "True", "DiskAlmostFull", f"less than {LOW_DISK:.0%} of the disk is free: {', '.join(low)}: {remedy}"
    if soon:
        message = f"at the pace of the last hour the disk is full within a day: {', '.join(soon)}: {remedy}"
        return "True", "DiskFullSoon", message
    return "False", "EnoughSpace", "every disk that answers has room"


def _report_complete(analytics: AnalyticsStatus | None) -> tuple[Answer, str, str] | None:
    """None: no report was made yet."""
    if analytics is not None and analytics.reason:
        return "False", analytics.reason, analytics.message
    if analytics is None or analytics.lastSuccess is None:
        return None
    if analytics.missing:
        return "False", "PartMissing", f"the last report lacks {', '.join(analytics.missing)}: its notes say why"
    return "True", "Complete", "the last report has all of its parts"


def _tables_current(tables: Sequence[TableRow]) -> tuple[Answer, str, str] | None:
    """None: no topic has a table."""
    if not tables:
        return None
    bad = [row for row in tables if row.current == "False"]
    if bad:
        message = "; ".join(f"{row.topic}: {row.message}" for row in bad[:CAUSES_SHOWN])
        more = f"; and {len(bad) - CAUSES_SHOWN} more" if len(bad) > CAUSES_SHOWN else ""
        return "False", bad[0].reason or "Failed", f"{message}{more}"
    waiting = [row.topic for row in tables if row.current == "Unknown"]
    if waiting:
        return "Unknown", "Waiting", f"not known yet: {', '.join(waiting[:CAUSES_SHOWN])}"
    return "True", "Current", "every table follows its topic"


def _phase(old: BrokerClusterStatus, available: Answer, progressing: Answer, degraded: Answer, paused: bool) -> Phase:
    if paused:
        return "Paused"
    if available != "True":
        return "Creating" if old.phase in ("Pending", "Creating") else "Unavailable"
    if progressing == "True":
        return "Updating"
    return "Degraded" if degraded == "True" else "Running"


def _masters(rows: Sequence[MemberRow]) -> str:
    groups = list(dict.fromkeys(r.group for r in rows))
    masters = {r.group: r.name for r in rows if r.role == "Master"}
    return ",".join(masters.get(g, f"{g}: none") for g in groups)


def _condition(
    old: BrokerClusterStatus, kind: Aspect, status: Answer, reason: str,
    message: str, now: str, generation: int,
) -> Condition:  # fmt: skip
    before = next((c for c in old.conditions if c.type == kind), None)
    since = before.lastTransitionTime if before is not None and before.status == status else now
    return Condition(
        type=kind, status=status, reason=reason, message=message[:2000], lastTransitionTime=since,
        observedGeneration=generation,
    )  # fmt: skip


def last_failover(change: Change) -> LastFailover:
    """`status.lastFailover` after a change of the master."""
    return LastFailover(
        group=change.group,
        from_=change.old,
        to=change.new,
        reason=change.reason,
        epoch=change.epoch,
        time=utc(change.at_unix_ms),
        durationMs=change.duration_ms,
        planned=change.planned,
    )


def significant(status: BrokerClusterStatus) -> dict[str, Any]:
    """Return the status without the values that always change under load: offsets and lags."""
    out = status.to_object()
    for row in out.get("members", []):
        row.pop("maxOffset", None)
        row.pop("lag", None)
    for row in out.get("groups", []):
        for moving in ("messagesIn", "bytesIn", "messagesOut", "diskUsedBytes"):
            row.pop(moving, None)
        if row.get("archive") is not None:
            row["archive"] = {k: row["archive"].get(k) for k in ("gaps", "error", "faults", "verified")}
        drain = row.get("drain")
        if drain is not None:  # Its message has the numbers too.
            row["drain"] = {"phase": drain["phase"], "blocked": drain["blocked"]}
    migration = out.get("migration")
    if migration is not None:
        migration.pop("message", None)
        for row in migration["groups"]:
            for moving in ("copiedBytes", "missingBytes", "bytesPerSecond"):
                row.pop(moving, None)
    for row in out.get("tables", []):
        for moving in ("rows", "behindRecords", "lastSuccess", "lastCommit", "message"):
            row.pop(moving, None)
    for condition in out.get("conditions", []):
        if condition["type"] in ("Draining", "Migrating", "Unbalanced", "TablesCurrent"):
            condition.pop("message", None)
    return out
