"""What `spec.bootstrap.fromRocketMQ` makes of the processes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration import member
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.source import Look, Source, look_of
from gantry_broker.config import BrokerConfig, MigrateConfig
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.protocol.bodies import ClusterInfo, DataVersion
from gantry_broker.testing import broker
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.group_controllers import failover_settings
from gantry_operator.migration.cutover_edge import Edge, GroupPlace, SourcePlace
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports
from gantry_operator.platforms.local.process_plan import process_plans
from gantry_operator.registry.file import FileRegistry

from tests.support.free_ports import free_ports


def cluster(**spec: Any) -> BrokerCluster:
    source = {"nameServers": ["192.0.2.10:9876"], "tls": {"caSecret": "source"}}
    usual = {
        "brokerGroups": [{"name": "a", "brokerName": "broker-a", "members": 2}],
        "bootstrap": {"fromRocketMQ": source},
    }
    return BrokerCluster.make("shop", "x", **(usual | spec))


def configs(made: BrokerCluster, folder: ClusterFolder) -> dict[str, dict[str, Any]]:
    ports = Ports.load(folder.ports)
    ports.choose(plan(made), frozenset())
    return {p.name: json.loads(p.config) for p in process_plans(made, plan(made), ports, folder) if p.group}


def test_member_0_follows_until_the_group_leads_and_all_register_at_the_source(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.make()
    found = configs(cluster(), folder)
    assert found["shop-a-0"]["migrate"]["broker"] == "broker-a"
    assert "migrate" not in found["shop-a-1"]
    for config in found.values():
        assert config["source_name_servers"] == ["192.0.2.10:9876"]
        assert config["source_ca_file"].endswith("source/ca.crt")
    leader = MemberId(0, "x")
    assert FileRegistry(folder.registry).swap_now("a", None, LeadershipRecord(1, 1, leader, frozenset({leader})))
    assert "migrate" not in configs(cluster(), folder)["shop-a-0"]


def test_a_group_waits_for_the_member_that_is_filled() -> None:
    assert failover_settings(cluster().spec).filled == 0
    assert failover_settings(cluster(bootstrap={"fromArchive": {"url": "file:///archive"}}).spec).filled == 0
    assert failover_settings(cluster(bootstrap={"follow": {"url": "file:///archive"}}).spec).filled is None
    assert failover_settings(cluster(bootstrap=None).spec).filled is None


def test_mode_raft_is_refused() -> None:
    with pytest.raises(ValueError, match="write mode: MasterSlave"):
        cluster(mode="Raft", brokerGroups=[{"name": "a", "members": 3}])


async def test_a_new_disk_of_a_group_that_leads_follows_no_source(tmp_path: Path) -> None:
    port, http = free_ports(2)
    async with broker() as running:
        config = BrokerConfig(
            cluster="test", group="test", member=0, name="test-0", data_dir=tmp_path, port=port, http_port=http,
            listen_host="127.0.0.1", member_address=f"127.0.0.1:{port}", group_address=f"127.0.0.1:{port}",
            name_servers=[running.name_servers],
            migrate=MigrateConfig(name_servers=["127.0.0.1:1"], broker="broker-a"),
        )  # fmt: skip
        assert member.is_wanted(config)
        await member.migrate_first(config)
    assert not (tmp_path / member.MARK).exists()


async def test_a_new_disk_follows_no_source_before_it_knows_whether_its_group_leads(tmp_path: Path) -> None:
    port, http, away = free_ports(3)
    async with broker() as running:
        config = BrokerConfig(
            cluster="test", group="test", member=0, name="test-0", data_dir=tmp_path, port=port, http_port=http,
            listen_host="127.0.0.1", member_address=f"127.0.0.1:{port}", group_address=f"127.0.0.1:{port}",
            name_servers=[f"127.0.0.1:{away}"],
            migrate=MigrateConfig(name_servers=["127.0.0.1:1"], broker="broker-a"),
        )  # fmt: skip
        assert config.migrate is not None
        migration = member.Migration(config, config.migrate)
        waiting = asyncio.create_task(migration.run())
        async with asyncio.timeout(20):
            while "waits for the cluster's NameServers" not in migration.status()["problem"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        config.name_servers[:] = [running.name_servers]  # They are back.
        async with asyncio.timeout(20):
            await waiting
    assert not (tmp_path / member.MARK).exists()


SOURCE = {"haListenPort": "10912", "mappedFileSizeCommitLog": "1048576", "brokerPermission": "6"}
RUNTIME = {"commitLogMinOffset": "0", "commitLogMaxOffset": "900", "brokerVersionDesc": "V5_5_0"}


def following(folder: Path) -> member.Migration:
    """A member that has a log of 900 bytes, 500 of them on the disk."""
    config = BrokerConfig(
        cluster="test", group="test", member=0, name="test-0", data_dir=folder, port=1, http_port=2,
        member_address="127.0.0.1:1", group_address="127.0.0.1:1",
        migrate=MigrateConfig(name_servers=["127.0.0.1:1"], broker="broker-a"),
    )  # fmt: skip
    assert config.migrate is not None
    migration = member.Migration(config, config.migrate)
    log, state = SimpleNamespace(end=900, start=0, segment_size=1 << 20), SimpleNamespace(flushed=500, confirmed=900)
    queues = SimpleNamespace(topics_queues=dict)
    migration._store = cast(Any, SimpleNamespace(log=log, state=state, queues=queues))
    return migration


async def test_a_finish_takes_no_end_below_what_was_copied(tmp_path: Path) -> None:
    migration = following(tmp_path)
    finishing = asyncio.create_task(migration._finish_page(b'{"end": 100}'))
    await asyncio.sleep(0)
    assert migration._finish == 900
    assert not migration._arrived(900), "the last bytes are not on the disk yet"
    migration._finished.set()
    assert await finishing == (200, {"end": 900})


async def test_a_finish_waits_for_offsets_of_the_end_of_writes(tmp_path: Path) -> None:
    migration = following(tmp_path)
    ended = look_of("broker-a", "test", "127.0.0.1:1", SOURCE | {"brokerPermission": "0"}, RUNTIME, 0)
    asked = 0

    class Ends:
        """A source that takes nothing any more."""

        async def look(self) -> Look:
            return ended

        async def tables(self, address: str) -> Tables:
            nonlocal asked
            asked += 1
            return Tables()

        async def timers_delivered_ms(self, address: str) -> None:
            return None

    migration._look = ended
    finishing = asyncio.create_task(migration._finish_page(b'{"end": 900}'))
    await asyncio.sleep(0.01)
    assert migration._finish is None, "consumers may have committed since the last copy of their offsets"
    watching = asyncio.create_task(migration._watch(cast(Any, Ends())))
    for _ in range(2_000):
        if migration._finish is not None:
            break
        await asyncio.sleep(0.01)
    assert migration._finish == 900
    assert asked >= 1
    watching.cancel()
    migration._finished.set()
    assert (await finishing)[0] == 200
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_source_that_stops_answering_is_looked_for_again(tmp_path: Path) -> None:
    """The copy of a master that was gone for a moment, or has a successor, begins again with a new look."""
    migration = following(tmp_path)
    store = cast(Any, migration._store)
    store.log.end = store.state.flushed = 0
    looks = iter([look_of("broker-a", "test", "127.0.0.1:1", SOURCE, RUNTIME, 0)])

    class Leaves:
        async def look(self) -> Look:
            found = next(looks, None)
            if found is None:
                raise MigrationError("it is away")
            return found

    async with asyncio.timeout(20):
        with pytest.raises(MigrationError, match="it is away"):
            await migration._with(cast(Any, Leaves()))


@pytest.mark.parametrize("carried", [True, False])
async def test_routes_of_carried_clients_outlive_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    """RocketMQ's NameServer forgets a broker when the connection ends that has registered it."""
    migration, closed = following(tmp_path), asyncio.Event()

    class Registers:
        def __init__(self, *args: Any, **options: Any) -> None: ...
        async def __aenter__(self) -> Registers:
            return self

        async def __aexit__(self, *exc: object) -> None:
            closed.set()

    async def finishes(source: Registers) -> None:
        migration._registered = 1.0 if carried else 0.0
        migration._finished.set()

    monkeypatch.setattr(member, "Source", Registers)
    monkeypatch.setattr(member, "LEAVE_S", 0.05)
    monkeypatch.setattr(migration, "_with", finishes)
    await migration._try()
    assert closed.is_set() is not carried
    async with asyncio.timeout(10):
        await closed.wait()


