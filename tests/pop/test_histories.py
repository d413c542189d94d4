"""Seeded histories of POP consumption. POP_HISTORIES: their number; POP_SEED: the first one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pop.history import HISTORIES, run_history

FIRST = int(os.environ.get("POP_SEED", "0"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_histories(part: int, tmp_path: Path) -> None:
    for seed in range(FIRST + part, FIRST + HISTORIES, PARTS):
        try:
            run_history(seed, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
