"""A live view: rates, lags and members, from status lines and pages of metrics."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_operator.cluster.live import (
    FRESH_S,
    ConsumerLag,
    LiveCluster,
    LiveMember,
    MemberPlace,
    Page,
    Rates,
    rates_between,
    read_page,
    view_of,
)
from gantry_operator.cluster.plain import plain

NOW = 100.0
PLACES = tuple(MemberPlace(f"t-a-{n}", "a", n, f"http://127.0.0.1:{n}") for n in range(3))
FACTS = LiveCluster("t", "MasterSlave", PLACES)


def member(number: int) -> dict[str, Any]:
    return {"member": number, "incarnation": f"i{number}"}


def status(number: int, role: str = "Slave", epoch: int = 3, in_sync: tuple[int, ...] = (0, 1, 2), **more: Any) -> Any:
    return {
        "cluster": "t", "group": "a", "name": f"t-a-{number}", "member": member(number), "role": role, "epoch": epoch,
        "broker_id": 0 if role == "Master" else number + 1, "version": 1, "in_sync": [member(n) for n in in_sync],
        "disk": {"total_bytes": 1000, "free_bytes": 250}, **more,
    }  # fmt: skip


def whole(**of_master: Any) -> list[LiveMember]:
    lines = [status(0, "Master", **of_master), status(1), status(2, lag_bytes=77)]
    return [LiveMember(p, line) for p, line in zip(PLACES, lines, strict=True)]


PAGE = """\
# HELP gantry_uptime_seconds Since the process started.
gantry_uptime_seconds{cluster="t"} 50.5
rocketmq_messages_in_total{topic="T",is_system="false"} 100
rocketmq_messages_in_total{topic="U",is_system="false"} 20
rocketmq_messages_in_total{topic="rmq_sys_X",is_system="true"} 9999
rocketmq_throughput_in_total{topic="T",is_system="false"} 5000
rocketmq_messages_out_total{topic="T",consumer_group="g",is_system="false"} 7
rocketmq_consumer_lag_messages{topic="T",consumer_group="g",is_retry="false",is_system="false"} 30
rocketmq_consumer_lag_messages{topic="%RETRY%g",consumer_group="g",is_retry="true",is_system="false"} 4
rocketmq_consumer_lag_latency_milliseconds{topic="T",consumer_group="g",is_retry="false",is_system="false"} 900
rocketmq_consumer_lag_latency_milliseconds{topic="%RETRY%g",consumer_group="g",is_retry="true",is_system="false"} 80
rocketmq_consumer_inflight_messages{topic="T",consumer_group="g",is_retry="false",is_system="false"} 3
rocketmq_consumer_lag_messages{topic="T",consumer_group="TOOLS_CONSUMER",is_retry="false",is_system="true"} 1
another_family{topic="T"} 1
"""


def test_a_page_is_summed_without_the_systems_own_topics() -> None:
    assert read_page(PAGE) == Page(50.5, 120, 7, 5000, 0, (ConsumerLag("g", 34, 3, 900),))


@pytest.mark.parametrize(
    "text",
    ["", "nothing here", "gantry_uptime_seconds{", "gantry_uptime_seconds NaN", "gantry_uptime_seconds x", "<html>"],
)
def test_what_is_no_page_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a page of metrics"):
        read_page(text)


def test_numbers_that_no_member_reports_do_not_count() -> None:
    bad = "\n".join(f'rocketmq_messages_in_total{{topic="T{i}"}} {v}' for i, v in enumerate(("NaN", "+Inf", "-5", "3")))
    assert read_page(f"gantry_uptime_seconds 1\n{bad}\n").messages_in == 3


def test_rates_go_by_the_members_own_clock() -> None:
    before, after = Page(10, 100, 50, 1000, 500), Page(12, 300, 50, 3000, 500)
    assert rates_between(before, after, None) == Rates(100, 0, 1000, 0)
    assert rates_between(None, after, None) is None, "one sample is no rate"
    known = Rates(7, 7, 7, 7)
    assert rates_between(after, after, known) == known, "the same page again says nothing new"
    assert rates_between(after, Page(1, 5), known) is None, "a new process counts from 0"


def test_a_whole_cluster() -> None:
    seen = whole()
    seen[0] = seen[0].with_page(Page(1, 100), NOW - 2).with_page(Page(2, 150, lags=(ConsumerLag("g", 5),)), NOW - 1)
    view = view_of(FACTS, seen, NOW)
    assert view.phase == "Running"
    assert view.in_sync == 3
    assert [(m.name, m.role, m.epoch, m.lag, m.disk_used, m.reason) for m in view.members] == [
        ("t-a-0", "Master", 3, 0, 0.75, ""), ("t-a-1", "Slave", 3, 0, 0.75, ""), ("t-a-2", "Slave", 3, 77, 0.75, ""),
    ]  # fmt: skip
    assert view.rates == Rates(50, 0, 0, 0)
    assert view.consumers == (ConsumerLag("g", 5),)
    assert view.blind == ()


def test_the_in_sync_set_is_that_of_the_newest_leader() -> None:
    seen = whole(epoch=4, in_sync=(0, 1))
    assert [m.in_sync for m in view_of(FACTS, seen, NOW).members] == [True, True, False]
    deposed = [
        LiveMember(PLACES[0], status(0, "Master", 3)),
        LiveMember(PLACES[1], status(1, "Master", 4, (1,))),
        seen[2],
    ]
    view = view_of(FACTS, deposed, NOW)
    assert [m.in_sync for m in view.members] == [False, True, False]
    assert view.phase == "Degraded"


def test_a_member_that_does_not_answer_has_no_figures_and_delays_nothing() -> None:
    seen = whole()
    page = Page(2, 150, lags=(ConsumerLag("g", 5),))
    seen[0] = LiveMember(PLACES[0], seen[0].status, "connections are refused", page, NOW - 1, Rates(9, 9, 9, 9))
    view = view_of(FACTS, seen, NOW)
    gone = view.members[0]
    assert (gone.role, gone.lag, gone.rates, gone.disk_used) == ("Unknown", None, None, None)
    assert gone.reason == "connections are refused"
    assert view.phase == "Unavailable"
    assert view.blind == ("a",), "nobody knows the lag of its group"
    assert view.rates is None


def test_a_standby_that_follows_is_no_fault() -> None:
    site = {"role": "Standby", "follows": True}
    says = "follows the archive of another cluster"
    seen = [LiveMember(p, status(p.number, "Waiting", in_sync=(), site=site, reason=says)) for p in PLACES]
    view = view_of(FACTS, seen, NOW)
    assert (view.phase, view.standby, view.blind) == ("Running", True, ())
    assert {(m.role, m.in_sync, m.follows) for m in view.members} == {("Standby", None, True)}
    assert all(row["ready"] for row in view.as_resource()["status"]["members"])
    seen[0] = LiveMember(PLACES[0], status(0, "Waiting", in_sync=(), site=site | {"follows": False}, reason=says))
    assert view_of(FACTS, seen, NOW).phase == "Degraded"


def test_old_figures_are_not_shown_as_those_of_now() -> None:
    seen = whole()
    page = Page(2, 150, lags=(ConsumerLag("g", 5),))
    seen[0] = LiveMember(PLACES[0], seen[0].status, "", page, NOW - FRESH_S - 1, Rates(9, 9, 9, 9))
    view = view_of(FACTS, seen, NOW)
    assert (view.rates, view.consumers, view.blind) == (None, (), ("a",))


def test_a_report_that_no_correct_member_sends_is_a_reason() -> None:
    seen = whole()
    seen[1] = LiveMember(PLACES[1], status(1) | {"epoch": -1})
    seen[2] = LiveMember(PLACES[2], status(2) | {"disk": "full"})
    view = view_of(FACTS, seen, NOW)
    assert [m.role for m in view.members] == ["Master", "Unknown", "Unknown"]
    assert "epoch = -1" in view.members[1].reason
    assert "not a member's status" in view.members[2].reason
    seen[2] = LiveMember(PLACES[2], status(2) | {"lag_bytes": "many"})
    assert "lag_bytes" in view_of(FACTS, seen, NOW).members[2].reason
    assert view.phase == "Degraded"


def test_a_raft_group_is_in_sync_when_its_voters_keep_up() -> None:
    far = [{"member": member(1), "acked": 10, "last_fetch_ms": 1, "in_sync": True}]
    seen = whole(end=1 << 30, confirmed=1 << 30, followers=far)
    view = view_of(LiveCluster("t", "Raft", PLACES), seen, NOW)
    assert [m.in_sync for m in view.members] == [True, False, False]


def test_the_largest_lag_of_all_groups_is_first() -> None:
    places = (PLACES[0], MemberPlace("t-b-0", "b", 0, "http://127.0.0.1:9"))
    of_b = status(0, "Master") | {"group": "b", "name": "t-b-0"}
    seen = [
        LiveMember(places[0], status(0, "Master", in_sync=(0,))).with_page(
            Page(1, lags=(ConsumerLag("small", 3), ConsumerLag("both", 5, 1, 10))), NOW),
        LiveMember(places[1], of_b).with_page(
            Page(1, lags=(ConsumerLag("both", 6, 2, 90), ConsumerLag("most", 99))), NOW),
    ]  # fmt: skip
    view = view_of(LiveCluster("t", "MasterSlave", places), seen, NOW)
    assert view.consumers == (ConsumerLag("most", 99), ConsumerLag("both", 11, 3, 90), ConsumerLag("small", 3))


def test_a_text_from_outside_moves_no_cursor() -> None:
    assert plain("a\x1b[2Jb\nc\x07") == r"a\x1b[2Jb\nc\x07"
    event = {"time": "2026-01-01T00:00:00Z", "type": "Warning", "reason": "R", "message": "m\x1b[31m"}
    facts = LiveCluster(
        "t", "MasterSlave", PLACES, events=[event], last_failover={"to": "t-a-1", "reason": "\x1b]0;x\x07"}
    )
    view = view_of(facts, whole(), NOW)
    assert "\x1b" not in view.events[0][2] + view.last_failover
