"""Files that may be replaced while the process runs: a look at them each second, beside the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from gantry_broker.tasks import end_tasks

CHECK_S: Final = 1.0
"""Seconds between two looks."""


class WatchedFiles(ABC):
    """Calls `look` in a thread each second, from `start` to `close`."""

    _task: asyncio.Task[None] | None = None

    @abstractmethod
    def look(self) -> None:
        """Look at the files, and keep what was read last if they cannot be used. Blocks. Raises nothing."""

    def looked(self) -> None:  # noqa: B027 (most have nothing to do)
        """Act on a look, in the event loop."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.look)
            self.looked()

    async def close(self) -> None:
        await end_tasks(self._task)
        self._task = None
