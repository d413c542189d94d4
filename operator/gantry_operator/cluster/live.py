"""A cluster at one moment, from the members' status lines and pages of metrics. Pure: times are arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, NamedTuple

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.contracts.models import MemberStatus
from gantry_broker.protocol import plausible
from pydantic import ValidationError

from gantry_operator.cluster.member_messages import BadStatus, report_from
from gantry_operator.cluster.plain import plain
from gantry_operator.cluster.second_site import follows_archive, is_standby
from gantry_operator.failover.model import Report
from gantry_operator.failover.raft import keeping_up

FRESH_S: Final = 5.0
"""Figures that are older are not shown as those of now."""

_UPTIME: Final = "gantry_uptime_seconds"
_IN, _IN_BYTES = "rocketmq_messages_in_total", "rocketmq_throughput_in_total"
_OUT, _OUT_BYTES = "rocketmq_messages_out_total", "rocketmq_throughput_out_total"
_LAG, _INFLIGHT = "rocketmq_consumer_lag_messages", "rocketmq_consumer_inflight_messages"
_AGE: Final = "rocketmq_consumer_lag_latency_milliseconds"
_READ: Final = (_UPTIME, _IN, _IN_BYTES, _OUT, _OUT_BYTES, _LAG, _INFLIGHT, _AGE)


# ---- one member


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The unread messages of a consumer group, in all its topics."""

    group: str
    messages: int = 0
    inflight: int = 0
    """Of them, those that were delivered and are not acknowledged."""
    oldest_ms: int = 0
    """Age of the oldest one."""

    def plus(self, messages: int, inflight: int, oldest_ms: int) -> ConsumerLag:
        oldest = max(self.oldest_ms, oldest_ms)
        return ConsumerLag(self.group, self.messages + messages, self.inflight + inflight, oldest)


@dataclass(frozen=True, slots=True)
class Page:
    """The figures of one page of metrics that are of interest here."""

    uptime_s: float
    """Time of the page, by the member's own clock: two equal ones are the same page."""
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    lags: tuple[ConsumerLag, ...] = ()
    """Only the master of a group reports them."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def plus(self, other: Rates) -> Rates:
        return Rates(
            self.messages_in + other.messages_in, self.messages_out + other.messages_out,
            self.bytes_in + other.bytes_in, self.bytes_out + other.bytes_out,
        )  # fmt: skip


def read_page(text: str) -> Page:
    """Parse a page of metrics. Raises ValueError when it is none. Figures of RocketMQ's own topics do not count.

    Only the lines of a few families go through the parser: a page may have many thousands of others.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = "\n".join(line for line in text.splitlines() if line.startswith(_READ)) + "\n"
    sums: dict[str, float] = dict.fromkeys((_IN, _IN_BYTES, _OUT, _OUT_BYTES), 0.0)
    lags: dict[str, ConsumerLag] = {}
    uptime: float | None = None
    try:
        for family in text_string_to_metric_families(lines):
            for name, labels, value, *_ in family.samples:
                if not math.isfinite(value) or value < 0:
                    continue
                if name == _UPTIME:
                    uptime = value
                elif labels.get("is_system") == "true":
                    continue
                elif name in sums:
                    sums[name] += value
                elif name in (_LAG, _INFLIGHT, _AGE):
                    group = plain(labels.get("consumer_group", ""))
                    amounts = [int(value) if name == one else 0 for one in (_LAG, _INFLIGHT, _AGE)]
                    lags[group] = lags.get(group, ConsumerLag(group)).plus(*amounts)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"not a page of metrics: {error}") from error
    if uptime is None:
        raise ValueError(f"not a page of metrics: {_UPTIME} is missing")
    return Page(uptime, sums[_IN], sums[_OUT], sums[_IN_BYTES], sums[_OUT_BYTES], tuple(lags.values()))


