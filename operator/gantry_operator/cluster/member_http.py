"""The HTTP client for the members of one cluster. It sends the cluster's admin token with every request.

httpx imports a command-line client if rich and click are installed, and Pygments with it: 8 MiB of memory and a third
of the start time. This module blocks that import. httpx works without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

__all__ = ["TokenAuth", "httpx", "make_client"]


class TokenAuth(httpx.Auth):
    """`token` is called for each request. It may become known later than the client, and may be replaced."""

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


def make_client(token: Callable[[], str | None]) -> httpx.AsyncClient:
    """A client for any number of members. Each member holds one connection for its stream, and requests use others.

    Members speak plain HTTP, so no certificates are loaded. No proxy is used.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=10)
    return httpx.AsyncClient(auth=TokenAuth(token), verify=False, trust_env=False, limits=limits)
