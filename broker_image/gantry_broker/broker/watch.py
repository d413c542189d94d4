"""Says when the event loop stands still, and in which line: everybody who waits for this broker waits for that.

The loop beats; a thread listens. What blocks is most often the disk (a write that the kernel holds back), seldom a bug.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

log = logging.getLogger(__name__)

LIMIT_S: Final = 0.5
_FRAMES: Final = 5


class LoopWatch:
    """To be made in the loop's thread, which calls `beat` several times within `limit_s`."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._beat = time.monotonic()
        self._told = 0.0
        self._loop_thread = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="loop-watch", daemon=True)

    def start(self) -> None:
        self._beat = time.monotonic()
        self._thread.start()

    def beat(self) -> None:
        now = time.monotonic()
        late = now - self._beat
        self._beat = now
        if late > self._limit_s:
            log.warning("the event loop stood still for %.1f s", late)

    def close(self) -> None:
        """Ends the thread; harmless before `start`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _listen(self) -> None:
        while not self._ended.wait(self._limit_s / 2):
            beat = self._beat
            late = time.monotonic() - beat
            if late > self._limit_s and beat != self._told:
                self._told = beat
                where = _lines(sys._current_frames().get(self._loop_thread))
                log.warning("the event loop stands still since %.1f s, in %s", late, where)


def _lines(frame: FrameType | None) -> str:
    """The innermost calls, the last one first."""
    if frame is None:
        return "no thread"
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    return " < ".join(f"{s.filename.rpartition('/')[2]}:{s.lineno} {s.name}" for s in reversed(stack))
