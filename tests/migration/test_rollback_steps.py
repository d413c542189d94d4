"""The steps of a rollback in seeded histories: kills, answers that are missing, aborts, and clients that go on."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.client import Admin, BrokerError, Message, Producer
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_broker.testing import broker
from gantry_operator.cli import migrate, migrate_local
from gantry_operator.cli.down import down
from gantry_operator.cli.errors import CliError
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration import copying, cutover_steps, rollback_edge, rollback_steps
from gantry_operator.migration.check import Finding
from gantry_operator.migration.cutover_edge import Edge, GroupPlace, SourcePlace
from gantry_operator.migration.cutover_steps import Refused, SetSource
from gantry_operator.migration.rollback_edge import BackCopy, RollbackEdge
from gantry_operator.migration.rollback_steps import Limits, MoveOffsets, Phase, Record, Release, Seen, SetGantry
from gantry_operator.platforms.local.folder import ClusterFolder

from tests.support.free_ports import free_port

LIMITS = Limits(lag=50, settle=6.0, quiet=0.5)


class World:
    """Gantry, the former brokers and the copy between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.written = {"a": 0, "b": 0}
        self.copied = {"a": 0, "b": 0}
        self.gantry = {"a": 6, "b": 6}
        self.released = {"a": False, "b": False}
        self.listed = {"a": True, "b": True}
        self.permission = {"a": 0, "b": 0}
        self.number = {"a": FORMER_MASTER_ID, "b": FORMER_MASTER_ID}
        self.refuses = {"a": True, "b": True}
        self.moved: set[str] = set()
        self.known: set[str] = set()
        """The groups of which the present process knows that it has moved their offsets."""
        self.full_since: dict[str, float] = {}

    def turn(self, copies: bool) -> None:
        self.now += self.rng.choice((0.2, 1.0, 3.0))
        for name in self.written:
            if self.gantry[name] & 2 and not self.released[name]:
                self.written[name] += self.rng.randrange(20)
            if copies and self.rng.random() < 0.7:
                assert not self.refuses[name], "the former broker would refuse the copy"
                assert self.gantry[name] & 4, "Gantry would refuse the copy's reads"
                if self.copied[name] != self.written[name] or name not in self.full_since:
                    self.full_since[name] = self.now
                self.copied[name] = self.written[name]
            elif self.copied[name] != self.written[name]:
                self.full_since.pop(name, None)
            if self.released[name] and self.rng.random() < 0.7:
                self.listed[name] = False

    def seen(self) -> dict[str, Seen]:
        found = {}
        for name in self.written:
            silent, quiet = self.rng.random() < 0.1, self.now - self.full_since.get(name, self.now)
            found[name] = Seen(
                gantry=None if self.rng.random() < 0.1 else self.gantry[name],
                released=self.released[name],
                listed=None if silent else self.listed[name],
                permission=None if silent else self.permission[name],
                broker_id=None if silent else self.number[name],
                refuses=None if silent else self.refuses[name],
                silent=self.rng.random() < 0.1,
                returned=None if silent else self.number[name] == 0 and self.rng.random() < 0.8,
                missing=self.written[name] - self.copied[name],
                quiet=quiet,
                whole=self.copied[name] == self.written[name],
                moved=name in self.known,
            )
        return found

    def act(self, action: rollback_steps.Action) -> None:
        if self.rng.random() < 0.15:
            return
        if isinstance(action, SetSource):
            if action.broker_id == 0:
                assert not self.listed[action.group], "two masters in the routes"
                assert self.copied == self.written, "the former broker returns without messages"
                assert self.moved == set(self.written), "the former broker returns without offsets"
            self.permission[action.group], self.number[action.group] = action.permission, action.broker_id
            self.refuses[action.group] = action.refuses
        elif isinstance(action, SetGantry):
            self.gantry[action.group] = action.permission
        elif isinstance(action, MoveOffsets):
            assert self.gantry[action.group] == 0, "consumers may still commit"
            self.moved.add(action.group)
            self.known.add(action.group)
        else:
            assert isinstance(action, Release)
            self.released[action.group] = action.on
            assert action.on or self.number[action.group] != 0, "two masters in the routes"
            self.listed[action.group] = self.listed[action.group] or not action.on


