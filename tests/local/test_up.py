"""`gantry up` from its first write to the start of its supervisor: interference in between."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.cli import up as command
from gantry_operator.cli.errors import CliError
from gantry_operator.platforms.local import manifest as manifests
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.supervisor_lock import AlreadySupervised, take_lock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ClusterFolder(tmp_path / "cluster")


def manifest(tmp_path: Path, members: int = 1, version: str = "v1alpha1") -> Path:
    file = tmp_path / f"{members}.yaml"
    spec = {"brokerGroups": [{"name": "a", "members": members}]}
    head = {"apiVersion": f"gantry.dev/{version}", "kind": "BrokerCluster", "metadata": {"name": "t"}}
    file.write_text(json.dumps(head | {"spec": spec}))
    return file


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_was_only_begun_is_gone_on_with(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, or the command was killed, before there was a manifest."""
    with monkeypatch.context() as full:
        full.setattr(manifests, "save_manifest", no_room)
        with pytest.raises(CliError, match=r"cannot be used: .*No space left on device"):
            command.up(manifest(tmp_path), folder.root, True, 1)
    started: list[object] = []
    monkeypatch.setattr(command.subprocess, "Popen", lambda *args, **_: started.append(args))
    monkeypatch.setattr(command, "_wait_ready", lambda *_: None)
    command.up(manifest(tmp_path), folder.root, True, 1)
    assert started


def test_a_file_may_change_to_the_other_version_of_the_api(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.subprocess, "Popen", lambda *args, **_: None)
    monkeypatch.setattr(command, "_wait_ready", lambda *_: None)
    for version in ("v1alpha1", "v1beta1", "v1alpha1"):
        command.up(manifest(tmp_path, version=version), folder.root, True, 1)
        assert json.loads(folder.manifest.read_text())["apiVersion"] == f"gantry.dev/{version}"
    with pytest.raises(CliError, match=r'apiVersion is "gantry.dev/v2": write .gantry.dev/v1alpha1. or'):
        command.up(manifest(tmp_path, version="v2"), folder.root, True, 1)


def test_a_folder_of_something_else_is_left_alone(folder: ClusterFolder, tmp_path: Path) -> None:
    folder.root.mkdir()
    (folder.root / "thesis.tex").touch()
    with pytest.raises(CliError, match="is not empty and holds no cluster"):
        command.up(manifest(tmp_path), folder.root, True, 1)
    assert [p.name for p in folder.root.iterdir()] == ["thesis.tex"]


def test_no_other_command_interferes_until_the_supervisor_ends(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gantry down` would find nothing to stop, and the cluster would start after it. Another `gantry up` would
    write a manifest without a supervisor.
    """
    inherited: list[int] = []

    def start(argv: list[str], *, pass_fds: tuple[int, ...], **_: Any) -> None:
        with pytest.raises(AlreadySupervised):
            take_lock(folder)
        assert argv[-1] == str(pass_fds[0])
        inherited.append(os.dup(pass_fds[0]))

    monkeypatch.setattr(command.subprocess, "Popen", start)
    monkeypatch.setattr(command, "_wait_ready", lambda *_: None)
    command.up(manifest(tmp_path, 2), folder.root, True, 1)
    with pytest.raises(CliError, match="another `gantry up` is just starting: try again"):
        command.up(manifest(tmp_path, 3), folder.root, True, 1)
    assert json.loads(folder.manifest.read_text())["spec"]["brokerGroups"][0]["members"] == 2
    os.close(inherited[0])
    take_lock(folder).close()
