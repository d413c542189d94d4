"""The common loop over one group: follow its members, look at once after news, report failures.

A pass that raises is reported, and the next pass follows. A member watch that ended is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.tasks import end_tasks, set_within

from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_messages import impossible_epoch
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Event, FailoverPlatform, MemberEndpoint
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings, Report, Switchover, Wait
from gantry_operator.registry.base import RegistryUnavailable

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""Longest pause in seconds between two passes."""
BUSY_S = 0.1
"""The same while the group is not healthy."""
EVENT_AFTER_S = 3.0
"""Seconds after which a wait becomes an event. Shorter doubts are not reported."""
LOOK_S = 0.02
HANDOVER_MS = 2_000
HANDOVER_AGAIN_S = 1.0
ANNOUNCE_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to announce one epoch. The last value repeats."""


class SwitchoverFailed(Exception):
    """A switchover did not complete. The text is the reason."""


class GroupController(ABC):
    """The controller of one group. `run` never returns; cancel it. It lives in one event loop."""

    def __init__(
        self,
        group: str,
        platform: FailoverPlatform,
        client: httpx.AsyncClient,
        settings: Callable[[], FailoverSettings],
        clock: StallCompensatedClock | None = None,
    ) -> None:
        """Set up for one group. `settings` is called in each pass. Controllers in one event loop should share one
        `clock`.
        """
        self.group = group
        self.watches: dict[int, MemberWatch] = {}
        self.waits: Wait | None = None
        """The reason why the last pass waited; None: the group is healthy or a change is in progress."""
        self._platform = platform
        self._client = client
        self._settings = settings
        self._clock = clock if clock is not None else StallCompensatedClock()
        self._member_client = MemberClient(client, self.wake, self._clock.now)
        self._news = asyncio.Event()
        self._switchover_lock = asyncio.Lock()
        self._manual_requests = 0
        """The switchover requests of users that wait for their turn."""
        self._problems: dict[str, str] = {}
        self._unusable_since: dict[int, float] = {}
        """By member: the time since which its reports are unusable."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[int, asyncio.Task[None]] = {}
        self._noticed_at: float | None = None
        self._waits_since = 0.0
        self._wait_reported = False
        self._announced = 0
        self._announcement: tuple[int, asyncio.Task[None]] | None = None
        """The epoch that is being announced, or was announced last."""
        self._not_announced = (0, 0, 0.0)
        """The epoch of the last failed announcement, the number of failures in a row, and the time of the next try."""
        self._unfinished = False

    # ---- called from outside

    def wake(self) -> None:
        """Wake the loop: an event may need a decision."""
        self._news.set()

    def silence_s(self, member: int) -> float:
        """Seconds since a member was last heard. Only time in which this program listened counts."""
        return self._clock.now() - self.watches[member].line_at

    async def next_look(self) -> None:
        """Look again now. Returns after the pass.

        After a failed pass the next one comes by itself. The registry is not read without a pause while it does not
        answer.
        """
        if "pass" not in self._problems:
            self.wake()
        await asyncio.sleep(LOOK_S)

    @property
    @abstractmethod
    def leadership(self) -> LeadershipRecord | None:
        """The present epoch, leader and in-sync set; None: not known yet."""

    def in_sync(self, report: Report) -> bool:
        """Return whether the group cannot spare this member if another one is away."""
        return self.leadership is not None and report.id in self.leadership.in_sync

    async def known_leadership(self, timeout_s: float = 15.0) -> LeadershipRecord:
        """Wait for the leadership record. Raises SwitchoverFailed."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            leadership = self.leadership
            if leadership is not None:
                return leadership
            await self.next_look()
        why = self.problem or (
            self.waits.reason if self.waits is not None else "the registry or the members have not answered yet"
        )
        raise SwitchoverFailed(f"the leader of {self.group} is not known: {why}")

    @property
    def announced(self) -> bool:
        """This program has moved the group's address to the leader of the present record."""
        return self.leadership is not None and self._announced == self.leadership.epoch

    @property
    def still_counted(self) -> Sequence[int]:
        """Removed members that the group still counts in its majority (mode Raft)."""
        return ()

    @property
    def blocking_wait(self) -> str:
        """Why the group has no working leader; empty: it has one, or nothing is known yet."""
        return self.waits.reason if self.waits is not None and not self.waits.available else ""

    @property
    def leader_watch(self) -> MemberWatch | None:
        """The watch of the leader; None: the leader is not known."""
        leadership = self.leadership
        leader = None if leadership is None else leadership.master
        return None if leader is None else self.watches.get(leader.member)

    @property
    def problem(self) -> str:
        """Why the last pass or another step failed; empty: no failure."""
        return next(iter(self._problems.values()), "")

    async def switchover(self, to: int | None, reason: str, *, force: bool = True, timeout_s: float = 15.0) -> str:
        """Hand over to member `to`, or to the best candidate. Returns a sentence about the result once the new leader
        leads.

        `force`: a user asks. One request runs at a time, so that each caller gets its own result. A user's request
        waits for its turn. Any other caller gets an error and must evaluate the group again. Raises SwitchoverFailed
        with the reason if the handover does not complete in time.
        """
        deadline = time.monotonic() + timeout_s
        if self._switchover_lock.locked() and not force:
            raise SwitchoverFailed(f"another switchover of {self.group} is under way")
        self._manual_requests += force
        try:
            async with asyncio.timeout(timeout_s):
                await self._switchover_lock.acquire()
        except TimeoutError:
            raise SwitchoverFailed(f"another switchover of {self.group} took too long") from None
        finally:
            self._manual_requests -= force
        try:
            return await self._perform_switchover(Switchover(to, reason, force), deadline)
        finally:
            self._switchover_lock.release()

    @abstractmethod
    async def _perform_switchover(self, request: Switchover, deadline: float) -> str:
        """Like `switchover`, while no other request runs."""

    def _keep_waiting(self, request: Switchover, deadline: float, under_way: bool) -> bool:
        """Whether to wait longer for a request. A handover that is `under_way` completes or fails in a moment.

        Raises SwitchoverFailed if a user's request comes first.
        """
        if under_way:
            return True
        if self._manual_requests and not request.force:
            raise SwitchoverFailed(f"a user has requested another switchover of {self.group}")
        return time.monotonic() < deadline

    @abstractmethod
    async def _pass(self) -> bool:
        """Look and act once. True: a change was made, so look again at once.

        `_unfinished` says whether the pass found work that may have to be repeated.
        """

    # ---- the loop

    async def run(self) -> None:
        self._clock.start()
        try:
            while True:
                again = await self._guarded_pass()
                if again:
                    continue
                await set_within(self._news, self._pause())
                self._news.clear()
        finally:
            self._clock.stop()
            await end_tasks(*self._following.values(), *self._tasks)
            await self._member_client.close()

    async def _guarded_pass(self) -> bool:
        """Look and act once. A pass that raises must not be the last one: report it, and start the next one after a
        pause.
        """
        try:
            again = await self._pass()
        except RegistryUnavailable as error:
            self._report_problem("pass", f"the role registry does not answer: {error}")
            return False
        except Exception as error:
            log.exception("failover of group %s", self.group)
            self._report_problem("pass", f"{type(error).__name__}: {error}")
            return False
        self._solved("pass")
        return again

    def _report_problem(self, about: str, problem: str) -> None:
        """Report a problem once, until it changes or is solved."""
        if problem != self._problems.get(about):
            self._event("Warning", "GroupControllerFailed", problem)
        self._problems[about] = problem

    def _solved(self, about: str) -> None:
        self._problems.pop(about, None)

    def _may_announce(self, epoch: int) -> bool:
        """Return whether the epoch is not announced yet, is not being announced now, and is not in the pause after a
        failure.

        An announcement under way may hang. Neither it nor a pause delays another epoch.
        """
        failed, _, again_at = self._not_announced
        paused = failed == epoch and time.monotonic() < again_at
        last = self._announcement
        under_way = last is not None and last[0] == epoch and not last[1].done()
        return self._announced != epoch and not under_way and not paused

    def _announce(self, master: MemberEndpoint, epoch: int) -> asyncio.Task[None]:
        """Announce this epoch. Cancels the announcement of another epoch."""
        if self._announcement is not None:
            self._announcement[1].cancel()
        task = asyncio.create_task(self._try_to_announce(master, epoch))
        self._announcement = (epoch, task)
        return task

    async def _try_to_announce(self, master: MemberEndpoint, epoch: int) -> None:
        try:
            await self._platform.announce(self.group, master, epoch)
            self._announced = epoch
            self._solved("address")
        except Exception as error:
            problem = f"the address of {self.group} could not be moved: {error}"
            if problem != self._problems.get("address"):
                log.warning("announcing %s: %r; it is tried again", master.name, error)
            self._report_problem("address", problem)
            before, failures, _ = self._not_announced
            failures = failures + 1 if before == epoch else 1
            pause = ANNOUNCE_AGAIN_S[min(failures, len(ANNOUNCE_AGAIN_S)) - 1]
            self._not_announced = (epoch, failures, time.monotonic() + pause)
        finally:
            self.wake()

    # ---- inner parts

    def _unusable(self, member: int, recorded: int | None) -> str:
        """Why a member's report must not influence decisions; empty: it may. The reason is also reported.
        `recorded`: the epoch in the registry, if known.
        """
        watch = self.watches[member]
        why = watch.unusable
        if not why and watch.report is not None and recorded is not None:
            why = impossible_epoch(watch.report, recorded)
        about = f"report-{member}"
        if why:
            self._unusable_since.setdefault(member, self._clock.now())
            if about not in self._problems:  # The value may change with each line.
                self._report_problem(about, f"{watch.name}: {why}")
        else:
            self._unusable_since.pop(member, None)
            self._solved(about)
        return why

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        """Keep one watch per member of the plan. A watch that ended is restarted."""
        planned = {e.member: e for e in endpoints}
        former: dict[int, tuple[Report, float]] = {}
        for number in list(self.watches):
            endpoint = planned.get(number)
            task = self._following[number]
            if endpoint is not None and endpoint.http_url == self.watches[number].url and not task.done():
                continue
            if task.done() and not task.cancelled() and task.exception() is not None:
                name = self.watches[number].name
                self._event("Warning", "GroupControllerFailed", f"following {name} failed: {task.exception()!r}")
            task.cancel()
            # A pod without an address is heard no more. An unclean failover counts what it had by its last report.
            report, heard_at = self.watches[number].last
            if report is not None:
                former[number] = (report, heard_at)
            del self.watches[number], self._following[number]
            self._unusable_since.pop(number, None)
            self._solved(f"report-{number}")
        for number, endpoint in planned.items():
            if number not in self.watches:
                watch = MemberWatch(endpoint.name, endpoint.http_url, self._client, self.wake, self._clock.now)
                watch.former = former.get(number)
                self.watches[number] = watch
                self._following[number] = asyncio.create_task(watch.run())

    def _note_wait(self, wait: Wait | None) -> None:
        if wait is not None and not wait.available:
            if self._noticed_at is None:
                self._noticed_at = time.monotonic()
        elif wait is None and not self._changing():
            self._noticed_at = None
        now = self._clock.now()
        if wait is None or self.waits is None or self.waits.code != wait.code:
            self._waits_since, self._wait_reported = now, False
        elif not self._wait_reported and now - self._waits_since >= self._patience_s():
            self._wait_reported = True
            reason = "".join(part.capitalize() for part in wait.code.split("-"))
            self._event("Normal" if wait.available else "Warning", reason, wait.reason)
        self.waits = wait

    def _patience_s(self) -> float:
        """Return after how many seconds a wait becomes an event."""
        return EVENT_AFTER_S

    def _changing(self) -> bool:
        """Return whether a change of the leader is in progress, and its start is not reported yet."""
        return False

    def _pause(self) -> float:
        now = self._clock.now()
        detection = self._settings().detection_ms / 1000
        if self.waits is not None or self.problem or self._unfinished:
            return BUSY_S
        if any(w.reach != "ok" for w in self.watches.values()):
            return BUSY_S
        due = min((w.line_at + detection - now for w in self.watches.values()), default=IDLE_S)
        return min(IDLE_S, max(0.01, due + 0.005))

    def _event(self, kind: str, reason: str, message: str) -> None:
        self._platform.event(Event("Warning" if kind == "Warning" else "Normal", reason, message, self.group))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
