"""How a connection is made where a lost packet must not cost seconds.

A packet that is lost costs a resolver five seconds and a connection attempt one, then two more: in a container network
that happens most while a Service moves and everybody asks and connects at once. So what is not answered soon is tried
once more beside the first, from another port, and the first answer counts. What swallowed one packet (a peer that is
gone, an address translation that was just changed, two queries of one socket that raced for it) need not swallow the
next.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

LATE_S: Final = 0.25
"""A name's answer, or a connection attempt's, that takes longer is late."""
CONNECTS: Final = 12
"""Connection attempts beside each other, at most: a late one each `LATE_S` for three seconds. An address behind which
somebody else takes over meanwhile leads only new attempts to the new one."""
LOOKUPS: Final = 2
"""The same of lookups of one name: each holds a thread until its resolver gives up."""
REMEMBER_S: Final = 60.0
"""For so long a name's former addresses stand in for an answer that is late. Not longer: an address may have been given
to somebody else since."""

C = TypeVar("C")
T = TypeVar("T")

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""The IP addresses of a host, the preferred first. Raises OSError when it has none."""


async def look_up(host: str, port: int) -> list[str]:
    """By the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Resolver:
    """Addresses of names. Asks each time, and remembers for when there is no answer in time."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._known: dict[str, tuple[list[str], float]] = {}
        self._asking: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """One or more IP addresses, the preferred first. Raises OSError when the name has none."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = asyncio.create_task(self._ask(host, port))
            asking.add_done_callback(lambda done: self._answered(host, done))
        known, at = self._known.get(host, ([], 0.0))
        if not known or time.monotonic() - at > REMEMBER_S:
            return await asyncio.shield(asking)
        await asyncio.wait({asking}, timeout=LATE_S)
        if asking.done() and (asking.exception() is None or not _temporary(asking.exception())):
            return asking.result()
        return known

    async def _ask(self, host: str, port: int) -> list[str]:
        return await first_of([host], lambda name: self._lookup(name, port), lambda _: None, LOOKUPS)

    def _answered(self, host: str, done: asyncio.Task[list[str]]) -> None:
        del self._asking[host]
        if not done.cancelled() and done.exception() is None:
            self._known[host] = (done.result(), time.monotonic())

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def _temporary(error: BaseException | None) -> bool:
    """The resolver could not ask, rather than that there is no such name."""
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


async def first_of(
    choices: Sequence[C], attempt: Callable[[C], Awaitable[T]], give_back: Callable[[T], None], most: int
) -> T:
    """What the first attempt that succeeds brings. The next one begins when one fails or the last one is late.

    The choices are tried in their order and then again, `most` attempts for each in all; one that has failed is not
    tried again: to ask anew is the caller's decision. Once all have failed the older attempts that nobody answered are
    given up, since later ones were answered. `give_back` ends what came too late. Raises the last attempt's OSError.
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
