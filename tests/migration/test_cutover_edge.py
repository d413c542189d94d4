"""The edge of a cutover: where the source is while Gantry has its place, and how often it asks and acts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from gantry_broker.protocol.bodies import BrokerData, ClusterInfo
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration import cutover_edge as edges
from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_edge import Edge, GroupPlace, SourcePlace, SourceSettings, drive, settings_in
from gantry_operator.migration.cutover_steps import Action, Limits, Phase, Record, Refused, Seen, SetSource

GROUP = GroupPlace("a", "broker-a", "192.0.2.1:5", tuple)


async def test_the_source_is_known_while_gantry_has_its_place_and_it_has_no_other() -> None:
    """It registers under its other number at the next change, or after half a minute."""
    async with httpx.AsyncClient() as http, Edge(SourcePlace(("n:1",)), [GROUP], http) as edge:
        taken = {"n:1": {"broker-a": {0: GROUP.address}}}
        assert edge.source_of(GROUP, taken) is None
        assert edge.source_of(GROUP, {"n:1": {"broker-a": {0: "192.0.2.9:10911"}}}) == "192.0.2.9:10911"
        assert edge.source_of(GROUP, taken) == "192.0.2.9:10911"
        assert edge.source_of(GROUP, {"n:1": {"broker-a": {}}}) is None, "it has left the routes"
        assert edge.source_of(GROUP, {"n:1": None}) is None


@pytest.mark.parametrize(("settings", "keyless"), [({}, True), ({"aclEnable": "true"}, False)])
async def test_a_source_that_takes_clients_without_keys_is_named(
    settings: dict[str, str], keyless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that asks for keys by default would lock out each of its clients."""
    async with httpx.AsyncClient() as http, Edge(SourcePlace(("n:1",)), [GROUP], http) as edge:

        async def routes() -> edges.Routes:
            return {"n:1": {"broker-a": {0: "192.0.2.9:10911"}}}

        async def settings_of(address: str) -> dict[str, str]:
            assert address == "192.0.2.9:10911"
            return settings

        monkeypatch.setattr(edge, "routes", routes)
        monkeypatch.setattr(edge, "settings_of", settings_of)
        if keyless:
            with pytest.raises(Refused, match=r"spec\.security\.authentication: Disabled"):
                await edge.refuse_without_keys()
        else:
            await edge.refuse_without_keys()


async def test_a_new_command_learns_the_source_from_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with httpx.AsyncClient() as http, Edge(SourcePlace(("n:1",)), [GROUP], http) as edge:
        asked: list[str] = []

        async def routes() -> edges.Routes:
            return {"n:1": {"broker-a": {0: GROUP.address}}}

        async def status(group: GroupPlace) -> dict[str, Any]:
            return {
                "state": "following", "problem": "", "end": 10, "connected": True, "canCarry": True, "carries": True,
                "source": {"address": "192.0.2.9:10911"},
            }  # fmt: skip

        class Admin:
            async def broker_config(self, address: str) -> dict[str, str]:
                asked.append(address)
                return {"brokerPermission": "6", "brokerId": "900", edges.ACCEPTS_FROM: "0"}

            async def runtime_info(self, address: str) -> dict[str, str]:
                return {"commitLogMaxOffset": "10"}

            async def __aexit__(self, *exc: object) -> None: ...

        for admin in edge._admins.values():
            await admin.__aexit__(None, None, None)
        monkeypatch.setattr(edge, "_admins", {"n:1": Admin()})
        monkeypatch.setattr(edge, "routes", routes)
        monkeypatch.setattr(edge, "copy_status", status)
        seen = (await edge.look())["a"]
    assert asked == ["192.0.2.9:10911"]
    assert (seen.permission, seen.broker_id, seen.routed) == (6, 900, True)


@pytest.mark.parametrize(("servers", "keeps"), [([True, True], True), ([True, False], False), ([True, None], False)])
async def test_the_source_keeps_its_number_only_where_each_nameserver_compares_versions(
    servers: list[bool | None], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin:
        def __init__(self, compares: bool | None) -> None:
            self._compares = compares

        async def cluster_info(self) -> ClusterInfo:
            if self._compares is None:
                raise OSError("no answer")
            return ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: GROUP.address}, self._compares)})

        async def __aexit__(self, *exc: object) -> None: ...

    async with httpx.AsyncClient() as http, Edge(SourcePlace(()), [GROUP], http) as edge:
        monkeypatch.setattr(edge, "_admins", {f"n:{n}": Admin(one) for n, one in enumerate(servers)})
        seen = (await edge.look())["a"]
    assert (seen.keeps_place, seen.listed) == (keeps, True)


def test_what_a_source_says_of_itself_is_known_only_where_it_can_be() -> None:
    """A record with another permission could not be read again, and no abort would give it back."""
    for text, known in (("6", 6), ("0", 0), ("-1", None), ("16", None), ("999999999999", None), ("x", None)):
        assert settings_in({"brokerPermission": text}).permission == known
    assert settings_in({}) == SourceSettings(None, None, None)


