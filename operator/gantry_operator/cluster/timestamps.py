"""Times as Kubernetes writes them."""

from __future__ import annotations

import time


def utc(unix_ms: int | None = None) -> str:
    """RFC 3339 in UTC, in whole seconds. `unix_ms`: milliseconds since 1970; None: now."""
    seconds = time.time() if unix_ms is None else unix_ms / 1000
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
