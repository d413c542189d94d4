"""The HTTP client for the members of one cluster. It sends the cluster's admin token with every request.

httpx imports a command-line client if rich and click are installed, and Pygments with it: 8 MiB of memory and a third
of the start time. This module blocks that import. httpx works without it.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
from collections.abc import Callable, Generator

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

__all__ = ["MemberTransport", "TokenAuth", "TrustedAuthorities", "httpx", "make_client", "tls_context"]


class TokenAuth(httpx.Auth):
    """`token` is called for each request. It may become known later than the client, and may be replaced."""

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


class TrustedAuthorities:
    """The authorities whose certificates members must have, as a TLS context that follows a renewal."""

    def __init__(self, trusted: Callable[[], bytes]) -> None:
        """`trusted` returns PEM; empty: no authority is known yet."""
        self._trusted = trusted
        self._known = b""
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, a new one after each change; None: no authority is known, or it cannot be read.

        It checks no host name: members are reached by addresses that change, and the authority signs certificates of
        this cluster's members only.
        """
        pem = self._trusted()
        if pem != self._known:
            self._known, self._context = pem, tls_context(pem)
        return self._context


def tls_context(pem: bytes, own: tuple[bytes, bytes] | None = None) -> ssl.SSLContext | None:
    """Return a context that trusts these authorities and checks no host name; None: they cannot be read.

    `own`: a certificate and its key to show, as PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
        if own is not None:
            # OpenSSL reads a certificate with its key from a file only.
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"\n".join(own))
                file.flush()
                context.load_cert_chain(file.name)
    except (ValueError, OSError):
        return None
    return context


class MemberTransport(httpx.AsyncBaseTransport):
    """Connections with the present authorities. Those with former ones end by themselves."""

    def __init__(self, authorities: TrustedAuthorities) -> None:
        self._authorities = authorities
        self._context: ssl.SSLContext | None = None
        self._inner = _transport(None)
        self._former: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        context = self._authorities.context()
        if context is not self._context:
            self._former.append(self._inner)
            self._context, self._inner = context, _transport(context)
        if request.url.scheme == "https" and context is None:
            raise httpx.ConnectError("the cluster's certificate authority is not known yet", request=request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (*self._former, self._inner):
            await transport.aclose()


def _transport(context: ssl.SSLContext | None) -> httpx.AsyncHTTPTransport:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=10)
    return httpx.AsyncHTTPTransport(verify=context or False, trust_env=False, limits=limits)


def make_client(token: Callable[[], str | None], trusted: Callable[[], bytes] = bytes) -> httpx.AsyncClient:
    """Return a client for any number of members. Each member holds one connection for its stream, and requests use
    others.

    `trusted`: the authorities of members with HTTPS, as PEM. No proxy is used.
    """
    transport = MemberTransport(TrustedAuthorities(trusted))
    return httpx.AsyncClient(auth=TokenAuth(token), transport=transport, trust_env=False)
