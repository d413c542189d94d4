"""The checks of a pull, in RocketMQ's order, and what all pulls of one consumer group of one topic have in common.

Consumers repeat themselves: of two pulls for a topic mostly the queue, the offsets and the opaque differ. What is the
same is checked once, and again when the topic, the group or the subscription has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gantry_broker.admission import owners_of
from gantry_broker.broker.clients import Subscription
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata.tables import offset_key
from gantry_broker.broker.metadata.topics import group_fault, topic_fault
from gantry_broker.broker.pull.held import HeldPull
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import FAQ, FLAG_ONEWAY, Perm, PullFlag, ResponseCode, SerializeType
from gantry_broker.protocol.frame import RepeatedPull
from gantry_broker.protocol.headers import PullHeader

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable, ConsumerGroup
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.role import RoleState
    from gantry_broker.protocol.bodies import SubscriptionData, SubscriptionGroup, TopicConfig
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.protocol.repeated_pulls import Template
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.settings import BrokerSettings

MAX_HOLD_MS: Final = 120_000
MAX_KNOWN: Final = 4_096
"""Consumptions that are kept."""
MAX_KNOWN_CHARACTERS: Final = 600
"""Of the fields by which one is kept."""
_READ: Final = int(Perm.READ)
_JSON: Final = int(SerializeType.JSON)
_MOST_DIGITS: Final = 18
"""Of a number that the short way reads."""

Key = tuple[str, str, str, str, str, str, str | None, str | None, str | None]
"""The fields that pulls have in common, as the client wrote them."""


def _key(ext: Mapping[str, str]) -> Key:
    """Raise KeyError."""
    get = ext.get
    return (
        ext["topic"],
        ext["consumerGroup"],
        ext["sysFlag"],
        ext["maxMsgNums"],
        get("suspendTimeoutMillis", "0"),
        get("subVersion", "0"),
        get("subscription"),
        get("expressionType"),
        get("gantryLarge"),
    )


class Consumption:
    """What the pulls of one consumer group of one topic have in common."""

    __slots__ = (
        "codes",
        "commits",
        "group",
        "group_name",
        "hold_ms",
        "key",
        "large",
        "max_count",
        "members",
        "message_model",
        "sql",
        "subscription",
        "topic",
        "topic_name",
    )

    def __init__(
        self,
        header: PullHeader,
        topic: TopicConfig,
        group: SubscriptionGroup,
        members: ConsumerGroup | None,
        subscription: Subscription,
    ) -> None:
        """`members`: None when the pull names its subscription itself."""
        self.topic_name = header.topic
        self.group_name = header.consumerGroup
        self.key = offset_key(header.topic, header.consumerGroup)
        """The key of the group's offsets."""
        self.topic = topic
        self.group = group
        self.members = members
        self.message_model = "" if members is None else members.message_model
        self.subscription = subscription
        self.max_count = header.maxMsgNums
        self.large = bool(header.gantryLarge)
        """An answer may have `LARGE_COUNT` messages and `LARGE_BYTES` bytes, whatever the settings are."""
        self.commits = header.sysFlag & PullFlag.COMMIT_OFFSET != 0
        suspends = header.sysFlag & PullFlag.SUSPEND != 0
        self.hold_ms = min(max(int(header.suspendTimeoutMillis), 0), MAX_HOLD_MS) if suspends else 0
        """How long a pull that finds nothing waits; 0: it does not."""
        self.codes: frozenset[int] | None = None
        self.sql: SubscriptionData | None = None
        """A subscription whose expression is not compiled into the filter of a pull yet."""
        if not subscription.is_tag:
            self.sql = subscription.data
        elif subscription.data.expression not in ("", "*"):
            self.codes = subscription.codes or None


class Pull(HeldPull):
    """One pull, from its request to its answer."""

    __slots__ = ("code", "commit", "conn", "consumption", "filter", "offset", "opaque", "queue_id", "serialize")

    def __init__(
        self,
        conn: Connection,
        code: int,
        opaque: int,
        serialize: int,
        consumption: Consumption,
        queue_id: int,
        offset: int,
        commit: int,
    ) -> None:
        """`commit`: the consumer's progress, which counts if `consumption.commits`."""
        self.conn = conn
        self.code = code
        self.opaque = opaque
        self.serialize = serialize
        self.consumption = consumption
        self.queue_id = queue_id
        self.offset = offset
        self.commit = commit
        self.filter: Filter | None = None


