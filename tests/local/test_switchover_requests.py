"""Answers of a supervisor to requests that it cannot carry out."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.actions.local_target import LocalTarget
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cli.analytics import resolve
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.target import run_async
from gantry_operator.failover.model import Wait
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local import port_claims as claims
from gantry_operator.platforms.local.control import ControlError
from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.platforms.local.manifest import load_saved, save_manifest
from gantry_operator.platforms.local.ports import Ports
from gantry_operator.platforms.local.process_plan import process_plans
from gantry_operator.platforms.local.readiness import why_not_ready
from gantry_operator.platforms.local.status import local_status
from gantry_operator.platforms.local.supervisor import Supervisor
from gantry_operator.platforms.local.supervisor_lock import take_lock
from gantry_operator.platforms.local.switchover_once import switchover_once

from tests.support.failing_calls import raising


def made(*groups: str) -> BrokerCluster:
    spec = [{"name": g, "members": 2} for g in groups]
    return BrokerCluster.make("t", "x", nameServers={"replicas": 1}, brokerGroups=spec)


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """A cluster of two groups without running processes."""
    folder, cluster = ClusterFolder(tmp_path), made("a", "b")
    folder.make()
    save_manifest(folder, cluster)
    ports = Ports.load(folder.ports)
    ports.choose(plan(cluster), frozenset())
    for process in process_plans(cluster, plan(cluster), ports, folder):
        folder.config(process.name).write_text(process.config)
    return folder


async def test_a_request_that_cannot_begin_is_answered_without_a_supervisor_too(folder: ClusterFolder) -> None:
    with pytest.raises(ControlError, match="t has no group 'nosuch', but a, b"):
        await switchover_once(folder, "nosuch", None)


async def servers_of(target: LocalTarget) -> str:
    async with target.clients() as clients:
        return clients.name_servers


COMMANDS: dict[str, Callable[[LocalTarget], object]] = {
    "status": lambda target: run_async(target.resource()),
    "produce": lambda target: run_async(servers_of(target)),
    "switchover": lambda target: run_async(target.switchover("a", None)),
    "analyze": lambda target: resolve(None, target.folder.root),
}


@pytest.mark.parametrize(
    ("command", "use"),
    [("status", "group/a"), ("produce", "t-namesrv-0"), ("switchover", "t-a-1"), ("analyze", "t-b-0/http")],
)
def test_a_missing_port_is_named_with_the_remedy(folder: ClusterFolder, command: str, use: str) -> None:
    folder.ports.write_text(json.dumps({u: p for u, p in read_json(folder.ports).items() if u != use}))
    said = f"{folder.ports} holds no port of {use}: start the cluster with gantry up"
    with pytest.raises(CliError, match=re.escape(said)):
        COMMANDS[command](LocalTarget(folder))


async def test_a_process_that_cannot_be_started_is_reported(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(folder, made("a", "b"), show=lambda line: None)
    monkeypatch.setattr(Ports, "choose", raising(OSError("no port is free")))
    server = await control.serve(folder, supervisor.handle)
    manifest: dict[str, Any] = made("a", "b", "c").model_dump(mode="json", exclude={"status"}, exclude_none=True)
    with pytest.raises(ControlError, match="this one cannot be run: no port is free"):
        await control.ask(folder, "apply", 3, manifest=manifest)
    assert (
        [g.name for g in supervisor.platform.plan.groups]
        == [g.name for g in plan(load_saved(folder)).groups]
        == ["a", "b"]
    )
    server.close()
    await supervisor.close()


async def test_the_failover_goes_on_while_another_program_chooses_its_ports(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait may take long."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    claims.claims_folder().mkdir()
    supervisor = Supervisor(folder, made("a", "b"), show=lambda line: None)
    monkeypatch.setattr(supervisor.platform.children, "plan", lambda plans: None)
    longest = 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    with open(claims.claims_folder() / "lock", "a") as lock:  # noqa: ASYNC230
        fcntl.flock(lock, fcntl.LOCK_EX)
        looking = asyncio.create_task(look())
        await asyncio.sleep(0.05)
        threading.Timer(1.0, lock.close).start()
        manifest = made("a", "b").model_dump(mode="json", exclude={"status"}, exclude_none=True)
        assert await supervisor.handle("apply", {"manifest": manifest}) == {"applied": True}
        await asyncio.sleep(0.05)
    assert longest < 0.7
    looking.cancel()
    await supervisor.close()


async def test_after_a_changed_spec_it_is_ready_once_that_was_tried_again(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success at the first start proves nothing now: `gantry up` would report a cluster as ready that does not
    answer.
    """
    supervisor = Supervisor(folder, made("a", "b"), show=lambda line: None)
    monkeypatch.setattr(supervisor.platform.children, "plan", lambda plans: None)
    supervisor.ready = True
    manifest = made("a", "b").model_dump(mode="json", exclude={"status"}, exclude_none=True)
    assert await supervisor.handle("apply", {"manifest": manifest}) == {"applied": True}
    said = await supervisor.handle("info", {})
    assert (said["ready"], said["notReady"]) == (False, "the spec was changed")
    await supervisor.close()


async def test_the_status_shows_changes_in_progress_and_failures(folder: ClusterFolder) -> None:
    """Like Kubernetes."""
    supervisor = Supervisor(folder, made("a", "b"), show=lambda line: None)
    loop = supervisor.watch_only("a")
    loop._report_problem("pass", "the role registry does not answer")
    loop._note_wait(Wait("waiting-for-members", "waiting for t-a-1: every disk must report first", available=False))
    supervisor.control.rolling.start("t-a-1 is a slave, and all members are in sync")
    server = await control.serve(folder, supervisor.handle)
    conditions = {c.type: c for c in (await local_status(folder)).status.conditions}
    assert (conditions["Progressing"].status, conditions["Progressing"].reason) == ("False", "Blocked")
    assert "the role registry does not answer" in conditions["Progressing"].message
    assert f"meanwhile: {supervisor.control.rolling.reason}" in conditions["Progressing"].message
    assert (conditions["Degraded"].status, conditions["Degraded"].message) == (
        "True",
        "group a: the role registry does not answer",
    )
    assert "waiting for t-a-1: every disk must report first" in conditions["Available"].message
    assert (
        await why_not_ready(supervisor.control, supervisor.platform)
        == "group a: waiting for t-a-1: every disk must report first"
    )
    server.close()
    await supervisor.close()


async def test_another_command_at_work_is_not_called_a_supervisor(folder: ClusterFolder) -> None:
    """`gantry down` holds the lock as well, and so does `gantry switchover`."""
    with (
        take_lock(folder),
        pytest.raises(ControlError, match="another command uses this cluster, or `gantry up` is just starting"),
    ):
        await switchover_once(folder, "a", None)
