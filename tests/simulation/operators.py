"""The operator as the simulation sees it: it reads, queries members, decides on old data, swaps, and assigns.

`ModelOperator` does at random everything that rules 13, 16, 17, 20, 22 and 23 allow: safety must not depend on good
decisions. A mutant (`mutants/rules.py`) allows more.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.replication.core import Role

from tests.simulation.world import Message, Report, World, describe_leadership


@dataclass(frozen=True, slots=True)
class Plan:
    """A write that is decided but not done yet."""

    expected: LeadershipRecord | None
    leadership: LeadershipRecord
    why: str
    handover: tuple[int, int] | None = None
    """Member numbers from and to."""


class Operator(ABC):
    """One of possibly several operators. All its data is old by the time it acts."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.leadership: LeadershipRecord | None = None
        self.plan: Plan | None = None
        self._world = world

    def request(self, number: int) -> None:
        self._world.post(self.name, f"m{number}", ("report?",))

    def swap(self) -> None:
        plan, self.plan = self.plan, None
        if plan is None:
            return
        if not self._world.registry.swap(plan.expected, plan.leadership):
            self._world.trace(f"  {self.name}: another operator was first ({plan.why})")
            return
        self._world.trace(f"  {self.name}: {plan.why}: {describe_leadership(plan.leadership)}")
        self.leadership = plan.leadership
        if plan.handover is not None:
            source, target = (self._world.members[n] for n in plan.handover)
            saved = target.disk.saved
            # Another incarnation of the target never leads by this record; the next promotion has its own check.
            if source.alive and saved is not None and saved.me == plan.leadership.master:
                self._world.checker.handed_over(source, target)

    @abstractmethod
    def read(self) -> None: ...
    @abstractmethod
    def receive(self, message: Message) -> None: ...
    @abstractmethod
    def think(self, rng: random.Random) -> None: ...
    @abstractmethod
    def assign(self, number: int) -> None: ...
    @abstractmethod
    def hand_over(self, rng: random.Random) -> None: ...
    @abstractmethod
    def settle(self, rng: random.Random) -> None: ...


class ModelOperator(Operator):
    """See the module."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.reports: dict[int, Report] = {}

    # ---- steps

    def read(self) -> None:
        self.leadership = self._world.registry.leadership

    def receive(self, message: Message) -> None:
        body: Any = message.body
        if isinstance(body, Report):
            self.reports[body.member.member] = body
        elif body[0] == "ready":
            _, target, leadership = body
            new = leadership.promoted(target, leadership.in_sync)
            source = leadership.master.member if leadership.master is not None else target.member
            # Rule 23: on exactly the record of the handover request.
            self.plan = Plan(leadership, new, f"handover to {target}", (source, target.member))

    def assign(self, number: int) -> None:
        """Rule 13: assign only a recorded leadership."""
        if self.leadership is not None and self.leadership.master is not None:
            self._world.post(self.name, f"m{number}", Assignment(self.leadership, str(self.leadership.master.member)))

    def hand_over(self, rng: random.Random) -> None:
        leadership = self.leadership
        if leadership is None or leadership.master is None:
            return
        targets = sorted(leadership.in_sync - {leadership.master})
        if targets:
            body = ("handover", rng.choice(targets), leadership)
            self._world.post(self.name, f"m{leadership.master.member}", body)

    def think(self, rng: random.Random) -> None:
        """Any of the permitted writes, sensible or not."""
        if self.leadership is None:
            self.plan = self._first()
            return
        makers = [self._promote, self._promote, self._answer, self._answer, self._remove]
        self.plan = rng.choice(makers)(self.leadership, rng) or self.plan

    def settle(self, rng: random.Random) -> None:
        """Without faults: the actions of a sensible operator."""
        leadership = self.leadership
        if leadership is None:
            self.plan = self._first()
            return
        master = self.reports.get(leadership.master.member) if leadership.master is not None else None
        if master is None:
            return
        leads = (
            master.role is Role.MASTER and master.member == leadership.master and master.order[0] == leadership.epoch
        )
        up_to_date = master.order == leadership.order
        if up_to_date and not leads:
            self.plan = self._promote(leadership, rng, best=True)
        elif leads and master.writes_paused:
            self.plan = Plan(leadership, leadership.touched(), "end the handover")
        elif leads:
            self.plan = self._stale(leadership) or self._answer(leadership, rng, refuse=False)
        elif master.member != leadership.master:
            self.plan = self._promote(leadership, rng, best=True)

    # ---- the writes

    def _first(self) -> Plan | None:
        reports = [self.reports[n] for n in sorted(self.reports)]
        # Rule 22: only when every disk reports that it is new.
        if len(reports) < len(self._world.members) or not all(r.empty for r in reports):
            return None
        members = frozenset(r.member for r in reports)
        return Plan(None, LeadershipRecord().promoted(reports[0].member, members), "first record")

    def _in_set(self, report: Report, leadership: LeadershipRecord) -> bool:
        return report.member in leadership.in_sync  # Rule 16.

    def _promote(self, leadership: LeadershipRecord, rng: random.Random, best: bool = False) -> Plan | None:
        able = [r for r in self.reports.values() if self._in_set(r, leadership)]
        if not able:
            return None
        new = max(able, key=lambda r: (r.position, -r.member.member)) if best else rng.choice(able)
        others = sorted(leadership.in_sync - {new.member})
        kept = others if best else [m for m in others if rng.random() < 0.6]  # Rule 20.
        return Plan(leadership, leadership.promoted(new.member, [new.member, *kept]), f"promote {new.member}")

    def _answer(self, leadership: LeadershipRecord, rng: random.Random, refuse: bool = True) -> Plan | None:
        master = self.reports.get(leadership.master.member) if leadership.master is not None else None
        if master is None or master.proposal is None or master.member != leadership.master:
            return None
        based = master.proposal.base_version == leadership.version and master.order[0] == leadership.epoch
        if not based:
            return None  # Rule 17: never rebased.
        if refuse and rng.random() < 0.3:
            return Plan(leadership, leadership.touched(), "refuse the proposal")
        return Plan(
            leadership, leadership.with_set(master.proposal.in_sync | leadership.in_sync), "record the proposal"
        )

    def _remove(self, leadership: LeadershipRecord, rng: random.Random) -> Plan | None:
        others = sorted(leadership.in_sync - ({leadership.master} if leadership.master is not None else set()))
        if not others:
            return None
        gone = rng.choice(others)
        return Plan(leadership, leadership.with_set(leadership.in_sync - {gone}), f"remove {gone}")

    def _stale(self, leadership: LeadershipRecord) -> Plan | None:
        """A former incarnation of a disk leaves the set, so that the new one can join."""
        lives: set[MemberId] = {r.member for r in self.reports.values()}
        gone = leadership.in_sync - lives
        return Plan(leadership, leadership.with_set(leadership.in_sync - gone), "remove former lives") if gone else None
