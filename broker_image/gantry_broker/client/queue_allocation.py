"""Allocation of a topic's queues to this member, from the group's members, the topic's queues and a strategy."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.client.selection import readable_queues
from gantry_broker.client.session import Session
from gantry_broker.protocol.allocation import Strategy
from gantry_broker.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import parse
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import ConsumerGroupHeader
from gantry_broker.remoting.errors import RemotingError


class AllocationUnavailable(Exception):
    """The allocation cannot be computed now; the current one stays."""


class QueueAllocation:
    """Allocates queues to one member of one group. `strategy` None: every member gets all queues (broadcasting)."""

    def __init__(self, session: Session, group: str, strategy: Strategy | None) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of this member. Raises AllocationUnavailable, RemotingError, BrokerError, BodyError,
        NoRoute.
        """
        route = await self._session.route(topic)
        if route is None:
            if topic.startswith(RETRY_PREFIX):
                return []  # the broker creates it with the first message sent back, and the route poll finds it
            raise AllocationUnavailable(f"topic {topic} has no route")
        queues = readable_queues(topic, route)
        if self._strategy is None:
            return queues
        members = await self._members([broker.name for broker in route.brokers])
        if self._session.client_id not in members:
            # A new master learns about its clients one by one.
            await self._session.send_heartbeats()
            raise AllocationUnavailable(f"this client is not one of the {len(members)} members of {self._group} yet")
        return self._strategy(self._session.client_id, queues, sorted(set(members)))

    async def _members(self, brokers: Sequence[str]) -> list[str]:
        """Return the members of the group. All members query the same broker if they can, to get the same list."""
        error: Exception = NoRoute("no broker to ask for the members of the group")
        for broker in sorted(brokers):
            address = self._session.address(broker)
            if address is None:
                continue
            frame = Frame(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=ConsumerGroupHeader(self._group).ext())
            try:
                answer = await self._session.call_checked(address, frame, f"members of {self._group}")
                return parse(answer.body, "members").texts("consumerIdList")
            except BrokerError as failure:
                if failure.code == ResponseCode.SYSTEM_ERROR:
                    return []  # RocketMQ's answer for a group without members
                error = failure
            except RemotingError as failure:
                error = failure
        raise error
