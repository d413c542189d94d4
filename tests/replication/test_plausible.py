"""What no correct member sends is refused by parsers and by the core, and changes nothing. Pure, with seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible
from gantry_broker.protocol.frame import Frame
from gantry_broker.refusals import ENTRANCES, LOG_EVERY_S, REASONS, Refusals
from gantry_broker.replication import wire
from gantry_broker.replication.core import Role
from gantry_broker.replication.leader import Options
from gantry_broker.replication.members import Members, Voter
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.raft import RaftOptions, RaftReplica
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse
from gantry_broker.replication.replica import Replica
from gantry_broker.replication.state import HardState
from gantry_broker.replication.storelog import queue_starts
from gantry_broker.store.log.epochs import EpochStart

from tests.simulation.model_log import ModelDisk, ModelLog, Power
from tests.support.present import present

A, B, C, D = MemberId(0, "a"), MemberId(1, "b"), MemberId(2, "c"), MemberId(3, "d")
STRANGER = MemberId(7, "stranger")
JUMP = plausible.MAX_EPOCH_JUMP
MUTATIONS = 6_000
"""For each parser."""


# ---- limits


@pytest.mark.parametrize(
    ("known", "new", "possible"),
    [
        (0, 0, True), (5, 5, True), (5, 3, True), (5, 6, True), (5, 16, True), (5, 5 + JUMP, True),
        (5, 6 + JUMP, False), (0, JUMP, True), (0, JUMP + 1, False), (5, -1, False), (2**53 - 1, 2**53, True),
        (2**53, 2**53 + 1, False), (5, 2**64 - 1, False), (5, 2**128, False),
    ],
)  # fmt: skip
def test_which_epoch_may_follow(known: int, new: int, possible: bool) -> None:
    assert plausible.possible_successor(known, new) is possible
    assert (plausible.jump_refusal(known, new) == "") is possible


@pytest.mark.parametrize("value", ["3", "", None, True, 1.0, [], b"1", "1" * 5_000])
def test_a_value_that_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(plausible.Implausible, match="depth = ") as caught:
        plausible.number("depth", value, 0, 10)
    assert caught.value.reason == "malformed"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["", "-", "+1", "1.0", "1e3", "٣", " 1", "1_0", "--1", "1" * 5_000])
def test_a_value_without_digits_is_named(value: str) -> None:
    with pytest.raises(plausible.Implausible, match="depth = "):
        plausible.integer("depth", value)


def test_the_numbers_of_an_answer_can_be_written_as_json() -> None:
    for number in (plausible.MAX_EPOCH, plausible.MAX_OFFSET):
        assert orjson.loads(orjson.dumps(number)) == number


def test_refusals_are_counted_by_bounded_words_and_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(1_000):
        refusals.add("fetch", "range", "x" * 10_000)
    assert refusals.rows() == [("fetch", "range", 1_000)]
    assert len(caplog.records) == 1
    assert len(caplog.text) < 600
    now[0] = LOG_EVERY_S
    refusals.add("fetch", "range", "again")
    assert "999 more before" in caplog.text
    for words in (("fetch", "anything"), ("anything", "range")):
        with pytest.raises(ValueError, match="unknown entrance"):
            refusals.add(*words, "x")
    assert len(ENTRANCES) * len(REASONS) < 100


# ---- mutated messages

WORDS: tuple[Any, ...] = (
    "", "0", "-1", "1", "2", "3", str(2**31), str(2**53), str(2**53 + 1), str(2**63 - 1), str(2**63), str(2**64 - 1),
    str(2**128), "1.5", "NaN", "null", "x", "x" * 10_000, "\x00", "a\nb", "٣", "true",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**64 - 1, 1.5, 1e300, "", "x", "3",
    "x" * 10_000, "\x00", [], [1], [1, 2], [[1, 2]] * 300, {}, {"a": 1}, [3, "c"], [7, "stranger"],
)  # fmt: skip


def mutated_json(data: Any, rng: random.Random) -> Any:
    """One value somewhere in it is another one."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: mutated_json(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.8:
        index = rng.randrange(len(data))
        return [*data[:index], mutated_json(data[index], rng), *data[index + 1 :]]
    return rng.choice(VALUES)


