"""The order of replacement: scenarios, and invariants over thousands of generated groups that are rolled to the end."""

from __future__ import annotations

from dataclasses import replace

from gantry_operator.plan.order import MemberState, next_step, replacement_order
from hypothesis import given, settings
from hypothesis import strategies as st


def member(number: int, **kw: bool) -> MemberState:
    values = {"outdated": False, "ready": True, "in_sync": True, "master": number == 0} | kw
    return MemberState(f"demo-a-{number}", number, **values)


def test_nothing_to_do() -> None:
    assert next_step([member(0), member(1)]).kind == "done"


def test_slaves_go_first_and_the_master_hands_over_to_a_new_one() -> None:
    old = [member(i, outdated=True) for i in range(3)]
    assert replacement_order(old) == ["demo-a-2", "demo-a-1", "demo-a-0"]
    assert next_step(old).member == "demo-a-2"
    new_slaves = [old[0], member(1), member(2)]
    step = next_step(new_slaves)
    assert (step.kind, step.member, step.to) == ("handover", "demo-a-0", "demo-a-1")
    handed_over = [replace(old[0], master=False), replace(member(1), master=True), member(2)]
    assert next_step(handed_over) == next_step(handed_over)
    assert (next_step(handed_over).kind, next_step(handed_over).member) == ("replace", "demo-a-0")


def test_the_master_hands_over_to_one_that_can_lead() -> None:
    """A member in sync may have a full disk, or no NameServer: the handover to it would be requested for ever."""
    last = [member(0, outdated=True), member(1, promotable=False), member(2)]
    assert (next_step(last).kind, next_step(last).to) == ("handover", "demo-a-2")
    none = [last[0], last[1], member(2, promotable=False)]
    assert next_step(none).to == "demo-a-1", "a problem of all members prevents none from leading"


def test_waits_for_a_member_that_catches_up() -> None:
    step = next_step([member(0, outdated=True), member(1, outdated=True), member(2, in_sync=False)])
    assert step.kind == "wait"
    assert "demo-a-2" in step.reason


def test_a_broken_member_is_replaced_at_once_so_that_a_bad_image_can_be_taken_back() -> None:
    states = [member(0), member(1), member(2, outdated=True, ready=False, in_sync=False, broken=True)]
    assert (next_step(states).kind, next_step(states).member) == ("replace", "demo-a-2")


def test_a_broken_master_is_replaced_unless_it_serves() -> None:
    """A group of one got a bad image: its only member stays the recorded master."""
    alone = member(0, outdated=True, ready=False, in_sync=False, broken=True)
    assert (next_step([alone]).kind, next_step([alone]).member) == ("replace", "demo-a-0")
    serves = member(0, outdated=True, ready=False, broken=True)
    assert next_step([serves, member(1, in_sync=False)]).kind == "wait"


def test_a_leaving_master_hands_over_and_stays_without_a_candidate() -> None:
    step = next_step([member(0, master=False), member(1, master=True, leaving=True)])
    assert (step.kind, step.to) == ("handover", "demo-a-0")
    assert next_step([member(0, master=True, leaving=True)]).kind == "wait"


def test_a_leaving_master_waits_for_a_candidate() -> None:
    """Kubernetes removes the highest number first. Here that would be another member than the leaving slave."""
    members = [member(n, master=n == 4, outdated=True, leaving=n > 2) for n in range(5)]
    assert (next_step(members).kind, next_step(members).member) == ("replace", "demo-a-2")
    members[2] = replace(members[2], outdated=False)
    step = next_step(members)
    assert (step.kind, step.member, step.to) == ("handover", "demo-a-4", "demo-a-2")


def test_a_broken_member_that_leaves_does_not_go_before_a_higher_one_that_leaves() -> None:
    """A StatefulSet always removes its highest number. Here that would be the master."""
    broken = member(2, leaving=True, broken=True, ready=False, in_sync=False)
    members = [member(0, master=False), member(1, in_sync=False), broken, member(3, master=True, leaving=True)]
    assert next_step(members).kind == "wait"
    members[1] = replace(members[1], in_sync=True)
    step = next_step(members)
    assert (step.kind, step.member, step.to) == ("handover", "demo-a-3", "demo-a-0")
    members[0], members[3] = replace(members[0], master=True), replace(members[3], master=False)
    assert (next_step(members).kind, next_step(members).member) == ("replace", "demo-a-3")
    members[1] = replace(members[1], in_sync=False)
    assert (next_step(members[:3]).kind, next_step(members[:3]).member) == ("replace", "demo-a-2")


def test_without_a_master_only_broken_members_are_touched() -> None:
    assert next_step([member(0, master=False, outdated=True), member(1, outdated=True)]).kind == "wait"


def test_a_single_member_is_replaced_and_the_reason_says_what_that_means() -> None:
    step = next_step([member(0, outdated=True)])
    assert (step.kind, step.member) == ("replace", "demo-a-0")
    assert "unavailable" in step.reason


@st.composite
def groups(draw: st.DrawFn) -> list[MemberState]:
    size = draw(st.integers(1, 5))
    keep = draw(st.integers(1, size))
    master = draw(st.integers(0, size - 1))
    return [
        MemberState(f"demo-a-{i}", i, draw(st.booleans()), True, True, i == master, leaving=i >= keep)
        for i in range(size)
    ]