def test_the_other_brokers_of_a_source_have_the_number_of_a_cutover_where_nameservers_differ() -> None:
    tables = {
        "n:1": None,
        "n:2": {"broker-a": {0: "s:1", 1: "s:2", 2: "s:3", 5_000: "s:9"}},
        "n:3": {"broker-a": {0: GROUP.address, 900: "s:1", 901: "s:2"}, "broker-b": {1: "s:8"}},
    }
    assert Edge.others(GROUP, tables, "s:1") == {"s:2": 901, "s:3": 2}
    assert Edge.others(GROUP, tables, None) == {"s:1": 900, "s:2": 901, "s:3": 2}


def test_nameservers_that_name_any_number_of_brokers_fill_no_record() -> None:
    numbers = {n: f"s:{n}" for n in range(1, 800)} | {800: "x" * 100_000}
    first = Edge.others(GROUP, {"n:1": {"broker-a": numbers}}, "s:0")
    assert len(first) == cutover_steps.MOST_BROKERS
    others = {f"t:{n}": n for n in range(1, 60)}
    assert cutover_steps.noted(cutover_steps.noted({}, first), others) == first


async def test_a_slave_that_does_not_answer_costs_no_other_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, dict[str, str]] = {}

    class Admin:
        async def update_broker_config(self, address: str, changes: dict[str, str]) -> None:
            if address == "s:2":
                raise OSError("no answer")
            taken[address] = changes

        async def __aexit__(self, *exc: object) -> None: ...

    async def routes() -> edges.Routes:
        return {"n:1": {"broker-a": {900: "s:1", 901: "s:2", 902: "s:3"}}}

    async with httpx.AsyncClient() as http, Edge(SourcePlace(("n:1",)), [GROUP], http) as edge:
        for admin in edge._admins.values():
            await admin.__aexit__(None, None, None)
        monkeypatch.setattr(edge, "_admins", {"n:1": Admin()})
        monkeypatch.setattr(edge, "routes", routes)
        with pytest.raises(Refused, match="s:2 did not take"):
            await edge.act(SetSource("a", 6, 0, False))
    assert {address: to["brokerId"] for address, to in taken.items()} == {"s:1": "0", "s:3": "2"}


class Silent:
    """An edge whose member takes no action."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.looks, self.acts = seen, 0, list[Action]()

    async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
        self.looks += 1
        return {"a": self.seen}

    async def act(self, action: Action) -> None:
        self.acts.append(action)
        raise Refused("its member does not answer")


@pytest.mark.parametrize("phase", [Phase.READERS_OFF, Phase.WRITES_OFF, Phase.FINISHING])
async def test_what_cannot_be_done_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    seen = Seen(state="following", copy_end=10, source_end=10, permission=6, broker_id=0, refuses=False)
    edge, paused = Silent(seen), 0
    stop = asyncio.CancelledError

    async def sleep(seconds: float) -> None:
        nonlocal paused
        assert seconds >= edges.PAUSED_POLL_S
        paused += 1
        if paused == 5:
            raise stop

    monkeypatch.setattr(edges, "asyncio", Paused(sleep))
    record = Record.from_json(
        {"phase": phase.value, "since": 0, "groups": {"a": {"permission": 6, "end": 10, "finished": False}}}
    )

    async def save(record: Record) -> None: ...

    with pytest.raises(stop):
        await drive(cast(Edge, edge), record, Limits(), save, timeout=60)
    assert len(edge.acts) == edge.looks == 5


async def test_the_end_of_writes_is_looked_at_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []

    class Source(Silent):
        async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
            story.append("look")
            return await super().look(brokers=brokers)

        async def act(self, action: Action) -> None:
            assert isinstance(action, SetSource)
            story.append("act")
            self.seen = Seen(
                state="following", copy_end=10, source_end=10, permission=action.permission,
                broker_id=action.broker_id, refuses=action.refuses,
            )  # fmt: skip

    async def sleep(seconds: float) -> None:
        story.append("sleep")
        raise asyncio.CancelledError

    monkeypatch.setattr(edges, "asyncio", Paused(sleep))
    seen = Seen(state="following", copy_end=10, source_end=10, permission=2, broker_id=0, refuses=False)

    async def save(record: Record) -> None:
        story.append(record.phase.value)

    record = Record.from_json(
        {"phase": "readers-off", "since": 0, "groups": {"a": {"permission": 6, "end": None, "finished": False}}}
    )
    with pytest.raises(asyncio.CancelledError):
        await drive(cast(Edge, Source(seen)), record, Limits(settle=0), save, timeout=60)
    assert story == ["look", "writes-off", "look", "act", "look", "sleep"]


class Paused:
    """The module asyncio with another `sleep`."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)
