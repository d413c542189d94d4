"""Handles the requests to a NameServer: a table of code to method, over the pure tables of `routes`.

There is one table for clients, and one for brokers on the registration port: a registration decides where clients send.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import orjson

from gantry_broker import descriptors
from gantry_broker.access.decide import DISABLED
from gantry_broker.admission import admit, left, owners_of
from gantry_broker.descriptors import CONNECTIONS_OF_ADDRESS
from gantry_broker.exposition import Family, Kind, text_page
from gantry_broker.http.families import access_families, build_info, refused_values
from gantry_broker.loopwatch import LoopWatch, loop_families
from gantry_broker.namesrv.access import NameServerAccess
from gantry_broker.namesrv.early import PATIENCE_MS, EarlyQuestions
from gantry_broker.namesrv.kv import MAX_VALUE, KvConfig, KvFull
from gantry_broker.namesrv.registration import decode_registration, registration_steps
from gantry_broker.namesrv.routes import EXPIRE_MS, Entry, Fenced, NotHeld, Registration, RouteTable, WrongGroup
from gantry_broker.protocol import fastjson, plausible
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import DataVersion, RegisterBody, TopicConfigs, topic_list
from gantry_broker.protocol.codes import (
    ACCESS_VERSION,
    FAQ,
    MASTER_ID,
    ORDER_TOPIC_NAMESPACE,
    GantryCode,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.fields import BodyError, parse
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.headers import (
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    GetKvHeader,
    KvHeader,
    NamespaceHeader,
    QueryDataVersionHeader,
    RegisterBrokerHeader,
    RouteHeader,
    UnregisterBrokerHeader,
    WritePermHeader,
)
from gantry_broker.protocol.requests import REQUESTS
from gantry_broker.refusals import Refusals
from gantry_broker.remoting.budget import memory_limit, remoting_budget
from gantry_broker.remoting.connection import Connection, Shared
from gantry_broker.remoting.members import HandshakeGuard
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.shares import Owners, Shares, request_bytes
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

AT_ONCE_BYTES = 64 * 1024
"""Bytes of a registration that is read in one step: some 400 topics."""
UNWRITABLE_NAMESPACE: Final = "GANTRY_GROUPS_WITHOUT_WRITE_PERM"
"""Keys of this namespace are the broker groups whose write permission is taken: a restart keeps them."""
AT_ONCE_S = 0.003
"""The time for which requests of one read are answered at once; the rest waits for its turn."""
UNSUPPORTED = -1
"""Stands for all unknown request codes in the count of requests."""

Answer = Callable[["NameService", Connection, Frame], Frame]


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class NotYours(Exception):
    """A broker sends a request in another one's name."""


REFUSED = (NotYours, BadField, BodyError)


def _refusal(frame: Frame, error: Exception) -> Frame:
    if isinstance(error, BadField):
        return Frame.response_to(frame, error.code, str(error))
    code = ResponseCode.NO_PERMISSION if isinstance(error, NotYours) else ResponseCode.SYSTEM_ERROR
    return Frame.response_to(frame, code, str(error))


Waiting = tuple[Frame, Owners, int]
"""A request that waits, who pays for it, and its bytes."""


