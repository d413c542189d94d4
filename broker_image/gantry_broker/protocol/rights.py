"""What a user needs for a request: resources that the request names, and actions with them. `requests.py` has the rows.

A request needs every `Need` that its right returns; a `Need` with several actions is met by one of them. Names of a
request are read as its handler reads them.

Where a request names a place of the log instead of a topic, the topic is that of the record there. A record that does
not exist has the empty name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import BatchAcks, Heartbeat, LockRequest
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RETRY_PREFIX
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import EndTransactionHeader, SendBackHeader, ViewMessageHeader
from gantry_broker.protocol.heartbeats import heartbeat_fault
from gantry_broker.protocol.message import parse_message_id

TOPIC: Final = "Topic"
GROUP: Final = "Group"
CLUSTER: Final = "Cluster"
"""Kinds of resources, by the names of RocketMQ's ACL 2.0."""

PUB: Final = "Pub"
SUB: Final = "Sub"
CREATE: Final = "Create"
UPDATE: Final = "Update"
DELETE: Final = "Delete"
GET: Final = "Get"
LIST: Final = "List"
ACTIONS: Final = (PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)
"""Actions, by its names too."""

MAX_NAMES: Final = 1_000
"""Topics or groups that the body of one request may create."""
MAX_NAME: Final = 255
"""Characters of the longest topic or group."""


class Need(NamedTuple):
    """One of the actions with the resource is needed."""

    kind: str
    name: str
    actions: tuple[str, ...]


class Records(Protocol):
    """Looks topics of stored records up; "" when no record begins at the offset."""

    def topic_at(self, offset: int) -> str:
        """Return the topic under which the record is stored."""

    def target_at(self, offset: int) -> str:
        """Return the topic that the message is for: a half message waits under another one."""


Right = Callable[[Frame, Records], list[Need]]
"""Raises BodyError and BadField when the request cannot be read."""

READ: Final = (SUB, GET)
MOVE: Final = (SUB, UPDATE)


class Named:
    """The right for the one resource that a field of the header names."""

    def __init__(self, kind: str, field: str, actions: tuple[str, ...]) -> None:
        self.kind = kind
        self.fields = (field,)
        self.actions = actions

    def __call__(self, frame: Frame, _: Records) -> list[Need]:
        return [Need(self.kind, frame.ext.get(self.fields[0], ""), self.actions)]


class All:
    """All of these rights."""

    def __init__(self, *rights: Right) -> None:
        self.rights = rights
        named = [right for right in rights if isinstance(right, Named)]
        self.fields = tuple(field for right in named for field in right.fields) if len(named) == len(rights) else ()

    def __call__(self, frame: Frame, records: Records) -> list[Need]:
        return [need for right in self.rights for need in right(frame, records)]


def topic(field: str, *actions: str) -> Right:
    """Need one of the actions with the topic that the header's field names."""
    return Named(TOPIC, field, actions)


def group(field: str, *actions: str) -> Right:
    """Need one of the actions with the consumer group that the header's field names."""
    return Named(GROUP, field, actions)


def given(right: Callable[..., Right], field: str, *actions: str) -> Right:
    """Need the right only if the field is there."""
    needed = right(field, *actions)
    return lambda frame, records: needed(frame, records) if frame.ext.get(field) else []


def cluster(*actions: str) -> Right:
    """Need one of the actions with the cluster."""
    needs = [Need(CLUSTER, "", actions)]
    return lambda _frame, _records: needs


def route(frame: Frame, _: Records) -> list[Need]:
    """Need any use of the topic. All users may ask where brokers are, by the topic by which producers create others."""
    topic = frame.ext.get("topic", "")
    return [] if topic == AUTO_CREATE_TOPIC else [Need(TOPIC, topic, (PUB, SUB, GET))]


def _json(frame: Frame, what: str) -> Any:
    try:
        return fastjson.loads(frame.body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"the body ({what}) cannot be read: {error}") from None


def heartbeat(frame: Frame, _: Records) -> list[Need]:
    """Need to consume with each group from each of its topics.

    A producer group needs no right of its own, as with RocketMQ; checks of transactions go by topic.
    """
    value = _json(frame, "heartbeat")
    fault = heartbeat_fault(value)
    if fault is not None:
        raise BodyError(fault)
    needs = []
    for consumer in Heartbeat.from_json(value).consumers:
        needs.append(Need(GROUP, consumer.group, (SUB,)))
        needs += [Need(TOPIC, subscription.topic, (SUB,)) for subscription in consumer.subscriptions]
    return needs


def lock(frame: Frame, _: Records) -> list[Need]:
    """Need to consume with the group that locks or unlocks queues."""
    return [Need(GROUP, LockRequest.from_json(_json(frame, "lock")).group, (SUB,))]


