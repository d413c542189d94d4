"""Planned changes of running processes, one at a time in the planner's order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from gantry_operator.cluster.group_controller import SwitchoverFailed
from gantry_operator.plan import MemberState, Step, next_step
from gantry_operator.platforms.local.port_claims import take_turn

if TYPE_CHECKING:
    from gantry_operator.platforms.local.supervisor import Supervisor

STEP_S = 0.25
IDLE_S = 2.0


class Rolling:
    """Replaces what runs with an older config, and ends what the plan has no more."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self.reason = ""
        """What is being done or waited for; empty: everything is as planned."""
        self.joining: set[str] = set()
        """Members that have come to a group and are not in sync yet."""
        self._now = asyncio.Event()

    def start(self, reason: str) -> None:
        """Something changed: look at once, and count as busy until then."""
        self.reason = reason
        self._now.set()

    async def run(self) -> None:
        """Never returns. What raises is reported, and the next round follows."""
        while True:
            try:
                busy = await self._round()
            except Exception as error:
                self._s.events.add("Warning", "RollingFailed", f"{type(error).__name__}: {error}", "cluster")
                busy = True
            with suppress(TimeoutError):
                async with asyncio.timeout(STEP_S if busy else IDLE_S):
                    await self._now.wait()
            self._now.clear()

    async def _round(self) -> bool:
        """True: there is more to do."""
        reasons = []
        for group in list(self._s.controllers):
            states = self._states(group)
            step = next_step(states, self._s.controllers[group].still_counted)
            if step.kind != "done":
                reasons.append(step.reason)
                await self._do(group, step)
            self.joining -= {m.name for m in states if m.in_sync or m.leaving}
        if not reasons:
            await self._name_servers()
        self.joining &= {m.name for m in self._s.plan.members}
        reasons += [f"{name} has not joined its group yet" for name in sorted(self.joining)]
        if not self._now.is_set():  # What has come meanwhile is looked at in the next round.
            self.reason = "; ".join(reasons)
        return bool(reasons)

    def _states(self, group: str) -> list[MemberState]:
        s = self._s
        controller = s.controllers[group]
        cell = controller.cell
        states = []
        for endpoint in s.members(group):
            watch = controller.watches.get(endpoint.member)
            report = None if watch is None or watch.reach != "ok" else watch.report
            child = s.children.table.get(endpoint.name)
            states.append(
                MemberState(
                    name=endpoint.name,
                    number=endpoint.member,
                    outdated=child is not None and child.outdated,
                    ready=report is not None and report.role in ("Master", "Slave"),
                    in_sync=report is not None and controller.in_sync(report),
                    master=cell is not None and report is not None and report.id == cell.master,
                    leaving=endpoint.name in s.leaving,
                    fit=report is None or not report.unfit,
                )
            )
        return states

    async def _do(self, group: str, step: Step) -> None:
        s = self._s
        if step.kind == "replace" and step.member is not None:
            s.events.add("Normal", "Replacing", step.reason, step.member)
            if step.member in s.leaving:
                await s.children.remove(step.member)
                if s.leaving.pop(step.member, None) is None:
                    # The spec was changed meanwhile, and has it again.
                    s.bring_up(await asyncio.to_thread(take_turn))
            else:
                await s.children.replace(step.member)
        elif step.kind == "handover" and step.to is not None:
            number = s.plan.member(step.to).number
            try:
                await s.controllers[group].switchover(number, step.reason, force=False)
            except SwitchoverFailed as error:
                s.events.add("Warning", "HandOverFailed", str(error), f"group {group}")

    async def _name_servers(self) -> None:
        """After the brokers know the new ones: changed ones anew, surplus ones away."""
        s = self._s
        wanted = {server.name for server in s.plan.name_servers}
        members = {m.name for m in s.plan.members} | set(s.leaving)
        for name, child in list(s.children.table.items()):
            if name in members:
                continue
            if name not in wanted:
                await s.children.remove(name)
                if name in {server.name for server in s.plan.name_servers}:
                    s.bring_up(await asyncio.to_thread(take_turn))
            elif child.outdated:
                await s.children.replace(name)
