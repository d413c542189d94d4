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
        self._known: dict[str, T] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]] | None, failed: T) -> T:
        """Return the last answer, and ask again in the background if it is old. `ask`: None: there is nobody to ask;
        `failed`: the answer when it raises.
        """
        found = self._known.pop(name, self._nothing)
        while len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[name] = found
        old = found.at is None or self._clock() - found.at >= AGAIN_S
        if ask is not None and old and name not in self._asking:
            self._asking[name] = asyncio.create_task(self._ask(name, ask, failed))
        return found

    async def close(self) -> None:
        """End the questions."""
        await end_tasks(*self._asking.values())

    async def _ask(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]], failed: T) -> None:
        found = failed
        try:
            found = await ask()
        finally:
            self._known[name] = found
            self._asking.pop(name, None)
