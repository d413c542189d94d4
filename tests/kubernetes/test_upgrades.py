"""Members of another version: whether the group's pods are replaced, and what is said if not."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_broker.version import VERSION
from gantry_operator.api.annotations import RESTART
from gantry_operator.cluster.platform import Event
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.cluster.upgrade_check import Running, Upgrade, compatible, release_of, why_not
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.members.pod_replacement import PodReplacement
from gantry_operator.platforms.local.platform import LocalPlatform
from gantry_operator.registry.base import Entry

from tests.kubernetes.fake_api import FakeApi, following, put_group_set
from tests.kubernetes.test_announce import Group, mirrored, pod
from tests.kubernetes.test_cluster_controller import kept
from tests.support.present import present
from tests.support.running import until

ROOM = {"total_bytes": 100, "free_bytes": 50, "full": False}


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("registry:5000/gantry-broker:0.3.0", "0.3.0"),
        ("gantry-broker:v1.2", "1.2"),
        ("gantry-broker:0.3.0-rc.1@sha256:abc", "0.3.0-rc.1"),
        ("gantry-broker:latest", ""),
        ("registry:5000/gantry-broker", ""),
        ("gantry-broker@sha256:abc", ""),
        ("gantry-broker:2024.11.20.1", ""),
    ],
)
def test_the_version_of_an_image(image: str, release: str) -> None:
    assert release_of(image) == release


@pytest.mark.parametrize(
    ("one", "other", "fit"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0", True),
        ("0.2.0", "0.1.0", True),
        ("0.1.0", "0.3.0", False),
        ("0.3.0", "0.1.0", False),
        ("1.0.0", "0.9.0", False),
        ("", "0.9.0", True),
        ("of my own", "0.9.0", False),
        ("of my own", "of my own", True),
    ],
)
def test_which_versions_work_together(one: str, other: str, fit: bool) -> None:
    assert compatible(one, other) is fit


@pytest.mark.parametrize(
    ("members", "target", "operator", "words"),
    [
        ([("0.1.0", True, ROOM), ("0.1.0", True, ROOM)], "0.2.0", "0.1.0", ""),
        ([("0.1.0", True, None), ("", True, ROOM)], "", "0.9.0", ""),
        ([("0.1.0", True, ROOM)], "0.3.0", "0.3.0", "m0 runs 0.1.0"),
        ([("0.3.0", True, ROOM)], "0.1.0", "0.1.0", "write an image of a version between them first"),
        ([("0.1.0", True, ROOM)], "0.2.0", "0.4.0", "upgrade the operator first"),
        # The image says nothing: the first member that has it does.
        ([("0.1.0", True, ROOM), ("0.3.0", False, ROOM)], "", "0.3.0", "the new version is 0.3.0, and m0 runs 0.1.0"),
        ([("0.1.0", True, ROOM | {"free_bytes": 4})], "0.2.0", "0.2.0", "m0 (4% free)"),
        ([("0.1.0", True, ROOM), ("0.1.0", True, ROOM | {"full": True})], "0.2.0", "0.2.0", "m1 (0% free)"),
    ],
)
def test_why_no_member_is_replaced(members: list[Any], target: str, operator: str, words: str) -> None:
    running = [Running(f"m{n}", *member) for n, member in enumerate(members)]
    why = why_not(running, target, operator)
    assert words in why
    assert bool(why) == bool(words)


@pytest.mark.parametrize(("release", "replaced"), [("0.0.4", True), ("", True), ("0.2.0", True), ("0.3.0", False)])
async def test_pods_of_another_version_are_replaced_if_it_works_beside_the_new_one(
    fake: FakeApi, release: str, replaced: bool
) -> None:
    """The new version is 0.1. What was refused goes on once the members run a version that fits."""
    fake.put(pod("demo-a-0", names.ROLE_MASTER, "old"))
    fake.put(pod("demo-a-1", names.ROLE_SLAVE, "old"))
    put_group_set(fake)
    events: list[Event] = []
    async with following(fake.api, ["StatefulSet"]) as caches, mirrored(fake) as pods:
        group = Group(pods)
        pods.answers = lambda group, name: True
        group.entry, group._announced = Entry(group.registry.leadership), 1
        for watch in group.watches.values():
            watch.status = {"release": release, "disk": ROOM}
        replacement = PodReplacement(fake.api, caches["StatefulSet"], pods, ("mq", "demo"))
        change = RollingChange(
            replacement, {"a": group}, events.append, upgrade=lambda *_: Upgrade("0.1.0", "0.1.0")
        )  # fmt: skip
        for _ in range(3):
            await change.look_once()
        assert (fake.get("Pod", "demo-a-1") is None) == replaced
        assert fake.get("Pod", "demo-a-0") is not None
        refused = [e.message for e in events if e.reason == "UpgradeRefused"]
        if replaced:
            assert (refused, change.refused) == ([], {})
        else:
            assert len(refused) == 1
            assert "demo-a-0 runs 0.3.0, demo-a-1 runs 0.3.0" in refused[0]
            assert change.refused == {"a": refused[0]}
            assert change.reason == ""
            for watch in group.watches.values():
                watch.status = {"release": "0.2.7", "disk": ROOM}
            await change.look_once()
            assert fake.get("Pod", "demo-a-1") is None
            assert change.refused == {}


@pytest.mark.parametrize("requested", [True, False])
async def test_a_restart_that_was_asked_for_waits_for_no_window(fake: FakeApi, requested: bool) -> None:
    for name, role in (("demo-a-0", names.ROLE_MASTER), ("demo-a-1", names.ROLE_SLAVE)):
        fake.put(pod(name, role, "new" if requested else "old"))
        fake.objects["Pod", "mq", name]["metadata"]["annotations"] = {RESTART: "now"} if requested else {}
    put_group_set(fake)
    async with following(fake.api, ["StatefulSet"]) as caches, mirrored(fake) as pods:
        group = Group(pods)
        pods.answers = lambda group, name: True
        group.entry, group._announced = Entry(group.registry.leadership), 1
        replacement = PodReplacement(fake.api, caches["StatefulSet"], pods, ("mq", "demo"))
        change = RollingChange(replacement, {"a": group}, lambda event: None, hold=lambda: "waits for the window")
        for _ in range(3):
            await change.look_once()
        assert (fake.get("Pod", "demo-a-1") is None) == requested
        assert fake.get("Pod", "demo-a-0") is not None
        assert ("waits for the window" in change.reason) == (not requested)


def test_on_one_machine_the_new_version_is_that_of_the_installation() -> None:
    def of(release: str, *, outdated: bool) -> Upgrade | None:
        return LocalPlatform.upgrade("a", [Running("t-a-0", release, outdated)])

    assert of("0.9.0", outdated=True) == Upgrade(VERSION, VERSION)
    assert [of(VERSION, outdated=True), of("", outdated=True), of("0.9.0", outdated=False)] == [None] * 3


async def test_the_status_says_what_is_refused_and_what_runs(fake: FakeApi) -> None:
    async with kept(fake) as controller:
        await until(lambda: fake.get("StatefulSet", "demo-a"))
        await until(lambda: controller.platform.objects.live("StatefulSet", "demo-a"))
        member = Running("demo-a-1", "0.1.0", outdated=True)
        assert controller.platform.upgrade("a", [member]) is None, "there is no pod"
        for image, upgrade in (("broker", None), ("other:0.0.1", Upgrade("0.1.0", "0.1.0"))):
            old = pod("demo-a-1", names.ROLE_SLAVE, "old")
            old["spec"] = {"containers": [{"name": "sidecar", "image": "x"}, {"name": "broker", "image": image}]}
            fake.put(old)
            await until(
                lambda image=image: (
                    (p := controller.platform.pods.pod("demo-a-1")) is not None
                    and p["spec"]["containers"][1]["image"] == image
                )
            )
            assert controller.platform.upgrade("a", [member]) == upgrade
        controller.control.rolling.refused["a"] = "the new version is 0.1.0, and demo-a-1 runs 0.3.0"
        controller.control.warm_up.begun = 0.0
        found = present(controller.observer.look())
        assert "group a keeps its version: the new version is 0.1.0, and demo-a-1 runs 0.3.0" in found[2].problems
        watch = present(next(iter(controller.control.controllers["a"].watches.values()), None))
        watch.reach, watch.status = "ok", {"release": "0.3.0"}
        assert present(controller.control.observe().version).brokers == ["0.3.0"]
