"""The page of metrics, which takes a bounded share of the event loop's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from gantry_broker.http.openmetrics import content_type, pieces

if TYPE_CHECKING:
    from gantry_broker.exposition import Family
    from gantry_broker.timeslice import TimeSlices

METRICS_SHARE: Final = 0.1
"""The share of the event loop's time for pages of metrics, at most; more frequent requests get the last page."""


class MetricsPage:
    """Makes the page of metrics, or returns the last one where a new one would exceed its share of the time."""

    def __init__(self, make: Callable[[], Awaitable[list[Family]]], slices: TimeSlices, share: float) -> None:
        """`share`: of one CPU, 0 to 1."""
        self._make = make
        self._slices = slices
        self._share = share
        self._pages: dict[bool, tuple[bytes, str]] = {}
        self._next_at = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type. `accept`: the request's header."""
        openmetrics = "application/openmetrics-text" in accept
        async with self._lock:
            last = self._pages.get(openmetrics)
            if last is not None and time.monotonic() < self._next_at:
                return last
            used = time.process_time()
            families = await self._make()
            # No thread: a thread that works for long delays each step of the loop by the interpreter's switch interval.
            format_ = accept if openmetrics else ""
            parts = [part async for part in self._slices.sliced(pieces(families, format_))]
            page = b"".join(parts), content_type(format_)
            self._pages = {openmetrics: page}
            self._next_at = time.monotonic() + (time.process_time() - used) * (1 / self._share - 1)
            return page
