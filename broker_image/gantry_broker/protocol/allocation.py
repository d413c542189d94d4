"""Strategies that assign queues to members. Every member of a group computes the same result from the same lists. Pure.

Names are RocketMQ's. All members of a group must use the same strategy, or queues are read twice or not at all.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from gantry_broker.protocol.fastjson import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Maps (own client id, all queues in order, all client ids in order) to the own client's queues."""


def averagely(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AllocateMessageQueueAveragely: each member gets a run of neighbours, and the first members get one more."""
    if me not in members or not queues:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def averagely_by_circle(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AllocateMessageQueueAveragelyByCircle: members get queues one by one."""
    if me not in members:
        return []
    return list(queues[members.index(me) :: len(members)])


def by_config(mine: Sequence[MessageQueue]) -> Strategy:
    """AllocateMessageQueueByConfig: always the queues that the application names."""
    return lambda me, queues, members: list(mine)


def by_machine_room(rooms: Sequence[str]) -> Strategy:
    """AllocateMessageQueueByMachineRoom: only queues of brokers named `room@...` for one of these rooms."""

    def allocate(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if me not in members:
            return []
        index = members.index(me)
        in_rooms = [queue for queue in queues if len(parts := queue.broker.split("@")) == 2 and parts[0] in rooms]
        share, rest = divmod(len(in_rooms), len(members))
        mine = in_rooms[index * share : (index + 1) * share]
        if rest > index:
            mine.append(in_rooms[index + share * len(members)])
        return mine

    return allocate


def consistent_hash(virtual_nodes: int = 10) -> Strategy:
    """AllocateMessageQueueConsistentHash: few queues move when members join or leave."""

    def allocate(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if me not in members:
            return []
        ring = sorted(
            (_ring_hash(f"{member}-{number}"), member) for member in members for number in range(virtual_nodes)
        )
        places = [place for place, _ in ring]
        mine = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
            index = bisect_left(places, _ring_hash(text)) % len(ring)
            if ring[index][1] == me:
                mine.append(queue)
        return mine

    return allocate


def _ring_hash(key: str) -> int:
    """RocketMQ's hash of the ring: the first four bytes of MD5, the first byte highest."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: Mapping[str, Strategy] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": averagely_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""Strategies by RocketMQ's `getName`, except those that need configuration."""
