"""Rolling changes of local processes: restarts those with an old config, and stops those that left the plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gantry_operator.cluster.platform import Deployment
from gantry_operator.plan.plan import MemberPlan, Plan
from gantry_operator.platforms.local.children import Children


class ProcessReplacement:
    """The `ReplacementPlatform` of one local cluster."""

    def __init__(
        self,
        children: Callable[[], Children],
        plan: Callable[[], Plan],
        leaving: Callable[[], dict[str, MemberPlan]],
        bring_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`leaving`: running members outside the plan, by name. A removed member is deleted from it. `bring_up`
        starts the planned processes.
        """
        self._children = children
        self._plan = plan
        self._leaving = leaving
        self._bring_up = bring_up

    def deployments(self, group: str) -> list[Deployment]:
        planned = [m for m in self._plan().members if m.group == group]
        leaving = [m for m in self._leaving().values() if m.group == group]
        return [
            self._deployment(m, m.name in self._leaving()) for m in sorted(planned + leaving, key=lambda m: m.number)
        ]

    def may_stop(self, deployment: Deployment, group: str, *, address_moved: bool) -> bool:
        return True  # A former master gives up the group's port before another member leads.

    async def replace_member(self, group: str, name: str) -> None:
        await self._children().replace(name)

    async def remove_member(self, group: str, name: str) -> None:
        await self._children().remove(name)
        if self._leaving().pop(name, None) is None:
            await self._bring_up()  # A later change of the spec contains the member again.

    async def finish_change(self) -> bool:
        """NameServers and proxies change after the brokers: outdated ones restart, surplus ones stop."""

        def planned() -> set[str]:
            return {s.name for s in self._plan().name_servers} | {p.name for p in self._plan().proxies}

        names_planned = planned()
        members = {m.name for m in self._plan().members} | set(self._leaving())
        for name, child in list(self._children().table.items()):
            if name in members:
                continue
            if name not in names_planned:
                await self._children().remove(name)
                if name in planned():
                    await self._bring_up()
            elif child.outdated:
                await self._children().replace(name)
        return False

    def _deployment(self, member: MemberPlan, leaving: bool) -> Deployment:
        child = self._children().table.get(member.name)
        changed = child is not None and child.outdated
        requested = child is not None and child.record is not None and child.restart_requested
        return Deployment(
            member.name,
            member.number,
            outdated=changed or requested,
            leaving=leaving,
            requested=requested and not changed,
        )
