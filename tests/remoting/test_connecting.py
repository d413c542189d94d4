"""A connection comes about soon though packets are lost on the way, and a late resolver holds nobody up."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connecting import LATE_S, Resolver, first_of
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.errors import ConnectError

SYN_AGAIN_S = 1.0
"""The kernel's first repetition of a SYN that nobody answered."""


@pytest.fixture
def deaf() -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listener whose queue is full, so that a SYN is dropped, and the connections that fill it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    filling = []
    while True:
        one = socket.socket()
        one.settimeout(0.1)
        try:
            one.connect(listener.getsockname())
        except TimeoutError:
            one.close()
            break
        filling.append(one)
    yield listener, filling
    for s in [listener, *filling]:
        s.close()


class Echo:
    """Answers everything with its own body."""

    def on_open(self, conn: Connection) -> None:
        pass

    def on_close(self, conn: Connection) -> None:
        pass

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            conn.send(Frame.response_to(frame, 0, None, body=frame.body))


async def test_a_lost_syn_does_not_cost_its_repetition(deaf: tuple[socket.socket, list[socket.socket]]) -> None:
    listener, _ = deaf
    loop = asyncio.get_running_loop()
    async with RemotingClient() as client:
        begun = time.monotonic()
        asking = asyncio.create_task(
            client.request("{}:{}".format(*listener.getsockname()), Frame(1, body=b"well"), timeout=3)
        )
        await asyncio.sleep(0.1)
        assert not asking.done(), "the listener was not deaf"
        listener.setblocking(False)
        server = await loop.create_server(lambda: Connection(Echo(), accepted=True), sock=listener)
        assert (await asking).body == b"well"
        assert time.monotonic() - begun < SYN_AGAIN_S - 0.1
        assert list(client.addresses) == ["{}:{}".format(*listener.getsockname())]
        server.close()


async def test_no_answer_at_all(deaf: tuple[socket.socket, list[socket.socket]]) -> None:
    listener, _ = deaf
    async with RemotingClient(connect_timeout=0.6) as client:
        with pytest.raises(ConnectError, match="no connection to"):
            await client.request("{}:{}".format(*listener.getsockname()), Frame(1), timeout=3)


async def test_a_refusal_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with RemotingClient() as client:
        begun = time.monotonic()
        with pytest.raises(ConnectError, match=r"Errno 111|refused"):
            await client.request(f"localhost:{port}", Frame(1), timeout=3)
        assert time.monotonic() - begun < 3, "it does not wait for the end of the time limit"


async def test_a_later_attempt_that_is_refused_ends_the_wait_for_an_earlier_one() -> None:
    tried: list[str] = []

    async def attempt(address: str) -> str:
        tried.append(address)
        if len(tried) == 1:
            await asyncio.Event().wait()
        raise ConnectionRefusedError(address)

    with pytest.raises(ConnectionRefusedError):
        await first_of(["a"], attempt, lambda _: None, 8)
    assert tried == ["a", "a"]


async def test_another_address_is_tried_at_once_when_one_refuses_and_none_twice() -> None:
    tried: list[str] = []

    async def attempt(address: str) -> str:
        tried.append(address)
        if address == "a":
            raise ConnectionRefusedError(address)
        await asyncio.sleep(LATE_S * 1.5)
        return address

    assert await first_of(["a", "b"], attempt, lambda _: None, 8) == "b"
    assert tried == ["a", "b", "b"]


async def test_a_late_connection_is_closed() -> None:
    given_back: list[int] = []
    begun: list[int] = []

    async def attempt(_: str) -> int:
        begun.append(me := len(begun))
        try:
            await asyncio.sleep(LATE_S * (1.5 if me else 30))
        except asyncio.CancelledError:
            return me  # as a connection that was made in the very moment in which it was given up
        return me

    assert await first_of(["a"], attempt, given_back.append, 2) == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert given_back == [0]


class Names:
    """A resolver whose delays are set. It answers with one address, counted up from 10.0.0.1."""

    def __init__(self) -> None:
        self.asked = 0
        self.swallow: set[int] = set()
        self.error: OSError | None = None

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        if self.asked in self.swallow:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return [f"10.0.0.{self.asked}"]


async def test_a_name_is_asked_for_each_time_and_an_address_never() -> None:
    names = Names()
    resolver = Resolver(names)
    assert await resolver.addresses("127.0.0.1", 1) == ["127.0.0.1"]
    assert await resolver.addresses("::1", 1) == ["::1"]
    assert names.asked == 0
    assert await resolver.addresses("broker", 1) == ["10.0.0.1"]
    assert await resolver.addresses("broker", 1) == ["10.0.0.2"]


async def test_a_lost_query_is_repeated_beside_the_first() -> None:
    names = Names()
    names.swallow = {1}
    assert await asyncio.wait_for(Resolver(names).addresses("broker", 1), 4 * LATE_S) == ["10.0.0.2"]


async def test_a_known_address_replaces_a_late_answer() -> None:
    names = Names()
    resolver = Resolver(names)
    assert await resolver.addresses("broker", 1) == ["10.0.0.1"]
    names.swallow = {2, 3, 4}
    for _ in range(2):
        assert await asyncio.wait_for(resolver.addresses("broker", 1), 4 * LATE_S) == ["10.0.0.1"]
    assert names.asked == 3, "one question at a time, and once more beside it"
    await resolver.close()


async def test_a_name_that_is_gone_is_gone_and_a_resolver_that_cannot_ask_is_not_believed() -> None:
    names = Names()
    resolver = Resolver(names)
    assert await resolver.addresses("broker", 1) == ["10.0.0.1"]
    names.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert await resolver.addresses("broker", 1) == ["10.0.0.1"]
    names.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.raises(socket.gaierror):
        await resolver.addresses("broker", 1)
