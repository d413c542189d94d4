"""What every loop over a group does: follow its members, look at once when there is news, report what fails.

A pass that raises is reported and followed by the next; a watch that died is made anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gantry_broker.replication.types import LeadershipRecord

from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_messages import impossible_epoch
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import FailoverSettings, Report, Switchover, Wait
from gantry_operator.platforms.base import Event, MemberEndpoint, Platform
from gantry_operator.registry import RegistryUnavailable

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""A pass at least this often."""
BUSY_S = 0.1
"""The same while something is not as it should be."""
EVENT_AFTER_S = 3.0
"""A moment's doubt is no event."""
LOOK_S = 0.02
HANDOVER_MS = 2_000
HANDOVER_AGAIN_S = 1.0
ANNOUNCE_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to announce one epoch; the last one is repeated."""


class SwitchoverFailed(Exception):
    """The reason, in words."""


class GroupController(ABC):
    """One group. `run` never returns; cancel it. All of it lives in one event loop."""

    def __init__(
        self,
        group: str,
        platform: Platform,
        client: httpx.AsyncClient,
        settings: Callable[[], FailoverSettings],
        clock: StallCompensatedClock | None = None,
    ) -> None:
        """`settings` is asked at each pass. Loops in one event loop should share one `clock`."""
        self.group = group
        self.watches: dict[int, MemberWatch] = {}
        self.waits: Wait | None = None
        """What the last pass waited for; None: all is well or being done."""
        self._platform = platform
        self._client = client
        self._settings = settings
        self._clock = clock if clock is not None else StallCompensatedClock()
        self._member_client = MemberClient(client, self.wake, self._clock.now)
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._manual_requests = 0
        """LeaderPreference of persons that wait for their turn."""
        self._problems: dict[str, str] = {}
        self._unusable_since: dict[int, float] = {}
        """By member: since when its reports cannot be used."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[int, asyncio.Task[None]] = {}
        self._noticed_at: float | None = None
        self._waits_since = 0.0
        self._wait_reported = False
        self._announced = 0
        self._announcement: tuple[int, asyncio.Task[None]] | None = None
        """The epoch that is being announced, or was last."""
        self._not_announced = (0, 0, 0.0)
        """The epoch whose announcement failed last, how often in a row, and when it is tried again."""
        self._unfinished = False

    # ---- from outside

    def wake(self) -> None:
        """Something happened that may have to be decided on."""
        self._news.set()

    def silence_s(self, member: int) -> float:
        """For how long nothing was heard of a member, by time in which this program listened."""
        return self._clock.now() - self.watches[member].line_at

    async def _next_look(self) -> None:
        """Look again now, and give that the time it takes. After a pass that failed the next one comes by itself: the
        registry is not asked without pause while it does not answer."""
        if "pass" not in self._problems:
            self.wake()
        await asyncio.sleep(LOOK_S)

    @property
    @abstractmethod
    def leadership(self) -> LeadershipRecord | None:
        """Who leads in which epoch, with which set; None: not known yet."""

    def in_sync(self, report: Report) -> bool:
        """The group does without another one while this one is there."""
        return self.leadership is not None and report.id in self.leadership.in_sync

    async def known_leadership(self, timeout_s: float = 15.0) -> LeadershipRecord:
        """The cell, as soon as it is known. Raises SwitchoverFailed."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            leadership = self.leadership
            if leadership is not None:
                return leadership
            await self._next_look()
        why = self.problem or (self.waits.reason if self.waits is not None else "nobody has answered yet")
        raise SwitchoverFailed(f"it is not known who leads {self.group}: {why}")

    @property
    def announced(self) -> bool:
        """The group's address leads to the master of the present cell, as far as this program has brought it about."""
        return self.leadership is not None and self._announced == self.leadership.epoch

    @property
    def still_counted(self) -> Sequence[int]:
        """Members that the plan has no more and that the group still counts in its majority (mode Raft)."""
        return ()

    @property
    def problem(self) -> str:
        """Why the last pass failed, or what else does not succeed; empty: nothing."""
        return next(iter(self._problems.values()), "")

    async def switchover(self, to: int | None, reason: str, *, force: bool = True, timeout_s: float = 15.0) -> str:
        """Hand over to member `to`, or to the best. Returns when the new master leads, with what was done in words.

        `force`: a person asks. There is one request at a time, so that nobody is given another's answer: a person waits
        for the turn, whoever else asks is to look again and to ask for what is right then.
        Raises SwitchoverFailed with the reason when it did not come about in time.
        """
        deadline = time.monotonic() + timeout_s
        if self._turn.locked() and not force:
            raise SwitchoverFailed(f"another hand-over of {self.group} is under way")
        self._manual_requests += force
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
        except TimeoutError:
            raise SwitchoverFailed(f"another hand-over of {self.group} took all the time") from None
        finally:
            self._manual_requests -= force
        try:
            return await self._perform_switchover(Switchover(to, reason, force), deadline)
        finally:
            self._turn.release()

    @abstractmethod
    async def _perform_switchover(self, request: Switchover, deadline: float) -> str:
        """As `switchover`, alone."""

    def _keep_waiting(self, request: Switchover, deadline: float, under_way: bool) -> bool:
        """Whether to wait for a request any longer. What is `under_way` comes about or fails in a moment, and whoever
        asked is told which. Raises SwitchoverFailed where a person's request comes first."""
        if under_way:
            return True
        if self._manual_requests and not request.force:
            raise SwitchoverFailed(f"a person has asked for another hand-over of {self.group}")
        return time.monotonic() < deadline

    @abstractmethod
    async def _pass(self) -> bool:
        """Look and act once. True: something was changed, so look again at once. `_unfinished` says whether something
        was found to do, which may have to be done again."""

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
            await self._member_client.close()

    async def _guarded_pass(self) -> bool:
        """A pass that raises must not be the last one: it is reported, and the next follows after a pause."""
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
        """Told once, until it is another one or was solved in between."""
        if problem != self._problems.get(about):
            self._event("Warning", "GroupControllerFailed", problem)
        self._problems[about] = problem

    def _solved(self, about: str) -> None:
        self._problems.pop(about, None)

    def _may_announce(self, epoch: int) -> bool:
        """It is still to be announced. What failed a moment ago has its pause, and what is under way may hang: neither
        keeps another epoch waiting."""
        failed, _, again_at = self._not_announced
        paused = failed == epoch and time.monotonic() < again_at
        last = self._announcement
        under_way = last is not None and last[0] == epoch and not last[1].done()
        return self._announced != epoch and not under_way and not paused

    def _announce(self, master: MemberEndpoint, epoch: int) -> asyncio.Task[None]:
        """In place of another epoch, if one is still being announced."""
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
        """Why nothing may be decided by what a member reports, in words, which are reported too; empty: it may.

        `recorded`: the epoch that is recorded, where one is known.
        """
        watch = self.watches[member]
        why = watch.unusable
        if not why and watch.report is not None and recorded is not None:
            why = impossible_epoch(watch.report, recorded)
        about = f"report-{member}"
        if why:
            self._unusable_since.setdefault(member, self._clock.now())
            if about not in self._problems:  # The value may be another one with each line.
                self._report_problem(about, f"{watch.name}: {why}")
        else:
            self._unusable_since.pop(member, None)
            self._solved(about)
        return why

    def _follow(self, endpoints: list[MemberEndpoint]) -> None:
        """One watch per member of the plan; a watch that died is made anew."""
        wanted = {e.member: e for e in endpoints}
        former: dict[int, tuple[Report, float]] = {}
        for number in list(self.watches):
            endpoint = wanted.get(number)
            task = self._following[number]
            if endpoint is not None and endpoint.http_url == self.watches[number].url and not task.done():
                continue
            if task.done() and not task.cancelled() and task.exception() is not None:
                name = self.watches[number].name
                self._event("Warning", "GroupControllerFailed", f"following {name} failed: {task.exception()!r}")
            task.cancel()
            report, heard_at = self.watches[number].last
            if report is not None:
                former[number] = (report, heard_at)
            del self.watches[number], self._following[number]
            self._unusable_since.pop(number, None)
            self._solved(f"report-{number}")
        for number, endpoint in wanted.items():
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
        """What is waited for becomes an event after this long."""
        return EVENT_AFTER_S

    def _changing(self) -> bool:
        """A change of the master is under way, whose beginning is still to be reported."""
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
