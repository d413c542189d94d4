"""Who should lead where nobody has to: the member that the spec prefers, and in mode Raft leaders on different nodes.

Nothing is moved in a hurry: only a group that has been calm for a while, one at a time, by a planned hand-over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gantry_operator.api.spec import BrokerClusterSpec
from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.platforms.base import ProcessState

log = logging.getLogger(__name__)

CALM_S = 10.0
"""For so long the same one has led and everybody has answered before it is asked to hand over."""
AGAIN_S = 30.0
"""After a hand-over that failed."""
LOOK_S = 1.0
BEHIND_BYTES = 1 << 20
"""Who lacks more would let senders wait during the hand-over."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One calm group. `able`: by number the node of everybody who could lead now, the leader included; "": unknown."""

    group: str
    leader: int
    able: Mapping[int, str]
    preferred: int | None = None
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    group: str
    to: int
    reason: str


def next_move(groups: Sequence[Standing]) -> Move | None:
    """The one hand-over that is worth it. Spreading moves a leader only where the other node is better off by two, so
    that nothing moves to and fro."""
    for g in groups:
        if g.preferred is not None and g.preferred != g.leader and g.preferred in g.able:
            return Move(g.group, g.preferred, f"member {g.preferred} is preferred by the spec")
    leaders = Counter(g.able.get(g.leader, "") for g in groups)
    for g in groups:
        here = g.able.get(g.leader, "")
        if not here or not g.spread or g.preferred is not None:
            continue
        better = [(leaders[node], n, node) for n, node in g.able.items() if node and leaders[node] + 2 <= leaders[here]]
        if better:
            _, number, node = min(better)
            return Move(g.group, number, f"{here} has {leaders[here]} leaders, {node} {leaders[node]}")
    return None


@dataclass(frozen=True, slots=True)
class LeaderPreference:
    """What the spec says. `preferred`: by group a member's number."""

    preferred: Mapping[str, int]
    spread: bool = False

    @classmethod
    def of(cls, spec: BrokerClusterSpec) -> LeaderPreference | None:
        """None: nothing is to be moved by itself."""
        if not spec.failover.automatic:
            return None
        preferred = {g.name: g.preferredMaster for g in spec.brokerGroups if g.preferredMaster is not None}
        return cls(preferred, spread=spec.mode == "Raft")


class LeaderBalancer:
    """Of one cluster. `preference` is asked at each look; None: nothing is to be moved."""

    def __init__(
        self,
        controllers: Mapping[str, GroupController],
        preference: Callable[[], LeaderPreference | None],
        process_state: Callable[[str], ProcessState],
        failed: Callable[[str, str], None],
    ) -> None:
        """`failed(group, why)`: a hand-over did not come about, or all of this failed (no group); it is tried again."""
        self._controllers = controllers
        self._preference = preference
        self._process_state = process_state
        self._failed = failed
        self._since: dict[str, tuple[int, float]] = {}
        self._not_before = 0.0

    async def run(self) -> None:
        """Never returns; cancel it."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except Exception as error:  # It must look again all the same.
                log.exception("preferred masters")
                self._failed("", f"{type(error).__name__}: {error}")
                self._not_before = time.monotonic() + AGAIN_S

    async def _look(self) -> None:
        preference = self._preference()
        move = None if preference is None else next_move(self._standings(preference, time.monotonic()))
        if move is None or time.monotonic() < self._not_before:
            return
        try:
            await self._controllers[move.group].switchover(move.to, move.reason, force=False)
        except SwitchoverFailed as error:
            self._not_before = time.monotonic() + AGAIN_S
            self._failed(move.group, str(error))

    def _standings(self, preference: LeaderPreference, now: float) -> list[Standing]:
        found = []
        for group, controller in self._controllers.items():
            standing = self._standing(group, controller, preference)
            epoch = 0 if standing is None or controller.leadership is None else controller.leadership.epoch
            if group not in self._since or self._since[group][0] != epoch:
                self._since[group] = (epoch, now)
            if standing is not None and now - self._since[group][1] >= CALM_S:
                found.append(standing)
        return found

    def _standing(self, group: str, controller: GroupController, preference: LeaderPreference) -> Standing | None:
        """None: it is not calm, somebody is away."""
        leadership = controller.leadership
        if (
            leadership is None
            or leadership.master is None
            or controller.waits is not None
            or leadership.master.member not in controller.watches
        ):
            return None
        master = controller.watches[leadership.master.member].report
        if master is None or master.role != "Master":
            return None
        able = {}
        for number, watch in controller.watches.items():
            report, process_state = watch.report, self._process_state(watch.name)
            if report is None or watch.reach != "ok" or process_state.gone or process_state.deleting:
                return None
            if (
                report.id in leadership.in_sync
                and not report.not_promotable
                and report.end + BEHIND_BYTES >= master.end
            ):
                able[number] = process_state.node
        return Standing(group, leadership.master.member, able, preference.preferred.get(group), preference.spread)
