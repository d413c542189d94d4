"""Move the offsets of a consumer group to a time, and show before what that skips and repeats."""

from __future__ import annotations

import asyncio
from typing import Final

from gantry_broker.client import Admin, BrokerError
from gantry_broker.client.selection import readable_queues
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.topics.resets import BadReset, ResetPreview, parse_time, preview_of

QUEUES: Final = 512
"""Queues of a topic that one reset moves."""
AT_ONCE: Final = 16


async def preview_offsets(admin: Admin, group: str, topic: str, to_ms: int) -> ResetPreview:
    """Return what a reset to this time (-1: the end) skips and repeats. Raises ActionError and client errors."""
    queues = readable_queues(topic, await admin.topic_route(topic))
    if len(queues) > QUEUES:
        raise ActionError(f"{topic} has {len(queues)} queues; {QUEUES} is the most for a reset")
    puller = admin.puller()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(queue: MessageQueue) -> tuple[str, int, int, int, int | None, int]:
        async with turn:
            first, end = await puller.min_offset(queue), await puller.max_offset(queue)
            target = end if to_ms < 0 else await puller.offset_at(queue, to_ms)
            return queue.broker, queue.queue_id, first, end, await admin.offset(group, queue), target

    return preview_of(await asyncio.gather(*map(one, queues)))


async def reset_offsets(admin: Admin, group: str, topic: str, to_ms: int) -> int:
    """Move a group to this time (-1: the end). Returns the number of queues. Raises ActionError and client errors.

    The broker informs connected members. Without members the offsets alone are enough.
    """
    preview = await preview_offsets(admin, group, topic, to_ms)
    targets = {MessageQueue(topic, row.broker, row.queue): row for row in preview.rows}
    for queue, row in targets.items():
        if row.committed is None:
            await admin.set_offset(group, queue, row.target)
    try:
        return len(await admin.reset_offsets(group, topic, to_ms))
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
    turn = asyncio.Semaphore(AT_ONCE)

    async def put(queue: MessageQueue, offset: int) -> None:
        async with turn:
            await admin.set_offset(group, queue, offset)

    await asyncio.gather(*(put(queue, row.target) for queue, row in targets.items()))
    return len(targets)


def time_of_place(text: str) -> int:
    """Milliseconds since 1970; -1: the end. Raises ActionError."""
    try:
        time_ms = parse_time(text)
    except BadReset as error:
        raise ActionError(str(error), Cause.BAD_INPUT) from None
    return -1 if time_ms is None else time_ms
