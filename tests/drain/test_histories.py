"""Seeded histories of groups that come and go, and the mutants that they must find."""

from __future__ import annotations

import os

import pytest
from gantry_operator.drain import extension, machine

from tests.drain.world import Broken, play
from tests.simulation.mutants.planting import Edit, Mutant, plant

SEEDS = int(os.environ.get("DRAIN_HISTORIES", "80"))
MUTANT_SEEDS = range(566, 1_366)
"""The first one finds all mutants; the others are for histories that are drawn in another way."""

MUTANTS = (
    ("sends are refused at once", Edit(machine, "seen.now - since >= ROUTES_S and", "")),
    ("delayed messages are forgotten", Edit(machine, "    if report.delayed:", "    if False:")),
    ("half messages are forgotten", Edit(machine, "    if report.half:", "    if False:")),
    ("a former master is believed", Edit(machine, "seen.epoch is None or report.epoch != seen.epoch", "False")),
    ("an unsettled report is a proof", Edit(machine, "if left or not report.settled:", "if left:")),
    ("one look is a proof", Edit(machine, "    if seen.now - proof[2] < SETTLE_S:", "    if False:")),
    ("consumers that are away do not count", Edit(machine, "left += [unread_obstacle(row) for row in report.unread]",
     "left += [unread_obstacle(row) for row in report.unread if row.connected]")),
    ("the others need not be ready", Edit(machine, 'if report.drain != "closed" and seen.others:', "if False:")),
    ("a topic may be nowhere else", Edit(machine, "    if seen.homeless:", "    if False:")),
    ("homeless topics are not found", Edit(extension, "if t.perm & Perm.WRITE and name not in writable", "if False")),
)  # fmt: skip


def test_nothing_is_lost_no_send_fails_and_every_drain_ends() -> None:
    assert sum(play(seed).removed for seed in range(SEEDS)) > SEEDS, "most histories remove groups"


@pytest.mark.parametrize(("name", "edit"), MUTANTS, ids=[name for name, _ in MUTANTS])
def test_a_mutant_is_found(name: str, edit: Edit) -> None:
    with plant(Mutant(0, name, (edit,))):
        for seed in MUTANT_SEEDS:
            try:
                play(seed)
            except Broken:
                return
    raise AssertionError(f"no history finds: {name}")
