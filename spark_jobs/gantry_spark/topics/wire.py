"""Blocking connections to NameServers and brokers, with several requests under way, for Spark's driver and tasks.

A request is repeated until the timeout is over while a NameServer, a broker or a master is missing: a failover takes
seconds, and a restart of Spark's query costs more.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, TypeVar

from gantry_broker.client.selection import readable_queues
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import TopicRoute
from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    MASTER_ID,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    Perm,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.fastjson import JsonError, MessageQueue, loads
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import MAX_HEADER, Frame, FrameError, decode_header, encode_frame
from gantry_broker.protocol.headers import OffsetAnswer, QueueHeader

from gantry_spark.errors import SourceError
from gantry_spark.remoting import host_and_port
from gantry_spark.topics.queues import Bounds
from gantry_spark.trust import Trust

logger = logging.getLogger(__name__)

CONNECT_S: Final = 5.0
SILENCE_S: Final = 10.0
"""Seconds without a byte after which a connection with requests under way counts as broken."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
WINDOW: Final = 256 * 1024
"""Bytes that one read of a socket takes at most, beside bodies that go to a block."""
ROUTE_AGE_S: Final = 2.0
NOT_NOW: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        ResponseCode.RPC_SEND_TO_CHANNEL_FAILED,
        ResponseCode.RPC_TIME_OUT,
    )
)
"""Answers after which the same request may succeed soon."""
T = TypeVar("T")
_lengths = Struct(">iI").unpack_from


class Broken(Exception):
    """A connection does not answer; another try, perhaps at another address, may succeed."""


class Refused(SourceError):
    """An answer with an error code."""

    def __init__(self, address: str, code: int, answer: Frame) -> None:
        text = f"{address} refuses request {code}: {answer.code} {(answer.remark or '')[:300]}"
        if answer.code == ResponseCode.NO_PERMISSION:
            text += "; set accessKey and secretKey, or credentialsFile, of a user with the right"
        elif answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            text += "; set groupId to a group that exists"
        super().__init__(text)
        self.code = answer.code

    def __reduce__(self) -> tuple[object, ...]:
        return SourceError, (str(self),)


class Block:
    """Bodies of answers, one behind the other."""

    def __init__(self) -> None:
        self.buffer = bytearray(WINDOW)
        self.used = 0

    def room(self, size: int) -> memoryview:
        """Return where the next `size` bytes go. They count once `used` does."""
        end = self.used + size
        if end > len(self.buffer):
            larger = bytearray(max(end, 2 * len(self.buffer)))
            memoryview(larger)[: self.used] = memoryview(self.buffer)[: self.used]
            self.buffer = larger
        return memoryview(self.buffer)[self.used : end]


