"""Follows a cluster for a live view: a status stream and a page of metrics of each member, and the platform's facts.

Each member has tasks of its own, so one that does not answer delays nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple

from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.failures import in_words
from gantry_operator.cluster.live import LiveCluster, LiveMember, MemberPlace, Page, View, read_page, view_of
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch

PAGE_S: Final = 2.0
"""Most seconds for a page of metrics."""
MAX_PAGE: Final = 64 << 20
"""Bytes of a page. One with the most series of every family has less."""


class Source(NamedTuple):
    """Where the figures come from."""

    client: httpx.AsyncClient
    """For the members' HTTP interface."""
    facts: Callable[[], Awaitable[LiveCluster]]
    facts_every_s: float
    failures: tuple[type[Exception], ...]
    """What `facts` may raise for a reason that may pass."""


class LiveWatch:
    """Use it as an async context manager: it follows the cluster meanwhile. `view` returns what is known."""

    def __init__(self, source: Source, interval_s: float) -> None:
        self._source = source
        self._interval_s = interval_s
        self._facts: LiveCluster | None = None
        self._problem = ""
        self._seen: dict[MemberPlace, tuple[MemberWatch, LiveMember]] = {}
        self._tasks: dict[MemberPlace, list[asyncio.Task[None]]] = {}
        self._main: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LiveWatch:
        """Begin. Raises what the first call of `facts` raises."""
        self._take(await self._source.facts())
        self._main = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*(t for ts in self._tasks.values() for t in ts), self._main)

    def view(self) -> View:
        assert self._facts is not None, "use it as a context manager"
        seen = []
        for place in self._facts.members:
            watch, member = self._seen[place]
            seen.append(replace(member, status=watch.status, problem=_problem(watch)))
        return view_of(self._facts, seen, time.monotonic(), self._problem)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._source.facts_every_s)
            try:
                self._take(await self._source.facts())
                self._problem = ""
            except self._source.failures as error:
                self._problem = in_words(error)

    def _take(self, facts: LiveCluster) -> None:
        """Follow exactly the members of these facts."""
        for place in set(self._tasks) - set(facts.members):
            for task in self._tasks.pop(place):
                task.cancel()
            del self._seen[place]
        for place in facts.members:
            if place not in self._tasks:
                watch = MemberWatch(place.name, place.url, self._source.client, lambda: None, time.monotonic)
                self._seen[place] = (watch, LiveMember(place))
                self._tasks[place] = [asyncio.create_task(watch.run()), asyncio.create_task(self._pages(place))]
        self._facts = facts

    async def _pages(self, place: MemberPlace) -> None:
        """Read one page in each interval. Never returns."""
        while True:
            page = await _page(self._source.client, place.url)
            watch, seen = self._seen[place]
            if page is not None:
                self._seen[place] = (watch, seen.with_page(page, time.monotonic()))
            await asyncio.sleep(self._interval_s)


def _problem(watch: MemberWatch) -> str:
    if watch.reach == "ok":
        return ""
    if watch.reach == "refused":
        return "connections are refused"
    return f"it does not answer ({watch.problem})" if watch.problem else "it has not answered yet"


async def _page(client: httpx.AsyncClient, url: str) -> Page | None:
    """Return the page of a member; None: it returns none now."""
    try:
        async with asyncio.timeout(PAGE_S), client.stream("GET", f"{url}/metrics") as answer:
            if answer.status_code != 200:
                return None
            parts: list[bytes] = []
            size = 0
            async for part in answer.aiter_bytes():
                size += len(part)
                if size > MAX_PAGE:
                    return None
                parts.append(part)
        return await asyncio.to_thread(lambda: read_page(b"".join(parts).decode("utf-8", "replace")))
    except (httpx.HTTPError, OSError, ValueError, TimeoutError):
        return None
