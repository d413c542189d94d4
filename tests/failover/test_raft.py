"""Conclusions from the reports of a Raft group."""

from __future__ import annotations

from gantry_broker.contracts.leadership import MemberId
from gantry_operator.failover.model import FollowerView, Report
from gantry_operator.failover.raft import IN_SYNC_BYTES, keeping_up, leader_of, transfer_candidates

A, B, C = (MemberId(n, "x") for n in range(3))
VOTERS = frozenset({A, B, C})


def test_the_leader_of_the_highest_epoch_counts() -> None:
    old = Report(A, "Master", epoch=3)
    new = Report(B, "Master", epoch=4)
    assert leader_of([old, new]) is new
    assert leader_of([old, Report(C, "Slave", epoch=4)]) is None
    assert leader_of([]) is None


def test_a_distant_voter_is_not_in_sync() -> None:
    followers = (FollowerView(B, 100, 0), FollowerView(C, 99, 0), FollowerView(MemberId(3, "x"), 100, 0))
    leader = Report(A, "Master", confirmed=100 + IN_SYNC_BYTES, in_sync=VOTERS, followers=followers)
    assert keeping_up(leader) == {A, B}


def test_candidates_are_voters_with_the_longest_log_first() -> None:
    leader = Report(A, "Master", in_sync=VOTERS)
    short, long = Report(B, "Slave", last_epoch=1, end=9), Report(C, "Slave", last_epoch=1, end=10)
    learner = Report(MemberId(3, "x"), "Slave", last_epoch=1, end=11)
    assert transfer_candidates(leader, [short, learner, long, leader]) == [long, short]
