"""Writes during and after a hand-over: parked in one queue, then appended here or forwarded to the new master.

A write is appended or forwarded, never both (rule 23): while the master is parked nothing is appended, and what is in
the queue leaves it exactly once, in its order. Forwarding goes in bundles over one connection, one bundle at a time,
so the order per client connection is kept. Then the clients that are still here are let go
(`ports.py`); they come back by the group's address, to the new master.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker.protocol.codes import FLAG_ONEWAY, GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.protocol.headers import error_answer
from gantry_broker.remoting.errors import RemotingError

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection

    from .core import Broker

log = logging.getLogger(__name__)

Process = Callable[[Any, list[Frame]], None]

MAX_PARKED: Final = 20_000
MAX_PARKED_BYTES: Final = 64 << 20
BUNDLE: Final = 512
BUNDLE_BYTES: Final = 4 << 20
FORWARD_S: Final = 5.0
"""How long a forwarded bundle may wait for the new master to take its role and for the promise."""
RETRY_S: Final = 0.005


class Forwarder:
    """The queue of one broker."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._queue: deque[tuple[Connection, Frame]] = deque()
        self._bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self.in_flight = 0

    @property
    def busy(self) -> bool:
        """Parked writes are still in the queue: later ones go behind them."""
        return bool(self._queue)

    def wants(self) -> bool:
        """Whether writes that cannot be appended now are kept."""
        replication = self._broker.replication
        return replication.parked or replication.handed_to is not None or self.busy

    def take(self, conn: Connection, frames: list[Frame]) -> None:
        conn.attrs["forwarded"] = conn.attrs["client"] = True
        for frame in frames:
            if len(self._queue) >= MAX_PARKED or self._bytes > MAX_PARKED_BYTES:
                if not frame.is_oneway:
                    conn.send(error_answer(frame, ResponseCode.SYSTEM_BUSY, "too many writes wait for the new master"))
                continue
            self._queue.append((conn, frame))
            self._bytes += len(frame.body) + 512
        self._go_on()

    async def drained(self, timeout_s: float) -> None:
        """Until nothing parked is left, or the time is over."""
        worker = self._worker
        if worker is not None and not worker.done():
            await asyncio.wait({worker}, timeout=timeout_s)

    def role_changed(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """What the queue's content is for now: keep, append, forward, or refuse."""
        broker = self._broker
        if not self._queue or broker.replication.parked:
            return
        if broker.may_append:
            self._append_all()
        elif broker.replication.handed_to is not None:
            if self._worker is None or self._worker.done():
                self._worker = asyncio.get_running_loop().create_task(self._forward_all())
        else:
            for conn, frame in self._drain():
                if not frame.is_oneway and not conn.closed:
                    conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, broker.refusal()))

    def _drain(self) -> list[tuple[Connection, Frame]]:
        taken = list(self._queue)
        self._queue.clear()
        self._bytes = 0
        return taken

    def _append_all(self) -> None:
        """The hand-over was given up: in their order, neighbours of one connection together."""
        run: list[Frame] = []
        owner: Connection | None = None
        for conn, frame in [*self._drain(), (None, None)]:
            if conn is not owner and run and owner is not None:
                self._process(owner, run)
                run = []
            owner = conn
            if frame is not None:
                run.append(frame)

    async def _forward_all(self) -> None:
        broker = self._broker
        while self._queue and not broker.may_append:
            # The master may have changed again since the hand-over.
            target = broker.replication.master_address or broker.replication.handed_to
            if target is None or broker.replication.handed_to is None:
                self._go_on()
                return
            bundle: list[tuple[Connection, Frame]] = []
            size = 0
            while self._queue and len(bundle) < BUNDLE and size < BUNDLE_BYTES:
                item = self._queue.popleft()
                self._bytes -= len(item[1].body) + 512
                size += len(item[1].body)
                bundle.append(item)
            self.in_flight += len(bundle)
            try:
                await self._forward(target, bundle)
            except Exception as error:
                log.exception("forwarding %d writes to %s failed", len(bundle), target)
                _answer_all(bundle, f"forwarding to the new master failed: {error}")
            finally:
                self.in_flight -= len(bundle)
        self._go_on()

    async def _forward(self, target: str, bundle: list[tuple[Connection, Frame]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FORWARD_S
        opaques = [frame.opaque for _, frame in bundle]
        for index, (_, frame) in enumerate(bundle):
            frame.opaque = index
        body = b"".join(encode_frame(frame) for _, frame in bundle)
        for (_, frame), opaque in zip(bundle, opaques, strict=True):
            frame.opaque = opaque
        hosts = orjson.dumps([conn.peer_bytes.hex() for conn, _ in bundle]).decode()
        while True:
            try:
                answer = await self._broker.client.request(
                    target,
                    Frame(GantryCode.FORWARD, ext={"hosts": hosts}, body=body),
                    max(deadline - loop.time(), 0.05),
                )
            except RemotingError as error:
                if error.sent or loop.time() > deadline:
                    _answer_all(bundle, f"the new master {target} did not answer: {error}")
                    return
            else:
                if answer.code == ResponseCode.SUCCESS:
                    _relay(bundle, answer.body)
                    return
                if loop.time() > deadline:
                    _answer_all(bundle, f"the new master {target} takes no writes yet: {answer.remark}")
                    return
            await asyncio.sleep(RETRY_S)  # It was not taken: the new master is about to be one.

    async def close(self) -> None:
        for conn, frame in self._drain():
            if not frame.is_oneway and not conn.closed:
                conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, "the broker stops, send again"))
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)


