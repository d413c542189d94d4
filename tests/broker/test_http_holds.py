"""The longest time for which clients of the HTTP port hold the event loop, whatever they send together."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvicorn
from gantry_broker.http.connection import LimitedConnection
from gantry_broker.http.limits import MAX_HEAD, Connections
from uvicorn.server import ServerState

from tests.broker.test_loop_holds import MOST_S, READ, Peer, best, longest_hold
from tests.support.running import until

HEAD = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
SMALL = HEAD + b"\r\n"
MANY_FIELDS = HEAD + b"".join(b"a%d:b\r\n" % number for number in range(900)) + b"\r\n"
CHUNKS = b"POST /livez HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (READ // 6)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Client(Peer):
    """A client that has sent some bytes, and reads all answers."""

    @property
    def done(self) -> bool:
        return self.socket.closed or not (self.data or self.conn._inbox)


def clients(count: int, data: bytes, table: Connections | None = None) -> list[Client]:
    config = uvicorn.Config(
        app, lifespan="off", access_log=False, log_config=None, ws="none", h11_max_incomplete_event_size=MAX_HEAD
    )
    config.load()
    table, state = Connections(1_000) if table is None else table, ServerState()
    made: list[Any] = [LimitedConnection(table, config=config, server_state=state, app_state={}) for _ in range(count)]
    return [Client(conn, data) for conn in made]


async def hold(made: list[Client]) -> float:
    """Returns the longest hold of these clients, which then go."""
    try:
        return await longest_hold(made)
    finally:
        for client in made:
            client.conn.connection_lost(None)
        await until(lambda: not any(client.conn.tasks for client in made))


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize(
    "sent", [SMALL, MANY_FIELDS, CHUNKS, SMALL + CHUNKS], ids=["small", "fields", "chunks", "next"]
)
async def test_no_client_of_the_http_port_holds_the_loop(
    sent: bytes, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    assert await best(lambda: hold(clients(count, sent * max(READ // len(sent), 1)))) <= MOST_S


async def test_no_connection_outlives_its_server() -> None:
    """The operator went on with such a one: it got the answers of a member that fills its disk, after it was full."""
    table = Connections(10)
    [used, fresh] = [*clients(1, SMALL, table), *clients(1, b"", table)]
    await longest_hold([used])
    assert not used.socket.closed
    table.close()
    [late] = clients(1, SMALL, table)
    assert used.socket.closed
    assert fresh.socket.closed
    assert late.socket.closed


async def test_requests_that_come_together_are_all_answered() -> None:
    """Also behind a body in many parts that no one reads."""
    body = b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    [client] = clients(1, SMALL * 300 + body + SMALL * 5)
    written = bytearray()
    client.socket.write = written.extend  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        while written.count(b"HTTP/1.1 200") < 306:
            client.read()
            await asyncio.sleep(0)
    assert client.done
    assert not client.socket.closed
