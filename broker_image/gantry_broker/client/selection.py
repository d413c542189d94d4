"""Selection of a queue for a message. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gantry_broker.client.message import Message
from gantry_broker.protocol.bodies import TopicRoute
from gantry_broker.protocol.codes import MASTER_ID, Perm
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.limits import MAX_QUEUES
from gantry_broker.protocol.message import java_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
"""Chooses one of a topic's queues for a message and the application's argument."""


def writable_queues(topic: str, route: TopicRoute, *, as_default: int = 0) -> list[MessageQueue]:
    """Return the queues of groups that have a master and allow writing.

    `as_default`: the route belongs to the auto-create topic, and each group has at most this many queues. An order
    configuration ("group:queues;group:queues") names the queues itself.
    """
    if route.order_conf:
        return _ordered_queues(topic, route.order_conf)
    masters = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
    queues = []
    for data in sorted(route.queues, key=lambda item: item.broker):
        if data.perm & Perm.WRITE and data.broker in masters:
            count = min(as_default, data.read_queues) if as_default else data.write_queues
            queues += [MessageQueue(topic, data.broker, number) for number in range(count)]
    return queues


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the readable queues, in order."""
    return sorted(
        MessageQueue(topic, data.broker, number)
        for data in route.queues
        if data.perm & Perm.READ
        for number in range(data.read_queues)
    )


def _ordered_queues(topic: str, order_conf: str) -> list[MessageQueue]:
    queues = []
    for part in order_conf.split(";"):
        broker, separator, count = part.rpartition(":")
        if separator and (queue_count := whole_number(count, 0, MAX_QUEUES)) is not None:
            queues += [MessageQueue(topic, broker, number) for number in range(queue_count)]
    return queues


class RoundRobin:
    """Chooses queues in turn from a random start, and avoids failed brokers if there is another one."""

    __slots__ = ("_next",)

    def __init__(self, start: int | None = None) -> None:
        self._next = random.randrange(1 << 16) if start is None else start

    def choose(self, queues: Sequence[MessageQueue], avoid: frozenset[str] | set[str] = frozenset()) -> MessageQueue:
        """`avoid`: names of failed brokers. Raises IndexError when there is no queue."""
        count = len(queues)
        if not count:
            raise IndexError("no queue to choose from")
        if avoid:
            for _ in range(count):
                queue = queues[self._next % count]
                self._next += 1
                if queue.broker not in avoid:
                    return queue
        queue = queues[self._next % count]
        self._next += 1
        return queue


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Return the same queue for the same key, as RocketMQ's SelectMessageQueueByHash does for strings and numbers."""
    return queue_of_key(queues, key)


def queue_of_key(queues: Sequence[MessageQueue], key: object) -> MessageQueue:
    """Return the queue that `select_by_hash` selects, whatever the message is."""
    if isinstance(key, int):
        value = key if -(2**31) <= key < 2**31 else (key ^ (key >> 32)) & 0xFFFFFFFF
        value = value - 2**32 if value >= 2**31 else value
    else:
        value = java_hash(str(key))
    # Java's remainder has the sign of the dividend; its selector takes the absolute value of the hash first.
    index = abs(value) % len(queues) if value != -(2**31) else 0
    return queues[index]
