"""A fenced member: its process stays, and with it the pod, while the broker is stopped and its files are closed.

The config file says so (`fenced`), and the process follows the file, as it follows the log level. Meanwhile the HTTP
port answers `/livez`, and every other path with 503 and the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.http.interim import InterimServer

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
REASON: Final = "it is fenced: its broker is stopped until `gantry fence off`"


class Fence:
    """Whether the member is fenced, as its config file says. `file` None: it never is."""

    def __init__(self, file: Path | None, fenced: bool) -> None:
        self._file = file
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self._set(fenced)

    def _set(self, fenced: bool) -> None:
        (self.up if fenced else self.down).set()
        (self.down if fenced else self.up).clear()

    async def follow(self) -> None:
        """Follow the file until cancelled. One that cannot be read changes nothing."""
        # A person may be at work on the files of a fenced member: a broker that opened them would write into them.
        while self._file is not None:
            await asyncio.sleep(LOOK_S)
            fenced = await asyncio.to_thread(fenced_in, self._file)
            if fenced is not None and fenced != self.up.is_set():
                log.warning("%s", "the member is fenced: the broker stops" if fenced else "the fence is taken away")
                self._set(fenced)


def fenced_in(file: Path) -> bool | None:
    """Return what a config file says; None: it cannot be read."""
    try:
        fenced = json.loads(file.read_bytes()).get("fenced", False)
    except (OSError, ValueError, AttributeError):
        return None
    return fenced if isinstance(fenced, bool) else None


async def wait(config: BrokerConfig, fence: Fence) -> None:
    """Serve the reason until the fence is taken away. Raises OSError when the HTTP port is taken."""
    server = InterimServer(config, lambda: REASON)
    await server.start()
    try:
        await fence.down.wait()
    finally:
        await server.close()
