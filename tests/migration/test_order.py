"""The key-value configuration goes from the source's NameServers to the new ones, and is kept up to date."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_broker.client import Admin, Credentials
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.protocol.codes import ORDER_TOPIC_NAMESPACE
from gantry_broker.testing import broker
from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration import source_config
from gantry_operator.migration.cutover_edge import FAILURES, Edge, SourcePlace
from gantry_operator.migration.cutover_steps import Phase, Record, Refused
from gantry_operator.migration.source_config import NOTES, changes, note_of
from gantry_operator.platforms.kubernetes.reconcile import migration_watch
from gantry_operator.platforms.kubernetes.reconcile.migration_watch import MigrationWatch
from gantry_operator.platforms.kubernetes.requests.migration_request import MIGRATION, written
from gantry_operator.platforms.local import source_config as local
from gantry_operator.platforms.local.folder import ClusterFolder

from tests.migration.test_plan import cluster


async def test_the_order_configuration_and_named_namespaces_come_along() -> None:
    async with broker() as source, broker() as target:
        place = SourcePlace((source.name_servers,), kv_namespaces=("OURS", "EMPTY"))
        async with (
            Admin(source.name_servers) as theirs,
            Admin(target.name_servers) as ours,
            httpx.AsyncClient() as http,
            Edge(place, [], http) as edge,
        ):
            assert await edge.copy_kv(ours) == 0
            await theirs.put_kv(ORDER_TOPIC_NAMESPACE, "Orders", "a:4")
            await theirs.put_kv("OURS", "limit", "7")
            await theirs.put_kv("OTHER", "limit", "8")
            assert [await edge.copy_kv(ours) for _ in range(2)] == [2, 0]
            assert await ours.kv_table(ORDER_TOPIC_NAMESPACE) == {"Orders": "a:4"}
            assert (await ours.kv_table("OURS"), await ours.kv_table("OTHER")) == ({"limit": "7"}, {})
            await theirs.put_kv("OURS", "limit", "9")
            assert await edge.copy_kv(ours) == 1
            assert await ours.get_kv("OURS", "limit") == "9"


async def test_what_the_source_has_no_more_goes_and_what_a_user_wrote_stays() -> None:
    async with broker() as source, broker() as target, httpx.AsyncClient() as http:
        place = SourcePlace((source.name_servers,), kv_namespaces=("OURS",))
        async with (
            Admin(source.name_servers) as theirs,
            Admin(target.name_servers) as ours,
            Edge(place, [], http) as edge,
        ):
            for key in ("goes", "changed", "equal"):
                await theirs.put_kv("OURS", key, "7")
            await ours.put_kv("OURS", "own", "1")
            await ours.put_kv("OURS", "equal", "7")
            assert await edge.copy_kv(ours) == 2
            await ours.put_kv("OURS", "changed", "8")
            for key in ("goes", "changed", "equal"):
                await theirs.delete_kv("OURS", key)
            # One of the source's NameServers is silent: it may be the one that has them.
            silent = SourcePlace((source.name_servers, "127.0.0.1:1"), kv_namespaces=("OURS",))
            async with Edge(silent, [], http) as other:
                assert await other.copy_kv(ours) == 0
            assert await edge.copy_kv(ours) == 1
            assert await ours.kv_table("OURS") == {"own": "1", "equal": "7", "changed": "8"}
            assert await ours.kv_table(NOTES) == {}
            async with Edge(SourcePlace(("127.0.0.1:1",)), [], http) as away:
                with pytest.raises(FAILURES):
                    await away.copy_kv(ours)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_copy_the_target_has_what_the_source_has_and_what_users_wrote(seed: int) -> None:
    rng, keys = random.Random(seed), [f"k{i}" for i in range(6)]
    theirs: dict[str, str] = {}
    ours: dict[str, str] = {}
    notes: dict[str, str] = {}
    written_here: dict[str, str] = {}
    for _ in range(60):
        key, value = rng.choice(keys), rng.choice("abc")
        kind = rng.randrange(4)
        if kind == 0:
            theirs[key] = value
        elif kind == 1:
            theirs.pop(key, None)
        elif kind == 2 and key not in theirs:
            ours[key] = written_here[key] = value
        found = changes(theirs, ours, notes)
        ours = {k: v for k, v in {**ours, **found.put}.items() if k not in found.delete}
        notes = {k: n for k, n in {**notes, **found.notes}.items() if n is not None}
        for name in theirs.keys() & written_here.keys():
            del written_here[name]  # The source's counts as long as it is followed.
        for name, wanted in theirs.items():
            assert ours[name] == wanted
        for name, wanted in written_here.items():
            assert ours[name] == wanted, "a user wrote it"
        assert set(notes) <= set(theirs)
        assert changes(theirs, ours, notes) == ({}, frozenset(), {})


@pytest.mark.parametrize("table", [{f"k{i}": "" for i in range(4_001)}, {"k": "x" * (1 << 20)}])
async def test_more_than_a_nameserver_should_get_is_refused(table: Mapping[str, str]) -> None:
    async with broker() as target, Admin(target.name_servers) as ours:
        with pytest.raises(Refused, match="up to 4000 entries"):
            await source_config.bring({"N": table}, ours)
        assert await ours.kv_table("N") == {}


FOLLOWS = {"state": "following", "connected": True}


@pytest.mark.parametrize(
    ("phase", "copies", "copied"),
    [
        (Phase.FOLLOWING, [FOLLOWS, FOLLOWS], True),
        (Phase.FOLLOWING, [FOLLOWS, FOLLOWS | {"connected": False}], False),  # Perhaps another source.
        (Phase.FOLLOWING, [FOLLOWS, None], False),
        (Phase.ROUTED, [FOLLOWS, FOLLOWS], False),
        (Phase.DONE, [None, None], False),
    ],
)
async def test_the_operator_copies_it_while_all_groups_follow(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, copies: list[Any], copied: bool
) -> None:
    calls, events = 0, list[str]()
    annotations = {MIGRATION: written(Record(phase))}

    async def ask(_: bool) -> dict[str, Any]:
        return dict(zip("ab", copies, strict=True))

    async def copy() -> None:
        nonlocal calls
        calls += 1
        raise Refused("too much")

    resource: Any = SimpleNamespace(annotation=annotations.get)
    watch = MigrationWatch(
        resource, ask, lambda: "", lambda kind, reason, text: events.append(text), lambda: None, copy
    )
    await watch.look()
    await watch.look()
    assert calls == copied
    monkeypatch.setattr(migration_watch, "CONFIG_S", 0.0)
    await watch.look()
    assert calls == 2 * copied
    assert sum("is not copied: too much" in text for text in events) == copied


async def test_the_supervisor_copies_it_while_all_groups_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: dict[str, Any] = dict(FOLLOWS)
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=says)))
    async with broker() as source, broker() as target, http:
        made = cluster(bootstrap={"fromRocketMQ": {"nameServers": [source.name_servers]}})
        facts = {"servers": target.name_servers, "key": ["none", "key"], "accessKey": "a", "tls": None}
        monkeypatch.setattr(local, "client_facts", lambda folder: facts)
        monkeypatch.setattr(local, "read_secret", lambda path: {})
        phase = ""
        config = local.LocalSourceConfig(
            ClusterFolder(tmp_path),
            lambda: made,
            lambda: [["http://a"]],
            lambda: phase,
            http,
            SimpleNamespace(),  # type: ignore[arg-type]
        )
        async with Admin(source.name_servers) as theirs, Admin(target.name_servers) as ours:
            await theirs.put_kv(ORDER_TOPIC_NAMESPACE, "Orders", "a:4")
            says["connected"] = False
            assert not await config.look()
            says["connected"], phase = True, "routed"
            assert not await config.look()
            assert await ours.kv_table(ORDER_TOPIC_NAMESPACE) == {}
            phase = ""
            assert await config.look()
            assert await ours.kv_table(ORDER_TOPIC_NAMESPACE) == {"Orders": "a:4"}
            assert (await ours.kv_table(NOTES)) == {f"18 {ORDER_TOPIC_NAMESPACE}/Orders": note_of("a:4")}
            await theirs.delete_kv(ORDER_TOPIC_NAMESPACE, "Orders")
            assert await config.look()
            assert await ours.kv_table(ORDER_TOPIC_NAMESPACE) == {}
            made = cluster(bootstrap=None)
            assert not await config.look()


@pytest.mark.parametrize("comes", [True, False])
async def test_nameservers_without_users_get_it_at_the_end_of_the_cutover(
    monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """A NameServer that asks for signatures knows no users before a member leads."""
    server = NameServer(NameServerSettings("ns", "127.0.0.1", 0, None, None, [], authentication="Enabled"))
    await server.start()
    try:
        async with broker() as source, httpx.AsyncClient() as http:
            keys = Credentials("admin", "secret-of-admin")
            own = Admin(f"127.0.0.1:{server.port}", credentials=keys)
            async with own, Edge(SourcePlace((source.name_servers,)), [], http) as edge:
                with pytest.raises(source_config.NotYet):
                    await edge.copy_kv(own)
                tries = 0

                async def copy() -> None:
                    nonlocal tries
                    tries += 1
                    if comes and tries > 2:
                        return
                    await edge.copy_kv(own)

                monkeypatch.setattr(source_config, "AGAIN_S", 0.01)
                if comes:
                    await source_config.at_the_end(copy)
                    assert tries == 3
                else:
                    with pytest.raises(source_config.NotYet):
                        await source_config.at_the_end(copy, 0.05)
    finally:
        await server.close()
