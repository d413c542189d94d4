"""A new leader whose answer to its assignment was lost: its status line says that it leads."""

from __future__ import annotations

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.failover.model import FailoverSettings, MemberView, Observation, Promote, Report

from tests.cluster.fake_platform import FakePlatform

OLD, NEW = MemberId(0, "x"), MemberId(1, "y")
LEADERSHIP = LeadershipRecord(7, 3, NEW, frozenset({OLD, NEW}))


@pytest.mark.parametrize(
    ("role", "epoch", "reported"), [("Master", 7, 1), ("Waiting", 7, 0), ("Slave", 6, 0), ("Master", 6, 0)]
)
def test_the_change_is_reported_once_the_leader_says_that_it_leads(role: str, epoch: int, reported: int) -> None:
    platform = FakePlatform()
    loop = MasterSlaveController("a", platform.registry, platform, platform.http, FailoverSettings)
    promoted = Promote(leadership=LEADERSHIP, new=NEW, old=OLD, reason="it died", kind="failover")
    loop._pending_change = (promoted, 1.0)
    report = Report(NEW, role, epoch)  # type: ignore[arg-type]
    loop._look_for_role(Observation("a", (MemberView(1, "m1", "h:1", report),), LEADERSHIP))
    assert [(change.epoch, change.reason) for change in platform.changes] == [(7, "it died")] * reported
