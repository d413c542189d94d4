"""The project's own files: lock files are current, and no file names an index or a machine."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml
from gantry_broker.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def test_no_lock_is_stale() -> None:
    assert runpy.run_path(str(ROOT / "requirements" / "lock.py"))["stale"]() == [], "run `make lock`"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_every_requirement_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    pins = re.findall(r"^[A-Za-z0-9._-]+(?:\[[^]]*\])?==\S+.*(?:\n    .*)+", text, re.M)
    assert len(pins) >= 10
    assert all("--hash=sha256:" in pin for pin in pins)


def test_the_license_is_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:300]


def test_wheel_images_and_chart_carry_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "helm" / "gantry" / "Chart.yaml").read_text())
    images = yaml.safe_load((ROOT / "helm" / "gantry" / "values.yaml").read_text())["image"]
    labels = re.findall(r"image\.version=\"?([^\s\"]+)", (ROOT / "Dockerfile").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert {part: images[part] for part in ("operator", "broker", "spark")} == {
        part: f"gantry-{part}:{version}" for part in ("operator", "broker", "spark")
    }
    assert labels == [version]
    assert version == VERSION
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