def rates_between(before: Page | None, after: Page, former: Rates | None) -> Rates | None:
    """Return the rates between two pages; `former`: those before. None: a first page, or a new process."""
    if before is None or after.uptime_s < before.uptime_s:
        return None
    passed = after.uptime_s - before.uptime_s
    if not passed:
        return former

    def per_second(old: float, new: float) -> float:
        return max(new - old, 0.0) / passed

    return Rates(
        per_second(before.messages_in, after.messages_in), per_second(before.messages_out, after.messages_out),
        per_second(before.bytes_in, after.bytes_in), per_second(before.bytes_out, after.bytes_out),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """A member, and where it answers."""

    name: str
    group: str
    number: int
    url: str
    """Of its HTTP interface, without a slash at its end."""


@dataclass(frozen=True, slots=True)
class LiveMember:
    """What is known of one member."""

    place: MemberPlace
    status: Mapping[str, Any] | None = None
    """Its last status line."""
    problem: str = ""
    """Why it does not answer; empty: it does."""
    page: Page | None = None
    page_at: float = -math.inf
    rates: Rates | None = None

    def with_page(self, page: Page, at: float) -> LiveMember:
        return replace(self, page=page, page_at=at, rates=rates_between(self.page, page, self.rates))


# ---- the cluster


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """What the platform knows of the cluster."""

    name: str
    mode: str
    members: tuple[MemberPlace, ...]
    namespace: str = ""
    automatic: bool = True
    """Whether a dead master is replaced without a command."""
    phase: str = ""
    """Empty: the platform knows none."""
    conditions: Sequence[Mapping[str, Any]] = ()
    last_failover: Mapping[str, Any] | None = None
    events: Sequence[Mapping[str, Any]] = ()
    """The oldest first."""
    supervised: bool | None = None
    """Local: whether `gantry up` answers. None: on Kubernetes."""
    supervisor: Mapping[str, Any] | None = None
    """Why it does not answer, as a status has it."""


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member, for people."""

    name: str
    group: str
    role: str
    epoch: int | None
    """As it said last. None: it has said nothing."""
    lag: int | None
    """Bytes behind the master. None: not known."""
    in_sync: bool | None
    """None: not known."""
    disk_used: float | None
    """Share of the disk, 0 to 1."""
    disk_full: bool
    rates: Rates | None
    reason: str
    """Why it does not work as it should; empty: it does. Of a standby: what it does."""
    follows: bool = False
    """It is part of a standby, and has read its archive."""


@dataclass(frozen=True, slots=True)
class View:
    """A cluster at one moment, for people."""

    cluster: str
    phase: str
    members: tuple[MemberLine, ...]
    rates: Rates | None
    consumers: tuple[ConsumerLag, ...]
    """The largest lag first."""
    blind: tuple[str, ...]
    """Broker groups without a master that answers: their part of the lags is not known."""
    last_failover: str
    events: tuple[tuple[str, str, str, str], ...]
    """Time, reason, message, type. The newest first."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    supervised: bool | None = None
    supervisor: Mapping[str, Any] | None = None
    namespace: str = ""
    automatic: bool = True
    problem: str = ""
    """Why the figures of the platform are old; empty: they are not."""

    @property
    def in_sync(self) -> int:
        return sum(m.in_sync is True for m in self.members)

    @property
    def standby(self) -> bool:
        """The cluster follows the archive of another one."""
        return any(m.role == "Standby" for m in self.members)

    def as_resource(self) -> dict[str, Any]:
        """Return the part of a `BrokerCluster` that this view knows."""
        rows = [
            {"name": m.name, "group": m.group, "role": m.role, "inSync": m.in_sync, "lag": m.lag or 0,
             "ready": m.follows or not m.reason, "reason": m.reason}
            for m in self.members
        ]  # fmt: skip
        status: dict[str, Any] = {"phase": self.phase, "members": rows, "conditions": list(self.conditions)}
        if self.supervised is not None:
            status["supervised"] = self.supervised
        if self.supervisor is not None:
            status["supervisor"] = dict(self.supervisor)
        return {
            "metadata": {"name": self.cluster, "namespace": self.namespace},
            "spec": {"failover": {"automatic": self.automatic}},
            "status": status,
        }


def view_of(facts: LiveCluster, seen: Iterable[LiveMember], now: float, problem: str = "") -> View:
    """Return the view at `now`, by the clock of `LiveMember.page_at`. `problem`: why the facts are old."""
    read = [_read(s) for s in seen]
    lines: list[MemberLine] = []
    consumers: dict[str, ConsumerLag] = {}
    blind: list[str] = []
    for group in dict.fromkeys(r.seen.place.group for r in read):
        mine = [r for r in read if r.seen.place.group == group]
        leader = _leader(mine)
        in_sync = _in_sync(mine, facts.mode, leader)
        lines += [_line(r, in_sync, leader is not None, now) for r in mine]
        page = leader.seen.page if leader is not None and _fresh(leader.seen, now) else None
        if page is None:
            if not any(is_standby(r.seen.status) for r in mine if not r.problem):
                blind.append(group)
            continue
        for lag in page.lags:
            sum_so_far = consumers.get(lag.group, ConsumerLag(lag.group))
            consumers[lag.group] = sum_so_far.plus(lag.messages, lag.inflight, lag.oldest_ms)
    rates = [line.rates for line in lines if line.rates is not None]
    return View(
        cluster=facts.name,
        phase=facts.phase or _phase(lines),
        members=tuple(lines),
        rates=reduce(Rates.plus, rates) if rates else None,
        consumers=tuple(sorted(consumers.values(), key=lambda c: (-c.messages, c.group))),
        blind=tuple(blind),
        last_failover=_change(facts.last_failover),
        events=tuple(
            (plain(e.get("time") or ""), plain(e.get("reason") or ""), plain(e.get("message") or ""),
             plain(e.get("type") or "")) for e in reversed(facts.events)
        ),
        conditions=tuple(facts.conditions),
        supervised=facts.supervised,
        supervisor=facts.supervisor,
        namespace=facts.namespace,
        automatic=facts.automatic,
        problem=plain(problem),
    )  # fmt: skip


class _Line(NamedTuple):
    """A status line as it can be used."""

    seen: LiveMember
    status: MemberStatus | None
    report: Report | None
    problem: str
    """Why there is no status of now; empty: there is one."""


def _read(seen: LiveMember) -> _Line:
    if seen.status is None:
        return _Line(seen, None, None, seen.problem or "it does not answer")
    try:
        report = report_from(dict(seen.status))
        return _Line(seen, MemberStatus.model_validate(dict(seen.status)), report, seen.problem)
    except BadStatus as error:
        return _Line(seen, None, None, str(error))
    except ValidationError as error:
        first = error.errors()[0]
        return _Line(seen, None, None, f"its report cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}")


def _leader(lines: Sequence[_Line]) -> _Line | None:
    """Return the member that leads, among those that answer: of the highest epoch, if an older one does not know it
    yet.
    """
    masters = [r for r in lines if r.report is not None and r.report.role == "Master" and not r.problem]
    return max(masters, key=_order, default=None)


def _order(line: _Line) -> tuple[int, int]:
    return (-1, -1) if line.report is None else line.report.order


def _in_sync(lines: Sequence[_Line], mode: str, leader: _Line | None) -> frozenset[MemberId]:
    """Return the in-sync set as the leader knows it; without one, as the newest report has it."""
    newest = leader or max(lines, key=_order, default=None)
    if newest is None or newest.report is None:
        return frozenset()
    return keeping_up(newest.report) if mode == "Raft" and leader is not None else newest.report.in_sync


def _fresh(seen: LiveMember, now: float) -> bool:
    return now - seen.page_at <= FRESH_S


def _line(line: _Line, in_sync: frozenset[MemberId], led: bool, now: float) -> MemberLine:
    """`led`: a leader answers, so what it does not name is not in sync."""
    place, report, status = line.seen.place, line.report, line.status
    waits_for: bool | None = None
    if led and place.number not in {id.member for id in in_sync}:
        waits_for = False
    elif report is not None and (led or not line.problem):
        waits_for = report.id in in_sync
    line_so_far = MemberLine(
        name=place.name, group=place.group, role="Unknown", epoch=None if report is None else report.epoch, lag=None,
        in_sync=waits_for, disk_used=None, disk_full=False, rates=None,
        reason=plain(line.problem),
    )  # fmt: skip
    if line.problem or report is None or status is None:
        return line_so_far
    disk, standby = status.disk, is_standby(line.seen.status)
    used = None if disk is None or disk.total_bytes <= 0 else 1 - disk.free_bytes / disk.total_bytes
    return replace(
        line_so_far,
        role="Standby" if standby else report.role,
        in_sync=None if standby else waits_for,
        follows=follows_archive(line.seen.status),
        lag=min(max(status.lag_bytes, 0), plausible.MAX_OFFSET),
        disk_used=None if used is None else min(max(used, 0.0), 1.0),
        disk_full=report.disk_full,
        rates=line.seen.rates if _fresh(line.seen, now) else None,
        reason=plain(status.reason or status.not_promotable),
    )


def _phase(lines: Sequence[MemberLine]) -> str:
    groups = {line.group for line in lines}
    standby = {line.group for line in lines if line.role == "Standby"}
    led = standby | {line.group for line in lines if line.role == "Master" and not line.reason}
    if groups - led or not lines:
        return "Unavailable"
    whole = all(
        line.follows or (line.in_sync and not line.reason and line.role in ("Master", "Slave")) for line in lines
    )
    return "Running" if whole else "Degraded"


def _change(change: Mapping[str, Any] | None) -> str:
    if not change:
        return ""
    kind = "switchover" if change.get("planned") else "failover"
    return plain(
        f"{change.get('time', '')} {kind} from {change.get('from') or '-'} to {change.get('to', '-')} "
        f"in {change.get('durationMs', 0)} ms: {change.get('reason', '')}"
    )
