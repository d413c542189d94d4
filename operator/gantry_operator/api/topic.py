"""A topic of a cluster: `BrokerTopic` of `gantry.dev`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from gantry_broker.broker.metadata.attributes import CLEANUP, COMPACTION, MIN_RETENTION_MS, RETENTION, TOMBSTONES
from gantry_broker.protocol.codes import TOPIC_MAX_LENGTH, Perm
from pydantic import Field

from gantry_operator.api import names
from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import TOPIC, Model, Observed, Rule, Window, parse_duration
from gantry_operator.api.beside import (
    ROWS,
    BesideCluster,
    DeletionPolicy,
    DriftPolicy,
    ManagedStatus,
    cluster_field,
    drift_field,
)
from gantry_operator.api.table import Table, TableStatus

KIND = "BrokerTopic"
PLURAL = "brokertopics"
SINGULAR = "brokertopic"
SHORT_NAME = "bt"

FINALIZER = f"{GROUP}/delete-at-brokers"
"""On resources with deletionPolicy Delete: the object goes once the brokers have deleted what it names."""

MAX_QUEUES = 4_096
"""Queues of a topic in one broker group, as brokers accept them."""
MAX_ALL_QUEUES = 65_536
DEFAULT_QUEUES = 8
"""Queues in each broker group of a topic that names no number."""
MAX_ATTRIBUTES = 64
MESSAGE_TYPE = "message.type"
"""RocketMQ's attribute for the type of a topic's messages."""
_ATTRIBUTE = r"^[a-zA-Z][a-zA-Z0-9._-]{0,63}$"
_ATTRIBUTE_VALUE = r"^[A-Za-z0-9._:/+|%@*-]+$"

Permission = Literal["ReadWrite", "ReadOnly", "WriteOnly"]
PERMISSIONS: dict[Permission, int] = {
    "ReadWrite": Perm.READ | Perm.WRITE,
    "ReadOnly": Perm.READ,
    "WriteOnly": Perm.WRITE,
}
CleanupPolicy = Literal["Delete", "Compact"]
CLEANUP_VALUES: dict[CleanupPolicy, str] = {"Delete": "DELETE", "Compact": COMPACTION}
MessageType = Literal["Normal", "FIFO", "Delay", "Transaction", "Mixed"]


def permission_name(perm: int) -> str:
    """Return the permission in words; another combination of bits as RocketMQ's tools print it."""
    bits_set = perm & (Perm.READ | Perm.WRITE)
    return next((name for name, bits in PERMISSIONS.items() if bits == bits_set), "None")


_OWN_FIELDS = {
    MESSAGE_TYPE: "messageType",
    RETENTION: "retention",
    CLEANUP: "cleanupPolicy",
    TOMBSTONES: "tombstoneRetention",
}
"""Attributes that have a field of the spec."""


def _not_in_config(attribute: str, field: str) -> Rule:
    return Rule(
        f"!has(self.config) || !('{attribute}' in self.config)",
        f"config has {attribute}: write {field} instead",
        lambda s: attribute not in s.config,
        "config",
    )


class BrokerTopicSpec(Model):
    """The topic as it should be. What is not written stays as the brokers have it."""

    cluster: str = cluster_field(KIND)
    topicName: str | None = Field(
        None, description="Name of the topic. RocketMQ's names may have capitals, '_', '%' and '|', and no dots. "
        "Without it: metadata.name.",
        min_length=1, max_length=TOPIC_MAX_LENGTH, pattern=TOPIC,
    )  # fmt: skip
    queues: int | None = Field(
        None, ge=1, le=MAX_ALL_QUEUES,
        description="Queues in total, spread evenly over the broker groups: a new group takes some of the others'.",
    )  # fmt: skip
    queuesPerGroup: int | None = Field(
        None, ge=1, le=MAX_QUEUES,
        description="Queues in each broker group: a new group adds as many. Without either number, a new topic has "
        f"{DEFAULT_QUEUES} queues in each group.",
    )  # fmt: skip
    permission: Permission | None = Field(
        None, description="What clients may do, besides the rights of users. A new topic has ReadWrite."
    )
    messageType: MessageType | None = Field(
        None, description="RocketMQ 5's type of the topic's messages, its attribute message.type."
    )
    retention: Window | None = Field(
        None, max_length=8,
        description="How long messages are readable, 1m or more: an upper bound. They leave the disk with the log, "
        "after spec.broker.fileReservedTime of the cluster, which is another upper bound.",
    )  # fmt: skip
    cleanupPolicy: CleanupPolicy | None = Field(
        None, description="Compact: of each key (property KEYS) the newest message stays, whatever the age of the log, "
        "and messages without a key are refused. Delete (if absent): messages leave with the log.",
    )  # fmt: skip
    tombstoneRetention: Window | None = Field(
        None, max_length=8,
        description="How long a compacted topic keeps a message without a body, which deletes its key, after it was "
        "stored. Default: 24h.",
    )  # fmt: skip
    config: dict[str, Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=dict, max_length=MAX_ATTRIBUTES,
        description="Other attributes of the topic, by name. An attribute that leaves the list is removed.",
    )  # fmt: skip
    table: Table | None = Field(None, description="The topic as an Iceberg table. Default: none.")
    deletionPolicy: DeletionPolicy | None = Field(
        None, description="What happens to the topic when this object is deleted. Retain (if absent): nothing. "
        "Delete: the brokers delete it once nothing in it is unread.",
    )  # fmt: skip
    driftPolicy: DriftPolicy | None = drift_field()
    force: bool | None = Field(
        None, description="True: queues are removed, and the topic is deleted, although messages in them are unread."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        names.reserved_topic_rule("topicName"),
        Rule(
            "!(has(self.queues) && has(self.queuesPerGroup))",
            "queuesPerGroup and queues are both given: write one of them",
            lambda s: s.queues is None or s.queuesPerGroup is None,
            "queuesPerGroup",
        ),
        Rule(
            f"!has(self.config) || self.config.all(k, k.matches('{_ATTRIBUTE}'))",
            "config has a name that is none: write letters, digits, '.', '_' and '-', a letter first",
            lambda s: all(re.fullmatch(_ATTRIBUTE, k) for k in s.config),
            "config",
        ),
        Rule(
            f"!has(self.config) || self.config.all(k, self.config[k].matches('{_ATTRIBUTE_VALUE}'))",
            "config has a value that is none: write letters, digits and the signs . _ : / + | % @ * -",
            lambda s: all(re.fullmatch(_ATTRIBUTE_VALUE, v) for v in s.config.values()),
            "config",
        ),
        *(_not_in_config(attribute, field) for attribute, field in _OWN_FIELDS.items()),
        Rule(
            r"!has(self.retention) || !self.retention.matches(r'^(0+[smhd]|0*[1-5]?\ds)$')",
            "retention is too short: write 1m or more",
            lambda s: s.retention is None or parse_duration(s.retention) * 1000 >= MIN_RETENTION_MS,
            "retention",
        ),
    )
    transitions: ClassVar[tuple[dict[str, str], ...]] = (names.fixed("topicName", KIND),)


class TopicRow(Observed):
    """The topic in one broker group."""

    name: str = Field(description="Name of the broker group, as in spec.brokerGroups.")
    writeQueues: int = Field(description="Queues that take messages.")
    readQueues: int = Field(description="Queues that are read: more than take messages while it shrinks.")
    permission: str = Field(description="What clients may do.")


class BrokerTopicStatus(ManagedStatus):
    """The topic as the brokers have it."""

    topicName: str = Field("", description="Name of the topic.")
    queues: int = Field(0, description="Queues that take messages, of all broker groups.")
    permission: str = Field("", description="What clients may do: the least of all broker groups.")
    groups: list[TopicRow] = Field(
        default_factory=list, description="The topic in each broker group, now.", json_schema_extra=ROWS
    )
    syncedGroups: list[TopicRow] = Field(
        default_factory=list, description="The topic in each broker group at that time.", json_schema_extra=ROWS
    )
    table: TableStatus | None = Field(None, description="The table of spec.table.")
    syncedAttributes: dict[str, str] = Field(default_factory=dict, description="Attributes that this resource has set.")


class BrokerTopic(BesideCluster):
    """A topic of a broker cluster, with its queues in each broker group."""

    kind: Literal["BrokerTopic"]
    spec: BrokerTopicSpec = Field(description="The topic as it should be.")
    status: BrokerTopicStatus = Field(
        default_factory=lambda: BrokerTopicStatus(), description="Observed state, written by the operator."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        names.resource_name_rule(),
        names.default_name_rule("topicName", "topics"),
    )

    @property
    def topic(self) -> str:
        """Its name at the brokers."""
        return self.spec.topicName or self.metadata.name

    @property
    def attributes(self) -> dict[str, str]:
        """All attributes of the spec."""
        kind, retention = self.spec.messageType, self.spec.retention
        values = dict(self.spec.config)
        if kind is not None:
            values[MESSAGE_TYPE] = kind.upper()
        if retention is not None:
            values[RETENTION] = str(int(parse_duration(retention) * 1000))
        if self.spec.cleanupPolicy is not None:
            values[CLEANUP] = CLEANUP_VALUES[self.spec.cleanupPolicy]
        if self.spec.tombstoneRetention is not None:
            values[TOMBSTONES] = str(int(parse_duration(self.spec.tombstoneRetention) * 1000))
        return values
