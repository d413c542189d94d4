"""The clients of one proxy process: their settings, their telemetry streams, and what was asked of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gantry_broker.protocol.grpc_contract import AddressScheme, ClientType, Code, Language, v2
from gantry_broker.protocol.retry_policy import Exponential
from gantry_broker.proxy.answers import Refusal
from gantry_broker.proxy.brokers import GroupConfig
from gantry_broker.proxy.messages import MAX_BODY, millis, set_millis
from gantry_broker.proxy.names import resource_name
from gantry_broker.proxy.rpc import Line

UNSEEN_S: Final = 60.0
"""A client that asked nothing for this long, and has no telemetry stream, has gone."""
MAX_CLIENTS: Final = 50_000
MAX_NAMES: Final = 1_000
"""Topics of one client's settings."""
MAX_SETTINGS: Final = 64 * 1024
"""Bytes of one client's settings: 500 topics with their filters."""
MAX_KEPT: Final = 64 << 20
"""Bytes of the settings of all clients."""
MAX_EXPRESSION: Final = 16_384
"""Characters of a filter in the settings: a tag may be as long."""
MAX_ENDPOINTS: Final = 8
MAX_HOST: Final = 255
MAX_TEXT: Final = 100
"""Characters of what a client says of itself."""
MAX_ASKED: Final = 1_000
RECEIVE_BATCH: Final = 32
LONG_POLLING_MS: Final = 20_000
LITE_QUOTA: Final = 2_000
MAX_LITE_TOPIC: Final = 64
PRODUCER_ATTEMPTS: Final = 3
PRODUCER_BACKOFF_MS: Final = (10, 1_000)
ClientKey = tuple[str, str]
"""User and client id."""
CONSUMERS: Final = frozenset(
    {
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    }
)


def shown(text: str, most: int) -> str:
    """Return what a client says of itself as it may stand in a log, a metric and a terminal."""
    text = text[:most]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def known_endpoints(given: Any) -> Any:
    """Return a client's `Endpoints` without what is not known. Raises Refusal."""
    endpoints = v2.Endpoints(scheme=given.scheme if given.scheme in _SCHEMES else 0)
    if len(given.addresses) > MAX_ENDPOINTS:
        raise Refusal(Code.ILLEGAL_ACCESS_POINT, f"the endpoints have over {MAX_ENDPOINTS} addresses")
    for address in given.addresses:
        if len(address.host) > MAX_HOST:
            raise Refusal(Code.ILLEGAL_ACCESS_POINT, f"the host of an endpoint has over {MAX_HOST} characters")
        endpoints.addresses.add(host=address.host, port=address.port)
    return endpoints


def known_settings(given: Any) -> Any:
    """Return a client's settings without what is not known: what is kept of them for as long as the client is there.

    Raises Refusal. Pure.
    """
    settings = v2.Settings()
    if given.client_type in _KINDS:
        settings.client_type = given.client_type
    if given.HasField("access_point"):
        settings.access_point.CopyFrom(known_endpoints(given.access_point))
    if given.HasField("request_timeout"):
        set_millis(settings.request_timeout, millis(given.request_timeout))
    agent = given.user_agent
    settings.user_agent.language = agent.language if agent.language in _LANGUAGES else 0
    for name in ("version", "platform", "hostname"):
        setattr(settings.user_agent, name, shown(getattr(agent, name), MAX_TEXT))
    if given.HasField("publishing"):
        settings.publishing.SetInParent()
        for topic in given.publishing.topics:
            settings.publishing.topics.add(resource_namespace=topic.resource_namespace, name=topic.name)
    elif given.HasField("subscription"):
        group, subscription = given.subscription.group, settings.subscription
        subscription.group.resource_namespace, subscription.group.name = group.resource_namespace, group.name
        for entry in given.subscription.subscriptions:
            if len(entry.expression.expression) > MAX_EXPRESSION:
                raise Refusal(
                    Code.ILLEGAL_FILTER_EXPRESSION, f"a filter expression has over {MAX_EXPRESSION} characters"
                )
            one = subscription.subscriptions.add()
            one.topic.resource_namespace, one.topic.name = entry.topic.resource_namespace, entry.topic.name
            one.expression.type = entry.expression.type
            one.expression.expression = entry.expression.expression
    if (size := settings.ByteSize()) > MAX_SETTINGS:
        raise Refusal(Code.BAD_REQUEST, f"the settings have {size} bytes, at most {MAX_SETTINGS}")
    return settings