class NameService:
    """The Handler of all listeners of one NameServer, and of its registration port."""

    def __init__(
        self,
        name: str,
        kv: KvConfig,
        *,
        clock: Callable[[], int] = steady_ms,
        access: NameServerAccess | None = None,
    ) -> None:
        """`clock` returns milliseconds of a monotonic clock. A wall clock that jumps forward would make every broker
        look silent.
        """
        self.name = name
        self.routes = RouteTable()
        self.kv = kv
        self._follow_kv()
        self.connections = 0
        self.refusals = Refusals()
        self.requests: dict[int, int] = {}
        self.settings = {"orderMessageEnable": "true", "returnOrderTopicConfigToBroker": "true"}
        self.access = access or NameServerAccess("", DISABLED)
        self.guard: HandshakeGuard | None = None
        """Guards the registration port; None: there is no such port."""
        self._clock = clock
        self._next_source = 0
        self.shared = Shared(
            remoting_budget(memory_limit(None), descriptors.budget().remoting), lambda: CONNECTIONS_OF_ADDRESS
        )
        """The shared state of all listeners' connections."""
        self.tls: PortsTls | None = None
        self.loop_watch = LoopWatch()
        self.slices = self.shared.slices
        self.slices.on_ran = self.loop_watch.holds.ran
        self._one_at_a_time = asyncio.Lock()
        self._working: dict[Connection, asyncio.Task[None]] = {}
        self._waiting = Shares(self.shared.budget.buffered_bytes)
        """Bytes of requests that wait for a turn."""
        self._early: EarlyQuestions[tuple[Connection, Frame]] = EarlyQuestions(steady_ms())

    # Handler

    def on_open(self, conn: Connection) -> None:
        self.connections += 1
        self._next_source += 1
        conn.attrs["source"] = self._next_source

    def on_close(self, conn: Connection) -> None:
        self.connections -= 1
        left(self.access.gate, conn)
        if "broker" not in conn.attrs:
            return
        for address in self.routes.connection_lost(conn.attrs["source"], self._clock()):
            log.info("broker %s: its connection broke", address)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        if self.access.gate.active and conn.identity is None:
            frames = admit(self.access.gate, conn, frames)
        out = []
        ends = time.perf_counter() + AT_ONCE_S
        for index, frame in enumerate(frames):
            if "busy" in conn.attrs or _is_long(conn, frame) or (index and time.perf_counter() > ends):
                self._in_turn(conn, frames[index:])
                break
            code = (
                frame.code if frame.code in SERVED else UNSUPPORTED
            )  # There are many unknown codes: one series counts them.
            self.requests[code] = self.requests.get(code, 0) + 1
            answer = self.answer(conn, frame)
            if frame.is_oneway or (answer.code == ResponseCode.TOPIC_NOT_EXIST and self._waits(conn, frame)):
                continue
            out.append(encode_frame(answer))
        if out:
            conn.write(b"".join(out))
        if self._early:
            self._answer_early()

    def _in_turn(self, conn: Connection, frames: list[Frame]) -> None:
        """Queue requests behind one that takes long: a task answers them in their order.

        The connection is not read meanwhile. The bytes that wait on all connections are bounded, and each user or
        unsigned address has a share of them.
        """
        waiting: deque[Waiting] = conn.attrs.setdefault("busy", deque())
        owners = _payers(conn)
        for frame in frames:
            size = request_bytes(frame)
            if self._waiting.take(owners, size):
                waiting.append((frame, owners, size))
            elif not frame.is_oneway:
                conn.send(Frame.response_to(frame, ResponseCode.SYSTEM_BUSY, "too many requests wait"))
        conn.throttle(True)
        if conn not in self._working:
            self._working[conn] = asyncio.get_running_loop().create_task(self._work(conn, waiting))

    async def _work(self, conn: Connection, waiting: deque[Waiting]) -> None:
        try:
            while waiting:
                frame, owners, size = waiting.popleft()
                try:
                    answer = await self.answer_in_slices(conn, frame)
                finally:
                    self._waiting.give_back(owners, size)
                if not frame.is_oneway and not conn.closed:
                    conn.send(answer)
        finally:
            for _, owners, size in waiting:
                self._waiting.give_back(owners, size)
            del self._working[conn]
            conn.attrs.pop("busy", None)
            conn.throttle(False)

    async def answer_in_slices(self, conn: Connection, frame: Frame) -> Frame:
        """Answer any request, one that takes long in slices of the event loop or beside it."""
        code = frame.code if frame.code in SERVED else UNSUPPORTED
        self.requests[code] = self.requests.get(code, 0) + 1
        if not _is_long(conn, frame):
            await self.slices.grant()
            return self.answer(conn, frame)
        if frame.code == GantryCode.UPDATE_ACCESS:
            return await self._update_access(frame)
        if frame.code in _KEPT:
            return await self._change_kv(frame, owners_of(conn)[1])
        if frame.code in _LISTS:
            return await self._list_topics(frame)
        try:
            header = _registration_header(frame)
            _check_name(conn, header.clusterName, header.brokerName, header.gantryMember)
            body = RegisterBody()
            async with self._one_at_a_time:
                if conn.closed:  # The connection has ended: no one needs the result.
                    return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR)
                async for step in self.slices.sliced(registration_steps(frame.body, compressed=header.compressed)):
                    body = step or body
                if conn.closed:
                    return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR)
                return self._take_in(conn, frame, header, body.configs)
        except REFUSED as error:
            return _refusal(frame, error)

    async def _update_access(self, frame: Frame) -> Frame:
        try:
            version = await self.access.put(frame.body)
        except ValueError as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        except OSError as error:
            log.error("the access table cannot be kept: %s", error)
            version = self.access.version
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext={ACCESS_VERSION: str(version)})

    def _waits(self, conn: Connection, frame: Frame) -> bool:
        # Of the header only what the answer needs: 1,000 requests of 256 KiB each may wait.
        question = Frame(frame.code, frame.opaque, frame.flag, ext={}, serialize=frame.serialize)
        if (topic := frame.ext.get("topic")) is not None:
            question.ext["topic"] = topic
        waits = self._early.keep((conn, question), steady_ms(), anybody=self.routes.has_master())
        if waits:
            asyncio.get_running_loop().call_later((PATIENCE_MS + 10) / 1000, self._answer_early)
        return waits

    def _answer_early(self) -> None:
        for conn, frame in self._early.due(steady_ms(), anybody=self.routes.has_master()):
            if not conn.closed:
                conn.send(self.answer(conn, frame))

    async def close(self) -> None:
        """End all tasks."""
        self.loop_watch.close()
        await end_tasks(*self._working.values())

    def expire(self) -> None:
        """Forget silent brokers; called every few seconds."""
        for address in self.routes.expire(self._clock()):
            log.info("broker %s: silent for too long, or its successor did not come", address)

    def answer(self, conn: Connection, frame: Frame) -> Frame:
        method = (_ANSWERS if conn.identity is None else _ANSWERS_TO_BROKERS).get(frame.code)
        if method is None and frame.code in _ANSWERS_TO_BROKERS:
            return Frame.response_to(
                frame,
                ResponseCode.NO_PERMISSION,
                f"request {frame.code} is for the brokers of this cluster: only the registration port takes it",
            )
        if method is None:
            return Frame.response_to(
                frame,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {frame.code} is not supported by a NameServer",
            )
        try:
            return method(self, conn, frame)
        except REFUSED as error:
            return _refusal(frame, error)

    # Brokers

    def _register(self, conn: Connection, frame: Frame) -> Frame:
        header = _registration_header(frame)
        _check_name(conn, header.clusterName, header.brokerName, header.gantryMember)
        configs = None
        if frame.body:
            configs = decode_registration(frame.body, compressed=header.compressed).configs
        return self._take_in(conn, frame, header, configs)

    def _take_in(
        self, conn: Connection, frame: Frame, header: RegisterBrokerHeader, configs: TopicConfigs | None
    ) -> Frame:
        conn.attrs["broker"] = True
        registration = _registration(conn, header)
        try:
            master = self.routes.register(registration, configs, self._clock())
        except Fenced as error:
            return Frame.response_to(
                frame,
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                str(error),
            )
        except plausible.Implausible as error:
            self.refusals.add("registration", error.reason, f"{conn!r}: {error}")
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        except WrongGroup as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        return self._registered(frame, registration, master)

    def _register_changes(self, conn: Connection, frame: Frame) -> Frame:
        """As `_register`, with the topics that have changed. Another code than SUCCESS: the broker registers all."""
        header = _registration_header(frame)
        _check_name(conn, header.clusterName, header.brokerName, header.gantryMember)
        since = parse((header.gantrySince or "").encode("utf-8", "replace"), "gantrySince")
        configs = decode_registration(frame.body, compressed=False).configs
        gone = parse(frame.body, "registration", fastjson.MAX_REQUEST_DIALECT).texts("gone")
        registration = _registration(conn, header)
        try:
            master = self.routes.register_changes(registration, DataVersion.of(since), configs, gone, self._clock())
        except NotHeld as error:
            return Frame.response_to(frame, ResponseCode.QUERY_NOT_FOUND, str(error))
        except WrongGroup as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        return self._registered(frame, registration, master)

    def _registered(self, frame: Frame, registration: Registration, master: Entry | None) -> Frame:
        ext = {ACCESS_VERSION: str(self.access.version)}
        if registration.broker_id != MASTER_ID and master is not None:
            ext |= {"masterAddr": master.registration.address, "haServerAddr": master.registration.ha_address}
        orders = self.kv.table(ORDER_TOPIC_NAMESPACE)
        body = b""
        if orders and self.settings["returnOrderTopicConfigToBroker"] == "true":
            body = fastjson.dumps({"table": orders})
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext, body=body)

    def _unregister(self, conn: Connection, frame: Frame) -> Frame:
        header = UnregisterBrokerHeader.parse(frame)
        _check_name(conn, header.clusterName, header.brokerName)
        source = conn.attrs["source"]
        self.routes.unregister(header.brokerName, header.brokerId, header.brokerAddr, source, self._clock())
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    def _query_data_version(self, conn: Connection, frame: Frame) -> Frame:
        header = QueryDataVersionHeader.parse(frame)
        _check_name(conn, header.clusterName, header.brokerName)
        registration = DataVersion.from_json(fastjson_body(frame))
        registered = self.routes.touch(header.brokerName, header.brokerId, header.brokerAddr, self._clock())
        changed = registered is None or registered != registration
        body = b"" if registered is None else fastjson.dumps(registered.to_json())
        ext = {"changed": "true" if changed else "false"}
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext, body=body)

    # Routes and lists

    def _route(self, conn: Connection, frame: Frame) -> Frame:
        topic = RouteHeader.parse(frame).topic
        route = self.routes.route(topic, conn.listener)
        if route is None:
            return Frame.response_to(
                frame,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:300]}{FAQ}",
            )
        if self.settings["orderMessageEnable"] == "true":
            route.order_conf = self.kv.get(ORDER_TOPIC_NAMESPACE, topic)
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(route.to_json()))

    def _cluster_info(self, conn: Connection, frame: Frame) -> Frame:
        info = self.routes.cluster_info(conn.listener)
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(info.to_json()))

    def _system_topics(self, conn: Connection, frame: Frame) -> Frame:
        topics, address = self.routes.system_topics(conn.listener)
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=topic_list(topics, address))

    async def _list_topics(self, frame: Frame) -> Frame:
        """Answer with names of topics, of which there may be 200,000."""
        try:
            parts = self._listed(frame)
        except BadField as error:
            return Frame.response_to(frame, error.code, str(error))
        names: dict[str, None] = {}
        async for part in self.slices.sliced(parts):
            names.update(dict.fromkeys(part))
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=topic_list(names))

    def _listed(self, frame: Frame) -> Iterator[list[str]]:
        """Return the names in parts. Raises BadField."""
        if frame.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return self.routes.topics_in_parts()
        if frame.code == RequestCode.GET_TOPICS_BY_CLUSTER:
            return self.routes.topics_in_parts(ClusterHeader.parse(frame).cluster)
        unit, subscribed = {
            RequestCode.GET_UNIT_TOPIC_LIST: (True, None),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, True),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (False, True),
        }[RequestCode(frame.code)]
        return self.routes.unit_topics_in_parts(unit=unit, subscribed=subscribed)

    def _delete_topic(self, conn: Connection, frame: Frame) -> Frame:
        header = DeleteTopicInNamesrvHeader.parse(frame)
        self.routes.delete_topic(header.topic, header.clusterName or None)
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    # Key-value configuration

    async def _change_kv(self, frame: Frame, owner: str) -> Frame:
        """Return the answer that follows the write to the disk. `owner`: who asks, see `KvConfig.put`."""
        try:
            if frame.code in (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER):
                return await self._change_write_perm(frame)
            header = KvHeader.parse(frame)
            if frame.code == RequestCode.DELETE_KV_CONFIG:
                await self.kv.delete(header.namespace, header.key)
            elif header.value is None or len(header.value) > MAX_VALUE:
                raise BadField("value", header.value, f"a text of at most {MAX_VALUE} characters")
            else:
                await self.kv.put(header.namespace, header.key, header.value, owner)
            self._follow_kv()
        except BadField as error:
            return Frame.response_to(frame, error.code, str(error))
        except KvFull as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        except OSError as error:
            log.error("request %d: %s", frame.code, error)
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, f"cannot be stored: {error}")
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    async def _change_write_perm(self, frame: Frame) -> Frame:
        """Take a group's write permission, or give it back. RocketMQ's NameServer changes the topics that it has, so
        the next registration of the broker gives the permission back.
        """
        group = WritePermHeader.parse(frame).brokerName
        if frame.code == RequestCode.ADD_WRITE_PERM_OF_BROKER:
            await self.kv.delete(UNWRITABLE_NAMESPACE, group)
            field = "addTopicCount"
        else:
            if group in self.routes.groups:
                await self.kv.put(UNWRITABLE_NAMESPACE, group, "true")
            field = "wipeTopicCount"
        self._follow_kv()
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext={field: str(self.routes.topics_of(group))})

    def _follow_kv(self) -> None:
        self.routes.unwritable = (self.kv.table(UNWRITABLE_NAMESPACE) or {}).keys()

    def _get_kv(self, conn: Connection, frame: Frame) -> Frame:
        header = GetKvHeader.parse(frame)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return Frame.response_to(
                frame,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace[:100]} Key: {header.key[:200]}",
            )
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext={"value": value})

    def _kv_list(self, conn: Connection, frame: Frame) -> Frame:
        namespace = NamespaceHeader.parse(frame).namespace
        table = self.kv.table(namespace)
        if table is None:
            return Frame.response_to(
                frame, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace[:100]}"
            )
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps({"table": table}))

    # The NameServer's own settings

    def _get_config(self, conn: Connection, frame: Frame) -> Frame:
        lines = [f"{key}={value}" for key, value in {"name": self.name, **self.settings}.items()]
        return Frame.response_to(frame, ResponseCode.SUCCESS, body="\n".join(lines).encode() + b"\n")

    def _update_config(self, conn: Connection, frame: Frame) -> Frame:
        """Apply a body of Java properties; one invalid line refuses all of them."""
        changes = {}
        try:
            lines = frame.body.decode().splitlines()
        except UnicodeDecodeError:
            raise BodyError("the body is not UTF-8; lines of key=value are expected") from None
        for line in lines:
            if not line.strip() or line.lstrip().startswith(("#", "!")):
                continue
            key, separator, value = (part.strip() for part in line.partition("="))
            if key not in self.settings or not separator or value not in ("true", "false"):
                raise BodyError(f"{line[:100]!r} cannot be set; {' and '.join(self.settings)} can, to true or false")
            changes[key] = value
        self.settings.update(changes)
        return Frame.response_to(frame, ResponseCode.SUCCESS)


