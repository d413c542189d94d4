"""The histories find every planted bug."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pop.history import run_history
from tests.pop.mutants import MUTANTS
from tests.simulation.mutants import Mutant, plant

MOST = 150
"""Histories that a planted bug may survive."""
FOUND_AT = {
    "record_before_copies": 9,
    "half_batch_is_forgotten": 9,
    "whole_state_without_order": 7,
    "renewed_messages_expire": 29,
    "reset_keeps_what_is_in_flight": 5,
    "renewals_are_not_replayed": 69,
    "parts_without_renewals": 69,
    "retry_arrivals_wake_nobody": 92,
    "a_copied_message_expired_at_no_time": 184,
    "whole_state_without_acknowledgements_of_an_order": 309,
}
"""The first history that finds it, where that is not one of the first: those before it are left out."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_histories_find_a_planted_bug(mutant: Mutant, tmp_path: Path) -> None:
    first = FOUND_AT.get(mutant.name, 0)
    with plant(mutant):
        for seed in range(first, first + MOST):
            try:
                run_history(seed, tmp_path / str(seed))
            except Exception:
                return
    pytest.fail(f"{MOST} histories have not found {mutant.name}")