@pytest.mark.parametrize("seed", range(300))
def test_a_rollback_goes_on_or_goes_back_wherever_it_is_killed(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    saved: Any = json.dumps(Record().to_json())
    aborts = 0
    for _ in range(600):
        record = Record.from_json(json.loads(saved))
        seen = world.seen()
        if record.phase is Phase.NONE:
            try:
                record = rollback_steps.begin(
                    record, {"a": cutover_steps.Group(6), "b": cutover_steps.Group(7)}, seen, world.now, cut_over=True
                )
            except Refused:
                world.turn(False)
                continue
        elif record.phase is not Phase.DONE and aborts < 2 and rng.random() < 0.02:
            try:
                record, aborts = rollback_steps.abort(record, world.now), aborts + 1
            except Refused:
                assert record.phase is Phase.RETURNING
        made = rollback_steps.step(record, seen, LIMITS, world.now)
        saved = json.dumps(made.record.to_json())
        if made.record.phase is Phase.DONE:
            break
        if made.record.phase is Phase.NONE and aborts:
            assert world.gantry == {"a": 6, "b": 6}
            assert not any(world.released.values())
        killed = rng.random() < 0.1
        if killed:
            world.known.clear()
        for action in made.actions[: rng.randrange(len(made.actions) + 1) if killed else None]:
            world.act(action)
        world.turn(made.copies and not made.actions and rng.random() < 0.9)
    else:
        pytest.fail(f"it does not end: {saved}")
    assert world.permission == {"a": 6, "b": 7}
    assert world.number == {"a": 0, "b": 0}
    assert not any(world.refuses.values())
    assert not any(world.listed.values())
    assert world.copied == world.written


def test_what_refuses_to_begin() -> None:
    ready = Seen(gantry=6, permission=0, broker_id=FORMER_MASTER_ID, refuses=True)
    with pytest.raises(Refused, match="the cutover is not done"):
        rollback_steps.begin(Record(), {}, {"a": ready}, 0.0, cut_over=False)
    silent = replace(ready, permission=None, problem="the former broker does not answer")
    with pytest.raises(Refused, match="the former broker does not answer"):
        rollback_steps.begin(Record(), {}, {"a": silent}, 0.0, cut_over=True)
    with pytest.raises(Refused, match="brokerId=3"):
        rollback_steps.begin(Record(), {}, {"a": replace(ready, broker_id=3)}, 0.0, cut_over=True)
    with pytest.raises(Refused, match="the rollback is done"):
        rollback_steps.begin(Record(Phase.DONE), {}, {"a": ready}, 0.0, cut_over=True)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"phase": "x", "since": 0, "groups": {}},
        {"phase": "none", "since": 0, "groups": {"a": {"source": 99, "gantry": 6}}},
    ],
)
def test_a_record_of_another_form_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Record.from_json(value)


