"""A changed spec of a cluster that follows a source: when rolling changes replace its members."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.cluster.copies import Copies
from gantry_operator.cluster.platform import Deployment
from gantry_operator.cluster.rolling_change import RollingChange
from gantry_operator.migration.cutover_steps import Group, Phase, Record, under_way
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.platform import MIGRATION, LocalPlatform
from gantry_operator.registry.file import write_durably

from tests.cluster.fake_platform import FakePlatform
from tests.migration.test_plan import cluster


class Place(FakePlatform):
    """Two members that run with an old config. `says`: what the first one answers about its copy; None: nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.outdated = {0, 1}
        self.requested = False
        self.replaced: list[str] = []
        self.changed_others = 0
        self.says: dict[str, Any] | None = {"state": "following", "connected": True}
        self.asked: list[str] = []
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        return httpx.Response(404) if self.says is None else httpx.Response(200, json=self.says)

    def deployments(self, group: str) -> list[Deployment]:
        requested = self.requested
        return [
            Deployment(f"shop-a-{i}", i, i in self.outdated, False, ready=False, requested=requested) for i in (0, 1)
        ]

    async def replace_member(self, group: str, name: str) -> None:
        self.replaced.append(name)
        self.outdated.discard(int(name[-1]))

    async def finish_change(self) -> bool:
        self.changed_others += 1
        return False


def report(role: str = "Waiting") -> Any:
    return SimpleNamespace(role=role, standby=False, link="", not_promotable="")


def group(first: Any = None, second: Any = report()) -> Any:  # noqa: B008
    watches = {
        i: SimpleNamespace(
            name=f"shop-a-{i}", reach="silent" if r is None else "ok", report=r, status=None, url=f"http://{i}"
        )
        for i, r in enumerate((first, second))
    }
    return SimpleNamespace(
        leadership=None,
        watches=watches,
        still_counted=(),
        announced=False,
        in_sync=lambda report: report.role == "Slave",
    )


def rolling(place: Place, led: Any, **spec: Any) -> RollingChange:
    made = cluster(**spec)
    return RollingChange(
        place, {"a": led}, place.event, copies=Copies(place.http, lambda: made, place.cutover), hold=lambda: place.held
    )


async def test_slaves_come_first_and_the_follower_of_the_source_last() -> None:
    place, led = Place(), group()
    change = rolling(place, led)
    await change.look_once()
    assert place.replaced == ["shop-a-1"]
    led.watches[1].report = None  # It starts.
    await change.look_once()
    assert place.replaced == ["shop-a-1"]
    assert "shop-a-1 does not follow the source, or is not up" in change.progress["a"]
    led.watches[1].report = report()
    await change.look_once()
    assert place.replaced == ["shop-a-1", "shop-a-0"]
    place.says = {"state": "following", "connected": False}
    assert await change.look_once(), "it is looked at until the copy follows again"
    assert "shop-a-0 is not in sync yet" in change.reason
    place.says = {"state": "following", "connected": True}
    await change.look_once()
    assert not change.reason
    assert place.changed_others
    asked = len(place.asked)
    await change.look_once()
    assert len(place.asked) == asked, "without a change no member is asked"


@pytest.mark.parametrize("requested", [False, True])
async def test_while_a_cutover_makes_its_steps_nothing_is_replaced(requested: bool) -> None:
    place = Place()
    place.cutting, place.requested = "routed", requested
    change = rolling(place, group())
    for _ in range(3):
        assert not await change.look_once()
    assert (place.replaced, place.changed_others) == ([], 0)
    assert change.progress["a"] == (
        "shop-a-1: the change waits for the end of the cutover from RocketMQ, which is in phase routed"
    )
    place.outdated = set()
    await change.look_once()
    assert place.changed_others == 0, "NameServers wait, too"
    place.outdated, place.cutting = {0, 1}, ""
    await change.look_once()
    assert place.replaced == ["shop-a-1"]


@pytest.mark.parametrize(
    ("says", "first", "second"),
    [
        (None, None, report()),  # The first member may be a broker that cannot be reached.
        ({"state": "following", "connected": False}, None, report("Master")),
        ({"state": "following", "connected": False}, None, report("Slave")),
    ],
)
async def test_a_group_that_may_be_led_is_not_taken_for_a_copy(says: Any, first: Any, second: Any) -> None:
    """A control plane that begins has not read the leadership records yet, and a led group may have a new disk."""
    place = Place()
    place.says = says
    change = rolling(place, group(first, second))
    assert await change.look_once()
    assert place.replaced == []
    assert "has no master" in change.progress["a"]


async def test_a_group_that_leads_is_rolled_as_any_other_one() -> None:
    place, led = Place(), group(report("Master"), report("Slave"))
    leader = MemberId(0, "x")
    led.leadership = LeadershipRecord(1, 1, leader, frozenset({leader}))
    led.in_sync = lambda report: True
    await rolling(place, led).look_once()
    assert not place.asked
    await rolling(place, led, bootstrap=None).look_once()
    assert not place.asked


def test_a_cutover_of_this_machine_is_read_from_its_record(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    read = LocalPlatform.cutover
    place: Any = SimpleNamespace(folder=folder)
    assert read(place) == ""
    for phase in Phase:
        record = Record(phase, 1.0, {"a": Group(6)})
        write_durably(folder.root / MIGRATION, json.dumps(record.to_json()))
        assert read(place) == under_way(record) == ("" if phase in (Phase.FOLLOWING, Phase.DONE) else phase.value)
    (folder.root / MIGRATION).write_text("{")
    assert read(place) == "unknown"
