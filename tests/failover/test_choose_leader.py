"""Scenarios for the decisions. Numbers in names are rules of docs/replication.md or issues of other projects."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.contracts.leadership import InSyncSetProposal, LeadershipRecord, MemberId
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import (
    Bootstrap,
    CancelHandover,
    Demote,
    ExpandInSyncSet,
    FailoverSettings,
    FollowerView,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    RejectProposal,
    Report,
    RequestHandover,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
)

A, B, C = (MemberId(n, "x") for n in range(3))
LEADERSHIP = LeadershipRecord(3, 7, A, frozenset({A, B, C}))


def member(number: int, **report: Any) -> MemberView:
    """A healthy member with the assignment of CELL: 0 leads, the others follow."""
    id = MemberId(number, "x")
    values: dict[str, Any] = {"epoch": 3, "version": 7, "highest_seen_epoch": 3, "last_epoch": 3, "end": 1_000}
    if number == 0:
        values |= {"role": "Master", "followers": (FollowerView(B, 1_000, 100), FollowerView(C, 1_000, 100))}
    else:
        values |= {"role": "Slave", "link": "connected", "link_leader": A, "link_answer_ms": 100}
    values |= {"in_sync": LEADERSHIP.in_sync} | report
    return MemberView(number, f"demo-a-{number}", f"h{number}:1", Report(id=id, **values) if "id" not in values
                      else Report(**values), age_ms=100, reach="ok")  # fmt: skip


def group(
    a: MemberView | None = None, b: MemberView | None = None, c: MemberView | None = None, **more: Any
) -> Observation:
    members = (a or member(0), b or member(1), c or member(2))
    return Observation(
        "a", members, more.pop("leadership", LEADERSHIP), FailoverSettings(**more.pop("settings", {})), **more
    )


def unheard(number: int, reach: Any = "silent", silence: int = 2_500, **changes: Any) -> MemberView:
    return replace(member(number), reach=reach, reach_ms=silence, age_ms=silence, **changes)


def refused(number: int) -> MemberView:
    """A follower whose connections to the leader are refused."""
    return member(number, link="refused", link_answer_ms=150)


def silent(number: int) -> MemberView:
    return member(number, link="silent", link_answer_ms=2_400)


def promotion(obs: Observation) -> Promote:
    first = decide(obs)[0]
    assert isinstance(first, Promote), first
    return first


def wait(obs: Observation) -> Wait:
    [first] = decide(obs)
    assert isinstance(first, Wait), first
    return first


def test_all_is_well() -> None:
    assert decide(group()) == []


def test_a_process_that_is_gone_is_dead_at_once() -> None:
    p = promotion(group(a=unheard(0, "refused", 0, gone=True), c=member(2, end=1_100)))
    assert p.new == C
    assert p.leadership == LeadershipRecord(4, 8, C, frozenset({B, C}))
    assert p.reason == "the process of demo-a-0 is gone"


def test_refused_for_the_operator_and_for_every_follower_is_dead_at_once() -> None:
    p = promotion(group(a=unheard(0, "refused", 0), b=refused(1), c=refused(2)))
    assert p.new == B
    assert "refused" in p.reason


def test_refused_for_the_operator_alone_is_not_dead() -> None:
    assert "demo-a-2 still hears it" in wait(group(a=unheard(0, "refused", 9_000), b=refused(1))).reason


def test_silent_is_dead_after_the_detection_timeout_if_no_follower_fetches() -> None:
    assert wait(group(a=unheard(0, silence=1_900), b=silent(1), c=silent(2))).code == "master-state-unknown"
    assert promotion(group(a=unheard(0, silence=2_000), b=silent(1), c=silent(2))).new == B
    assert wait(group(a=unheard(0, silence=9_000), b=silent(1))).code == "master-state-unknown"


def test_an_operator_without_any_contact_decides_nothing() -> None:
    w = wait(group(a=unheard(0, "refused", 90_000), b=unheard(1, silence=90_000), c=unheard(2, silence=90_000)))
    assert not w.available
    assert "no other member answers" in w.reason


def never_heard(tried_ms: int) -> MemberView:
    """The leader as an operator sees it that began to act this long ago and has tried to reach it since."""
    return replace(unheard(0, silence=tried_ms), report=None, age_ms=0)


def test_an_operator_that_has_just_begun_believes_followers_that_heard_nothing_for_long() -> None:
    """Otherwise the silence before the operator's start would have to pass again."""
    said = promotion(group(a=never_heard(300), b=silent(1), c=silent(2)))
    assert (said.new, said.reason) == (B, "nothing was heard of demo-a-0 for 2.5 s")
    assert wait(group(a=never_heard(299), b=silent(1), c=silent(2))).code == "master-state-unknown", (
        "it tries itself first"
    )
    assert wait(group(a=never_heard(1_500), b=silent(1))).code == "master-state-unknown", "one of them hears it"
    for word in ({"link_answer_ms": 1_500}, {"link_answer_ms": -1}, {"link": "none"}):
        young = member(1, **({"link": "silent", "link_answer_ms": 2_400} | word))
        alone = unheard(2)
        assert wait(group(a=never_heard(1_500), b=young, c=alone)).code == "master-state-unknown", word
    older = replace(member(1, link="silent", link_answer_ms=1_500), age_ms=600)
    assert promotion(group(a=never_heard(300), b=older, c=unheard(2))).new == B, "time has passed since it said so"


