"""Raft mode: a follower whose acknowledgement is not waited for takes more at once; who is waited for shows itself."""

from __future__ import annotations

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.replication.leader import Options, WritePause
from gantry_broker.replication.members import Voter, is_majority
from gantry_broker.replication.raft_leader import RaftLeader
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.model_log import ModelLog, Power

ALL = tuple(MemberId(n, "x") for n in range(7))


def leader(count: int) -> RaftLeader:
    """Member 0 of `count` leads."""
    voters = tuple(Voter(m, "") for m in ALL[:count])
    leadership = LeadershipRecord(1, 1, ALL[0], frozenset(ALL[:count]))
    return RaftLeader(
        ALL[0], leadership, ModelLog(Power()), Options(), 0,
        role_end=0, control_end=0, members=lambda: voters, report=lambda text: None,
    )  # fmt: skip


def test_of_three_the_one_that_is_behind_is_spare_and_without_the_other_it_is_not() -> None:
    one = leader(3)
    one.followers[ALL[1]].acked, one.followers[ALL[2]].acked = 100, 50
    assert [one.is_beyond_quorum(m) for m in ALL[1:3]] == [False, True]
    one.followers[ALL[2]].acked = 150  # It was given everything at once, and the other one stands still.
    assert [one.is_beyond_quorum(m) for m in ALL[1:3]] == [True, False]


def test_the_next_leader_and_members_without_a_vote_are_not_spare() -> None:
    one = leader(3)
    one.followers[ALL[1]].acked = 100
    one.followers[ALL[2]].acked = 50
    one.hold(ALL[3], True, 0)
    assert one.is_beyond_quorum(ALL[2])
    assert not one.is_beyond_quorum(ALL[3])
    one.pause_writes = WritePause(ALL[2], 1)
    assert not one.is_beyond_quorum(ALL[2])


@given(st.integers(2, 7), st.lists(st.integers(-1, 5), min_size=6, max_size=6))
def test_members_that_are_not_spare_form_a_bare_majority(count: int, acked: list[int]) -> None:
    one = leader(count)
    for member, end in zip(ALL[1:count], acked, strict=False):
        one.followers[member].acked = end
    needed = {m for m in ALL[:count] if m == one.me or not one.is_beyond_quorum(m)}
    voters = tuple(Voter(m, "") for m in ALL[:count])
    assert is_majority(needed, voters)
    assert not is_majority(needed - {one.me}, voters)
    ends = sorted((one.followers[m].acked for m in ALL[1:count]), reverse=True)
    assert sorted((one.followers[m].acked for m in needed - {one.me}), reverse=True) == ends[: len(needed) - 1]


def test_retention_waits_for_no_voter_that_has_gone() -> None:
    """A majority goes on without it, and so does the log: when it comes back it takes a full copy."""
    one = leader(3)
    log = one._log
    assert isinstance(log, ModelLog)
    log.begin_epoch(1, 0)
    for member in ALL[1:3]:
        one.followers[member].acked = log.end
    early = log.end
    log.append(1, 1)
    one.followers[ALL[1]].acked, one.followers[ALL[1]].seen_ms = log.end, 900_000
    assert one.needed_from(1_000) == early, "it may come again"
    assert one.needed_from(900_000) == log.end