async def test_a_round_that_began_before_writes_ended_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was acknowledged between the end of a round and the end of writes is still missing."""
    copy = BackCopy(cast(Any, None), cast(Any, None), {}, {}, tmp_path / "copy.json")
    looks: list[str] = []
    ends = False

    async def look_for_topics() -> None:
        looks.append("topics")

    async def run(*, follow: bool) -> None:
        if ends:
            copy.begin_anew()

    monkeypatch.setattr(copy, "look_for_topics", look_for_topics)
    monkeypatch.setattr(copy, "run", run)
    await copy.round()
    assert copy.missing == 0
    assert copy.quiet_since is not None
    copy.begin_anew()
    assert (copy.missing, copy.quiet_since) == (None, None)
    ends = True
    await copy.round()
    assert (copy.missing, copy.quiet_since) == (None, None), "writes ended within this round"
    ends = False
    await copy.round()
    assert copy.missing == 0
    assert looks == ["topics"] * 3, "a topic that was made in the last seconds is looked for"


@pytest.mark.parametrize("phase", ["following", "readers-off"])
def test_a_cluster_that_was_killed_in_a_cutover_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Its own cutover has changed the source. What another one has changed is refused."""
    made = {
        "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "moved"},
        "spec": {
            "brokerGroups": [{"name": "a", "brokerName": "a", "members": 1}],
            "bootstrap": {"fromRocketMQ": {"nameServers": ["192.0.2.1:9876"]}},
        },
    }  # fmt: skip
    file, folder = tmp_path / "cluster.yaml", ClusterFolder(tmp_path / "c")
    file.write_text(json.dumps(made))
    folder.make()
    (folder.root / migrate_local.RECORD).write_text(json.dumps({"phase": phase, "since": 0, "groups": {}}))

    async def found(*_: Any) -> Any:
        assert phase == "following", "it may be away"
        return {"a": [Finding("refused", "settings", "2", "it is changed")]}, []

    async def following(*_: Any) -> None: ...

    ups: list[Any] = []
    monkeypatch.setattr(migrate, "_findings", found)
    monkeypatch.setattr(migrate, "_until_following", following)
    monkeypatch.setattr("gantry_operator.cli.up.up", lambda *words, **more: ups.append(words))
    if phase == "following":
        with pytest.raises(CliError, match="group a: settings: it is changed"):
            migrate.start(file, directory=folder.root)
    else:
        migrate.start(file, directory=folder.root)
    assert len(ups) == (phase != "following")


def test_one_command_at_a_time(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    with (
        migrate_local.alone(folder),
        pytest.raises(CliError, match="another gantry migrate command"),
        migrate_local.alone(folder),
    ):
        pass
    with migrate_local.alone(folder):
        pass


def test_a_cluster_is_not_deleted_while_its_source_waits_for_its_settings(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "c")
    folder.make()
    folder.manifest.write_text("{}")
    for phase, command in (("writes-off", "abort"), ("aborting", "abort"), ("finishing", "cutover"), ("done", "")):
        value = {"phase": phase, "since": 0, "groups": {}}
        (folder.root / migrate_local.RECORD).write_text(json.dumps(value))
        assert (f"gantry migrate {command} --dir" in migrate_local.held_source(folder)) is bool(command)
        if command:
            with pytest.raises(CliError, match=f"is in phase {phase}, and its clients may have no broker"):
                down(folder.root, None, delete_data=True)
    (folder.root / migrate_local.RECORD).unlink()
    assert migrate_local.held_source(folder) == ""


def test_a_cluster_that_ends_names_the_brokers_that_lack_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc")
    folder = ClusterFolder(tmp_path / "c")
    folder.make()
    spec: dict[str, Any] = {
        "nameServers": {"replicas": 1},
        "brokerGroups": [{"name": "a", "brokerName": "broker-a", "members": 1}],
        "bootstrap": {
            "fromRocketMQ": {"nameServers": ["n:1", "n:2"], "accessKeySecret": "keys", "tls": {"caSecret": "ca"}}
        },
    }
    manifest = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "c"}, "spec": spec}
    folder.manifest.write_text(json.dumps(manifest))
    assert migrate_local.lacking_brokers(folder, deleted=True) == ""
    aborted = cutover_steps.Record(groups={"a": cutover_steps.Group(6, brokers={"s:1": 1})})
    (folder.root / migrate_local.RECORD).write_text(json.dumps(aborted.to_json()))
    said = migrate_local.lacking_brokers(folder, deleted=False)
    assert "were down at the abort" in said
    assert said.endswith(f"group a: s:1. Start them, then run gantry migrate release {folder.manifest}")
    # Without its folder the command has all that the manifest had.
    assert migrate_local.lacking_brokers(folder, deleted=True).endswith(
        "run gantry migrate release --name-servers 'n:1;n:2' --brokers broker-a --secret keys "
        "--ca /etc/gantry/secrets/ca/ca.crt"
    )
    (folder.root / migrate_local.RECORD).unlink()
    rolled = Record(Phase.DONE, 100, {"a": rollback_steps.Group(6, 6, {"s:1": 1})})
    (folder.root / migrate_local.ROLLBACK).write_text(json.dumps(rolled.to_json()))
    assert "were down at the rollback" in migrate_local.lacking_brokers(folder, deleted=False)
    # A spec may lose its bootstrap: that keeps no cluster from being stopped.
    del spec["bootstrap"]
    folder.manifest.write_text(json.dumps(manifest))
    assert migrate_local.lacking_brokers(folder, deleted=False).endswith("release --name-servers ADDRESSES")


