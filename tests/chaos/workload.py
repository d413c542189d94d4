"""Clients that send, consume and observe without pause, and record everything."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from gantry_broker.client import ClientError, Consumer, FromWhere, Producer, ReceivedMessage
from gantry_broker.protocol.codes import PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullHeader
from gantry_broker.protocol.message import RecordError, decode_records, parse_message_id
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.errors import RemotingError

from tests.chaos.cluster import GROUP, Cluster, NotInTime
from tests.chaos.deletions import DELETED_TOPIC, Deletions
from tests.chaos.history import History, Led, Log, Place, Round, Sent
from tests.chaos.pops import ORDERLY, POPS, PopMembers

TOPIC = "Chaos"
QUEUES = 4
SENDERS = 6
PAUSE_S = 0.01
"""Between two sends of one sender."""
GROUPS = ("steady", "restarted")
STAYS_S = 4.0
"""A member of the second group stays this long; then another takes its place."""
POP_MEMBERS = ((POPS, None), (POPS, STAYS_S), (ORDERLY, None))
PULL_S = 2.0
BACK_S = 20.0
"""A member that was stopped is back by then."""
T = TypeVar("T")


class Workload:
    """Use as an async context manager: it works from entering until `stop`, or the end."""

    def __init__(self, cluster: Cluster, history: History, seed: int) -> None:
        self.history = history
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._clock = asyncio.get_running_loop().time
        self._producer = Producer(cluster.name_server_addresses, "chaos")
        self._direct = RemotingClient(connect_timeout=0.5)
        self._last_answer = ""
        """To a request past the links, or why none came."""
        self._number = 0
        self._via: dict[bytes, int] = {}
        """By body: the connection of its last answer."""
        self._sending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self.deletions = Deletions(history)
        for group in GROUPS:
            history.consumed[group] = Counter()
        self._pops = PopMembers(history, seed)

    async def __aenter__(self) -> Workload:
        self._count_tries()
        await self._producer.start()
        self._sending = True
        self._senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        if self._cluster.replication == "Sync":  # Async may undo a deletion.
            servers = self._cluster.name_server_addresses
            work = self.deletions.work(servers, self._producer, lambda: self._sending)
            self._senders.append(asyncio.create_task(work))
        self._tasks = [
            asyncio.create_task(self._consume(GROUPS[0], None)),
            asyncio.create_task(self._consume(GROUPS[1], STAYS_S)),
            *(asyncio.create_task(self._pop(group, stays)) for group, stays in POP_MEMBERS),
            asyncio.create_task(self._look_on()),
            asyncio.create_task(self._watch_roles()),
        ]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sending = False
        self._closing.set()
        await asyncio.gather(*self._senders, return_exceptions=True)
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.close()
        await self._direct.close()
        wrong = [e for e in ended if isinstance(e, Exception)]
        if wrong and exc[1] is None:
            raise wrong[0]

    async def stop_sending(self) -> None:
        self._sending = False
        await asyncio.gather(*self._senders)

    async def sends_again(self, count: int = 30, timeout_s: float = 20.0) -> None:
        """Wait for this many more SEND_OK. Raises NotInTime."""
        wanted = len(self.history.promised()) + count

        async def enough() -> bool:
            return len(self.history.promised()) >= wanted

        await self._cluster.until(f"{count} more SEND_OK", enough, timeout_s)

    async def caught_up(self, log: Log, timeout_s: float) -> None:
        """Wait until every group has received the whole log. Raises NotInTime."""
        stored = set(log.bodies.values())

        async def seen() -> bool:
            return all(stored <= set(group) for group in self.history.consumed.values())

        await self._cluster.until("every group has seen everything", seen, timeout_s)

    # ---- sending

    def _count_tries(self) -> None:
        """Wrap the connection below the producer, which hides its tries of a send; record the connection of each
        answer.
        """
        remoting = self._producer.session.remoting
        request = remoting.request
        numbers: dict[Connection, int] = {}

        async def counted(address: str, frame: Frame, timeout: float, *, silence: float | None = None) -> Frame:
            if frame.code != RequestCode.SEND_MESSAGE_V2:
                return await request(address, frame, timeout, silence=silence)
            self.history.tries[frame.body] += 1
            before = remoting._connections.get(address)
            try:
                answer = await request(address, frame, timeout, silence=silence)
                if before is not None and remoting._connections.get(address) is before:
                    self._via[frame.body] = numbers.setdefault(before, len(numbers) + 1)
                else:
                    self._via.pop(frame.body, None)
                return answer
            except RemotingError as error:
                if not error.sent:
                    self.history.tries[frame.body] -= 1
                raise

        remoting.request = counted  # type: ignore[method-assign]

    async def _send(self) -> None:
        while self._sending:
            self._number += 1
            body = b"%07d" % self._number
            sent = self.history.sent[body] = Sent(body, self._clock())
            try:
                result = await self._producer.send(TOPIC, body)
                sent.status = result.status.name
                sent.place = Place(result.queue.queue_id, result.queue_offset)
                sent.phys = parse_message_id(result.offset_id)[2]
                sent.via = self._via.pop(body, 0)
            except (ClientError, RemotingError) as error:
                sent.status = type(error).__name__
            sent.ended = self._clock()
            await asyncio.sleep(PAUSE_S)

    # ---- consuming

    async def _consume(self, group: str, stays_s: float | None) -> None:
        async def take(message: ReceivedMessage) -> None:
            self.history.consumed[group][message.body] += 1
            self.history.show(Place(message.record.queue_id, message.record.queue_offset), message.body, group)

        while not self._closing.is_set():
            consumer = Consumer(
                self._cluster.name_server_addresses, group, from_where=FromWhere.FIRST, commit_s=1.0, rebalance_s=1.0
            )
            try:
                async with consumer:
                    await consumer.subscribe(TOPIC, take)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(stays_s):
                            await self._closing.wait()
            except (ClientError, RemotingError):
                await asyncio.sleep(0.2)

    async def _pop(self, group: str, stays_s: float | None) -> None:
        servers = self._cluster.name_server_addresses
        await self._pops.work(servers, TOPIC, group, self._closing, lambda: self._sending, stays_s)

    # ---- looking on, at masters and slaves alike

    async def _look_on(self) -> None:
        while not self._closing.is_set():
            name = self._rng.choice(self._cluster.members)
            queue = self._rng.randrange(QUEUES)
            end = await self._end(name, queue)
            if end is None:
                await asyncio.sleep(0.05)
                continue
            self.history.reported_end(queue, end, name)
            # A failover may undo the end of the log.
            at = max(0, end - 16) if self._rng.random() < 0.8 else self._rng.randrange(end + 1)
            for place, body in await self._pull(name, queue, at) or ():
                self.history.show(place, body, name)
                self.history.reads[name] += 1
            await asyncio.sleep(0.02)

    async def _watch_roles(self) -> None:
        while not self._closing.is_set():
            began = self._clock()
            said = await self._cluster.statuses()
            led = tuple(Led(n, s.epoch, s.confirmed) for n, s in said.items() if s.role == "Master")
            self.history.rounds.append(Round(began, self._clock(), led))
            for name, epoch, _ in led:
                self.history.leaders.setdefault(epoch, set()).add(name)
            await asyncio.sleep(0.1)

    async def _end(self, name: str, queue: int, topic: str = TOPIC) -> int | None:
        return await self._offset(name, RequestCode.GET_MAX_OFFSET, queue, topic)

    async def _offset(self, name: str, code: RequestCode, queue: int, topic: str) -> int | None:
        frame = Frame(code, ext={"topic": topic, "queueId": str(queue)})
        answer = await self._ask(name, frame)
        return None if answer is None or answer.code != ResponseCode.SUCCESS else int(answer.ext["offset"])

    async def _pull(self, name: str, queue: int, at: int, topic: str = TOPIC) -> list[tuple[Place, bytes]] | None:
        header = PullHeader(
            "looker-on", topic, queue, Long(at), 32, PullFlag.SUBSCRIPTION, Long(0), Long(0), Long(0), "*", "TAG",
            bname=f"c-{GROUP}",
        )  # fmt: skip
        answer = await self._ask(name, Frame(RequestCode.PULL_MESSAGE, ext=header.ext()))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return [(Place(r.queue_id, r.queue_offset), bytes(r.body)) for r in decode_records(answer.body)]
        except RecordError as error:
            raise NotInTime(f"{name} shows damaged records at {at} of queue {queue}: {error}") from error

    async def _ask(self, name: str, frame: Frame) -> Frame | None:
        try:
            answer = await self._direct.request(self._cluster.direct(name), frame, PULL_S)
        except RemotingError as error:
            self._last_answer = f"{type(error).__name__}: {error}"
            return None
        self._last_answer = f"code {answer.code} {answer.remark or ''}"
        return answer

    async def read(self, name: str) -> Log:
        """All messages of the topic that a member shows. Raises NotInTime when it does not answer. A member that the
        last fault stopped may still be starting.
        """
        log = Log({}, {})
        for queue in range(QUEUES):
            end = await _patiently(partial(self._end, name, queue))
            if end is None:
                raise NotInTime(f"{name} does not report the end of queue {queue}: {self._last_answer}")
            log.ends[queue] = end
            at = 0
            while at < end:
                got = await _patiently(partial(self._pull, name, queue, at))
                if not got:
                    raise NotInTime(f"{name} shows nothing at {at} of queue {queue}, which ends at {end}")
                log.bodies.update(got)
                at = got[-1][0].offset + 1
        return log

    async def read_deleted(self, name: str) -> set[bytes]:
        """The messages of the repeatedly deleted topic that a member shows. Raises NotInTime as `read` does."""
        found: set[bytes] = set()
        for queue in range(QUEUES):
            asked = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            at, end = [await _patiently(partial(self._offset, name, c, queue, DELETED_TOPIC)) for c in asked]
            if at is None or end is None:
                raise NotInTime(f"{name} does not report the ends of queue {queue} of {DELETED_TOPIC}")
            while at < end:
                got = await _patiently(partial(self._pull, name, queue, at, DELETED_TOPIC))
                if not got:
                    raise NotInTime(f"{name} shows nothing at {at} of queue {queue} of {DELETED_TOPIC}, up to {end}")
                found.update(body for _, body in got)
                at = got[-1][0].offset + 1
        return found


async def _patiently(ask: Callable[[], Awaitable[T | None]]) -> T | None:
    """The answer, or None when there is none for `BACK_S`."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + BACK_S
    while True:
        answer = await ask()
        if answer is not None or clock() > deadline:
            return answer
        await asyncio.sleep(0.2)
