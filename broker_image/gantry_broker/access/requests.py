"""The one table of request codes: which resources a request names, and which actions it does with them.

A request needs every line of its row; a line that has several actions needs one of them. A request code that is not in
the table needs a super user, whether a port serves it or not. Names of a request are read as its handler reads them.

Where a request names a place of the log instead of a topic, the topic is that of the record there. A record that does
not exist has the empty name. Of the requests in `PLACES` such a one is refused whatever the rules say: the record may
come while the request waits for its turn, and no one learns what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from gantry_broker.access.decide import CLUSTER, CREATE, DELETE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BatchAcks, BodyError, Heartbeat, LockRequest
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RETRY_PREFIX, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import BadField, EndTransactionHeader, SendBackHeader, ViewMessageHeader
from gantry_broker.protocol.heartbeats import heartbeat_fault
from gantry_broker.protocol.message import parse_message_id

MAX_NAMES: Final = 1_000
"""Topics or groups that the body of one request may create."""
PLACES: Final = frozenset(
    int(code)
    for code in (
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
    )
)
"""Requests about the record at a place of the log."""
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
        """The topic under which the record is stored."""

    def target_at(self, offset: int) -> str:
        """The topic that the message is for: a half message waits under another one."""


Row = Callable[[Frame, Records], list[Need]]
"""Raises BodyError and BadField when the request cannot be read."""

READ: Final = (SUB, GET)
MOVE: Final = (SUB, UPDATE)


class _Named:
    """A line about the resource that a field of the header names."""

    def __init__(self, kind: str, field: str, actions: tuple[str, ...]) -> None:
        self.kind = kind
        self.fields = (field,)
        self.actions = actions

    def __call__(self, frame: Frame, _: Records) -> list[Need]:
        return [Need(self.kind, frame.ext.get(self.fields[0], ""), self.actions)]


class _All:
    """Every line of these."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows
        named = [row for row in rows if isinstance(row, _Named)]
        self.fields = tuple(field for row in named for field in row.fields) if len(named) == len(rows) else ()

    def __call__(self, frame: Frame, records: Records) -> list[Need]:
        return [need for row in self.rows for need in row(frame, records)]


def _topic(field: str, *actions: str) -> Row:
    return _Named(TOPIC, field, actions)


def _group(field: str, *actions: str) -> Row:
    return _Named(GROUP, field, actions)


def _given(row: Callable[..., Row], field: str, *actions: str) -> Row:
    """A line for a field that may be absent."""
    line = row(field, *actions)
    return lambda frame, records: line(frame, records) if frame.ext.get(field) else []


def _cluster(*actions: str) -> Row:
    needs = [Need(CLUSTER, "", actions)]
    return lambda _frame, _records: needs


def _route(frame: Frame, _: Records) -> list[Need]:
    """Every user may ask for the route of the topic by which producers create others: it says where brokers are."""
    topic = frame.ext.get("topic", "")
    return [] if topic == AUTO_CREATE_TOPIC else [Need(TOPIC, topic, (PUB, SUB, GET))]


def _json(frame: Frame, what: str) -> Any:
    try:
        return fastjson.loads(frame.body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"the body ({what}) cannot be read: {error}") from None


def _heartbeat(frame: Frame, _: Records) -> list[Need]:
    """A producer group needs no right of its own, as with RocketMQ; checks of transactions go by topic."""
    value = _json(frame, "heartbeat")
    fault = heartbeat_fault(value)
    if fault is not None:
        raise BodyError(fault)
    needs = []
    for consumer in Heartbeat.from_json(value).consumers:
        needs.append(Need(GROUP, consumer.group, (SUB,)))
        needs += [Need(TOPIC, subscription.topic, (SUB,)) for subscription in consumer.subscriptions]
    return needs


def _lock(frame: Frame, _: Records) -> list[Need]:
    return [Need(GROUP, LockRequest.from_json(_json(frame, "lock")).group, (SUB,))]


def _check_client(frame: Frame, _: Records) -> list[Need]:
    value = _json(frame, "checkClient")
    if not isinstance(value, dict):
        raise BodyError("the body (checkClient) is no JSON object")
    subscription = value.get("subscriptionData")
    topic = subscription.get("topic") if isinstance(subscription, dict) else None
    return [Need(GROUP, str(value.get("group") or ""), (SUB,)), Need(TOPIC, str(topic or ""), (SUB,))]


def _in_body(kind: str, field: str, name: str) -> Row:
    """Create of what a body names: one object, or with `field` a list of them."""

    def row(frame: Frame, _: Records) -> list[Need]:
        value = _json(frame, field or name)
        items = value.get(field) if field and isinstance(value, dict) else [value]
        if not isinstance(items, list) or not items:
            raise BodyError(f"the body's {field} is absent; a list is expected")
        if len(items) > MAX_NAMES:
            raise BodyError(f"the body's {field} has {len(items)} entries, the limit is {MAX_NAMES}")
        if not all(isinstance(item, dict) for item in items):
            raise BodyError(f"the body has an entry that is no JSON object; one with {name} is expected")
        return [Need(kind, str(item.get(name) or ""), (CREATE,)) for item in items]

    return row


def _viewed(frame: Frame, records: Records) -> list[Need]:
    return [Need(TOPIC, records.topic_at(ViewMessageHeader.parse(frame).offset), READ)]


def _sent_back(frame: Frame, records: Records) -> list[Need]:
    """The record becomes readable for the group, so its topic must be, too."""
    header = SendBackHeader.parse(frame)
    return [Need(GROUP, header.group, (SUB,)), Need(TOPIC, records.topic_at(header.offset), (SUB,))]


def _ended(frame: Frame, records: Records) -> list[Need]:
    return [Need(TOPIC, records.target_at(EndTransactionHeader.parse(frame).commitLogOffset), (PUB,))]


def _offset_of(frame: Frame) -> int:
    text = frame.ext.get("msgId", "")
    try:
        return parse_message_id(text)[2]
    except ValueError:
        raise BadField("msgId", text or None, "the id of a message") from None


def _resumed(frame: Frame, records: Records) -> list[Need]:
    return [Need(TOPIC, records.target_at(_offset_of(frame)), (PUB,))]


def _consumed_directly(frame: Frame, records: Records) -> list[Need]:
    needs = [Need(GROUP, frame.ext.get("consumerGroup", ""), (SUB,))]
    if frame.ext.get("msgId"):
        needs.append(Need(TOPIC, records.topic_at(_offset_of(frame)), (SUB,)))
    return needs


def _assigned(frame: Frame, _: Records) -> list[Need]:
    value = _json_object(frame, "queryAssignment")
    return [
        Need(TOPIC, str(value.get("topic") or ""), (SUB,)), Need(GROUP, str(value.get("consumerGroup") or ""), (SUB,))
    ]  # fmt: skip


def _mode_set(frame: Frame, _: Records) -> list[Need]:
    value = _json_object(frame, "setMessageRequestMode")
    topic, group = str(value.get("topic") or ""), str(value.get("consumerGroup") or "")
    return [Need(TOPIC, topic, (UPDATE, GET)), Need(GROUP, group, (UPDATE,))]


def _acked(frame: Frame, _: Records) -> list[Need]:
    try:
        acks = BatchAcks.from_json(_json(frame, "batchAck")).acks if frame.body else []
    except BodyError:
        acks = []
    if not acks:
        return [Need(GROUP, "", (SUB,))]
    names = dict.fromkeys((ack.group, ack.topic) for ack in acks)
    return [need for group, topic in names for need in _of_delivery(group, topic)]


def _delivery(frame: Frame, _: Records) -> list[Need]:
    return _of_delivery(frame.ext.get("consumerGroup", ""), frame.ext.get("topic", ""))


