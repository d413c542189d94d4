"""A follower that acknowledges too late: writes wait for it, and in the end all time out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.failover.model import FailoverSettings, FollowerView, Report

from tests.cluster.fake_platform import FakePlatform

MASTER, SLAVE = MemberId(0, "x"), MemberId(1, "y")
SET = frozenset({MASTER, SLAVE})


class Group(MasterSlaveController):
    """Two observations of two members, one second apart."""

    def __init__(self) -> None:
        platform = FakePlatform()
        super().__init__("a", platform.registry, platform, platform.http, FailoverSettings)
        self.now = 0.0

    def second(self, end: int, acked: int, epoch: int = 1, master: MemberId = MASTER) -> int:
        self.now += 1
        [other] = SET - {master}
        reports = {
            master: Report(master, "Master", epoch, end=end, followers=(FollowerView(other, acked, 10),)),
            other: Report(other, "Slave", epoch, end=acked),
        }
        watches: Any = {id.member: SimpleNamespace(report=report) for id, report in reports.items()}
        self.watches = watches
        return self._stalled_ms(LeadershipRecord(epoch, 1, master, SET), watches[other.member], self.now)


def test_one_that_is_further_behind_with_each_second_does_not_hold_senders_up_for_ever() -> None:
    group = Group()
    late = [group.second(end=50_000 * n, acked=5_000 * n) for n in range(1, 25)]
    assert max(late) >= 10_000, "it acknowledges something new each second"


def test_one_that_is_always_a_second_behind_is_well() -> None:
    group = Group()
    assert max(group.second(end=50_000 * n, acked=50_000 * (n - 1)) for n in range(1, 60)) <= 1_000


def test_acknowledgements_for_another_leaders_log_do_not_count() -> None:
    """Its log may have been truncated."""
    group = Group()
    group.second(end=9_000, acked=1_000)
    assert [group.second(end=1_000 + n, acked=1_000 + n, epoch=2, master=SLAVE) for n in range(20)] == [0] * 20
