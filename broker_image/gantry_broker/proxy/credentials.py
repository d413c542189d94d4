"""The proxy's own user: a secret key in a file, which may come after the start and may be replaced."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import Frame
from gantry_broker.watching import WatchedFiles

log = logging.getLogger(__name__)

MAX_BYTES: Final = 4_096


class FileCredentials(WatchedFiles):
    """Signs with the key that the file held at the last look, one each second. Without a key requests go unsigned, and
    a broker that asks for a signature refuses them.
    """

    def __init__(self, access_key: str, path: Path) -> None:
        """Blocks for a look at the file."""
        self._access_key = access_key
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._credentials: Credentials | None = None
        self._problem = ""
        self.look()

    def sign(self, frame: Frame) -> None:
        if self._credentials is not None:
            self._credentials.sign(frame)

    def look(self) -> None:
        """Keep the former key while a new one cannot be read. Blocks for a look at the file."""
        try:
            stat = self._path.stat()
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if stamp == self._stamp:
                return
            if stat.st_size > MAX_BYTES:
                raise ValueError(f"it has {stat.st_size} bytes, and a key has 256 at most")
            self._credentials = Credentials(self._access_key, self._path.read_text("ascii").strip())
            self._stamp, self._problem = stamp, ""
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the proxy's own key cannot be read from %s: %s", self._path, error)
