"""The status: phases and conditions from observations. Times move only when a condition turns."""

from __future__ import annotations

from typing import Any

from gantry_operator.api.status import AnalyticsStatus, BrokerClusterStatus, NameServerRow
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import significant, status_of
from hypothesis import given, settings
from hypothesis import strategies as st

SERVERS = [NameServerRow(name="demo-namesrv-0", address="ns:9876", ready=True)]


def member(number: int, role: str = "Slave", **kw: Any) -> ObservedMember:
    status = {"role": role, "broker_id": 0 if role == "Master" else number + 1, "epoch": 3, "end": 100 + number}
    values: dict[str, Any] = {"status": status, "pod_ready": True, "in_sync": True, "node": f"node{number}"}
    return ObservedMember(name=f"demo-a-{number}", group="a", number=number, **(values | kw))


def observed(members: list[ObservedMember] | None = None, **kw: Any) -> ObservedState:
    found = members if members is not None else [member(0, "Master"), member(1), member(2)]
    return ObservedState(members=found, name_servers=SERVERS, **({"available": {"a": None}} | kw))


def made(
    s: ObservedState, old: BrokerClusterStatus | None = None, now: str = "t1", paused: bool = False
) -> BrokerClusterStatus:
    return status_of(None, old or BrokerClusterStatus(), s, now, 7, paused)


def condition(status: BrokerClusterStatus, kind: str) -> tuple[str, str, str]:
    c = next(c for c in status.conditions if c.type == kind)
    return c.status, c.reason, c.message


def test_all_is_well() -> None:
    status = made(observed())
    assert (status.phase, status.readyMembers, status.masters, status.observedGeneration) == (
        "Running",
        "3/3",
        "demo-a-0",
        7,
    )
    assert [condition(status, k)[0] for k in ("Available", "Progressing", "Degraded")] == ["True", "False", "False"]
    row = status.members[0]
    assert (row.role, row.brokerId, row.epoch, row.maxOffset, row.inSync, row.node) == (
        "Master",
        0,
        3,
        100,
        True,
        "node0",
    )


def test_running_pods_do_not_make_it_available() -> None:
    """Every pod is ready, but no check has sent and read a message yet."""
    assert condition(made(observed(available={})), "Available")[:2] == ("False", "ProbePending")
    said = condition(made(observed(available={"a": "it does not answer"})), "Available")
    assert said == ("False", "ProbeFailed", "group a: it does not answer")


def test_another_operator_keeps_what_it_knows_nothing_of() -> None:
    """Another operator has taken over: nothing failed, so nothing turns, and no member has lost its role."""
    before = made(observed())
    silent = [member(n, status=None, in_sync=False, pod_ready=True) for n in range(3)]
    for available in ({}, {"a": "the members elect a leader"}):
        status = made(observed(silent, available=available, blind=frozenset({"a"})), before, "t2")
        assert status.to_object() == before.to_object()
    known = [silent[0], silent[1], member(2, status=None, problem="its image cannot be pulled")]
    status = made(observed(known, available={}, blind=frozenset({"a"})), before, "t2")
    assert condition(status, "Available") == condition(before, "Available")
    assert "demo-a-2 (its image cannot be pulled)" in condition(status, "Degraded")[2]
    assert [r.role for r in status.members] == ["Master", "Slave", "Unknown"]
    other = [*silent, ObservedMember("demo-b-0", "b", 0, None, False)]
    status = made(observed(other, available={"b": "it is down"}, blind=frozenset({"a"})), before, "t2")
    assert condition(status, "Available") == ("False", "ProbeFailed", "group b: it is down")
    assert condition(made(observed(silent, available={}, blind=frozenset({"a"}))), "Available")[1] == "ProbePending"


def test_a_lost_member_degrades_with_the_reason() -> None:
    status = made(observed([member(0, "Master"), member(1, status=None, in_sync=False, problem="there is no pod")]))
    assert status.phase == "Degraded"
    assert "demo-a-1 (there is no pod)" in condition(status, "Degraded")[2]
    assert (status.readyMembers, status.members[1].role) == ("1/2", "Unknown")


def test_a_silent_member_has_no_lag() -> None:
    """0 bytes would say that it has everything."""
    row = made(observed([member(0, "Master"), member(1, status=None)])).to_object()["members"][1]
    assert not {"lag", "maxOffset", "epoch"} & set(row)


def test_a_check_of_a_minute_ago_does_not_outlive_the_members() -> None:
    status = made(observed([member(i, status=None, problem="no connection in time") for i in range(3)]))
    assert condition(status, "Available") == ("False", "ProbeFailed", "group a: none of its members answers")
    assert condition(status, "Ready")[1] == "ProbeFailed"


