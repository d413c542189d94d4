"""docs/known-failures.md names tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs" / "known-failures.md").read_text().splitlines() if line.startswith("| ")][1:]


def test_every_known_failure_has_tests_that_exist() -> None:
    assert len(ROWS) >= 9
    for row in ROWS:
        named = re.findall(r"`((?:e2e|tests)/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.M), f"{file}::{test}"
