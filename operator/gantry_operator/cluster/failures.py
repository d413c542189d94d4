"""Failures of connections in words. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


def in_words(error: BaseException) -> str:
    """Return what happened, without the names of Python's classes. Never empty."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {getattr(cause, 'verify_message', '') or cause}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {getattr(cause, 'reason', None) or cause}"
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses the connection"
        if isinstance(cause, socket.gaierror):
            return "its name has no address"
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return "it ended the connection"
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            return "no network leads to it"
    kinds = [type(cause).__name__ for cause in causes]
    text = str(error)
    if any(kind.startswith("ConnectTimeout") or kind == "ConnectionTimeoutError" for kind in kinds):
        return "no connection in time"
    if any(kind.endswith(("Timeout", "TimeoutError")) for kind in kinds):
        return "it does not answer in time"
    if any(kind in ("RemoteProtocolError", "ServerDisconnectedError", "ReadError") for kind in kinds):
        return "it ended the connection"
    if text in ("", "All connection attempts failed"):
        return "no connection"
    return text


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return the error and what led to it, the parts of a group included."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        if isinstance(seen, BaseExceptionGroup):
            for part in seen.exceptions:
                yield from _causes(part)
        seen = seen.__cause__ or seen.__context__
