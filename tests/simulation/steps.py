"""Steps of a seeded schedule that are the same in both modes."""

from __future__ import annotations

import random
from typing import Any


class Steps:
    """What a random schedule does to a world. The seed decides, so no step may draw more numbers than before."""

    rng: random.Random
    world: Any
    """`World`, or `RaftWorld`."""
    tracing: bool

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