def answered_settings(given: Any, group: GroupConfig | None) -> Any:
    """Return the settings that a client gets for its own. `group`: of a consumer. Raises Refusal. Pure."""
    settings = known_settings(given)
    settings.metric.on = False
    policy = settings.backoff_policy
    policy.Clear()
    if group is None:
        policy.max_attempts = PRODUCER_ATTEMPTS
        set_millis(policy.exponential_backoff.initial, PRODUCER_BACKOFF_MS[0])
        set_millis(policy.exponential_backoff.max, PRODUCER_BACKOFF_MS[1])
        policy.exponential_backoff.multiplier = 2.0
        settings.publishing.max_body_size = MAX_BODY
        settings.publishing.validate_message_type = True
        return settings
    policy.max_attempts = group.retry_times + 1
    backoff = group.retry_policy.backoff
    if isinstance(backoff, Exponential):
        set_millis(policy.exponential_backoff.initial, backoff.initial_ms)
        set_millis(policy.exponential_backoff.max, backoff.max_ms)
        policy.exponential_backoff.multiplier = float(backoff.multiplier)
    else:
        for pause_ms in backoff:
            set_millis(policy.customized_backoff.next.add(), pause_ms)
    subscription = settings.subscription
    subscription.fifo = group.orderly
    subscription.receive_batch_size = RECEIVE_BATCH
    set_millis(subscription.long_polling_timeout, LONG_POLLING_MS)
    subscription.lite_subscription_quota = LITE_QUOTA
    subscription.max_lite_topic_size = MAX_LITE_TOPIC
    return settings


class Client:
    """One client, by its id. Each user has ids of its own: anybody may send any id."""

    __slots__ = (
        "address",
        "group",
        "id",
        "kind",
        "language",
        "line",
        "owner",
        "seen",
        "settings",
        "since",
        "size",
        "topics",
        "user",
        "version",
    )

    def __init__(self, client_id: str, address: str, now: float, user: str = "") -> None:
        self.id = client_id
        self.user = user
        """Empty: anybody."""
        self.address = address
        self.owner = f"user {user}" if user else f"address {address}"
        """Who pays for it."""
        self.settings: Any = None
        self.size = 0
        """Bytes of its settings."""
        self.group = ""
        """A consumer's group."""
        self.topics: tuple[str, ...] = ()
        """The topics that it sends to, or has subscribed to."""
        self.kind = ClientType.CLIENT_TYPE_UNSPECIFIED
        self.language = ""
        self.version = ""
        self.line: Line | None = None
        """Its telemetry stream."""
        self.since = self.seen = now

    @property
    def key(self) -> ClientKey:
        return self.user, self.id

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "address": self.address,
            "type": self.kind.name,
            "language": self.language,
            "version": self.version,
            "group": self.group,
            "topics": self.topics,
            "connected": self.line is not None,
        }