def _payers(conn: Connection) -> Owners:
    """Return who pays for requests that wait: brokers together, or the user or address of a client."""
    return ("brokers",) if conn.identity is not None else owners_of(conn)[1:]


def _is_long(conn: Connection, frame: Frame) -> bool:
    """Whether a task answers the request: a change that waits for the disk, an access table, a list of topics, or a
    registration that is read in slices. Ports for clients refuse a registration before they read its body. True for
    every compressed one: its size shows only after decompression.
    """
    if conn.identity is None:
        return frame.code in _KEPT or frame.code in _LISTS
    if frame.code == GantryCode.UPDATE_ACCESS:
        return True
    if frame.code != RequestCode.REGISTER_BROKER:
        return False
    return len(frame.body) > AT_ONCE_BYTES or (bool(frame.body) and frame.ext.get("compressed", "").lower() == "true")


def _check_name(conn: Connection, cluster: str, group: str, member: int | None = None) -> None:
    """Raise NotYours when a broker sends for another group, or in another member's name."""
    me = conn.identity
    if me is None or (cluster, group) != (me.cluster, me.group) or member not in (None, me.member):
        shown = "" if member is None else f", gantryMember {member}"
        raise NotYours(
            f"the request is for clusterName {cluster[:300]!r}, brokerName {group[:300]!r}{shown}, "
            f"but the peer is {me or 'not authenticated'}"
        )


