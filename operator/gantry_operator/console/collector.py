"""Asks a cluster's members in the background and keeps the snapshot that pages show.

A turn asks every member for its status at once: one request each. The tables of topics, groups and clients come from
the master of each broker group: one request for any number of topics. Requests for tables and for the resource run
beside the turns, so a broker that does not answer delays neither the others nor a page. Without a reader for a minute
it asks for the chart alone, every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import orjson
from gantry_broker.tasks import end_tasks, set_within

from gantry_operator.cluster.member_http import httpx
from gantry_operator.console.queue_holders import QueueHolders
from gantry_operator.console.recent_senders import RecentSenders
from gantry_operator.console.resends import Resends
from gantry_operator.console.rows import GroupTables, combine
from gantry_operator.console.snapshot import STEP_S, MemberSeen, Point, Snapshot, with_point
from gantry_operator.console.sources import MemberUrl, Source, SourceError

log = logging.getLogger(__name__)

TURN_S: Final = 1.0
STATUS_S: Final = 1.0
"""Seconds for a member's answer with its status."""
TABLES_S: Final = 20.0
"""Seconds for a master's tables."""
TABLES_EVERY_S: Final = 2.0
TABLES_SHARE: Final = 0.1
"""The share of the time for which a master works on tables, at most: large ones are asked for less often."""
RESOURCE_EVERY_S: Final = 10.0
"""The status of a local cluster sends a message to each group as a check, so not each turn."""
MAX_TABLES: Final = 256 * 1_048_576
"""Bytes of one answer with tables."""
IDLE_S: Final = 60.0
GROWTH_S: Final = 600.0
"""The growth of a log is measured over this time, at most."""