class Connection:
    """One connection. Not for several threads."""

    def __init__(self, address: str, trust: Trust) -> None:
        """Connect. Raises Broken, or SourceError for an address that is none."""
        self.address = address
        place = host_and_port(address)
        try:
            raw = socket.create_connection(place, timeout=CONNECT_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = trust.wrap(raw, place[0])
            self._socket.settimeout(SILENCE_S)
        except OSError as error:
            raise Broken(f"{address} does not answer: {error}") from None
        self._trust = trust
        self._window = memoryview(bytearray(WINDOW))
        """What a read of the socket brought; [begin, end) of it is still to be taken."""
        self._begin = self._end = 0
        self._answers: dict[int, Frame] = {}
        self._given_up: set[int] = set()
        self._opaque = 0

    def send(self, code: int, ext: dict[str, str], body: bytes = b"", flag: int = 0) -> int:
        """Send a request and return its number for `answer`. Raises Broken."""
        return self.send_all([Frame(code, ext=dict(ext), body=body, flag=flag)])[0]

    def send_all(self, frames: Iterable[Frame]) -> list[int]:
        """Send requests with one system call, and return their numbers. Raises Broken."""
        numbers: list[int] = []
        parts: list[bytes] = []
        for frame in frames:
            self._opaque += 1
            frame.opaque = self._opaque
            self._trust.sign(frame)
            parts.append(encode_frame(frame))
            numbers.append(frame.opaque)
        try:
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            raise Broken(f"{self.address} closed the connection: {error}") from None
        return numbers

    def answer(self, number: int, into: Block | None = None) -> Frame:
        """Wait for the answer to a request. `into` takes the body in place of the frame. Raises Broken."""
        while (answer := self._answers.pop(number, None)) is None:
            frame, size = self._next()
            if frame.opaque == number and frame.is_response and into is not None:
                self._take(into.room(size))
                into.used += size
                return frame
            body = bytearray(size)
            self._take(memoryview(body))
            if not frame.is_response:
                continue
            if frame.opaque in self._given_up:
                self._given_up.discard(frame.opaque)
                continue
            frame.body = bytes(body)
            self._answers[frame.opaque] = frame
        if into is not None:
            into.room(len(answer.body))[:] = answer.body
            into.used += len(answer.body)
            answer.body = b""
        return answer

    def _next(self) -> tuple[Frame, int]:
        """Take the header of the next frame, and return it with the bytes of its body. Raises Broken."""
        self._have(8)
        length, mark = _lengths(self._window, self._begin)
        size = mark & 0xFFFFFF
        try:
            if not size <= length - 4 <= MAX_FRAME_BYTES or size > MAX_HEADER:
                raise FrameError(f"a frame of {length} bytes with a header of {size} bytes is over the limit")
            self._have(8 + size)
            frame = decode_header(bytes(self._window[self._begin + 8 : self._begin + 8 + size]), mark >> 24)
        except FrameError as error:
            raise Broken(f"{self.address} does not speak RocketMQ's protocol: {error.reason}") from None
        self._begin += 8 + size
        return frame, length - 4 - size

    def _have(self, size: int) -> None:
        """Read until `size` bytes are in the window. Raises Broken."""
        held = self._end - self._begin
        if held >= size:
            return
        if self._begin + size > len(self._window) or not held:
            kept = bytes(self._window[self._begin : self._end])
            if size > len(self._window):
                self._window = memoryview(bytearray(size))
            self._window[:held] = kept
            self._begin, self._end = 0, held
        while self._end - self._begin < size:
            self._end += self._receive(self._window[self._end :])

    def _take(self, room: memoryview) -> None:
        """Fill `room`: from the window, and what it lacks from the socket. Raises Broken."""
        done = min(len(room), self._end - self._begin)
        room[:done] = self._window[self._begin : self._begin + done]
        self._begin += done
        while done < len(room):
            done += self._receive(room[done:])

    def _receive(self, room: memoryview) -> int:
        try:
            count = self._socket.recv_into(room)
        except OSError as error:
            raise Broken(f"{self.address} does not answer: {error}") from None
        if not count:
            raise Broken(f"{self.address} closed the connection")
        return count

    def give_up(self, numbers: Iterable[int]) -> None:
        """Drop the answers to these requests."""
        for number in numbers:
            if self._answers.pop(number, None) is None:
                self._given_up.add(number)

    def close(self) -> None:
        self._socket.close()


class GroupGone(SourceError):
    """The route of a topic has no broker of a group any more."""


class Pauses:
    """Growing pauses between tries, until a timeout is over."""

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s
        self._next = FIRST_PAUSE_S

    def wait(self) -> bool:
        """Wait before the next try; False: the time is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next, left))
        self._next = min(self._next * 2, LONGEST_PAUSE_S)
        return True


class Cluster:
    """NameServers and brokers as one process sees them: routes, and one connection for each address."""

    def __init__(self, name_servers: tuple[str, ...], trust: Trust, timeout_s: float) -> None:
        self.name_servers = name_servers
        self.trust = trust
        self.timeout_s = timeout_s
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, tuple[float, TopicRoute | None]] = {}

    # ---- connections

    def connection(self, address: str) -> Connection:
        """Return the connection to an address. Raises Broken."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(address, self.trust)
        return connection

    def drop(self, address: str) -> None:
        """Close the connection to an address, which is broken."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for address in list(self._connections):
            self.drop(address)

    def _call(self, address: str, code: int, ext: dict[str, str], body: bytes = b"") -> Frame:
        try:
            connection = self.connection(address)
            return connection.answer(connection.send(code, ext, body))
        except Broken:
            self.drop(address)
            raise

    def forget(self, topic: str) -> None:
        """Drop the route of a topic, which a broker contradicts."""
        self._routes.pop(topic, None)

    # ---- NameServers

    def _ask_name_server(self, code: int, ext: dict[str, str]) -> Frame:
        """Return the answer of the first NameServer that gives one. Raises SourceError."""
        pauses = Pauses(self.timeout_s)
        while True:
            problems: list[str] = []
            for address in self.name_servers:
                try:
                    answer = self._call(address, code, ext)
                except Broken as error:
                    problems.append(str(error))
                    continue
                if answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                    return answer
                if answer.code not in NOT_NOW:
                    raise Refused(f"NameServer {address}", code, answer)
                problems.append(f"{address}: {answer.code} {answer.remark or ''}")
            if not pauses.wait():
                raise SourceError(f"no NameServer answers: {'; '.join(problems)}")

    def topics(self) -> list[str]:
        """Return the topics that users made: no system topics, retries or dead letters. Raises SourceError."""
        answer = self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        try:
            names = loads(answer.body)["topicList"]
            all_names = sorted({name for name in names if isinstance(name, str)})
        except (JsonError, KeyError, TypeError):
            raise SourceError("a NameServer's list of topics cannot be read") from None
        return [
            name
            for name in all_names
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_"))
            and name not in SYSTEM_TOPICS
            and not name.endswith("_REPLY_TOPIC")
        ]

    def route(self, topic: str, max_age_s: float = ROUTE_AGE_S) -> TopicRoute | None:
        """Return the route of a topic; None: there is no such topic. Raises SourceError."""
        cached = self._routes.get(topic)
        now = time.monotonic()
        if cached is not None and now - cached[0] < max_age_s:
            return cached[1]
        answer = self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route: TopicRoute | None = None
        if answer.code == ResponseCode.SUCCESS:
            try:
                route = TopicRoute.from_json(loads(answer.body))
            except (JsonError, BodyError) as error:
                raise SourceError(f"the route of topic {topic} cannot be read: {error}") from None
        self._routes[topic] = (now, route)
        return route

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic; empty: there is no such topic. Raises SourceError."""
        route = self.route(topic)
        return [] if route is None else readable_queues(topic, route)

    def closed(self, topic: str) -> set[MessageQueue]:
        """Return the readable queues of a topic that its route offers to no producer. Raises SourceError."""
        route = self.route(topic)
        offered = {d.broker: d.write_queues for d in route.queues if d.perm & Perm.WRITE} if route else {}
        return {queue for queue in self.queues(topic) if queue.queue_id >= offered.get(queue.broker, 0)}

    def addresses(self, topic: str, group: str) -> list[tuple[bool, str]]:
        """Return (whether it is the master, address) of the brokers of a group, the master first."""
        route = self.route(topic)
        of_group = [b for b in (route.brokers if route else []) if b.name == group]
        return [(number == MASTER_ID, address) for b in of_group for number, address in sorted(b.addresses.items())]

    # ---- brokers

    def bounds(self, queues: Iterable[MessageQueue], *, wait: bool = True) -> dict[MessageQueue, Bounds]:
        """Return the first offset and the end of each queue. Raises SourceError when a group does not answer, and
        without `wait` GroupGone when its brokers are in no route any more.
        """
        left: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            left.setdefault(queue.broker, []).append(queue)
        bounds: dict[MessageQueue, Bounds] = {}
        for group, of_group in left.items():

            def ask(connection: Connection, master: bool, group_queues: list[MessageQueue] = of_group) -> None:
                codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
                for first in range(0, len(group_queues), 200):
                    some = group_queues[first : first + 200]
                    numbers = connection.send_all(
                        Frame(code, ext=QueueHeader(q.topic, q.queue_id).ext()) for q in some for code in codes
                    )
                    offsets = [_offset(connection, number, codes[i % 2]) for i, number in enumerate(numbers)]
                    for queue, low, high in zip(some, offsets[::2], offsets[1::2], strict=True):
                        bounds[queue] = Bounds(min(low, high), high, master)

            self.at_group(of_group[0].topic, group, ask, wait=wait)
        return bounds

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset that a search by store time finds: of a message at that time, or of one beside it."""
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "timestamp": str(timestamp_ms)}
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return self.at_group(
            queue.topic, queue.broker, lambda connection, _: _offset(connection, connection.send(code, ext), code)
        )

    def attributes(self, topic: str, group: str) -> dict[str, str]:
        """Return the attributes of a topic, as a broker group has them. Raises SourceError, Refused."""
        code = RequestCode.GET_TOPIC_CONFIG

        def ask(connection: Connection, _: bool) -> dict[str, str]:
            answer = _checked(connection, connection.answer(connection.send(code, {"topic": topic})), code)
            try:
                attributes = loads(answer.body).get("attributes") or {}
                return {str(name): str(value) for name, value in attributes.items()}
            except (JsonError, AttributeError):
                raise SourceError(f"broker {connection.address}: topic {topic} cannot be read") from None

        return self.at_group(topic, group, ask)

    def offset_of(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset of a consumer group in a queue; None: it has none. Raises SourceError."""
        code = RequestCode.QUERY_CONSUMER_OFFSET
        ext = {
            "consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id), "setZeroIfNotFound": "false",
        }  # fmt: skip

        def ask(connection: Connection, _: bool) -> int | None:
            answer = connection.answer(connection.send(code, ext))
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            return _in_answer(connection, answer, code)

        return self.at_group(queue.topic, queue.broker, ask, master_only=True, wait=False)

    def commit(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Commit the offsets of a consumer group. Raises SourceError."""
        by_group: dict[str, list[tuple[MessageQueue, int]]] = {}
        for queue, offset in offsets.items():
            by_group.setdefault(queue.broker, []).append((queue, offset))
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        for broker, of_broker in by_group.items():

            def send(connection: Connection, _: bool, ends: list[tuple[MessageQueue, int]] = of_broker) -> None:
                numbers = connection.send_all(
                    Frame(
                        code,
                        ext={
                            "consumerGroup": group, "topic": q.topic, "queueId": str(q.queue_id),
                            "commitOffset": str(offset),
                        },
                    )
                    for q, offset in ends
                )  # fmt: skip
                for number in numbers:
                    _checked(connection, connection.answer(number), code)

            self.at_group(of_broker[0][0].topic, broker, send, master_only=True, wait=False)

    def delete_group(self, topic: str, group: str) -> None:
        """Delete a consumer group and its offsets on the brokers of a topic. Raises SourceError."""
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        ext = {"groupName": group, "removeOffset": "true", "cleanOffset": "true"}

        def send(connection: Connection, _: bool) -> None:
            _checked(connection, connection.answer(connection.send(code, ext)), code)

        for broker in sorted({queue.broker for queue in self.queues(topic)}):
            self.at_group(topic, broker, send, master_only=True, wait=False)

    def at_group(
        self,
        topic: str,
        group: str,
        work: Callable[[Connection, bool], T],
        *,
        master_only: bool = False,
        wait: bool = True,
    ) -> T:
        """Run `work` with a connection to the group's master, or to a slave if the master does not answer.

        `work` gets the connection and whether it is the master's. It is repeated from its beginning. Raises SourceError
        when the time is over, Refused at once for an answer that will not change, and without `wait` GroupGone at once
        when the topic's route has no broker of the group.
        """
        pauses = Pauses(self.timeout_s)
        while True:
            problems: list[str] = []
            addresses = self.addresses(topic, group)
            if not addresses and not wait:
                raise GroupGone(f"group {group} of topic {topic} is in no route any more")
            for master, address in addresses:
                if master_only and not master:
                    continue
                try:
                    return work(self.connection(address), master)
                except Broken as error:
                    problems.append(str(error))
                    self.drop(address)
                except Refused as error:
                    if error.code not in NOT_NOW:
                        raise
                    problems.append(str(error))
            if not pauses.wait():
                reason = "; ".join(problems) or f"no NameServer knows a broker of group {group}"
                raise SourceError(f"group {group} of topic {topic} does not answer for {self.timeout_s:g} s: {reason}")
            self.forget(topic)


def _checked(connection: Connection, answer: Frame, code: int) -> Frame:
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(f"broker {connection.address}", code, answer)
    return answer


def _offset(connection: Connection, number: int, code: int) -> int:
    return _in_answer(connection, connection.answer(number), code)


def _in_answer(connection: Connection, answer: Frame, code: int) -> int:
    _checked(connection, answer, code)
    try:
        return max(0, int(OffsetAnswer.from_ext(answer.ext).offset))
    except BadField as error:
        raise SourceError(f"broker {connection.address}: {error}") from None
