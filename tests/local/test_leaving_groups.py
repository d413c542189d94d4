"""Groups that left the manifest, by the folder, and what is left of them after their removal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_groups import (
    begin_removal,
    group_in_name,
    leaving_groups,
    remove_remains,
    removed_processes,
    removing_groups,
    running_cluster,
)


def made(*names: str) -> BrokerCluster:
    return BrokerCluster.make("my-t", "x", brokerGroups=[{"name": name, "members": 1} for name in names])


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """As after a start of groups a and b, with two members each."""
    found = ClusterFolder(tmp_path)
    found.make()
    for group in "ab":
        for number in range(2):
            name = f"my-t-{group}-{number}"
            found.config(name).write_text(json.dumps({"group": group, "member": number}))
            found.data(name).mkdir()
        (found.registry / f"{group}.json").write_text("{}")
    found.config("my-t-namesrv-0").write_text(json.dumps({"name": "my-t-namesrv-0"}))
    return found


def test_names_of_processes() -> None:
    assert group_in_name("my-t", "my-t-a-0") == "a"
    assert [group_in_name("t", name) for name in ("u-a-0", "t-a", "t-x-a-0", "t")] == [None] * 4


def test_a_group_that_left_runs_on_until_it_is_removed(folder: ClusterFolder) -> None:
    wanted = made("a")
    assert [(g.name, g.members) for g in leaving_groups(folder, wanted)] == [("b", 2)]
    assert [g.name for g in running_cluster(folder, wanted).spec.brokerGroups] == ["a", "b"]
    begin_removal(folder, "b")
    assert removing_groups(folder) == ("b",)
    assert [g.name for g in running_cluster(folder, wanted).spec.brokerGroups] == ["a"]
    assert [g.name for g in running_cluster(folder, made("a", "b")).spec.brokerGroups] == ["a"], "its name waits"
    assert [p.name for p in removed_processes(folder, "my-t", "b")] == ["my-t-b-0", "my-t-b-1"]


@pytest.mark.parametrize("keep_data", [True, False])
def test_its_remains_go_and_its_name_is_free(folder: ClusterFolder, keep_data: bool) -> None:
    begin_removal(folder, "b")
    for process in removed_processes(folder, "my-t", "b"):
        folder.config(process.name).unlink()
    for _ in range(2):  # It may be repeated.
        remove_remains(folder, "my-t", "b", keep_data=keep_data)
    assert removing_groups(folder) == ()
    assert not (folder.registry / "b.json").exists()
    assert (folder.registry / "a.json").exists()
    assert sorted(p.name for p in (folder.root / "data").iterdir()) == ["my-t-a-0", "my-t-a-1"]
    kept = folder.root / "drained"
    assert (len(list(kept.iterdir())) if kept.exists() else 0) == (2 if keep_data else 0)
    assert [g.name for g in running_cluster(folder, made("a", "b")).spec.brokerGroups] == ["a", "b"]