def test_followers_silence_does_not_count_against_a_leader_that_was_heard() -> None:
    """A network cut between the leader and its followers alone: the operator heard the leader a moment ago."""
    assert wait(group(a=unheard(0, silence=1_000), b=silent(1), c=silent(2))).code == "master-state-unknown"


def test_unreachable_members_do_not_delay_the_decision() -> None:
    assert promotion(group(a=unheard(0, "refused", 0), b=refused(1), c=unheard(2))).leadership.in_sync == {B}


def test_cloudnative_pg_6154_a_silent_master_is_replaced_without_any_word_about_its_node() -> None:
    """There it took 40 to 80 s, until Kubernetes declared the node dead; here only our own detection counts."""
    assert promotion(group(a=unheard(0, silence=2_100), b=silent(1), c=silent(2))).kind == "failover"


def test_cloudnative_pg_6091_pod_and_volume_deleted_together() -> None:
    """Every path to a lost leader ends in a decision: no pod, a new empty disk, a removed member."""
    new_disk = member(
        0, id=MemberId(0, "z"), role="Waiting", epoch=0, version=0, highest_seen_epoch=0, last_epoch=0, end=0
    )
    for a in (replace(unheard(0), gone=True, report=None), new_disk):
        assert promotion(group(a=a)).new == B
    assert promotion(Observation("a", (member(1), member(2)), LEADERSHIP)).new == B
    assert promotion(group(a=replace(unheard(0, silence=600), deleting=True))).new == B


def test_cloudnative_pg_11348_promotion_never_waits_for_the_old_master() -> None:
    """Nothing that the old leader reports or omits delays the promotion after its death."""
    for old in (unheard(0), unheard(0, pending=True), unheard(0, "refused"), unheard(0, deleting=True)):
        assert promotion(group(a=old, b=silent(1), c=silent(2))).new == B
    fenced = decide(group(a=unheard(0, gone=True), b=member(1, role="Master", epoch=2, version=9), c=member(2)))
    assert isinstance(fenced[0], Promote)
    assert isinstance(fenced[1], Demote)


def test_cloudnative_pg_7888_a_pod_about_to_stop_hands_over_first() -> None:
    [d] = decide(group(a=replace(member(0), deleting=True)))
    assert isinstance(d, RequestHandover)
    assert d.target == B
    assert d.leadership == LEADERSHIP


def test_when_all_members_are_being_stopped_the_role_does_not_move() -> None:
    """A cluster that is deleted: each new leader would be about to be stopped as well."""
    leaving = [replace(member(n), deleting=True) for n in range(3)]
    assert decide(group(*leaving)) == []
    [d] = decide(group(leaving[0], leaving[1], member(2), settings={"min_in_sync": 3}))
    assert isinstance(d, RequestHandover)
    assert d.target == C


def test_without_a_candidate_the_reason_names_missing_members() -> None:
    w = wait(group(a=unheard(0, gone=True), leadership=replace(LEADERSHIP, in_sync=frozenset({A}))))
    assert w.code == "no-candidate"
    assert "in-sync set (demo-a-0)" in w.reason