def mutated(frame: Frame, rng: random.Random) -> Frame:
    ext, body = dict(frame.ext), frame.body
    for _ in range(rng.choice((1, 1, 2, 4))):
        dice = rng.random()
        if ext and dice < 0.55:
            key = rng.choice(list(ext))
            if rng.random() < 0.1:
                del ext[key]
            elif rng.random() < 0.2:
                ext[key] = orjson.dumps(mutated_json(rng.choice(VALUES), rng)).decode()
            else:
                ext[key] = rng.choice(WORDS)
        elif body and dice < 0.85:
            try:
                body = orjson.dumps(mutated_json(orjson.loads(body), rng))
            except orjson.JSONDecodeError:
                body = b"[]"
        elif body:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) * rng.randrange(3) + body[at + 1 :]
    answer = Frame(frame.code, frame.opaque, frame.flag, ext=ext, body=body)
    answer.remark = frame.remark
    return answer


def many(frame: Frame, parse: Callable[[Frame], Any], seed: int) -> tuple[list[Any], int]:
    """What parses of its mutations, and how many were refused."""
    rng = random.Random(seed)
    passed, refused = [], []
    for _ in range(MUTATIONS):
        try:
            passed.append(parse(mutated(frame, rng)))
        except wire.WireError as error:
            refused.append(error)
    assert {error.reason for error in refused} <= {*REASONS, ""}
    assert max(len(str(error)) for error in refused) < 20_000
    return passed, len(refused)


def master() -> tuple[Replica, ModelLog, ModelDisk]:
    power = Power()
    log, disk = ModelLog(power), ModelDisk(power)
    core = Replica(HardState(A), log, disk, Options())
    assert core.assign(Assignment(LeadershipRecord(3, 1, A, frozenset({A, B})), "a:1"), 0).accepted
    log.append(1, 1)
    return core, log, disk


def test_mutated_fetches_change_a_masters_state_only_if_a_member_could_have_sent_them() -> None:
    core, log, disk = master()
    good = wire.fetch_frame(Fetch(3, B, log.end, log.end, log.leader_epochs, 0, leader=A))
    passed, refused = many(good, wire.parse_fetch, 1)
    assert refused > MUTATIONS / 4
    assert passed
    for fetch in passed:
        core, log, disk = master()
        saved = disk.saved
        core.fetched(fetch, 10)
        core.confirm(10)
        believed = 3 < fetch.epoch <= 3 + JUMP and fetch.member == B and fetch.leader in (None, A)
        assert core.highest_seen_epoch == (fetch.epoch if believed else 3), fetch
        assert core.role is (Role.WAITING if believed else Role.MASTER), fetch
        assert (core.leadership, disk.saved) == (LeadershipRecord(3, 1, A, frozenset({A, B})), saved)
        counts = fetch.member == B and fetch.epoch == 3 and fetch.leader in (None, A)
        assert log.confirmed <= (min(fetch.end, log.end) if counts else 0), fetch
        if core.leader is not None:
            assert len(core.leader.followers) <= 2


def test_mutated_answers_change_a_followers_log_only_if_its_leader_could_have_sent_them() -> None:
    def follower() -> tuple[Replica, ModelLog]:
        power = Power()
        log = ModelLog(power)
        core = Replica(HardState(B), log, ModelDisk(power), Options())
        assert core.assign(Assignment(LeadershipRecord(3, 1, A, frozenset({A, B})), "a:1"), 0).accepted
        return core, log

    _, source, _ = master()
    question = wire.fetch_frame(Fetch(3, B, 0, 0, ()))
    for seed, answer in enumerate(
        [
            FetchAnswer(AnswerKind.RECORDS, 3, Position(0, 0), source.end, source.end, data=source.read_raw(0, 4096)),
            FetchAnswer(AnswerKind.TRUNCATE, 3, Position(0, 0), 0, source.end),
            FetchAnswer(AnswerKind.RESET, 3, Position(0, 0), 50, 90, 50, 10, b"[]", (EpochStart(1, 0),)),
            FetchAnswer(AnswerKind.REFUSED, 3, Position(0, 0), reason="not the master"),
        ]
    ):
        frame = wire.answer_frame(question, answer)
        if answer.data:
            frame.body = b""  # The records have checks of their own; here it is about the numbers.
        passed, refused = many(frame, wire.parse_answer, seed)
        assert refused > MUTATIONS / 8
        for got in passed:
            core, log = follower()
            core.answered(got, 10)
            core.confirm(10)
            assert core.highest_seen_epoch == (got.epoch if 3 < got.epoch <= 3 + JUMP else 3)
            assert core.leadership.epoch == 3
            fits = got.epoch == 3 and got.asked == (0, 0) and got.kind is AnswerKind.RESET
            assert log.end == (got.to if fits else 0), got
            assert log.confirmed <= log.end


