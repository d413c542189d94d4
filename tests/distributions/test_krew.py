"""The kubectl plug-in for Krew: what its manifest names is there, and the program runs the command of this version."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from distributions import krew
from distributions.build import project

URL = "https://example.com/releases/v0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return krew.build(f"{URL}/", tmp_path_factory.mktemp("krew"))


def test_the_manifest_is_as_krew_wants_it(built: list[Path]) -> None:
    """Its rules: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/"""
    packed, described = built
    found = yaml.safe_load(described.read_text())
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert found["metadata"]["name"] == described.stem == "gantry"
    spec = found["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["version"] == f"v{project()['version']}"
    assert spec["homepage"].startswith("https://")
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    chosen = [(p["selector"]["matchLabels"]["os"], p["selector"]["matchLabels"]["arch"]) for p in spec["platforms"]]
    assert len(set(chosen)) == len(chosen) == 4
    with tarfile.open(packed) as tar:
        names = tar.getnames()
    for platform in spec["platforms"]:
        assert platform["uri"] == f"{URL}/{packed.name}"
        assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
        assert {f["from"] for f in platform["files"]} == set(names)
        assert platform["bin"] in names
    assert krew.archive() == packed.read_bytes(), "equal sources give equal bytes"


@pytest.mark.parametrize(("runner", "before"), [("uvx", ["--quiet", "--from"]), ("pipx", ["run", "--quiet", "--spec"])])
def test_the_program_runs_the_command_of_this_version(
    built: list[Path], tmp_path: Path, runner: str, before: list[str]
) -> None:
    with tarfile.open(built[0]) as tar:
        tar.extractall(tmp_path, filter="data")
    program = tmp_path / "kubectl-gantry"
    assert os.access(program, os.X_OK)
    path = tmp_path / "bin"
    path.mkdir()
    environment = {"PATH": str(path)}
    none = subprocess.run(["/bin/sh", program], capture_output=True, text=True, env=environment, check=False)
    assert none.returncode == 1
    assert "needs uv" in none.stderr
    (path / runner).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit 3\n')
    (path / runner).chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", program, "topic", "create", "a b", "--queues", "3"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 3, "the exit code is that of the command"
    wanted = [*before, f"gantry-mq[operator]=={project()['version']}", "kubectl-gantry"]
    assert ran.stdout.splitlines() == [*wanted, "topic", "create", "a b", "--queues", "3"]
