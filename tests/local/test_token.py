"""The HTTP interface of a local cluster's members requires a token that only this user can read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from gantry_operator.cluster.member_http import httpx
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.ports import Ports

from tests.local.cluster import Cluster

pytestmark = pytest.mark.timeout(300)


def others_may(path: Path) -> bool:
    return bool(stat.S_IMODE(path.lstat().st_mode) & 0o077)


def status_code(cluster: Cluster, member: str, token: str | None) -> int:
    url = f"http://{Ports.load(cluster.folder.ports).address(f'{member}/http')}/v1/status"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.get(url, headers=headers, timeout=5, trust_env=False).status_code


def test_a_member_answers_only_to_the_token_of_its_cluster(cluster: Cluster) -> None:
    token = cluster.folder.token_file.read_text()
    assert len(token) == 43, "32 random bytes"
    for member in ("t-a-0", "t-a-1", "t-a-2"):
        config = json.loads(cluster.folder.config(member).read_text())
        assert config["token_file"] == str(cluster.folder.token_file)
        assert status_code(cluster, member, None) == 401
        assert status_code(cluster, member, "x" * 43) == 401
        assert status_code(cluster, member, token) == 200


def test_nothing_of_a_cluster_can_be_read_by_another_user(cluster: Cluster) -> None:
    found = [cluster.folder.root, *cluster.folder.root.rglob("*")]
    assert len(found) > 30
    assert not [p for p in found if p.is_dir() and others_may(p)]
    written = [p for p in found if p.is_file() and p != cluster.folder.ports]  # Written by the test itself.
    assert not [p for p in written if others_may(p)]
    state = Path(cluster.environment["XDG_STATE_HOME"]) / "gantry"
    assert not [p for p in (state, *state.rglob("*")) if others_may(p)]


def test_a_token_that_is_replaced_counts_without_a_restart(cluster: Cluster) -> None:
    former = cluster.folder.token_file.read_text()
    pids = {m["name"]: m["pid"] for m in cluster.members().values()}
    new = "another-token"
    beside = cluster.folder.root / "token.new"
    beside.touch(mode=0o600)
    beside.write_text(new)
    os.replace(beside, cluster.folder.token_file)
    cluster.until("the new token counts", lambda: status_code(cluster, "t-a-1", new) == 200)
    assert status_code(cluster, "t-a-1", former) == 401
    cluster.until("all is well with the new token", cluster.whole)
    master = cluster.master()["name"]
    other = next(name for name in pids if name != master)
    cluster.gantry("switchover", "a", "--to", other, "--dir", str(cluster.folder.root))
    assert cluster.master()["name"] == other, "the supervisor has the new token, too"
    assert {m["name"]: m["pid"] for m in cluster.members().values()} == pids


def test_a_folder_that_others_could_enter_is_closed_and_the_token_kept(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.root.mkdir(mode=0o755)
    (folder.root / "log").mkdir(mode=0o755)
    folder.make()
    token = folder.token_file.read_text()
    assert not others_may(folder.root)
    assert not others_may(folder.root / "log")
    folder.token_file.chmod(0o644)
    folder.make()
    assert folder.token_file.read_text() == token
    assert not others_may(folder.token_file)


def test_a_token_file_that_holds_none_is_written_again(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.make()
    folder.token_file.write_text("two words\n")
    folder.make()
    assert len(folder.token_file.read_text()) == 43


def test_a_reader_keeps_the_last_token_while_the_file_is_away(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.make()
    reader = folder.token
    token = reader.read()
    folder.token_file.unlink()
    assert reader.read() == token
    assert "cannot be read" in reader.problem
    assert folder.token.read() is None
