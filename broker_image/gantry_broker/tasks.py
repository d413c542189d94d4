"""Begin and end of parts and background tasks, and waits with a limit."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Self


class Started(ABC):
    """`async with` starts it, and closes it at the end."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. None: it was never started. What they raise is not seen."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most this long. Return whether it came."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
