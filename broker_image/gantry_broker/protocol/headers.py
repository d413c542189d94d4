"""Typed request headers, from and to a frame's string fields.

Each class lists its fields under RocketMQ's wire names, with a type, and a default for optional ones. `X.parse(frame)`
raises BadField, whose text has the field, its value and the expected type. `header.ext()` is the reverse. Numbers have
their Java range. Source: traffic and header classes of 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, NewType, Self, get_type_hints

from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import EXPRESSION_TAG, FLAG_RESPONSE, RequestCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame

Long = NewType("Long", int)
"""A 64-bit signed number; a plain `int` field is 32-bit."""

_INT_RANGE = (-(2**31), 2**31 - 1)
LONG_RANGE = (-(2**63), 2**63 - 1)


LONG_FIELDS: Final = {
    "properties": 1 << 20, "subscription": 1 << 16, "attributes": 1 << 16, "filterGroups": 1 << 16, "key": 1 << 16,
    "gantryAddresses": 1 << 16, "value": 1 << 21, "exp": 1 << 16,
}  # fmt: skip
"""Character limits of fields that are longer than a name."""


def parse_int(name: str, value: str | None, low: int = _INT_RANGE[0], high: int = _INT_RANGE[1]) -> int:
    """Parse a decimal number within its range. Raises BadField."""
    if value is not None:
        signed = value[:1] == "+" and value[1:2] != "-"  # Java's parsers accept it.
        number = whole_number(value[1:] if signed else value, low, high)
        if number is not None:
            return number
    raise BadField(name, value, f"a whole number from {low} to {high}")


def _parse_bool(name: str, value: str) -> bool:
    lowered = value.lower()
    if lowered == "true":
        return True
    if lowered == "false":
        return False
    raise BadField(name, value, "true or false")


class Header:
    """Base of all typed headers; subclasses are frozen dataclasses whose fields have the wire's names."""

    __slots__ = ()
    _parsed_fields: ClassVar[tuple[tuple[str, str, bool, Any], ...] | None] = None
    WIRE_NAMES: ClassVar[dict[str, str]] = {}
    """Field name to wire name where they differ."""
    MAX_CHARACTERS: ClassVar[int] = 1_024
    """Characters of a name or an id. Fields in `LONG_FIELDS` have their own limit."""
    MISSING_FIELD_CODE: ClassVar[int] = ResponseCode.SYSTEM_ERROR
    """Code of the answer to a request without a required field."""
    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset()
    """Strings that must not be empty. RocketMQ looks up the empty name and does not find it."""
    CODES: ClassVar[dict[str, int]] = {}
    """RocketMQ's answer code for an empty or too long string, where it is not SYSTEM_ERROR."""

    @classmethod
    def _fields(cls) -> tuple[tuple[str, str, bool, Any], ...]:
        parsed = cls.__dict__.get("_parsed_fields")
        if parsed is None:
            hints = get_type_hints(cls)
            rows = []
            for field in fields(cls):  # type: ignore[arg-type]
                hint = hints[field.name]
                text = str(hint)
                if hint is bool:
                    kind = "bool"
                elif hint is Long or "Long" in text:
                    kind = "long"
                elif hint is int or "int" in text:
                    kind = "int"
                elif "bool" in text:
                    kind = "bool"
                else:
                    kind = "str"
                required = field.default is MISSING
                rows.append((field.name, kind, required, None if required else field.default))
            parsed = tuple(rows)
            cls._parsed_fields = parsed
        return parsed

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the header of a request. Raises BadField."""
        return cls.from_ext(frame.ext)

    @classmethod
    def from_ext(cls, ext: dict[str, str]) -> Self:
        """Parse the header from its fields. Raises BadField."""
        values: list[Any] = []
        for name, kind, required, default in cls._fields():
            wire = cls.WIRE_NAMES.get(name, name)
            value = ext.get(wire)
            if value is None:
                if required:
                    expected = {"str": "a text", "bool": "true or false"}.get(kind, "a whole number")
                    raise BadField(wire, None, expected, cls.MISSING_FIELD_CODE)
                values.append(default)
            elif kind == "str":
                if len(value) > cls.MAX_CHARACTERS and len(value) > (most := LONG_FIELDS.get(name, cls.MAX_CHARACTERS)):
                    code = cls.CODES.get(name, ResponseCode.SYSTEM_ERROR)
                    raise BadField(wire, value, f"a text of at most {most} characters", code)
                if not value and name in cls.NOT_EMPTY:
                    raise BadField(wire, value, "a name", cls.CODES.get(name, ResponseCode.SYSTEM_ERROR))
                values.append(value)
            elif kind == "int":
                values.append(parse_int(wire, value))
            elif kind == "long":
                values.append(parse_int(wire, value, *LONG_RANGE))
            else:
                values.append(_parse_bool(wire, value))
        return cls(*values)

    def ext(self) -> dict[str, str]:
        """Return the fields as strings for the wire, without those that are None."""
        out = {}
        for name, kind, _, _ in self._fields():
            value = getattr(self, name)
            if value is not None:
                out[self.WIRE_NAMES.get(name, name)] = ("true" if value else "false") if kind == "bool" else str(value)
        return out


@dataclass(frozen=True, slots=True)
class OfTopic(Header):
    """A request about a topic: RocketMQ answers an empty or too long name as one of a topic that does not exist."""

    CODES: ClassVar[dict[str, int]] = {"topic": ResponseCode.TOPIC_NOT_EXIST}


@dataclass(frozen=True, slots=True)
class SendHeader(Header):
    """SEND_MESSAGE (10), with long names; 310, 320 and 325 use the same fields under short names."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: int
    queueId: int
    sysFlag: int
    bornTimestamp: Long
    flag: int
    properties: str | None = None
    reconsumeTimes: int | None = None
    unitMode: bool | None = None
    maxReconsumeTimes: int | None = None
    batch: bool = False
    brokerName: str | None = None

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse short or long names, by the request's code. Raises BadField."""
        if frame.code in _SHORT_NAMED:
            return cls.from_short(frame.ext)
        return cls.from_ext(frame.ext)

    @classmethod
    def from_short(cls, ext: dict[str, str]) -> Self:
        """Parse the names a to n, and no long ones: access is checked for the topic in b. Raises BadField, with the
        long name.
        """
        return cls.from_ext({long: ext[short] for short, long in _LONG_NAMES.items() if short in ext})

    def short_ext(self) -> dict[str, str]:
        """Return the fields for 310, 320 and 325."""
        return {_SHORT_NAMES[name]: value for name, value in self.ext().items()}


