"""Calls of a disk that does not answer: they wait until the test lets them go on."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CALLS: Final = ("statvfs", "listdir", "scandir", "unlink", "stat", "rename", "replace")
LONGEST_S: Final = 2.0
"""A call on the event loop waits so long, as nothing could let it go on."""


class SlowDisk:
    """Holds calls that name a path below `root`. Create it in the thread of the event loop."""

    def __init__(
        self, set_attribute: Callable[[Any, str, Any], None], root: Path, names: tuple[str, ...] = CALLS
    ) -> None:
        self.held: Counter[str] = Counter()
        """Calls that waited, by name."""
        self.on_the_loop: list[str] = []
        """Where the event loop made such a call."""
        self._root = str(root)
        self._loop_thread = threading.get_ident()
        self._free = threading.Event()
        self._free.set()
        for name in names:
            set_attribute(os, name, self._slow(name, getattr(os, name)))

    def _slow(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            path = args[0] if args and isinstance(args[0], str | os.PathLike) else ""
            if not self._free.is_set() and os.fspath(path).startswith(self._root):
                self.held[name] += 1
                if threading.get_ident() == self._loop_thread:
                    self.on_the_loop.append(f"{name}: {''.join(traceback.format_stack(limit=6))}")
                self._free.wait(LONGEST_S)
            return real(*args, **named)

        return call

    def hangs(self) -> None:
        """From now on calls wait."""
        self._free.clear()

    def answers(self) -> None:
        """Waiting calls, and all later ones, go on."""
        self._free.set()

    async def passes_while_held(self, *names: str) -> int:
        """Passes of the event loop from when a call of each name waits until they go on."""
        async with asyncio.timeout(20):
            while not all(self.held[name] for name in names):  # noqa: ASYNC110 (threads make the calls)
                await asyncio.sleep(0.01)
        count = 0
        for _ in range(50):
            await asyncio.sleep(0.001)
            count += 1
        return count
