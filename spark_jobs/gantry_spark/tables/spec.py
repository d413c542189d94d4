"""What a table is to be: its topic, mode, schema and partitions, and the properties by which the table says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gantry_spark.errors import GantrySparkError, SourceError
from gantry_spark.tables.decoders import AVRO, PROTOBUF, fields_of
from gantry_spark.tables.fields import (
    BadSchema,
    Field,
    parse_schema,
    to_schema,
)
from gantry_spark.tables.offsets import (
    former_group_of,
    group_of,
)
from gantry_spark.tables.parquet import TYPE as PARQUET
from gantry_spark.tables.partitions import names_of, parse_parts
from gantry_spark.tables.rows import MODES, Shape
from gantry_spark.topics.options import PLACES, READERS_GROUP, SHARED, Access, Given, logs_of
from gantry_spark.topics.ways import Logs
from gantry_spark.topics.wire import Cluster

SCHEMAS: Final = ("Raw", "Inferred", "JsonSchema", AVRO, PROTOBUF)
BAD_RECORDS: Final = ("Reject", "Suspend")
TOPIC: Final = "gantry.topic"
MODE: Final = "gantry.mode"
SCHEMA_KIND: Final = "gantry.schema-kind"
SCHEMA: Final = "gantry.schema"
PARTITION_BY: Final = "gantry.partition-by"
DEFINITION: Final = "gantry.definition"
MESSAGE: Final = "gantry.message"
"""Avro's schema, or Protobuf's descriptors and message, so that a table can be made again."""


class BadRecord(GantrySparkError):
    """A message does not fit, and the table stands still at it."""

    retry = False


class SchemaProposed(GantrySparkError):
    """The schema is inferred, and a person has to accept it. `schema`: as JSON Schema."""

    retry = False

    def __init__(self, topic: str, fields: Field) -> None:
        shown = ", ".join(f"{f.name} {f.kind}" for f in fields.fields[:50])
        super().__init__(
            f"topic {topic}: its messages have the fields {shown}; no table is made before the schema is frozen: write "
            f"freeze: true in spec.table, or --freeze in the command, or take these fields into jsonSchema"
        )
        self.schema = to_schema(fields)


class CatalogFailed(SourceError):
    """The catalog does not answer, or refuses."""


@dataclass(frozen=True)
class TableSpec:
    """A topic and its table. `schema`: JSON Schema, for the kind JsonSchema. `catalog`: properties for PyIceberg.
    `definition`: Avro's schema as JSON, or Protobuf's descriptors in Base64 with the name of a `message`.
    """

    topic: str
    name_servers: str
    catalog: Mapping[str, str]
    namespace: str = "rocketmq"
    mode: str = "Append"
    kind: str = "Raw"
    schema: Any = None
    definition: str = ""
    message: str = ""
    freeze: bool = True
    """Accept an inferred schema. False: `SchemaProposed` is raised with it."""
    on_bad_record: str = "Reject"
    partition_by: tuple[str, ...] = ()
    group: str = READERS_GROUP
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source `rocketmq` that say how to reach the brokers: accessKey, tls, ..."""
    per_commit: int = 0

    def __post_init__(self) -> None:
        """Check the fields. Raises BadSchema."""
        if self.mode not in MODES:
            raise BadSchema(f"mode {self.mode!r}; write {' or '.join(MODES)}")
        if self.kind not in SCHEMAS:
            raise BadSchema(f"schema {self.kind!r}; write one of {', '.join(SCHEMAS)}")
        if (self.kind == "JsonSchema") != (self.schema is not None):
            raise BadSchema("a JSON Schema belongs to the schema JsonSchema, and only to that")
        if self.by_key and self.catalog.get("type") == PARQUET:
            raise BadSchema("format Parquet has the mode Append only: a row cannot be replaced; write format Iceberg")
        if self.on_bad_record not in BAD_RECORDS:
            raise BadSchema(f"onBadRecord {self.on_bad_record!r}; write {' or '.join(BAD_RECORDS)}")
        if (self.kind in (AVRO, PROTOBUF)) != bool(self.definition) or (self.kind == PROTOBUF) != bool(self.message):
            raise BadSchema("the schemas Avro and Protobuf need a definition, and Protobuf a message")
        self.fields()
        parse_parts(self.partition_by)

    def fields(self) -> Field | None:
        """Return the fields of a schema that is given; None: the messages decide, or there are none. Raises
        BadSchema.
        """
        if self.schema is not None:
            return parse_schema(self.schema)
        if self.kind in (AVRO, PROTOBUF):
            # By way of JSON Schema, which names what no table can have.
            return parse_schema(to_schema(fields_of(self.kind, self.definition, self.message)))
        return None

    def shape(self, fields: Field | None) -> Shape:
        """Return the shape of the rows."""
        return Shape(fields, self.by_key, self.kind, self.definition, self.message, self.taken)

    @property
    def taken(self) -> frozenset[str]:
        """Names of columns that readers may see besides those of the bodies, in lower case."""
        return names_of(parse_parts(self.partition_by))

    @property
    def staged(self) -> bool:
        """The driver brings the rows into the table's files, by key or by partition."""
        return self.by_key or bool(self.partition_by)

    @property
    def by_key(self) -> bool:
        return self.mode == "Upsert"

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.topic

    @property
    def table_group(self) -> str:
        """The consumer group that has the table's progress."""
        return group_of(self.namespace, self.topic, self.catalog)

    @property
    def former_group(self) -> str:
        """The consumer group that had it before, together with the tables of other catalogs."""
        return former_group_of(self.namespace, self.topic, self.catalog)

    @property
    def rejected_identifier(self) -> tuple[str, str]:
        return self.namespace, f"{self.topic}__rejected"

    def cluster(self) -> Cluster:
        """Return the cluster. Raises SourceError."""
        access = Access(self._given())
        return Cluster(access.name_servers, access.trust, access.timeout_s)

    def logs(self) -> Logs:
        """Return where logs are looked for. Raises SourceError."""
        return logs_of(self._given())

    def _given(self) -> Given:
        return Given({**self.options, "nameServers": self.name_servers}, (*SHARED, *PLACES))
