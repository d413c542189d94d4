"""The failover of one group as it runs: observe, decide, swap, tell, announce. The same for processes and for pods.

One pass reads the registry, puts together what the watches heard, asks `decide`, and carries the answer out. A pass
follows every piece of news at once and a timer otherwise. Swaps are awaited in the pass; what is told to members runs
beside it, so that one that does not answer holds nobody up. A pass that raises is reported and followed by the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gantry_broker.replication.types import Assignment, Cell, MemberId

from gantry_operator.failover.attention import AttentiveClock
from gantry_operator.failover.decide import decide
from gantry_operator.failover.http import httpx, make_client
from gantry_operator.failover.model import (
    AskHandover,
    Bootstrap,
    FailoverSettings,
    Fence,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    Switchover,
    Tell,
    Wait,
    Write,
)
from gantry_operator.failover.surroundings import Change, Event, MemberEndpoint, Surroundings
from gantry_operator.failover.teller import Teller
from gantry_operator.failover.watch import MemberWatch
from gantry_operator.registry import Entry, RegistryUnavailable, RoleRegistry

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""A pass at least this often."""
BUSY_S = 0.1
"""The same while something is not as it should be."""
TELL_WAIT_S = 3.0
"""What is waited for becomes an event after this long; a moment's doubt is none."""
HANDOVER_MS = 2_000
READY_S = 2.0
"""A hand-over that is ready is swapped within this time or ended; the master parks for longer."""
HANDOVER_AGAIN_S = 1.0
ANNOUNCE_AFTER_S = 1.0
"""The address moves after the old master has forwarded what it parked, but does not wait longer for it."""


