"""The state of the recorded leader: leading, restarted, dead or in doubt.

A leader is dead at once if its process is gone, its disk is new, or the operator and every follower find its port
closed. A silent leader is dead after the detection timeout, and only if no follower still hears it. A network cut
between the operator and the leader alone must not move the leader.

A new operator process has not listened for that long. The followers' reports then count: each follower reports for how
long it has heard nothing from the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId

from gantry_operator.failover.model import MemberView, Observation
from gantry_operator.failover.promotion import has_healthy_candidate

State = Literal["leading", "unassigned", "restarted", "outranked", "dead", "doubt"]

DELETED_SILENCE_MS = 500
"""Milliseconds of silence after which a member that is being deleted counts as stopped."""
FIRST_TRY_MS = 300
"""Milliseconds for which an operator tries a leader that it never heard, before it believes the followers."""
LINE_SLACK_MS = 500
"""Milliseconds by which a follower's line may be older than the interval of one second between two lines."""


@dataclass(frozen=True, slots=True)
class LeaderState:
    state: State
    reason: str


def leader_state(obs: Observation, leadership: LeadershipRecord) -> LeaderState:
    if leadership.master is None:
        return LeaderState("dead", "no leader is recorded")
    view = obs.view(leadership.master.member)
    if view is None:
        return LeaderState("dead", f"member {leadership.master.member} is no longer part of the group")
    if view.gone:
        return LeaderState("dead", f"the process of {view.name} is gone")
    if view.heard:
        return _heard(obs, view, leadership, leadership.master)
    return _unheard(obs, view, leadership.master)


def _heard(obs: Observation, view: MemberView, leadership: LeadershipRecord, leader: MemberId) -> LeaderState:
    report = view.report
    assert report is not None
    if report.id != leader:
        return LeaderState("dead", f"the disk of {view.name} is not the one that was promoted")
    leads = report.role == "Master" and report.epoch == leadership.epoch
    # A leader refuses another version of its epoch while it waits for the former set. A new epoch gives it no token
    # that it lacks, and helps only if another candidate is better off.
    may_move = obs.settings.automatic or (obs.switchover is not None and obs.switchover.force)
    lasts = view.refused_ms >= obs.settings.detection_ms and not view.lacks_token
    if view.refused and (not leads or (may_move and lasts and has_healthy_candidate(obs, leadership))):
        return LeaderState("dead", f"{view.name} refuses to lead: {view.refused}")
    if view.pending:
        return LeaderState("unassigned", f"{view.name} has not answered its assignment yet")
    if leads:
        if report.highest_seen_epoch > leadership.epoch:
            reason = (
                f"{view.name} has heard of epoch {report.highest_seen_epoch}, above the recorded {leadership.epoch}"
            )
            return LeaderState("outranked", reason)
        return LeaderState("leading", f"{view.name} leads epoch {leadership.epoch}")
    if report.epoch == leadership.epoch:
        # Rule 21: it holds the assignment of this epoch and does not lead it. It has restarted, or has
        # given up the role.
        if report.not_promotable:
            return LeaderState(
                "restarted", f"{view.name} does not lead epoch {leadership.epoch} any more ({report.not_promotable})"
            )
        return LeaderState("restarted", f"{view.name} restarted in epoch {leadership.epoch}")
    return LeaderState("unassigned", f"{view.name} has no assignment yet for epoch {leadership.epoch}")


def _unheard(obs: Observation, view: MemberView, leader: MemberId) -> LeaderState:
    name = view.name
    silence = max(view.silence_ms, _silence_by_followers(obs, view, leader))
    if view.deleting and (view.reach == "refused" or silence >= DELETED_SILENCE_MS):
        return LeaderState("dead", f"{name} is being deleted and does not answer")
    others = [m for m in obs.members if m.number != leader.member and m.heard]
    if not others:
        return LeaderState("doubt", f"{name} does not answer, and no other member answers")
    detection = obs.settings.detection_ms
    unsure = False
    for follower in others:
        report = follower.report
        assert report is not None
        if report.link_leader != leader or report.link == "none":
            continue
        # One follower that hears it is enough: only the path to the operator is cut, and a promotion would end a leader
        # that works.
        if report.link == "connected" and 0 <= report.link_answer_ms < detection + LINE_SLACK_MS:
            return LeaderState("doubt", f"{name} does not answer the operator, but {follower.name} still hears it")
        unsure = unsure or report.link != "refused"
    if view.reach == "refused" and not unsure:
        return LeaderState("dead", f"connections to {name} are refused")
    if silence >= detection:
        return LeaderState("dead", f"nothing was heard of {name} for {silence / 1000:.1f} s")
    return LeaderState("doubt", f"nothing was heard of {name} for {silence / 1000:.1f} s")


def _silence_by_followers(obs: Observation, view: MemberView, leader: MemberId) -> int:
    """Milliseconds for which every follower has heard nothing from a leader that this operator never heard; 0: unknown.

    A follower that hears the leader again reports it at once. The age of its report therefore adds to the reported
    time.
    """
    if view.report is not None or view.reach_ms < FIRST_TRY_MS:
        return 0
    silences = []
    for m in obs.members:
        report = m.report
        if not m.heard or report is None or report.link_leader != leader or report.link == "none":
            continue
        if report.link == "connected" or report.link_answer_ms < 0:
            return 0
        silences.append(report.link_answer_ms + m.age_ms)
    return min(silences, default=0)