@pytest.mark.parametrize("phase", sorted(rollback_steps.COPIES | rollback_steps.PAUSED))
def test_a_former_broker_that_was_started_again_stands_aside_until_it_returns(phase: Phase) -> None:
    """It has the place of the master then, and clients that find it would write where an abort leaves it."""
    began = Seen(
        gantry={Phase.COPYING: 6, Phase.WRITES_OFF: 4}.get(phase, 0), released=phase is Phase.LEAVING, listed=False,
        permission=6, broker_id=0, refuses=False, missing=0, quiet=9.0, whole=True, moved=True,
    )  # fmt: skip
    record = Record(phase, 100, {"a": rollback_steps.Group(6, 6)})
    made = rollback_steps.step(record, {"a": began}, LIMITS, 150)
    assert made.record == record
    assert made.actions == (SetSource("a", 6, FORMER_MASTER_ID, False),)
    aside = replace(began, broker_id=FORMER_MASTER_ID)
    assert rollback_steps.step(record, {"a": aside}, LIMITS, 150).record.phase is not phase


def test_a_nameserver_that_is_gone_leaves_no_client_without_a_broker() -> None:
    """Gantry is out of the routes by then, and the former brokers wait for their place."""
    aside = Seen(
        gantry=0, released=True, listed=False, silent=True, permission=6, broker_id=FORMER_MASTER_ID, refuses=False
    )
    record = Record(Phase.LEAVING, 100, {"a": rollback_steps.Group(6, 6)})
    assert rollback_steps.step(record, {"a": aside}, LIMITS, 105).record.phase is Phase.LEAVING
    record = rollback_steps.step(record, {"a": aside}, LIMITS, 111).record
    assert record.phase is Phase.RETURNING
    back = replace(aside, broker_id=0, returned=True)
    assert rollback_steps.step(record, {"a": back}, LIMITS, 115).record.phase is Phase.RETURNING
    assert rollback_steps.step(record, {"a": back}, LIMITS, 122).record.phase is Phase.DONE
    # Where none answers, nothing is known.
    silent = replace(aside, listed=None, silent=False)
    record = Record(Phase.LEAVING, 100, {"a": rollback_steps.Group(6, 6)})
    assert rollback_steps.step(record, {"a": silent}, LIMITS, 999).record.phase is Phase.LEAVING


def test_slaves_of_the_former_broker_get_back_what_they_had() -> None:
    record = Record(Phase.RETURNING, 100, {"a": rollback_steps.Group(6, 6)})
    back = Seen(gantry=0, released=True, listed=False, permission=6, broker_id=0, refuses=False, returned=True)
    slaves = replace(back, brokers={"s:1": 901})
    assert rollback_steps.step(record, {"a": slaves}, LIMITS, 110).actions == (SetSource("a", 6, 0, False),)
    late = rollback_steps.step(record, {"a": slaves}, LIMITS, 131).record
    assert (late.phase, late.groups["a"].brokers) == (Phase.DONE, {"s:1": 1})
    # One that is away is not waited for, and named.
    record = rollback_steps.begin(
        Record(), {"a": cutover_steps.Group(7, brokers={"s:1": 1})}, {"a": replace(back, gantry=6, permission=0)}, 100,
        cut_over=True,
    )  # fmt: skip
    assert record.groups == {"a": rollback_steps.Group(7, 6, {"s:1": 1})}
    record = Record.from_json(json.loads(json.dumps(replace(record, phase=Phase.RETURNING).to_json())))
    record = rollback_steps.step(record, {"a": replace(back, permission=7)}, LIMITS, 111).record
    assert (record.phase, rollback_steps.still_owed(record, {})) == (Phase.DONE, {"a": ["s:1"]})
    known = SimpleNamespace(permission=7, broker_id=1, refuses=False)
    whole = cutover_steps.Seen(brokers={"s:1": 1}, settings={"s:1": known})
    assert rollback_steps.still_owed(record, {"a": whole}) == {}


