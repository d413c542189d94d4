"""The events of a local cluster, one line of JSON each, like those that Kubernetes keeps for a resource."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from gantry_operator.cluster.timestamps import utc

log = logging.getLogger(__name__)

KEEP = 200
"""Number of events kept. The file is rewritten when it holds ten times as many."""


class EventLog:
    """Appends events to a file and shows them. An equal event within a minute only increases a count in memory."""

    def __init__(
        self, path: Path, show: Callable[[str], None] | None = None, added: Callable[[], None] = lambda: None
    ) -> None:
        """Open it. `added` is called after each event."""
        self._path = path
        self._added = added
        self._show = show if show is not None else lambda line: print(line, file=sys.stdout, flush=True)
        self._lines = 0
        self._last: dict[tuple[str, str], float] = {}

    def add(self, kind: str, reason: str, message: str, about: str) -> None:
        """Never raises: a report of an error must not cause another. An event that cannot be written is still shown."""
        now = time.monotonic()
        key = (reason, message)
        if now - self._last.get(key, -1e9) < 60:
            return
        if len(self._last) > KEEP:
            self._last.clear()
        self._last[key] = now
        line = json.dumps({"time": utc(), "type": kind, "reason": reason, "object": about, "message": message})
        try:
            with open(self._path, "a+b") as file:
                if not self._lines and self._is_cut(file):
                    file.write(b"\n")
                file.write(line.encode() + b"\n")
            self._lines += 1
            if self._lines >= 10 * KEEP:
                self._trim()
        except OSError as error:
            log.error("the event %s (%s) cannot be written to %s: %s", reason, message, self._path, error)
        # The terminal may be gone.
        with suppress(OSError, ValueError):
            self._show(f"{time.strftime('%H:%M:%S')}  {reason:<18} {message}")
        self._added()

    @staticmethod
    def _is_cut(file: BinaryIO) -> bool:
        """Whether a crash has left an incomplete last line: the next one must not be a part of it."""
        end = file.seek(0, os.SEEK_END)
        if not end:
            return False
        file.seek(end - 1)
        return file.read(1) != b"\n"

    def _trim(self) -> None:
        last = deque(self._path.read_text(errors="replace").splitlines(), maxlen=KEEP)
        self._path.write_text("\n".join(last) + "\n")
        self._lines = len(last)


def last_events(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the newest events, oldest first. Damaged lines are left out."""
    try:
        lines = deque(path.read_text(errors="replace").splitlines(), maxlen=count)
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            # A crash may leave an incomplete line.
            continue
        if isinstance(event, dict):
            events.append(event)
    return events