class GroupLoop:
    """One group. `run` never returns; cancel it. All of it lives in one event loop."""

    def __init__(
        self,
        group: str,
        registry: RoleRegistry,
        surroundings: Surroundings,
        client: httpx.AsyncClient,
        settings: Callable[[], FailoverSettings],
        clock: AttentiveClock | None = None,
    ) -> None:
        """`settings` is asked at each pass. Loops in one event loop should share one `clock`."""
        self.group = group
        self.watches: dict[int, MemberWatch] = {}
        self.entry: Entry | None = None
        self.waits: Wait | None = None
        """What the last pass waited for; None: all is well or being done."""
        self.problem = ""
        """Why the last pass failed; empty: it did not."""
        self._registry = registry
        self._surroundings = surroundings
        self._client = client
        self._settings = settings
        self._clock = clock if clock is not None else AttentiveClock()
        self._teller = Teller(client, surroundings.token, self.wake, self._clock.now)
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[int, asyncio.Task[None]] = {}
        self._stalls: dict[MemberId, tuple[int, float]] = {}
        self._switchover: Switchover | None = None
        self._handover_asked = False
        self._handover_ready: tuple[HandoverReady, float] | None = None
        self._handover_not_before = 0.0
        self._handover_problem = ""
        self._noticed_at: float | None = None
        self._waits_since = 0.0
        self._waits_told = False
        self._pending_change: tuple[Promote, float] | None = None
        self._announced = 0
        self._announcing = False

    # ---- from outside

    def wake(self) -> None:
        """Something happened that may have to be decided on."""
        self._news.set()

    def silence_s(self, member: int) -> float:
        """For how long nothing was heard of a member, by time in which this program listened."""
        return self._clock.now() - self.watches[member].line_at

    @property
    def cell(self) -> Cell | None:
        return None if self.entry is None else self.entry.cell

    async def switchover(self, to: int | None, reason: str, *, force: bool = True, timeout_s: float = 15.0) -> str:
        """Hand over to member `to`, or to the best. Returns when the new master leads, with what was done in words.

        Raises SwitchoverFailed with the reason when it did not come about in time.
        """
        before = self.cell
        self._switchover = Switchover(to=to, reason=reason, force=force)
        self._handover_not_before, self._handover_problem = 0.0, ""
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                self.wake()
                await asyncio.sleep(0.02)
                cell = self.cell
                if self.waits is not None and self.waits.code == "switchover-done":
                    return self.waits.reason
                if cell is None or cell.master is None or (before is not None and cell.epoch <= before.epoch):
                    continue
                watch = self.watches.get(cell.master.member)
                if watch is not None and watch.report is not None and watch.report.order >= cell.order:
                    return f"{watch.name} leads {self.group} in epoch {cell.epoch}"
        finally:
            self._switchover = None
        said = self._handover_problem or (self.waits.reason if self.waits is not None else "") or self.problem
        raise SwitchoverFailed(said or f"no new master within {timeout_s:.0f} s")

    # ---- the loop

    async def run(self) -> None:
        self._clock.start()
        try:
            while True:
                again = await self._guarded_pass()
                if again:
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                self._news.clear()
        finally:
            self._clock.stop()
            for task in [*self._following.values(), *self._tasks]:
                task.cancel()
            await asyncio.gather(*self._following.values(), *self._tasks, return_exceptions=True)
            await self._teller.close()

    async def _guarded_pass(self) -> bool:
        """A pass that raises must not be the last one: it is reported, and the next follows after a pause."""
        try:
            again = await self._pass()
        except RegistryUnavailable as error:
            self._report_problem(f"the role registry does not answer: {error}")
            return False
        except Exception as error:
            log.exception("failover of group %s", self.group)
            self._report_problem(f"{type(error).__name__}: {error}")
            return False
        self.problem = ""
        return again

    def _report_problem(self, problem: str) -> None:
        if problem != self.problem:
            self._surroundings.event(Event("Warning", "FailoverLoopFailed", problem, self.group))
        self.problem = problem

    async def _pass(self) -> bool:
        """True: the cell was changed, so look again at once."""
        endpoints = list(self._surroundings.members(self.group))
        self._follow(endpoints)
        self.entry = await self._registry.read(self.group)
        obs = self.observe(endpoints)
        decisions = decide(obs)
        wait = next((d for d in decisions if isinstance(d, Wait)), None)
        self._note_wait(wait)
        for decision in decisions:
            if isinstance(decision, Tell | Fence):
                self._tell(obs, decision.member, decision.assignment)
            elif isinstance(decision, AskHandover):
                self._ask_handover(obs, decision)
            elif not isinstance(decision, Wait):
                return await self._write(obs, decision)
        await self._announce_if_due(endpoints)
        return False

    def observe(self, endpoints: list[MemberEndpoint]) -> Observation:
        """What is known at this moment."""
        now = self._clock.now()
        settings = self._settings()
        cell = self.cell
        views = []
        for e in endpoints:
            watch = self.watches[e.member]
            facts = self._surroundings.facts(e.name)
            age = int((now - watch.line_at) * 1000)
            reach, reach_ms = watch.reach, int((now - watch.reach_at) * 1000)
            if reach == "ok" and age >= settings.detection_ms:
                reach, reach_ms = "silent", age
            refused = "" if cell is None else self._teller.refusal(e.member, cell)
            views.append(
                MemberView(
                    number=e.member,
                    name=e.name,
                    address=e.replication_address,
                    report=watch.report,
                    age_ms=age,
                    reach=reach,
                    reach_ms=reach_ms,
                    gone=facts.gone,
                    deleting=facts.deleting,
                    never_ran=facts.never_ran,
                    pending=self._teller.pending(e.member, watch.line_at),
                    told_order=self._teller.told_order(e.member),
                    stalled_ms=self._stalled_ms(cell, watch, now),
                    refused=refused,
                )
            )
        ready = self._handover_ready
        if ready is not None and time.monotonic() > ready[1]:
            ready = self._handover_ready = None
        return Observation(
            group=self.group,
            members=tuple(views),
            cell=cell,
            settings=settings,
            switchover=self._switchover,
            handover=None if ready is None else ready[0],
            handover_asked=self._handover_asked,
        )

    def _stalled_ms(self, cell: Cell | None, follower: MemberWatch, now: float) -> int:
        """For how long a follower's acknowledged offset has stood still below its master's end."""
        if cell is None or cell.master is None or follower.report is None:
            return 0
        id = follower.report.id
        master = self.watches.get(cell.master.member)
        if master is None or master.report is None or id == cell.master or id not in cell.in_sync:
            self._stalls.pop(id, None)
            return 0
        acked = next((f.acked for f in master.report.followers if f.id == id), -1)
        known = self._stalls.get(id)
        if known is None or acked != known[0] or acked >= master.report.end:
            self._stalls[id] = (acked, now)
            return 0
        return int((now - known[1]) * 1000)

    # ---- acting

    async def _write(self, obs: Observation, write: Write) -> bool:
        if not await self._registry.swap(self.group, self.entry, write.cell):
            log.info("group %s: somebody else has written the cell; looking again", self.group)
            return True
        now = time.monotonic()
        self._handover_ready = None
        if isinstance(write, Promote):
            # It was asked for one change: without this the new master would be asked to hand over in turn.
            self._switchover = None
        name = {m.report.id: m.name for m in obs.members if m.report is not None}
        if isinstance(write, Promote):
            noticed = self._noticed_at if self._noticed_at is not None and write.kind != "handover" else now
            self._pending_change = (write, noticed)
            words = f"{name.get(write.new, write.new)} becomes master in epoch {write.cell.epoch}: {write.reason}"
            kind = "Normal" if write.kind in ("handover", "restart") else "Warning"
            self._event(kind, {"handover": "HandOver", "unclean": "UncleanFailover"}.get(write.kind, "Failover"), words)
        elif isinstance(write, Bootstrap | Recover):
            self._event("Normal", "Bootstrap" if isinstance(write, Bootstrap) else "RegistryRecovered", write.reason)
        else:
            self._event("Normal", type(write).__name__, write.reason)
        return True

    def _tell(self, obs: Observation, member: int, assignment: Assignment) -> None:
        watch = self.watches[member]
        is_master = assignment.cell.master is not None and assignment.cell.master.member == member
        then: Callable[[], None] | None = self._master_took_role if is_master else None
        self._teller.tell(member, watch.url, assignment, then)

    def _master_took_role(self) -> None:
        change = self._pending_change
        if change is None:
            return
        promoted, noticed = change
        self._pending_change, self._noticed_at = None, None
        names = {w.report.id: w.name for w in self.watches.values() if w.report is not None}
        numbers = {n: w.name for n, w in self.watches.items()}
        old = None if promoted.old is None else names.get(promoted.old, numbers.get(promoted.old.member))
        done = Change(
            group=self.group,
            old=old,
            new=names.get(promoted.new, numbers.get(promoted.new.member, str(promoted.new))),
            reason=promoted.reason,
            epoch=promoted.cell.epoch,
            at_unix_ms=time.time_ns() // 1_000_000,
            duration_ms=int((time.monotonic() - noticed) * 1000),
            planned=promoted.kind == "handover",
        )
        self._surroundings.changed(done)

    def _ask_handover(self, obs: Observation, ask: AskHandover) -> None:
        if self._handover_asked or time.monotonic() < self._handover_not_before:
            return
        self._handover_asked = True
        self._spawn(self._handover(ask, self.watches[ask.master].url))

    async def _handover(self, ask: AskHandover, url: str) -> None:
        try:
            ready, reason = await self._teller.handover(url, ask.target, ask.cell, HANDOVER_MS)
            if ready:
                expires = time.monotonic() + READY_S
                self._handover_ready = (HandoverReady(ask.cell.order, ask.target, ask.reason), expires)
            else:
                self._handover_not_before = time.monotonic() + HANDOVER_AGAIN_S
                self._handover_problem = reason
        finally:
            self._handover_asked = False
            self.wake()

    async def _announce_if_due(self, endpoints: list[MemberEndpoint]) -> None:
        cell = self.cell
        if cell is None or cell.master is None or self._announced == cell.epoch or self._announcing:
            return
        master = next((e for e in endpoints if e.member == cell.master.member), None)
        watch = self.watches.get(cell.master.member)
        if master is None or watch is None or watch.report is None:
            return
        leads = watch.report.id == cell.master and watch.report.role == "Master" and watch.report.epoch == cell.epoch
        if not leads or self._old_master_forwards(cell):
            return
        self._announcing = True
        self._spawn(self._announce(master, cell.epoch))

    def _old_master_forwards(self, cell: Cell) -> bool:
        """Rule 23: the address is announced after the parked sends are stored, in their order."""
        if self._announced == 0 or not self._teller.any_underway():
            return False
        parks = any(w.report is not None and w.report.parked and w.reach == "ok" for w in self.watches.values())
        return parks and self._teller.busy_for_s() < ANNOUNCE_AFTER_S

    async def _announce(self, master: MemberEndpoint, epoch: int) -> None:
        try:
            await self._surroundings.announce(self.group, master, epoch)
            self._announced = epoch
        except Exception as error:
            log.exception("announcing %s", master.name)
            self._report_problem(f"the address of {self.group} could not be moved: {error}")
            await asyncio.sleep(BUSY_S)
        finally:
            self._announcing = False
            self.wake()

    # ---- inner parts

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        """One watch per member of the plan; a watch that died is made anew."""
        wanted = {e.member: e for e in endpoints}
        for number in list(self.watches):
            endpoint = wanted.get(number)
            task = self._following[number]
            if endpoint is not None and endpoint.http_url == self.watches[number].url and not task.done():
                continue
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._report_problem(f"following {self.watches[number].name} failed: {task.exception()!r}")
            task.cancel()
            del self.watches[number], self._following[number]
        for number, endpoint in wanted.items():
            if number not in self.watches:
                watch = MemberWatch(endpoint.name, endpoint.http_url, self._client, self.wake, self._clock.now)
                self.watches[number] = watch
                self._following[number] = asyncio.create_task(watch.run())

    def _note_wait(self, wait: Wait | None) -> None:
        if wait is not None and not wait.available:
            if self._noticed_at is None:
                self._noticed_at = time.monotonic()
        elif wait is None and self._pending_change is None:
            self._noticed_at = None
        now = self._clock.now()
        if wait is None or self.waits is None or self.waits.code != wait.code:
            self._waits_since, self._waits_told = now, False
        elif not self._waits_told and now - self._waits_since >= TELL_WAIT_S:
            self._waits_told = True
            reason = "".join(part.capitalize() for part in wait.code.split("-"))
            self._event("Normal" if wait.available else "Warning", reason, wait.reason)
        self.waits = wait

    def _pause(self) -> float:
        now = self._clock.now()
        detection = self._settings().detection_ms / 1000
        if self.waits is not None or self.problem or any(w.reach != "ok" for w in self.watches.values()):
            return BUSY_S
        due = min((w.line_at + detection - now for w in self.watches.values()), default=IDLE_S)
        return min(IDLE_S, max(0.01, due + 0.005))

    def _event(self, kind: str, reason: str, message: str) -> None:
        self._surroundings.event(Event("Warning" if kind == "Warning" else "Normal", reason, message, self.group))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SwitchoverFailed(Exception):
    """The reason, in words."""


__all__ = ["GroupLoop", "SwitchoverFailed", "make_client"]