def test_deliveries_that_go_on_do_not_let_producers_wait_for_ever() -> None:
    record = Record(Phase.WRITES_OFF, 100, {"a": rollback_steps.Group(6, 6)})
    seen = Seen(gantry=4, permission=6, broker_id=FORMER_MASTER_ID, refuses=False, missing=3, quiet=0.0, whole=True)
    assert rollback_steps.step(record, {"a": seen}, LIMITS, 105).record.phase is Phase.WRITES_OFF
    assert rollback_steps.step(record, {"a": seen}, LIMITS, 111).record.phase is Phase.READERS_OFF
    lacking = replace(seen, whole=False, missing=None)
    assert rollback_steps.step(record, {"a": lacking}, LIMITS, 999).record.phase is Phase.WRITES_OFF


async def test_a_rollback_without_progress_gives_gantry_its_clients_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()  # Each look at the clock is one later.
    monkeypatch.setattr(rollback_edge, "time", SimpleNamespace(monotonic=lambda: next(seconds), time=lambda: 1_000.0))

    class Edge:
        """Gantry, whose reads cannot be ended, and a former broker."""

        copy = None
        gantry, permission, refuses = 4, 6, False

        async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
            return {
                "a": Seen(
                    gantry=self.gantry, released=False, listed=True, permission=self.permission,
                    broker_id=FORMER_MASTER_ID, refuses=self.refuses,
                )
            }  # fmt: skip

        async def act(self, action: Any) -> None:
            if isinstance(action, SetSource):
                self.permission, self.refuses = action.permission, action.refuses
            elif action.permission == 0:
                raise Refused("group a: SetGantry: no answer")
            else:
                self.gantry = action.permission

    kept: list[Record] = []

    async def save(record: Record) -> None:
        kept.append(record)

    edge, record = Edge(), Record(Phase.READERS_OFF, 0, {"a": rollback_steps.Group(6, 6)})
    with pytest.raises(Refused, match=r"no answer\. Gantry has its clients, and the source stands aside"):
        await rollback_edge.drive(cast(Any, edge), record, LIMITS, save, timeout=10)
    assert (edge.gantry, edge.permission, edge.refuses) == (6, 0, True)
    assert [one.phase for one in kept] == [Phase.ABORTING, Phase.NONE]


async def test_a_copy_that_breaks_off_is_named_and_begun_again() -> None:
    class Copy:
        missing: int | None = None
        rounds = 0

        def sent(self) -> int:
            return self.rounds

        async def round(self) -> None:
            self.rounds += 1
            if self.rounds == 1:
                raise Refused("no such group")
            self.missing = 0

    class WritesEndError(Exception): ...

    class Edge:
        copy = Copy()

        async def look(self, *, brokers: bool = False) -> dict[str, Seen]:
            return {
                "a": Seen(gantry=6, permission=6, broker_id=FORMER_MASTER_ID, refuses=False, missing=self.copy.missing)
            }

        async def act(self, action: Any) -> None:
            raise WritesEndError

    async def save(record: Record) -> None: ...

    named: list[str] = []
    record = Record(Phase.COPYING, 0, {"a": rollback_steps.Group(6, 6)})
    with pytest.raises(WritesEndError):
        await rollback_edge.drive(cast(Any, Edge()), record, LIMITS, save, timeout=10, warn=named.append)
    assert named == ["the copy broke off: no such group"]