def test_unclean_says_how_many_bytes_it_gives_up_and_waits_first() -> None:
    leadership = replace(LEADERSHIP, in_sync=frozenset({A}))
    b, c = member(1, end=400), member(2, end=700)
    early = group(a=unheard(0, gone=True, silence=5_000), b=b, c=c, leadership=leadership, settings={"unclean": True})
    assert wait(early).code == "no-candidate"
    late = group(a=unheard(0, gone=True, silence=10_000), b=b, c=c, leadership=leadership, settings={"unclean": True})
    p = promotion(late)
    assert (p.kind, p.new, p.lost_bytes) == ("unclean", C, 300)
    assert "gives up at least 300 bytes" in p.reason


def test_a_changed_unclean_is_sent_to_followers_that_have_the_leadership_record() -> None:
    """Rule 3: a member that stopped at its confirmed offset waits for this, and no record is written without a
    cause.
    """
    leadership = replace(LEADERSHIP, in_sync=frozenset({A, B}))
    allowed = {"leadership": leadership, "settings": {"unclean": True}}
    [decided] = decide(group(**allowed))
    assert isinstance(decided, SendAssignment), decided
    assert (decided.member, decided.assignment.unclean, decided.assignment.leadership) == (2, True, leadership)
    knows = replace(member(2), assigned_unclean=True)
    assert decide(group(c=knows, **allowed)) == []
    [decided] = decide(group(c=knows, leadership=leadership))
    assert isinstance(decided, SendAssignment), decided
    assert (decided.member, decided.assignment.unclean) == (2, False), "a withdrawn permission is sent as well"


def test_unclean_is_sent_again_by_a_new_operator() -> None:
    [decided] = decide(group(c=replace(member(2), assigned_unclean=None)))
    assert isinstance(decided, SendAssignment), decided
    assert (decided.member, decided.assignment.unclean) == (2, False)
    assert decide(group(c=replace(member(2), assigned_unclean=None, pending=True))) == []


def test_a_handover_does_not_wait_for_a_change_of_unclean() -> None:
    [asked] = decide(group(c=replace(member(2), assigned_unclean=None), switchover=Switchover(1)))
    assert isinstance(asked, RequestHandover), asked


def test_manual_mode_promotes_no_member_without_a_request() -> None:
    obs = group(a=unheard(0, gone=True), settings={"automatic": False})
    assert wait(obs).code == "manual-failover-required"
    assert promotion(replace(obs, switchover=Switchover(to=2, force=True))).new == C


def test_rule_16_an_unproven_master_is_not_promoted_again_while_another_has_its_proof() -> None:
    a = member(0, id=MemberId(0, "z"), role="Waiting", log_trusted=False, end=2_000)
    assert promotion(group(a=a)).new == B


def test_rule_16_when_everyone_lost_the_proof_the_best_leads_and_says_so() -> None:
    members = [member(n, id=MemberId(n, "z"), role="Waiting", log_trusted=False, end=500 + n) for n in range(3)]
    p = promotion(group(*members))
    assert (p.kind, p.new) == ("unproven", MemberId(2, "z"))
    assert p.leadership.in_sync == {MemberId(2, "z")}
    assert wait(group(members[0], members[1], unheard(2, silence=90_000))).code == "no-candidate"
    assert wait(group(*members, settings={"async_flush": False})).code == "no-candidate"
    empty = [member(n, id=MemberId(n, "z"), role="Waiting", last_epoch=0, end=0) for n in range(3)]
    assert wait(group(*empty)).code == "no-candidate"


def test_new_volumes_beside_a_kept_leadership_record_are_reported_with_the_remedy() -> None:
    """No member is promoted, since messages are missing. After a deliberate deletion the wait would never end."""
    nothing = {"epoch": 0, "version": 0, "highest_seen_epoch": 0, "last_epoch": 0, "end": 0, "in_sync": frozenset()}
    new = [member(n, id=MemberId(n, "z"), role="Waiting", **nothing) for n in range(3)]
    assert "every disk is new: to begin without the former messages, delete" in wait(group(*new)).reason
    assert "every disk is new" not in wait(group(*new[:2], unheard(2))).reason, "it may bring them"


def test_rule_17_a_proposal_is_recorded_on_its_version_only() -> None:
    leadership = replace(LEADERSHIP, in_sync=frozenset({A}))
    asking = member(0, proposal=InSyncSetProposal(7, frozenset({A, B})))
    [d] = decide(group(a=asking, leadership=leadership))
    assert isinstance(d, ExpandInSyncSet)
    assert d.leadership == LeadershipRecord(3, 8, A, frozenset({A, B}))
    older = decide(
        group(
            a=replace(asking, report=member(0, proposal=InSyncSetProposal(6, frozenset({A, B}))).report),
            leadership=leadership,
        )
    )
    assert older == []