async def test_while_clients_are_carried_slaves_of_the_source_keep_their_master() -> None:
    source = Source(["127.0.0.1:1"], "broker-a")
    sent: list[Any] = []

    async def call(server: str, frame: Any, what: str, timeout: float) -> None:
        sent.append(frame)

    source.admin.session.call_checked = call  # type: ignore[assignment]
    source.admin.session.name_servers = ("127.0.0.1:1",)  # type: ignore[misc]
    look = look_of("broker-a", "test", "127.0.0.1:10911", SOURCE, RUNTIME, 1)
    await source.register(look, Tables(), "127.0.0.1:5")
    # RocketMQ's slaves take the HA address from the answer of the NameServer.
    assert (sent[0].ext["brokerAddr"], sent[0].ext["haServerAddr"]) == ("127.0.0.1:5", "127.0.0.1:10912")
    assert len(sent) == 1, "a NameServer of 4.9 has the source under the number that it gives itself"


@pytest.mark.parametrize(
    ("own_number", "registered"), [("0", ["0 127.0.0.1:5", "900 127.0.0.1:10911"]), ("900", ["0 127.0.0.1:5"])]
)
async def test_a_nameserver_of_5_x_keeps_the_new_address_and_the_source_beside_it(
    own_number: str, registered: list[str]
) -> None:
    source = Source(["127.0.0.1:1"], "broker-a")
    sent: list[Any] = []

    async def call(server: str, frame: Any, what: str, timeout: float) -> None:
        sent.append(frame)

    def version(frame: Any) -> int:
        return int(json.loads(frame.body)["topicConfigSerializeWrapper"]["dataVersion"]["stateVersion"])

    source.admin.session.call_checked = call  # type: ignore[assignment]
    source.admin.session.name_servers = ("127.0.0.1:1",)  # type: ignore[misc]
    look = look_of("broker-a", "test", "127.0.0.1:10911", SOURCE | {"brokerId": own_number}, RUNTIME, 1)
    tables = Tables()
    tables.topic_version = DataVersion(5, 6, 7)
    await source.register(replace(look, compares_versions=True), tables, "127.0.0.1:5")
    assert [f"{frame.ext['brokerId']} {frame.ext['brokerAddr']}" for frame in sent] == registered
    assert {version(frame) for frame in sent} == {8}, "one more than the source's own"
    sent.clear()
    await source.step_down(look, tables, "127.0.0.1:5")
    assert [(frame.ext["brokerAddr"], version(frame)) for frame in sent] == [("127.0.0.1:5", 0)]


