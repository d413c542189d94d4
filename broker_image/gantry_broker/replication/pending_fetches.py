"""The leader's edge: fetches that wait for news, and the throttle of those that have much to catch up.

A fetch at the end of the log is held: it is answered as soon as something is appended, a little later when something is
confirmed (the next records usually bring that along), and empty after `HOLD_S`. A follower that lacks much is given
chunks, and while producers send, it waits between them (see `pace.py`). A follower whose acknowledgement is not waited
for (`spare`) is given what came in `GATHER_S` at once: each round of questions costs all members CPU time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.replication import wire
from gantry_broker.replication.messages import Fetch, FetchAnswer
from gantry_broker.replication.pace import Pace
from gantry_broker.replication.types import MemberId

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)

HOLD_S: Final = 1.0
"""Followers wait longer than this for an answer before they call the leader silent."""
NEWS_S: Final = 0.03
"""How long news of the confirmed offset waits for records to travel with."""
GATHER_S: Final = 0.003
"""How long records for a spare follower wait for more; so much later it takes the place of one that stopped."""
CATCH_UP_BYTES: Final = 4 << 20
"""A follower that lacks more than this is catching up, and throttled while producers send."""
PIECE_BYTES: Final = 256 << 10
"""What it is given at a time then: a megabyte is memory that the kernel hands out and takes back for each piece."""
BUSY_S: Final = 0.25
"""Producers count as sending for so long after the last append."""


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
    """`ask(fetch, news, empty)` gives an answer or None; `held(member, waiting)` tells the core who waits.

    `spare(fetch)`: others than the asker will acknowledge sooner, and they are enough. `soon(at, size)`: that part of
    the log is read next; `unreadable(at)`: nothing could be read there.
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
        """Answer with `answer`; None: with what there is now, or hold it."""
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
        """Something was appended: every held fetch has an answer, given once per pass of the event loop."""
        self._appended_at = self._loop.time()
        self.wake()

    def wake(self) -> None:
        """Something changed: look at the held fetches in the next pass of the event loop."""
        if self._held and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def connection_lost(self, conn: Connection) -> None:
        for member, held in list(self._held.items()):
            if held.conn is conn:
                del self._held[member]
                self._held_changed(member, False)

    def close(self) -> None:
        """Answer what is held; nothing is held any more."""
        self._closed = True
        for held in list(self._held.values()):
            self._answer_anyhow(held)
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        """It is the timer's time, though a loop that counts whole milliseconds calls a little before its clock says so:
        what is due would else be found not to be, and not be looked at again."""
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
            throttled = self.lacks_much(held.fetch) and now - self._appended_at < BUSY_S
            fetch = held.fetch
            if throttled and fetch.max_bytes > PIECE_BYTES:
                fetch = replace(fetch, max_bytes=PIECE_BYTES)
            started = time.perf_counter()
            try:
                answer = self._ask(fetch, held.news_at <= now, held.empty_at <= now or self._closed)
            except (ValueError, OSError) as error:
                # One that asks for what cannot be read must not take the others' answers with it.
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
        log.error("the log cannot be read from %d on, for which %s asks: %s", fetch.end, fetch.member, error)
        held.conn.close()
        self._unreadable(fetch.end)

    @staticmethod
    def _answer(conn: Connection, request: Frame, answer: FetchAnswer) -> None:
        if not conn.closed:
            conn.send(wire.answer_frame(request, answer))
            conn.push()


def refuse_malformed(conn: Connection, request: Frame, error: wire.WireError) -> None:
    """Answer a frame that no correct member sends; the caller counts it."""
    conn.send(Frame.response_to(request, ResponseCode.SYSTEM_ERROR, str(error)))
