"""httpx without its command line.

Where rich and click are installed httpx imports a command-line client, and with it Pygments: 8 MiB and a third of the
start of a process that runs all day. httpx itself does without when the import fails.
"""

from __future__ import annotations

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

__all__ = ["httpx", "make_client"]


def make_client() -> httpx.AsyncClient:
    """For any number of members: each holds one connection for its stream, and the requests come beside it."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=10)
    return httpx.AsyncClient(verify=False, trust_env=False, limits=limits)
