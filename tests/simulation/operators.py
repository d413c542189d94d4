"""The operator as the simulation sees it: it reads, asks, decides on what may be old, swaps, and tells.

`ModelOperator` does by dice everything that rules 13, 16, 17, 20, 22 and 23 allow it: safety must not depend on good
decisions. A mutant (`mutants/rules.py`) widens what it may do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from gantry_broker.replication.replica import Role
from gantry_broker.replication.types import Assignment, Cell, MemberId

from tests.simulation.world import Message, Report, World, describe_cell


@dataclass(frozen=True, slots=True)
class Plan:
    """A write that was decided on and not yet done."""

    expected: Cell | None
    cell: Cell
    why: str
    handover: tuple[int, int] | None = None
    """Member numbers from and to."""


class Operator(Protocol):
    name: str

    def read(self) -> None: ...
    def poll(self, number: int) -> None: ...
    def receive(self, message: Message) -> None: ...
    def think(self, rng: random.Random) -> None: ...
    def swap(self) -> None: ...
    def tell(self, number: int) -> None: ...
    def hand_over(self, rng: random.Random) -> None: ...
    def settle(self, rng: random.Random) -> None: ...


class ModelOperator:
    """One of possibly several; all it knows is old by the time it acts."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.cell: Cell | None = None
        self.plan: Plan | None = None
        self.reports: dict[int, Report] = {}
        self._world = world

    # ---- steps

    def read(self) -> None:
        self.cell = self._world.registry.cell

    def poll(self, number: int) -> None:
        self._world.post(self.name, f"m{number}", ("report?",))

    def receive(self, message: Message) -> None:
        body: Any = message.body
        if isinstance(body, Report):
            self.reports[body.member.member] = body
        elif body[0] == "ready":
            _, target, cell = body
            new = cell.promoted(target, cell.in_sync)
            source = cell.master.member if cell.master is not None else target.member
            # Rule 23: on exactly the cell on which the hand-over was asked for.
            self.plan = Plan(cell, new, f"hand over to {target}", (source, target.member))

    def swap(self) -> None:
        plan, self.plan = self.plan, None
        if plan is None:
            return
        if not self._world.registry.swap(plan.expected, plan.cell):
            self._world.trace(f"  {self.name}: somebody else was first ({plan.why})")
            return
        self._world.trace(f"  {self.name}: {plan.why}: {describe_cell(plan.cell)}")
        self.cell = plan.cell
        if plan.handover is not None:
            source, target = (self._world.members[n] for n in plan.handover)
            saved = target.disk.saved
            # Another life of the target's disk never leads by this cell: whoever is promoted next is checked then.
            if source.alive and saved is not None and saved.me == plan.cell.master:
                self._world.checker.handed_over(source, target)

    def tell(self, number: int) -> None:
        """Rule 13: only what it knows to be recorded."""
        if self.cell is not None and self.cell.master is not None:
            self._world.post(self.name, f"m{number}", Assignment(self.cell, str(self.cell.master.member)))

    def hand_over(self, rng: random.Random) -> None:
        cell = self.cell
        if cell is None or cell.master is None:
            return
        targets = sorted(cell.in_sync - {cell.master})
        if targets:
            body = ("handover", rng.choice(targets), cell)
            self._world.post(self.name, f"m{cell.master.member}", body)

    def think(self, rng: random.Random) -> None:
        """Any of the writes that it may do, whether that is wise or not."""
        if self.cell is None:
            self.plan = self._first()
            return
        makers = [self._promote, self._promote, self._answer, self._answer, self._remove]
        self.plan = rng.choice(makers)(self.cell, rng) or self.plan

    def settle(self, rng: random.Random) -> None:
        """Without faults: what a sensible operator does."""
        cell = self.cell
        if cell is None:
            self.plan = self._first()
            return
        master = self.reports.get(cell.master.member) if cell.master is not None else None
        if master is None:
            return
        leads = master.role is Role.MASTER and master.member == cell.master and master.order[0] == cell.epoch
        told = master.order == cell.order
        if told and not leads:
            self.plan = self._promote(cell, rng, best=True)
        elif leads and master.parked:
            self.plan = Plan(cell, cell.touched(), "end the hand-over")
        elif leads:
            self.plan = self._stale(cell) or self._answer(cell, rng, refuse=False)
        elif master.member != cell.master:
            self.plan = self._promote(cell, rng, best=True)

    # ---- the writes

    def _first(self) -> Plan | None:
        reports = [self.reports[n] for n in sorted(self.reports)]
        # Rule 22: only when every disk says that it is new.
        if len(reports) < len(self._world.members) or not all(r.empty for r in reports):
            return None
        members = frozenset(r.member for r in reports)
        return Plan(None, Cell().promoted(reports[0].member, members), "first cell")

    def _in_set(self, report: Report, cell: Cell) -> bool:
        return report.member in cell.in_sync  # Rule 16.

    def _promote(self, cell: Cell, rng: random.Random, best: bool = False) -> Plan | None:
        able = [r for r in self.reports.values() if self._in_set(r, cell)]
        if not able:
            return None
        new = max(able, key=lambda r: (r.position, -r.member.member)) if best else rng.choice(able)
        others = sorted(cell.in_sync - {new.member})
        kept = others if best else [m for m in others if rng.random() < 0.6]  # Rule 20.
        return Plan(cell, cell.promoted(new.member, [new.member, *kept]), f"promote {new.member}")

    def _answer(self, cell: Cell, rng: random.Random, refuse: bool = True) -> Plan | None:
        master = self.reports.get(cell.master.member) if cell.master is not None else None
        if master is None or master.ask is None or master.member != cell.master:
            return None
        based = master.ask.base_version == cell.version and master.order[0] == cell.epoch
        if not based:
            return None  # Rule 17: never rebased.
        if refuse and rng.random() < 0.3:
            return Plan(cell, cell.touched(), "refuse the proposal")
        return Plan(cell, cell.with_set(master.ask.in_sync | cell.in_sync), "record the proposal")

    def _remove(self, cell: Cell, rng: random.Random) -> Plan | None:
        others = sorted(cell.in_sync - ({cell.master} if cell.master is not None else set()))
        if not others:
            return None
        gone = rng.choice(others)
        return Plan(cell, cell.with_set(cell.in_sync - {gone}), f"remove {gone}")

    def _stale(self, cell: Cell) -> Plan | None:
        """A former life of a disk leaves the set, so that the new one can join."""
        lives: set[MemberId] = {r.member for r in self.reports.values()}
        gone = cell.in_sync - lives
        return Plan(cell, cell.with_set(cell.in_sync - gone), "remove former lives") if gone else None
