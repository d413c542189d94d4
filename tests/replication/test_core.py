"""The parts of the core one by one; tests/scenarios and tests/simulation test how they keep the rules together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.protocol.frame import FrameDecoder, encode_frame
from gantry_broker.replication import epochs, wire
from gantry_broker.replication.acknowledgements import Acknowledgements
from gantry_broker.replication.core import MOVING_MS, Role
from gantry_broker.replication.identity import ReplicaFile, StateError
from gantry_broker.replication.leader import Options
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.replica import Replica
from gantry_broker.replication.state import HardState
from gantry_broker.store.log.epochs import EpochStart
from gantry_broker.store.sealed import unseal
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.model_log import ModelDisk, ModelLog, Power
from tests.support.present import present

A, B, C = MemberId(0, "a"), MemberId(1, "b"), MemberId(2, "c")


# ---- histories


def leader_epochs(*entries: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*e) for e in entries)


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "agreed"),
    [
        ((), 0, (), 0, 0),
        ([(1, 0)], 100, (), 0, 0),
        ([(1, 0)], 100, [(1, 0)], 60, 60),
        ([(1, 0)], 60, [(1, 0)], 100, 60),
        ([(1, 0), (3, 50)], 100, [(1, 0)], 80, 50),
        ([(1, 0), (3, 50)], 100, [(1, 0), (2, 50)], 90, 50),
        ([(1, 0), (3, 50)], 100, [(1, 0), (2, 40), (3, 50)], 90, 40),
        ([(1, 0), (2, 40)], 100, [(1, 0), (2, 40), (3, 70)], 90, 70),
        ([(2, 0)], 100, [(1, 0)], 90, 0),
        ([(0, 0), (4, 700)], 900, [(0, 0)], 700, 700),
    ],
)
def test_where_two_logs_part(
    mine: list[tuple[int, int]], my_end: int, theirs: list[tuple[int, int]], their_end: int, agreed: int
) -> None:
    assert epochs.divergence(leader_epochs(*mine), my_end, leader_epochs(*theirs), their_end) == agreed


Log = list[int]
"""The epoch of each record, records are one byte long."""


def leader_epochs_of(log: Log) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(e, log.index(e)) for e in sorted(set(log)))


@given(
    st.lists(st.integers(1, 6), max_size=12).map(sorted),
    st.integers(0, 12),
    st.lists(st.integers(7, 9), max_size=5).map(sorted),
)
def test_divergence_is_the_length_of_the_common_part(common: Log, kept: int, other: Log) -> None:
    """One log goes on from a prefix of the other with epochs that only it has."""
    kept = min(kept, len(common))
    theirs = common[:kept] + other
    agreed = epochs.divergence(leader_epochs_of(common), len(common), leader_epochs_of(theirs), len(theirs))
    assert agreed == kept


def test_a_cut_history_keeps_no_epoch_without_records() -> None:
    assert epochs.truncate(leader_epochs((1, 0), (2, 50), (3, 90)), 90) == leader_epochs((1, 0), (2, 50))


# ---- waiters


def test_waiters_are_answered_in_order_and_once() -> None:
    waiters, said = Acknowledgements(), []
    for end in (10, 20, 30, 40):
        waiters.add(end, 100 * end, lambda status, end=end: said.append((end, status)))
    waiters.reached(25)
    waiters.expire(3_000, flushed=5, sync_flush=True)
    waiters.fail(SendStatus.SLAVE_NOT_AVAILABLE)
    waiters.reached(1_000)
    assert said == [
        (10, SendStatus.SEND_OK),
        (20, SendStatus.SEND_OK),
        (30, SendStatus.FLUSH_DISK_TIMEOUT),
        (40, SendStatus.SLAVE_NOT_AVAILABLE),
    ]


# ---- who a member is after a start (rule 16)


def start(path: Path, *, sync_flush: bool = False, empty: bool = False, damaged: bool = False) -> tuple[str, bool]:
    file = ReplicaFile(path)
    started = file.start(1, sync_flush=sync_flush, log_is_empty=empty, damaged=damaged)
    return started.state.me.incarnation, started.log_trusted


def another_boot(path: Path) -> None:
    text = unseal(path.read_bytes()).decode()
    boot = text.split('"boot": "')[1].split('"')[0]
    path.write_text(text.replace(boot, "another-boot"))


def test_rule_16_a_killed_process_keeps_its_life(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    first, log_trusted = start(path, empty=True)
    assert log_trusted
    assert start(path) == (first, True)


def test_rule_16_another_boot_without_a_clean_stop_is_a_new_life(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    first, _ = start(path, empty=True, sync_flush=True)
    another_boot(path)
    assert start(path) == (first, True), "SYNC_FLUSH proves it"
    another_boot(path)
    second, log_trusted = start(path, sync_flush=True)
    assert (second != first, log_trusted) == (True, False), (
        "the life that ended did not flush, whatever the next one does"
    )


def test_rule_16_a_clean_stop_proves_the_log_once(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    file = ReplicaFile(path)
    first = file.start(1, sync_flush=False, log_is_empty=True).state.me.incarnation
    file.holds_records()
    file.mark_clean()
    another_boot(path)
    assert start(path) == (first, True)
    another_boot(path)
    assert start(path)[0] != first, "the mark is used up by a start"


def test_rule_16_a_log_that_was_taken_away_or_damaged_is_a_new_life(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    first, _ = start(path, sync_flush=True)
    second, log_trusted = start(path, sync_flush=True, empty=True)
    assert (second != first, log_trusted) == (True, False)
    third, log_trusted = start(path, sync_flush=True, damaged=True)
    assert (third != second, log_trusted) == (True, False)


def test_a_state_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    start(path, empty=True)
    with pytest.raises(StateError, match="is of member 1"):
        ReplicaFile(path).start(2, sync_flush=False, log_is_empty=True)
    path.write_text("{")
    with pytest.raises(StateError, match=r"replica\.json"):
        start(path)


@pytest.mark.parametrize(("was", "now"), [("MasterSlave", "Raft"), ("Raft", "MasterSlave")])
def test_a_disk_keeps_the_mode_of_its_group(tmp_path: Path, was: str, now: str) -> None:
    path = tmp_path / "replica.json"
    file = ReplicaFile(path, was)
    state = file.start(1, sync_flush=True, log_is_empty=True).state
    # A disk that was never part of a group may still become part of one in either mode.
    ReplicaFile(path, now).start(1, sync_flush=True, log_is_empty=True)
    file.save(replace(state, leadership=LeadershipRecord(3)))
    with pytest.raises(StateError, match=f"is of a group in mode {was}, .* in mode {now}: .* write mode: {was}"):
        ReplicaFile(path, now).start(1, sync_flush=True, log_is_empty=False)
    assert ReplicaFile(path, was).start(1, sync_flush=True, log_is_empty=False).log_trusted


# ---- frames


@pytest.mark.parametrize(
    "answer",
    [
        FetchAnswer(AnswerKind.RECORDS, 3, Position(10, 2), 7, 20, data=b"records"),
        FetchAnswer(AnswerKind.TRUNCATE, 3, Position(10, 2), 7, 20, to=5, divergence_offset=5),
        FetchAnswer(AnswerKind.RESET, 3, Position(10, 2), 7, 90, 50, 10, b"[]", leader_epochs((1, 0), (2, 30))),
        FetchAnswer(AnswerKind.REFUSED, 3, Position(10, 2), reason="not the master"),
    ],
)
def test_fetches_and_answers_pass_the_wire(answer: FetchAnswer) -> None:
    fetch = Fetch(3, B, 10, 8, leader_epochs((1, 0), (2, 4)), 7, 4096, leader=A)
    sent = FrameDecoder().feed(encode_frame(wire.fetch_frame(fetch)))[0]
    assert wire.parse_fetch(sent) == fetch
    answered = FrameDecoder().feed(encode_frame(wire.answer_frame(sent, answer)))[0]
    assert wire.parse_answer(answered) == answer


@pytest.mark.parametrize("field", ["epoch", "member", "incarnation", "end", "flushed", "maxBytes"])
def test_a_fetch_that_lacks_a_field_names_it(field: str) -> None:
    frame = wire.fetch_frame(Fetch(3, B, 10, 8, leader_epochs((1, 0))))
    del frame.ext[field]
    with pytest.raises(wire.WireError, match=field):
        wire.parse_fetch(frame)


# ---- the master


def master(options: Options, *members: MemberId, now_ms: int = 0) -> tuple[Replica, ModelLog]:
    power = Power()
    log = ModelLog(power)
    core = Replica(HardState(A), log, ModelDisk(power), options, now_ms=now_ms)
    assert core.assign(Assignment(LeadershipRecord(1, 1, A, frozenset(members)), "a:1"), now_ms).accepted
    assert core.role is Role.MASTER
    return core, log


def proposal(core: Replica, log: ModelLog, who: MemberId, now_ms: int) -> None:
    assert core.fetched(Fetch(core.leadership.epoch, who, log.end, log.end, log.leader_epochs), now_ms) is None
    core.confirm(now_ms)


def test_a_question_that_is_meant_for_somebody_else_counts_for_nothing() -> None:
    """An address may belong to a member of another group by now: its epochs and histories look the same."""
    core, log = master(Options(), A, B)
    stranger = MemberId(A.member, "another-disk")
    said: list[SendStatus] = []
    log.append(1, 1)
    core.add_waiter(log.end, 1_000, said.append)
    for epoch in (core.leadership.epoch, core.leadership.epoch + 5):
        answer = present(core.fetched(Fetch(epoch, B, log.end, log.end, log.leader_epochs, leader=stranger), 10))
        assert (answer.kind, answer.epoch) == (AnswerKind.REFUSED, 0)
    assert core.role is Role.MASTER, "a stranger's epoch ends no leadership"
    assert said == [], "a stranger's acknowledgement is none"
    assert core.fetched(Fetch(core.leadership.epoch, B, log.end, log.end, log.leader_epochs, leader=A), 20) is None
    core.confirm(20)
    assert said == [SendStatus.SEND_OK]


def test_a_leader_answers_the_fetch_before_the_senders() -> None:
    core, log = master(Options(), A, B)
    said: list[SendStatus] = []
    log.append(1, 1)
    core.add_waiter(log.end, 1_000, said.append)
    fetch = Fetch(core.leadership.epoch, B, log.end, log.end, log.leader_epochs)
    log.append(1, 1)
    assert core.fetched(fetch, 10) is None
    assert (len(present(core.answer_fetch(fetch, 10)).data) > 0, said) == (True, [])
    core.confirm(10)
    assert said == [SendStatus.SEND_OK]


def follower_of(leader: Replica) -> tuple[Replica, ModelLog, Fetch]:
    """An empty B that follows A, and its first fetch."""
    power = Power()
    log = ModelLog(power)
    core = Replica(HardState(B), log, ModelDisk(power), Options())
    assert core.assign(Assignment(leader.leadership, "a:1"), 0).accepted
    return core, log, present(core.next_fetch())


def test_a_follower_confirms_after_it_has_its_next_fetch() -> None:
    leader, source = master(Options(), A, B)
    core, log, asked = follower_of(leader)
    end, data = source.end, source.read_raw(0, 4096)
    assert core.answered(FetchAnswer(AnswerKind.RECORDS, 1, asked.position, end, end, data=data), 0)
    following = present(core.next_fetch())
    assert (following.end, following.confirmed, log.confirmed) == (end, end, 0)
    core.confirm(10)
    assert log.confirmed == end


def test_a_follower_confirms_a_long_way_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, source = master(Options(), A, B)
    for _ in range(3):
        source.append(1, 1)
    core, log, asked = follower_of(leader)
    end = source.end
    answer = FetchAnswer(AnswerKind.RECORDS, 1, asked.position, end, end, data=source.read_raw(0, 4096))
    assert core.answered(answer, 0)
    whole = log.confirm

    def a_little(offset: int) -> None:
        ends = [r.offset + r.size for r in log.records]
        whole(min(offset, next(end for end in ends if end > log.confirmed)))

    monkeypatch.setattr(log, "confirm", a_little)
    reached = []
    while log.confirmed < end:
        core.confirm(10)
        reached.append(log.confirmed)
        assert len(reached) < 10
    assert reached == [r.offset + r.size for r in log.records]


def test_retention_waits_for_those_that_still_come_for_the_log() -> None:
    gone = MemberId(7, "gone")
    core, log = master(Options(keep_for_ms=10_000), A, B)
    assert core.leader is not None
    log.append(1, 1)
    early = log.end
    proposal(core, log, B, 100)
    proposal(core, log, gone, 100)
    # It was proposed, and the proposal is refused: it is not waited for.
    assert core.assign(Assignment(LeadershipRecord(1, 2, A, frozenset({A, B})), "a:1"), 150).accepted
    for number in range(2, 6):
        log.append(1, number)
    proposal(core, log, B, 5_000)
    assert core.leader.needed_from(10_000) == early, "one that asked a moment ago may come again"
    assert core.leader.needed_from(10_101) == log.end, "it has gone, and does not keep the log for ever"
    assert core.leader.needed_from(900_000) == log.end, "B is waited for"
    log.append(1, 9)
    assert core.leader.needed_from(900_000) < log.end


def test_a_follower_sent_to_the_start_of_the_log_stops_waiting() -> None:
    """It may die over that, and would count as one that still comes for the log for ever."""
    gone = MemberId(7, "gone")
    core, log = master(Options(keep_for_ms=10_000), A)
    assert core.leader is not None
    for number in range(5):
        log.append(1, number)
    core.appended()
    log.flush()
    log.expire(log.records[3].offset)
    fetch = Fetch(1, gone, 0, 0, ())
    assert core.fetched(fetch, 100) is None
    core.confirm(100)
    core.leader.hold(gone, True, 100)
    assert present(core.answer_fetch(fetch, 100)).kind is AnswerKind.RESET
    core.tick(10_101)
    assert core.leader.needed_from(10_101) == log.end


def test_time_in_which_the_master_did_not_run_is_no_silence_of_others() -> None:
    core, log = master(Options(), A, B)
    core.tick(100)
    proposal(core, log, B, 150)
    said: list[SendStatus] = []
    log.append(1, 1)
    core.add_waiter(log.end, 9_000, said.append)
    core.tick(200)
    core.tick(3_000)
    assert said == []
    assert present(core.leader).followers[B].seen_ms > 2_500
    for now in range(3_100, 5_000, 100):
        core.tick(now)
    assert said == [], "one member, the master itself, is enough for minInSyncReplicas: 1"


def test_a_send_is_answered_at_once_when_too_few_are_alive() -> None:
    core, log = master(Options(min_in_sync=2), A, B)
    said: list[SendStatus] = []
    for now in range(100, 1_500, 100):
        core.tick(now)
    log.append(1, 1)
    core.add_waiter(log.end, 60_000, said.append)
    for now in range(1_500, 1_900, 100):
        core.tick(now)
    assert said == [SendStatus.SLAVE_NOT_AVAILABLE]


def test_rule_17_a_refused_proposal_is_not_repeated_at_once() -> None:
    core, log = master(Options(), A)
    proposal(core, log, B, 100)
    assert core.proposal is not None
    assert core.proposal.in_sync == {A, B}
    core.assign(Assignment(core.leadership.touched(), "a:1"), 200)
    proposal(core, log, B, 300)
    assert core.proposal is None
    proposal(core, log, B, 3_300)
    assert core.proposal is not None


def removed_while_it_fetches() -> tuple[Replica, ModelLog]:
    """B was taken out of the set at 300 ms, as the operator does before it is stopped."""
    core, log = master(Options(), A, B)
    proposal(core, log, B, 200)
    core.assign(Assignment(core.leadership.with_set([A]), "a:1"), 300)
    assert core.proposal is None, "its own review must not bring it back, either"
    return core, log


def test_a_follower_that_was_removed_while_it_fetched_is_not_proposed_at_once() -> None:
    core, log = removed_while_it_fetches()
    said: list[SendStatus] = []
    for now in range(400, 5_300, 100):
        core.tick(now)
        proposal(core, log, B, now)
        assert core.proposal is None, now
    log.append(1, 1)
    core.add_waiter(log.end, 9_000, said.append)
    core.appended()
    assert said == [SendStatus.SEND_OK], "nobody waits for it"
    proposal(core, log, B, 5_300)
    assert core.proposal is not None, "one that stays is not kept out for ever"
    assert core.proposal.in_sync == {A, B}


def test_a_follower_that_was_removed_and_comes_back_is_proposed_at_once() -> None:
    core, log = removed_while_it_fetches()
    proposal(core, log, B, 400)
    proposal(core, log, B, 900)
    assert core.proposal is not None
    newer = MemberId(B.member, "newer")
    core, log = removed_while_it_fetches()
    proposal(core, log, newer, 1_800)
    assert core.proposal is not None, "another disk, once the former one is silent"


def test_a_follower_that_was_removed_for_its_silence_is_proposed_once_it_speaks() -> None:
    core, log = master(Options(), A, B)
    core.tick(1_600)
    core.assign(Assignment(core.leadership.with_set([A]), "a:1"), 1_700)
    proposal(core, log, B, 1_800)
    assert core.proposal is not None


def test_a_follower_that_takes_no_records_is_waited_for_once() -> None:
    """Its disk is full, and it goes on asking. Once it takes some, it is waited for again."""
    core, log = master(Options(), A)
    stuck = Fetch(core.leadership.epoch, B, log.end, log.end, log.leader_epochs)
    waited: list[int] = []
    for now in range(0, 20_000, 100):
        log.append(1, 1)
        core.appended()
        assert core.fetched(stuck, now) is None
        core.confirm(now)
        core.tick(now)
        assert core.proposal is None
        if log.confirmed < log.end:
            waited.append(now)
        if now == 15_000:
            stuck = replace(stuck, end=log.end, flushed=log.end)
    assert [now for now in waited if now < 15_000] == list(range(100, 1_000, 100))
    assert min(now for now in waited if now > 15_000) <= 15_200


def test_rule_16_two_lives_of_one_member_are_never_in_one_set() -> None:
    core, log = master(Options(), A, B)
    newer = MemberId(B.member, "newer")
    proposal(core, log, newer, 100)
    assert core.proposal is None
    core.assign(Assignment(core.leadership.with_set([A]), "a:1"), 200)
    proposal(core, log, newer, 300)
    assert present(core.proposal).in_sync == {A, newer}


def test_rule_16_a_member_whose_former_life_is_named_refuses() -> None:
    power = Power()
    core = Replica(HardState(MemberId(0, "newer")), ModelLog(power), ModelDisk(power), Options())
    done = core.assign(Assignment(LeadershipRecord(1, 1, A, frozenset({A})), "a:1"), 0)
    assert not done.accepted
    assert "0/newer" in done.reason
    assert core.role is Role.WAITING


def test_rule_09_a_new_master_is_settled_once_its_control_record_is_confirmed() -> None:
    core, log = master(Options(), A, B)
    assert not core.epoch_confirmed
    proposal(core, log, B, 10)
    assert core.epoch_confirmed


def test_rule_14_the_same_version_with_other_content_is_refused() -> None:
    core, _ = master(Options(), A, B)
    done = core.assign(Assignment(LeadershipRecord(1, 1, B, frozenset({A, B})), "b:1"), 10)
    assert not done.accepted
    assert "other content" in done.reason


def test_rule_14_a_member_that_saw_a_higher_epoch_leads_no_lower_one() -> None:
    power = Power()
    core = Replica(HardState(A), ModelLog(power), ModelDisk(power), Options())
    core.saw_epoch(7, 0)
    assert core.assign(Assignment(LeadershipRecord(3, 1, A, frozenset({A})), "a:1"), 0).accepted
    assert core.role is Role.WAITING
    assert "saw epoch 7" in core.reason


def test_rule_23_a_handover_is_on_the_version_that_the_master_holds_and_to_a_member_of_its_set() -> None:
    core, log = master(Options(), A, B)
    proposal(core, log, B, 10)
    assert "version" in core.pause_writes(B, 1, 2)
    assert "version" in core.pause_writes(B, 1, 0)
    assert "not in the in-sync set" in core.pause_writes(C, 1, 1)
    assert core.may_append
    assert core.pause_writes(B, 1, 1) == ""
    assert core.writes_paused


def test_rule_23_only_a_newer_leadership_record_ends_a_handover_whose_target_has_everything() -> None:
    core, log = master(Options(), A, B, C)
    proposal(core, log, B, 10)
    proposal(core, log, C, 10)
    log.append(1, 1)
    assert core.pause_writes(B, 1, 1) == ""
    assert not core.handed_over()
    core.give_up_handover()
    assert core.may_append, "B did not get there in time"
    assert core.pause_writes(B, 1, 1) == ""
    assert "already" in core.pause_writes(C, 1, 1)
    proposal(core, log, B, 20)
    proposal(core, log, C, 20)
    assert core.handed_over()
    core.give_up_handover()
    assert core.writes_paused, "a swap may be under way"
    assert "already" in core.pause_writes(C, 1, 1)
    assert core.assign(Assignment(core.leadership.touched(), "a:1"), 30).accepted
    assert core.may_append


def test_rule_23_a_repeated_assignment_ends_no_handover() -> None:
    """For example, its leader has another address. The target is reported complete: any later append is lost."""
    core, log = master(Options(sync_replication=False), A, B)
    proposal(core, log, B, 10)
    assert core.pause_writes(B, 1, 1) == ""
    assert core.handed_over()
    assert core.assign(Assignment(core.leadership, "a:2"), 20).accepted
    assert core.writes_paused
    assert core.assign(Assignment(core.leadership.touched(), "a:2"), 30).accepted
    assert not core.writes_paused


@pytest.mark.parametrize(("successor", "forwards_to"), [(B, "b:1"), (C, None)], ids=["the target", "another member"])
def test_rule_23_paused_writes_wait_for_the_name_of_the_new_leader_and_go_to_the_target_only(
    successor: MemberId, forwards_to: str | None
) -> None:
    core, log = master(Options(sync_replication=False), A, B, C)
    proposal(core, log, B, 10)
    proposal(core, log, C, 10)
    assert core.pause_writes(B, 1, 1) == ""
    assert core.handed_over()
    core.saw_epoch(2, 100)
    assert (core.role, core.hands_over, core.writes_paused) == (Role.WAITING, False, True)
    assert core.assign(Assignment(core.leadership, "a:1"), 110).accepted
    assert core.writes_paused, "the same record again says nothing"
    new = Assignment(LeadershipRecord(2, 2, successor, frozenset({A, B, C})), f"{'abc'[successor.member]}:1")
    assert core.assign(new, 120).accepted
    assert (core.writes_paused, core.handed_to) == (False, forwards_to)
    core.check_invariants()
    assert core.assign(Assignment(LeadershipRecord(3, 3, A, frozenset({A, B})), "a:1"), 130).accepted
    assert core.handed_to is None, "a leader forwards nothing"


def test_rule_23_writes_stay_paused_no_longer_than_the_limit() -> None:
    core, log = master(Options(sync_replication=False), A, B)
    proposal(core, log, B, 10)
    assert core.pause_writes(B, 1, 1) == ""
    core.saw_epoch(2, 100)
    core.tick(99 + MOVING_MS)
    assert core.writes_paused
    core.tick(100 + MOVING_MS)
    assert not core.writes_paused
    assert core.assign(Assignment(LeadershipRecord(2, 2, B, frozenset({A, B})), "b:1"), 200 + MOVING_MS).accepted
    assert core.handed_to is None, "the buffered sends were refused, and later ones must not overtake them"


def test_a_contradiction_in_memory_is_found() -> None:
    core, log = master(Options(), A, B)
    core.check_invariants()
    assert core.leader is not None
    core.leader.followers[B].acked = log.end + 1
    with pytest.raises(AssertionError, match="the log ends earlier"):
        core.check_invariants()
    core.leader.followers[B].acked = log.end
    core.handed_to = "b:1"
    with pytest.raises(AssertionError, match="a leader forwards writes"):
        core.check_invariants()


def test_rule_15_a_leadership_record_below_the_log_is_an_old_registry() -> None:
    power = Power()
    log = ModelLog(power)
    log.begin_epoch(7, 0)
    core = Replica(HardState(A), log, ModelDisk(power), Options())
    done = core.assign(Assignment(LeadershipRecord(3, 9, B, frozenset({A, B})), "b:1"), 0)
    assert not done.accepted
    assert "registry is older than the log" in done.reason


def test_a_changed_bit_of_the_role_is_found_behind_the_room_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    ReplicaFile(path).start(0, sync_flush=False, log_is_empty=True)
    data = path.read_bytes()
    assert data.endswith(b"    ")
    path.write_bytes(data.replace(b'"epoch": 0', b'"epoch": 1'))
    with pytest.raises(StateError, match="checksum"):
        ReplicaFile(path).start(0, sync_flush=False, log_is_empty=True)
