"""What the proxy asks NameServers and brokers: routes, topic and group configurations, pops and what follows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ClusterInfo, TopicRoute
from gantry_broker.protocol.codes import MASTER_ID, Perm, RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import Code, MessageType
from gantry_broker.protocol.retry_policy import DEFAULT as DEFAULT_POLICY
from gantry_broker.protocol.retry_policy import RetryPolicy
from gantry_broker.proxy.answers import FAILURES, Refusal
from gantry_broker.remoting.errors import RemotingError

CALL_S: Final = 3.0
FRESH_S: Final = 20.0
"""Seconds for which a configuration counts before it is asked for again."""
ABSENT_S: Final = 1.0
"""The same for what was not found."""
MAX_KEPT: Final = 20_000
RETRY_TIMES: Final = 16
"""Deliveries after the first, of a group that no one has configured."""

T = TypeVar("T")
_ALL_TYPES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What the proxy needs of a consumer group's configuration."""

    orderly: bool = False
    retry_times: int = RETRY_TIMES
    known: bool = False
    retry_policy: RetryPolicy = DEFAULT_POLICY


class _Kept(Generic[T]):
    """Values that are asked for once, for all who want them, and again after some time."""

    def __init__(self, ask: Callable[[str], Awaitable[tuple[T, bool]]]) -> None:
        """`ask` returns the value, and whether it was found."""
        self._ask = ask
        self._values: dict[str, tuple[T, float]] = {}
        self._asking: dict[str, asyncio.Task[T]] = {}

    def cached(self, name: str) -> T | None:
        kept = self._values.get(name)
        return None if kept is None or time.monotonic() >= kept[1] else kept[0]

    async def get(self, name: str) -> T:
        """Return the value, an earlier one if asking fails. Raises what asking raises without one."""
        kept = self._values.get(name)
        if kept is not None and time.monotonic() < kept[1]:
            return kept[0]
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.ensure_future(self._fetch(name))
            task.add_done_callback(lambda done: self._done(name, done))
        try:
            return await asyncio.shield(task)
        except (RemotingError, BrokerError, NoRoute):
            if kept is None:
                raise
            self._values[name] = kept[0], time.monotonic() + ABSENT_S
            return kept[0]

    async def _fetch(self, name: str) -> T:
        value, exists = await self._ask(name)
        if len(self._values) >= MAX_KEPT:
            self._values.clear()
        self._values[name] = value, time.monotonic() + (FRESH_S if exists else ABSENT_S)
        return value

    def _done(self, name: str, task: asyncio.Task[T]) -> None:
        self._asking.pop(name, None)
        if not task.cancelled():
            task.exception()


