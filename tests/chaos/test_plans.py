"""A seed is a plan, the same at every draw, and every kind of fault is drawn."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gantry_chaos.episode import can_fill_disks, make_plan
from gantry_chaos.faults import FAULTS, NEEDS_ROOT


def test_a_seed_is_a_plan() -> None:
    assert make_plan(4711) == make_plan(4711)
    assert {make_plan(seed).mode for seed in range(20)} == {"MasterSlave", "Raft"}
    assert {make_plan(seed).flush for seed in range(20)} == {"Async", "Sync"}


def test_every_fault_is_drawn() -> None:
    drawn = {step.kind for seed in range(60) for step in make_plan(seed).steps}
    assert drawn == set(FAULTS) - (frozenset() if can_fill_disks() else NEEDS_ROOT)
