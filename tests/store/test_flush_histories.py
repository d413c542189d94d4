"""Histories of group commit, and that they find each planted bug. `STORE_SEED` and `STORE_HISTORIES` as elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from gantry_broker.settings import BrokerSettings

from tests.simulation.mutants import Mutant, plant
from tests.store.flush_history import run_history
from tests.store.flush_mutants import MUTANTS

HISTORIES: Final = int(os.environ.get("STORE_HISTORIES", "20"))
SEEDS: Final = [int(os.environ["STORE_SEED"])] if "STORE_SEED" in os.environ else range(HISTORIES)
MOST: Final = 60
"""Histories that a planted bug may survive."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_flushed_survives_and_a_failed_disk_gets_nothing_more(
    seed: int, quick_dir: Path, small: BrokerSettings, flushed_by: str
) -> None:
    run_history(seed, quick_dir, small)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_histories_find_a_planted_bug(mutant: Mutant, quick_dir: Path, small: BrokerSettings) -> None:
    with plant(mutant):
        for seed in range(MOST):
            try:
                run_history(seed, quick_dir / str(seed), small)
            except (Exception, pytest.fail.Exception):
                print(f"found by history {seed}")
                return
    pytest.fail(f"{MOST} histories have not found {mutant.name}")