def test_the_cause_is_said_before_what_follows_from_it() -> None:
    """A group waits for its members because Kubernetes does not start them."""
    waits = "waiting for demo-a-0, demo-a-1: every disk must report first"
    away = {"status": None, "pod_ready": False, "in_sync": False}
    pending = [member(n, problem="Unschedulable: 0/3 nodes are available", **away) for n in range(2)]
    status = made(observed([*pending, member(2)], available={"a": waits}))
    said = f"group a: demo-a-0, demo-a-1: Unschedulable: 0/3 nodes are available; {waits}"
    assert condition(status, "Available") == ("False", "ProbeFailed", said)
    assert condition(status, "Ready")[2] == said
    pending = [member(0, problem="quota small of the namespace is used up", **away)]
    assert condition(made(observed(pending, available={})), "Available")[2] == (
        "not checked yet: demo-a-0: quota small of the namespace is used up; a"
    )
    server = NameServerRow(name="demo-namesrv-0", address="ns:9876", ready=False, reason="its image cannot be pulled")
    seen = ObservedState(members=[member(0, "Master")], name_servers=[server], available={"a": "no NameServer answers"})
    assert condition(made(seen), "Available")[2] == (
        "group a: demo-namesrv-0: its image cannot be pulled; no NameServer answers"
    )


def test_a_disk_that_fills_is_said_before_a_send_is_refused() -> None:
    def disks(*free: int, full: bool = False, seconds: int = -1) -> ObservedState:
        found = []
        for number, percent in enumerate(free):
            disk = {"total_bytes": 100, "free_bytes": percent, "full": full, "full_in_s": seconds}
            found.append(member(number, "Slave", status={"role": "Slave", "disk": disk}))
        return observed(found)

    assert not [c for c in made(observed()).conditions if c.type == "DiskPressure"], "no disk is known"
    good = made(disks(40, 50))
    assert condition(good, "DiskPressure")[:2] == ("False", "EnoughSpace")
    low = made(disks(40, 9), good)
    assert condition(low, "DiskPressure")[:2] == ("True", "DiskAlmostFull")
    assert "demo-a-1: write a larger spec.storage.size" in condition(low, "DiskPressure")[2]
    assert condition(made(disks(40, 11), low), "DiskPressure")[0] == "True", "it does not flap"
    assert condition(made(disks(40, 11), good), "DiskPressure")[0] == "False"
    assert condition(made(disks(40, 13), low), "DiskPressure")[0] == "False"
    assert condition(made(disks(40, full=True)), "DiskPressure")[:2] == ("True", "DiskFull")
    assert condition(made(disks(0)), "DiskPressure")[:2] == ("True", "DiskFull")
    assert condition(made(disks(40, seconds=3600), None, "2026-01-01T00:00:00Z"), "DiskPressure")[:2] == (
        "True",
        "DiskFullSoon",
    )
    silent = observed([member(0, status=None)], blind=frozenset({"a"}))
    assert condition(made(silent, low), "DiskPressure") == condition(low, "DiskPressure")


def test_a_disk_without_room_does_not_say_that_sends_are_refused() -> None:
    """The log's present segment takes messages while nothing else on the disk has room."""

    def disks(*full: bool) -> ObservedState:
        reports = [{"total_bytes": 100, "free_bytes": 0, "full": refused, "full_in_s": -1} for refused in full]
        return observed(
            [member(number, "Slave", status={"role": "Slave", "disk": disk}) for number, disk in enumerate(reports)]
        )

    assert "the disk is full: demo-a-0; sends go on only while" in condition(made(disks(False)), "DiskPressure")[2]
    some = condition(made(disks(True, False)), "DiskPressure")[2]
    assert "sends are refused: demo-a-0; nothing is free either: demo-a-1: write" in some


def test_a_report_that_lacks_a_part_is_a_condition() -> None:
    report = AnalyticsStatus(lastResult="Succeeded", lastSuccess="t0", missing=["consumer groups of a"])
    said = condition(made(observed(analytics=report)), "ReportComplete")
    assert said == ("False", "PartMissing", "the last report lacks consumer groups of a: its notes say why")
    whole = report.model_copy(update={"missing": []})
    assert condition(made(observed(analytics=whole)), "ReportComplete")[0] == "True"
    none = made(observed(analytics=AnalyticsStatus(lastResult="Failed")))
    assert not [c for c in none.conditions if c.type == "ReportComplete"]


