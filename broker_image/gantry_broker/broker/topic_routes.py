"""All queues of a topic, also those of other broker groups: a broker that assigns queues asks a NameServer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import TopicRoute
from gantry_broker.protocol.codes import Perm, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.client import RemotingClient

FRESH_MS: Final = 5_000
"""A route that is younger is not asked for again. RocketMQ's brokers ask each 30 s."""
ASK_S: Final = 1.0
MAX_KNOWN: Final = 10_000


class _CachedRoute(NamedTuple):
    asked_ms: int
    queues: list[MessageQueue]


class TopicRoutes:
    """The readable queues of topics, in the order in which members divide them."""

    def __init__(self, config: BrokerConfig, client: RemotingClient, meta: Metadata, clock: Clock) -> None:
        self._config = config
        self._client = client
        self._meta = meta
        self._clock = clock
        self._known: dict[str, _CachedRoute] = {}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted; none for an unknown topic.

        While no NameServer answers, those that were known last, or those of this broker alone.
        """
        now = self._clock.now_ms()
        cached = self._known.get(topic)
        if cached is not None and now - cached.asked_ms < FRESH_MS:
            return cached.queues
        queues = await self._ask(topic)
        if queues is None:
            queues = cached.queues if cached is not None else self._own(topic)
        else:
            # This broker's own queues are those of its tables: the NameServer learns them later.
            queues = [queue for queue in queues if queue.broker != self._config.group]
            queues += self._own(topic)
        queues.sort(key=lambda queue: (queue.topic, queue.broker, queue.queue_id))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[topic] = _CachedRoute(now, queues)
        return queues

    def _own(self, topic: str) -> list[MessageQueue]:
        config = self._meta.working.topics.get(topic)
        if config is None or not config.perm & Perm.READ:
            return []
        return [MessageQueue(topic, self._config.group, number) for number in range(config.read_queues)]

    async def _ask(self, topic: str) -> list[MessageQueue] | None:
        addresses: Sequence[str] = self._config.registration_addresses
        for address in addresses:
            if not self._client.connected(address):
                continue
            request = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
            try:
                answer = await self._client.request(address, request, ASK_S)
            except RemotingError:
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            if answer.code != ResponseCode.SUCCESS:
                continue
            try:
                route = TopicRoute.from_json(fastjson.loads(answer.body))
            except (fastjson.JsonError, BodyError):
                continue
            return [
                MessageQueue(topic, data.broker, number)
                for data in route.queues
                if data.perm & Perm.READ
                for number in range(data.read_queues)
            ]
        return None
