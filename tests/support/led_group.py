"""A group's controller over members without connections, which accept every assignment and report it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_operator.cluster.member_client import MemberClient
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.cluster.stall_compensated_clock import StallCompensatedClock
from gantry_operator.failover.model import Report
from gantry_operator.registry.base import Entry, RegistryUnavailable

NO_HTTP: Final = cast(httpx.AsyncClient, None)
"""No request is sent."""
IDS: Final = tuple(MemberId(n, "x") for n in range(3))


def led_by(member: int, epoch: int = 1, count: int = 3) -> LeadershipRecord:
    """A record in which all members are in sync."""
    return LeadershipRecord(epoch, 1, IDS[member], frozenset(IDS[:count]))


class Place:
    """Members without processes: the platform of one group's controller."""

    def __init__(self, count: int = 3) -> None:
        self.planned = count
        self.gone: set[str] = set()
        self.known: dict[str, ProcessState] = {}
        self.events: list[Event] = []
        self.changes: list[Change] = []

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        return [MemberEndpoint(f"m{n}", n, f"http://m{n}", f"m{n}:1") for n in range(self.planned)]

    def process_state(self, name: str) -> ProcessState:
        return self.known.get(name, ProcessState(gone=name in self.gone))

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Sends no request."""

    def event(self, event: Event) -> None:
        self.events.append(event)

    def changed(self, change: Change) -> None:
        self.changes.append(change)


class Registry:
    """One record in memory."""

    def __init__(self, leadership: LeadershipRecord) -> None:
        self.leadership = leadership
        self.away = False
        self.reads = 0
        self.swap_s = 0.0
        self.unanswered = 0
        """This many swaps succeed without an answer."""

    async def read(self, group: str) -> Entry | None:
        self.reads += 1
        if self.away:
            raise RegistryUnavailable("it is away")
        return Entry(self.leadership)

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        assert expected == Entry(self.leadership)
        await asyncio.sleep(self.swap_s)
        self.leadership = new
        if self.unanswered:
            self.unanswered -= 1
            raise RegistryUnavailable("no answer")
        return True


class AcceptingMembers(MemberClient):
    """All members accept assignments after `send_s`. Handovers take `handover_s` and end as the test sets."""

    def __init__(self, wake: Callable[[], None], take: Callable[[int, LeadershipRecord], None]) -> None:
        super().__init__(NO_HTTP, wake, time.monotonic)
        self._take = take
        self.handovers: list[int] = []
        self.handover_s = 0.0
        self.send_s = 0.0
        self.answer: tuple[bool, str] = (True, "")
        self.handed_over: Callable[[MemberId], None] = lambda target: None

    def send_assignment(
        self, member: int, url: str, assignment: Assignment, then: Callable[[], None] | None = None
    ) -> None:
        if self.send_s:
            asyncio.get_running_loop().call_later(self.send_s, self._accept, member, assignment, then)
        else:
            self._accept(member, assignment, then)

    def _accept(self, member: int, assignment: Assignment, then: Callable[[], None] | None) -> None:
        self._accepted[member] = assignment
        self._take(member, assignment.leadership)
        if then is not None:
            then()

    async def handover(
        self, url: str, target: MemberId, leadership: LeadershipRecord, timeout_ms: int
    ) -> tuple[bool, str]:
        self.handovers.append(target.member)
        await asyncio.sleep(self.handover_s)
        self.handed_over(target)
        return self.answer


class ReportingMembers:
    """The members of a controller, which inherits from this first. A frozen one reports nothing, and its connection
    stays.
    """

    watches: dict[int, MemberWatch]
    wake: Callable[[], None]
    _clock: StallCompensatedClock
    _member_client: MemberClient

    def begin(self, leadership: LeadershipRecord, name: str = "m", count: int = 3) -> None:
        """All members report this record. `name`: theirs, without the number."""
        self.frozen: set[int] = set()
        for id in IDS[:count]:
            watch = MemberWatch(f"{name}{id.member}", f"http://{name}{id.member}", NO_HTTP, self.wake, self._clock.now)
            watch.reach = "ok"
            self.watches[id.member] = watch
        self.all_say(leadership)
        self._member_client = self.fake_members = AcceptingMembers(self.wake, self.say)

    def all_say(self, leadership: LeadershipRecord) -> None:
        for member in self.watches:
            self.say(member, leadership)

    def say(self, member: int, leadership: LeadershipRecord) -> None:
        """The member reports that it follows this record."""
        if member in self.frozen:
            return
        role: Any = "Master" if leadership.master == IDS[member] else "Slave"
        report = Report(
            IDS[member], role, leadership.epoch, leadership.version, leadership.epoch, end=1, in_sync=leadership.in_sync
        )
        self.watches[member].report = replace(report, last_epoch=leadership.epoch)
        self.wake()

    def _follow(self, endpoints: Sequence[MemberEndpoint]) -> None:
        """Their reports are known."""
        for number, watch in self.watches.items():
            if number not in self.frozen:
                watch.line_at = self._clock.now()