def test_a_problem_is_in_every_condition_that_it_concerns() -> None:
    status = made(observed(problems=["StatefulSet demo-a: exceeded quota"]))
    assert condition(status, "Progressing")[:2] == ("False", "Blocked")
    assert all("exceeded quota" in condition(status, kind)[2] for kind in ("Ready", "Progressing", "Degraded"))


def test_a_follower_out_of_sync_is_not_ready() -> None:
    assert not made(observed([member(0, "Master"), member(1, in_sync=False)])).members[1].ready


def test_without_a_master_it_says_so() -> None:
    status = made(
        observed([member(0)], available={"a": "no member can take over"}), BrokerClusterStatus(phase="Running")
    )
    assert (status.phase, status.masters) == ("Unavailable", "a: none")


def test_phases_of_a_beginning_and_of_a_change() -> None:
    assert made(observed(available={})).phase == "Creating"
    assert made(observed(progress=["demo-a-2 is replaced"])).phase == "Updating"
    assert made(observed(), paused=True).phase == "Paused"
    assert made(observed(problems=["volume cannot grow"])).phase == "Degraded"


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    first = made(observed(), now="t1")
    second = made(observed(), first, "t2")
    assert {c.lastTransitionTime for c in second.conditions} == {"t1"}
    third = made(observed(available={"a": "gone"}), second, "t3")
    times = {c.type: c.lastTransitionTime for c in third.conditions}
    assert times == {"Ready": "t3", "Available": "t3", "Progressing": "t1", "Degraded": "t1", "Secured": "t1"}


def test_a_refused_spec_leaves_the_rest_as_it_is() -> None:
    good = made(observed())
    status = made(observed([], refused="spec.mode is wrong"), good, "t2")
    assert (status.phase, status.members, condition(status, "Available")[0]) == ("Refused", good.members, "True")
    assert "spec.mode is wrong" in condition(status, "Progressing")[2]
    new = made(observed([], refused="spec.mode is wrong"))
    assert condition(new, "Available")[:2] == ("False", "InvalidSpec")


def test_a_refused_spec_hides_no_later_change() -> None:
    """The failover goes on, and the status still shows it."""
    good = made(observed())
    now = observed([member(0, status=None, problem="there is no pod"), member(1, "Master"), member(2)], refused="no")
    status = made(now, good, "t2")
    assert (status.phase, status.masters, status.readyMembers) == ("Refused", "demo-a-1", "2/3")
    assert condition(status, "Available")[0] == "True"
    assert condition(status, "Degraded")[0] == "True"
    assert condition(status, "Progressing")[1] == "InvalidSpec"
    away = made(observed(available={"a": "it does not answer"}, refused="no"), status, "t3")
    assert condition(away, "Available") == ("False", "ProbeFailed", "group a: it does not answer")
    assert away.addresses == good.addresses


def test_offsets_alone_are_not_significant() -> None:
    a, b = (
        made(observed()),
        made(observed([member(0, "Master"), member(1), member(2, status={"role": "Slave", "epoch": 3})])),
    )
    b.members[2].brokerId = a.members[2].brokerId
    assert significant(a) == significant(b)
    assert a.to_object() != b.to_object()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Master", "Slave", "Waiting", None]), st.booleans(), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, "why"]),
    st.lists(st.text(max_size=5), max_size=2),
    st.lists(st.text(max_size=5), max_size=2),
)
def test_every_observation_gives_a_status(
    rows: list[tuple[str | None, bool, bool]], available: str | None, problems: list[str], progress: list[str]
) -> None:
    members = [
        member(i, in_sync=sync, pod_ready=ready, status=None if role is None else {"role": role})
        for i, (role, sync, ready) in enumerate(rows)
    ]
    status = made(observed(members, available={"a": available}, problems=problems, progress=progress))
    assert BrokerClusterStatus.model_validate(status.to_object()) == status
    silent = all(role is None for role, _, _ in rows)
    assert (status.phase in ("Unavailable", "Creating")) == (available is not None or silent)
    if status.phase == "Running":
        assert all(m.ready for m in status.members)
    assert len({c.type for c in status.conditions}) == 5
    found = {c.type: c for c in status.conditions}
    good = (found["Available"].status, found["Progressing"].status, found["Degraded"].status) == (
        "True", "False", "False",
    )  # fmt: skip
    assert (found["Ready"].status == "True") == good == (status.phase == "Running")
    if found["Degraded"].status == "True" and found["Progressing"].status == "False":
        assert found["Progressing"].message != "the cluster matches the spec"
    if found["Available"].status == "True":
        assert any(role is not None for role, _, _ in rows)
