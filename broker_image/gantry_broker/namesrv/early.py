"""Route requests before the first master has registered. Pure; the caller gives times in milliseconds.

A NameServer that has just started knows no broker, and brokers need a second or two to find it again. "No such topic"
would be wrong then, and a client that starts at that moment gives up on it. So such a request waits a little.
"""

from __future__ import annotations

from typing import Generic, TypeVar

YOUNG_MS = 10_000
"""Milliseconds without a master after which requests stop waiting."""
PATIENCE_MS = 1_200
"""The longest wait in milliseconds: clients give one of several NameServers about 1.5 s, then try the next."""
MOST = 1_000
"""The most requests that wait; the next one is answered at once."""

T = TypeVar("T")


class EarlyQuestions(Generic[T]):
    """Keeps requests in the order of their arrival until `due` returns them."""

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: when the NameServer began."""
        self._until = now_ms + YOUNG_MS
        self._waiting: list[tuple[int, T]] = []

    def keep(self, question: T, now_ms: int, *, anybody: bool) -> bool:
        """Return whether the request waits. `anybody`: a master has registered, so a missing topic does not exist."""
        if anybody or now_ms >= self._until or len(self._waiting) >= MOST:
            return False
        self._waiting.append((min(now_ms + PATIENCE_MS, self._until), question))
        return True

    def __bool__(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    def due(self, now_ms: int, *, anybody: bool) -> list[T]:
        """Return the requests to answer now, with the present routes."""
        questions = [question for until, question in self._waiting if anybody or now_ms >= until]
        self._waiting = [] if anybody else [(u, q) for u, q in self._waiting if now_ms < u]
        return questions
