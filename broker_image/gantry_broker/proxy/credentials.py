"""The proxy's own user: a secret key in a file, which may come after the start and may be replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import Frame

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
MAX_BYTES: Final = 4_096


class FileCredentials:
    """Signs with the key that the file holds, at most a second old. Without a key requests go unsigned, and a broker
    that asks for a signature refuses them.
    """

    def __init__(self, access_key: str, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._access_key = access_key
        self._path = path
        self._now = now
        self._look_at = 0.0
        self._stamp: tuple[int, int, int] | None = None
        self._credentials: Credentials | None = None
        self._problem = ""

    def sign(self, frame: Frame) -> None:
        if self._now() >= self._look_at:
            self._look()
        if self._credentials is not None:
            self._credentials.sign(frame)

    def _look(self) -> None:
        """Keeps the former key while a new one cannot be read."""
        self._look_at = self._now() + LOOK_S
        try:
            found = self._path.stat()
            stamp = found.st_ino, found.st_size, found.st_mtime_ns
            if stamp == self._stamp:
                return
            if found.st_size > MAX_BYTES:
                raise ValueError(f"it has {found.st_size} bytes, and a key has 256 at most")
            self._credentials = Credentials(self._access_key, self._path.read_text("ascii").strip())
            self._stamp, self._problem = stamp, ""
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the proxy's own key cannot be read from %s: %s", self._path, error)