def test_rule_18_a_refusal_moves_the_version() -> None:
    leadership = replace(LEADERSHIP, in_sync=frozenset({A}))
    asking = member(0, proposal=InSyncSetProposal(7, frozenset({A, B})))
    [d] = decide(group(a=asking, b=unheard(1, gone=True), leadership=leadership))
    assert isinstance(d, RejectProposal)
    assert d.leadership == leadership.touched()
    [d] = decide(group(a=member(0, proposal=InSyncSetProposal(7, frozenset({A, B})))))
    assert isinstance(d, RejectProposal), "the leader removes no member"
    another = member(1, id=MemberId(1, "z"))
    [d] = decide(group(a=asking, b=another, leadership=leadership))
    assert isinstance(d, RejectProposal), "the disk that was proposed does not run any more"


def test_a_member_that_has_just_started_is_not_refused_before_its_status_can_be_read() -> None:
    """Its fetches come first. A rejection would keep it out for seconds."""
    leadership = replace(LEADERSHIP, in_sync=frozenset({A, C}))
    asking = member(0, proposal=InSyncSetProposal(7, frozenset({A, B, C})))
    assert decide(group(a=asking, b=unheard(1, "refused"), leadership=leadership)) == [], (
        "its master heard it 200 ms ago"
    )
    [d] = decide(group(a=asking, leadership=leadership))
    assert isinstance(d, ExpandInSyncSet)
    idle = member(
        0,
        proposal=InSyncSetProposal(7, frozenset({A, B, C})),
        followers=(FollowerView(B, 1_000, 900), FollowerView(C, 1_000, 0)),
    )
    [d] = decide(group(a=idle, b=unheard(1, "refused"), leadership=leadership))
    assert isinstance(d, RejectProposal), "no member answers, and its leader has heard nothing for a second"


def test_rule_17_the_operator_removes_lost_followers_but_never_the_leader() -> None:
    [d] = decide(group(c=unheard(2, "refused", gone=True)))
    assert isinstance(d, ShrinkInSyncSet)
    assert d.leadership == LeadershipRecord(3, 8, A, frozenset({A, B}))
    slow = member(0, followers=(FollowerView(B, 1_000, 100), FollowerView(C, 900, 2_100)))
    [d] = decide(group(a=slow))
    assert isinstance(d, ShrinkInSyncSet)
    assert "demo-a-2 has not fetched for 2.1 s" in d.reason
    assert decide(group(c=unheard(2, "silent", 9_000))) == [], "its master still hears it"
    [d] = decide(group(b=replace(member(1), stalled_ms=10_000)))
    assert isinstance(d, ShrinkInSyncSet)
    assert decide(group(c=unheard(2, gone=True), settings={"min_in_sync": 3})) == []


def test_rule_17_a_follower_leaves_the_set_before_it_is_stopped() -> None:
    going = replace(member(1), deleting=True)
    [first, *_] = decide(group(b=going))
    assert isinstance(first, ShrinkInSyncSet)
    assert (first.removed, first.reason) == (frozenset({B}), "demo-a-1 is about to be stopped")
    assert decide(group(b=going, settings={"min_in_sync": 3})) == [], "not below minInSyncReplicas"
    for c in (replace(member(2), deleting=True), unheard(2, silence=500)):
        assert decide(group(b=going, c=c)) == [], "the master would be alone with what it promises"


def test_the_age_of_a_frozen_leaders_last_line_does_not_count_against_its_followers() -> None:
    """Otherwise the set shrinks to the frozen leader just before it counts as silent, and no member may take over."""
    for age in range(0, 2_000, 50):
        frozen = replace(member(0), reach="silent", reach_ms=age, age_ms=age)
        assert not any(isinstance(d, ShrinkInSyncSet) for d in decide(group(a=frozen))), age


def test_rule_20_a_promotion_writes_the_answering_members_of_the_old_set() -> None:
    assert promotion(group(a=unheard(0, gone=True), c=unheard(2))).leadership.in_sync == {B}


def test_rule_21_a_master_that_restarted_gets_a_new_epoch_which_may_be_its_own() -> None:
    p = promotion(group(a=member(0, role="Waiting")))
    assert (p.new, p.kind, p.leadership.epoch) == (A, "restart", 4)
    assert promotion(group(a=member(0, role="Waiting", end=900))).new == B
    assert promotion(group(a=member(0, role="Waiting"), settings={"automatic": False})).new == A


def test_rule_21_a_report_older_than_the_answer_is_no_restart() -> None:
    assert decide(group(a=replace(member(0, role="Waiting"), pending=True))) == []


def test_a_pending_assignment_delays_no_newer_one() -> None:
    """A follower that accepted a larger set a moment ago, and whose next line is still to come, becomes leader."""
    leadership = LeadershipRecord(4, 8, B, frozenset({B, C}))
    just_assigned = replace(member(1), pending=True, assigned_order=(3, 7))
    [d] = decide(group(a=unheard(0, gone=True), b=just_assigned, leadership=leadership))
    assert isinstance(d, SendAssignment)
    assert d.member == 1
    assert (
        decide(group(a=unheard(0, gone=True), b=replace(just_assigned, assigned_order=(4, 8)), leadership=leadership))
        == []
    )


def test_a_master_that_heard_of_a_higher_epoch_gets_one_above_it() -> None:
    assert promotion(group(a=member(0, highest_seen_epoch=40))).leadership.epoch == 41


def test_rule_22_first_start_asks_every_disk() -> None:
    new = [member(n, role="Waiting", epoch=0, version=0, highest_seen_epoch=0, last_epoch=0, end=0) for n in range(3)]
    [d] = decide(group(*new, leadership=None))
    assert isinstance(d, Bootstrap)
    assert d.leadership == LeadershipRecord(1, 1, A, frozenset({A, B, C}))
    assert "demo-a-2" in wait(group(new[0], new[1], unheard(2), leadership=None)).reason
    no_disk = replace(unheard(2, silence=30_000), report=None, never_ran=True)
    [d] = decide(group(new[0], new[1], no_disk, leadership=None))
    assert isinstance(d, Bootstrap)
    assert d.leadership.in_sync == {A, B}
    early = wait(group(new[0], new[1], replace(no_disk, reach_ms=29_999), leadership=None))
    assert early.code == "waiting-for-members", "volumes take their time"


def test_rule_22_a_group_never_begins_without_the_member_whose_disk_is_filled() -> None:
    """A restore or a migration fills member 0. Without its records the group would begin empty, and cut them later."""
    new = [member(n, role="Waiting", epoch=0, version=0, highest_seen_epoch=0, last_epoch=0, end=0) for n in range(3)]
    no_disk = replace(unheard(0, silence=3_600_000), report=None, never_ran=True)
    filled = {"filled": 0}
    said = wait(group(no_disk, new[1], new[2], leadership=None, settings=filled))
    assert (said.code, said.available) == ("waiting-for-members", False)
    assert said.reason == "waiting for demo-a-0: spec.bootstrap fills its disk, and the group begins with its log"
    other = replace(no_disk, number=2, name="demo-a-2")
    copied = member(0, role="Waiting", epoch=0, version=0, highest_seen_epoch=0, last_epoch=4, end=9_000)
    [d] = decide(group(copied, new[1], other, leadership=None, settings=filled))
    assert isinstance(d, Bootstrap)
    assert d.leadership == LeadershipRecord(5, 1, A, frozenset({A})), "it waits for no other member without a disk"


def test_rule_22_a_lost_leadership_record_is_recovered_from_the_disks() -> None:
    b = member(1, version=6, in_sync=frozenset({A, B, C}), end=5_000)
    [d] = decide(group(b=b, a=member(0, in_sync=frozenset({A, C})), leadership=None))
    assert isinstance(d, Recover)
    assert d.leadership.in_sync == {A, C}, "the newest that any disk knows"
    assert d.leadership.epoch > 3
    assert wait(group(c=unheard(2, silence=90_000), leadership=None)).code == "recovery-blocked"
    new = member(2, id=MemberId(2, "z"), epoch=0, version=0, last_epoch=0, end=0)
    assert wait(group(c=new, leadership=None)).code == "recovery-blocked"
    pair = {"in_sync": frozenset({A, B})}
    w = wait(group(a=member(0, **pair), b=member(1, **pair), c=new, leadership=None))
    assert "is new" in w.reason, "that disk may have known a newer set, with itself in it"
    decided = replace(member(1), pending=True)
    assert wait(group(b=decided, leadership=None)).code == "recovery-blocked", "its report is older than its assignment"


def test_rule_22_an_older_registry_is_treated_as_lost() -> None:
    [d] = decide(group(leadership=LeadershipRecord(2, 3, B, frozenset({B}))))
    assert isinstance(d, Recover)
    assert d.leadership.epoch > 3


def test_the_new_leader_is_assigned_first_then_the_others() -> None:
    leadership = LeadershipRecord(4, 8, B, frozenset({B, C}))
    [d] = decide(group(a=unheard(0, gone=True), leadership=leadership))
    assert isinstance(d, SendAssignment)
    assert (d.member, d.assignment.leadership, d.assignment.leader_address) == (1, leadership, "h1:1")
    leads = member(1, role="Master", epoch=4, version=8, highest_seen_epoch=4)
    [d] = decide(group(a=unheard(0, gone=True), b=leads, leadership=leadership))
    assert isinstance(d, SendAssignment)
    assert d.member == 2


def test_an_old_leader_is_fenced_at_once_but_with_paused_writes_only_after_the_new_one_leads() -> None:
    leadership = LeadershipRecord(4, 8, B, frozenset({A, B, C}))
    assign, fence = decide(group(leadership=leadership))
    assert isinstance(assign, SendAssignment)
    assert isinstance(fence, Demote)
    assert fence.member == 0
    [assign] = decide(group(a=member(0, writes_paused=True), leadership=leadership))
    assert isinstance(assign, SendAssignment)
    leads = member(1, role="Master", epoch=4, version=8, highest_seen_epoch=4)
    assert isinstance(decide(group(a=member(0, writes_paused=True), b=leads, leadership=leadership))[0], Demote)


def test_rule_23_swap_only_on_the_leadership_record_of_the_handover_request() -> None:
    writes_paused = member(0, writes_paused=True)
    [d] = decide(group(a=writes_paused, handover=HandoverReady((3, 7), C)))
    assert isinstance(d, Promote)
    assert d.leadership == LeadershipRecord(4, 8, C, frozenset({A, B, C}))
    [d] = decide(group(a=writes_paused, handover=HandoverReady((3, 6), C)))
    assert isinstance(d, CancelHandover)
    assert d.leadership == LEADERSHIP.touched()
    [d] = decide(group(a=writes_paused))
    assert isinstance(d, CancelHandover), "an abandoned handover is ended by a new version"
    assert wait(group(a=writes_paused, handover_requested=True)).code == "handover"


def test_switchover_picks_the_requested_member_or_gives_the_reason() -> None:
    [d] = decide(group(switchover=Switchover(to=2)))
    assert isinstance(d, RequestHandover)
    assert d.target == C
    leadership = replace(LEADERSHIP, in_sync=frozenset({A, B}))
    assert "demo-a-2 is not in sync" in wait(group(leadership=leadership, switchover=Switchover(to=2))).reason
    assert wait(group(switchover=Switchover(to=0))).code == "switchover-done"


def test_a_request_that_cannot_be_fulfilled_delays_no_other() -> None:
    only_b = replace(LEADERSHIP, in_sync=frozenset({A, B}))
    request = Switchover(to=2, force=True)
    asked, waits = decide(group(a=member(0, not_promotable="its disk is full"), leadership=only_b, switchover=request))
    assert isinstance(asked, RequestHandover), asked
    assert (asked.target, asked.reason, asked.request) == (B, "demo-a-0 should not lead: its disk is full", None)
    assert isinstance(waits, Wait)
    assert waits.reason == "demo-a-2 is not in sync with demo-a-0 yet", "the user gets the reason"
    dead = unheard(0, gone=True)
    assert promotion(group(a=dead, leadership=only_b, switchover=request)).new == B
    manual = group(a=dead, leadership=only_b, switchover=request, settings={"automatic": False})
    assert wait(manual).code == "switchover-target-not-ready", "a user has chosen another target"


def test_a_leader_cut_off_from_its_followers_is_replaced_when_writes_need_them() -> None:
    cut = {"link": "silent", "link_answer_ms": 4_500}
    obs = group(a=member(0), b=member(1, **cut), c=member(2, **cut), settings={"min_in_sync": 2})
    assert promotion(obs).leadership.in_sync == {B, C}
    assert not any(isinstance(d, Promote) for d in decide(replace(obs, settings=FailoverSettings(min_in_sync=1))))


