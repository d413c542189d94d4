"""The control of a cluster over a platform in memory: what it starts, what it may change, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster import hibernation, observation, restart
from gantry_operator.cluster.control import ClusterControl
from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.cluster.platform import Event
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import Wait

from tests.cluster.fake_platform import FakePlatform
from tests.support.present import present
from tests.support.running import until


def spec(*groups: str, members: int = 3, paused: bool = False, **fields: Any) -> BrokerCluster:
    made = BrokerCluster.make("t", "x", brokerGroups=[{"name": g, "members": members} for g in groups], **fields)
    if paused:
        made.metadata.annotations["gantry.dev/paused"] = "true"
    return made


@pytest.fixture
def platform() -> FakePlatform:
    return FakePlatform()


@asynccontextmanager
async def controlled(platform: FakePlatform, cluster: BrokerCluster, **more: Any) -> AsyncIterator[ClusterControl]:
    control = ClusterControl(platform, StallCompensatedClock(), **more)
    control.take(cluster)
    control.start()
    try:
        yield control
    finally:
        await control.close()
        await platform.http.aclose()


@asynccontextmanager
async def led(platform: FakePlatform, leaders: Mapping[str, int]) -> AsyncIterator[ClusterControl]:
    """All processes of these groups run, and the control knows who leads."""
    for group, member in leaders.items():
        platform.lead(group, member)
    async with controlled(platform, spec(*leaders)) as control:
        platform.run_all()
        control.lead()
        await until(lambda: all(control.groups.leader(g) == member for g, member in leaders.items()))
        yield control


async def test_groups_are_led_from_the_moment_at_which_the_spec_may_be_carried_out(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a", "b")) as control:
        assert not control.controllers
        with pytest.raises(SwitchoverFailed, match="group a has not started: try again"):
            control.controller_of("a")
        control.problems = ["no token"]
        with pytest.raises(SwitchoverFailed, match="group a has not started: no token"):
            control.controller_of("a")
        control.lead()
        await until(lambda: set(control.controllers) == {"a", "b"})
        assert platform.controllers is control.controllers


async def test_a_switchover_that_cannot_begin_is_answered_with_the_reason() -> None:
    control = ClusterControl(FakePlatform(), StallCompensatedClock())
    control.refused = "spec.mode is 7"
    with pytest.raises(SwitchoverFailed, match=r"no group is led, since the spec is refused: spec\.mode is 7"):
        await control.switchover("a", None, "asked for")
    await control.close()
    async with controlled(FakePlatform(), spec("a", "b")) as control:
        for group, member, words in (
            ("c", None, "t has no group 'c', but a, b"),
            ("a", "t-a-9", "t has no member 't-a-9'"),
            ("a", "t-b-1", "t-b-1 is a member of group b, not of a"),
            ("a", "t-a-1", "group a has not started: try again"),
        ):
            with pytest.raises(SwitchoverFailed, match=words):
                await control.switchover(group, member, "asked for")
    async with controlled(FakePlatform(), spec("a", members=1)) as control:
        with pytest.raises(SwitchoverFailed, match="group a has one member, t-a-0"):
            await control.switchover("a", None, "asked for")


async def test_a_group_that_leaves_stays_led_and_takes_no_topics() -> None:
    platform = FakePlatform(former=["b"])
    async with controlled(platform, spec("a")) as control:
        control.lead()
        await until(lambda: set(control.controllers) == {"a", "b"})
        assert (control.staying, control.leaving) == (("a",), ("b",))
        assert control.drains()["b"].phase == "Waiting"
        wanted = present(control.wanted_groups())
        assert (wanted.staying, wanted.leaving) == (("a",), ("b",))
        assert present(control._topic_cluster()).draining == {"b"}


async def test_a_removed_group_is_led_no_more_before_its_members_stop() -> None:
    platform = FakePlatform(former=["b"])
    async with controlled(platform, spec("a")) as control:
        control.lead()
        await until(lambda: "b" in control.controllers)
        platform.going = ("b",)
        control.changes.wake()
        await until(lambda: platform.steps and any(s.startswith("remove") for s in platform.steps))
        assert "remove b, led: False" in platform.steps


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({}, ""),
        ({"paused": True}, "the cluster is paused (gantry.dev/paused)"),
        ({"hibernate": True}, "the cluster hibernates"),
    ],
)
async def test_what_may_change_under_a_spec(platform: FakePlatform, change: dict[str, Any], held: str) -> None:
    may = not held
    async with controlled(platform, spec("a", **change)) as control:
        assert control.may_change() == may
        assert (control.wanted_groups() is not None) == may
        assert control.held() == held
        platform.can_pause = False
        assert control.may_change() == (may or "paused" in change)
        control.refused = "spec.mode is 7"
        assert not control.may_change(), "a refused spec changes nothing"
        assert control.wanted_groups() is None


async def test_no_group_changes_while_the_platform_does_not_know_all_objects(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a")) as control:
        platform.known = False
        assert control.wanted_groups() is None
        assert control.may_change()


async def test_no_member_is_compared_under_a_refused_spec_and_the_failover_goes_on(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a")) as control:
        control.refused = "spec.mode is 7"
        control.lead_recovered()
        await until(lambda: control.controllers)
        control.rolling.start("now")
        await asyncio.sleep(0.05)
        assert platform.steps == []
        control.refused = ""
        control.rolling.start("now")
        await until(lambda: "compare a" in platform.steps)


async def test_a_change_that_comes_during_a_round_is_not_called_done_with_it(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlled(platform, spec("a")) as control:
        rolling = control.rolling

        async def finish_change() -> bool:
            rolling.start("the spec was changed")
            return False

        monkeypatch.setattr(platform, "finish_change", finish_change)
        await rolling.look_once()
        assert rolling.reason == "the spec was changed"


async def test_a_change_waits_for_its_window_and_then_for_the_platform(platform: FakePlatform) -> None:
    window = {"schedule": "0 2 29 2 *", "duration": "1h"}
    async with controlled(platform, spec("a", maintenanceWindow=window)) as control:
        platform.held = "waits for another cluster"
        assert control.hold().startswith("waits for the maintenance window")
        control.take(spec("a"))
        assert control.hold() == "waits for another cluster"


@pytest.mark.parametrize("keeps_lowest", [True, False])
async def test_a_cluster_hibernates_with_its_leaders_last(keeps_lowest: bool) -> None:
    """Where the lowest number stops last, it is the one that starts first. Elsewhere it is the leader."""
    platform = FakePlatform(keeps_lowest=keeps_lowest)
    async with led(platform, dict.fromkeys("ab", 0 if keeps_lowest else 2)) as control:
        control.take(spec("a", "b", hibernate=True))
        control.lead()
        await until(lambda: control.hibernation.done)
        last = 0 if keeps_lowest else 2
        assert platform.steps[-6:] == [
            f"stop a but {last}, led: True",
            f"stop b but {last}, led: True",
            "stop a but None, led: False",
            "stop b but None, led: False",
            "stop the others",
            "stopped",
        ]
        assert not platform.alive
        assert not control.controllers, "the end of a process is no failure"
        said = [e.message for e in platform.events if e.reason == "Hibernating"]
        assert [m.split(" stops")[0] for m in said] == ["group a", "group b"]
        platform.seen = replace(platform.seen, hibernated=True)
        assert control.observe().hibernated


async def test_a_cluster_that_is_woken_while_processes_stop_starts_again() -> None:
    platform = FakePlatform(keeps_lowest=False)
    async with led(platform, {"a": 1}) as control:

        async def wake(group: str) -> None:
            platform.before_stop = None
            control.take(spec("a"))
            control.lead()

        platform.before_stop = wake
        control.take(spec("a", hibernate=True))
        control.lead()
        await until(lambda: "resume" in platform.steps)
        assert len(platform.alive) == 3
        assert (control.hibernation.running, control.hibernation.progress) == (None, "")
        assert set(control.controllers) == {"a"}


async def test_a_wake_up_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec wakes the cluster during a step that fails, and the first start of its processes fails, too."""
    monkeypatch.setattr(restart, "PART_AGAIN_S", 0.01)
    platform = FakePlatform(keeps_lowest=False)
    resume, failures = platform.resume, ["a port is taken"]

    async def fails_once() -> None:
        if failures:
            raise OSError(failures.pop())
        await resume()

    monkeypatch.setattr(platform, "resume", fails_once)
    async with led(platform, {"a": 1}) as control:

        async def wake(group: str) -> None:
            platform.before_stop = None
            control.take(spec("a"))
            control.lead()
            platform.alive.pop()
            raise OSError("a process does not end")

        platform.before_stop = wake
        control.take(spec("a", hibernate=True))
        control.lead()
        await until(lambda: "resume" in platform.steps)
        assert len(platform.alive) == 3
        assert not failures


