"""The tests of the rules, the histories and the tests beside them find every planted bug."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.archive import test_damage as damage
from tests.archive import test_hand_over as hand_over
from tests.archive import test_histories as histories
from tests.archive import test_upload as rules
from tests.archive.mutants import MUTANTS
from tests.simulation.mutants import Mutant, plant

MOST = 40
"""Histories that a planted bug may survive."""
DAMAGED = 4
"""Histories of damaged objects, as well."""
HANDED_OVER = 20
"""Hand-overs, as well."""
BESIDE = (
    histories.test_a_clock_that_is_ahead_removes_nothing,
    partial(histories.test_a_member_that_slept_for_days_removes_nothing_of_the_others, promoted=False),
    histories.test_a_member_that_slept_does_not_write_at_a_used_number,
    partial(histories.test_a_group_that_begins_once_more_changes_nothing_in_its_archive, more=0, puts=2),
    histories.test_a_new_log_does_not_undo_what_an_archive_has_left,
    histories.test_a_former_owner_is_fenced,
    histories.test_of_two_members_that_write_at_once_one_is_overtaken,
    histories.test_each_flipped_bit_of_an_object_is_found,
)


def checks() -> Iterator[Callable[[Path], None]]:
    """The quick ones first. Each has a folder of its own."""
    for name, check in [*vars(rules).items(), *vars(damage).items()]:
        if name.startswith("test_") and not inspect.signature(check).parameters:
            yield lambda folder, check=check: check()  # type: ignore[misc]
    yield from BESIDE
    for seed in range(HANDED_OVER):
        yield lambda folder, seed=seed: hand_over.check_hand_over(seed)  # type: ignore[misc]
    for seed in range(DAMAGED):
        yield partial(damage.check_damage, seed)
    for seed in range(MOST):
        yield partial(histories.check_history, seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, quick_dir: Path) -> None:
    with plant(mutant):
        for number, check in enumerate(checks()):
            try:
                check(quick_dir / str(number))
            except (Exception, pytest.fail.Exception):
                return
    pytest.fail(f"{mutant.name} is not found")


def test_without_a_planted_bug_nothing_is_found(quick_dir: Path) -> None:
    for number, check in enumerate(checks()):
        check(quick_dir / str(number))
