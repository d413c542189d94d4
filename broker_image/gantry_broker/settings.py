"""Broker settings under RocketMQ's own names: the one place of their defaults, units and limits.

The custom resource (`spec.broker`), the broker process and `mqadmin getBrokerConfig` all read this model. Defaults are
those of RocketMQ 4.9.7 (`BrokerConfig`, `MessageStoreConfig`) unless a comment says why not.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gantry_broker.descriptors import CONNECTIONS_OF_ADDRESS
from gantry_broker.protocol.digits import whole_number


class BrokerSettings(BaseModel):
    """Settings of a broker, named as in RocketMQ's broker.conf."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, strict=True, defer_build=True)

    autoCreateTopicEnable: bool = Field(True, description="Create a topic when a producer sends to an unknown one.")
    autoCreateSubscriptionGroup: bool = Field(True, description="Create a group when an unknown one consumes.")
    maxTopics: int = Field(
        20_000, ge=100, le=50_000, description="Topics of a group of brokers, %RETRY% and %DLQ% topics included."
    )
    maxSubscriptionGroups: int = Field(10_000, ge=100, le=50_000, description="Consumer groups.")
    maxConnections: int = Field(
        10_000, ge=16, le=100_000, description="Connections of one broker; less memory or fewer descriptors allow less."
    )
    maxConnectionsPerAddress: int = Field(
        CONNECTIONS_OF_ADDRESS, ge=16, le=100_000, description="Of them, from one address."
    )
    defaultTopicQueueNums: int = Field(8, ge=1, le=1024, description="Queues of an auto-created topic, at most.")
    maxMessageSize: int = Field(4_194_304, ge=1024, le=16_000_000, description="Largest message body, in bytes.")
    deleteWhen: str = Field(
        "04",
        pattern=r"^([01]\d|2[0-3])(;([01]\d|2[0-3]))*$",
        description="Hours of the day at which expired segments are deleted, two digits each, separated by ';'.",
    )
    fileReservedTime: int = Field(72, ge=1, description="Hours that a segment is kept after its last write.")
    diskMaxUsedSpaceRatio: int = Field(
        75, ge=10, le=95, description="Per cent of the disk above which expired segments go at once."
    )
    mappedFileSizeCommitLog: int = Field(
        1_073_741_824, ge=65_536, description="Bytes of a commit-log segment; the same on every member, fixed for life."
    )
    mappedFileSizeConsumeQueue: int = Field(
        6_000_000, ge=2_000, multiple_of=20, description="Bytes of a consume-queue file (20 bytes an entry)."
    )
    compactionScheduleInternal: int = Field(
        900_000, ge=100, description="Milliseconds between two passes of compaction over a queue."
    )
    maxHashSlotNum: int = Field(5_000_000, ge=100, description="Hash slots of an index file.")
    maxIndexNum: int = Field(20_000_000, ge=400, description="Entries of an index file.")
    messageIndexEnable: bool = Field(True, description="Build the key index, which queries by key and id need.")
    messageDelayLevel: str = Field(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        pattern=r"^\d+[smhd]( \d+[smhd])*$",
        description="Delay levels, the first is level 1.",
    )
    timerMaxDelaySec: int = Field(
        3_456_000,
        ge=1,
        le=3_456_000,
        description="Seconds until a timer message is due, at most; RocketMQ: 259200.",
    )
    recallMessageEnable: bool = Field(False, description="Allow producers to recall timer messages.")
    enableMixedMessageType: bool = Field(False, description="Allow topics with the attribute message.type=MIXED.")
    slaveReadEnable: bool = Field(False, description="Send readers with a large backlog to a slave.")
    accessMessageInMemoryMaxRatio: int = Field(
        40, ge=1, le=100, description="Per cent of memory beyond which a backlog is read from a slave."
    )
    maxTransferCountOnMessageInMemory: int = Field(32, ge=1, description="Messages in one pull answer, at most.")
    maxTransferBytesOnMessageInMemory: int = Field(262_144, ge=1024, description="Bytes in one pull answer, at most.")
    longPollingEnable: bool = Field(True, description="Hold a pull that finds nothing until something arrives.")
    enablePropertyFilter: bool = Field(False, description="Allow SQL92 filters.")
    transactionTimeOut: int = Field(6_000, ge=0, description="Milliseconds before a half message is first checked.")
    transactionCheckMax: int = Field(15, ge=1, description="Checks before a half message is given up.")
    transactionCheckInterval: int = Field(60_000, ge=100, description="Milliseconds between rounds of checks.")
    syncFlushTimeout: int = Field(5_000, ge=1, description="Milliseconds a send waits for the disk (SYNC_FLUSH).")
    slaveTimeout: int = Field(3_000, ge=1, description="Milliseconds a send waits for the in-sync set.")
    flushIntervalCommitLog: int = Field(500, ge=1, description="Milliseconds between flushes (ASYNC_FLUSH).")
    flushConsumerOffsetInterval: int = Field(
        5_000, ge=100, description="Milliseconds between saves of offsets whose commits wait for no answer."
    )
    registerNameServerPeriod: int = Field(
        30_000, ge=1_000, le=60_000, description="Milliseconds between registrations with every NameServer."
    )
    traceTopicEnable: bool = Field(False, description="Make the system topic that message traces go to.")
    brokerPermission: int = Field(6, ge=0, le=7, description="4 read, 2 write, 6 both.")

    @field_validator("*", mode="before")
    @classmethod
    def _digits(cls, value: object, info: ValidationInfo) -> object:
        """Read a number that is a text. Pydantic would also take `1_000`, `+5` and ` 5 `, which RocketMQ reads
        differently or not at all. Raises ValueError.
        """
        if not isinstance(value, str) or cls.model_fields[info.field_name or ""].annotation is not int:
            return value
        number = whole_number(value)
        if number is None:
            raise ValueError("a whole number in the digits 0 to 9 is expected")
        return number