SHORT_SEND_NAMES = dict(zip("abcdefghijklmn", (field.name for field in fields(SendHeader)), strict=True))
"""Short name to long name of the fields of a send."""
_LONG_NAMES = SHORT_SEND_NAMES
_SHORT_NAMES = {long: short for short, long in SHORT_SEND_NAMES.items()}
_SHORT_NAMED = frozenset(
    (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
)


@dataclass(frozen=True, slots=True)
class PullHeader(OfTopic):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). Times are milliseconds."""

    consumerGroup: str
    topic: str
    queueId: int
    queueOffset: Long
    maxMsgNums: int
    sysFlag: int
    commitOffset: Long
    suspendTimeoutMillis: Long = Long(0)
    subVersion: Long = Long(0)
    subscription: str | None = None
    expressionType: str = EXPRESSION_TAG
    maxMsgBytes: int | None = None
    bname: str | None = None
    gantryLarge: bool | None = None
    """The answer may be larger than `maxTransfer...OnMessageInMemory`. Gantry's own: RocketMQ ignores it."""


@dataclass(frozen=True, slots=True)
class PopHeader(OfTopic):
    """POP_MESSAGE (200050). Times are milliseconds. As 5.5.0, a number that is absent counts as 0."""

    consumerGroup: str
    topic: str
    queueId: int = 0
    maxMsgNums: int = 0
    invisibleTime: Long = Long(0)
    pollTime: Long = Long(0)
    bornTime: Long = Long(0)
    initMode: int = 0
    expType: str | None = None
    exp: str | None = None
    order: bool = False
    attemptId: str | None = None


@dataclass(frozen=True, slots=True)
class PeekHeader(OfTopic):
    """PEEK_MESSAGE (200052)."""

    consumerGroup: str
    topic: str
    queueId: int = 0
    maxMsgNums: int = 0


@dataclass(frozen=True, slots=True)
class PopAnswerHeader(Header):
    """The answer to POP_MESSAGE and PEEK_MESSAGE."""

    popTime: Long
    invisibleTime: Long
    reviveQid: int
    restNum: Long
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


@dataclass(frozen=True, slots=True)
class AckHeader(OfTopic):
    """ACK_MESSAGE (200051). `extraInfo` is the handle of the delivery."""

    consumerGroup: str
    topic: str
    queueId: int
    extraInfo: str
    offset: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleHeader(OfTopic):
    """CHANGE_MESSAGE_INVISIBLETIME (200053): the new invisible time counts from now on.

    `suspend`: the delivery that ends does not count as an attempt.
    """

    consumerGroup: str
    topic: str
    queueId: int
    extraInfo: str
    offset: Long
    invisibleTime: Long
    suspend: bool = False


