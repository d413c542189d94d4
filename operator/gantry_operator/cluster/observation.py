"""The observation of a cluster for its status, and which part of it is not known yet after a start of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.observed import ObservedMember
from gantry_operator.cluster.platform import MemberProcess

WARM_UP_S = 20.0
"""Seconds after a start in which nothing is said about members and objects that were not seen yet."""


def observed_members(
    members: Iterable[tuple[str, int, str]],
    controllers: Mapping[str, GroupController],
    process: Callable[[str, str], MemberProcess],
) -> list[ObservedMember]:
    """`members`: group, number and name. `process`: see `Platform.process`."""
    out = []
    for group, number, name in members:
        controller = controllers.get(group)
        watch = None if controller is None else controller.watches.get(number)
        heard = watch is not None and watch.reach == "ok" and watch.status is not None and watch.report is not None
        leadership = None if controller is None else controller.leadership
        report = watch.report if watch is not None and heard else None
        state = process(name, "" if watch is None else watch.problem)
        out.append(
            ObservedMember(
                name=name,
                group=group,
                number=number,
                status=watch.status if watch is not None and heard else None,
                # A member that serves is ready, whatever a platform's probe says that may be gone.
                pod_ready=state.ready or (heard and not state.stopping),
                node=state.node,
                in_sync=None if controller is None or report is None else controller.in_sync(report),
                master=leadership is not None and leadership.master is not None and leadership.master.member == number,
                problem=state.problem,
            )
        )
    return out


class WarmUp:
    """What a process that takes over a cluster does not know yet. `inherited`: another one has written a status, which
    holds until there are data.
    """

    def __init__(self, *, inherited: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._inherited = inherited
        self._now = now
        self.begun = now()
        self._known: set[str] = set()
        """Groups of which there were data."""

    @property
    def left_s(self) -> float:
        """Seconds until it is over."""
        return max(0.0, self.begun + WARM_UP_S - self._now())

    @property
    def just_begun(self) -> bool:
        return self._now() <= self.begun + WARM_UP_S

    def blind(
        self, groups: Collection[str], with_result: Collection[str], controllers: Mapping[str, GroupController]
    ) -> frozenset[str]:
        """Return the groups of which nothing is known yet: no check has ended, and what its controller waits for may
        only be the first reports of the members. `with_result`: groups with a result.
        """
        if not self._inherited:
            return frozenset()
        self._known |= set(with_result)
        if not self.just_begun:
            # By now each member has answered or has a reason why not, so a wait says something.
            self._known |= {
                group
                for group, controller in controllers.items()
                if controller.blocking_wait
                and all(w.status is not None or w.problem for w in controller.watches.values())
            }
        return frozenset(set(groups) - self._known)

    def is_silent(self, members: Collection[ObservedMember], blind: Collection[str]) -> bool:
        """Nothing is to be said yet, since another process's status is there and this one has no data."""
        if not self.just_begun or not self._inherited:
            return False
        return not members or any(m.status is None for m in members) or bool(blind)
