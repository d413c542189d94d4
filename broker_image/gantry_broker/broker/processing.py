"""Carries out clients' requests: sends go to the sender together, each other request to its handler.

An exception of a handler becomes an error answer. One broken request never costs the connection or the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantry_broker.admission import owners_of
from gantry_broker.broker.errors import failure_answer
from gantry_broker.broker.latencies import UNSUPPORTED
from gantry_broker.broker.pull.service import SENT_MS
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, Sends
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.requests import CHEAP, POP_POLLS, TO_SENDER
from gantry_broker.shares import Owners, Shares, request_bytes
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.handlers.requests import Handler
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.pull.service import PullService
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.send.large_batches import LargeBatches
    from gantry_broker.broker.send.sender import Sender
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)

PULL: Final = int(RequestCode.PULL_MESSAGE)
AT_ONCE: Final = 64
"""Cheap requests of one read that are handled at once. Clients seldom have more under way."""
AT_ONCE_S: Final = 0.003
"""The time after which no further request of a read is handled at once: the rest waits for its turn, in its order."""
ARRIVE_S: Final = 0.02
"""Time for the last answers to arrive before a connection ends."""
MAX_TASKS: Final = 10_000
"""Requests that may wait for something at the same time, polls aside; each user or address has a share."""
MAX_POLLS: Final = 20_000
"""Polls that may wait at the same time, with some 3 KB each."""


def not_supported(frame: Frame) -> Frame:
    """Return the answer to a request code that a port does not know."""
    return error_answer(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {frame.code} not supported")


class Parts(Protocol):
    """What the processor uses of a member."""

    clock: Clock
    replication: ReplicationService
    role: RoleState
    pulls: PullService
    latencies: Latencies
    slices: TimeSlices


class RequestProcessor:
    """Processes the requests of one read, whether or not writes wait for a handover."""

    def __init__(
        self,
        broker: Parts,
        handlers: dict[int, Handler],
        sender: Sender,
        large_batches: LargeBatches,
        max_bytes: int,
    ) -> None:
        """`handlers`: by request code; `max_bytes`: of memory for costly requests that wait for their turn, and as much
        for those that wait for something else, polls aside. Of both, each user or unsigned address has a share.
        """
        self.process_again: Callable[[Connection, list[Frame]], None] = self.process
        """Takes sends in a later pass of the event loop."""
        self.handlers = handlers
        self._clock = broker.clock
        self._replication = broker.replication
        self._take_sends = sender.take
        self._take_plain = sender.take_plain
        self._take_large = large_batches.take
        sender.on_large = self._large
        self.send_rules = sender.send_rules
        """What plain sends are; None: each comes as a frame."""
        self._take_pulls = broker.pulls.take
        self._role = broker.role
        self._observe = broker.latencies.rpc.observe
        self._slices = broker.slices
        self._bytes_in_turn = Shares(max_bytes)
        """Of the requests that wait for their turn."""
        self._task_places = Shares(MAX_TASKS)
        self._bytes_in_tasks = Shares(max_bytes)
        """Of the requests of `_tasks`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls: set[asyncio.Task[None]] = set()
        self._ends = 0.0
        """By `time.perf_counter`: when the present read has had its time."""

    def process(self, conn: Connection, frames: list[Frame]) -> None:
        """Carries out requests; while this member may not append, sends are refused."""
        sends: list[Frame] = []
        pulls: list[Frame] = []
        others = 0
        for frame in frames:
            if frame.code in TO_SENDER:
                sends.append(frame)
            elif frame.code == PULL:
                pulls.append(frame)
            else:
                if pulls:  # Requests that set offsets keep their order.
                    others, pulls = self._pulls(conn, pulls, others), []
                others += 1
                self._one(conn, frame, others)
        if pulls:
            self._pulls(conn, pulls, others)
        if not sends:
            return
        conn.attrs["client"] = True
        conn.attrs[SENT_MS] = self._clock.now_ms()
        now_ms = self._clock.unix_ms()
        if self._role.may_append:
            later = self._take_sends(conn, sends, now_ms)
            for frame in later:
                self._run_in_turn(conn, frame, partial(self.process_again, conn, [frame]), wait=True)
        else:
            self.refuse(conn, sends)

    def _large(self, conn: Connection, frame: Frame) -> None:
        self._handle(conn, frame, self._take_large, time.perf_counter())

    def process_sends(self, conn: Connection, sends: Sends) -> bool:
        """Carry out plain sends; False: they have to come as frames. This member may append."""
        now_ms = self._clock.unix_ms()
        if not self._take_plain(conn, sends, now_ms):
            return False
        conn.attrs["client"] = True
        conn.attrs[SENT_MS] = self._clock.now_ms()
        return True

    def refuse(self, conn: Connection, frames: list[Frame]) -> None:
        """Refuses writes, because this member is not the master."""
        remark = self._role.refusal()
        # As RocketMQ's broker without the permission to write: a client sends to another broker, if there is one.
        code = ResponseCode.SERVICE_NOT_AVAILABLE if self._role.takes_writes else ResponseCode.NO_PERMISSION
        for frame in frames:
            if not frame.is_oneway:
                conn.send(error_answer(frame, code, remark))
        if not self._role.takes_writes:
            return
        if self._replication.follows:
            # The connection came by the master's Service before the Service moved, and would lead here for ever.
            # It ends, so that the client connects again by the present route.
            conn.stop_reading()
            asyncio.get_running_loop().call_later(ARRIVE_S, conn.close)

    def _pulls(self, conn: Connection, frames: list[Frame], others: int) -> int:
        """Carries out pulls; returns `others`, the requests of this read that were handled each by itself."""
        conn.attrs["client"] = True
        for frame in self._take_pulls(conn, frames):
            others += 1
            self._one(conn, frame, others)
        return others

    # ---- one request

    def _one(self, conn: Connection, frame: Frame, number: int) -> None:
        """Process request `number` of a read. After many, and after `AT_ONCE_S`, each waits for its turn."""
        conn.attrs["client"] = True
        begun = time.perf_counter()
        if number == 1:
            self._ends = begun + AT_ONCE_S
        handler = self.handlers.get(frame.code)
        if handler is None:
            self._answer(conn, frame, not_supported(frame), begun, UNSUPPORTED)
            return
        over = begun > self._ends
        if frame.code in CHEAP and number <= AT_ONCE and not over:
            self._handle(conn, frame, handler, begun)
        else:
            self._run_in_turn(conn, frame, partial(self._handle, conn, frame, handler, begun), wait=over)

    def _run_in_turn(self, conn: Connection, frame: Frame, work: Callable[[], None], *, wait: bool = False) -> None:
        """Run costly work within a slice of each pass of the event loop, which all connections share; with `wait` not
        before the others that wait.

        A connection is not read while requests of it wait, and the bytes of waiting requests are bounded.
        """
        slices = self._slices
        if slices.left_s > 0 and not wait and not conn.attrs.get("waiting"):
            slices.run(work)
            return
        size, owners = request_bytes(frame), owners_of(conn)[1:]
        if not self._bytes_in_turn.take(owners, size):
            busy = error_answer(frame, ResponseCode.SYSTEM_BUSY, "too many requests wait")
            self._answer(conn, frame, busy, time.perf_counter())
            return
        conn.attrs["waiting"] = conn.attrs.get("waiting", 0) + 1
        conn.throttle(True)

        def begin() -> None:
            self._bytes_in_turn.give_back(owners, size)
            conn.attrs["waiting"] -= 1
            if not conn.attrs["waiting"]:
                conn.throttle(False)
            if not conn.closed:
                work()

        slices.later(begin)

    def _handle(self, conn: Connection, frame: Frame, handler: Handler, begun: float) -> None:
        """`begun`: when the request arrived, by `time.perf_counter`."""
        try:
            result = handler(conn, frame)
        except Exception as error:
            self._answer(conn, frame, failure_answer(frame, error), begun)
            return
        if result is None:
            return
        if isinstance(result, Frame):
            self._answer(conn, frame, result, begun)
            return
        if callable(result):
            result(lambda answer: self._answer(conn, frame, answer, begun))
            return
        polls = frame.code in POP_POLLS
        tasks = self._polls if polls else self._tasks
        size, owners = request_bytes(frame), owners_of(conn)[1:]
        if len(tasks) >= MAX_POLLS if polls else not self._has_room(owners, size):
            result.close()
            code = ResponseCode.POLLING_FULL if polls else ResponseCode.SYSTEM_BUSY
            self._answer(conn, frame, error_answer(frame, code, "too many requests wait"), begun)
            return
        task = asyncio.get_running_loop().create_task(self._later(conn, frame, result, begun))
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            result.close()  # A task that is cancelled before it begins awaits nothing.
            tasks.discard(task)
            if not polls:
                self._task_places.give_back(owners)
                self._bytes_in_tasks.give_back(owners, size)

        task.add_done_callback(ended)

    def _has_room(self, owners: Owners, size: int) -> bool:
        """Take a place and bytes for a task; return False when there are none for one of the owners."""
        if not self._task_places.take(owners):
            return False
        if self._bytes_in_tasks.take(owners, size):
            return True
        self._task_places.give_back(owners)
        return False

    async def _later(
        self, conn: Connection, frame: Frame, work: Coroutine[Any, Any, Frame | None], begun: float
    ) -> None:
        try:
            if frame.code not in CHEAP:
                await self._slices.grant()
            answer = await work
        except Exception as error:
            answer = failure_answer(frame, error)
        if answer is not None:
            self._answer(conn, frame, answer, begun)

    def _answer(self, conn: Connection, frame: Frame, answer: Frame, begun: float, code: int | None = None) -> None:
        """`code`: under which the request counts, if not its own."""
        self._observe(frame.code if code is None else code, answer.code, time.perf_counter() - begun, flag=frame.flag)
        if not frame.is_oneway and not conn.closed:
            conn.send(answer)

    async def close(self) -> None:
        await end_tasks(*self._tasks, *self._polls)
