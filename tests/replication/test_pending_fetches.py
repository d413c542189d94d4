"""Fetches that wait for news, on the event loop that brokers run on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.frame import Frame
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.pending_fetches import NEWS_S, PendingFetches

ROUNDS = 150
HOLD_S = 0.1
LATE_S = 0.5


class Follower:
    """A connection that takes answers."""

    closed = False

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def send_with(self, frame: Frame, body: bytes) -> None:
        self.answered.set()


def made(
    ask: Callable[[Fetch, bool, bool], FetchAnswer | None],
    *,
    held: Callable[[MemberId, bool], None] = lambda member, waiting: None,
    has_news: Callable[[Fetch], bool] = lambda fetch: False,
    unreadable: Callable[[int], None] = lambda at: None,
    hold_s: float = HOLD_S,
) -> PendingFetches:
    """Those of a leader whose log ends at 100."""
    return PendingFetches(
        ask, held, has_news, lambda: 100, lambda fetch: False, lambda at, size: None, unreadable, hold_s
    )


async def unanswered(news: bool) -> int:
    """How many held fetches of `ROUNDS` had no answer long after they were due, for news or at the end of the hold."""
    fetch = Fetch(1, MemberId(1, "x"), 100, 100, (), 50)
    chance = random.Random(1)

    def proposal(fetch: Fetch, with_news: bool, empty: bool) -> FetchAnswer | None:
        return FetchAnswer(AnswerKind.RECORDS, 1, Position(100, 1)) if (with_news and news) or empty else None

    async def one(after_s: float) -> bool:
        await asyncio.sleep(after_s)
        follower: Any = Follower()
        pending_fetches = made(proposal, has_news=lambda _: news)
        pending_fetches.take(follower, Frame(0), fetch, None)
        try:
            async with asyncio.timeout(LATE_S):
                await follower.answered.wait()
        except TimeoutError:
            return follower.answered.is_set()  # Both in one pass, when this process stood still.
        pending_fetches.close()
        return True

    # At times of their own: whether a timer fires before its time is a matter of parts of a millisecond.
    return (await asyncio.gather(*(one(chance.random() * 2) for _ in range(ROUNDS)))).count(False)


async def test_a_held_fetch_gets_a_later_confirmed_offset_soon() -> None:
    """Indexing comes after the answers to fetches, so a held fetch learns of its outcome afterwards."""
    news = False
    follower: Any = Follower()
    pending_fetches = made(
        lambda fetch, with_news, empty: FetchAnswer(AnswerKind.RECORDS, 1, Position(100, 1)) if with_news else None,
        has_news=lambda _: news,
        hold_s=60.0,
    )
    pending_fetches.take(follower, Frame(0), Fetch(1, MemberId(1, "x"), 100, 100, (), 50), None)
    await asyncio.sleep(2 * NEWS_S)
    assert not follower.answered.is_set()
    news = True
    pending_fetches.confirmed()
    async with asyncio.timeout(LATE_S):
        await follower.answered.wait()
    pending_fetches.close()


async def test_an_unreadable_position_fails_only_its_own_fetch() -> None:
    class Other(Follower):
        def close(self) -> None:
            self.closed = True

    def proposal(fetch: Fetch, with_news: bool, empty: bool) -> FetchAnswer | None:
        if fetch.end == 50 and empty:
            raise ValueError("50 is not the border of a record")
        return FetchAnswer(AnswerKind.RECORDS, 1, Position(100, 1)) if empty else None

    lost, found = Other(), Other()
    waits: list[tuple[MemberId, bool]] = []
    unread: list[int] = []
    pending_fetches = made(proposal, held=lambda m, w: waits.append((m, w)), unreadable=unread.append)
    for number, end, conn in ((1, 50, lost), (2, 100, found)):
        sent: Any = conn
        pending_fetches.take(sent, Frame(0), Fetch(1, MemberId(number, "x"), end, end, (), 50), None)
    async with asyncio.timeout(LATE_S):
        await found.answered.wait()
    assert (lost.closed, lost.answered.is_set()) == (True, False)
    assert unread == [50]
    assert (MemberId(1, "x"), False) in waits
    pending_fetches.close()


async def test_an_unreadable_position_blocks_neither_stop_nor_new_fetches() -> None:
    class Other(Follower):
        def close(self) -> None:
            self.closed = True

    def proposal(fetch: Fetch, with_news: bool, empty: bool) -> FetchAnswer | None:
        if empty:
            raise OSError(5, "Input/output error")
        return None

    sent: Any = Other()
    pending_fetches = made(proposal, hold_s=60.0)
    fetch = Fetch(1, MemberId(1, "x"), 100, 100, (), 50)
    pending_fetches.take(sent, Frame(0, 1), fetch, None)
    pending_fetches.take(sent, Frame(0, 2), fetch, None)
    assert sent.closed
    pending_fetches.close()


@pytest.mark.parametrize("news", [True, False], ids=["with news", "at the end of the hold"])
def test_a_held_fetch_is_answered_when_it_is_due_though_the_timer_fires_a_little_early(news: bool) -> None:
    """Else a follower would hear nothing of a leader that believes to hold its question: an idle group would elect."""
    assert NEWS_S < HOLD_S < LATE_S
    assert uvloop.run(unanswered(news)) == 0
