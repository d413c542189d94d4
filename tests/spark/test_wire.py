"""Frames as a connection of the Spark source takes them from a socket: cut anywhere, torn, over the limits, hostile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from struct import pack

import pytest
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.frame import MAX_HEADER, Frame, encode_frame
from gantry_spark.topics.wire import MAX_FRAME_BYTES, WINDOW, Block, Broken, Connection
from gantry_spark.trust import PLAINTEXT
from hypothesis import given, settings
from hypothesis import strategies as st

RESPONSE = 1


@contextmanager
def peer(*pieces: bytes) -> Iterator[Connection]:
    """A connection to a server that sends these pieces, and then closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    for piece in pieces:
                        accepted.sendall(piece)
                except OSError:
                    return  # The client has closed it.

        thread = threading.Thread(target=serve)
        thread.start()
        connection = Connection(f"127.0.0.1:{listener.getsockname()[1]}", PLAINTEXT)
        try:
            yield connection
        finally:
            connection.close()
            thread.join()


def answer(number: int, body: bytes = b"", serialize: int = 0, flag: int = RESPONSE, **ext: str) -> bytes:
    return encode_frame(Frame(ResponseCode.SUCCESS, number, flag, dict(ext), body, serialize=serialize))


def body_of(number: int, size: int) -> bytes:
    return (b"%d." % number * (size // 2 + 1))[:size]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_frames_cut_anywhere(data: st.DataObject) -> None:
    """Answers in any order, to a block or to a frame, beside requests of the server and answers that were given up."""
    sizes = data.draw(
        st.lists(st.sampled_from([0, 1, 7, 900, WINDOW - 60, WINDOW, 2 * WINDOW + 5]), min_size=1, max_size=6)
    )
    numbers = range(1, len(sizes) + 1)
    sent = data.draw(st.permutations(numbers))
    given_up = data.draw(st.sets(st.sampled_from(numbers)))
    stream = b""
    for number in sent:
        if data.draw(st.booleans()):
            stream += answer(number, b"a request", flag=0, long="x" * 300)
        stream += answer(number, body_of(number, sizes[number - 1]), data.draw(st.sampled_from([0, 1])), topic="T")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    with peer(*pieces) as connection:
        connection.give_up(given_up)
        block, wanted = Block(), b""
        for number in data.draw(st.permutations([n for n in numbers if n not in given_up])):
            body = body_of(number, sizes[number - 1])
            if data.draw(st.booleans()):
                assert connection.answer(number, block).body == b""
                wanted += body
            else:
                found = connection.answer(number)
                assert (found.opaque, found.body, found.ext["topic"]) == (number, body, "T")
            assert bytes(block.buffer[: block.used]) == wanted
        with pytest.raises(Broken, match="closed the connection"):
            connection.answer(99)


@pytest.mark.parametrize("serialize", [0, 1])
def test_a_frame_that_ends_early_adds_nothing_to_a_block(serialize: int) -> None:
    whole = answer(2, b"the second body", serialize, topic="T")
    for end in range(len(whole)):
        with peer(answer(1, b"first"), whole[:end]) as connection:
            block = Block()
            connection.answer(1, block)
            with pytest.raises(Broken, match="closed the connection"):
                connection.answer(2, block)
            assert bytes(block.buffer[: block.used]) == b"first"


def framed(header: bytes, serialize: int = 0, *, length: int | None = None, size: int | None = None) -> bytes:
    """A frame with any lengths."""
    size = len(header) if size is None else size
    return pack(">iI", 4 + len(header) if length is None else length, serialize << 24 | size) + header


@pytest.mark.parametrize(
    "frame",
    [
        framed(b"{}", length=-1),
        framed(b"{}", length=0),
        framed(b"{}", length=3),
        framed(b"{}", length=5),
        framed(b"{}", size=3),
        framed(b"{}", length=MAX_FRAME_BYTES + 5),
        framed(b"{}", length=(1 << 31) - 1),
        framed(b"{}", length=MAX_HEADER + 9, size=MAX_HEADER + 1),
        framed(b"{}", 7),
        framed(b"{}", 255),
        framed(b"no JSON"),
        framed(b"[]"),
        framed(b""),
        framed(b'{"opaque":"x"}'),
        framed(b'{"code":1e99}'),
        framed(b'{"extFields":[]}'),
        framed(b"\xff" * 40),
        framed(b"", 1),
        framed(b"\x00" * 20, 1),
        framed(b"\x7f" * 60, 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=range(21),
)
def test_a_frame_that_is_none_breaks_the_connection(frame: bytes) -> None:
    with peer(frame, b"\0" * 64) as connection:
        block = Block()
        with pytest.raises(Broken, match="does not speak RocketMQ's protocol"):
            connection.answer(1, block)
        assert (block.used, len(block.buffer)) == (0, WINDOW)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 120), st.binary(max_size=8))
def test_damaged_bytes_break_it_or_are_another_frame(noise: bytes, at: int, patch: bytes) -> None:
    whole = answer(1, b"body", topic="T", nextBeginOffset="1")
    for stream in (noise, whole[:at] + patch + whole[at + len(patch) :]):
        with peer(stream) as connection:
            block = Block()
            try:
                connection.answer(1, block)
            except Broken:
                assert block.used == 0