@settings(max_examples=1500, deadline=None)
@given(groups())
def test_rolled_to_the_end_without_ever_stopping_the_master_of_a_larger_group(states: list[MemberState]) -> None:
    for _ in range(3 * len(states) + 3):
        step = next_step(states)
        if step.kind == "done":
            break
        assert step.kind != "wait", "all members work and are in sync: a step is always possible"
        target = next(m for m in states if m.name == step.member)
        if step.kind == "handover":
            candidate = next(m for m in states if m.name == step.to)
            assert candidate.in_sync
            assert candidate.ready
            assert not candidate.leaving
            assert not candidate.outdated
            states = [replace(m, master=m.name == step.to) for m in states]
        elif target.leaving:
            assert not target.master
            assert target.number == max(m.number for m in states), "a StatefulSet can give up no other"
            states = [m for m in states if m.name != step.member]
        else:
            assert not target.master or len([m for m in states if not m.leaving]) == 1
            states = [replace(m, outdated=False) if m.name == step.member else m for m in states]
    else:
        raise AssertionError("never done")
    assert not any(m.outdated or m.leaving for m in states)
    assert sum(m.master for m in states) == 1


def standby(number: int, **values: bool) -> MemberState:
    return member(number, **{"master": False, "standby": True, **values})


def test_members_of_a_standby_are_replaced_one_at_a_time_while_the_others_follow() -> None:
    members = [standby(i, outdated=True) for i in range(3)]
    replaced = []
    while (step := next_step(members)).kind != "done":
        assert (step.kind, step.member in replaced) == ("replace", False)
        replaced.append(step.member)
        starting = [replace(m, outdated=False, in_sync=False) if m.name == step.member else m for m in members]
        assert next_step(starting).kind == ("done" if len(replaced) == 3 else "wait")
        members = [replace(m, in_sync=True) for m in starting]
    assert replaced == ["demo-a-2", "demo-a-1", "demo-a-0"]


def test_a_standby_that_cannot_read_its_archive_takes_the_change_that_mends_it() -> None:
    members = [standby(0, outdated=True), standby(1, outdated=True, in_sync=False), standby(2, outdated=True)]
    assert next_step(members).member == "demo-a-1"
    none = [standby(i, outdated=True, in_sync=False, ready=False) for i in range(2)]
    assert (next_step(none).kind, next_step(none).member) == ("replace", "demo-a-1")


def test_members_leave_a_standby_from_the_highest_number_down() -> None:
    members = [standby(i, leaving=i > 0, outdated=i == 0, in_sync=i != 1) for i in range(3)]
    assert next_step(members).member == "demo-a-2"
    assert next_step(members[:2]).member == "demo-a-1"
    assert next_step(members[:1]).member == "demo-a-0"


def test_raft_the_next_one_goes_once_the_group_has_forgotten_the_last() -> None:
    five = [member(i, leaving=i >= 3) for i in range(5)]
    assert next_step(five).member == "demo-a-4"
    step = next_step(five[:4], still_counted=[4])
    assert (step.kind, "member 4" in step.reason) == ("wait", True)
    assert next_step(five[:4]).member == "demo-a-3"
    assert next_step(five[:3], still_counted=[3]).kind == "wait"
    assert next_step(five[:3]).kind == "done"


def copy(number: int, **values: bool) -> MemberState:
    return member(number, **{"master": False, "copies": True, **values})


def test_members_of_a_copy_are_replaced_one_at_a_time_and_the_follower_of_the_source_last() -> None:
    members = [copy(i, outdated=True) for i in range(3)]
    assert next_step([copy(0, outdated=True), copy(1, in_sync=False)]).kind == "wait"
    replaced = []
    while (step := next_step(members)).kind != "done":
        assert (step.kind, step.member in replaced) == ("replace", False)
        replaced.append(step.member)
        starting = [replace(m, outdated=False, in_sync=False) if m.name == step.member else m for m in members]
        assert next_step(starting).kind == ("done" if len(replaced) == 3 else "wait")
        members = [replace(m, in_sync=True) for m in starting]
    assert replaced == ["demo-a-2", "demo-a-1", "demo-a-0"]


def test_a_copy_that_does_not_follow_takes_the_change_that_mends_it() -> None:
    step = next_step([copy(0, outdated=True, in_sync=False), copy(1, outdated=True)])
    assert (step.member, "does not follow the source" in step.reason) == ("demo-a-0", True)


@st.composite
def copying(draw: st.DrawFn) -> list[MemberState]:
    size = draw(st.integers(1, 5))
    keep = draw(st.integers(1, size))
    return [copy(i, outdated=draw(st.booleans()), in_sync=draw(st.booleans()), leaving=i >= keep) for i in range(size)]


@settings(max_examples=400, deadline=None)
@given(copying())
def test_a_copy_is_rolled_to_the_end_and_stops_no_follower_while_another_member_is_away(
    states: list[MemberState],
) -> None:
    """One that is replaced comes back; one that is away for another reason does so after a while."""
    for _ in range(3 * len(states) + 3):
        step = next_step(states)
        if step.kind == "done":
            break
        if step.kind == "wait":
            assert not all(m.in_sync for m in states)
            states = [m if m.outdated or m.leaving else replace(m, in_sync=True) for m in states]
            continue
        assert step.kind == "replace"
        target = next(m for m in states if m.name == step.member)
        away = [m for m in states if not m.in_sync and m is not target]
        if target.leaving:
            assert target.number == max(m.number for m in states), "a StatefulSet can give up no other"
            states = [m for m in states if m is not target]
            continue
        assert not [m for m in away if not m.outdated], "the next one waits until the last one is back"
        if target.number == 0 and target.in_sync:
            assert not [m for m in states if m.outdated and m is not target], "it follows, and is the last one"
        states = [replace(m, outdated=False, in_sync=False) if m is target else m for m in states]
    assert not any(m.outdated or m.leaving for m in states)
