"""`spec.table` of a BrokerTopic and `spec.tables` of a BrokerCluster: topics as Iceberg tables."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from pydantic_core import PydanticCustomError

from gantry_operator.api import cron
from gantry_operator.api.analytics import SparkResources, spark_engine, spark_queue
from gantry_operator.api.base import (
    CRON,
    EVERY,
    OBJECT_NAME,
    TABLE_NAMESPACE,
    ZONE,
    Model,
    Observed,
    Rule,
    VolumeSize,
    Window,
    more_than_nothing,
)

CONTINUOUS = "Continuous"
DEFAULT_EVERY = "5m"
MAX_SCHEMA = 32_768
"""Characters of a schema."""
MAX_PARTS = 8
NAMESPACE = "rocketmq"
"""The namespace of the tables in their catalog."""
_PROPERTY = r"^[a-z0-9][a-z0-9._-]{0,127}$"
_SECRETS = ("token", "credential", "password", "secret", "secret-access-key", "account-key")
"""Ends of the names of properties that are credentials."""
_IS_SECRET = " || ".join(f"k.endsWith('{end}')" for end in _SECRETS)

TableFormat = Literal["Iceberg", "Parquet"]
TableDeletion = Literal["Retain", "Delete"]
TableMode = Literal["Append", "Upsert"]
Schema = Literal["Raw", "Inferred", "JsonSchema", "Avro", "Protobuf"]
BadRecord = Literal["Reject", "Suspend"]
Every = Annotated[str, Field(pattern=EVERY, max_length=16)]
"""Time between two commits: 1m, 30s, or Continuous."""


def _every() -> Any:
    return Field(None, description="Time from the start of a commit to that of the next one, like 1m or 6h. "
                 f"{CONTINUOUS}: a commit follows the other.")  # fmt: skip


class Protobuf(Model):
    """A Protobuf message."""

    descriptors: str = Field(
        description="Output of protoc --include_imports -o, in Base64.", min_length=4, max_length=MAX_SCHEMA
    )
    message: str = Field(description="Full name of the message, like shop.Order.", min_length=1, max_length=512)


class TableMaintenance(Model):
    """When small files are merged and old snapshots expire."""

    schedule: str = Field(
        "0 2 * * *", description="Schedule as in a CronJob. A table is maintained by its first run after this time.",
        pattern=CRON, max_length=128,
    )  # fmt: skip
    timeZone: str | None = Field(None, description="Time zone of the schedule. Default: UTC.", max_length=64,
                                 pattern=ZONE)  # fmt: skip
    snapshots: Window = Field("3d", description="Age from which snapshots expire.")

    _can_be_due = field_validator("schedule", "timeZone")(cron.can_be_due)


class Table(Model):
    """The topic as a table that keeps itself."""

    format: TableFormat = Field(
        "Iceberg",
        description="Iceberg: a table of the catalog. Parquet: a folder of Parquet files below the property warehouse "
        "of the catalog, which then is a URL; only with mode Append. It cannot be changed.",
    )
    mode: TableMode = Field(
        "Append",
        description="Append: a row for each message. Upsert: a row for each key, with the newest message; one without "
        "a body deletes its key. It cannot be changed.",
    )
    schema_: Schema = Field(
        "Raw", alias="schema",
        description="Columns of the table. Raw: key, value, properties. Inferred: those of the JSON bodies of the "
        "first messages, which status shows until freeze is true; new fields then become columns. JsonSchema, Avro, "
        "Protobuf: those of jsonSchema, avroSchema, protobuf. It cannot be changed.",
    )  # fmt: skip
    freeze: bool = Field(
        False,
        description="With schema Inferred. True: the table is made with the columns that status.table.proposed "
        "shows. False: runs only show them.",
    )
    jsonSchema: str | None = Field(
        None, description="A JSON Schema as text, for schema JsonSchema. Fields may be added.",
        min_length=2, max_length=MAX_SCHEMA,
    )  # fmt: skip
    avroSchema: str | None = Field(
        None, description="An Avro schema as JSON text, for schema Avro: that of the writers. Fields may be added only "
        "if the writers write them.", min_length=2, max_length=MAX_SCHEMA,
    )  # fmt: skip
    protobuf: Protobuf | None = Field(None, description="A Protobuf message, for schema Protobuf. Fields may be added.")
    partitionBy: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=MAX_PARTS,
        description="Partitions of the table: a column, year, month, day or hour(column), bucket(N, column) or "
        "truncate(N, column). rocketmq.timestamp is the store time. It cannot be changed.",
    )  # fmt: skip
    onBadRecord: BadRecord = Field(
        "Reject",
        description="What happens to a message that does not fit. Reject: it becomes a row of <topic>__rejected. "
        "Suspend: the table stands still before it, and the condition TableCurrent names it.",
    )
    retention: Window | None = Field(
        None, description="How long rows stay, by the store time of their messages. Default: for ever. The table's "
        "maintenance removes them.",
    )  # fmt: skip
    deletionPolicy: TableDeletion = Field(
        "Retain",
        description="What happens to the table when the BrokerTopic is deleted. Retain: nothing. Delete: it "
        "is dropped from its catalog, with the table of rejected messages; of format Parquet its files are deleted.",
    )
    every: Every | None = _every()
    schedule: str | None = Field(
        None, description="Schedule of the commits as in a CronJob, instead of every.", pattern=CRON, max_length=128
    )
    timeZone: str | None = Field(
        None, description="Time zone of the schedule. Default: UTC.", max_length=64, pattern=ZONE
    )

    _can_be_due = field_validator("schedule", "timeZone")(cron.can_be_due)

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With the field's name as users write it, whatever the caller asks for."""
        fields: dict[str, Any] = handler(self)
        return {"schema" if name == "schema_" else name: value for name, value in fields.items()}

    @field_validator("jsonSchema", "avroSchema")
    @classmethod
    def _is_json(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                schema = json.loads(value)
            except ValueError as error:
                problem = f"this is no JSON ({error}): write the schema as JSON"
                raise PydanticCustomError("rule", "{message}", {"message": problem, "field": ""}) from None
            if not isinstance(schema, dict):
                problem = 'this is no JSON object: write a schema like {"type": ...}'
                raise PydanticCustomError("rule", "{message}", {"message": problem, "field": ""})
        return value

    rules: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(
                f"(has(self.schema) ? self.schema : 'Raw') == '{kind}' ? has(self.{name}) : !has(self.{name})",
                f"{name} and schema: {kind} belong together: write both or none",
                lambda t, kind=kind, name=name: (t.schema_ == kind) == (getattr(t, name) is not None),  # type: ignore[misc]
                name,
            )
            for kind, name in (("JsonSchema", "jsonSchema"), ("Avro", "avroSchema"), ("Protobuf", "protobuf"))
        ),
        Rule(
            "(has(self.format) ? self.format : 'Iceberg') != 'Parquet' || (has(self.mode) ? self.mode : 'Append') == "
            "'Append'",
            "mode is Upsert, and format Parquet cannot replace a row: write format: Iceberg",
            lambda t: t.format != "Parquet" or t.mode == "Append",
            "mode",
        ),
        Rule(
            "!(has(self.freeze) && self.freeze) || (has(self.schema) && self.schema == 'Inferred')",
            "freeze belongs to schema: Inferred: write that, or leave freeze out",
            lambda t: not t.freeze or t.schema_ == "Inferred",
            "freeze",
        ),
        Rule(
            "!(has(self.every) && has(self.schedule))",
            "schedule and every are both given: write one of them",
            lambda t: t.every is None or t.schedule is None,
            "schedule",
        ),
    )