async def test_a_source_that_its_nameserver_forgot_is_known_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the end of a member's connection all is gone that it has registered."""
    number = "0"

    async def cluster_info() -> ClusterInfo:
        return ClusterInfo({})

    async def broker_config(address: str) -> dict[str, str]:
        assert address == "127.0.0.1:10911"
        return SOURCE | {"brokerId": number}

    async def runtime_info(address: str) -> dict[str, str]:
        return RUNTIME

    for known in (("test", "127.0.0.1:10911"), ("other", "127.0.0.1:10911"), None):
        source = Source(["127.0.0.1:1"], "broker-a", cluster="test", known=known)
        for name, stand_in in (
            ("cluster_info", cluster_info), ("broker_config", broker_config), ("runtime_info", runtime_info),
        ):  # fmt: skip
            monkeypatch.setattr(source.admin, name, stand_in)
        if known and known[0] == "test":
            assert ((await source.look()).address, (await source.look()).cluster) == ("127.0.0.1:10911", "test")
            number = "1"
            with pytest.raises(MigrationError, match="has no master now"):  # It is a slave now.
                await source.look()
        else:
            with pytest.raises(MigrationError, match="knows no broker broker-a"):
                await source.look()


@pytest.mark.parametrize(
    "status",
    [
        {}, {"state": "following"}, {"state": "following", "problem": "", "end": "x", "connected": True},
        {"state": "following", "problem": "", "end": -1, "connected": True}, [], 5,
    ],
)  # fmt: skip
async def test_an_odd_status_of_a_copy_is_a_problem_and_no_failure(status: Any) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=status)))
    group = GroupPlace("a", "broker-a", "127.0.0.1:1", lambda: ["http://127.0.0.1:1"])
    async with http, Edge(SourcePlace(()), [group], http) as edge:
        seen = (await edge.look())["a"]
    assert (seen.state, seen.copy_end) == (None, None)
    assert seen.problem
