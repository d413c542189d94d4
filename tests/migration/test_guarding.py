"""A source that asks for signatures is followed where everybody may do everything only if the manifest says so."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from gantry_broker.broker.migration import member
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.guarding import Guarding
from gantry_broker.broker.migration.member import Migration
from gantry_broker.broker.migration.source import Look, guarded, look_of
from gantry_broker.config import BrokerConfig, MigrateConfig
from gantry_operator.api.status import BrokerClusterStatus
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import status_of
from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_edge import _copy_of
from gantry_operator.migration.cutover_steps import Limits, Record, Refused, Seen
from gantry_operator.plan.process_config import text_of
from gantry_operator.platforms.local.folder import ClusterFolder

from tests.migration import test_broken_source as broken
from tests.migration.test_plan import RUNTIME, SOURCE, cluster, configs, following

ACL = {"aclEnable": "true"}


def config(path: Path, authentication: str = "Disabled", dropped: bool = False) -> BrokerConfig:
    return BrokerConfig(
        cluster="test", group="test", member=0, name="test-0", data_dir=path, port=1, http_port=2,
        member_address="127.0.0.1:1", group_address="127.0.0.1:1", authentication=cast(Any, authentication),
        migrate=MigrateConfig(name_servers=["127.0.0.1:1"], broker="broker-a", drop_access_control=dropped),
    )  # fmt: skip


@pytest.mark.parametrize("settings", [ACL, {"authenticationEnabled": "true"}, {"authorizationEnabled": "true"}])
async def test_protection_is_not_lost_without_a_word(tmp_path: Path, settings: dict[str, str]) -> None:
    assert guarded(settings)
    for mode in ("Disabled", "Permissive"):
        with pytest.raises(MigrationError, match=r"security\.authentication: Enabled .*\.dropAccessControl: true"):
            await Guarding(config(tmp_path, mode)).check(settings)
        await Guarding(config(tmp_path, mode, dropped=True)).check(settings)
        await Guarding(config(tmp_path, mode)).check({"aclEnable": "false"})
    await Guarding(config(tmp_path, "Enabled")).check(settings)


async def test_what_the_manifest_says_later_counts_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    file.write_text(text_of(config(tmp_path)))
    made = Guarding(config(tmp_path), file)
    with pytest.raises(MigrationError):
        await made.check(ACL)
    file.write_text(text_of(config(tmp_path, "Enabled")))
    await made.check(ACL)
    assert made.of(config(tmp_path)).authentication == "Enabled", "the broker begins as the manifest says now"
    for spoilt in ("", "[]", '{"migrate": 3}'):
        file.write_text(spoilt)
        await made.check(ACL)
    file.write_text(text_of(config(tmp_path, dropped=True)))
    await made.check(ACL)
    file.write_text(text_of(config(tmp_path)))
    with pytest.raises(MigrationError):
        await made.check(ACL)


def test_the_manifest_drops_it_and_an_older_image_reads_the_configuration(tmp_path: Path) -> None:
    source: dict[str, Any] = {"nameServers": ["192.0.2.10:9876"]}
    folder = ClusterFolder(tmp_path)
    folder.make()
    assert "drop_access_control" not in configs(cluster(), folder)["shop-a-0"]["migrate"]
    made = cluster(bootstrap={"fromRocketMQ": source | {"dropAccessControl": True}})
    assert configs(made, folder)["shop-a-0"]["migrate"]["drop_access_control"] is True


async def test_a_member_follows_once_it_may_and_a_cutover_waits_for_that(tmp_path: Path) -> None:
    """By the resource alone, too: the member says it, so its condition does."""
    migration = following(tmp_path)
    file = tmp_path / "broker.json"
    file.write_text(text_of(config(tmp_path)))
    migration._guarding = Guarding(config(tmp_path), file)
    looks = 0

    class Guarded:
        async def look(self) -> Look:
            nonlocal looks
            looks += 1
            return look_of("broker-a", "test", "127.0.0.1:1", SOURCE | ACL, RUNTIME, 0)

        async def tables(self, address: str) -> Any:
            raise MigrationError("it is asked for its tables")

    with pytest.raises(MigrationError) as refused:
        await migration._with(cast(Any, Guarded()))
    migration._problem = str(refused.value)
    assert "the source asks for signatures" in migration.text()
    _, problem, _, connected = _copy_of(migration.status())
    assert not connected
    seen = Seen(state=None, problem=problem, copy_end=900, source_end=900, permission=6)
    with pytest.raises(Refused, match="dropAccessControl"):
        cutover_steps.begin(Record(), {"a": seen}, Limits(), 0)
    # A copy that follows already stops, too.
    with pytest.raises(MigrationError, match="asks for signatures"):
        await migration._watch(cast(Any, Guarded()))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"authentication": "Enabled"}))
    with pytest.raises(MigrationError, match="asked for its tables"):
        async with asyncio.timeout(20):
            await migration._watch(cast(Any, Guarded()))
    assert looks == 3
    assert member.mark_of(tmp_path) is None


async def test_the_operator_says_it_in_the_clusters_condition_until_the_manifest_drops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member over HTTP, as the operator watches it."""
    file, made = tmp_path / "broker.json", broken.config(tmp_path / "copy")
    folder = ClusterFolder(tmp_path)
    folder.make()

    def write(**more: bool) -> None:
        manifest = cluster(bootstrap={"fromRocketMQ": {"nameServers": ["127.0.0.1:1"], **more}})
        order = configs(manifest, folder)["shop-a-0"]["migrate"]
        file.write_text(json.dumps(json.loads(text_of(made)) | {"migrate": order}))

    write()
    assert made.migrate is not None
    async with broken.world(tmp_path / "source", monkeypatch) as source, httpx.AsyncClient() as client:
        source.settings |= ACL
        member_task = asyncio.create_task(Migration(made, made.migrate, Guarding(made, file)).run())
        watch = MemberWatch("shop-a-0", f"http://127.0.0.1:{made.http_port}", client, lambda: None, time.monotonic)
        watch_task = asyncio.create_task(watch.run())

        async def until_said(wanted: bool) -> dict[str, str]:
            async with asyncio.timeout(20):
                while ("asks for signatures" in watch.problem) is not wanted or "migrating" not in watch.problem:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            seen = [ObservedMember("shop-a-0", "a", 0, None, True, problem=watch.problem)]
            observed = ObservedState(seen, [], {"a": "no master"})
            status = status_of(cluster(), BrokerClusterStatus(), observed, "2026-01-01T00:00:00Z", 1)
            return {c.type: c.message for c in status.conditions}

        try:
            assert "spec.bootstrap.fromRocketMQ.dropAccessControl: true" in (await until_said(True))["Degraded"]
            assert source.master.connections == 0
            write(dropAccessControl=True)
            assert "asks for signatures" not in str(await until_said(False))
        finally:
            for task in (member_task, watch_task):
                task.cancel()
            await asyncio.gather(member_task, watch_task, return_exceptions=True)