@dataclass(frozen=True, slots=True)
class ChangeInvisibleAnswerHeader(Header):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME: what is new in the handle."""

    popTime: Long
    invisibleTime: Long
    reviveQid: int


@dataclass(frozen=True, slots=True)
class NotificationHeader(OfTopic):
    """NOTIFICATION (200054): whether a pop would find messages, at once or within the time of the poll."""

    consumerGroup: str
    topic: str
    queueId: int = 0
    pollTime: Long = Long(0)
    bornTime: Long = Long(0)
    order: bool = False
    attemptId: str | None = None
    expType: str | None = None
    exp: str | None = None


POPPED: Final = "gantryPopped"
"""Field of the answer to POLLING_INFO: whether the group has ever popped from the topic here. Gantry's own."""


@dataclass(frozen=True, slots=True)
class PollingInfoHeader(OfTopic):
    """POLLING_INFO (200055)."""

    consumerGroup: str
    topic: str
    queueId: int = 0


@dataclass(frozen=True, slots=True)
class RecallHeader(OfTopic):
    """RECALL_MESSAGE (370)."""

    topic: str
    recallHandle: str = ""
    producerGroup: str | None = None


@dataclass(frozen=True, slots=True)
class QueryOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumerGroup: str
    topic: str
    queueId: int
    setZeroIfNotFound: bool | None = None


@dataclass(frozen=True, slots=True)
class UpdateOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumerGroup: str
    topic: str
    queueId: int
    commitOffset: Long


@dataclass(frozen=True, slots=True)
class QueueHeader(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queueId: int


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). `boundaryType` is 5.x's: LOWER or UPPER, in any case of letters."""

    topic: str
    queueId: int
    timestamp: Long
    boundaryType: str = "LOWER"

    @property
    def upper(self) -> bool:
        """Whether the last message at or before the time is asked for. Raises BadField for an unknown boundary.

        5.5.0 takes every other text for LOWER, so that a typing error gives another message than the one asked for.
        """
        boundary = self.boundaryType.upper()
        if boundary not in ("LOWER", "UPPER"):
            raise BadField("boundaryType", self.boundaryType, "LOWER or UPPER")
        return boundary == "UPPER"


@dataclass(frozen=True, slots=True)
class QueryMessageHeader(Header):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    maxNum: int
    beginTimestamp: Long
    endTimestamp: Long
    uniqueKeyQuery: bool = False
    indexType: str | None = None

    WIRE_NAMES: ClassVar[dict[str, str]] = {"uniqueKeyQuery": "_UNIQUE_KEY_QUERY"}


@dataclass(frozen=True, slots=True)
class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID (33): `offset` is the physical offset."""

    offset: Long
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT (35)."""

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


@dataclass(frozen=True, slots=True)
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK (36): `offset` is the physical offset; delay level 0 leaves it to the broker."""

    offset: Long
    group: str
    delayLevel: int
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool | None = None
    maxReconsumeTimes: int | None = None


@dataclass(frozen=True, slots=True)
class EndTransactionHeader(Header):
    """END_TRANSACTION (37): `commitOrRollback` is one of the transaction bits of the system flag."""

    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: int
    fromTransactionCheck: bool = False
    msgId: str | None = None
    transactionId: str | None = None


@dataclass(frozen=True, slots=True)
class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE (39), from broker to producer."""

    tranStateTableOffset: Long
    commitLogOffset: Long
    msgId: str | None = None
    transactionId: str | None = None
    offsetMsgId: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumerGroup: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"consumerGroup"})


@dataclass(frozen=True, slots=True)
class ConsumerConnectionsHeader(Header):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumerGroup: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"consumerGroup"})
    CODES: ClassVar[dict[str, int]] = {"consumerGroup": ResponseCode.CONSUMER_NOT_ONLINE}


@dataclass(frozen=True, slots=True)
class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS (208): without a topic, for all topics of the group."""

    consumerGroup: str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producerGroup: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"producerGroup"})


@dataclass(frozen=True, slots=True)
class TopicHeader(Header):
    """DELETE_TOPIC_IN_BROKER (215), QUERY_TOPIC_CONSUME_BY_WHO (300), GET_TOPIC_CONFIG (351)."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicStatsHeader(OfTopic):
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


@dataclass(frozen=True, slots=True)
class GroupHeader(Header):
    """QUERY_TOPICS_BY_CONSUMER (343), GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"group"})


@dataclass(frozen=True, slots=True)
class SubscriptionOfGroupHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"group", "topic"})


@dataclass(frozen=True, slots=True)
class RouteHeader(OfTopic):
    """GET_ROUTEINFO_BY_TOPIC (105). Without a topic the answer is that for an unknown topic."""

    topic: str = ""
    acceptStandardJsonOnly: bool | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopicInNamesrvHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV (216). 4.9's own client sends only the topic."""

    topic: str
    clusterName: str | None = None


