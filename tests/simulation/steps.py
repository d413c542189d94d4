"""Steps of a seeded schedule that are the same in both modes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gantry_broker.protocol.codes import SendStatus

from tests.simulation.checker import Violation

SILENT: Callable[[str], None] = lambda text: None  # noqa: E731
"""A trace that is not kept."""


class Steps:
    """What a random schedule does to a world. The seed decides, so no step may draw more numbers than before."""

    rng: random.Random
    world: Any
    """`World`, or `RaftWorld`."""
    tracing: bool
    steps: int

    def run(self) -> None:
        """Raise Violation when the schedule finds one."""
        raise AssertionError("each mode runs in its own way")

    def violation(self) -> Violation | None:
        """Run the schedule; returns the violation that it found."""
        try:
            self.run()
        except Violation as violation:
            return violation
        return None

    def end(self) -> list[str]:
        """Run the schedule; returns the last lines of its trace."""
        violation = self.violation()
        if violation is None:
            return ["no violation"]
        return [self.world.draw(), f"VIOLATION after {self.steps} steps: {violation}"]

    def _say(self, text: str) -> None:
        if self.tracing:
            self.world.trace(f"{self.world.now:6} {text}")

    def _member(self) -> Any:
        return self.rng.choice(self.world.members)

    def _deliver(self, *, keep: bool = False) -> None:
        raise AssertionError("each mode delivers in its own way")

    def _duplicate(self) -> None:
        self._deliver(keep=True)

    def _forward(self) -> None:
        self.world.forward(self._member())

    def _flush(self) -> None:
        member = self._member()
        self._say(f"{member.name} flushes")
        self.world.flush(member)

    def _tick(self) -> None:
        self.world.tick(self._member())

    def _kill(self) -> None:
        member = self._member()
        if member.alive:
            self._say(f"{member.name} is killed")
            member.crash(lose_tail=False)

    def _arm(self) -> None:
        member = self._member()
        if member.alive and member.power.countdown is None:
            member.power.countdown = self.rng.randrange(6)

    def _hibernate(self) -> None:
        self._say("the group hibernates")
        self.world.hibernate()

    def _resume(self) -> None:
        for member in self.world.members:
            member.paused = False

    # ---- after the faults

    def _round(self) -> None:
        raise AssertionError("each mode has its own round")

    def _calm(self) -> bool:
        raise AssertionError("each mode is calm in its own way")

    def _given_up(self) -> bool:
        """Whether nothing can be asked of the group any more."""
        return False

    def _calm_within(self, rounds: int, patience: int) -> None:
        """Rounds without faults until the group is calm and acknowledged a new message, which is sent again after
        some rounds. Raise Violation when that takes too long.
        """
        world = self.world
        sent, sent_in = 0, -patience - 1
        for turn in range(rounds):
            self._round()
            answer = world.answers.get(sent)
            if answer is SendStatus.SEND_OK and self._calm():
                for member in world.members:
                    world.checker.look_whole(member)
                return
            if self._given_up():
                return
            if answer is not SendStatus.SEND_OK and turn - sent_in > patience:
                sent, sent_in = world.next_id, turn
                world.client_send()
        raise Violation(f"no calm after {rounds} rounds without faults:\n{world.draw()}")