class Brokers:
    """Requests of the proxy, over one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._types: _Kept[tuple[MessageType, ...]] = _Kept(self._ask_types)
        self._groups: _Kept[GroupConfig] = _Kept(self._ask_group)
        self._cluster: _Kept[list[str]] = _Kept(self._ask_masters)
        self._fresh: _Kept[list[str]] = _Kept(self._ask_again)
        self._seen: set[str] = set()
        """Names of broker groups that NameServers have named since the start."""
        self._absent: dict[str, float] = {}

    async def master_addresses(self) -> list[str]:
        """Return the addresses of all masters. Raises `answers.FAILURES`."""
        return await self._cluster.get("")

    # ---- routes

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None: there is none. A topic without one is not asked for at each request."""
        cached = self.session.cached_route(topic)
        if cached is not None:
            return cached
        now = time.monotonic()
        until = self._absent.get(topic)
        if until is not None and now < until:
            return None
        route = await self.session.route(topic)
        if route is None:
            if len(self._absent) >= MAX_KEPT:
                self._absent.clear()
            self._absent[topic] = now + ABSENT_S
        return route

    def masters(self, route: TopicRoute, permission: int = Perm.READ) -> list[str]:
        """Return the names of groups that have a master and this permission for the topic."""
        with_master = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
        return sorted(data.broker for data in route.queues if data.perm & permission and data.broker in with_master)

    async def address(self, broker: str, topic: str) -> str:
        """Return the address of a group's master. Raises NoRoute, and Refusal for a name that no group has: the handle
        of a client may have any, and would wait for a failover to end.
        """
        cached = self.session.address(broker)
        if cached is not None:
            return cached
        if not await self._exists(broker):
            raise Refusal(Code.INVALID_RECEIPT_HANDLE, f"the cluster has no broker {broker[:80]!r}")
        return await self.session.master(broker, topic)

    async def _exists(self, broker: str) -> bool:
        """Whether a NameServer has named the broker group since the start, also while it is away. While no NameServer
        answers, each may exist.
        """
        if broker in self._seen or self.session.addresses(broker):
            return True
        try:
            await self._fresh.get("")
        except FAILURES:
            return True
        return broker in self._seen

    async def _ask_again(self, _: str) -> tuple[list[str], bool]:
        """For all who ask within `ABSENT_S`."""
        return (await self._ask_masters(""))[0], False

    # ---- configurations

    async def message_types(self, topic: str) -> tuple[MessageType, ...]:
        """Return the types of messages that a topic takes; none when the topic is unknown."""
        cached = self._types.cached(topic)
        return await self._types.get(topic) if cached is None else cached

    def known_types(self, topic: str) -> tuple[MessageType, ...] | None:
        """Return the same if no one needs to be asked."""
        return self._types.cached(topic)

    async def group(self, group: str) -> GroupConfig:
        cached = self._groups.cached(group)
        return await self._groups.get(group) if cached is None else cached

    async def _ask_types(self, topic: str) -> tuple[tuple[MessageType, ...], bool]:
        route = await self.route(topic)
        if route is None:
            return (), False
        for broker in self.masters(route, Perm.READ | Perm.WRITE):
            try:
                address = await self.address(broker, topic)
                answer = await self.session.call(
                    address, Frame(RequestCode.GET_TOPIC_CONFIG, ext={"topic": topic, "lo": "true"}), CALL_S
                )
            except (RemotingError, NoRoute):
                continue
            if answer.code == ResponseCode.SUCCESS:
                return _types_of(answer.body), True
        return (MessageType.NORMAL,), False

    async def _ask_group(self, group: str) -> tuple[GroupConfig, bool]:
        addresses = await self._cluster.get("")
        if not addresses:
            raise NoRoute(f"no broker has a master now: the configuration of group {group} is not known")
        error: Exception | None = None
        for address in addresses:
            try:
                answer = await self.session.call(
                    address, Frame(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": group}), CALL_S
                )
            except RemotingError as failure:
                error = failure
                continue
            if answer.code == ResponseCode.SUCCESS:
                return _group_of(answer.body), True
            error = None
        if error is not None:
            raise error
        return GroupConfig(), False

    async def _ask_masters(self, _: str) -> tuple[list[str], bool]:
        answer = await self.session.call_name_server(Frame(RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError("the brokers of the cluster", answer.code, answer.remark)
        info = ClusterInfo.from_json(_json(answer.body))
        self._seen.update(info.brokers)
        masters = [
            broker.addresses[MASTER_ID] for _, broker in sorted(info.brokers.items()) if MASTER_ID in broker.addresses
        ]
        return masters, bool(masters)


def _json(body: bytes) -> Any:
    try:
        return fastjson.loads(body)
    except fastjson.JsonError:
        return {}


def _types_of(body: bytes) -> tuple[MessageType, ...]:
    value = _json(body)
    attributes = value.get("attributes") if isinstance(value, dict) else None
    name = attributes.get("message.type") if isinstance(attributes, dict) else None
    if name == "MIXED":
        return _ALL_TYPES
    kind = MessageType.__members__.get(str(name))
    return (MessageType.NORMAL,) if kind is None or not kind else (kind,)


def _group_of(body: bytes) -> GroupConfig:
    value = _json(body)
    if not isinstance(value, dict):
        return GroupConfig()
    times = value.get("retryMaxTimes")
    return GroupConfig(
        value.get("consumeMessageOrderly") is True,
        times if isinstance(times, int) and 0 <= times <= 10_000 else RETRY_TIMES,
        True,
        _policy_of(value.get("groupRetryPolicy")),
    )


def _policy_of(value: Any) -> RetryPolicy:
    try:
        return RetryPolicy.from_json(value)
    except BodyError:
        return DEFAULT_POLICY
