"""A group of a standby has no leader; after a promotion a member with the whole log leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.contracts.sites import first_epoch
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import Bootstrap, FailoverSettings, MemberView, Observation, Report, Retire, Wait

from tests.failover.test_choose_leader import LEADERSHIP, unheard

RETIRED = LeadershipRecord(3, 8, None, frozenset())


def standby(number: int, **more: Any) -> MemberView:
    report = Report(MemberId(number, "standby"), "Waiting", standby=True, last_epoch=3, end=900)
    return MemberView(number, f"demo-a-{number}", f"h{number}:1", replace(report, **more), age_ms=100, reach="ok")


def promoted(number: int, end: int = 1_000, **more: Any) -> MemberView:
    report = Report(MemberId(number, "new"), "Waiting", last_epoch=5, end=end, site_origin="p", site_end=1_000)
    return MemberView(number, f"demo-a-{number}", f"h{number}:1", replace(report, **more), age_ms=100, reach="ok")


def seen(*members: MemberView, leadership: LeadershipRecord | None, standby: bool = True) -> Observation:
    return Observation("a", members, leadership, FailoverSettings(standby=standby))


def test_a_group_of_a_standby_loses_its_leader_and_gets_none() -> None:
    assert decide(seen(standby(0), standby(1), leadership=LEADERSHIP)) == [
        Retire(RETIRED, "the cluster is a standby: no member leads")
    ]
    for known in (RETIRED, None):
        (wait,) = decide(seen(standby(0), unheard(1), leadership=known))
        assert isinstance(wait, Wait)
        assert (wait.code, wait.available) == ("standby", True)


def test_new_disks_of_an_active_cluster_do_not_end_its_record() -> None:
    """The configuration makes a new member a standby until it hears otherwise; the others do not answer just now."""
    (wait,) = decide(seen(standby(0), unheard(1), leadership=LEADERSHIP, standby=False))
    assert isinstance(wait, Wait)
    assert (wait.code, wait.available) == ("promotion", False)


def test_after_a_promotion_the_first_with_the_whole_log_leads() -> None:
    for known, version in ((RETIRED, 9), (None, 1)):
        (made,) = decide(seen(standby(0), promoted(1), promoted(2, end=700), leadership=known))
        assert isinstance(made, Bootstrap)
        epoch = first_epoch(5, "p")
        assert made.leadership == LeadershipRecord(epoch, version, MemberId(1, "new"), frozenset({MemberId(1, "new")}))
        assert epoch > 100, "a former site that goes on cannot reach it"


def test_a_member_that_lacks_records_does_not_lead() -> None:
    (wait,) = decide(seen(promoted(0, end=999), unheard(1), leadership=RETIRED))
    assert isinstance(wait, Wait)
    assert (wait.code, wait.available) == ("waiting-for-members", False)


def test_nothing_leads_while_members_start_again() -> None:
    (wait,) = decide(seen(promoted(0, site_origin="", site_end=0), leadership=RETIRED))
    assert isinstance(wait, Wait)
    assert wait.code == "promotion"


def test_a_straggler_of_the_former_life_does_not_hold_it_up() -> None:
    former = promoted(0, site_origin="", epoch=3, version=7, end=5_000)
    (made,) = decide(seen(former, promoted(1), leadership=RETIRED))
    assert isinstance(made, Bootstrap)
    assert made.leadership.master == MemberId(1, "new")


def test_a_record_that_was_lost_after_the_promotion_is_recovered_as_always() -> None:
    member = MemberId(0, "new")
    led = promoted(0, epoch=700, version=2, in_sync=frozenset({member}))
    (found,) = decide(seen(led, leadership=None))
    assert type(found).__name__ == "Recover"