async def test_a_stop_that_fails_half_way_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "PART_AGAIN_S", 0.01)
    platform = FakePlatform(keeps_lowest=False)
    async with led(platform, {"a": 1}) as control:

        async def fail(group: str) -> None:
            platform.before_stop = None
            raise OSError("a process does not end")

        platform.before_stop = fail
        control.take(spec("a", hibernate=True))
        control.lead()
        await until(lambda: control.hibernation.done)
        stops = [step for step in platform.steps if step.startswith("stop a")]
        assert stops == ["stop a but 1, led: True"] * 2 + ["stop a but None, led: False"]


async def test_a_group_that_leaves_the_spec_hibernates_no_more(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a", "b", hibernate=True)) as control:
        control.lead()
        assert control.hibernation.running == {"a": 0, "b": 0}
        control.take(spec("a", hibernate=True))
        control.lead()
        assert control.hibernation.running == {"a": 0}
        await until(lambda: control.hibernation.done)


async def test_hibernation_takes_no_steps_while_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor runs all day, and its steps are short."""
    platform, looks = FakePlatform(keeps_lowest=False), list[float]()

    async def noted(seconds: float) -> None:
        looks.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(hibernation, "asyncio", SimpleNamespace(sleep=noted, Event=asyncio.Event))
    async with controlled(platform, spec("a")) as control:
        platform.run_all()
        control.lead()
        await asyncio.sleep(0.03)
        assert looks == []
        for _ in range(2):
            control.take(spec("a", hibernate=True))
            control.lead()
            await until(lambda: control.hibernation.done)
            seen = len(looks)
            await asyncio.sleep(0.03)
            assert len(looks) <= seen + 1
            control.take(spec("a"))
            control.lead()
            platform.run_all()
            platform.servers = True


async def test_hibernation_goes_on_from_what_runs_after_a_restart(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a", "b", hibernate=True)) as control:
        platform.alive = {"t-b-0"}
        platform.lead("b", 0)
        control.lead()
        assert control.hibernation.sleeps("a")
        await until(lambda: control.hibernation.done)
        assert "stop b but None, led: False" in platform.steps
        assert not any(s.startswith("stop a but 0") for s in platform.steps), "its followers stopped before"


async def test_the_observation_joins_what_platform_and_control_know(platform: FakePlatform) -> None:
    platform.seen = replace(platform.seen, problems=["of an object"], progress=["objects"], volume_size="8Gi")
    async with controlled(platform, spec("a", members=2)) as control:
        platform.alive = {"t-a-0"}
        control.problems = ["of an object", "of a pass"]
        control.rolling.refused["a"] = "versions"
        control.rolling.progress["a"] = "t-a-1 is replaced"
        control.left_out = {"x": "none of its configs can be read"}
        seen = control.observe()
        assert [(m.name, m.pod_ready, m.node) for m in seen.members] == [
            ("t-a-0", True, "here"),
            ("t-a-1", False, "here"),
        ]
        assert seen.problems == ["of an object", "of a pass", "group a keeps its version: versions"]
        assert seen.progress == ["objects", "t-a-1 is replaced"]
        assert (seen.volume_size, seen.available) == ("8Gi", {"x": "none of its configs can be read"})
        assert not seen.hibernated


@pytest.mark.parametrize("inherited", [True, False])
async def test_after_a_start_another_status_holds_until_there_are_data(platform: FakePlatform, inherited: bool) -> None:
    async with controlled(platform, spec("a", members=1), inherited=inherited) as control:
        control.lead()
        await until(lambda: control.controllers)
        assert control.warms_up() == inherited
        assert control.observe().blind == (frozenset("a") if inherited else frozenset())
        group: Any = control.controllers["a"]
        await until(lambda: group.watches and group.watches[0].problem)
        [watch] = group.watches.values()
        watch.problem = ""
        group.waits = Wait("waiting-for-members", "every disk must report first", available=False)
        control.warm_up.begun -= observation.WARM_UP_S
        assert not control.warms_up()
        assert control.observe().blind == (frozenset("a") if inherited else frozenset()), "the wait may be a guess"
        watch.problem = "it refuses the connection"
        group.waits = Wait("waiting-for-members", "every disk must report first", available=False)
        assert control.observe().blind == frozenset(), "now the wait is more than a guess"


async def test_availability_is_checked_for_the_groups_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = FakePlatform(former=["b"])
    async with controlled(platform, spec("a")) as control:
        control.lead()
        await until(lambda: set(control.controllers) == {"a", "b"})
        watched: list[tuple[Any, ...]] = []
        monkeypatch.setattr(control.availability, "watch", lambda *given: watched.append(given))
        control.check_availability()
        assert [(w[0], w[4], w[5], w[6], w[7]) for w in watched] == [("a", ["n:1"], "a:1", "127.0.0.1:1", "a")]


async def test_brokers_are_called_with_the_newest_certificates(platform: FakePlatform) -> None:
    async with controlled(platform, spec("a")) as control:
        first = control.remoting
        control.call_with(None, lambda: None)
        assert control.remoting is first
        control.call_with("x", lambda: None)
        assert control.remoting is not first
        assert control.availability._client is control.remoting
        second = control.remoting
        control.call_with("x", lambda: None)
        assert control.remoting is second


class Failing:
    """A part whose first two runs fail."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs < 3:
            raise RuntimeError("a fault")
        await asyncio.Event().wait()


async def test_a_part_that_fails_is_reported_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_operator.cluster.restart.PART_AGAIN_S", 0.0)
    platform = FakePlatform()
    control = ClusterControl(platform, StallCompensatedClock())
    part = Failing()
    monkeypatch.setattr(control.hibernation, "run", part)
    control.start()
    await until(lambda: part.runs == 3)
    said = [e.message for e in platform.events if e.reason == "ReconcileError"]
    assert said == ["hibernation failed and is restarted: RuntimeError('a fault')"] * 2
    await control.close()
    await platform.http.aclose()


async def test_a_part_is_started_again_though_its_fault_cannot_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "PART_AGAIN_S", 0.0)
    part = Failing()

    def report(event: Event) -> None:
        raise ValueError(event.reason)

    task = asyncio.create_task(restart.kept_alive("a part", part, report))
    await until(lambda: part.runs == 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
