"""Which queues a member reads, and whether by pulls or by POP: the broker assigns them (5.x, clientRebalance=false)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import orjson

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import json_body, json_object, ok
from gantry_broker.broker.metadata.tables import offset_key
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.protocol.allocation import Strategy, averagely, averagely_by_circle
from gantry_broker.protocol.bodies import POP, PULL, AssignmentRequest, RequestMode
from gantry_broker.protocol.codes import RETRY_PREFIX, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError, queue_to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.topic_routes import TopicRoutes
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.timeslice import TimeSlices

STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle}


class Parts(Protocol):
    """What these functions use of a member."""

    meta: Metadata
    changes: MetadataChanges
    creation: OnDemandCreation
    clients: ClientTable
    routes: TopicRoutes
    slices: TimeSlices


"""The strategies that 5.5.0's broker knows."""
MAX_MODES: Final = 20_000
"""Pairs of topic and group with a mode of their own."""


def assigned_for_pop(
    allocate: Strategy, me: str, queues: Sequence[MessageQueue], members: Sequence[str], share: int
) -> list[MessageQueue]:
    """Return what a member pops from: queue -1 stands for all queues of a broker. As `allocate4Pop` of 5.5.0.

    `share`: each member pops also from the queues of that many members after it.
    """
    if share <= 0 or share >= len(members) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker) for queue in queues)
        return [MessageQueue(topic, broker, -1) for topic, broker in brokers]
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    queues_of: dict[MessageQueue, None] = {}
    for number in range(share + 1):
        queues_of.update(dict.fromkeys(allocate(members[(index + number) % len(members)], queues, members)))
    return list(queues_of)


async def query_assignment(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Without a route, without members, or for an unknown strategy the answer has no list: the client keeps its own."""
    request = AssignmentRequest.from_json(json_body(frame, "queryAssignment"))
    fault = topic_fault(request.topic, longest=255)
    if fault is not None:
        raise BodyError(f"the field queryAssignment.topic: {fault}")
    tables = broker.meta.working
    mode, share = tables.modes.get(offset_key(request.topic, request.group), (PULL, 0))
    queues = await broker.routes.queues(request.topic)
    if request.model == "BROADCASTING":
        return _answer(frame, queues or None, mode)
    members = broker.clients.consumers.get(request.group)
    allocate = STRATEGIES.get(request.strategy)
    if not queues or members is None or allocate is None or not request.client_id:
        return _answer(frame, None, mode)
    ids = sorted(members.client_ids())
    if mode == POP:
        return _answer(frame, assigned_for_pop(allocate, request.client_id, queues, ids, share), mode)
    return _answer(frame, allocate(request.client_id, queues, ids), mode)


def _answer(frame: Frame, queues: Sequence[MessageQueue] | None, mode: str) -> Frame:
    if queues is None:
        return ok(frame, body=b"{}")
    items = [{"messageQueue": queue_to_json(queue), "mode": mode} for queue in queues]
    return ok(frame, body=orjson.dumps({"messageQueueAssignments": items}))


async def set_request_mode(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    request = RequestMode.from_json(json_body(frame, "setMessageRequestMode"))
    if request.topic.startswith(RETRY_PREFIX):
        raise RequestRejected(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    tables = broker.meta.working
    if request.topic not in tables.topics:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic[:255]}] not exist")
    fault = group_fault(request.group)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field consumerGroup: {fault}")
    if broker.creation.group_config(request.group) is None:
        raise RequestRejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
    key = offset_key(request.topic, request.group)
    if key not in tables.modes and len(tables.modes) >= MAX_MODES:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"{MAX_MODES} pairs of topic and group have a mode, which is the limit"
        )
    await broker.changes.append_and_wait({"modes": {key: [request.mode, request.share]}})
    return ok(frame)


async def all_request_modes(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    table: dict[str, dict[str, RequestMode]] = {}
    for key, (mode, share) in broker.meta.working.modes.items():
        topic, _, group = key.partition("@")
        table.setdefault(topic, {})[group] = RequestMode(topic, group, mode, share)
    body = await json_object(
        broker.slices, table, lambda groups: {group: mode.to_json() for group, mode in groups.items()}
    )
    return ok(frame, body=b'{"messageRequestModeMap":' + body + b"}")
