"""Typed bodies of requests and answers between NameServers, brokers, clients and `mqadmin`.

Every class has `from_json` (from a parsed value; BodyError names the bad field) and `to_json` (a value for
`fastjson.dumps`). Names on the wire are fastjson's, from recorded traffic.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import EXPRESSION_TAG, Perm
from gantry_broker.protocol.digits import MIN_INT, whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError, Fields, parse, queue_from_json, queue_to_json, short
from gantry_broker.protocol.retry_policy import DEFAULT as DEFAULT_POLICY
from gantry_broker.protocol.retry_policy import RetryPolicy

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
CONSUME_TYPES: Final = ("CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("CLUSTERING", "BROADCASTING", "LITE_SELECTIVE")
BEGINNINGS: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)
"""The names that Java's clients know: an answer with another one is an error for all that they read with it."""
MAX_RETRY_QUEUES: Final = 1_024
MAX_RETRIES: Final = 16
"""Retries of a group that names none. A negative number, which a former release stored, counts as none."""


@dataclass(slots=True)
class DataVersion:
    """The version of a table. It changes with every change of the table, and is compared as a whole."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls() if value is None else cls.of(Fields(value, "dataVersion"))

    @classmethod
    def of(cls, fields: Fields) -> Self:
        return cls(fields.long("timestamp", 0), fields.long("counter", 0), fields.long("stateVersion", 0))

    def to_json(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1, self.state_version)


@dataclass(slots=True)
class TopicConfig:
    """A topic on one broker."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = Perm.READ | Perm.WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any, name: str | None = None, *, stored: bool = False) -> Self:
        """Read the body. `stored`: see `Fields`. Raises BodyError."""
        fields = Fields(value, "topicConfig", stored=stored)
        return cls(
            fields.text("topicName", name),
            fields.number("readQueueNums", 16, 0),
            fields.number("writeQueueNums", 16, 0),
            fields.number("perm", 6, 0),
            fields.one_of("topicFilterType", FILTER_TYPES[0], FILTER_TYPES),
            fields.number("topicSysFlag", 0),
            fields.flag("order"),
            fields.attributes("attributes"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(slots=True)
class TopicConfigs:
    """All topics of a broker: `config/topics.json`, and the main part of a registration."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def from_json(cls, value: Any, *, stored: bool = False) -> Self:
        """Read the body. `stored`: see `Fields`. Raises BodyError."""
        fields = Fields(value, "topicConfigSerializeWrapper")
        topics = {}
        for name, item in fields.map("topicConfigTable").items():
            config = TopicConfig.from_json(item, str(name), stored=stored)
            topics[config.name] = config
        return cls(topics, DataVersion.from_json(fields.map("dataVersion") or None))

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "topicConfigTable": {name: config.to_json() for name, config in self.topics.items()},
        }


@dataclass(slots=True)
class RegisterBody:
    """The body of REGISTER_BROKER."""

    configs: TopicConfigs = field(default_factory=TopicConfigs)
    filter_servers: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "registration")
        return cls(TopicConfigs.from_json(fields.map("topicConfigSerializeWrapper")), fields.texts("filterServerList"))

    def to_json(self) -> dict[str, Any]:
        return {"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": self.configs.to_json()}


@dataclass(slots=True)
class QueueData:
    """Queue counts of a topic on a broker group, in a route."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "queueData")
        return cls(
            fields.text("brokerName"),
            fields.number("readQueueNums"),
            fields.number("writeQueueNums"),
            fields.number("perm"),
            fields.number("topicSysFlag", 0),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(slots=True)
class BrokerData:
    """A broker group in a route: addresses by broker id, 0 is the master."""

    cluster: str
    name: str
    addresses: dict[int, str]
    compares_versions: bool = False
    """Whether the NameServer is one of RocketMQ 5.x: it keeps a master against one of a lower state version. Source:
    `RouteInfoManager.registerBroker` and `BrokerData` of 5.5.0 and of 4.9.7, which has no such field.
    """

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "brokerData")
        addresses = {}
        for key, address in fields.map("brokerAddrs").items():
            number = whole_number(str(key))
            if number is None or not isinstance(address, str):
                raise BodyError(f"brokerData.brokerAddrs has {short(key)}: {short(address)}; id and address expected")
            addresses[number] = address
        return cls(fields.text("cluster", ""), fields.text("brokerName"), addresses, "enableActingMaster" in value)

    def to_json(self, *, bare_ids: bool = False) -> dict[str, Any]:
        """`bare_ids`: numbers without quotes, as fastjson writes them in cluster information."""
        ids: dict[Any, str] = dict(self.addresses) if bare_ids else {str(k): v for k, v in self.addresses.items()}
        return {
            "brokerAddrs": ids,
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": False,
        }


@dataclass(slots=True)
class TopicRoute:
    """The queues and brokers of a topic: the answer to GET_ROUTEINFO_BY_TOPIC."""

    queues: list[QueueData] = field(default_factory=list)
    brokers: list[BrokerData] = field(default_factory=list)
    order_conf: str | None = None
    filter_servers: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "route")
        return cls(
            [QueueData.from_json(item) for item in fields.items("queueDatas")],
            [BrokerData.from_json(item) for item in fields.items("brokerDatas")],
            fields.text("orderTopicConf", "") or None,
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": self.filter_servers,
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if self.order_conf is not None:
            out["orderTopicConf"] = self.order_conf
        return out


@dataclass(slots=True)
class ClusterInfo:
    """All broker groups and their clusters: the answer to GET_BROKER_CLUSTER_INFO."""

    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "clusterInfo")
        clusters = Fields(fields.map("clusterAddrTable"), "clusterInfo.clusterAddrTable")
        return cls(
            {str(name): BrokerData.from_json(item) for name, item in fields.map("brokerAddrTable").items()},
            {str(name): clusters.texts(str(name)) for name in fields.map("clusterAddrTable")},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {name: broker.to_json(bare_ids=True) for name, broker in self.brokers.items()},
            "clusterAddrTable": self.clusters,
        }


def topic_list(topics: Iterable[str], broker_addr: str | None = None) -> bytes:
    """Return the body of TopicList answers (206, 224, 304, 305, 311 to 313)."""
    out: dict[str, Any] = {"topicList": list(topics)}
    if broker_addr is not None:
        out["brokerAddr"] = broker_addr
    return fastjson.dumps(out)


@dataclass(slots=True)
class SubscriptionData:
    """A consumer group's subscription to a topic."""

    topic: str
    expression: str = "*"
    expression_type: str = EXPRESSION_TAG
    tags: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    version: int = 0
    class_filter: bool = False

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "subscriptionData")
        codes = fields.numbers("codeSet")  # RocketMQ's Go client writes them as strings
        return cls(
            fields.text("topic"),
            fields.text("subString", "*"),
            fields.text("expressionType", EXPRESSION_TAG),
            fields.texts("tagsSet"),
            codes,
            fields.long("subVersion", 0),
            fields.flag("classFilterMode"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": self.codes,
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": self.tags,
            "topic": self.topic,
        }


@dataclass(slots=True)
class ConsumerData:
    """One consumer group of a client, in its heartbeat."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "consumerData")
        return cls(
            fields.text("groupName"),
            fields.one_of("consumeType", "CONSUME_PASSIVELY", CONSUME_TYPES),
            fields.one_of("messageModel", "CLUSTERING", MESSAGE_MODELS),
            fields.one_of("consumeFromWhere", "CONSUME_FROM_LAST_OFFSET", BEGINNINGS),
            [SubscriptionData.from_json(item) for item in fields.items("subscriptionDataSet")],
            fields.flag("unitMode"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.from_where,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [item.to_json() for item in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(slots=True)
class Heartbeat:
    """A client's heartbeat to a broker, every 30 s: the body of HEART_BEAT.

    `fingerprint` and `without_subscriptions` are the second form of 5.x. Clients use it only with a broker that offers
    it.
    """

    client_id: str
    producers: list[str] = field(default_factory=list)
    consumers: list[ConsumerData] = field(default_factory=list)
    fingerprint: int = 0
    without_subscriptions: bool = False

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "heartbeat")
        return cls(
            fields.text("clientID"),
            [Fields(item, "producerData").text("groupName") for item in fields.items("producerDataSet")],
            [ConsumerData.from_json(item) for item in fields.items("consumerDataSet")],
            fields.number("heartbeatFingerprint", 0),
            fields.flag("withoutSub"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [item.to_json() for item in self.consumers],
            "producerDataSet": [{"groupName": name} for name in self.producers],
        }


@dataclass(slots=True)
class SubscriptionGroup:
    """A consumer group's configuration: `config/subscriptionGroup.json` and code 200."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_ids_changed: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    orderly: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    retry_policy: RetryPolicy = DEFAULT_POLICY

    @classmethod
    def from_json(cls, value: Any, name: str | None = None, *, stored: bool = False) -> Self:
        """Read the body. `stored`: see `Fields`. Raises BodyError."""
        fields = Fields(value, "subscriptionGroupConfig", stored=stored)
        retries = fields.number("retryMaxTimes", MAX_RETRIES, MIN_INT if stored else 0)
        return cls(
            fields.text("groupName", name),
            fields.flag("consumeEnable", True),
            fields.flag("consumeFromMinEnable", True),
            fields.flag("consumeBroadcastEnable", True),
            fields.number("retryQueueNums", 1, 0, MAX_RETRY_QUEUES),
            MAX_RETRIES if retries < 0 else retries,
            fields.long("brokerId", 0, 0),
            fields.long("whichBrokerWhenConsumeSlowly", 1, 0),
            fields.flag("notifyConsumerIdsChangedEnable", True),
            fields.number("groupSysFlag", 0),
            fields.number("consumeTimeoutMinute", 15, 0),
            fields.flag("consumeMessageOrderly"),
            fields.attributes("attributes"),
            RetryPolicy.from_json(fields.map("groupRetryPolicy"), "subscriptionGroupConfig.groupRetryPolicy"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": self.attributes,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": self.retry_policy.to_json(),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_ids_changed,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_slow,
        }


@dataclass(slots=True)
class LockRequest:
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): a member and the queues that it locks."""

    group: str
    client_id: str
    queues: list[MessageQueue] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "lock")
        return cls(
            fields.text("consumerGroup"),
            fields.text("clientId"),
            [queue_from_json(item) for item in fields.items("mqSet")],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.group,
            "mqSet": [queue_to_json(queue) for queue in self.queues],
        }


MAX_ACKS: Final = 1_000
"""Entries of one BATCH_ACK_MESSAGE, and messages of all of them."""
MAX_BITS: Final = 8_192
"""Bytes of an entry's bits, for messages that lie far apart in their queue."""


@dataclass(slots=True)
class BatchAck:
    """Some messages of one pop of one queue, in BATCH_ACK_MESSAGE (200151)."""

    group: str
    topic: str
    kind: int
    """0, or 1 and 2 for the two forms of the retry topic."""
    start_offset: int
    queue_id: int
    revive_queue: int
    pop_ms: int
    invisible_ms: int
    bits: int
    """Bit n is for the message n behind the start offset."""

    @property
    def offsets(self) -> list[int]:
        """Queue offsets of the acknowledged messages."""
        return [self.start_offset + bit for bit in range(self.bits.bit_length()) if self.bits >> bit & 1]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "acks")
        kind, start = fields.text("r", "0"), fields.long("so")
        text = fields.text("b")
        if len(text) > MAX_BITS * 4 // 3 + 4:
            raise BodyError(f"the field acks.b has {len(text)} characters; bits of at most {MAX_BITS} bytes are valid")
        try:
            bits = int.from_bytes(base64.b64decode(text, validate=True), "little")
        except ValueError:
            raise BodyError(f"the field acks.b is {short(text)}; base64 is expected") from None
        return cls(
            fields.text("c"),
            fields.text("t"),
            int(kind) if kind in ("0", "1", "2") else 0,
            start,
            fields.number("q"),
            fields.number("rq"),
            fields.long("pt"),
            fields.long("it"),
            bits,
        )

    def to_json(self) -> dict[str, Any]:
        bits = self.bits.to_bytes(self.bits.bit_length() + 7 >> 3, "little")
        return {
            "b": base64.b64encode(bits).decode(),
            "c": self.group,
            "it": self.invisible_ms,
            "pt": self.pop_ms,
            "q": self.queue_id,
            "r": str(self.kind),
            "rq": self.revive_queue,
            "so": self.start_offset,
            "t": self.topic,
        }