def fastjson_body(frame: Frame) -> object:
    """Return the body's object, None for an empty body. Raises BodyError."""
    if not frame.body:
        return None
    try:
        return fastjson.loads(frame.body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"body: {error}") from None


def _registration_header(frame: Frame) -> RegisterBrokerHeader:
    """Raise BadField, and BodyError when the body's checksum is wrong."""
    header = RegisterBrokerHeader.parse(frame)
    if header.bodyCrc32 and zlib.crc32(frame.body) & 0x7FFFFFFF != header.bodyCrc32:
        raise BodyError("the field bodyCrc32 does not match the body")
    return header


def _registration(conn: Connection, header: RegisterBrokerHeader) -> Registration:
    return Registration(
        header.clusterName,
        header.brokerName,
        header.brokerId,
        header.brokerAddr,
        conn.attrs["source"],
        header.haServerAddr or "",
        header.gantryMember,
        header.gantryEpoch or 0,
        _listeners(header.gantryAddresses),
        header.heartbeatTimeoutMillis or EXPIRE_MS,
    )


def _listeners(addresses: str | None) -> dict[str, str]:
    if not addresses:
        return {}
    fields = parse(addresses.encode("utf-8", "replace"), "gantryAddresses")
    return {str(name): fields.text(str(name)) for name in fields.names()}


def metrics(service: NameService) -> str:
    """Return the NameServer's metrics in Prometheus' text form."""
    routes, shared = service.routes, service.shared
    brokers = sum(len(group.entries) for group in routes.groups.values())

    def one(name: str, kind: Kind, text: str, value: float) -> Family:
        return Family(f"gantry_namesrv_{name}", kind, text, [({}, value)])

    requests = Family("gantry_namesrv_requests_total", "counter", "Requests, by code.")
    for code, count in sorted(service.requests.items()):
        requests.add({"code": "unsupported" if code == UNSUPPORTED else str(code)}, count)
    failed = Family(
        "gantry_namesrv_handshakes_failed_total",
        "counter",
        "Connections to the registration port that did not prove to come from a broker, by reason.",
    )
    for reason, count in sorted(service.guard.refused.items() if service.guard is not None else ()):
        failed.add({"reason": reason}, count)
    families = [
        one("groups", "gauge", "Broker groups that are registered.", len(routes.groups)),
        one("brokers", "gauge", "Brokers that are registered.", brokers),
        one("topics", "gauge", "Topics of all groups; one counts for each.", routes.topic_count()),
        one("connections", "gauge", "Open connections.", service.connections),
        one("connections_cut_total", "counter", "Connections closed because of the bytes that they held.", shared.cut),
        one("unfinished_frame_bytes", "gauge", "Bytes of incomplete frames.", shared.held),
        *(
            Family(name, kind, text, [({}, value)])
            for name, kind, text, value in loop_families(service.loop_watch.holds, "gantry_namesrv")
        ),
        requests,
        failed,
        refused_values(service.refusals, {}),
        *access_families(service.access.gate, {}),
        *([] if service.tls is None else service.tls.families({})),
        build_info("nameserver"),
    ]
    return text_page(families)