# ---- Raft

VOTERS: Members = tuple(Voter(m, f"m{m.member}:1") for m in (A, B, C))
NAMES = {0: "m0:1", 1: "m1:1", 2: "m2:1"}


def raft(me: MemberId = C, epoch: int = 3, members: Members = VOTERS) -> RaftReplica:
    power = Power()
    state = HardState(me, LeadershipRecord(epoch), first_members=members)
    core = RaftReplica(
        state, ModelLog(power), ModelDisk(power), RaftOptions(), NAMES, now_ms=10_000, rng=random.Random(1)
    )
    core.outbox.clear()
    return core


def raft_state(core: RaftReplica) -> tuple[Any, ...]:
    return core.epoch, core.state.vote, core.leadership, core.role, core.state.first_members, core.state.leader_address


@pytest.mark.parametrize("kind", RaftRequestKind)
def test_mutated_polls_change_a_members_state_only_if_a_member_could_have_sent_them(kind: RaftRequestKind) -> None:
    good = wire.raft_request_frame(RaftRequest(kind, 4, A, "m0:1", (3, 100), True, VOTERS), "c/g", "g:1")
    passed, refused = many(good, wire.parse_raft_request, 7)
    assert refused > MUTATIONS / 8
    for request in passed:
        core = raft()
        before = raft_state(core)
        core.on_raft_request(request, 20_000)
        could = request.member in (A, B) and 3 <= request.epoch <= 3 + JUMP
        if raft_state(core) != before:
            assert could, request
            assert request.kind in (RaftRequestKind.VOTE, RaftRequestKind.BEGIN)
            assert core.epoch == request.epoch
            assert core.state.vote in (None, request.member)
        assert all(asked.kind is RaftRequestKind.FIND for _, asked in core.outbox) or could


def test_mutated_answers_to_polls_change_a_members_state_only_if_a_member_could_have_sent_them() -> None:
    question = wire.raft_request_frame(RaftRequest(RaftRequestKind.FIND, 3, C, "m2:1"), "c/g", "g:1")
    answer = RaftResponse(RaftRequestKind.FIND, 3, A, 4, False, B, "m1:1", False, VOTERS)
    passed, refused = many(wire.raft_response_frame(question, answer), wire.parse_raft_response, 9)
    assert refused > MUTATIONS / 8
    for got in passed:
        core = raft()
        before = raft_state(core)
        core.raft_answered(got, 20_000)
        if raft_state(core) != before:
            assert got.member.member in (0, 1)
            assert 3 <= got.epoch <= 3 + JUMP
            assert core.epoch == got.epoch
            assert core.role in (Role.SLAVE, Role.WAITING)


def test_a_stranger_that_names_itself_is_not_followed_and_gets_no_vote() -> None:
    for who in (STRANGER, MemberId(0, "another-disk"), D):
        named = (*VOTERS, Voter(who, "evil:1"))
        for kind in (
            RaftRequestKind.BEGIN,
            RaftRequestKind.VOTE,
            RaftRequestKind.PRE_VOTE,
            RaftRequestKind.TIMEOUT_NOW,
        ):
            core = raft()
            before = raft_state(core)
            for turn in range(3):
                answer = core.on_raft_request(
                    RaftRequest(kind, 4, who, "evil:1", (3, 2**40), True, named), 20_000 + turn
                )
                assert not answer.granted
            assert raft_state(core) == before
            assert [(n, p.kind) for n, p in core.outbox] == [(0, RaftRequestKind.FIND), (1, RaftRequestKind.FIND)], (
                "asked once"
            )


