"""The wheel alone: built, installed into an empty folder, and a first cluster from it. The network is not used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gantry_operator.platforms.local.folder import ClusterFolder

from tests.local.cluster import Cluster, take_down

ROOT = Path(__file__).parents[2]
SOURCES = ("operator", "broker_image", "spark_jobs", "examples", "pyproject.toml", "README.md", "LICENSE")


def pip(*args: str, cwd: Path) -> None:
    """Without an index and with the build tools of this environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *args, "--no-deps", "--no-index"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*_cache")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=source)
    (built,) = (source / "dist").iterdir()
    return built


class Installed(Cluster):
    """The quickstart, by the command of an installed wheel."""

    def __init__(self, base: Path, packages: Path) -> None:
        self.folder = ClusterFolder(base / "state" / "gantry" / "data" / "demo")
        self.environment = os.environ | {"XDG_STATE_HOME": str(base / "state"), "PYTHONPATH": str(packages)}
        self.environment.pop("GANTRY_KUBERNETES", None)
        self.command = packages / "bin" / "gantry"

    def gantry(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.command), *args], input=stdin, capture_output=True, text=True, env=self.environment,
            cwd=self.command.parent, timeout=110, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"gantry {' '.join(args)}: {done.stdout}{done.stderr}"
        return done


def test_the_wheel_has_the_examples_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for path in (ROOT / "examples").glob("*.yaml"):
        assert zipfile.ZipFile(wheel).read(f"gantry_operator/examples/{path.name}") == path.read_bytes()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "gantry_broker",
        "gantry_core",
        "gantry_operator",
        "gantry_spark",
    }


@pytest.mark.timeout(300)
def test_an_installed_wheel_starts_a_cluster_that_takes_messages(wheel: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    pip("install", "--target", str(packages), str(wheel), cwd=tmp_path)
    cluster = Installed(tmp_path, packages)
    asked = [sys.executable, "-c", "import gantry_operator; print(gantry_operator.__file__)"]
    said = subprocess.run(asked, env=cluster.environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(packages)), "the sources of this tree must not be what runs"
    assert "quickstart" in cluster.gantry("examples").stdout
    try:
        cluster.gantry("up", "--detach", "--timeout", "90")
        cluster.gantry("topic", "create", "Orders")
        cluster.gantry("produce", "Orders", "--count", "20", "--size", "30")
        got = cluster.gantry("consume", "Orders", "--group", "g", "--count", "20", "--timeout", "20")
        assert len(got.stdout.splitlines()) == 20
        debugged = json.loads(cluster.gantry("debug", "member", "demo-a-0", "-o", "json").stdout)
        assert debugged["status"]["name"] == "demo-a-0"
        assert debugged["replica"]["member"][0] == 0
        checkpoint = json.loads(cluster.gantry("debug", "checkpoint", "demo-a-0", "-o", "json").stdout)
        assert checkpoint["openIn"] == debugged["status"]["pid"]
        log = cluster.gantry("debug", "log", "demo-a-0", "--topic", "Orders").stdout
        assert len([line for line in log.splitlines() if " message " in line]) == 20
        assert "sets topics Orders" in cluster.gantry("debug", "log", "demo-a-0").stdout
    finally:
        if cluster.folder.running.is_dir():
            take_down(cluster)
    again = cluster.gantry("debug", "member", str(cluster.folder.data("demo-a-0")))
    assert "the last stop was clean" in again.stdout
