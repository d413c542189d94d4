"""The choice of a leader in mode MasterSlave, and the other decisions of one group.

Numbers in brackets are rules of docs/replication.md.

Safety does not depend on correct observations. A promotion stays within the recorded set. Every write is a
compare-and-swap of the whole leadership record. Assignments are sent only after they are recorded. Observations decide
only when to act.
"""

from __future__ import annotations

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord

from gantry_operator.failover.bootstrap import bootstrap, recover
from gantry_operator.failover.detect import LeaderState, leader_state
from gantry_operator.failover.in_sync_set import names, review_proposal, shrink
from gantry_operator.failover.model import (
    CancelHandover,
    Decision,
    Demote,
    MemberView,
    Observation,
    Promote,
    Report,
    RequestHandover,
    SendAssignment,
    Switchover,
    Wait,
)
from gantry_operator.failover.promotion import (
    candidates,
    has_healthy_candidate,
    next_leadership,
    promote,
    unclean,
    untrusted,
)
from gantry_operator.failover.second_site import second_site


def decide(obs: Observation) -> list[Decision]:
    """Return at most one write, then the assignments to send meanwhile. An empty list: no action is needed."""
    leadership = obs.leadership
    if at_second_site := second_site(obs):
        return [at_second_site]
    if leadership is None:
        return [bootstrap(obs)]
    ahead = [m for m in obs.members if m.report is not None and m.report.order > leadership.order]
    # [15] The registry has lost a write that a member acted on. A promotion on it would give an epoch twice.
    if ahead:
        who = ", ".join(m.name for m in ahead)
        return [recover(obs, f"the registry holds an older record than {who}")]
    state = leader_state(obs, leadership)
    if state.state in ("leading", "unassigned"):
        return _with_leader(obs, leadership, state)
    decision = _without_leader(obs, leadership, state)
    return [decision, *_demotions(obs, leadership)]


def _with_leader(obs: Observation, leadership: LeadershipRecord, state: LeaderState) -> list[Decision]:
    assert leadership.master is not None
    view = obs.view(leadership.master.member)
    assert view is not None
    assert view.report is not None
    leader = view.report
    if obs.handover is not None:
        return [_finish_handover(obs, leadership)]
    if obs.handover_requested:
        return [Wait("handover", f"{view.name} waits until its successor has the whole log")]
    if state.state == "leading":
        isolated = _isolated(obs, leadership)
        if isolated is not None:
            return [isolated]
        # At most one write: each is a swap of the record that was read before this decision.
        write = review_proposal(obs, leadership, leader, view.age_ms) or shrink(obs, leadership, leader, view.age_ms)
        if write is not None:
            return [write]
        if leader.writes_paused and not view.pending and leader.order == leadership.order:
            # [23] Only a higher version ends the pause: a swap on the former one could still come.
            return [CancelHandover(leadership.touched(), f"{view.name} pauses writes for a handover that was given up")]
    decisions = _assignments(obs, leadership, view)
    if state.state == "leading" and all(_refused_by_follower(obs, d, view) for d in decisions):
        waits: list[Decision] = []
        for handover in _handover_reasons(obs, leadership, view, leader):
            step = _start_handover(obs, leadership, view, handover)
            if isinstance(step, RequestHandover):
                # The user still gets the reason why the other request waits.
                return [step, *decisions, *waits]
            waits.append(step)
        return [*decisions, *(waits[:1] or _unclean_assignments(obs, leadership))]
    return decisions


def _refused_by_follower(obs: Observation, decision: Decision, leader: MemberView) -> bool:
    """Return whether a follower refused this assignment. One that does, for example with a full disk, gets it again and
    delays no handover.
    """
    if not isinstance(decision, SendAssignment) or decision.member == leader.number:
        return False
    view = obs.view(decision.member)
    return view is not None and view.refused != ""


