"""Clients and groups: heartbeat, unregister, members, queue locks, check of a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import orjson

from gantry_broker.access.decide import ENABLED
from gantry_broker.admission import owners_of, user_of
from gantry_broker.broker.clients import Client, NotYourId, Subscription, TooManyClients
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import json_body, ok
from gantry_broker.broker.metadata.topics import group_fault
from gantry_broker.broker.proxied import TooManyProxied
from gantry_broker.broker.pull.sql92 import FilterSyntaxError
from gantry_broker.protocol.bodies import Heartbeat, LockRequest, SubscriptionData
from gantry_broker.protocol.codes import LanguageCode, ResponseCode
from gantry_broker.protocol.fastjson import MAX_REQUEST_DIALECT
from gantry_broker.protocol.fields import parse, queue_to_json
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import ConsumerGroupHeader, UnregisterClientHeader
from gantry_broker.protocol.heartbeats import MAX_ID, MAX_TOPIC, heartbeat_fault, long_text
from gantry_broker.protocol.proxied import read_announcement

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.locks import QueueLocks
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.role import RoleState
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings


class Parts(Protocol):
    """What these functions use of a member."""

    settings: BrokerSettings
    clock: Clock
    role: RoleState
    creation: OnDemandCreation
    access: AccessControl
    clients: ClientTable
    notifier: GroupNotifier
    locks: QueueLocks
    filters: Filters


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return "OTHER"


def heartbeat(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    value = json_body(frame, "heartbeat")
    fault = heartbeat_fault(value)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
    beat = Heartbeat.from_json(value)
    for name in [c.group for c in beat.consumers] + beat.producers:
        fault = group_fault(name)
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"heartbeat.groupName: {fault}")
    try:
        named = {data.group: data.subscriptions for data in beat.consumers}
        broker.clients.admit(conn, named, beat.producers, owners_of(conn)[1])
        if beat.consumers or beat.producers:
            user = user_of(broker.access.gate, frame)
            broker.clients.claim(beat.client_id, user, conn, signed_only=broker.access.gate.mode == ENABLED)
    except TooManyClients as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except NotYourId as error:
        raise RequestRejected(ResponseCode.NO_PERMISSION, str(error)) from None
    existing = broker.creation.group_configs(dict.fromkeys(data.group for data in beat.consumers))
    client = Client(
        conn,
        beat.client_id,
        _language(frame.language),
        frame.version,
        f"{conn.peer[0]}:{conn.peer[1]}",
        broker.clock.now_ms(),
    )
    for data in beat.consumers:
        if data.group not in existing:
            continue
        changed = broker.clients.heartbeat_consumer(
            data.group,
            client,
            [Subscription(s) for s in data.subscriptions],
            data.consume_type,
            data.message_model,
            data.from_where,
            beat.without_subscriptions,
        )
        if changed:
            broker.notifier.group_changed(data.group)
    for name in beat.producers:
        broker.clients.heartbeat_producer(name, client)
    return ok(frame)


def proxy_clients(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Take the consumers of a proxy. Their groups come to be as those of heartbeats do, with their retry topics."""
    clients, gone = read_announcement(parse(frame.body, "announcement", MAX_REQUEST_DIALECT))
    for name in {client.group for client in clients}:
        fault = group_fault(name)
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"client.group: {fault}")
    existing = broker.creation.group_configs(dict.fromkeys(client.group for client in clients))
    here = [client for client in clients if client.group in existing]
    try:
        broker.clients.proxied.take(conn, here, gone, broker.clock.now_ms(), owners_of(conn)[1])
    except TooManyProxied as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return ok(frame)


def unregister(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = UnregisterClientHeader.parse(frame)
    if header.producerGroup is not None:
        broker.clients.leave_producer(header.producerGroup, conn)
    group = header.consumerGroup
    if group is not None and broker.clients.depart(group, header.clientID, conn):
        broker.notifier.group_changed(group)
    return ok(frame)


def consumer_list(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = ConsumerGroupHeader.parse(frame)
    members = broker.clients.consumers.get(header.consumerGroup)
    if members is None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumerGroup[:255]}")
    return ok(frame, body=orjson.dumps({"consumerIdList": members.client_ids()}))


def check_client(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Answers whether the broker understands a subscription. Clients ask before they start."""
    fields = parse(frame.body, "checkClient", MAX_REQUEST_DIALECT)
    value = fields.map("subscriptionData")
    if not value:
        return ok(frame)
    data = SubscriptionData.from_json(value)
    if data.expression_type in ("", "TAG"):
        return ok(frame)
    if not broker.settings.enablePropertyFilter:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {data.expression_type}",
        )
    try:
        broker.filters.compiled(data.expression)
    except FilterSyntaxError as error:
        raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    return ok(frame)


def _check_id(broker: Parts, conn: Connection, frame: Frame, client_id: str) -> None:
    """Raise RequestRejected when a request names the id of another user's client."""
    gate = broker.access.gate
    try:
        broker.clients.check_id(client_id, user_of(gate, frame), conn, signed_only=gate.mode == ENABLED)
    except NotYourId as error:
        raise RequestRejected(ResponseCode.NO_PERMISSION, str(error)) from None


def _lock_request(frame: Frame) -> LockRequest:
    """Return the request. Raises BodyError, and RequestRejected for names that are too long to be kept."""
    request = LockRequest.from_json(json_body(frame, "lock"))
    fault = group_fault(request.group)
    if fault is not None:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field lock.consumerGroup: {fault}")
    long = long_text({"lock.clientId": request.client_id}, "lock.clientId", MAX_ID)
    for queue in request.queues:
        named = {"mqSet.topic": queue.topic, "mqSet.brokerName": queue.broker}
        long = long or long_text(named, "mqSet.topic", MAX_TOPIC) or long_text(named, "mqSet.brokerName", MAX_TOPIC)
    if long:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, long)
    return request


def lock(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    request = _lock_request(frame)
    if not broker.role.serves:
        raise RequestRejected(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"only the master gives locks: {broker.role.refusal()}"
        )
    _check_id(broker, conn, frame, request.client_id)
    owner, now_ms = owners_of(conn)[1], broker.clock.now_ms()
    got = broker.locks.lock(request.group, request.client_id, request.queues, now_ms, owner)
    return ok(frame, body=orjson.dumps({"lockOKMQSet": [queue_to_json(queue) for queue in got]}))


def unlock(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    request = _lock_request(frame)
    _check_id(broker, conn, frame, request.client_id)
    broker.locks.unlock(request.group, request.client_id, request.queues)
    return ok(frame)
