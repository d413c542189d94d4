"""Requests to handlers: the remoting server's Handler.

All sends of one read go to the sender together; a write that arrives while a hand-over is under way is parked, and
forwarded once another member is master (`forward.py`). Whatever a handler raises becomes an error answer: one broken
request never costs the connection, let alone the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.broker import handlers  # noqa: F401  (handlers fill the table)
from gantry_broker.broker.core import Broker
from gantry_broker.broker.errors import failure_answer
from gantry_broker.broker.forward import Forwarder, request_bytes
from gantry_broker.broker.handlers.table import TABLE, HandlerFunction
from gantry_broker.broker.pull import service as pull
from gantry_broker.broker.send.sender import Sender
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import error_answer

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Connection

log = logging.getLogger(__name__)

SENDS: Final = frozenset(
    {
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_BATCH_MESSAGE),
    }
)
WRITES: Final = SENDS | {
    int(code)
    for code in (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CLEAN_UNUSED_TOPIC,
    )
}
"""Requests that only a master carries out: parked and forwarded during a hand-over, refused by others."""
OF_THE_MASTER: Final = frozenset({int(RequestCode.GET_MAX_OFFSET)})
"""Questions that a former master passes on as long as clients still take it for the master: a slave hears of the last
confirmed record some milliseconds late, and a client must find what it was promised just before."""
CHEAP: Final = frozenset(
    int(code)
    for code in (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
    )
)
"""Requests that cost the same, some 0.1 ms at most, whatever is in them; all others run in slices of the event loop. A
pull with an SQL92 filter looks after that itself."""
AT_ONCE: Final = 64
"""Cheap requests of one read that are handled at once. Clients seldom have more under way."""
FORWARDED: Final = WRITES | OF_THE_MASTER
"""What a former master passes on, and all that a FORWARD may wrap."""
ARRIVE_S: Final = 0.02
"""Time for the last answers to arrive before a connection ends."""
MAX_TASKS: Final = 10_000
"""Requests that may wait for something at the same time."""


def not_supported(frame: Frame) -> Frame:
    """The answer to a request code that a port does not know."""
    return error_answer(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {frame.code} not supported")


class Dispatcher:
    """The Handler of the ports for clients."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sender = Sender(broker)
        self.forwarder = Forwarder(broker, self.process)
        self.sender.in_turn = lambda conn, frame: self._handle_in_turn(
            conn, frame, lambda broker, conn, frame: self.on_frames(conn, [frame])
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        """Of costly requests that wait for their turn."""
        broker.on_topics.append(self.sender.topics_changed)
        broker.on_grew = lambda topic, queue_id: pull.wake(broker, topic, queue_id)
        broker.on_role.append(lambda master: self.forwarder.role_changed())

    # ---- the remoting server's calls

    def on_open(self, conn: Connection) -> None:
        """Nothing is known of a client before its first request."""

    def on_close(self, conn: Connection) -> None:
        for group in self.broker.clients.closed(conn):
            self.broker.notify_group(group)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        broker = self.broker
        if broker.may_append and not self.forwarder.busy:
            self.process(conn, frames)
            return
        rest: list[Frame] = []
        kept: list[Frame] = []
        ours = FORWARDED if broker.has_guests and self.forwarder.wants() else WRITES
        for frame in frames:
            (kept if frame.code in ours else rest).append(frame)
        if rest:
            self.process(conn, rest)
        if not kept:
            return
        if self.forwarder.wants():
            self.forwarder.take(conn, kept)
        else:
            self._refuse(conn, kept)

    def process(self, conn: Connection, frames: list[Frame]) -> None:
        """Carries out clients' requests, whether or not writes wait for a hand-over."""
        sends: list[Frame] = []
        others = 0
        for frame in frames:
            if frame.code in SENDS:
                sends.append(frame)
            else:
                others += 1
                self._one(conn, frame, others <= AT_ONCE)
        if not sends:
            return
        conn.attrs["client"] = True
        if self.broker.may_append:
            self.sender.take(conn, sends, self.broker.unix_ms())
        else:
            self._refuse(conn, sends)

    def _refuse(self, conn: Connection, frames: list[Frame]) -> None:
        remark = self.broker.refusal()
        for frame in frames:
            if not frame.is_oneway:
                conn.send(error_answer(frame, ResponseCode.SERVICE_NOT_AVAILABLE, remark))
        if self.broker.replication.follows:
            # It came by the master's Service, which had not moved yet, and its connection would lead here for ever. It
            # ends as those of before the change of role did, so that the client comes anew by the way as it is now.
            conn.stop_reading()
            asyncio.get_running_loop().call_later(ARRIVE_S, conn.close)

    # ---- one request

    def _one(self, conn: Connection, frame: Frame, at_once: bool) -> None:
        """`at_once` False: so many came in one read that this one waits for its turn, cheap or not."""
        conn.attrs["client"] = True
        handler = TABLE.get(frame.code)
        if handler is None:
            self._answer(conn, frame, not_supported(frame))
            return
        if at_once and frame.code in CHEAP:
            self._handle(conn, frame, handler)
        else:
            self._handle_in_turn(conn, frame, handler)

    def _handle_in_turn(self, conn: Connection, frame: Frame, handler: HandlerFunction) -> None:
        """Costly requests of all connections share a slice of each pass of the event loop; the rest waits.

        A connection is not read while requests of it wait, and what waits is bounded in bytes.
        """
        slices = self.broker.slices
        if slices.left_s > 0:
            slices.run(lambda: self._handle(conn, frame, handler))
            return
        size = request_bytes(frame)
        if self._waiting_bytes + size > self.broker.budget.parked_bytes:
            self._answer(conn, frame, error_answer(frame, ResponseCode.SYSTEM_BUSY, "too many requests wait"))
            return
        self._waiting_bytes += size
        conn.attrs["waiting"] = conn.attrs.get("waiting", 0) + 1
        conn.throttle(True)

        def begin() -> None:
            self._waiting_bytes -= size
            conn.attrs["waiting"] -= 1
            if not conn.attrs["waiting"]:
                conn.throttle(False)
            if not conn.closed:
                self._handle(conn, frame, handler)

        slices.run(begin)

    def _handle(self, conn: Connection, frame: Frame, handler: HandlerFunction) -> None:
        try:
            result = handler(self.broker, conn, frame)
        except Exception as error:
            self._answer(conn, frame, failure_answer(frame, error))
            return
        if result is None:
            return
        if isinstance(result, Frame):
            self._answer(conn, frame, result)
            return
        if len(self._tasks) >= MAX_TASKS:
            result.close()
            self._answer(conn, frame, error_answer(frame, ResponseCode.SYSTEM_BUSY, "too many requests wait"))
            return
        task = asyncio.get_running_loop().create_task(self._later(conn, frame, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, conn: Connection, frame: Frame, work: Coroutine[Any, Any, Frame | None]) -> None:
        try:
            if frame.code not in CHEAP:
                await self.broker.slices.grant()
            answer = await work
        except Exception as error:
            answer = failure_answer(frame, error)
        if answer is not None:
            self._answer(conn, frame, answer)

    @staticmethod
    def _answer(conn: Connection, frame: Frame, answer: Frame) -> None:
        if not frame.is_oneway and not conn.closed:
            conn.send(answer)

    async def close(self) -> None:
        await self.forwarder.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
