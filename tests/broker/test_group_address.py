"""When a leader gives clients its own address."""

from __future__ import annotations

from gantry_broker.broker.group_address import LOST_S, AddressJudge


def test_an_address_is_lost_after_some_seconds_without_an_answer_and_found_with_the_first() -> None:
    judge = AddressJudge()
    judge.failed(10.0)
    judge.failed(10.0 + LOST_S - 0.1)
    assert not judge.lost
    judge.answered()
    judge.failed(20.0)
    assert not judge.lost
    judge.failed(20.0 + LOST_S)
    assert judge.lost
    judge.failed(21.0 + LOST_S)
    assert judge.lost
    judge.answered()
    assert not judge.lost
    judge.failed(30.0)
    assert not judge.lost
