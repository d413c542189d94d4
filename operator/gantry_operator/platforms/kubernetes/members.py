"""The HTTP client for the members of one cluster: it shows the cluster's admin token with every request."""

from __future__ import annotations

from collections.abc import Callable, Generator

import httpx


class TokenAuth(httpx.Auth):
    """`token` is asked for each request, since it may become known later than the client."""

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


def member_client(token: Callable[[], str | None]) -> httpx.AsyncClient:
    """Members speak plain HTTP within the cluster's network, so no certificates are loaded; no proxy lies between."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
    return httpx.AsyncClient(auth=TokenAuth(token), limits=limits, trust_env=False, verify=False)