def health(service: NameService) -> bytes:
    return orjson.dumps({"name": service.name, "status": "ok", "groups": sorted(service.routes.groups)})


CHANGE: Final = "_change_kv"
"""The method that answers after the write to the disk, in a task."""
ACCESS: Final = "_update_access"
"""The method that reads an access table, in a task."""
LIST: Final = "_list_topics"
"""The method that lists topics, in a task."""


def _methods(names: Mapping[int, str]) -> dict[int, Answer]:
    """Return the methods that answer at once. Raises AttributeError when the service has no such method."""
    return {
        code: getattr(NameService, name) for code, name in names.items() if name and name not in (CHANGE, ACCESS, LIST)
    }


_ANSWERS: Final = _methods({int(code): row.name_server for code, row in REQUESTS.items()})
_ANSWERS_TO_BROKERS: Final = _methods({int(code): row.registration for code, row in REQUESTS.items()})
_KEPT: Final = frozenset(int(code) for code, row in REQUESTS.items() if row.name_server == CHANGE)
"""Changes that the NameServer keeps on its disk."""
_LISTS: Final = frozenset(int(code) for code, row in REQUESTS.items() if row.name_server == LIST)
SERVED: Final = frozenset((*_ANSWERS, *_ANSWERS_TO_BROKERS, *_KEPT, *_LISTS))
"""The request codes that a NameServer counts each by itself."""
