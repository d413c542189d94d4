"""Failures of connections are said in words: no name of a Python class reaches users."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl

import httpx
import pytest
from gantry_operator.cluster.failures import in_words


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (caused(httpx.ConnectError("All connection attempts failed"), ConnectionRefusedError(111, "x")), "refuses"),
        (
            caused(
                httpx.ConnectError("All connection attempts failed"),
                ExceptionGroup("multiple", [OSError(113, "No route to host"), OSError(113, "No route to host")]),
            ),
            "no network leads to it",
        ),
        (caused(httpx.ConnectError("x"), socket.gaierror(-2, "Name or service not known")), "no address"),
        (caused(httpx.ConnectError("x"), ssl.SSLError(1, "[SSL] wrong version number")), "TLS failed"),
        (httpx.ConnectTimeout(""), "no connection in time"),
        (httpx.ReadTimeout(""), "does not answer in time"),
        (TimeoutError(), "does not answer in time"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "ended the connection"),
        (httpx.ConnectError("All connection attempts failed"), "no connection"),
        (httpx.ConnectError("the authority is not known yet"), "the authority is not known yet"),
        (asyncio.IncompleteReadError(b"", 4), "0 bytes read"),
    ],
)
def test_words(error: BaseException, words: str) -> None:
    said = in_words(error)
    assert words in said
    assert not re.search(r"[A-Z][a-z]+(Error|Timeout|Exception)", said)