class TableVolume(Model):
    """The volume for tables without a catalog of their own: their files, and a catalog in SQLite."""

    size: VolumeSize = Field("10Gi", description="Size of the volume.")
    className: str | None = Field(None, description="Storage class. Default: the default class.", max_length=253)

    rules: ClassVar[tuple[Rule, ...]] = (more_than_nothing("size"),)


class Tables(Model):
    """Where the tables of the topics lie, how they are written, and defaults for all of them."""

    catalog: dict[Annotated[str, Field(max_length=128)], Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=dict, max_length=32,
        description="Properties of a PyIceberg catalog: type, uri, warehouse and others. Default: a catalog in SQLite "
        "beside the files, on the volume (Kubernetes) or in the folder of the cluster (gantry up).",
    )  # fmt: skip
    catalogSecret: str | None = Field(
        None, description="Secret with further properties of the catalog, such as credential, token or "
        "s3.secret-access-key, each under its own name. In Kubernetes it has the label gantry.dev/catalog=true.",
        min_length=1, max_length=253, pattern=OBJECT_NAME,
    )  # fmt: skip
    namespace: str = Field(
        NAMESPACE, description="Namespace of the tables in the catalog.", pattern=TABLE_NAMESPACE, max_length=64
    )
    volume: TableVolume = Field(
        default_factory=lambda: TableVolume(), description="The volume, used without a catalog, and in Kubernetes only."
    )
    source: Literal["Brokers", "Archive"] = Field(
        "Brokers",
        description="Where messages are read. Archive: from the log in spec.archive as far as it has them, with little "
        "load on brokers; the rest from brokers.",
    )
    user: str | None = Field(
        None, description="BrokerUser that reads the topics, on a cluster with authentication. Its Secret is the one "
        "that the operator makes.", min_length=1, max_length=253, pattern=OBJECT_NAME,
    )  # fmt: skip
    every: Every = Field(DEFAULT_EVERY, description="For topics with neither spec.table.every nor spec.table.schedule.")
    maintenance: TableMaintenance = Field(
        default_factory=lambda: TableMaintenance(), description="When small files are merged and old snapshots expire."
    )
    suspend: bool = Field(False, description="Start no run. Tables stay as they are.")
    engine: Literal["Job", "SparkApplication"] = spark_engine()
    executors: int = Field(
        0, ge=0, le=256,
        description="Number of Spark's executor pods. 0: one process reads and writes, without Spark.",
    )  # fmt: skip
    queue: str | None = spark_queue()
    resources: SparkResources = Field(
        default_factory=lambda: SparkResources(), description="CPU and memory of driver and executors."
    )
    image: str | None = Field(
        None, description="Image with Spark. Default: the image in the operator's chart. The chart must allow any "
        "other image (image.allowed).", min_length=1, max_length=512,
    )  # fmt: skip
    sparkConf: dict[Annotated[str, Field(max_length=256)], str] = Field(
        default_factory=dict, max_length=256,
        description="Spark settings for tuning, as spec.analytics.sparkConf.",
    )  # fmt: skip

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.catalog) || self.catalog.all(k, k.matches('{_PROPERTY}') && !k.startsWith('py-'))",
            "catalog has a property that PyIceberg cannot have, or one that names code (py-...): write names like uri "
            "or s3.endpoint",
            lambda t: all(re.fullmatch(_PROPERTY, k) and not k.startswith("py-") for k in t.catalog),
            "catalog",
        ),
        Rule(
            f"!has(self.catalog) || !self.catalog.exists(k, {_IS_SECRET})",
            "catalog has a credential, which everyone who may read this object would see: write it into a Secret, and "
            "name that in catalogSecret",
            lambda t: not any(k.endswith(_SECRETS) for k in t.catalog),
            "catalog",
        ),
        Rule(
            "!has(self.engine) || self.engine != 'SparkApplication' || (has(self.executors) && self.executors > 0)",
            "executors is 0, and a SparkApplication has executors: write at least 1, or engine: Job",
            lambda t: t.engine != "SparkApplication" or t.executors > 0,
            "executors",
        ),
        Rule(
            "!has(self.sparkConf) || self.sparkConf.all(k, k.startsWith('spark.'))",
            "sparkConf has a key that does not begin with 'spark.': write the full name, "
            "for example spark.sql.shuffle.partitions",
            lambda t: all(k.startswith("spark.") for k in t.sparkConf),
            "sparkConf",
        ),
    )


