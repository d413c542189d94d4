"""`gantry volume` on this machine: folders of members that are gone, and only those."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.local_target import LocalTarget
from gantry_operator.actions.volumes import delete_volume, list_volumes
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import save_manifest

LOCKED = (
    "import sys; from pathlib import Path; from gantry_broker.store.recovery import lock_store; "
    "lock_store(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.readline()"
)
"""Somebody looks at a store."""


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    found = ClusterFolder(tmp_path / "t")
    found.make()
    save_manifest(found, BrokerCluster.make("t", brokerGroups=[{"name": "a", "members": 1}]))
    for path in (
        found.data("t-a-0"),
        found.data("t-a-1"),
        found.data("t-a-2"),
        found.root / "drained" / "t-b-0-20260101",
    ):
        (path / "commitlog").mkdir(parents=True)
        (path / "commitlog" / "0").write_bytes(b"x" * 5000)
    # Member 2 has left the spec and is still being moved out.
    found.config("t-a-2").write_text(json.dumps({"group": "a", "member": 2}))
    return found


async def test_only_folders_of_members_that_are_gone_are_deleted(folder: ClusterFolder) -> None:
    target = LocalTarget(folder)
    assert [v.name for v in await list_volumes(target, False)] == ["drained/t-b-0-20260101", "t-a-0", "t-a-1", "t-a-2"]
    gone = await list_volumes(target, True)
    assert [(v.name, v.member) for v in gone] == [("drained/t-b-0-20260101", "t-b-0"), ("t-a-1", "t-a-1")]
    assert all(v.bytes is not None and v.bytes >= 5000 for v in gone)
    for name, why in (("t-a-0", "member t-a-0 uses it"), ("t-a-2", "t-a-2 is leaving"), ("t-a-9", "there is no volume"),
                      ("../t", "there is no volume")):  # fmt: skip
        with pytest.raises(ActionError, match=why):
            await delete_volume(target, name, confirm=True)
    _, deleted = await delete_volume(target, "t-a-1", confirm=False)
    assert not deleted
    assert folder.data("t-a-1").exists(), "it was only shown"
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", LOCKED, str(folder.data("t-a-1"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(ActionError, match="in use by another process"):
        await delete_volume(target, "t-a-1", confirm=True)
    holder.communicate(b"\n")
    _, deleted = await delete_volume(target, "t-a-1", confirm=True)
    assert deleted
    assert not folder.data("t-a-1").exists()
    await delete_volume(target, "t-b-0", confirm=True)
    assert not await list_volumes(target, True)