class Collector:
    """Keeps the snapshot of one cluster."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self._points: tuple[Point, ...] = ()
        self._recalled = False
        self.snapshot = Snapshot(source.key)
        self.holders = QueueHolders(source)
        self.senders = RecentSenders(source)
        self.resends = Resends(source)
        self.ended = False
        """The console ends."""
        self._clock = clock
        self._changed = asyncio.Condition()
        self._last_reader = clock()
        self._read = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._before: dict[str, GroupTables] = {}
        self._next_tables: dict[str, float] = {}
        self._next_resource = 0.0
        self._ends: dict[str, deque[tuple[float, int]]] = {}
        self._kept_at = clock()

    def reader(self) -> Snapshot:
        """Return the snapshot for a page, and note that somebody reads."""
        self._last_reader = self._clock()
        self._read.set()
        return self.snapshot

    async def wait(self, number: int, timeout_s: float) -> int:
        """Wait for a snapshot after this number, or for the end of the console. Returns the newest number."""
        self.reader()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.snapshot.number > number or self.ended)
        except TimeoutError:
            pass
        return self.snapshot.number

    async def end_streams(self) -> None:
        """Let pages that wait for news end: the console ends."""
        self.ended = True
        async with self._changed:
            self._changed.notify_all()

    async def run(self) -> None:
        """Collect until cancelled."""
        try:
            while True:
                read = self._clock() - self._last_reader <= IDLE_S or await self._is_read_again()
                began = time.monotonic()
                try:
                    await self._turn(read=read)
                except Exception:  # The console outlives any answer of a member.
                    log.exception("a turn of %s failed", self.source.key)
                await asyncio.sleep(max(TURN_S - (time.monotonic() - began), 0.1))
        finally:
            await end_tasks(*self._tasks.values())
            await self._keep()
            await self.holders.close()
            await self.senders.close()
            await self.resends.close()

    async def _is_read_again(self) -> bool:
        """Wait for a reader for as long as one older point of the chart stands for."""
        self._read.clear()
        return await set_within(self._read, STEP_S)

    async def first(self) -> None:
        """One turn, with everything that it begins: for a first page with figures."""
        await self._turn()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def publish(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, number=self.snapshot.number + 1, **changes)
        async with self._changed:
            self._changed.notify_all()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run beside the turns, one of each name at a time."""
        busy = self._tasks.get(name)
        if busy is not None and not busy.done():
            work.close()
            return
        self._tasks[name] = asyncio.create_task(work)

    async def _turn(self, *, read: bool = True) -> None:
        """Ask the members. `read`: somebody looks, so the resource is asked for as well."""
        now = self._clock()
        if not self._recalled:
            await self._recall(now)
        try:
            urls = await self.source.members()
        except SourceError as error:
            await self.publish(problem=str(error))
            return
        seen = await asyncio.gather(*(self._ask(url) for url in urls))
        members = {member.name: member for member in seen}
        roles = _roles(members)
        changed = roles != _roles(self.snapshot.members)
        self._measure(members)
        await self.publish(members=members, growth=self._growth())
        if read and (changed or now >= self._next_resource):
            self._next_resource = now + RESOURCE_EVERY_S
            self._start("resource", self._resource())
        address = {url.name: url.url for url in urls}
        for group, member in self.snapshot.serving().items():
            url = address[member.name]
            if now >= self._next_tables.get(group, 0.0):
                self._next_tables[group] = now + TABLES_EVERY_S
                self._start(f"tables/{group}", self._tables(group, url))

    async def _recall(self, now: float) -> None:
        """Put the points that were kept before those of this console. Before that, none may be written."""
        kept = await self.source.history.read(now)
        if kept is not None:
            self._recalled = True
            first = self._points[0].at if self._points else now
            self._points = (*(p for p in kept if p.at < first), *self._points)
            await self.publish(points=self._points)

    async def _keep(self) -> None:
        if self._recalled:
            self._kept_at = self._clock()
            await self.source.history.keep(self._points)

    async def _ask(self, member: MemberUrl) -> MemberSeen:
        before = self.snapshot.members.get(member.name)
        try:
            answer = await self.source.http.get(f"{member.url}/v1/status", timeout=STATUS_S)
            answer.raise_for_status()
            status = answer.json()
            if not isinstance(status, dict) or not {"role", "epoch", "version", "end", "member"} <= status.keys():
                raise ValueError("its status is none")
        except httpx.ConnectError:
            problem = "its process does not run"
        except (httpx.HTTPError, ValueError) as error:
            problem = f"it does not answer: {str(error) or type(error).__name__}"
        else:
            return MemberSeen(member.name, member.group, status, self._clock())
        return MemberSeen(
            member.name,
            member.group,
            None if before is None else before.status,
            0.0 if before is None else before.at,
            problem,
        )

    async def _resource(self) -> None:
        try:
            resource = await self.source.resource()
        except SourceError as error:
            await self.publish(problem=str(error))
        else:
            await self.publish(resource=resource, problem="")

    async def _tables(self, group: str, url: str) -> None:
        began = time.monotonic()
        try:
            answer = await self.source.http.get(f"{url}/v1/tables", timeout=TABLES_S)
            answer.raise_for_status()
            if len(answer.content) > MAX_TABLES:
                raise ValueError(f"more than {MAX_TABLES} bytes")
            part = GroupTables(self._clock(), await asyncio.to_thread(orjson.loads, answer.content))
            parts = {**self.snapshot.tables.parts, group: part}
            if group in self.snapshot.tables.parts:
                self._before[group] = self.snapshot.tables.parts[group]
            tables = await asyncio.to_thread(combine, parts, dict(self._before))
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.debug("tables of %s: %s", group, error)
            return
        finally:
            taken = time.monotonic() - began
            self._next_tables[group] = self._clock() + max(TABLES_EVERY_S - taken, taken / TABLES_SHARE - taken)
        if tables.received is not None and tables.sent is not None:
            self._points = with_point(self._points, Point(part.at, tables.received, tables.sent))
        await self.publish(tables=tables, points=self._points)
        if self._clock() - self._kept_at >= self.source.history.every_s:
            await self._keep()

    def _measure(self, members: dict[str, MemberSeen]) -> None:
        for name, member in members.items():
            if member.status is None or member.problem:
                continue
            ends = self._ends.setdefault(name, deque())
            end = int(member.status["end"])
            if ends and end < ends[-1][1]:
                ends.clear()  # Its log was truncated, or it is a new one.
            ends.append((member.at, end))
            while member.at - ends[0][0] > GROWTH_S:
                ends.popleft()

    def _growth(self) -> dict[str, tuple[float, float]]:
        growth = {}
        for name, ends in self._ends.items():
            seconds = ends[-1][0] - ends[0][0] if len(ends) > 1 else 0.0
            if seconds > 0:
                growth[name] = ((ends[-1][1] - ends[0][1]) / seconds, seconds)
        return growth


def _roles(members: Any) -> dict[str, tuple[str, int]]:
    return {
        name: ("", 0) if seen.problem or seen.status is None else (seen.status["role"], seen.status["epoch"])
        for name, seen in members.items()
    }
