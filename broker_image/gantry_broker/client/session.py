"""Routes, connections and heartbeats, shared by producers, consumers and admins.

A session fetches a route when it needs one, every 30 s, and at once when a broker is unreachable. A group keeps its
address over a failover, so a broken connection is made again quickly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final

from gantry_broker.client.consumer_admin import ConsumerAdmin, ConsumerAdminHandler
from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.client.proxy_address import ONLY_REMOTING, proxy_of
from gantry_broker.client.uniqueid import local_address
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ConsumerData, Heartbeat, TopicRoute
from gantry_broker.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import RouteHeader, UnregisterClientHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import ConnectError, RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.tasks import Started, end_tasks

if TYPE_CHECKING:
    from gantry_broker.client.credentials import Credentials, Signer
    from gantry_broker.client.message import Reply
    from gantry_broker.client.transaction_state import Check

log = logging.getLogger(__name__)

ROUTE_POLL_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 30.0
MIN_ROUTE_AGE_SECONDS: Final = 0.2
"""Seconds between two fetches of a route, also after failures."""
ROUTE_WAIT_SECONDS: Final = 0.3
"""A failed send continues with the cached route when a new one takes longer than this."""
IDLE_CHECK_SECONDS: Final = 5.0
"""A connection that received nothing for this long gets a heartbeat: its broker may be gone without a reset."""
CALL_SECONDS: Final = 3.0
OTHER_SERVER_SECONDS: Final = 0.5
"""Seconds for each further NameServer when the first one has no route."""
BACKOFF_FIRST: Final = 0.005
BACKOFF_MAX: Final = 0.05


def next_backoff(seconds: float) -> float:
    """Return the pause after a pause of `seconds`."""
    return min(seconds * 2, BACKOFF_MAX)


def session_of(
    name_servers: str | Sequence[str] | Session,
    credentials: Credentials | None,
    tls: TlsOptions | ssl.SSLContext | None = None,
) -> Session:
    """Return the given session, or a new one.

    Raises ValueError for credentials that a session does not sign with, and for the address of a proxy.
    """
    if not isinstance(name_servers, Session) and proxy_of(name_servers) is not None:
        raise ValueError(ONLY_REMOTING.format(name_servers))
    if not isinstance(name_servers, Session):
        return Session(name_servers, credentials=credentials, tls=tls)
    if credentials is not None and credentials != name_servers.credentials:
        raise ValueError("the session has other credentials: give them to the Session")
    return name_servers


def parse_name_servers(name_servers: str | Sequence[str]) -> list[str]:
    """Parse "a:9876;b:9876" (or with commas) or a list into addresses. Raises ValueError when there is none."""
    texts = name_servers.replace(",", ";").split(";") if isinstance(name_servers, str) else list(name_servers)
    addresses = [address.strip() for address in texts if address.strip()]
    if not addresses:
        raise ValueError(f"no NameServer address in {name_servers!r}; write host:port, several joined by ';'")
    return addresses


class Session(Started):
    """One client, as brokers see it. Use `async with Session("127.0.0.1:9876") as session`, or `start` and `close`.

    Several producers and consumers (of different groups) may share one.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        client_id: str | None = None,
        route_poll_s: float = ROUTE_POLL_SECONDS,
        heartbeat_s: float = HEARTBEAT_SECONDS,
        tls: TlsOptions | ssl.SSLContext | None = None,
        credentials: Signer | None = None,
    ) -> None:
        """`tls`: all connections to NameServers and brokers have TLS. `credentials`: signs every request, those to
        NameServers too. Raises TlsError when the files of `tls` cannot be used.
        """
        self.credentials = credentials
        self.name_servers = parse_name_servers(name_servers)
        self.client_id = client_id or f"{local_address()}@{os.getpid()}#{time.time_ns() ^ id(self)}"
        self.remoting = RemotingClient(
            on_disconnect=self._disconnected, sign=None if credentials is None else credentials.sign, tls=tls
        )
        self.producer_groups: set[str] = set()
        self.checks: dict[str, Check] = {}
        """Producer group to the function that checks its transactions."""
        self.replies: dict[str, asyncio.Future[Reply]] = {}
        """Correlation id of a request to the future of its reply."""
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        self.on_group_change: list[Callable[[str], None]] = []
        """Called with the name of a consumer group whose members have changed."""
        self.on_disconnect: list[Callable[[str], None]] = []
        """Called with the address of a broker whose connection broke."""
        self._route_poll_s = route_poll_s
        self._heartbeat_s = heartbeat_s
        self._current = 0
        self._routes: dict[str, TopicRoute] = {}
        self._fetched_at: dict[str, float] = {}
        self._route_fetches: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._registering_again: set[str] = set()
        self._users = 0
        self._closed = False
        self._consumer_admins: dict[str, ConsumerAdmin] = {}
        self.remoting.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_ids_changed)
        answers = ConsumerAdminHandler(self._consumer_admins.get, self.name_servers)
        for code in ConsumerAdminHandler.CODES:
            self.remoting.register(code, answers.answer)

    async def start(self) -> None:
        """Start the session. Each `start` needs a `close`; the last one ends the session."""
        self._users += 1
        if self._users == 1:
            self.spawn(self._poll_routes())
            self.spawn(self._send_heartbeats_forever())
            self.spawn(self._check_idle_connections())

    async def close(self) -> None:
        self._users -= 1
        if self._users > 0 or self._closed:
            return
        self._closed = True
        await end_tasks(*self._tasks)
        await self.remoting.close()

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a task that ends with the session at the latest."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Routes

    async def call_name_server(self, frame: Frame, timeout: float = CALL_SECONDS) -> Frame:
        """Return the first answer of a NameServer. Raises the last RemotingError when none answers."""
        error: RemotingError = ConnectError("no NameServer")
        deadline = time.monotonic() + timeout
        for _ in range(len(self.name_servers)):
            address = self.name_servers[self._current % len(self.name_servers)]
            left = deadline - time.monotonic()
            if left <= 0:
                break
            patience = left if len(self.name_servers) == 1 else max(left / 2, 0.05)
            try:
                return await self.remoting.request(address, frame, patience)
            except RemotingError as failure:
                error = failure
                self._current += 1
        raise error

    async def route(self, topic: str, *, fresh: bool = False, max_age: float = 0.0) -> TopicRoute | None:
        """Return the route of a topic; None: no broker has it. `fresh` fetches a route that is older than `max_age`
        seconds.

        Raises RemotingError when no NameServer answers and no route is cached, BrokerError, BodyError.
        """
        cached = self._routes.get(topic)
        if cached is not None and (not fresh or time.monotonic() - self._fetched_at.get(topic, -1e9) < max_age):
            return cached
        fetch = self._route_fetches.get(topic)
        if fetch is None:
            fetch = self._route_fetches[topic] = asyncio.ensure_future(self._fetch_route(topic))
            fetch.add_done_callback(lambda done: self._on_route_fetched(topic, done))
        try:
            return await asyncio.shield(fetch)
        except RemotingError:
            if cached is None:
                raise
            return cached  # an unreachable NameServer does not invalidate the cached route

    async def route_after_failure(self, topic: str) -> TopicRoute | None:
        """Fetch a route after a failure, and fall back to the cached one.

        The cached route also serves when the answer is late: the NameServer may have failed together with the broker.
        """
        fetch = self.route(topic, fresh=True, max_age=MIN_ROUTE_AGE_SECONDS)
        cached = self._routes.get(topic)
        if cached is None:
            return await fetch
        try:
            async with asyncio.timeout(ROUTE_WAIT_SECONDS):
                return await fetch or cached
        except TimeoutError:
            return cached

    def cached_route(self, topic: str) -> TopicRoute | None:
        """Return the last fetched route."""
        return self._routes.get(topic)

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """Return a broker's address in the cached routes."""
        return self._brokers.get(broker, {}).get(broker_id)

    def addresses(self, broker: str) -> dict[int, str]:
        return self._brokers.get(broker, {})

    async def _fetch_route(self, topic: str) -> TopicRoute | None:
        header = RouteHeader(topic, acceptStandardJsonOnly=True)
        answer = await self.call_name_server(Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=header.ext()))
        if answer.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY):
            answer = await self._fetch_from_others(header) or answer
        if answer.code == ResponseCode.SYSTEM_BUSY:  # It has started and does not know the users yet.
            raise ConnectError(f"route of {topic}: {answer.remark}")
        self._fetched_at[topic] = time.monotonic()
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(f"route of {topic}", answer.code, answer.remark)
        try:
            route = TopicRoute.from_json(fastjson.loads(answer.body))
        except fastjson.JsonError as error:
            raise BodyError(f"route of {topic}: {error}") from None
        self._routes[topic] = route
        for broker in route.brokers:
            self._brokers[broker.name] = broker.addresses
        return route

    async def _fetch_from_others(self, header: RouteHeader) -> Frame | None:
        """Return a route from another NameServer, because one that has just started does not know all brokers.

        The one that has the route becomes the first choice.
        """
        for step in range(1, len(self.name_servers)):
            position = (self._current + step) % len(self.name_servers)
            frame = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=header.ext())
            try:
                answer = await self.remoting.request(self.name_servers[position], frame, OTHER_SERVER_SECONDS)
            except RemotingError:
                continue
            if answer.code == ResponseCode.SUCCESS:
                self._current = position
                return answer
        return None

    def _on_route_fetched(self, topic: str, task: asyncio.Task[TopicRoute | None]) -> None:
        self._route_fetches.pop(topic, None)
        if not task.cancelled():
            task.exception()

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self._route_poll_s)
            for topic in list(self._routes):
                try:
                    await self.route(topic, fresh=True)
                except (RemotingError, BrokerError, BodyError) as error:
                    log.warning("route of %s: %s", topic, error)

    # Calls to brokers

    async def call(self, address: str, frame: Frame, timeout: float = CALL_SECONDS) -> Frame:
        """Return a broker's answer, with any code. Raises RemotingError."""
        return await self.remoting.request(address, frame, timeout)

    async def call_checked(self, address: str, frame: Frame, what: str, timeout: float = CALL_SECONDS) -> Frame:
        """Return a broker's answer with code SUCCESS. Raises BrokerError for another code, and RemotingError."""
        answer = await self.remoting.request(address, frame, timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(what, answer.code, answer.remark)
        return answer

    async def master(self, broker: str, topic: str | None = None) -> str:
        """Return the address of a group's master. Raises NoRoute."""
        address = self.address(broker)
        if address is None and topic is not None:
            await self.route_after_failure(topic)
            address = self.address(broker)
        if address is None:
            raise NoRoute(f"broker group {broker} has no master in the known routes")
        return address

    # Heartbeats

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.client_id, sorted(self.producer_groups), [build() for build in self.consumers.values()])

    async def send_heartbeats(self, addresses: Sequence[str] | None = None) -> list[str]:
        """Send heartbeats to brokers (None: all in the cached routes), and return the addresses that answered."""
        heartbeat = self.heartbeat()
        if not heartbeat.producers and not heartbeat.consumers:
            return []
        body = fastjson.dumps(heartbeat.to_json())
        if addresses is None:
            # Slaves need heartbeats of consumers only, because consumers may read from them.
            addresses = [
                address
                for broker in self._brokers.values()
                for broker_id, address in broker.items()
                if broker_id == MASTER_ID or heartbeat.consumers
            ]

        async def call(address: str) -> str | None:
            try:
                await self.call_checked(address, Frame(RequestCode.HEART_BEAT, body=body), f"heartbeat to {address}")
            except (RemotingError, BrokerError) as error:
                log.info("heartbeat: %s", error)
                return None
            return address

        answers = await asyncio.gather(*(call(address) for address in dict.fromkeys(addresses)))
        return [address for address in answers if address is not None]

    async def _send_heartbeats_forever(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.send_heartbeats()

    async def _check_idle_connections(self) -> None:
        """Find connections with a frozen or unreachable peer; a failed call makes the client reconnect."""
        before: dict[str, int | None] = {}
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            brokers = {address for broker in self._brokers.values() for address in broker.values()}
            now = {address: self.remoting.reads(address) for address in self.remoting.addresses if address in brokers}
            idle = [address for address, reads in now.items() if before.get(address) == reads]
            if idle:
                await self.send_heartbeats(idle)
            before = now

    async def unregister(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Unregisters a group's member from all connected brokers."""
        header = UnregisterClientHeader(self.client_id, producer, consumer)
        reached = set(self.remoting.addresses)

        async def call(address: str) -> None:
            with contextlib.suppress(RemotingError):
                await self.call(address, Frame(RequestCode.UNREGISTER_CLIENT, ext=header.ext()), 1.0)

        everywhere = {address for broker in self._brokers.values() for address in broker.values()}
        await asyncio.gather(*(call(address) for address in everywhere & reached))

    def _disconnected(self, address: str) -> None:
        """Register consumers again with a broker whose connection broke, or with its successor at the same address."""
        if self._closed or not self.consumers or address in self._registering_again:
            return
        if not any(address in broker.values() for broker in self._brokers.values()):
            return
        for listener in self.on_disconnect:
            listener(address)
        self._registering_again.add(address)
        self.spawn(self._register_again(address))

    async def _register_again(self, address: str) -> None:
        pause = BACKOFF_FIRST
        deadline = time.monotonic() + 60.0
        try:
            while time.monotonic() < deadline:
                await asyncio.sleep(pause)
                if not any(address in broker.values() for broker in self._brokers.values()):
                    return
                if await self.send_heartbeats([address]):
                    return
                pause = next_backoff(pause)
        finally:
            self._registering_again.discard(address)

    # Requests of brokers about consumers

    def register_consumer_admin(self, consumer: ConsumerAdmin) -> None:
        """Directs brokers' requests about this consumer's group to it."""
        self._consumer_admins[consumer.group] = consumer

    def unregister_consumer_admin(self, consumer: ConsumerAdmin) -> None:
        self._consumer_admins.pop(consumer.group, None)

    async def _on_ids_changed(self, conn: object, frame: Frame) -> None:
        for listener in self.on_group_change:
            listener(frame.ext.get("consumerGroup", ""))