def check_client(frame: Frame, _: Records) -> list[Need]:
    """Need to consume with the group and from the topic of a filter that is checked."""
    value = _json_object(frame, "checkClient")
    subscription = value.get("subscriptionData")
    topic = subscription.get("topic") if isinstance(subscription, dict) else None
    return [Need(GROUP, str(value.get("group") or ""), (SUB,)), Need(TOPIC, str(topic or ""), (SUB,))]


def in_body(kind: str, field: str, name: str) -> Right:
    """Need to create what a body names: one object, or with `field` a list of them."""

    def right(frame: Frame, _: Records) -> list[Need]:
        value = _json(frame, field or name)
        items = value.get(field) if field and isinstance(value, dict) else [value]
        if not isinstance(items, list) or not items:
            raise BodyError(f"the body's {field} is absent; a list is expected")
        if len(items) > MAX_NAMES:
            raise BodyError(f"the body's {field} has {len(items)} entries, the limit is {MAX_NAMES}")
        if not all(isinstance(item, dict) for item in items):
            raise BodyError(f"the body has an entry that is no JSON object; one with {name} is expected")
        return [Need(kind, str(item.get(name) or ""), (CREATE,)) for item in items]

    return right


def viewed(frame: Frame, records: Records) -> list[Need]:
    """Need to read the topic of the record at the offset."""
    return [Need(TOPIC, records.topic_at(ViewMessageHeader.parse(frame).offset), READ)]


def sent_back(frame: Frame, records: Records) -> list[Need]:
    """Need to consume with the group, and from the record's topic: the record becomes readable for the group."""
    header = SendBackHeader.parse(frame)
    return [Need(GROUP, header.group, (SUB,)), Need(TOPIC, records.topic_at(header.offset), (SUB,))]


def ended(frame: Frame, records: Records) -> list[Need]:
    """Need to send to the topic of the half message."""
    return [Need(TOPIC, records.target_at(EndTransactionHeader.parse(frame).commitLogOffset), (PUB,))]


def _offset_of(frame: Frame) -> int:
    text = frame.ext.get("msgId", "")
    try:
        return parse_message_id(text)[2]
    except ValueError:
        raise BadField("msgId", text or None, "the id of a message") from None


def resumed(frame: Frame, records: Records) -> list[Need]:
    """Need to send to the topic of the half message with this id."""
    return [Need(TOPIC, records.target_at(_offset_of(frame)), (PUB,))]


def consumed_directly(frame: Frame, records: Records) -> list[Need]:
    """Need to consume with the group, and from the topic of the record if the request has its id."""
    needs = [Need(GROUP, frame.ext.get("consumerGroup", ""), (SUB,))]
    if frame.ext.get("msgId"):
        needs.append(Need(TOPIC, records.topic_at(_offset_of(frame)), (SUB,)))
    return needs


def assigned(frame: Frame, _: Records) -> list[Need]:
    """Need to consume with the group from the topic."""
    value = _json_object(frame, "queryAssignment")
    return [
        Need(TOPIC, str(value.get("topic") or ""), (SUB,)), Need(GROUP, str(value.get("consumerGroup") or ""), (SUB,))
    ]  # fmt: skip


def mode_set(frame: Frame, _: Records) -> list[Need]:
    """Need to change the group, and to read or change the topic."""
    value = _json_object(frame, "setMessageRequestMode")
    topic, group = str(value.get("topic") or ""), str(value.get("consumerGroup") or "")
    return [Need(TOPIC, topic, (UPDATE, GET)), Need(GROUP, group, (UPDATE,))]


def acked(frame: Frame, _: Records) -> list[Need]:
    """Need what each group in the body needs that acknowledges."""
    try:
        acks = BatchAcks.from_json(_json(frame, "batchAck")).acks if frame.body else []
    except BodyError:
        acks = []
    if not acks:
        return [Need(GROUP, "", (SUB,))]
    names = dict.fromkeys((ack.group, ack.topic) for ack in acks)
    return [need for group, topic in names for need in _of_delivery(group, topic)]


def delivery(frame: Frame, _: Records) -> list[Need]:
    """Need what a group needs that acknowledges."""
    return _of_delivery(frame.ext.get("consumerGroup", ""), frame.ext.get("topic", ""))


def _of_delivery(group: str, topic: str) -> list[Need]:
    """Return what a group needs that acknowledges. `%RETRY%group+topic` belongs to the group. In its first form,
    `%RETRY%group_topic`, the name may be that of the retries of a group `group_topic`: the broker knows whether this
    group has popped from it. Here the right for the topic counts, as it did for the pop.
    """
    needs = [Need(GROUP, group, (SUB,))]
    old = f"{RETRY_PREFIX}{group}_"
    if not topic.startswith(f"{RETRY_PREFIX}{group}+"):
        needs.append(Need(TOPIC, topic.removeprefix(old) if len(topic) > len(old) else topic, (SUB,)))
    return needs


def _json_object(frame: Frame, what: str) -> dict[str, Any]:
    value = _json(frame, what)
    if not isinstance(value, dict):
        raise BodyError(f"the body ({what}) is no JSON object")
    return value
