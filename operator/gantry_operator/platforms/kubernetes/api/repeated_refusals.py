"""Answers of the API server that come again: the same one is logged once, and asked for ever less."""

from __future__ import annotations

LONGEST_PAUSE_S = 30.0
"""The pause after an answer of the API server that stays the same."""


class RepeatedRefusals:
    """The answers to one pass after the other."""

    def __init__(self) -> None:
        self._last = ""
        self._count = 0

    def is_new(self, answer: str) -> bool:
        """Note an answer. False: the last one was the same."""
        new = answer != self._last
        self._last, self._count = answer, 1 if new else self._count + 1
        return new

    def clear(self) -> None:
        self._last, self._count = "", 0

    def pause_s(self, first_s: float) -> float:
        """Seconds until the next pass. A change of the spec or of an object begins one at once."""
        return float(min(first_s * 2 ** max(self._count - 1, 0), max(first_s, LONGEST_PAUSE_S)))
