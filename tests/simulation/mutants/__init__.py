"""Planted bugs: for each rule of docs/replication.md one mutant, which breaks that rule.

`RULES` has them by the rule's number; code within `planted(8)` runs with rule 8 broken. The stories of tests/scenarios
and the random schedules must then find the record that is lost, undone or shown twice. This proves that they detect it.
"""

from __future__ import annotations

from tests.simulation.mutants.planting import Edit, Mutant, StaleMutant, plant
from tests.simulation.mutants.rules import RULES, planted

__all__ = ["RULES", "Edit", "Mutant", "StaleMutant", "plant", "planted"]
