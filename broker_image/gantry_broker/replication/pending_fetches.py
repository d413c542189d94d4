"""The leader's edge: pending fetches, and the throttle of followers that catch up.

The leader holds a fetch at the end of the log. It answers once records are appended, a little later once more is
confirmed (the next records usually carry that along), and with an empty answer after `HOLD_S`. A follower that lacks
much gets chunks, and waits between them while producers send (see `pace.py`). A follower that is not needed for the
quorum gets what was appended within `GATHER_S` at once: each round of fetches costs all members CPU time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.replication import wire
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer
from gantry_broker.replication.pace import Pace

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)

HOLD_S: Final = 1.0
"""Seconds for which the leader holds a fetch; followers wait longer before they take the leader for silent."""
NEWS_S: Final = 0.03
"""Seconds for which a new confirmed offset waits for records to travel with."""
GATHER_S: Final = 0.003
"""Seconds for which records wait for more, for a follower outside the quorum; it replaces a stopped member that much
later.
"""
CATCH_UP_BYTES: Final = 4 << 20
"""A follower that lacks more than this catches up, and is throttled while producers send."""
BUSY_S: Final = 0.25
"""Producers count as active for this long after the last append."""


class PendingFetch:
    """One fetch that waits for its answer."""

    __slots__ = ("conn", "empty_at", "fetch", "gathered", "news_at", "not_before", "request")

    def __init__(
        self, conn: Connection, request: Frame, fetch: Fetch, now: float, hold_s: float, not_before: float
    ) -> None:
        self.conn = conn
        self.request = request
        self.fetch = fetch
        self.not_before = not_before
        self.gathered = False
        self.news_at = now + NEWS_S
        self.empty_at = now + hold_s


class PendingFetches:
    """The fetches that wait at this leader, one for each member.

    `ask(fetch, news, empty)` returns an answer or None. `held(member, waiting)` notifies the core of a waiting member.
    `beyond_quorum(fetch)`: others will acknowledge sooner, and they are enough. `soon(at, size)`: the next read of the
    log. `unreadable(at)`: the log could not be read there.
    """

    def __init__(
        self,
        ask: Callable[[Fetch, bool, bool], FetchAnswer | None],
        held: Callable[[MemberId, bool], None],
        has_news: Callable[[Fetch], bool],
        log_end: Callable[[], int],
        beyond_quorum: Callable[[Fetch], bool],
        soon: Callable[[int, int], None],
        unreadable: Callable[[int], None],
        hold_s: float = HOLD_S,
    ) -> None:
        self._hold_s = hold_s
        self._ask = ask
        self._held_changed = held
        self._has_news = has_news
        self._log_end = log_end
        self._beyond_quorum = beyond_quorum
        self._soon = soon
        self._unreadable = unreadable
        self._held: dict[MemberId, PendingFetch] = {}
        self._catching_up: dict[int, float] = {}
        self._paces: dict[int, Pace] = {}
        self._appended_at = 0.0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def take(self, conn: Connection, request: Frame, fetch: Fetch, answer: FetchAnswer | None) -> None:
        """Send `answer`; None: answer with what there is now, or hold the fetch."""
        now = self._loop.time()
        if answer is not None:
            self._answer(conn, request, answer)
            return
        former = self._held.get(fetch.member)
        if former is not None and former.conn is conn and former.request.opaque != request.opaque:
            self._answer_anyhow(former)
        self._held[fetch.member] = PendingFetch(
            conn, request, fetch, now, self._hold_s, self._catching_up.pop(fetch.member.member, 0.0)
        )
        self._held_changed(fetch.member, True)
        self._serve()

    def lacks_much(self, fetch: Fetch) -> bool:
        return self._log_end() - fetch.end > CATCH_UP_BYTES

    def appended(self) -> None:
        """Note an append: every held fetch gets an answer, once per pass of the event loop."""
        self._appended_at = self._loop.time()
        self.wake()

    def wake(self) -> None:
        """Note a change: check the held fetches in the next pass of the event loop."""
        if self._held and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def confirmed(self) -> None:
        """Note a newer confirmed offset: a held fetch gets it after `NEWS_S`, if no records come before."""
        if not self._scheduled:
            self._set_timer(self._loop.time())

    def connection_lost(self, conn: Connection) -> None:
        for member, held in list(self._held.items()):
            if held.conn is conn:
                del self._held[member]
                self._held_changed(member, False)

    def close(self) -> None:
        """Answer all held fetches; hold none after that."""
        self._closed = True
        for held in list(self._held.values()):
            self._answer_anyhow(held)
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        """Run what the timer is due for. The loop counts whole milliseconds and may call a little early; the
        scheduled time counts, or the fetch would stay unanswered.
        """
        self._timer = None
        self._serve(self._timer_at)

    def _serve(self, at_least: float = 0.0) -> None:
        self._scheduled = False
        now = max(self._loop.time(), at_least)
        for member, held in list(self._held.items()):
            if held.not_before > now:
                continue
            if not held.gathered and held.fetch.end < self._log_end() and self._beyond_quorum(held.fetch):
                held.gathered, held.not_before = True, now + GATHER_S
                continue
            # Reads for a follower far behind share the event loop with the sends: without pauses those would wait.
            throttled = self.lacks_much(held.fetch) and now - self._appended_at < BUSY_S
            started = time.perf_counter()
            try:
                answer = self._ask(held.fetch, held.news_at <= now, held.empty_at <= now or self._closed)
            except (ValueError, OSError) as error:
                # A fetch that cannot be read must not block the answers to the others.
                del self._held[member]
                self._held_changed(member, False)
                self._give_up(held, error)
                continue
            if answer is None:
                continue
            del self._held[member]
            self._answer(held.conn, held.request, answer)
            if not answer.data or not self.lacks_much(held.fetch):
                continue
            self._soon(held.fetch.end + len(answer.data), len(answer.data))
            if throttled:
                took = time.perf_counter() - started
                pace = self._paces.setdefault(member.member, Pace())
                self._catching_up[member.member] = pace.due(now, took, len(answer.data), self._log_end())
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if not self._held or self._closed:
            return
        end = self._log_end()
        at = min(
            held.not_before
            if held.fetch.end < end and held.not_before > now
            else (max(held.news_at, now) if self._has_news(held.fetch) else held.empty_at)
            for held in self._held.values()
        )
        if self._timer is not None and now < self._timer_at <= at and not self._timer.cancelled():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._due)

    def _answer_anyhow(self, held: PendingFetch) -> None:
        try:
            answer = self._ask(held.fetch, True, True)
        except (ValueError, OSError) as error:
            self._give_up(held, error)
            return
        if answer is not None:
            self._answer(held.conn, held.request, answer)

    def _give_up(self, held: PendingFetch, error: Exception) -> None:
        fetch = held.fetch
        log.error("the log cannot be read from %d on, which %s needs: %s", fetch.end, fetch.member, error)
        held.conn.close()
        self._unreadable(fetch.end)

    @staticmethod
    def _answer(conn: Connection, request: Frame, answer: FetchAnswer) -> None:
        if conn.closed:
            return
        if answer.kind is AnswerKind.RECORDS:
            conn.send_with(wire.answer_without_data(request, answer), answer.data)
        else:
            conn.send(wire.answer_frame(request, answer))
            conn.push()


def refuse_malformed(conn: Connection, request: Frame, error: wire.WireError) -> None:
    """Answer a frame that no correct member sends; the caller counts it."""
    conn.send(Frame.response_to(request, ResponseCode.SYSTEM_ERROR, str(error)))