@dataclass(frozen=True, slots=True)
class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    defaultTopic: str
    readQueueNums: int
    writeQueueNums: int
    perm: int
    topicFilterType: str
    topicSysFlag: int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True)
class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP (207): 4.9 says removeOffset, 5.x cleanOffset."""

    groupName: str
    removeOffset: bool | None = None
    cleanOffset: bool | None = None


@dataclass(frozen=True, slots=True)
class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220); `timestamp` -1: to the end."""

    topic: str
    group: str
    timestamp: Long
    isForce: bool = False
    queueId: int | None = None
    offset: Long | None = None


@dataclass(frozen=True, slots=True)
class ConsumerStatusHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    clientAddr: str | None = None

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"topic", "group"})


@dataclass(frozen=True, slots=True)
class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO (307), a request to the broker, which forwards it to the client."""

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"consumerGroup", "clientId"})


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"consumerGroup"})


@dataclass(frozen=True, slots=True)
class StatsDataHeader(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    statsName: str
    statsKey: str

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"statsName", "statsKey"})


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    isOrder: bool = False


@dataclass(frozen=True, slots=True)
class CloneOffsetHeader(Header):
    """CLONE_GROUP_OFFSET (314)."""

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpanHeader(OfTopic):
    """QUERY_CONSUME_TIME_SPAN (303) and QUERY_CORRECTION_OFFSET (308, with more fields)."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class CorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET (308)."""

    topic: str
    filterGroups: str | None = None
    compareGroup: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queueId: int
    index: Long
    count: int
    consumerGroup: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    msgId: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: int
    queueId: int
    sysFlag: int
    bornTimestamp: Long
    flag: int
    properties: str | None = None
    reconsumeTimes: int | None = None
    unitMode: bool = False
    bornHost: str | None = None
    storeHost: str | None = None
    storeTimestamp: Long = Long(0)


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader(Header):
    """REGISTER_BROKER (103). The fields that begin with `gantry` are Gantry's own.

    `gantryEpoch` fences old masters, `gantryMember` is the number that does not change with the role, and
    `gantryAddresses` is a JSON object: NameServer listener to the address for its clients. In REGISTER_CHANGES,
    `gantrySince` is the JSON of the version of the topics to which the body has the changes.
    """

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: Long
    haServerAddr: str | None = None
    compressed: bool = False
    bodyCrc32: Long = Long(0)
    enableActingMaster: bool | None = None
    heartbeatTimeoutMillis: Long | None = None
    gantryEpoch: Long | None = None
    gantryMember: int | None = None
    gantryAddresses: str | None = None
    gantrySince: str | None = None

    NOT_EMPTY: ClassVar[frozenset[str]] = frozenset({"brokerName", "brokerAddr", "clusterName"})


@dataclass(frozen=True, slots=True)
class UnregisterBrokerHeader(Header):
    """UNREGISTER_BROKER (104)."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: Long


@dataclass(frozen=True, slots=True)
class QueryDataVersionHeader(Header):
    """QUERY_DATA_VERSION (322): the body holds the broker's own data version."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: Long


@dataclass(frozen=True, slots=True)
class KvHeader(Header):
    """PUT_KV_CONFIG (100), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class GetKvHeader(Header):
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str
    value: str | None = None

    MISSING_FIELD_CODE: ClassVar[int] = ResponseCode.QUERY_NOT_FOUND


@dataclass(frozen=True, slots=True)
class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str

    MISSING_FIELD_CODE: ClassVar[int] = ResponseCode.QUERY_NOT_FOUND


@dataclass(frozen=True, slots=True)
class WritePermHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    brokerName: str


@dataclass(frozen=True, slots=True)
class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@dataclass(frozen=True, slots=True)
class SendAnswer(Header):
    """The answer to a send; `msgId` is the offset id, several joined by commas for a batch."""

    msgId: str
    queueId: int
    queueOffset: Long
    transactionId: str | None = None
    MSG_REGION: str | None = None
    TRACE_ON: str | None = None

    MAX_CHARACTERS: ClassVar[int] = 1 << 24


@dataclass(frozen=True, slots=True)
class PullAnswer(Header):
    """The answer to a pull."""

    suggestWhichBrokerId: Long
    nextBeginOffset: Long
    minOffset: Long
    maxOffset: Long


@dataclass(frozen=True, slots=True)
class OffsetAnswer(Header):
    """The answer to 14, 29, 30 and 31."""

    offset: Long


def error_answer(request: Frame, code: int, remark: str) -> Frame:
    """Create an answer with an error code and its reason."""
    return Frame(code, request.opaque, FLAG_RESPONSE, None, b"", remark, request.serialize)