@contextlib.asynccontextmanager
async def both_sides(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Admin, Admin, str]]:
    """Administrators of Gantry, which has five messages of topic T, and of the former broker; its NameServer."""
    monkeypatch.setattr(copying, "SETTLE_S", 0.0)
    async with (
        broker() as gantry,
        broker() as former,
        Admin(gantry.name_servers) as ours,
        Admin(former.name_servers) as theirs,
        Producer(gantry.name_servers) as producer,
    ):
        for admin in (ours, theirs):
            await admin.create_topic("T", queues=1)
        for number in range(5):
            await producer.send(Message("T", b"%d" % number))
        yield ours, theirs, former.name_servers


async def test_a_rollback_that_was_killed_while_nobody_reads_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gantry gives the copy nothing then, and the offsets need what was copied only."""
    async with both_sides(monkeypatch) as (ours, theirs, _):
        ((name, address),) = (await ours.masters()).items()
        masters = {name: (await theirs.masters())[name]}
        await ours.create_topic_at(address, TopicConfig("%RETRY%g+T", 1, 1))

        def made() -> BackCopy:
            return BackCopy(ours, theirs, masters, {name: 0}, tmp_path / "copy.json")

        first = made()
        await first.begin()
        await first.round()
        assert "%RETRY%g+T" in (await ours.topic_config(address)).topics
        assert "%RETRY%g+T" not in first.queues, "RocketMQ creates no topic of this name"
        await first.save()
        assert first.sent() == 5
        queue = (await ours.readable_queues("T"))[0]
        await ours.set_offset("g", queue, 3)
        await ours.update_broker_config(address, {"brokerPermission": "0"})
        with pytest.raises(BrokerError, match="forbidden"):
            await made().begin()
        second = made()
        second.readable = False
        await second.begin()
        await second.move_offsets(name, address)
        there = (await theirs.readable_queues("T"))[0]
        assert await theirs.offset("g", there) == 3


async def test_a_rollback_begins_again_after_an_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former broker gives nothing then, and the copy reads there what it has sent before."""
    async with both_sides(monkeypatch) as (ours, theirs, former), httpx.AsyncClient() as http:
        ((name, _),) = (await ours.masters()).items()
        place = SourcePlace((former,))
        before = {"a": cutover_steps.Group(6, end=0)}
        address = (await theirs.masters())[name]
        async with Edge(place, [GroupPlace("a", name, "192.0.2.1:1", list)], http) as edge:
            for _ in range(2):
                await theirs.update_broker_config(address, {"brokerPermission": "0"})
                rolling = RollbackEdge(edge, ours, before)
                done: list[Any] = []

                async def act(action: Any, done: list[Any] = done) -> None:
                    done.append(action)
                    await theirs.update_broker_config(address, {"brokerPermission": str(action.permission)})

                monkeypatch.setattr(rolling, "act", act)
                async with rolling.copying(tmp_path / "copy.json", Phase.COPYING):
                    assert rolling.copy is not None
                    await rolling.copy.round()
                    await rolling.copy.save()
                    assert rolling.copy.sent() == 5
                assert done == [SetSource("a", 6, FORMER_MASTER_ID, False)]
        (there,) = await theirs.readable_queues("T")
        assert (await theirs.topic_stats("T"))[there].max_offset == 5, "nothing is copied twice"


async def test_a_source_in_no_route_is_the_master_among_the_recorded_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """NameServers of 5.x refuse a master that is started again, or that a controller chooses after the cutover."""
    async with both_sides(monkeypatch) as (ours, theirs, former), httpx.AsyncClient() as http:
        ((name, _),) = (await ours.masters()).items()
        master = (await theirs.masters())[name]
        silent = f"127.0.0.1:{free_port()}"
        for recorded in (
            cutover_steps.Group(6, source=master),
            cutover_steps.Group(6, source=silent, brokers={master: 1}),
        ):
            async with Edge(SourcePlace((former,)), [GroupPlace("a", name, master, list)], http) as edge:
                edge.remember({"a": recorded})
                routes = await edge.routes()
                assert edge.source_of(edge.groups["a"], routes) is None
                await edge.locate(routes)
                assert edge.source_of(edge.groups["a"], routes) == master
                assert edge.source_of(edge.groups["a"], {former: {name: {}}}) is None, "Gantry has no place there"
