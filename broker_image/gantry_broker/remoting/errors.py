"""Failures of a request before an answer. An error code in an answer is no error of this layer."""

from __future__ import annotations


class RemotingError(Exception):
    """Base: the request has no answer. `sent` False: the peer has certainly not seen it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ConnectError(RemotingError):
    """No connection: refused, unreachable, an unknown name, or a timeout.

    `silent` True: a process may be there all the same. It did not answer in time, or the handshake failed.
    """

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message, sent=False)
        self.silent = silent


class ConnectionLost(RemotingError):
    """The connection ended before the answer came."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message, sent=sent)


class RequestTimeout(RemotingError):
    """No answer in time; the peer may still execute the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=True)
