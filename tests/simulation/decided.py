"""The operator's real decisions (`gantry_operator.failover`) in the simulated world.

Its view is old, and sometimes wrong: a healthy member seems silent, a dead one seems to answer. Safety must not depend
on the view. After the faults, the view is correct, and the operator must bring the group back.
"""

from __future__ import annotations

import random
from typing import Any

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.replication.core import Role
from gantry_operator.failover.choose_leader import decide
from gantry_operator.failover.model import (
    Demote,
    FailoverSettings,
    FollowerView,
    HandoverReady,
    LinkState,
    MemberView,
    Observation,
    Promote,
    Reach,
    Report,
    RequestHandover,
    SendAssignment,
    Switchover,
    Wait,
)

from tests.simulation.operators import Operator, Plan
from tests.simulation.world import Message, World
from tests.simulation.world import Report as ObservedReport

DETECTION_MS = 2_000


class DecidingOperator(Operator):
    """An operator that decides with `decide`; see `operators.Operator` for the steps."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._seen: dict[int, tuple[ObservedReport, int]] = {}
        self._refused: dict[int, tuple[LeadershipRecord, str]] = {}
        self._assigned_at: dict[int, int] = {}
        self._ready: HandoverReady | None = None
        self._asked_at = -10_000
        self._wanted: Switchover | None = None

    def read(self) -> None:
        """An empty registry: earlier reports of the members may be older than the lost leadership record."""
        if self.leadership is not None and self._world.registry.leadership is None:
            self._seen.clear()
        self.leadership = self._world.registry.leadership

    def receive(self, message: Message) -> None:
        body: Any = message.body
        if isinstance(body, ObservedReport):
            self._seen[body.member.member] = (body, self._world.now)
        elif body[0] == "ready":
            _, target, leadership = body
            self._ready = HandoverReady(leadership.order, target)
        elif body[0] == "assigned":
            self._assigned_at[int(message.source[1:])] = self._world.now
            if not body[1]:
                self._refused[int(message.source[1:])] = (body[2], "it refused the assignment")

    def hand_over(self, rng: random.Random) -> None:
        """Request another master."""
        self._wanted = Switchover()

    def assign(self, number: int) -> None:
        """`decide` chooses the receivers; this sends the remaining assignments."""
        for decision in self._decide(random.Random(0), well=True):
            if isinstance(decision, SendAssignment | Demote) and decision.member == number:
                self._assigned_at[number] = self._world.now
                self._world.post(self.name, f"m{number}", decision.assignment)

    def think(self, rng: random.Random) -> None:
        self._act(rng, well=rng.random() < 0.5)

    def settle(self, rng: random.Random) -> None:
        self._wanted = None
        self._act(rng, well=True)

    # ---- inner parts

    def _act(self, rng: random.Random, *, well: bool) -> None:
        for decision in self._decide(rng, well=well):
            if isinstance(decision, SendAssignment | Demote):
                self._assigned_at[decision.member] = self._world.now
                self._world.post(self.name, f"m{decision.member}", decision.assignment)
            elif isinstance(decision, RequestHandover):
                self._asked_at = self._world.now
                self._world.post(self.name, f"m{decision.master}", ("handover", decision.target, decision.leadership))
            elif not isinstance(decision, Wait):
                handover = None
                if isinstance(decision, Promote):
                    if decision.kind in ("unproven", "unclean"):
                        self._world.checker.unclean()
                    if decision.kind == "handover" and decision.old is not None:
                        handover = (decision.old.member, decision.new.member)
                        self._wanted = None
                self._ready = None
                self.plan = Plan(self.leadership, decision.leadership, decision.reason, handover)

    def _decide(self, rng: random.Random, *, well: bool) -> list[Any]:
        world = self._world
        asked = 0 <= world.now - self._asked_at < 2_000 and self._ready is None
        return decide(
            Observation(
                "g",
                tuple(self._view(number, rng, well) for number in range(len(world.members))),
                self.leadership,
                FailoverSettings(async_flush=not world.options.sync_flush, min_in_sync=world.options.min_in_sync),
                self._wanted,
                self._ready,
                asked,
            )
        )

    def _view(self, number: int, rng: random.Random, well: bool) -> MemberView:
        world = self._world
        alive = world.members[number].alive
        report, age = self._report(number, rng, well)
        reach: Reach = "ok" if alive else "refused"
        if alive and age >= DETECTION_MS:
            reach = "silent"
        assigned_at = self._assigned_at.get(number)
        recent = assigned_at is not None and world.now - age <= assigned_at and world.now - assigned_at < DETECTION_MS
        if not well and rng.random() < 0.3:
            reach = rng.choice(("ok", "refused", "silent"))
        refused = self._refused.get(number)
        return MemberView(
            number,
            f"m{number}",
            str(number),
            report,
            age if reach == "ok" else 5_000,
            reach,
            5_000,
            pending=recent or self._is_assigning(number),
            gone=not well and rng.random() < 0.1,
            refused=refused[1] if refused is not None and refused[0] == self.leadership else "",
        )

    def _is_assigning(self, number: int) -> bool:
        """An assignment to the member, or its answer, is under way: the member's last report may be older than the
        assignment.
        """
        ends = {self.name, f"m{number}"}
        return any(
            {m.source, m.target} == ends and (isinstance(m.body, Assignment) or m.body[:1] == ("assigned",))
            for m in self._world.messages
            if isinstance(m.body, Assignment | tuple)
        )

    def _report(self, number: int, rng: random.Random, well: bool) -> tuple[Report | None, int]:
        if number not in self._seen:
            return None, 0
        seen, at = self._seen[number]
        link: LinkState = "none"
        master: MemberId | None = None
        if seen.role is Role.SLAVE and self.leadership is not None and self.leadership.master is not None:
            master = self.leadership.master
            link = "connected" if self._world.members[master.member].alive else "refused"
            if not well:
                link = rng.choice(("connected", "refused", "silent"))
        return (
            Report(
                seen.member,
                seen.role.value,
                seen.order[0],
                seen.order[1],
                seen.highest_seen_epoch,
                seen.log_trusted,
                seen.position[0],
                seen.position[1],
                seen.confirmed,
                seen.in_sync,
                seen.proposal,
                tuple(FollowerView(*f) for f in seen.followers),
                link,
                master,
                100 if link == "connected" else 5_000,
                seen.writes_paused,
            ),
            self._world.now - at,
        )
