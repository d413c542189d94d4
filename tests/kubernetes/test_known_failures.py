"""Every test that docs/known-failures.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "docs" / "known-failures.md").read_text().splitlines()
ROWS = [line for line in LINES if line.startswith("| ") and not line.startswith("| reported")]


def test_every_known_failure_has_tests_that_exist() -> None:
    assert len(ROWS) >= 24
    for row in ROWS:
        named = re.findall(r"`((?:e2e|tests)/[\w/]+\.py)::(\w+)`", row)
        stories = re.findall(r"`(tests/scenarios/\w+\.txt)`", row)
        assert len(named) + len(stories) == row.count("`") // 2 > 0, row
        for file, test in named:
            assert re.search(rf"^ *(?:async )?def {test}\(", (ROOT / file).read_text(), re.M), f"{file}::{test}"
        for story in stories:
            assert (ROOT / story).is_file(), story
