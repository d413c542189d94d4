"""The project's own files: lock files are current, and no file names an index or a machine."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

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