def _answer_all(bundle: list[tuple[Connection, Frame]], remark: str) -> None:
    for conn, frame in bundle:
        if not frame.is_oneway and not conn.closed:
            conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, remark))


def _relay(bundle: list[tuple[Connection, Frame]], body: bytes) -> None:
    """Every answer to the connection whose request it belongs to, under that request's opaque."""
    left = {i: item for i, item in enumerate(bundle) if not item[1].is_oneway}
    for answer in FrameDecoder().feed(body):
        item = left.pop(answer.opaque, None)
        if item is not None and not item[0].closed:
            answer.opaque = item[1].opaque
            item[0].send(answer)
    for conn, frame in left.values():
        if not conn.closed:
            conn.send(error_answer(frame, ResponseCode.SYSTEM_ERROR, "the new master left this write unanswered"))


class ForwardedConnection:
    """What a handler sees of a client whose request came by way of the old master."""

    def __init__(self, peer: tuple[str, int], peer_bytes: bytes, gather: Callable[[bytes], None]) -> None:
        self.peer = peer
        self.peer_bytes = peer_bytes
        self.closed = False
        self.paused = False
        self.attrs: dict[str, Any] = {}
        self._gather = gather

    def write(self, data: bytes) -> None:
        self._gather(data)

    def send(self, frame: Frame) -> None:
        self._gather(encode_frame(frame))


def take_forwarded(broker: Broker, conn: Connection, request: Frame, process: Process) -> None:
    """The new master's end: the bundle's writes, in their order, and one answer with all of theirs.

    Answers SERVICE_NOT_AVAILABLE, which means that nothing of the bundle was taken, while this member may not append.
    """
    if not broker.may_append:
        conn.send(error_answer(request, ResponseCode.SERVICE_NOT_AVAILABLE, broker.refusal()))
        return
    try:
        frames = FrameDecoder().feed(request.body)
        hosts = [bytes.fromhex(h) for h in orjson.loads(request.ext.get("hosts", ""))]
    except (FrameError, ValueError, TypeError) as error:
        conn.send(error_answer(request, ResponseCode.SYSTEM_ERROR, f"FORWARD: the bundle cannot be read: {error}"))
        return
    if len(hosts) != len(frames) or any(len(h) not in (8, 20) for h in hosts):
        conn.send(error_answer(request, ResponseCode.SYSTEM_ERROR, "FORWARD: the field hosts does not fit the bundle"))
        return
    waiting = sum(1 for f in frames if not f.flag & FLAG_ONEWAY)
    answers: list[bytes] = []

    def gather(data: bytes) -> None:
        nonlocal waiting
        answers.append(data)
        waiting -= _count_frames(data)
        if waiting == 0:
            conn.send(Frame.response_to(request, ResponseCode.SUCCESS, body=b"".join(answers)))

    start = 0
    silent = waiting == 0
    for end in range(1, len(frames) + 1):
        if end == len(frames) or hosts[end] != hosts[start]:
            process(ForwardedConnection(conn.peer, hosts[start], gather), frames[start:end])
            start = end
    if silent:
        conn.send(Frame.response_to(request, ResponseCode.SUCCESS))


def _count_frames(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count
