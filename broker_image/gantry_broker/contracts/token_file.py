"""The admin token of a member's HTTP interface: one line of printable ASCII in a file that may be replaced."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0
"""Seconds after which a replaced file counts."""
MAX_BYTES: Final = 4096
_TOKEN: Final = re.compile(rb"[!-~]{1,1024}")


class TokenFile:
    """The token in a file. While the file cannot be read, the last token counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._token: str | None = None
        self._problem = ""
        self._looked_at = float("-inf")
        self._reading: asyncio.Task[str | None] | None = None

    @property
    def problem(self) -> str:
        """Why the file could not be read; empty: it could."""
        return self._problem

    def read(self) -> str | None:
        """Return the file's present token; None when there never was one. Blocks for a read of the file."""
        self._looked_at = time.monotonic()
        problem = ""
        try:
            with open(self.path, "rb") as file:
                text = file.read(MAX_BYTES).strip()
            if _TOKEN.fullmatch(text):
                self._token = text.decode()
            else:
                problem = f"{self.path} holds no token: write one line of printable ASCII without spaces"
        except OSError as error:
            problem = f"the token file {self.path} cannot be read: {error.strerror}"
        if problem and problem != self._problem:
            log.warning("%s%s", problem, "" if self._token is None else "; the last token still counts")
        self._problem = problem
        return self._token

    @property
    def last(self) -> str | None:
        """The token as of the last look at the file. Blocks for a read of the file if there was none."""
        return self.read() if self._looked_at == float("-inf") else self._token

    async def current(self, max_age_s: float = LOOK_AGAIN_S) -> str | None:
        """Return the file's token, at most `max_age_s` old. The event loop does not wait for the disk."""
        if time.monotonic() - self._looked_at < max_age_s and self._reading is None:
            return self._token
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self.read))
            self._reading.add_done_callback(self._read)
        return await asyncio.shield(self._reading)

    def _read(self, _: asyncio.Task[str | None]) -> None:
        self._reading = None