def test_one_member_restarts_into_its_own_next_epoch() -> None:
    alone = Observation("a", (member(0, role="Waiting", followers=()),), LeadershipRecord(3, 7, A, frozenset({A})))
    assert promotion(alone).leadership == LeadershipRecord(4, 8, A, frozenset({A}))


def test_decisions_are_cheap() -> None:
    """The simulation makes millions of decisions, and an operator decides for two hundred groups every second."""
    obs = group()
    start = time.thread_time()
    for _ in range(2_000):
        decide(obs)
    assert time.thread_time() - start < 2


def refusing(view: MemberView, why: str = "it answered 500: no room", **more: Any) -> MemberView:
    return replace(view, refused=why, **more)


def test_a_master_that_leads_and_refuses_another_version_for_its_token_goes_on_leading() -> None:
    """For example it lacks the new token. All others may lack it, too, and each epoch would cost a copy."""
    decided = decide(
        group(
            a=refusing(member(0), "it answered 401: another token", lacks_token=True), leadership=LEADERSHIP.touched()
        )
    )
    assert [d for d in decided if not isinstance(d, SendAssignment)] == []
    alone = group(a=refusing(member(0, role="Slave"), "401", lacks_token=True), b=unheard(1), c=unheard(2))
    assert wait(alone).code == "no-candidate"


@pytest.mark.parametrize("not_promotable", ["", "its disk is full"])
def test_a_leader_that_cannot_store_a_version_is_replaced(not_promotable: str) -> None:
    """Whether it has noticed its full disk or not: its writes wait for the removed member of its set."""
    shrunk = LEADERSHIP.with_set({A, B})
    a = refusing(member(0, not_promotable=not_promotable), refused_ms=2_000)
    p = promotion(group(a=a, c=unheard(2), leadership=shrunk))
    assert (p.leadership.master, p.leadership.in_sync) == (B, {B})
    for goes_on in (
        {"a": replace(a, refused_ms=1_900), "b": member(1)},
        {"a": a, "b": replace(member(1), deleting=True)},
    ):
        decisions = decide(group(**goes_on, c=unheard(2), leadership=shrunk))
        assert not [d for d in decisions if isinstance(d, Promote)], "a short refusal, or a candidate that leaves"


@pytest.mark.parametrize("settings", [{}, {"unclean": True}])
def test_a_leader_that_cannot_write_stays_without_a_better_candidate(settings: dict[str, Any]) -> None:
    full = refusing(member(0, not_promotable="its disk is full"), refused_ms=60_000)
    for others in (
        {"b": unheard(1, silence=60_000), "c": member(2, end=10)},
        {"b": member(1, not_promotable="its disk is full"), "c": unheard(2)},
        {"b": refusing(member(1)), "c": unheard(2)},
    ):
        decisions = decide(group(a=full, **others, leadership=LEADERSHIP.with_set({A, B}), settings=settings))
        assert not [d for d in decisions if isinstance(d, Promote | Demote)], decisions
    [decided] = decide(group(a=full, leadership=LEADERSHIP.touched(), settings={"automatic": False}))
    assert isinstance(decided, SendAssignment), "a user decides"


def test_followers_are_assigned_though_the_leader_refuses_a_version_of_its_epoch() -> None:
    waiting = member(1, role="Waiting", version=0)
    decided = decide(
        group(a=refusing(member(0)), b=waiting, c=unheard(2), leadership=LeadershipRecord(3, 8, A, frozenset({A})))
    )
    assert {d.member for d in decided if isinstance(d, SendAssignment)} == {0, 1}


@pytest.mark.parametrize(("refused_ms", "given_up"), [(0, False), (9_000, False), (10_000, True)])
def test_a_refusing_member_delays_an_unclean_promotion_like_an_absent_one(refused_ms: int, given_up: bool) -> None:
    alone = LeadershipRecord(4, 8, B, frozenset({B}))
    b = replace(member(1), refused="it answered 401: another token", refused_ms=refused_ms, reach_ms=60_000)
    gone = unheard(0, "refused", 0, gone=True)
    first = decide(group(a=gone, b=b, c=member(2, end=10), leadership=alone, settings={"unclean": True}))[0]
    assert isinstance(first, Promote) is given_up