class PullChecks:
    """Check pulls and keep what they have in common."""

    def __init__(
        self,
        settings: BrokerSettings,
        meta: Metadata,
        role: RoleState,
        *,
        filters: Filters,
        clients: ClientTable,
        creation: OnDemandCreation,
    ) -> None:
        self._settings = settings
        self._meta = meta
        self._role = role
        self._filters = filters
        self._clients = clients
        self._creation = creation
        self._known: dict[Key, Consumption] = {}
        self._of_templates: dict[Template, Consumption] = {}

    def take(self, conn: Connection, frame: Frame) -> Pull:
        """Check a request and return its pull. Raises RequestRejected and BadField."""
        [pull] = self.again(conn, (frame,))
        return self._take_slowly(conn, frame) if pull is None else pull

    def again(self, conn: Connection, frames: Sequence[Frame]) -> list[Pull | None]:
        """Return the pulls of requests that repeat checked ones; None for each other request."""
        checked_before, of_templates = self._known, self._of_templates
        pulls: list[Pull | None] = []
        checked: Consumption | None = None
        for frame in frames:
            if type(frame) is RepeatedPull:
                template = frame.template
                consumption = of_templates.get(template)
                if consumption is not None and (consumption is checked or self._still_holds(consumption)):
                    checked = consumption
                    opaque, queue, offset, commit = template.numbers(frame.groups)
                    if (queue_id := int(queue)) < consumption.topic.read_queues:
                        pulls.append(
                            Pull(conn, frame.code, int(opaque), _JSON, consumption, queue_id, int(offset), int(commit))
                        )
                        continue
            ext = frame.ext
            pull = None
            try:
                consumption = checked_before.get(_key(ext))
                if consumption is not None and (consumption is checked or self._still_holds(consumption)):
                    checked = consumption
                    number, at, progress = ext["queueId"], ext["queueOffset"], ext["commitOffset"]
                    if (
                        (digits := number + at + progress).isdecimal()
                        and digits.isascii()
                        and 0 < len(number) < 10
                        and 0 < len(at) <= _MOST_DIGITS
                        and 0 < len(progress) <= _MOST_DIGITS
                        and (queue_id := int(number)) < consumption.topic.read_queues
                        and "maxMsgBytes" not in ext
                        and not frame.flag & FLAG_ONEWAY
                    ):
                        pull = Pull(
                            conn,
                            frame.code,
                            frame.opaque,
                            frame.serialize,
                            consumption,
                            queue_id,
                            int(at),
                            int(progress),
                        )
                        if type(frame) is RepeatedPull:
                            self._keep_repeated(frame, consumption)
            except KeyError:
                pass  # The full check names the field.
            pulls.append(pull)
        return pulls

    def _still_holds(self, consumption: Consumption) -> bool:
        """Whether a pull may go on as the one that was checked."""
        tables = self._meta.working
        group, topic = tables.groups.get(consumption.group_name), tables.topics.get(consumption.topic_name)
        if (
            group is not consumption.group
            or topic is not consumption.topic
            or not group.consume_enable
            or not topic.perm & self._settings.brokerPermission & _READ
        ):
            return False
        members = consumption.members
        if members is None:
            return True
        return (
            self._clients.consumers.get(consumption.group_name) is members
            and members.subscriptions.get(consumption.topic_name) is consumption.subscription
            and members.message_model == consumption.message_model
            and (group.consume_broadcast_enable or consumption.message_model != "BROADCASTING")
        )

    def _take_slowly(self, conn: Connection, frame: Frame) -> Pull:
        """Check a request in RocketMQ's order and return its pull. Raises RequestRejected and BadField."""
        header = PullHeader.parse(frame)
        fault = topic_fault(header.topic, longest=255)
        if fault is not None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"the field topic: {fault}")
        fault = group_fault(header.consumerGroup)
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the field consumerGroup: {fault}")
        if not self._settings.brokerPermission & Perm.READ:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._role.address}] pulling message is forbidden"
            )
        group = self._creation.group_config(header.consumerGroup)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumerGroup}] does not exist{FAQ}",
            )
        if not group.consume_enable:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumerGroup}"
            )
        topic = self._meta.working.topics.get(header.topic)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            )
        if not topic.perm & Perm.READ:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queueId < topic.read_queues:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{conn.peer[0]}:{conn.peer[1]}]",
            )
        if header.maxMsgNums < 1:
            raise BadField("maxMsgNums", str(header.maxMsgNums), "a whole number of 1 or more")
        members, subscription = self._subscription(conn, header, group)
        consumption = Consumption(header, topic, group, members, subscription)
        if consumption.sql is not None:
            self._may_filter(consumption.sql)
        else:
            self._keep(frame, consumption)
        return Pull(
            conn,
            frame.code,
            frame.opaque,
            frame.serialize,
            consumption,
            header.queueId,
            int(header.queueOffset),
            int(header.commitOffset),
        )

    def _keep(self, frame: Frame, consumption: Consumption) -> None:
        try:
            key = _key(frame.ext)
        except KeyError:
            return  # It has left out a field that consumers write.
        if sum([len(text) for text in key if text is not None]) <= MAX_KNOWN_CHARACTERS:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = consumption
            if type(frame) is RepeatedPull:
                self._keep_repeated(frame, consumption)

    def _keep_repeated(self, frame: RepeatedPull, consumption: Consumption) -> None:
        """Keep what all pulls with the template of a checked one have in common."""
        if len(self._of_templates) >= MAX_KNOWN:
            self._of_templates.clear()
        self._of_templates[frame.template] = consumption

    def _subscription(
        self, conn: Connection, header: PullHeader, group: SubscriptionGroup
    ) -> tuple[ConsumerGroup | None, Subscription]:
        if header.sysFlag & PullFlag.SUBSCRIPTION:
            try:
                expression, owner = header.subscription or "*", owners_of(conn)[1]
                return None, self._filters.subscription(header.topic, expression, header.expressionType, owner)
            except FilterSyntaxError as error:
                raise RequestRejected(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from None
        members = self._clients.consumers.get(header.consumerGroup)
        if members is None:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] can not consume by broadcast way",
            )
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.data.version < header.subVersion:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return members, subscription

    def _may_filter(self, data: SubscriptionData) -> None:
        """Check that filters by properties are enabled. Raises RequestRejected."""
        if not self._settings.enablePropertyFilter:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {data.expression_type}",
            )