def _of_delivery(group: str, topic: str) -> list[Need]:
    """What a group needs that acknowledges. `%RETRY%group+topic` belongs to the group. In its first form,
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


_LISTS: Final = _cluster(GET, LIST)

ROWS: Final[dict[int, Row]] = {
    # sends
    RequestCode.SEND_MESSAGE: _topic("topic", PUB),
    RequestCode.SEND_MESSAGE_V2: _topic("b", PUB),
    RequestCode.SEND_BATCH_MESSAGE: _topic("b", PUB),
    RequestCode.SEND_REPLY_MESSAGE: _topic("topic", PUB),
    RequestCode.SEND_REPLY_MESSAGE_V2: _topic("b", PUB),
    RequestCode.END_TRANSACTION: _ended,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resumed,
    # consumers
    RequestCode.PULL_MESSAGE: _All(_topic("topic", SUB), _group("consumerGroup", SUB)),
    RequestCode.LITE_PULL_MESSAGE: _All(_topic("topic", SUB), _group("consumerGroup", SUB)),
    RequestCode.QUERY_CONSUMER_OFFSET: _All(_topic("topic", *READ), _group("consumerGroup", *READ)),
    RequestCode.UPDATE_CONSUMER_OFFSET: _All(_topic("topic", *MOVE), _group("consumerGroup", *MOVE)),
    RequestCode.CONSUMER_SEND_MSG_BACK: _sent_back,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup", *READ),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _given(_group, "consumerGroup", SUB),
    RequestCode.POP_MESSAGE: _All(_topic("topic", SUB), _group("consumerGroup", SUB)),
    RequestCode.PEEK_MESSAGE: _All(_topic("topic", SUB), _group("consumerGroup", SUB)),
    RequestCode.NOTIFICATION: _All(_topic("topic", SUB), _group("consumerGroup", SUB)),
    RequestCode.ACK_MESSAGE: _delivery,
    RequestCode.BATCH_ACK_MESSAGE: _acked,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _delivery,
    RequestCode.POLLING_INFO: _All(_topic("topic", *READ), _group("consumerGroup", *READ)),
    RequestCode.QUERY_ASSIGNMENT: _assigned,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _mode_set,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _LISTS,
    RequestCode.RECALL_MESSAGE: _topic("topic", PUB),
    # messages and offsets
    RequestCode.QUERY_MESSAGE: _topic("topic", *READ),
    RequestCode.VIEW_MESSAGE_BY_ID: _viewed,
    RequestCode.QUERY_CONSUME_QUEUE: _All(_topic("topic", GET), _given(_group, "consumerGroup", GET)),
    RequestCode.GET_MAX_OFFSET: _topic("topic", *READ),
    RequestCode.GET_MIN_OFFSET: _topic("topic", *READ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic("topic", *READ),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic("topic", *READ),
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: _topic("topic", CREATE),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _in_body(TOPIC, "topicConfigList", "topicName"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _topic("topic", DELETE),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _topic("topic", DELETE),
    RequestCode.GET_TOPIC_CONFIG: _topic("topic", GET),
    RequestCode.GET_TOPIC_STATS_INFO: _topic("topic", GET),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic("topic", GET),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_ALL_TOPIC_CONFIG: _LISTS,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _LISTS,
    RequestCode.GET_TOPICS_BY_CLUSTER: _LISTS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _LISTS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LISTS,
    RequestCode.GET_UNIT_TOPIC_LIST: _LISTS,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _LISTS,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _LISTS,
    RequestCode.CLEAN_UNUSED_TOPIC: _cluster(UPDATE),
    # groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _in_body(GROUP, "", "groupName"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _in_body(GROUP, "groupConfigList", "groupName"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _group("groupName", DELETE),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", GET),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LISTS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup", GET),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _group("producerGroup", GET),
    RequestCode.GET_ALL_PRODUCER_INFO: _LISTS,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup", GET),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consumed_directly,
    RequestCode.GET_CONSUME_STATS: _All(_group("consumerGroup", GET), _given(_topic, "topic", GET)),
    RequestCode.GET_BROKER_CONSUME_STATS: _cluster(GET),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group("group", GET),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _All(_group("group", GET), _topic("topic", GET)),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _All(_group("group", GET), _topic("topic", GET)),
    RequestCode.QUERY_CORRECTION_OFFSET: _All(_topic("topic", GET), _given(_group, "compareGroup", GET)),
    RequestCode.CLONE_GROUP_OFFSET: _All(
        _group("srcGroup", GET), _group("destGroup", UPDATE), _given(_topic, "topic", GET)
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _All(_group("group", UPDATE), _topic("topic", UPDATE, GET)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _All(_group("group", GET), _topic("topic", GET)),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _cluster(GET),
    RequestCode.GET_ALL_DELAY_OFFSET: _cluster(GET),
    # the broker and the NameServer
    RequestCode.UPDATE_BROKER_CONFIG: _cluster(UPDATE),
    RequestCode.GET_BROKER_CONFIG: _cluster(GET),
    RequestCode.GET_BROKER_RUNTIME_INFO: _cluster(GET),
    RequestCode.VIEW_BROKER_STATS_DATA: _cluster(GET),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(UPDATE),
    RequestCode.DELETE_EXPIRED_COMMITLOG: _cluster(UPDATE),
    RequestCode.TRIGGER_DELETE_FILES: _cluster(UPDATE),
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster(GET),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _cluster(UPDATE),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _cluster(UPDATE),
    RequestCode.PUT_KV_CONFIG: _cluster(UPDATE),
    RequestCode.DELETE_KV_CONFIG: _cluster(UPDATE),
    RequestCode.GET_KV_CONFIG: _cluster(GET),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _cluster(GET),
    RequestCode.UPDATE_NAMESRV_CONFIG: _cluster(UPDATE),
    RequestCode.GET_NAMESRV_CONFIG: _cluster(GET),
}
"""What a request needs, by its code. Users themselves are for super users alone, so their codes are not here."""

NAMED: Final[dict[int, tuple[str, ...]]] = {
    int(code): tuple(row.fields) for code, row in ROWS.items() if isinstance(row, (_Named, _All)) and row.fields
}
"""For codes whose resources stand in the header and nowhere else: the fields of their names. Requests of one code with
the same names need the same rights."""
NAMES: Final[dict[int, Callable[[Mapping[str, str]], Hashable]]] = {
    code: itemgetter(*fields) for code, fields in NAMED.items()
}
"""Reads these names. Raises KeyError when one is absent."""

USER_CODES: Final = frozenset(
    int(code)
    for code in (
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    )
)
"""Requests about users: they need the signature of a super user in each mode."""
ADMINISTRATIVE: Final = USER_CODES | {
    int(code)
    for code in (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    )
}
"""Requests that change more than messages and a consumer's own progress: each is in the audit log."""
