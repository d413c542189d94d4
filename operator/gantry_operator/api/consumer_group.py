"""A consumer group of a cluster: `ConsumerGroup` of `gantry.dev`."""

from __future__ import annotations

from typing import ClassVar, Literal

from gantry_broker.protocol.codes import RETRY_PREFIX
from pydantic import Field

from gantry_operator.api import names
from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import TOPIC, Model, Observed, Rule
from gantry_operator.api.beside import (
    ROWS,
    BesideCluster,
    DeletionPolicy,
    DriftPolicy,
    ManagedStatus,
    cluster_field,
    drift_field,
)

KIND = "ConsumerGroup"
PLURAL = "consumergroups"
SINGULAR = "consumergroup"
SHORT_NAME = "cg"

RESET_OFFSETS = f"{GROUP}/reset-offsets"
"""Annotation: `[TOPIC=]earliest|latest|TIME` makes a preview in status.reset; the same with `,confirm` carries it out.
"""

MAX_GROUP_NAME = 255 - len(RETRY_PREFIX)
MAX_RETRIES = 10_000
MAX_RETRY_QUEUES = 1_024


class ConsumerGroupSpec(Model):
    """The group as it should be. What is not written stays as the brokers have it."""

    cluster: str = cluster_field(KIND)
    groupName: str | None = Field(
        None, description="Name of the group. RocketMQ's names may have capitals, '_', '%' and '|', and no dots. "
        "Without it: metadata.name.",
        min_length=1, max_length=MAX_GROUP_NAME, pattern=TOPIC,
    )  # fmt: skip
    retryMax: int | None = Field(
        None, ge=0, le=MAX_RETRIES,
        description="Deliveries of a message after the first one; then it is a dead letter. A new group has 16.",
    )  # fmt: skip
    retryQueues: int | None = Field(
        None, ge=0, le=MAX_RETRY_QUEUES, description="Queues of the group's retry topic. A new group has 1."
    )
    consumeOrderly: bool | None = Field(
        None, description="Messages of a queue are delivered one after the other (clients of RocketMQ 5)."
    )
    consumeEnable: bool | None = Field(None, description="False: the brokers give the group no message.")
    broadcast: bool | None = Field(
        None, description="Whether members may consume by broadcast, each of them every message. A new group may."
    )
    deletionPolicy: DeletionPolicy | None = Field(
        None, description="What happens to the group when this object is deleted. Retain (if absent): nothing. Delete: "
        "the brokers delete it with its offsets once it has no members and nothing unread.",
    )  # fmt: skip
    driftPolicy: DriftPolicy | None = drift_field()
    force: bool | None = Field(
        None, description="True: the group is deleted although it has members or unread messages."
    )

    rules: ClassVar[tuple[Rule, ...]] = (names.reserved_group_rule("groupName"),)
    transitions: ClassVar[tuple[dict[str, str], ...]] = (names.fixed("groupName", KIND),)


class GroupRow(Observed):
    """The group's configuration in one broker group."""

    name: str = Field(description="Name of the broker group, as in spec.brokerGroups.")
    retryMax: int = Field(description="Deliveries of a message after the first one.")
    retryQueues: int = Field(description="Queues of the retry topic.")
    consumeOrderly: bool = Field(description="Messages of a queue are delivered one after the other.")
    consumeEnable: bool = Field(description="Whether the brokers give the group messages.")
    broadcast: bool = Field(description="Whether members may consume by broadcast.")


class ResetQueue(Observed):
    """One queue in an offset reset."""

    topic: str = Field(description="The topic.")
    group: str = Field(description="The broker group.")
    queue: int = Field(description="Number of the queue.")
    at: int = Field(description="The group's position at the time of the preview.")
    to: int = Field(description="Its position after the reset.")
    skipped: int = Field(description="Messages that the group has not read and will not get.")
    repeated: int = Field(description="Messages that the group has read and gets once more.")


class ResetStatus(Observed):
    """An offset reset that the annotation gantry.dev/reset-offsets asks for."""

    request: str = Field(description="The annotation's text, without the confirmation.")
    state: Literal["Preview", "Running", "Done", "Refused"] = Field(
        description="Preview: nothing was changed. Running: offsets are being set. Done. Refused: see the message."
    )
    message: str = Field("", description="The state and the next step, in words for users.")
    timestamp: int | None = Field(None, description="The group continues with messages stored from this time on (ms).")
    skipped: int = Field(0, description="Messages that the group has not read and will not get.")
    repeated: int = Field(0, description="Messages that the group has read and gets once more.")
    queues: list[ResetQueue] = Field(default_factory=list, description="The first 200 queues that move.")


class ConsumerGroupStatus(ManagedStatus):
    """The group as the brokers have it."""

    groupName: str = Field("", description="Name of the group.")
    members: int = Field(0, description="Connected clients.")
    lag: int = Field(0, description="Messages that the group has not committed, in all of its topics.")
    topics: list[str] = Field(default_factory=list, description="Topics that it consumes or has consumed; at most 50.")
    groups: list[GroupRow] = Field(
        default_factory=list, description="Its configuration in each broker group, now.", json_schema_extra=ROWS
    )
    syncedGroups: list[GroupRow] = Field(
        default_factory=list, description="Its configuration in each broker group at that time.", json_schema_extra=ROWS
    )
    reset: ResetStatus | None = Field(None, description="The last offset reset that was asked for by annotation.")


class ConsumerGroup(BesideCluster):
    """A consumer group of a broker cluster."""

    kind: Literal["ConsumerGroup"]
    spec: ConsumerGroupSpec = Field(description="The group as it should be.")
    status: ConsumerGroupStatus = Field(
        default_factory=lambda: ConsumerGroupStatus(), description="Observed state, written by the operator."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        names.resource_name_rule(),
        names.default_name_rule("groupName", "groups"),
    )

    @property
    def group(self) -> str:
        """Its name at the brokers."""
        return self.spec.groupName or self.metadata.name
