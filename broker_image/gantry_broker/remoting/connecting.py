"""Name lookups and connection attempts in which a lost packet costs no seconds.

A lost packet costs a resolver five seconds and a connection attempt one, then two more. In a container network that
happens most while a Service moves and all clients look up names and connect at once. So each late lookup or attempt
gets a second one beside it, from another port, and the first answer counts. The cause of the loss (a peer that is gone,
an address translation that just changed, two queries of one socket that raced for it) need not affect the second one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from gantry_broker.tasks import end_tasks

LATE_S: Final = 0.25
"""Seconds after which a name's answer, or a connection attempt, is late."""
CONNECTS: Final = 12
"""The most connection attempts at the same time: a late one each `LATE_S` for three seconds. When another process
takes an address over, only new attempts reach it.
"""
LOOKUPS: Final = 2
"""The same for lookups of one name: each holds a thread until its resolver gives up."""
REMEMBER_S: Final = 60.0
"""Seconds for which a name's former addresses replace a late answer. Later another host may have got them."""

C = TypeVar("C")
T = TypeVar("T")

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Returns the IP addresses of a host, the preferred one first. Raises OSError when it has none."""


async def look_up(host: str, port: int) -> list[str]:
    """Look the host up with the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos))


class Resolver:
    """Addresses of names. It makes a lookup each time, and keeps the last result for a late answer."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._known: dict[str, tuple[list[str], float]] = {}
        self._asking: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return one or more IP addresses, the preferred one first. Raises OSError when the name has none."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = asyncio.create_task(self._ask(host, port))
            asking.add_done_callback(lambda done: self._answered(host, done))
        remembered, at = self._known.get(host, ([], 0.0))
        if not remembered or time.monotonic() - at > REMEMBER_S:
            return await asyncio.shield(asking)
        await asyncio.wait({asking}, timeout=LATE_S)
        if asking.done() and (asking.exception() is None or not _temporary(asking.exception())):
            return asking.result()
        return remembered

    async def _ask(self, host: str, port: int) -> list[str]:
        return await first_of([host], lambda name: self._lookup(name, port), lambda _: None, LOOKUPS)

    def _answered(self, host: str, done: asyncio.Task[list[str]]) -> None:
        del self._asking[host]
        if not done.cancelled() and done.exception() is None:
            self._known[host] = (done.result(), time.monotonic())

    async def close(self) -> None:
        asking = list(self._asking.values())
        await end_tasks(*asking)


def _temporary(error: BaseException | None) -> bool:
    """Return whether the lookup itself failed; false: the name does not exist."""
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


async def first_of(
    choices: Sequence[C], attempt: Callable[[C], Awaitable[T]], give_back: Callable[[T], None], most: int
) -> T:
    """Return the result of the first attempt that succeeds. The next one begins when one fails or the last one is late.

    Attempts follow the order of the choices, then repeat it, `most` attempts for each in all. A failed choice is not
    repeated: that is the caller's decision. Once all later attempts have failed, the older ones without an answer are
    given up. `give_back` ends late successes. Raises the last attempt's OSError.
    """
    left = [choice for _ in range(most) for choice in choices]
    refused: set[C] = set()
    running: dict[asyncio.Future[T], C] = {}
    try:
        while True:
            if left:
                choice = left.pop(0)
                running[asyncio.ensure_future(attempt(choice))] = choice
            timeout = LATE_S if left else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for won in (d for d in done if d.exception() is None):
                del running[won]
                return won.result()
            for lost in done:
                failed = running.pop(lost)
                refused.add(failed)
                left = [choice for choice in left if choice != failed]
                error = lost.exception()
                if not isinstance(error, OSError) or refused == set(choices):
                    assert error is not None
                    raise error
    finally:
        for late in running:
            late.add_done_callback(lambda ended: _end(ended, give_back))
            late.cancel()


def _end(attempt: asyncio.Future[T], give_back: Callable[[T], None]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        give_back(attempt.result())
