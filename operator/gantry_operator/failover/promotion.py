"""Candidates for leader, and the in-sync set that a promotion writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId

from gantry_operator.failover.model import MemberView, Observation, Promote, Report


def candidates(obs: Observation, leadership: LeadershipRecord, without: MemberId | None = None) -> list[Report]:
    """Candidates: members of the recorded set, of the recorded incarnation, that answer. The best comes first.

    The best has the highest (epoch of the last record, end). A member that is about to be stopped, is not promotable,
    or refused the role comes last. At a tie the recorded leader stays, because its address does not move.
    """
    able: list[tuple[MemberView, Report]] = []
    # [16] Heard as this very incarnation: another disk under the same number may be empty.
    for id in leadership.in_sync:
        report = obs.heard_as(id)
        view = obs.view(id.member)
        if report is not None and view is not None and id != without:
            able.append((view, report))
    willing = [(v, r) for v, r in able if not v.refused]
    staying = [(v, r) for v, r in willing if not v.deleting]
    chosen = [(v, r) for v, r in staying if not r.not_promotable] or staying or willing
    chosen.sort(key=lambda vr: (vr[1].rank, vr[1].id == leadership.master, -vr[0].number), reverse=True)
    return [r for _, r in chosen]


def has_healthy_candidate(obs: Observation, leadership: LeadershipRecord) -> bool:
    """Return whether a candidate without the leader's problem exists. A problem that all members share is no reason to
    move.
    """
    leaving = {m.number for m in obs.members if m.deleting}
    return any(
        not r.not_promotable and r.id.member not in leaving
        for r in candidates(obs, leadership, without=leadership.master)
    )


def next_leadership(
    obs: Observation, leadership: LeadershipRecord, leader: MemberId, in_sync: Iterable[MemberId]
) -> LeadershipRecord:
    """Return a new epoch above the recorded one and above every epoch that a member has seen.

    The registry alone issues epochs, so the two are normally equal. They differ when a NameServer remembers a former
    group of this name, which would fence a leader with a lower epoch for ever.
    """
    highest_seen = max((m.report.highest_seen_epoch for m in obs.members if m.report is not None), default=0)
    promoted = leadership.promoted(leader, in_sync)
    return replace(promoted, epoch=max(promoted.epoch, highest_seen + 1))


def promote(
    obs: Observation, leadership: LeadershipRecord, new: Report, without: MemberId | None, reason: str
) -> Promote:
    """Return the decision for a new leader. The new set holds the members of the old set that answer, so the new leader
    waits for no absent member.
    """
    # [20] Never a member that the old set lacks, even if its log looks as long.
    in_sync = {id for id in leadership.in_sync if id != without and obs.heard_as(id) is not None} | {new.id}
    kind = "restart" if new.id == leadership.master else "failover"
    return Promote(
        leadership=next_leadership(obs, leadership, new.id, in_sync),
        old=leadership.master,
        new=new.id,
        reason=reason,
        kind="restart" if kind == "restart" else "failover",
    )


def untrusted(obs: Observation, leadership: LeadershipRecord) -> Report | None:
    """Return the best member of a set that as a whole cannot prove its log (rule 16); None: this does not apply.

    With ASYNC_FLUSH every member of the recorded set must answer as another incarnation, so that no recorded disk can
    come back. An empty disk has lost its records, so it is no candidate.
    """
    if not obs.settings.async_flush or not leadership.in_sync:
        return None
    restarted: list[Report] = []
    for id in leadership.in_sync:
        view = obs.view(id.member)
        # One that is silent may come back with its log, and one with its old name can prove it: both have more to
        # offer.
        if view is None or not view.heard or view.report is None or view.report.id == id:
            return None
        if view.report.end > 0:
            restarted.append(view.report)
    return max(restarted, key=lambda r: (r.rank, -r.id.member), default=None)


def unclean(obs: Observation, leadership: LeadershipRecord) -> tuple[Report, int] | None:
    """Return the best member that answers, and the minimum of bytes given up; None: a member of the set may come back.

    A member that answers and refuses its assignments delays this for as long as a member that does not answer.
    """
    best: Report | None = None
    known_end = 0
    for view in obs.members:
        report = view.report
        if report is None:
            continue
        known_end = max(known_end, report.end)
        if view.heard and not view.refused and (best is None or (report.rank, -view.number) > _key(best)):
            best = report
    if best is None:
        return None
    for id in leadership.in_sync:
        recorded = obs.view(id.member)
        if recorded is None:
            continue
        lost_its_disk = recorded.heard and recorded.report is not None and recorded.report.id != id
        away_ms = recorded.refused_ms if recorded.heard else recorded.reach_ms
        if not lost_its_disk and away_ms < obs.settings.unclean_after_ms:
            return None
    return best, max(0, known_end - best.end)


def _key(report: Report) -> tuple[tuple[int, int], int]:
    return (report.rank, -report.id.member)