def _without_leader(obs: Observation, leadership: LeadershipRecord, state: LeaderState) -> Decision:
    if state.state == "doubt":
        return Wait("master-state-unknown", state.reason, available=False)
    lost = leadership.master if state.state == "dead" else None
    # [20] Within the recorded set alone: all others may lack acknowledged records, however far they seem to be.
    able = candidates(obs, leadership, without=lost)
    forced = obs.switchover is not None and obs.switchover.force
    target = obs.switchover.to if obs.switchover is not None and forced else None
    if target is not None:
        # Without automatic failover a target that cannot lead is an error. Else another candidate leads meanwhile.
        chosen = [r for r in able if r.id.member == target]
        if not chosen and not obs.settings.automatic:
            reason = f"member {target} is not in sync or does not answer"
            return Wait("switchover-target-not-ready", reason, available=False)
        able = chosen or able
    if not obs.settings.automatic and not forced:
        # The same leader in a new epoch is no failover, so no user has to confirm it.
        able = [r for r in able if r.id == leadership.master]
        if not able:
            reason = f"{state.reason}; failover.automatic is false: `gantry switchover` promotes another"
            return Wait("manual-failover-required", reason, available=False)
    if able:
        return promote(obs, leadership, able[0], lost, state.reason)
    # [16] Only when no member of the set can prove its log any more. It then leads alone in the set: the logs of the
    # others may differ from its own until they have followed it.
    best = untrusted(obs, leadership)
    if best is not None:
        reason = "no member of the in-sync set can prove its log after an unclean stop; the best of them leads"
        return Promote(
            next_leadership(obs, leadership, best.id, {best.id}), leadership.master, best.id, reason, kind="unproven"
        )
    if obs.settings.unclean:
        lossy = unclean(obs, leadership)
        if lossy is not None:
            report, lost_bytes = lossy
            given_up = f"failover.unclean gives up at least {lost_bytes} bytes"
            reason = f"{state.reason}; no member of the in-sync set is left, {given_up}"
            # Alone, for the same reason. What its log lacks is lost from here on.
            new = next_leadership(obs, leadership, report.id, {report.id})
            return Promote(new, leadership.master, report.id, reason, kind="unclean", lost_bytes=lost_bytes)
    reason = f"{state.reason}; no member of the in-sync set ({names(obs, leadership.in_sync)}) can take over"
    if all(m.heard and m.report is not None and m.report.empty for m in obs.members):
        # The volumes were deleted, but the registry entry was kept.
        reason += "; every disk is new: to begin without the former messages, delete the group's entry in the registry"
    return Wait("no-candidate", reason, available=False)


def _isolated(obs: Observation, leadership: LeadershipRecord) -> Promote | None:
    """Promote another member if only the operator still reaches the leader and enough followers are together.

    Without this the set would shrink below `minInSyncReplicas`, and the group would refuse writes although enough
    members can reach each other.
    """
    if not obs.settings.automatic or obs.settings.min_in_sync < 2:
        return None
    assert leadership.master is not None
    cut_off: list[Report] = []
    for report in candidates(obs, leadership, without=leadership.master):
        if report.link_leader != leadership.master or report.link not in ("refused", "silent"):
            return None
        if report.link_answer_ms < 2 * obs.settings.detection_ms:
            return None
        cut_off.append(report)
    if len(cut_off) < obs.settings.min_in_sync:
        return None
    return promote(obs, leadership, cut_off[0], leadership.master, "the master is cut off from every follower in sync")


def _handover_reasons(
    obs: Observation, leadership: LeadershipRecord, view: MemberView, leader: Report
) -> list[Switchover]:
    """Return the reasons for a handover, most urgent first. A request that cannot be fulfilled blocks no other one."""
    reasons = [] if obs.switchover is None else [obs.switchover]
    if view.deleting and _candidate_stays(obs, leadership):
        reasons.append(Switchover(reason=f"{view.name} is about to be stopped"))
    if leader.not_promotable and obs.settings.automatic and has_healthy_candidate(obs, leadership):
        reasons.append(Switchover(reason=f"{view.name} should not lead: {leader.not_promotable}"))
    return reasons


def _candidate_stays(obs: Observation, leadership: LeadershipRecord) -> bool:
    """Another candidate is not about to be stopped. Otherwise the role would move between members that all stop."""
    views = [obs.view(r.id.member) for r in candidates(obs, leadership, without=leadership.master)]
    return any(v is not None and not v.deleting for v in views)


def _start_handover(
    obs: Observation, leadership: LeadershipRecord, view: MemberView, switchover: Switchover
) -> RequestHandover | Wait:
    if switchover.to == view.number:
        return Wait("switchover-done", f"{view.name} is master already")
    able = candidates(obs, leadership, without=leadership.master)
    if switchover.to is not None:
        able = [r for r in able if r.id.member == switchover.to]
    if not able:
        if switchover.to is None:
            return Wait("switchover-target-not-ready", f"no follower is in sync with {view.name} yet")
        target = obs.view(switchover.to)
        who = target.name if target is not None else f"member {switchover.to}"
        target_report = None if target is None or target.report is None else obs.heard_as(target.report.id)
        if target_report is not None and target_report.id in leadership.in_sync and target_report.not_promotable:
            return Wait("switchover-target-not-ready", f"{who} should not lead: {target_report.not_promotable}")
        return Wait("switchover-target-not-ready", f"{who} is not in sync with {view.name} yet")
    request = switchover if switchover is obs.switchover else None
    return RequestHandover(view.number, able[0].id, leadership, switchover.reason, request)


