"""The longest time for which readers of a NameServer's pages hold its event loop, whatever they send together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gantry_broker.http.hosts import AllowedHosts
from gantry_broker.http.limits import MAX_HEAD
from gantry_broker.http.pages import Page, PageServer
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.routes import MAX_TOPICS, Group
from gantry_broker.namesrv.service import NameService, health, metrics
from gantry_broker.protocol.bodies import QueueData

from tests.broker.test_loop_holds import MOST_S, READ, Peer, best, longest_hold

ASKED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
FIELDS = b"GET /livez HTTP/1.1\r\n" + b"a:b\r\n" * (MAX_HEAD // 5 - 10)
"""Never complete."""


class Reader(Peer):
    """A client that has sent some bytes, and reads all answers."""

    @property
    def done(self) -> bool:
        return self.socket.closed or not (self.data or self.conn._inbox)


class Pages:
    """The pages of a NameServer with the most topics."""

    def __init__(self) -> None:
        self.service = NameService("ns", KvConfig(None))
        data = QueueData("a", 8, 8, 6, 0)
        for group in "abcd":
            names = {f"{group}{n}": data for n in range(MAX_TOPICS // 4)}
            self.service.routes.groups[group] = Group("c", topics=names)
        self.made = 0
        self.server = PageServer(
            {"/livez": lambda: Page("t", health(self.service)), "/metrics": self.figures},
            "127.0.0.1", 0, hosts=AllowedHosts([]), most=1_000, slices=self.service.slices,
        )  # fmt: skip

    def figures(self) -> Page:
        self.made += 1
        return Page("t", metrics(self.service).encode())

    def readers(self, count: int, data: bytes) -> list[Reader]:
        made: list[Any] = [self.server._accept() for _ in range(count)]
        return [Reader(conn, data) for conn in made]


@pytest.mark.parametrize("sent", [ASKED, FIELDS, ASKED * (READ // len(ASKED))], ids=["page", "fields", "pages"])
async def test_no_reader_holds_the_loop(sent: bytes) -> None:
    pages = Pages()
    assert await best(lambda: longest_hold(pages.readers(100, sent))) <= MOST_S
    pages.server.close()


async def test_a_page_is_not_made_for_each_reader() -> None:
    pages = Pages()
    readers = pages.readers(50, ASKED)
    async with asyncio.timeout(20):
        while not all(reader.socket.closed for reader in readers):
            for reader in readers:
                reader.read()
            await asyncio.sleep(0)
    assert all(reader.socket.answers for reader in readers)
    assert pages.made < 25
    pages.server.close()
