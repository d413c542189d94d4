"""The drain of one broker group: from its last sends to the proof that it is empty. Pure: time is an argument.

1. Waiting: the other groups must work, and have every topic.
2. Closing: routes show no permission to write. Sends by an older route still succeed, until clients have a new one.
3. Draining: sends are refused. Consumers read on, and delayed messages, retries and transactions end.
4. Empty: the master's report proves it, for `SETTLE_S`, in one epoch, at one end of the log. Then the group is removed.

The steps are marks in the group's own replicated tables. So neither a failover of the group nor a new control plane
loses them, and what this module keeps in memory only makes it wait again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal

from gantry_broker.contracts.models import DrainReport, Unread
from gantry_broker.protocol.codes import TABLE_GROUP_PREFIX

ROUTES_S: Final = 35.0
"""Seconds until every client has a new route: RocketMQ's clients ask every 30 seconds."""
QUIET_S: Final = 5.0
"""Seconds without a send after that."""
ROUTES_LONGEST_S: Final = 120.0
"""A client that still sends by its old route then has its sends refused."""
SETTLE_S: Final = 3.0
"""Seconds for which the proof must hold."""
COMPACTED: Final = "CompactedTopic"
FAR_AHEAD_MS: Final = 86_400_000
"""A delivery time so far ahead is named as a reason why the drain cannot end."""

Policy = Literal["WhenConsumed", "WhenExpired"]
Phase = Literal["Waiting", "Closing", "Draining", "Empty"]
Action = Literal["wait", "spread", "closing", "closed", "remove"]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the drain has not ended. `blocks`: it does not go away by itself before the retention time."""

    reason: str
    message: str
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class LeavingGroup:
    """What is known of a leaving group now."""

    now: float
    """Monotonic seconds."""
    report: DrainReport | None
    """The master's report; None: it does not answer."""
    epoch: int | None
    """The recorded epoch of the group; None: not known."""
    policy: Policy = "WhenConsumed"
    others: str = ""
    """Why the other groups cannot take over now; empty: they can."""
    homeless: bool = False
    """It has topics or consumer groups that no other group has."""
    standby: bool = False
    """Its cluster follows the archive of another one, so no member leads it."""
    waits: str = ""
    """Why no member has led it yet; empty: one has, or it is not known."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a control plane remembers of a drain."""

    closing_since: float | None = None
    sends: tuple[int, float] | None = None
    """The last number of sends, and since when it is the same."""
    proof: tuple[int, int, float] | None = None
    """Epoch and end of the log of the last proof, and since when it holds."""


@dataclass(frozen=True, slots=True)
class DrainStep:
    """The next action, and the state in words."""

    action: Action
    phase: Phase
    obstacles: tuple[Obstacle, ...] = field(default=())

    @property
    def blocked(self) -> tuple[Obstacle, ...]:
        """What keeps it from ending."""
        return tuple(o for o in self.obstacles if o.blocks)


def decide(progress: Progress, seen: LeavingGroup) -> tuple[Progress, DrainStep]:
    """Return the next step of a drain, and what to remember."""
    report = seen.report
    if report is None:
        why = (
            "the cluster is a standby: it drains after `gantry promote`"
            if seen.standby
            else f"it drains once a member leads: {seen.waits}"
            if seen.waits
            else "its master does not answer"
        )
        return replace(progress, proof=None), _wait("Waiting", "NoMaster", why)
    phase: Phase = {"": "Waiting", "closing": "Closing", "closed": "Draining"}[report.drain]  # type: ignore[assignment]
    # What a former leader reports says nothing about the records of the present one.
    if not report.leading or seen.epoch is None or report.epoch != seen.epoch:
        return replace(progress, proof=None), _wait(phase, "NoMaster", "the group has no master that leads now")
    if seen.homeless:
        # Also later: a producer may create a topic by a route that it got before.
        return replace(progress, proof=None), DrainStep("spread", phase)
    if report.drain != "closed" and seen.others:
        return progress, _wait(phase, "OthersNotReady", seen.others)
    if report.drain == "":
        return Progress(), DrainStep("closing", "Waiting")
    if report.drain == "closing":
        return _closing(progress, seen, report)
    return _draining(progress, seen, report)


def _wait(phase: Phase, reason: str, message: str) -> DrainStep:
    return DrainStep("wait", phase, (Obstacle(reason, message),))


def _closing(progress: Progress, seen: LeavingGroup, report: DrainReport) -> tuple[Progress, DrainStep]:
    since = seen.now if progress.closing_since is None else progress.closing_since
    sends = progress.sends
    if sends is None or sends[0] != report.sends:
        sends = (report.sends, seen.now)
    progress = Progress(since, sends)
    quiet = seen.now - since >= ROUTES_S and seen.now - sends[1] >= QUIET_S
    if quiet or seen.now - since >= ROUTES_LONGEST_S:
        return progress, DrainStep("closed", "Closing")
    return progress, _wait("Closing", "RoutesMove", "producers move to the other groups by their next route")


