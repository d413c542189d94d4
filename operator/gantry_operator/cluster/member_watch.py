"""Follows one member over its status stream: its last report, the arrival time, and the connection state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import orjson
from gantry_broker.protocol.plausible import MAX_TEXT

from gantry_operator.cluster.failures import in_words
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_messages import BadStatus, report_from
from gantry_operator.failover.model import Reach, Report

CONNECT_S = 1.0
SILENCE_S = 3.5
"""Seconds without a line after which the watch reconnects. The stream sends one line a second."""
QUIET_MS = 1_200
"""Seconds without contact between members after which every line wakes the loop. Contact is normal each second."""
MAX_DETAIL = 64 << 10
"""Bytes of an answer that is no stream, of which a text is read."""
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between attempts. The last value repeats."""


class MemberWatch:
    """Follows one member until cancelled. Calls `on_news` when a decision may be needed."""

    def __init__(
        self, name: str, url: str, client: httpx.AsyncClient, on_news: Callable[[], None], now: Callable[[], float]
    ) -> None:
        self.name = name
        self.url = url
        self.status: dict[str, Any] | None = None
        """The last line, as received."""
        self.report: Report | None = None
        self.line_at = now()
        """Arrival time of the last line, by the given clock."""
        self.former: tuple[Report, float] | None = None
        """The last report from another address of this member, and its time."""
        self.reach: Reach = "silent"
        self.reach_at = self.line_at
        self.problem = ""
        """Why it cannot be reached."""
        self.unusable = ""
        """Why its last line is unusable; empty: it is usable."""
        self._client = client
        self._now = now
        self._on_news = on_news

    @property
    def last(self) -> tuple[Report | None, float]:
        """The last report of the member at any address, and its time. Without a report: the start of the watch.

        A pod and its replacement have different addresses, but the member's promises remain valid.
        """
        return self.former if self.report is None and self.former is not None else (self.report, self.line_at)

    async def run(self) -> None:
        """Never returns. An exception is a programming error."""
        attempt = 0
        while True:
            heard_before = self.line_at
            try:
                await self._follow()
                self._lost("silent", "it ended the stream")
            except httpx.HTTPError as error:
                self._lost(_reach_of(error), in_words(error))
            except BadStatus as error:
                self._lost("silent", str(error))
            attempt = 0 if self.line_at > heard_before else attempt + 1
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    async def _follow(self) -> None:
        timeout = httpx.Timeout(CONNECT_S, read=SILENCE_S)
        async with self._client.stream("GET", f"{self.url}/v1/status/stream", timeout=timeout) as answer:
            if answer.status_code != 200:
                raise BadStatus(await _refusal(answer))
            rest = b""
            async for chunk in answer.aiter_raw():
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if line.strip():
                        self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            status = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise BadStatus(f"{self.url} sent no JSON: {error}") from error
        try:
            report = report_from(status)
        except BadStatus as error:
            self.unusable = str(error)
            raise
        self.unusable = ""
        if status.get("name") != self.name:
            raise BadStatus(
                f"{self.url} belongs to {status.get('name')} of {status.get('cluster')}, not to {self.name}"
            )
        calm = self.reach == "ok" and self.report is not None and says_nothing_new(self.report, report)
        self.line_at = self._now()
        self.status, self.report, self.problem = status, report, ""
        self._set_reach("ok")
        if not calm:
            self._on_news()

    def _lost(self, reach: Reach, problem: str) -> None:
        self.problem = problem
        if reach == "silent" and self.reach == "refused":
            # A closed port stays closed after an attempt that timed out.
            reach = "refused"
        self._set_reach(reach)
        self._on_news()

    def _set_reach(self, reach: Reach) -> None:
        if reach != self.reach:
            self.reach, self.reach_at = reach, self._now()


async def _refusal(answer: httpx.Response) -> str:
    """Return what a member says that is not ready for its role yet, such as the progress of its restore."""
    return what_it_does(await answer.aread()) or f"{answer.url} answered {answer.status_code}"


def what_it_does(body: bytes) -> str:
    """Return what the body of a refusal says; empty: nothing."""
    detail = ""
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        detail = str(orjson.loads(body[:MAX_DETAIL]).get("detail", ""))
    return detail[:MAX_TEXT]


def says_nothing_new(before: Report, now: Report) -> bool:
    """Return whether the line needs no decision: only offsets have moved, and all members hear each other. The next
    pass, within a second, reads it.
    """
    heard = (now.link_answer_ms, *(f.last_fetch_ms for f in now.followers))
    if any(ms >= QUIET_MS for ms in heard):
        return False
    return _decisive(before) == _decisive(now)


def _decisive(r: Report) -> tuple[object, ...]:
    roles = (
        r.id,
        r.role,
        r.epoch,
        r.version,
        r.highest_seen_epoch,
        r.log_trusted,
        r.last_epoch,
        r.in_sync,
        r.proposal,
        r.writes_paused,
        r.not_promotable,
        r.disk_full,
        r.standby,
        r.site_origin,
    )
    return (*roles, r.link, r.link_leader, frozenset(f.id for f in r.followers))


def _reach_of(error: BaseException) -> Reach:
    """Whether the port is closed. A broken connection alone proves little; the next attempt shows it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return "refused"
        if isinstance(seen, BaseExceptionGroup):
            return "refused" if all(_reach_of(e) == "refused" for e in seen.exceptions) else "silent"
        seen = seen.__cause__ or seen.__context__
    return "silent"
