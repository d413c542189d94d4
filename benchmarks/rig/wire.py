"""A blocking connection that speaks frames: it reads stored messages back without a client library."""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.message import Record, decode_records
from gantry_broker.remoting.handshake import NONCE_BYTES, HandshakeClient, Identity

_PULL, _MAX_OFFSET, _MIN_OFFSET, _ROUTE, _CLUSTER = 11, 30, 31, 105, 106
_SUCCESS, _PULL_NOT_FOUND = 0, 19


class Refused(Exception):
    """The server answered with an error code."""

    def __init__(self, code: int, remark: str | None) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


_CLONE_NEWNET = 0x40000000


def connect(address: str, timeout_s: float = 10.0, prefix: list[str] | None = None) -> socket.socket:
    """Connects to "host:port"; prefix is that of a Target: the network namespace with the port.

    A thread enters the namespace and makes the socket, which stays there; all other threads stay outside.
    """
    host, port = address.rsplit(":", 1)
    if not prefix:
        return socket.create_connection((host, int(port)), timeout_s)
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def enter() -> None:
        try:
            with open(f"/var/run/netns/{prefix[-1]}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made.append(socket.create_connection((host, int(port)), timeout_s))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class Wire:
    """One connection to "host:port"; prefix as in `connect`."""

    def __init__(
        self,
        address: str,
        timeout_s: float = 10.0,
        prefix: list[str] | None = None,
        *,
        member: Identity | None = None,
        token: bytes = b"",
    ) -> None:
        """`member`: the port is one between members, where this end says that it is that one, and proves it by `token`.

        Raises OSError, and HandshakeError when the proof is not accepted.
        """
        self.socket = connect(address, timeout_s, prefix)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if member is not None:
            self._prove(HandshakeClient(member, lambda: token, os.urandom(NONCE_BYTES)))
        self._decoder = FrameDecoder()
        self._opaque = itertools.count(1)
        self._ready: list[Frame] = []

    def _prove(self, handshake: HandshakeClient) -> None:
        self.socket.sendall(handshake.hello())
        while handshake.peer is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the other side during the handshake")
            self.socket.sendall(handshake.receive(data))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Frame:
        """Returns the answer, with any code. Raises OSError (also when the connection is closed)."""
        opaque = next(self._opaque)
        self.socket.sendall(encode_frame(Frame(code, opaque, ext=ext, body=body)))
        while True:
            while self._ready:
                frame = self._ready.pop(0)
                if frame.is_response and frame.opaque == opaque:
                    return frame
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed by the other side")
            self._ready += self._decoder.feed(data)

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> Frame:
        """Returns the answer. Raises Refused unless its code is SUCCESS."""
        answer = self.ask(code, ext, body)
        if answer.code != _SUCCESS:
            raise Refused(answer.code, answer.remark)
        return answer

    def route(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = fastjson.loads(self.call(_ROUTE, {"topic": topic}).body)
        return found

    def offsets(self, topic: str, queue: int) -> tuple[int, int]:
        """Returns (first, one after the last) offset of a queue."""
        ext = {"topic": topic, "queueId": str(queue)}
        return (int(self.call(_MIN_OFFSET, ext).ext["offset"]), int(self.call(_MAX_OFFSET, ext).ext["offset"]))

    def pull(self, topic: str, queue: int, offset: int, group: str = "readback") -> tuple[list[Record], int]:
        """Returns records from an offset on, and the next offset."""
        answer = self.ask(
            _PULL,
            {
                "consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            },
        )  # fmt: skip
        if answer.code == _SUCCESS:
            return decode_records(answer.body), int(answer.ext["nextBeginOffset"])
        if answer.code == _PULL_NOT_FOUND:
            return [], offset
        raise Refused(answer.code, answer.remark)

    def read(self, topic: str, queue: int) -> Iterator[Record]:
        """Returns every record of a queue."""
        offset, end = self.offsets(topic, queue)
        while offset < end:
            records, offset = self.pull(topic, queue, offset)
            yield from records
            if not records and offset < end:
                raise RuntimeError(f"{topic} queue {queue}: nothing at {offset}, though it ends at {end}")


def read_topic(namesrv: str, topic: str, prefix: list[str] | None = None) -> Iterator[Record]:
    """Returns every record of a topic, from the masters in the route; prefix as in `connect`."""
    with Wire(namesrv, prefix=prefix) as ns:
        route = ns.route(topic)
    # RocketMQ's NameServer writes these numbers without quotes, Gantry's with quotes.
    masters = {
        row["brokerName"]: address
        for row in route["brokerDatas"]
        for number, address in row["brokerAddrs"].items()
        if int(number) == 0
    }
    for row in route["queueDatas"]:
        with Wire(masters[row["brokerName"]], prefix=prefix) as broker:
            for queue in range(row["readQueueNums"]):
                yield from broker.read(topic, queue)