def _draining(progress: Progress, seen: LeavingGroup, report: DrainReport) -> tuple[Progress, DrainStep]:
    left = obstacles(report, seen.policy)
    if left or not report.settled:
        if not left:
            left = [Obstacle("NotSettled", "its log still changes")]
        return replace(progress, proof=None), DrainStep("wait", "Draining", tuple(left))
    proof = progress.proof
    # One record more begins the time again: the group goes with its disks.
    if proof is None or proof[:2] != (report.epoch, report.end):
        proof = (report.epoch, report.end, seen.now)
    progress = replace(progress, proof=proof)
    if seen.now - proof[2] < SETTLE_S:
        return progress, _wait("Empty", "Settling", f"it is empty, and is removed if it stays so for {SETTLE_S:.0f} s")
    return progress, DrainStep("remove", "Empty")


def ends_at_ms(report: DrainReport) -> int:
    """When the retention of its newest message has passed, Unix ms; 0: it has none."""
    return report.newest_ms + report.retention_ms if report.newest_ms else 0


def expired(report: DrainReport) -> bool:
    """Whether all its messages are beyond their retention."""
    return ends_at_ms(report) <= report.now_ms


def obstacles(report: DrainReport, policy: Policy) -> list[Obstacle]:
    """Return what keeps the group from being empty; none: it is empty, if the report is settled.

    Retention concerns messages that consumers could have read. It never removes one that was not delivered yet.
    """
    left = []
    if report.delayed:
        left.append(Obstacle("Delayed", f"{report.delayed} delayed messages are not delivered yet"))
    if report.timers:
        far = report.timers_until_ms - report.now_ms > FAR_AHEAD_MS
        left.append(
            Obstacle(
                "TimersFarAhead" if far else "Timers",
                f"{report.timers} messages have a delivery time, the last one {at(report.timers_until_ms)}",
                blocks=far,
            )
        )
    if report.half:
        left.append(Obstacle("HalfMessages", f"{report.half} messages of transactions have no decision yet"))
    if report.in_flight:
        left.append(Obstacle("InFlight", f"{report.in_flight} messages are with pop consumers"))
    if expired(report):
        return left
    if policy == "WhenExpired":
        until = at(ends_at_ms(report))
        left.append(Obstacle("Retention", f"spec.drain is WhenExpired: its newest message is kept until {until}"))
        return left
    left += [unread_obstacle(row) for row in report.unread]
    if report.dead_letters:
        left.append(
            Obstacle(
                "DeadLetters",
                f"{report.dead_letters} messages in dead letter topics were read by no one: send them again with "
                "`gantry dlq`, or delete the topics",
                blocks=True,
            )
        )
    return left


def unread_obstacle(row: Unread) -> Obstacle:
    if not row.consumer_group:
        return Obstacle(
            "NoConsumerGroup", f"{row.messages} messages of topic {row.topic}, which no consumer group reads", True
        )
    if row.consumer_group.startswith(TABLE_GROUP_PREFIX):
        return Obstacle(
            "Table",
            f"{row.messages} messages of topic {row.topic} that the table of group {row.consumer_group} has not "
            f"acknowledged: the next run of the table does it (`gantry table describe` shows its group); resume one "
            f"that is suspended; if the table is not kept any more, write "
            f"`gantry group delete {row.consumer_group} --force`",
        )
    text = f"{row.messages} messages of topic {row.topic} that consumer group {row.consumer_group} has not acknowledged"
    if row.broadcast:
        return Obstacle("Broadcast", f"{text}: it reads by broadcast, so no one knows what its consumers have", True)
    if not row.connected:
        return Obstacle("NotConnected", f"{text}: it has no connected consumer", True)
    return Obstacle("Unread", text)


def compacted_obstacle(topic: str, group: str) -> Obstacle:
    """`group`: the one that leaves. That its messages were read, or are old, says nothing: they are a state."""
    text = (
        f"topic {topic} is compacted, and group {group} has the newest message of some keys: send those again to the "
        f"other groups, then compact it no more (cleanupPolicy: Delete, or `gantry topic compact {topic} --off`) until "
        f"the group is gone; or delete the topic, or write group {group} back into spec.brokerGroups"
    )
    return Obstacle(COMPACTED, text, blocks=True)


def at(unix_ms: int) -> str:
    """Return a time for people."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ways_on(report: DrainReport | None, group: str) -> str:
    """Return the three ways on when a drain cannot end."""
    until = ends_at_ms(report) if report is not None else 0
    when = f", which ends at {at(until)}" if until and report is not None and until > report.now_ms else ""
    return (
        "let consumers read what is left; or delete the consumer group or topic that no one needs; or write group "
        f"{group} back into spec.brokerGroups, which cancels the drain. Otherwise it ends after the retention{when}"
    )
