"""Routes that are asked for before the first master has registered. Pure; times are milliseconds given by the caller.

A NameServer that has just started knows nobody, and brokers need a second or two to find it again. "No such topic"
would be untrue then, and a client that starts at that moment gives up on it. So such a question waits a little.
"""

from __future__ import annotations

from typing import Generic, TypeVar

YOUNG_MS = 10_000
"""After this long without a master there is none."""
PATIENCE_MS = 1_200
"""No question waits longer: clients give one of several NameServers about 1.5 s, then ask the next."""
MOST = 1_000
"""Questions that may wait; the next one is answered at once."""

T = TypeVar("T")


class EarlyQuestions(Generic[T]):
    """Keeps questions, in the order in which they came, until `due` gives them back."""

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: when the NameServer began."""
        self._until = now_ms + YOUNG_MS
        self._waiting: list[tuple[int, T]] = []

    def keep(self, question: T, now_ms: int, *, anybody: bool) -> bool:
        """Whether it waits. `anybody`: a master has registered; what it does not have is not there."""
        if anybody or now_ms >= self._until or len(self._waiting) >= MOST:
            return False
        self._waiting.append((min(now_ms + PATIENCE_MS, self._until), question))
        return True

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def due(self, now_ms: int, *, anybody: bool) -> list[T]:
        """The questions that are to be answered now, with what is known."""
        found = [question for until, question in self._waiting if anybody or now_ms >= until]
        self._waiting = [] if anybody else [(u, q) for u, q in self._waiting if now_ms < u]
        return found