def _finish_handover(obs: Observation, leadership: LeadershipRecord) -> Promote | CancelHandover:
    ready = obs.handover
    assert ready is not None
    # [23] The target was compared with the leader under this very record; under another one the set may differ.
    usable = (
        ready.order == leadership.order
        and ready.target in leadership.in_sync
        and obs.heard_as(ready.target) is not None
    )
    if not usable:
        return CancelHandover(leadership.touched(), "the target of the handover is no longer in sync")
    # The old leader stays in the set: it has every record, and the new leader need not wait for its proposal.
    stays = {id for id in leadership.in_sync if obs.heard_as(id) is not None} | {ready.target}
    return Promote(
        next_leadership(obs, leadership, ready.target, stays),
        leadership.master,
        ready.target,
        ready.reason,
        kind="handover",
    )


def _assignments(obs: Observation, leadership: LeadershipRecord, leader: MemberView) -> list[Decision]:
    """Return the leader's assignment first: it would refuse a follower that comes earlier.

    An old leader is fenced at once, but one that has paused writes later: it forwards them to the new leader, which
    must lead first.
    """
    assert leader.report is not None
    assigned = leader.accepted_order == leadership.order or (
        leader.report.order == leadership.order and not leader.pending
    )
    # A follower needs the epoch. The version concerns the leader, which may refuse it when its disk is full.
    leads = assigned or (leader.report.role == "Master" and leader.report.epoch == leadership.epoch)
    steps: list[Decision] = []
    for m in obs.members:
        # A pending assignment delays only its own member: a newer record is sent at once.
        if not m.heard or m.report is None or (m.pending and m.assigned_order >= leadership.order):
            continue
        r = m.report
        to = _assignment(obs, leadership, m)
        if m.number == leader.number:
            if r.order < leadership.order:
                steps.insert(
                    0,
                    SendAssignment(
                        m.number, to, f"{m.name} leads epoch {leadership.epoch}, version {leadership.version}"
                    ),
                )
        elif r.role == "Master":
            if assigned or not r.writes_paused:
                steps.append(Demote(m.number, to, f"{m.name} is not master any more"))
        elif (assigned and r.order < leadership.order) or (
            leads and (r.epoch < leadership.epoch or r.role == "Waiting")
        ):
            steps.append(SendAssignment(m.number, to, f"{m.name} follows {leader.name} in epoch {leadership.epoch}"))
    return steps


def _unclean_assignments(obs: Observation, leadership: LeadershipRecord) -> list[Decision]:
    """Send the assignment again if `failover.unclean` has changed, because that changes no leadership record.

    A member keeps the flag, and the assignments of a former operator process are not known.
    """
    steps: list[Decision] = []
    for m in obs.members:
        follows = m.heard and not m.pending and m.report is not None and m.report.order == leadership.order
        if not follows or leadership.master is None or m.number == leadership.master.member:
            continue
        to = _assignment(obs, leadership, m)
        if m.assigned_unclean is not to.unclean:
            may = "may" if to.unclean else "must not"
            steps.append(SendAssignment(m.number, to, f"{m.name} {may} give confirmed records up"))
    return steps


def _demotions(obs: Observation, leadership: LeadershipRecord) -> list[Decision]:
    demotions: list[Decision] = []
    for m in obs.members:
        r = m.report
        assigned = m.pending and m.assigned_order >= leadership.order
        if m.heard and not assigned and r is not None and r.role == "Master" and r.order < leadership.order:
            demotions.append(Demote(m.number, _assignment(obs, leadership, m), f"{m.name} is not master any more"))
    return demotions


def _assignment(obs: Observation, leadership: LeadershipRecord, to: MemberView) -> Assignment:
    leader = None if leadership.master is None else obs.view(leadership.master.member)
    assert to.report is not None
    # [3] A member of the set never gets the permission to give up confirmed records: its copy is one that counts.
    return Assignment(
        leadership=leadership,
        leader_address=None if leader is None else leader.address,
        unclean=obs.settings.unclean and to.report.id not in leadership.in_sync,
    )
