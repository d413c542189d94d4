"""The preferred leader of each group, and in mode Raft leaders on different nodes.

Only a group that has been calm for a while changes its leader, one group at a time, by a handover.
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
from gantry_operator.cluster.platform import ProcessState

log = logging.getLogger(__name__)

CALM_S = 10.0
"""Seconds for which a group must have the same leader and all members answering before a handover."""
AGAIN_S = 30.0
"""Seconds after a failed handover before the next one."""
LOOK_S = 1.0
BEHIND_BYTES = 1 << 20
"""A member that lacks more bytes would delay writes during the handover."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One calm group. `able`: by number the node of each member that could lead now, the leader included; "":
    unknown.
    """

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
    """Return the one handover with a benefit, or None. Balancing needs a difference of two leaders, to prevent
    oscillation.
    """
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
    """Preferences of the spec. `preferred`: member number by group."""

    preferred: Mapping[str, int]
    spread: bool = False

    @classmethod
    def of(cls, spec: BrokerClusterSpec) -> LeaderPreference | None:
        """Return the preferences of this spec; None: no leader moves without a request."""
        if not spec.failover.automatic:
            return None
        preferred = {g.name: g.preferredMaster for g in spec.brokerGroups if g.preferredMaster is not None}
        return cls(preferred, spread=spec.mode == "Raft")


class LeaderBalancer:
    """The balancer of one cluster. `preference` is called at each look; None: no leader moves."""

    def __init__(
        self,
        controllers: Mapping[str, GroupController],
        preference: Callable[[], LeaderPreference | None],
        process_state: Callable[[str], ProcessState],
        failed: Callable[[str, str], None],
    ) -> None:
        """`failed(group, why)`: a handover failed, or the whole look failed (no group). Both are tried again."""
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
            except Exception as error:  # Look again in any case.
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
        calm = []
        for group, controller in self._controllers.items():
            standing = self._standing(group, controller, preference)
            epoch = 0 if standing is None or controller.leadership is None else controller.leadership.epoch
            if group not in self._since or self._since[group][0] != epoch:
                self._since[group] = (epoch, now)
            if standing is not None and now - self._since[group][1] >= CALM_S:
                calm.append(standing)
        return calm

    def _standing(self, group: str, controller: GroupController, preference: LeaderPreference) -> Standing | None:
        """Return the group's state for balancing; None: it is not calm, or a member is away."""
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