@dataclass(slots=True)
class BatchAcks:
    """The body of BATCH_ACK_MESSAGE (200151)."""

    broker: str
    acks: list[BatchAck]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "batchAck")
        items = list(fields.items("acks"))
        if len(items) > MAX_ACKS:
            raise BodyError(f"the field batchAck.acks has {len(items)} entries, the limit is {MAX_ACKS}")
        acks = [BatchAck.from_json(item) for item in items]
        if (count := sum([ack.bits.bit_count() for ack in acks])) > MAX_ACKS:
            raise BodyError(f"the field batchAck.acks has over {MAX_ACKS} messages ({count}), which is the limit")
        return cls(fields.text("brokerName", ""), acks)

    def to_json(self) -> dict[str, Any]:
        return {"acks": [ack.to_json() for ack in self.acks], "brokerName": self.broker}


PULL: Final = "PULL"
POP: Final = "POP"


@dataclass(slots=True)
class RequestMode:
    """How a group consumes a topic: the body of SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str
    group: str
    mode: str = PULL
    share: int = 0
    """In mode POP: how many members share the queues of each one; 0 or less: all members read all queues."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "setMessageRequestMode")
        mode = fields.text("mode", PULL)
        if mode not in (PULL, POP):
            raise BodyError(f"the field setMessageRequestMode.mode is {short(mode)}; PULL or POP is expected")
        share = fields.number("popShareQueueNum", 0)
        return cls(fields.text("topic"), fields.text("consumerGroup"), mode, min(max(share, 0), 1 << 16))

    def to_json(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share,
            "topic": self.topic,
        }