def test_one_whose_list_is_old_follows_a_leader_that_its_members_name() -> None:
    """D was added while C was away, and leads. A or B answers a query with its name."""
    core = raft()
    begin = RaftRequest(RaftRequestKind.BEGIN, 6, D, "m3:1", (6, 500))
    core.on_raft_request(begin, 20_000)
    assert core.follower is None
    assert {n for n, _ in core.outbox} == {0, 1}
    newer = (*VOTERS[:2], Voter(C, "m2:1"), Voter(D, "m3:1"))
    core.raft_answered(RaftResponse(RaftRequestKind.FIND, 3, A, 6, False, D, "m3:1", False, newer), 20_010)
    assert (present(core.follower).leader, core.epoch, core.state.leader_address) == (D, 6, "m3:1")


def test_one_whose_list_is_old_votes_for_a_candidate_that_a_member_names() -> None:
    newer = (*VOTERS, Voter(D, "m3:1"))
    vote = RaftRequest(RaftRequestKind.VOTE, 7, D, "m3:1", (6, 500), False, newer)
    core = raft()
    assert not core.on_raft_request(vote, 20_000).granted
    core.raft_answered(RaftResponse(RaftRequestKind.FIND, 3, B, 6, members=newer), 20_010)
    assert core.on_raft_request(vote, 20_020).granted
    assert (core.epoch, core.state.vote) == (7, D)


def test_an_answer_of_a_stranger_names_no_member() -> None:
    core = raft()
    before = raft_state(core)
    named = (*VOTERS, Voter(STRANGER, "evil:1"))
    core.raft_answered(
        RaftResponse(RaftRequestKind.FIND, 3, STRANGER, 5, False, STRANGER, "evil:1", False, named), 20_000
    )
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, 5, STRANGER, "evil:1"), 20_010)
    assert raft_state(core) == before


def test_while_a_leader_is_heard_no_other_one_leads_its_epoch() -> None:
    core = raft()
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, 4, A, "m0:1"), 20_000)
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, 4, B, "m1:1"), 20_100)
    assert core.leadership.master == A
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, 4, B, "m1:1"), 22_000)
    assert core.leadership.master == B, "one that is not heard may have been named by mistake"


def test_a_new_disk_takes_part_only_with_members_that_it_asked() -> None:
    core = raft(epoch=0, members=())
    assert core.uninitialized
    found = (*VOTERS[:2], Voter(C, "m2:1"))
    vote = RaftRequest(RaftRequestKind.VOTE, 1, A, "m0:1", (0, 0), False, found)
    assert not core.on_raft_request(vote, 20_000).granted, "it does not know yet who that is"
    assert core.uninitialized
    core.raft_answered(RaftResponse(RaftRequestKind.FIND, 0, A, 0, uninitialized=True), 20_010)
    evil = (Voter(A, "m0:1"), Voter(C, "m2:1"), Voter(STRANGER, "evil:1"))
    assert not core.on_raft_request(
        RaftRequest(RaftRequestKind.VOTE, 1, A, "m0:1", (0, 0), False, evil), 20_020
    ).granted
    assert core.on_raft_request(vote, 20_030).granted
    assert core.state.first_members == found


def test_a_member_without_an_epoch_takes_any_from_one_that_it_asked() -> None:
    core = raft(epoch=0, members=())
    far = 5 * JUMP
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, far, A, "m0:1"), 20_000)
    assert core.epoch == 0
    core.raft_answered(RaftResponse(RaftRequestKind.FIND, 0, A, far, False, A, "m0:1", False, VOTERS), 20_010)
    assert (core.epoch, core.leadership.master) == (far, A)


@pytest.mark.parametrize("epoch", [4 + JUMP, 2**53 + 1, 2**64 - 1])
def test_no_entrance_of_raft_takes_an_impossible_epoch(epoch: int) -> None:
    refused: list[tuple[str, str]] = []
    core = raft()
    core._refused = lambda entrance, reason, text: refused.append((entrance, reason))
    core.on_raft_request(RaftRequest(RaftRequestKind.BEGIN, 3, A, "m0:1"), 20_000)
    before = raft_state(core)
    for kind in RaftRequestKind:
        core.on_raft_request(RaftRequest(kind, epoch, A, "m0:1", (3, 2**40), True, VOTERS), 20_010)
    core.raft_answered(RaftResponse(RaftRequestKind.FIND, 3, A, epoch, False, A, "m0:1"), 20_020)
    core.fetched(Fetch(epoch, B, 0, 0, ()), 20_030)
    core.answered(FetchAnswer(AnswerKind.REFUSED, epoch, Position(0, 0)), 20_040)
    core.saw_epoch(epoch, 20_050)
    assert raft_state(core) == before
    assert set(refused) == {(name, "epoch-jump") for name in ("poll", "poll-answer", "fetch", "fetch-answer")}


# ---- the table of followers


def asks(core: Replica, log: ModelLog, who: MemberId, now_ms: int, end: int | None = None) -> FetchAnswer | None:
    end = log.end if end is None else end
    leader_epochs = tuple(e for e in log.leader_epochs if e.start < end)
    answer = core.fetched(Fetch(3, who, end, end, leader_epochs, leader=A), now_ms)
    core.confirm(now_ms)
    return answer


def test_invented_incarnations_leave_one_entry_for_their_number() -> None:
    core, log, _ = master()
    assert core.leader is not None
    assert asks(core, log, B, 0) is None
    for number in range(5_000):
        answer = asks(core, log, MemberId(1 + number % 3, f"i{number}"), 10 + number // 10)
        if number >= 3:
            assert present(answer).kind is AnswerKind.REFUSED
    assert set(core.leader.followers) == {B, MemberId(2, "i1"), MemberId(3, "i2")}


def test_a_life_of_the_set_takes_its_entry_back_at_once() -> None:
    core, log, _ = master()
    assert core.leader is not None
    invented = MemberId(1, "invented")
    assert asks(core, log, invented, 10) is None, "B was not heard yet"
    assert set(core.leader.followers) == {invented}
    assert log.confirmed == 0, "it counts for nothing"
    assert asks(core, log, B, 20) is None
    assert set(core.leader.followers) == {B}
    assert log.confirmed == log.end
    assert asks(core, log, invented, 30) is not None
    assert asks(core, log, invented, 30 + Options().silent_ms + 1) is None, "B is silent: its disk may be another one"


def test_a_follower_outside_the_set_holds_retention_back_for_a_limited_time() -> None:
    core, log, _ = master()
    leader = core.leader
    assert leader is not None
    limit = Options().keep_guest_ms
    asks(core, log, B, 0)
    now = 0
    while now <= limit:
        asks(core, log, C, now, end=0)
        assert leader.needed_from(now) == 0
        now += 300_000
    for turn in range(10):  # Another incarnation does not begin again.
        now += 300_000
        asks(core, log, B, now)
        asks(core, log, MemberId(C.member, f"life-{turn}"), now, end=0)
        assert leader.needed_from(now) == log.end
    asks(core, log, B, now, end=0)
    assert leader.needed_from(now) == 0, "one of the set is waited for"


# ---- assignments and state that a reset brings


def test_an_assignment_far_ahead_is_refused_unless_the_member_knows_no_epoch() -> None:
    core, _, disk = master()
    before, saved = core.leadership, disk.saved
    for epoch in (4 + JUMP, 2**53 + 1):
        done = core.assign(Assignment(LeadershipRecord(epoch, 9, B, frozenset({B})), "b:1"), 10)
        assert not done.accepted
        assert str(epoch) in done.reason
    assert (core.leadership, core.role, disk.saved) == (before, Role.MASTER, saved)
    assert core.assign(Assignment(LeadershipRecord(3 + JUMP, 9, B, frozenset({B})), "b:1"), 10).accepted
    uninitialized = Replica(HardState(C), ModelLog(Power()), ModelDisk(Power()), Options())
    assert uninitialized.assign(Assignment(LeadershipRecord(9 * JUMP, 9, B, frozenset({B})), "b:1"), 10).accepted


@pytest.mark.parametrize(
    "state",
    [
        b"7", b"[]", b"{", b'{"queues":7}', b'{"queues":[[1,2,3]]}', b'{"queues":[["T",-1,3]]}',
        b'{"queues":[["T",1,9223372036854775808]]}', b'{"queues":[["T",1]]}', b'{"queues":[["",1,1]]}',
    ],
)  # fmt: skip
def test_an_impossible_state_of_a_reset_is_refused(state: bytes) -> None:
    with pytest.raises(plausible.Implausible):
        queue_starts(state)
