"""`gantry fence`: a member's broker stops for a look, its process stays, and clients notice nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.store.recovery import lock_store
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.fencing import why_not_fence

from tests.local.cluster import Cluster, Load, check_account, running

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(Cluster(tmp_path, nameServers={"replicas": 1}, minInSyncReplicas=2)) as made:
        yield made


def rows(*in_sync: bool) -> list[dict[str, Any]]:
    return [{"name": f"t-a-{n}", "group": "a", "inSync": here} for n, here in enumerate(in_sync)]


@pytest.mark.parametrize(
    ("mode", "least", "in_sync", "may"),
    [
        ("MasterSlave", 1, (True, True), True),
        ("MasterSlave", 1, (True, False), False),
        ("MasterSlave", 1, (True,), False),
        ("MasterSlave", 2, (True, True, True), True),
        ("MasterSlave", 2, (True, True, False), False),
        ("Raft", 1, (True, True, True), True),
        ("Raft", 1, (True, True, False), False),
        ("Raft", 1, (True, True, True, True, False), True),
    ],
)
def test_a_member_is_fenced_where_its_group_can_do_without(
    mode: str, least: int, in_sync: tuple[bool, ...], may: bool
) -> None:
    resource = {
        "metadata": {"name": "t"}, "spec": {"mode": mode, "minInSyncReplicas": least},
        "status": {"members": rows(*in_sync)},
    }  # fmt: skip
    assert (why_not_fence(resource, "t-a-0") == "") is may
    with pytest.raises(ActionError, match="t has no member 't-a-9', but t-a-0"):
        why_not_fence(resource, "t-a-9")


async def test_a_fenced_master_hands_over_and_its_files_are_free(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.folder.root))
    cluster.until("whole", cluster.whole, 60)
    master = cluster.master()
    name, pid = master["name"], master["pid"]
    async with Load.on(cluster, "o-load", "fenced") as load:
        said = await asyncio.to_thread(cluster.gantry, "fence", "on", name, *where)
        assert f"{name} is fenced: its broker is stopped" in said.stdout
        row = cluster.members()[name]
        assert (row["pid"], row["ready"], row.get("inSync")) == (pid, False, False), "the process stays"
        assert "it is fenced" in row["reason"]
        assert cluster.master()["name"] != name
        # What a person came for: nothing else has its files.
        os.close(lock_store(cluster.folder.data(name)))
        other = next(n for n in cluster.members() if n not in (name, cluster.master()["name"]))
        refused = await asyncio.to_thread(cluster.gantry, "fence", "on", other, *where, check=False)
        assert refused.returncode == 1
        assert f"{other} is not fenced: group a needs 2 other members in sync" in refused.stderr
        # The fence outlives another `gantry up` of the manifest, which does not name it, and a restart of its process.
        await asyncio.to_thread(cluster.up)
        os.kill(pid, 9)
        await asyncio.to_thread(
            cluster.until, "it is back", lambda: cluster.members()[name].get("pid") not in (None, pid), 30
        )
        await asyncio.to_thread(
            cluster.until, "it is fenced again", lambda: "it is fenced" in cluster.members()[name].get("reason", ""), 30
        )
        said = await asyncio.to_thread(cluster.gantry, "fence", "off", name, *where)
        assert "not fenced any more" in said.stdout
        await asyncio.to_thread(cluster.until, "whole again", cluster.whole, 60)
    assert (load.errors, load.other) == ([], {})
    await check_account(cluster, load)
    assert [e["reason"] for e in map(json.loads, cluster.folder.events.read_text().splitlines())].count("Fenced") == 1