class Clients:
    """All clients of this process."""

    def __init__(self, most_bytes: int = MAX_KEPT) -> None:
        """`most_bytes`: of the settings of all clients."""
        self._most_bytes = most_bytes
        self.kept = 0
        """Bytes of the settings of all clients."""
        self._clients_of: Counter[str] = Counter()
        self._kept_of: Counter[str] = Counter()
        """Clients and bytes of each user or, unsigned, address: it may have as much as is free."""
        self._clients: dict[ClientKey, Client] = {}
        self._publishers: dict[str, dict[ClientKey, Client]] = {}
        """Clients that send to a topic."""
        self._waiting: dict[str, tuple[Client, asyncio.Future[Any]]] = {}
        self._changed: set[ClientKey] = set()
        self._numbers = itertools.count(1)
        self._turn = itertools.count()

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str, user: str = "") -> Client | None:
        return self._clients.get((user, client_id))

    def enter(self, client_id: str, address: str, user: str = "") -> Client | None:
        """Return the client of this id, a new one if needed; None: there are too many."""
        client = self._clients.get((user, client_id))
        if client is None:
            client = Client(client_id, address, time.monotonic(), user)
            if self._clients_of[client.owner] >= MAX_CLIENTS - len(self._clients):
                return None
            self._clients[client.key] = client
            self._clients_of[client.owner] += 1
        return client

    def has_room(self, client: Client, settings: Any) -> bool:
        """Whether these settings may be kept in the place of the client's former ones."""
        size, free = int(settings.ByteSize()), self._most_bytes - (self.kept - client.size)
        return self._kept_of[client.owner] - client.size + size <= free

    def set_settings(self, client: Client, settings: Any) -> None:
        """Keep a client's settings. `settings`: of `answered_settings`."""
        self._forget_topics(client)
        self._changed.add(client.key)
        client.settings = settings
        size = int(settings.ByteSize())
        self.kept += size - client.size
        self._kept_of[client.owner] += size - client.size
        client.size = size
        if settings.HasField("subscription"):
            client.group = resource_name(settings.subscription.group)
            client.topics = tuple(resource_name(entry.topic) for entry in settings.subscription.subscriptions)
        else:
            client.group = ""
            client.topics = tuple(map(resource_name, settings.publishing.topics))
        client.kind = ClientType(settings.client_type) if settings.client_type in _KINDS else client.kind
        client.version = settings.user_agent.version or client.version
        if settings.HasField("publishing"):
            for topic in client.topics:
                self._publishers.setdefault(topic, {})[client.key] = client

    def take_changed(self) -> set[ClientKey]:
        """Return the clients that came, changed or left since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def leave(self, client: Client) -> None:
        self._forget_topics(client)
        if self._clients.get(client.key) is client:
            del self._clients[client.key]
            self._changed.add(client.key)
            self.kept -= client.size
            for counted, amount in ((self._kept_of, client.size), (self._clients_of, 1)):
                counted[client.owner] -= amount
                if not counted[client.owner]:
                    del counted[client.owner]
            client.size = 0

    def gone(self, now: float) -> list[Client]:
        """Return the clients that have gone; the caller lets them leave."""
        return [c for c in self._clients.values() if c.line is None and now - c.seen > UNSEEN_S]

    def publisher(self, topic: str) -> Client | None:
        """Return one of the clients that send to a topic and can be asked, each in turn."""
        able = [client for client in self._publishers.get(topic, {}).values() if client.line is not None]
        return able[next(self._turn) % len(able)] if able else None

    def published_topics(self) -> Iterable[str]:
        return list(self._publishers)

    async def ask(self, client: Client, command: Any, part: str, timeout: float) -> Any:
        """Send a command with a nonce, and return the client's answer. `part`: the command's field.

        Raises TimeoutError, and ConnectionError when the client has no stream.
        """
        if client.line is None or len(self._waiting) >= MAX_ASKED:
            raise ConnectionError(f"client {client.id} has no telemetry stream")
        nonce = f"{time.time_ns():x}-{next(self._numbers)}"
        getattr(command, part).nonce = nonce
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = client, future
        try:
            if not client.line.push(command.SerializeToString()):
                raise ConnectionError(f"client {client.id} reads nothing")
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._waiting[nonce]

    def answered(self, client: Client | None, nonce: str, command: Any) -> None:
        """Take a client's answer; only the one that was asked has one."""
        receiver, future = self._waiting.get(nonce, (None, None))
        if future is not None and receiver is client and not future.done():
            future.set_result(command)

    def _forget_topics(self, client: Client) -> None:
        for topic in client.topics:
            publishers = self._publishers.get(topic)
            if publishers is not None and publishers.get(client.key) is client:
                del publishers[client.key]
                if not publishers:
                    del self._publishers[topic]


_KINDS: Final = frozenset(int(kind) for kind in ClientType)
_LANGUAGES: Final = frozenset(int(language) for language in Language)
_SCHEMES: Final = frozenset(int(scheme) for scheme in AddressScheme)
