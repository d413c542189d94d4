"""Counts refused connections of one port by reason, and logs them at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

WARN_S: Final = 10.0
"""Seconds between two log lines of one reason."""


class RefusedConnections:
    """`what` begins each log line."""

    def __init__(self, what: str) -> None:
        self.counts: dict[str, int] = {}
        self._what = what
        self._warned: dict[str, tuple[float, int]] = {}
        """The time of a reason's last log line, and its count then."""

    def add(self, reason: str, peer: str, text: str) -> None:
        total = self.counts[reason] = self.counts.get(reason, 0) + 1
        now = asyncio.get_running_loop().time()
        last, before = self._warned.get(reason, (-WARN_S, 0))
        if now - last >= WARN_S:
            self._warned[reason] = now, total
            more = f" ({total - before} such connections since the last line)" if total - before > 1 else ""
            log.warning("%s with %s failed: %s%s", self._what, peer, text, more)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address for a log line."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "an unknown address"


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address without its port; empty if it is not known."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
