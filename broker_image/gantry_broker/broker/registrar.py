"""Keeps this broker registered with every NameServer: at once after a change of role or topics, else every 30 s.

The leader registers under the group's address as brokerId 0 (under its own while nothing answers there), a slave under
its own. A refusal by a NameServer changes nothing here: anyone may have registered there before. Gantry's own fields:
`gantryEpoch` keeps a former leader out of its successor's route, `gantryMember` identifies a member in all roles, and
`gantryAddresses` are the addresses that each extra listener of the NameServer gives to its clients.

NameServers of RocketMQ, at which the leader of a migrated cluster registers too, know no members. They drop an address
when the connection ends by which it was registered last, and that may be a former leader's: one that was frozen may
register once more before it sees its successor. A broker of the source that is started again registers as the master,
whatever its `brokerId` was, with the permission that the cutover left it (`BrokerStartup` of 4.9.7 and 5.5.0). So the
leader asks for its route again and again, and registers where that leads to another address or lacks the permission.
They also end a connection when one of the addresses that it has registered was silent for two minutes, and drop another
one with it. So a leader whose address changes registers the next one over a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from gantry_broker.broker.metadata.tables import RELEASED, route_permission
from gantry_broker.contracts.models import NameServerLink
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, TopicConfig, TopicRoute
from gantry_broker.protocol.codes import (
    ACCESS_VERSION,
    CONTROL_TOPIC,
    MASTER_ID,
    GantryCode,
    Perm,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, RegisterBrokerHeader, RouteHeader, UnregisterBrokerHeader
from gantry_broker.protocol.limits import SMALL_BODY
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.tables import Metadata, Tables
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 6.0
REGISTERED_S: Final = 1.0
"""The longest time in seconds that a change of a topic waits for slow NameServers. It waits for no failing one."""
RETRY_S: Final = 1.0
"""Time until the next attempt after a failed one; brokers and NameServers may start in any order."""
ASK_S: Final = 0.25
"""Time between two questions to a source's NameServer whether its route leads to the leader."""
SOURCE_STATE: Final = 1 << 40
"""The state version under which the leader registers at a source's NameServers. Those of 5.x keep a master against
another one with a lower version, and a source's is 0 or the epoch of its controller.
"""

MOST_CHANGES: Final = 400
"""Changed topics up to which a registration has these alone."""


class _Held(NamedTuple):
    """The topics that a NameServer has: the tables and their version, and the broker's permission."""

    tables: Tables
    version: DataVersion
    permission: int


class Registrar:
    """One task for each NameServer, so that a dead one delays no other."""

    def __init__(
        self,
        config: BrokerConfig,
        settings: BrokerSettings,
        client: RemotingClient,
        *,
        meta: Metadata,
        replication: ReplicationService,
        role: RoleState,
        health: MemberHealth,
        events: Events,
        clock: Clock,
        access: AccessControl,
        source: RemotingClient,
    ) -> None:
        """`source`: the client for RocketMQ's NameServers of a migrated cluster, which know no members."""
        self._access = access
        self._source = source
        self._sources = frozenset(config.source_name_servers)
        """RocketMQ's NameServers: those at which this broker registers, and those that it has left."""
        self._config = config
        self._settings = settings
        self._client = client
        self._meta = meta
        self._replication = replication
        self._role = role
        self._health = health
        self._events = events
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, asyncio.Event] = {}
        self._failing: set[str] = set()
        self._refusals: dict[str, str] = {}
        """By NameServer: the reason for which it refused the last registration."""
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._closing = False
        self.last_ok_ms: dict[str, int] = {}
        self._pieces: dict[str, tuple[TopicConfig, int, bytes]] = {}
        self._body: tuple[tuple[object, ...], bytes] = ((), b"")
        self._held: dict[str, _Held] = {}
        """By NameServer: the topics that it has taken over."""
        self._whole_only: set[str] = set()
        """NameServers of an older version, which know no REGISTER_CHANGES."""
        self._source_has: dict[str, str] = {}
        """By NameServer of a source: the address that the present connection has registered."""
        self._lost: dict[str, str] = {}
        """By NameServer of a source: in which way its route does not lead here."""
        self._losses: dict[str, int] = {}
        """By NameServer of a source: how often its route did not lead here. It takes topics of another version only."""

    def start(self) -> None:
        for address in (*self._config.registration_addresses, *self._config.source_name_servers):
            self._begin(address)
        self._events.tables_changed.subscribe(self.soon)
        self._events.role_changed.subscribe(lambda leads: self.soon())
        self._events.address_changed.subscribe(self.soon)

    def _begin(self, address: str) -> None:
        self._wanted[address] = asyncio.Event()
        self._waiting[address] = []
        self._tasks[address] = asyncio.get_running_loop().create_task(self._keep(address))

    async def use_sources(self, addresses: Sequence[str]) -> None:
        """Register at these NameServers of the source from now on, and leave the others."""
        own = set(self._config.registration_addresses)
        named = {address: None for address in addresses if address not in own}
        left = [address for address in self._tasks if address not in own and address not in named]
        self._sources |= named.keys()
        for address in left:
            await end_tasks(self._tasks.pop(address))
            self._source.drop(address)  # It forgets this broker with the connection.
            for table in (
                self._wanted,
                self._waiting,
                self._refusals,
                self.last_ok_ms,
                self._held,
                self._source_has,
                self._lost,
            ):
                table.pop(address, None)
            self._failing.discard(address)
        for address in named:
            if address not in self._tasks and not self._closing:
                self._begin(address)

    def soon(self) -> None:
        """Register soon: clients' routes have changed."""
        for event in self._wanted.values():
            event.set()

    def links(self) -> list[NameServerLink]:
        """Return the cluster's own NameServers as this member sees them."""
        return [
            NameServerLink(address=address, state=self._state(address), rtt_us=self._client.round_trip_us(address))
            for address in self._tasks
            if address not in self._sources
        ]

    def _state(self, address: str) -> Literal["connected", "silent", "unknown"]:
        if address in self._failing or address in self._refusals:
            return "silent"
        return "connected" if address in self.last_ok_ms else "unknown"

    async def registered(self) -> None:
        """Return when every NameServer that answers has the present topics, or after `REGISTERED_S`.

        As RocketMQ's broker does: a client that created a topic finds its route.
        """
        loop = asyncio.get_running_loop()
        waits = []
        for address, waiting in self._waiting.items():
            if address not in self._failing and address not in self._sources:
                waiting.append(done := loop.create_future())
                waits.append(done)
        self.soon()
        if waits:
            await asyncio.wait(waits, timeout=REGISTERED_S)

    def lost(self, address: str) -> None:
        """Register soon: a connection of this broker has ended. A NameServer that restarted needs that."""
        self._held.pop(address, None)
        self._whole_only.discard(address)
        event = self._wanted.get(address)
        if event is not None:
            event.set()

    async def _keep(self, address: str) -> None:
        due_now = self._wanted[address]
        # Not `while True`: Python 3.11's wait_for can lose a cancellation that comes together with its result.
        while not self._closing:
            due_now.clear()
            waiting, self._waiting[address] = self._waiting[address], []
            delay = self._settings.registerNameServerPeriod / 1000
            try:
                if not await self._register(address):
                    delay = RETRY_S
                if address in self._failing:
                    self._failing.discard(address)
                    log.info("registered with NameServer %s again", address)
            except RemotingError as error:
                delay = RETRY_S
                if address not in self._failing:
                    self._failing.add(address)
                    log.warning("cannot register with NameServer %s: %s", address, error)
            except Exception:
                delay = RETRY_S
                log.exception("registering with NameServer %s failed", address)
            self._health.name_servers_answer(not self._failing >= set(self._tasks) - self._sources)
            for done in waiting:
                if not done.done():
                    done.set_result(None)
            if self._closing:
                return
            if address in self._sources:
                await self._until_lacking(address, due_now, delay)
            else:
                await set_within(due_now, delay)

    async def _until_lacking(self, address: str, due_now: asyncio.Event, delay: float) -> None:
        """Wait until the next registration at a source's NameServer is due, or its route does not lead here."""
        loop = asyncio.get_running_loop()
        until = loop.time() + delay
        while (left := until - loop.time()) > 0:
            if await set_within(due_now, min(left, RETRY_S if address in self._lost else ASK_S)):
                return
            try:
                loss = await self._loss(address) if self._role.leading else ""
            except RemotingError:
                return  # The next registration says what is wrong.
            before = self._lost.pop(address, "")
            if loss:
                if loss != before:
                    log.warning("NameServer %s of the source %s", address, loss)
                self._lost[address] = loss
                self._losses[address] = self._losses.get(address, 0) + 1
                return

    async def _loss(self, address: str) -> str:
        """Return in which way the route of a source's NameServer does not lead to this leader; empty: it does. Raises
        RemotingError.
        """
        if address not in self.last_ok_ms or RELEASED in self._meta.working.marks:
            return ""  # It is to lead elsewhere.
        topic = self._meta.working.topics.get(self._config.group)
        if topic is None:
            return ""
        frame = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=RouteHeader(topic.name).ext())
        answer = await self._client_of(address).request(address, frame, TIMEOUT_S)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return "does not know this group"
        try:
            if answer.code != ResponseCode.SUCCESS or len(answer.body) > SMALL_BODY:
                return ""  # It does not say.
            route = TopicRoute.from_json(fastjson.loads(answer.body))
        except (fastjson.JsonError, BodyError):
            return ""
        permission = topic.perm & (self._permission() | Perm.INHERIT)
        return loss(route, self._config.group, self._role.address, permission)

    def _header(self, body: bytes, since: DataVersion | None = None) -> RegisterBrokerHeader:
        config = self._config
        role = "group" if self._role.at_group_address else "member"
        return RegisterBrokerHeader(
            brokerName=config.group,
            brokerAddr=self._role.address,
            clusterName=config.cluster,
            brokerId=Long(self._role.broker_id),
            haServerAddr=config.member_address,
            bodyCrc32=Long(zlib.crc32(body) & 0x7FFFFFFF),
            gantryEpoch=Long(self._replication.epoch),
            gantryMember=config.member,
            gantryAddresses=orjson.dumps(
                {name: parts[role] for name, parts in config.listener_addresses.items() if role in parts}
            ).decode(),
            gantrySince=None if since is None else orjson.dumps(since.to_json()).decode(),
        )

    def _permission(self) -> int:
        permission = route_permission(self._settings.brokerPermission, self._meta.working.marks)
        return permission if self._role.takes_writes else permission & ~Perm.WRITE

    def changes(self, held: _Held) -> bytes | None:
        """Return the body of REGISTER_CHANGES for a NameServer that has these topics; None: it needs all of them."""
        tables, permission = self._meta.working, self._permission()
        if held.tables is not tables or held.permission != permission:
            return None
        names = tables.topics_since(held.version.counter)
        if names is None or len(names) > MOST_CHANGES:
            return None
        pieces, gone = [], []
        for name in sorted(names - {CONTROL_TOPIC}):
            config = tables.topics.get(name)
            if config is None:
                gone.append(name)
            else:
                pieces.append(topic_json(name, config, permission))
        body = registration_body(tables.topic_version, pieces, gone)
        return body if len(body) <= SMALL_BODY else None

    def body(self) -> bytes:
        """Return the topic table of a registration, built again only after a change of topics or of the broker's
        permission.
        """
        tables = self._meta.working
        permission = self._permission()
        key = (id(tables), tables.topic_version, permission, len(tables.topics))
        if self._body[0] != key:
            self._body = (key, self._make_body(tables, permission))
        return self._body[1]

    def _make_body(self, tables: Tables, permission: int) -> bytes:
        """Return `RegisterBody` as JSON. It keeps each topic's JSON: one new topic among thousands costs little."""
        before = self._pieces
        self._pieces = pieces = {}
        for name, config in tables.topics.items():
            if name == CONTROL_TOPIC:
                continue
            piece = before.get(name)
            if piece is None or piece[0] is not config or piece[1] != permission:
                piece = (config, permission, topic_json(name, config, permission))
            pieces[name] = piece
        return registration_body(tables.topic_version, [piece[2] for piece in pieces.values()], [])

    def _body_for_source(self, address: str) -> bytes:
        """Return the topic table for a source's NameServer."""
        self.body()
        version = self._meta.working.topic_version
        version = replace(
            version, state_version=SOURCE_STATE, timestamp=version.timestamp + self._losses.get(address, 0)
        )
        return registration_body(version, [piece[2] for piece in self._pieces.values()], [])

    async def _register(self, address: str) -> bool:
        """Register; return False when the NameServer refused. Raises RemotingError."""
        if self._replication.role.value == "Waiting" and not self._replication.epoch and not self._role.serves:
            return True  # This member has no role yet, so it has no place in a route.
        if address in self._sources and not self._role.leading:
            return True  # The former slaves of the source may still be there, under the same numbers.
        if address in self._sources and RELEASED in self._meta.working.marks:
            await self._release(address)
            return True
        client = self._client_of(address)
        if address in self._sources:
            if self._source_has.get(address, self._role.address) != self._role.address:
                client.drop(address)
            self._source_has[address] = self._role.address
        tables, permission = self._meta.working, self._permission()
        now_held = _Held(tables, tables.topic_version, permission)
        held = self._held.pop(address, None)
        answer: Frame | None = None
        if held is not None and (body := self.changes(held)) is not None:
            header = self._header(body, held.version)
            frame = Frame(GantryCode.REGISTER_CHANGES, ext=header.ext(), body=body)
            answer = await client.request(address, frame, TIMEOUT_S)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._whole_only.add(address)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            tables, permission = self._meta.working, self._permission()
            now_held = _Held(tables, tables.topic_version, permission)
            body = self._body_for_source(address) if address in self._sources else self.body()
            frame = Frame(RequestCode.REGISTER_BROKER, ext=self._header(body).ext(), body=body)
            answer = await client.request(address, frame, TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            if address not in self._whole_only and address not in self._sources:
                self._held[address] = now_held
            self._refusals.pop(address, None)
            self.last_ok_ms[address] = self._clock.now_ms()
            return await self._has_access_table(address, answer.ext.get(ACCESS_VERSION, ""))
        remark = (answer.remark or f"answer {answer.code}")[:300]
        if self._refusals.get(address) != remark:
            self._refusals[address] = remark
            log.warning("NameServer %s refused the registration: %s", address, remark)
        return False

    async def _release(self, address: str) -> None:
        """Leave a source's NameServer after a rollback, once: later the former broker has this place, and NameServers
        of 4.9 remove whatever broker has it. One that did not hear this drops the broker after two minutes. Raises
        RemotingError.
        """
        if self.last_ok_ms.pop(address, None) is not None:
            self._held.pop(address, None)
            header = self._leaving()
            frame = Frame(RequestCode.UNREGISTER_BROKER, ext=header.ext())
            await self._client_of(address).request(address, frame, TIMEOUT_S)

    def _leaving(self) -> UnregisterBrokerHeader:
        config = self._config
        return UnregisterBrokerHeader(
            brokerName=config.group,
            brokerAddr=self._role.address,
            clusterName=config.cluster,
            brokerId=Long(self._role.broker_id),
        )

    async def _has_access_table(self, address: str, held: str) -> bool:
        """Send the access table to a NameServer that has none or an older one. False: it must be tried again."""
        table = self._access.table_json
        version = whole_number(held)
        if not table or version is None or version >= self._access.version:
            return True
        answer = await self._client.request(address, Frame(GantryCode.UPDATE_ACCESS, body=table), TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            return True
        log.warning("NameServer %s refused the access table: %s", address, (answer.remark or "")[:300])
        return False

    async def close(self) -> None:
        """Take this broker out of the routes."""
        self._closing = True
        self.soon()
        await end_tasks(*self._tasks.values())
        header = self._leaving()

        async def leave(address: str) -> None:
            with contextlib.suppress(RemotingError):
                client = self._client_of(address)
                await client.request(address, Frame(RequestCode.UNREGISTER_BROKER, ext=header.ext()), 0.5)

        # A source's NameServer would drop the next leader, too: it knows the group's address alone.
        connected = [a for a in self._tasks if a not in self._sources and self._client.connected(a)]
        await asyncio.gather(*(leave(a) for a in connected))

    def _client_of(self, address: str) -> RemotingClient:
        return self._source if address in self._sources else self._client


def loss(route: TopicRoute, group: str, address: str, permission: int) -> str:
    """Return in which way the route of a group's own topic does not lead to `address` with `permission`; empty: it
    does.
    """
    masters = [broker.addresses.get(MASTER_ID) for broker in route.brokers if broker.name == group]
    if masters != [address]:
        leads = ", ".join(master for master in masters if master) or "no broker"
        return f"leads clients of {group} to {leads}, not to {address}: stop a broker of the source that runs there"
    has = [queues.perm for queues in route.queues if queues.broker == group]
    if has != [permission]:
        return f"gives topics of {group} the permission {has}, not [{permission}], which a broker of the source had"
    return ""


def topic_json(name: str, config: TopicConfig, permission: int) -> bytes:
    """Return `"name":{...}`, without the rights that the broker has not."""
    value = config.to_json()
    if permission != 6:
        value["perm"] &= permission | 1
    return orjson.dumps(name) + b":" + orjson.dumps(value)


def registration_body(version: DataVersion, topics: list[bytes], gone: list[str]) -> bytes:
    """Return `RegisterBody` as JSON; `gone`: deleted topics, of REGISTER_CHANGES alone."""
    return b"".join(
        (
            b'{"filterServerList":[],',
            b'"gone":' + orjson.dumps(gone) + b"," if gone else b"",
            b'"topicConfigSerializeWrapper":{"dataVersion":',
            orjson.dumps(version.to_json()),
            b',"topicConfigTable":{',
            b",".join(topics),
            b"}}}",
        )
    )