class TableStatus(Observed):
    """The table of a topic, as its last run left it."""

    name: str = Field("", description="Name of the table in its catalog, with the namespace before it.")
    lastRun: str | None = Field(None, description="Start of the last run.")
    lastSuccess: str | None = Field(None, description="Start of the last run that left nothing behind it.")
    nextRun: str | None = Field(None, description="Time from which the next run starts. Absent: none is due.")
    lastMaintenance: str | None = Field(None, description="Time of the last maintenance.")
    lastCommit: str | None = Field(None, description="Time of the newest snapshot.")
    rows: int | None = Field(None, description="Rows of the table.")
    bytes: int | None = Field(None, description="Bytes of its data files.")
    files: int | None = Field(None, description="Its data files.")
    behindRecords: int | None = Field(None, description="Messages that the table lacked at the end of the last run.")
    rejected: int | None = Field(None, description="Rows of the table <name>__rejected: messages that did not fit.")
    lost: int | None = Field(
        None,
        description="Losses that the table names, the last 100: messages that expired before their commit, "
        "and queues that went with messages that were perhaps not read.",
    )
    proposed: str | None = Field(
        None,
        description="The columns that schema: Inferred would give the table, as JSON Schema. Absent: the table has "
        "its columns.",
    )
    observedGeneration: int | None = Field(None, description="Generation of the spec that the last run had.")
    failures: int = Field(0, description="Runs in a row that failed.")
    reason: str = Field("", description="One word about the last run.")
    message: str = Field("", description="The state and the remedy, in words for users.")
