"""The HTTP client for the members of one cluster: it shows the cluster's admin token with every request.

httpx is imported without its command line: where rich and click are installed httpx imports a command-line client, and
with it Pygments: 8 MiB and a third of the start of a process that runs all day. httpx itself does without when the
import fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

__all__ = ["TokenAuth", "httpx", "make_client"]


class TokenAuth(httpx.Auth):
    """`token` is asked for each request, since it may become known later than the client, and may be replaced."""

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


def make_client(token: Callable[[], str | None]) -> httpx.AsyncClient:
    """For any number of members: each holds one connection for its stream, and the requests come beside it. Members
    speak plain HTTP, so no certificates are loaded; no proxy lies between."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=10)
    return httpx.AsyncClient(auth=TokenAuth(token), verify=False, trust_env=False, limits=limits)