@dataclass(slots=True)
class AssignmentRequest:
    """QUERY_ASSIGNMENT (400): a member asks for its queues of a topic."""

    topic: str
    group: str
    client_id: str
    strategy: str
    model: str

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "queryAssignment")
        model = fields.text("messageModel")
        if model not in ("CLUSTERING", "BROADCASTING"):
            raise BodyError(f"the field queryAssignment.messageModel is {short(model)}; CLUSTERING or BROADCASTING")
        return cls(
            fields.text("topic"),
            fields.text("consumerGroup"),
            fields.text("clientId", ""),
            fields.text("strategyName", ""),
            model,
        )


def locked_queues(body: bytes) -> list[MessageQueue]:
    """Return the queues in the answer to LOCK_BATCH_MQ. Raises BodyError."""
    return [queue_from_json(item) for item in parse(body, "locked").items("lockOKMQSet")]


@dataclass(slots=True)
class ClientConnection:
    """A connected client, in the answers to 203 and 204. `language` is a LanguageCode's name."""

    client_id: str
    address: str
    language: str
    version: int
    grpc: tuple[str, str] | None = None
    """Language and version in the words of a client behind a proxy; None: it has a connection of its own."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        fields = Fields(value, "connection")
        proxied = Fields(fields.map("gRPC"), "gRPC")
        return cls(
            fields.text("clientId"),
            fields.text("clientAddr"),
            fields.text("language", "OTHER"),
            fields.number("version", 0),
            None if not proxied.names() else (proxied.text("language", ""), proxied.text("version", "")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }
