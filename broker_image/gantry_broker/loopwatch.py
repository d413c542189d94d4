"""Measures how long the event loop is held, and names the line that holds it when that is long.

Every client of this process waits for its event loop. A timer compares its run time with its due time. A thread reads
the loop's stack when the timer is very late. Usually the disk holds the loop (a write that the kernel delays) or a
machine without a free core, seldom work that should run in slices.

The timer runs four times a second in an idle process and every 20 ms in a busy one, so a hold of a busy loop is
measured at most 20 ms too short. Work that measures itself (`Holds.ran`) is measured exactly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Final

from gantry_broker.histogram import LATENCY_S, Histogram

if TYPE_CHECKING:
    from gantry_broker.exposition import Kind

log = logging.getLogger(__name__)

LIMIT_S: Final = 0.05
"""Holds longer than this are counted."""
STACK_S: Final = 0.5
"""Holds longer than this are logged, with the line."""
LOG_EVERY_S: Final = 10.0
"""Between two lines in the log."""
IDLE_S: Final = 0.25
BUSY_S: Final = 0.02
BUSY_SHARE: Final = 0.05
"""A loop that used more than this share of a core since the last check is busy."""
_FRAMES: Final = 5


class Holds:
    """Counts holds; pure."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._known_s = 0.0
        self.count = 0
        self.longest_s = 0.0
        self.total_s = 0.0

    def ran(self, seconds: float) -> None:
        """Note work that measured itself: it ran for `seconds` without a pause."""
        if seconds > self._limit_s:
            self._known_s += seconds
            self._add(seconds)

    def late(self, seconds: float) -> None:
        """Note that the timer was late; time that `ran` has counted since then does not count twice."""
        rest, self._known_s = seconds - self._known_s, 0.0
        if rest > self._limit_s:
            self._add(rest)

    def _add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class LoopWatch:
    """Create it in the loop's thread; `start` needs a running loop."""

    def __init__(self, stack_s: float = STACK_S, log_every_s: float = LOG_EVERY_S) -> None:
        self.holds = Holds()
        self.lag = Histogram(LATENCY_S)
        """How late the timer ran, in seconds."""
        self._stack_s = stack_s
        self._log_every_s = log_every_s
        self._due = 0.0
        self._seen_due = 0.0
        self._logged = -log_every_s
        self._unlogged = 0
        self._cpu = 0.0
        self._loop_thread = threading.get_ident()
        self._ended = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._listen, name="loop-watch", daemon=True)

    def start(self) -> None:
        self._arm(time.monotonic(), IDLE_S)
        self._thread.start()

    def close(self) -> None:
        """End the thread; harmless before `start`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _arm(self, now: float, wait_s: float) -> None:
        self._cpu = time.thread_time()
        self._due = now + wait_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look, wait_s)

    def _look(self, waited_s: float) -> None:
        now = time.monotonic()
        late = max(now - self._due, 0.0)
        self.holds.late(late)
        self.lag.observe(late)
        if late > self._stack_s and self._seen_due == self._due:
            log.warning("the event loop stood still for %.1f s", late)
        busy = time.thread_time() - self._cpu > BUSY_SHARE * (waited_s + late)
        self._arm(now, BUSY_S if busy else IDLE_S)

    def _listen(self) -> None:
        while not self._ended.wait(self._stack_s / 2):
            due = self._due
            now = time.monotonic()
            if now - due <= self._stack_s or due == self._seen_due:
                continue
            if now - self._logged < self._log_every_s:
                self._unlogged += 1
                continue
            self._seen_due, self._logged = due, now
            more = f" ({self._unlogged} more checks found the same, unlogged)" if self._unlogged else ""
            self._unlogged = 0
            where = _lines(sys._current_frames().get(self._loop_thread))
            log.warning("the event loop has stood still for %.1f s, in %s%s", now - due, where, more)


def _lines(frame: FrameType | None) -> str:
    """Return the innermost calls, the last one first."""
    if frame is None:
        return "no thread"
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    return " < ".join(f"{s.filename.rpartition('/')[2]}:{s.lineno} {s.name}" for s in reversed(stack))


def loop_families(holds: Holds, prefix: str) -> list[tuple[str, Kind, str, float]]:
    """Return (name, kind, help, value) of the metrics of an event loop."""
    return [
        (
            f"{prefix}_event_loop_holds_total",
            "counter",
            f"Times that the event loop was held for more than {LIMIT_S * 1000:g} ms.",
            holds.count,
        ),
        (f"{prefix}_event_loop_hold_seconds_total", "counter", "Seconds of those holds.", holds.total_s),
        (f"{prefix}_event_loop_longest_hold_seconds", "gauge", "The longest of them.", holds.longest_s),
    ]
