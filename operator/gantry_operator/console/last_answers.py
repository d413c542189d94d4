"""The last answers to a question about several things: asked again in the background while somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from gantry_broker.tasks import end_tasks

AGAIN_S: Final = 10.0
KEPT: Final = 64
"""Things whose answers are kept: those that were looked at last."""


class Dated(Protocol):
    """An answer."""

    @property
    def at(self) -> float | None:
        """Seconds of the clock; None: none has come yet."""
        ...


T = TypeVar("T", bound=Dated)


class LastAnswers(Generic[T]):
    """Answers by the name of what they are about."""

    def __init__(self, nothing: T, clock: Callable[[], float]) -> None:
        """`nothing`: what is known before the first answer."""
        self._nothing = nothing
        self._clock = clock
        self._answers: dict[str, T] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]] | None, failed: T) -> T:
        """Return the last answer, and ask again in the background if it is old. `ask`: None: there is nobody to ask;
        `failed`: the answer when it raises.
        """
        answer = self._answers.pop(name, self._nothing)
        while len(self._answers) >= KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[name] = answer
        old = answer.at is None or self._clock() - answer.at >= AGAIN_S
        if ask is not None and old and name not in self._asking:
            self._asking[name] = asyncio.create_task(self._ask(name, ask, failed))
        return answer

    async def close(self) -> None:
        """End the questions."""
        await end_tasks(*self._asking.values())

    async def _ask(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]], failed: T) -> None:
        answer = failed
        try:
            answer = await ask()
        finally:
            self._answers[name] = answer
            self._asking.pop(name, None)
