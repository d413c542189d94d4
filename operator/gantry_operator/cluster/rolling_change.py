"""Rolling changes of one cluster: replaces and removes members, one at a time, in the order of `plan.order`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from gantry_broker.tasks import set_within

from gantry_operator.cluster import upgrade_check
from gantry_operator.cluster.copies import Copies
from gantry_operator.cluster.group_controller import GroupController, SwitchoverFailed
from gantry_operator.cluster.platform import Deployment, Event, ReplacementPlatform
from gantry_operator.cluster.second_site import follows_archive
from gantry_operator.cluster.upgrade_check import Running, Upgrade
from gantry_operator.plan.order import MemberState, Step, next_step
from gantry_operator.plan.plan import FILLED

log = logging.getLogger(__name__)

STEP_S = 0.25
"""Between two rounds while a change is under way."""
IDLE_S = 1.0


def member_states(
    deployments: Sequence[Deployment], controller: GroupController, follows: bool | None = None
) -> list[MemberState]:
    """Return the members of a group for `plan.order`. A member that is being stopped counts as not in sync. `follows`:
    whether the first member follows a RocketMQ; None: the group does not copy one.

    The broker's own report counts more than the platform's view. A broker that serves is not broken, even if its
    kubelet has stopped or another container of its pod fails.
    """
    leadership = controller.leadership
    out = []
    for d in deployments:
        watch = controller.watches.get(d.number)
        report = watch.report if watch is not None and watch.reach == "ok" else None
        standby = report is not None and report.standby
        follows_it = standby and watch is not None and follows_archive(watch.status)
        serves = report is not None and (report.role == "Master" or report.link == "connected" or follows_it)
        works = report is not None and (report.role in ("Master", "Slave") or follows_it)
        in_sync = report is not None and (follows_it or controller.in_sync(report))
        if follows is not None:  # Before the cutover no member is ready for clients.
            in_sync = follows if d.number == FILLED else report is not None
        out.append(
            MemberState(
                name=d.name,
                number=d.number,
                outdated=d.outdated,
                ready=in_sync if follows is not None else works if d.ready is None else d.ready,
                in_sync=not d.stopping and in_sync,
                master=leadership is not None
                and leadership.master is not None
                and leadership.master.member == d.number,
                leaving=d.leaving,
                broken=d.broken and not serves,
                promotable=report is None or not report.not_promotable,
                standby=standby,
                copies=follows is not None,
            )
        )
    return out


def running_members(states: Sequence[MemberState], controller: GroupController) -> list[Running]:
    """Return the members of a group that answer, for `upgrade_check`."""
    out = []
    for state in states:
        watch = controller.watches.get(state.number)
        if watch is not None and watch.reach == "ok" and watch.status is not None:
            release = str(watch.status.get("release", ""))
            out.append(Running(state.name, release, state.outdated, watch.status.get("disk")))
    return out


class RollingChange:
    """The rolling changes of one cluster. `on_event` receives events; `on_news` is called when `progress` changes."""

    def __init__(
        self,
        platform: ReplacementPlatform,
        controllers: Mapping[str, GroupController],
        on_event: Callable[[Event], None],
        on_news: Callable[[], None] = lambda: None,
        hold: Callable[[], str] = lambda: "",
        upgrade: Callable[[str, Sequence[Running]], Upgrade | None] = lambda group, members: None,
        may_change: Callable[[], bool] = lambda: True,
        copies: Copies | None = None,
    ) -> None:
        """`may_change`: False while the cluster is paused or its spec is refused. `hold`: why changes that are not
        urgent have to wait now; empty: they need not. `upgrade`: whether the outdated members of a group get another
        version. `copies`: of a RocketMQ; None: there are none.
        """
        self.refused: dict[str, str] = {}
        """By group: why its members get no other version, though the spec says so."""
        self.progress: dict[str, str] = {}
        """By group: the step that is being done or waited for."""
        self.joining: set[str] = set()
        """Members added to a group that ran already, and replaced ones, until they are in sync."""
        self._platform = platform
        self._controllers = controllers
        self._on_event = on_event
        self._on_news = on_news
        self._hold = hold
        self._upgrade = upgrade
        self._may_change = may_change
        self._copies = copies
        self._requested = ""
        self._wake = asyncio.Event()

    @property
    def reason(self) -> str:
        """The steps in progress and the reasons of waits; empty: everything is as planned."""
        joining = [f"{name} is not in sync yet" for name in sorted(self.joining)]
        return self._requested or "; ".join([*self.progress.values(), *joining])

    def start(self, reason: str) -> None:
        """Begin the next round now. `reason` is reported until that round is done."""
        self._requested = reason
        self._wake.set()

    async def run(self) -> None:
        """Never returns. An exception becomes an event, and the next round follows."""
        while True:
            try:
                busy = await self.look_once()
            except Exception as error:
                log.exception("rolling change")
                self._on_event(Event("Warning", "RollingChangeFailed", f"{type(error).__name__}: {error}", ""))
                busy = True
            await set_within(self._wake, STEP_S if busy else IDLE_S)
            self._wake.clear()

    async def look_once(self) -> bool:
        """Carry out one round over all groups. True: there is more to do."""
        if not self._may_change():
            return False
        busy, existing = False, set[str]()
        for group in list(self._controllers):
            deployments = self._platform.deployments(group)
            if deployments is None:
                continue
            existing |= {d.name for d in deployments}
            busy = await self._step(group, deployments) or busy
        if not busy and not self.refused and not self._hold() and not self._cutover():
            busy = await self._platform.finish_change()
        self.joining &= existing
        for group in self.refused.keys() - set(self._controllers):
            del self.refused[group]
        if not self._wake.is_set():  # A change that came during this round is not done yet.
            self._requested = ""
        return busy or bool(self.joining)

    async def _step(self, group: str, deployments: Sequence[Deployment]) -> bool:
        """Take the next step of a group's change. False: there is none."""
        controller = self._controllers[group]
        todo = any(d.outdated or d.leaving or d.name in self.joining for d in deployments)
        follows = await self._copies.follows(controller) if todo and self._copies is not None else None
        states = member_states(deployments, controller, follows)
        self.joining -= {m.name for m in states if m.in_sync or m.leaving}
        step = next_step(states, controller.still_counted)
        if step.kind in ("replace", "handover") and not step.urgent and (cutover := self._cutover()):
            self._note(group, Step("wait", f"{step.member}: the change {cutover}"))
            return False
        requested = all(d.requested for d in deployments if d.outdated)
        # A member that does not work, or leaves, is held by nothing: the group lacks a copy until the step is done.
        if step.kind in ("replace", "handover") and not step.urgent and not any(m.leaving for m in states):
            held = "" if requested else self._hold()
            if held:
                outdated = ", ".join(m.name for m in states if m.outdated)
                self._note(group, Step("wait", f"{outdated}: the change {held}"))
                return False
        if self._refuses(group, step, states, controller):
            return False
        self._note(group, step)
        if step.kind == "replace":
            await self._replace(group, step, states, deployments)
        elif step.kind == "handover":
            number = next(s.number for s in states if s.name == step.to)
            try:
                # Not `force`: a user's request for another leader comes first.
                await controller.switchover(number, step.reason, force=False)
            except SwitchoverFailed as error:
                self._on_event(Event("Warning", "SwitchoverFailed", f"{error}; it is tried again", group))
        return step.kind != "done"

    def _cutover(self) -> str:
        """Why a change has to wait for the end of a cutover; empty: it need not."""
        return "" if self._copies is None else self._copies.hold()

    def _refuses(self, group: str, step: Step, states: Sequence[MemberState], controller: GroupController) -> bool:
        """Whether the step brings another version to a group that is not ready for it. A member that leaves, or does
        not work, may go.
        """
        why = ""
        if step.kind in ("replace", "handover") and not step.urgent and not any(m.leaving for m in states):
            members = running_members(states, controller)
            upgrade = self._upgrade(group, members)
            if upgrade is not None:
                why = upgrade_check.why_not(members, upgrade.target, upgrade.operator)
        elif step.kind == "wait" and group in self.refused:
            return True  # Members are away for a moment: what was refused stays so.
        if why == self.refused.get(group, ""):
            return bool(why)
        if why:
            self.refused[group] = why
            self._on_event(Event("Warning", "UpgradeRefused", why, group))
            self._note(group, Step("done", ""))
        else:
            del self.refused[group]
        self._on_news()
        return bool(why)

    async def _replace(
        self, group: str, step: Step, states: Sequence[MemberState], deployments: Sequence[Deployment]
    ) -> None:
        state = next(s for s in states if s.name == step.member)
        deployment = next(d for d in deployments if d.name == step.member)
        # A former master may still forward paused writes until the address has moved. A broken member forwards none.
        # A copy that has no master may still be the one to which a cutover led that was aborted.
        served = state.standby or state.copies
        moved = self._controllers[group].announced or state.master or state.broken or served
        if not self._platform.may_stop(deployment, group, address_moved=moved):
            return
        if deployment.leaving:
            self._on_event(Event("Normal", "RemovingMember", f"{state.name} leaves, its data stays", group))
            await self._platform.remove_member(group, state.name)
        else:
            self._on_event(Event("Normal", "ReplacingMember", f"{state.name}: {step.reason}", group))
            self.joining.add(state.name)
            await self._platform.replace_member(group, state.name)

    def _note(self, group: str, step: Step) -> None:
        if step.kind == "done":
            if self.progress.pop(group, None) is not None:
                self._on_news()
        elif self.progress.get(group) != step.reason:
            self.progress[group] = step.reason
            self._on_news()
