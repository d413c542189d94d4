"""The clients of one proxy process: their settings, their telemetry streams, and what was asked of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gantry_broker.proxy.brokers import GroupConfig
from gantry_broker.proxy.contract import ClientType, v2
from gantry_broker.proxy.messages import MAX_BODY, set_millis
from gantry_broker.proxy.names import resource_name
from gantry_broker.proxy.rpc import Line

UNSEEN_S: Final = 60.0
"""A client that asked nothing for this long, and has no telemetry stream, has gone."""
MAX_CLIENTS: Final = 50_000
MAX_NAMES: Final = 1_000
"""Topics of one client's settings."""
MAX_ASKED: Final = 1_000
RECEIVE_BATCH: Final = 32
LONG_POLLING_MS: Final = 20_000
LITE_QUOTA: Final = 2_000
MAX_LITE_TOPIC: Final = 64
PRODUCER_ATTEMPTS: Final = 3
PRODUCER_BACKOFF_MS: Final = (10, 1_000)
RETRY_STEPS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Pauses before a message is delivered again. The settings of consumers have them."""
CONSUMERS: Final = frozenset(
    {
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    }
)


def answered_settings(given: Any, group: GroupConfig | None) -> Any:
    """Return the settings that a client gets for its own. `group`: of a consumer. Pure."""
    settings = v2.Settings()
    settings.CopyFrom(given)
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
    for seconds in RETRY_STEPS_S:
        policy.customized_backoff.next.add().seconds = seconds
    subscription = settings.subscription
    subscription.fifo = group.orderly
    subscription.receive_batch_size = RECEIVE_BATCH
    set_millis(subscription.long_polling_timeout, LONG_POLLING_MS)
    subscription.lite_subscription_quota = LITE_QUOTA
    subscription.max_lite_topic_size = MAX_LITE_TOPIC
    return settings


class Client:
    """One client, by its id."""

    __slots__ = ("address", "id", "kind", "language", "line", "owner", "seen", "settings", "since", "version")

    def __init__(self, client_id: str, address: str, now: float) -> None:
        self.id = client_id
        self.address = address
        self.settings: Any = None
        self.kind = ClientType.CLIENT_TYPE_UNSPECIFIED
        self.language = ""
        self.version = ""
        self.line: Line | None = None
        """Its telemetry stream."""
        self.owner: str | None = None
        """The user whose client it is; None: anybody's."""
        self.since = self.seen = now

    @property
    def group(self) -> str:
        """A consumer's group."""
        if self.settings is None or not self.settings.HasField("subscription"):
            return ""
        return resource_name(self.settings.subscription.group)

    @property
    def topics(self) -> list[str]:
        """The topics that it sends to, or has subscribed to."""
        if self.settings is None:
            return []
        if self.settings.HasField("publishing"):
            return [resource_name(topic) for topic in self.settings.publishing.topics]
        return [resource_name(entry.topic) for entry in self.settings.subscription.subscriptions]

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

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._publishers: dict[str, dict[str, Client]] = {}
        """Clients that send to a topic."""
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._turn = itertools.count()

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def enter(self, client_id: str, address: str) -> Client | None:
        """Return the client of this id, a new one if needed; None: there are too many."""
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                return None
            client = self._clients[client_id] = Client(client_id, address, time.monotonic())
        return client

    def set_settings(self, client: Client, settings: Any) -> None:
        self._forget_topics(client)
        client.settings = settings
        client.kind = ClientType(settings.client_type) if settings.client_type in _KINDS else client.kind
        client.version = settings.user_agent.version or client.version
        if settings.HasField("publishing"):
            for topic in client.topics:
                self._publishers.setdefault(topic, {})[client.id] = client

    def leave(self, client: Client) -> None:
        self._forget_topics(client)
        if self._clients.get(client.id) is client:
            del self._clients[client.id]

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
        if client.line is None or len(self._asked) >= MAX_ASKED:
            raise ConnectionError(f"client {client.id} has no telemetry stream")
        nonce = f"{time.time_ns():x}-{next(self._numbers)}"
        getattr(command, part).nonce = nonce
        future = self._asked[nonce] = asyncio.get_running_loop().create_future()
        try:
            if not client.line.push(command.SerializeToString()):
                raise ConnectionError(f"client {client.id} reads nothing")
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._asked[nonce]

    def answered(self, nonce: str, command: Any) -> None:
        future = self._asked.get(nonce)
        if future is not None and not future.done():
            future.set_result(command)

    def _forget_topics(self, client: Client) -> None:
        for topic in client.topics:
            publishers = self._publishers.get(topic)
            if publishers is not None and publishers.get(client.id) is client:
                del publishers[client.id]
                if not publishers:
                    del self._publishers[topic]


_KINDS: Final = frozenset(int(kind) for kind in ClientType)
