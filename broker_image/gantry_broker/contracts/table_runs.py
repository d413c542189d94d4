"""Runs of tables: what the operator orders, and what the program in gantry_spark reports."""

from __future__ import annotations

import base64
import zlib
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_REPORT: Final = 1_048_576
"""Bytes of a report, unpacked."""
TERMINATION_LIMIT: Final = 4_000
"""Bytes of a report in a pod's termination message. Kubernetes cuts it at 4096."""
MAX_MESSAGE: Final = 600
"""Characters of a message about one table."""

Reason = Literal[
    "Current", "Behind", "SchemaProposed", "Dropped", "BadSchema", "BadRecord", "NotContinued", "DataLost",
    "CatalogFailed", "SourceFailed", "Failed",
]  # fmt: skip
"""The outcome for one table. Current: it has all messages that there were at the start of the run. Behind: the run
ended before. SchemaProposed: the schema is inferred, and a person has to accept it. Dropped: as ordered. BadSchema: a
person must change the schema or rebuild the table. BadRecord: the table stands still at a message. NotContinued:
another writer came first. CatalogFailed, SourceFailed: the catalog or the brokers refuse.
"""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class TableOrder(_Model):
    """One table of a run."""

    topic: str
    format: Literal["Iceberg", "Parquet"] = "Iceberg"
    freeze: bool = True
    """Accept an inferred schema. False: report it, and make no table."""
    drop: bool = False
    """Drop the table, and do nothing else."""
    mode: Literal["Append", "Upsert"] = "Append"
    kind: str = "Raw"
    json_schema: str | None = None
    definition: str = ""
    """Avro's schema, or Protobuf's descriptors in Base64."""
    message: str = ""
    partition_by: list[str] = Field(default_factory=list)
    on_bad_record: Literal["Reject", "Suspend"] = "Reject"
    per_commit: int = Field(0, ge=0)
    """Messages of one commit; 0: the program's own number."""
    maintain: bool = False
    """Merge files and expire snapshots after the first commit."""
    snapshots_s: float = 3 * 86_400.0
    """Age in seconds from which maintenance expires snapshots."""
    rows_s: float | None = None
    """Age in seconds from which maintenance removes rows; None: never."""
    every_s: float | None = None
    """Seconds between two commits, while the run lasts; 0: one follows the other; None: one commit."""


class RunOrder(_Model):
    """One run. Paths are those of the place where it runs."""

    run: str
    """Names the run. A report belongs to the order with this name."""
    name_servers: str
    tables: list[TableOrder] = Field(max_length=1_000)
    catalog: dict[str, str]
    catalog_secret: str | None = None
    """Folder with a file for each further property of the catalog."""
    namespace: str = "rocketmq"
    credentials: str | None = None
    """Folder with the files accessKey and secretKey of the user that reads."""
    archive: dict[str, str] = Field(default_factory=dict)
    """Where the log is read, as options of the source `rocketmq`: archive, endpoint, region, credentials, keyFile.
    Empty: messages are pulled.
    """
    tls: bool = False
    ca_file: str | None = None
    spark: bool = False
    """Let Spark's executors read and write. False: this process does it."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Spark's configuration."""
    lasts_s: float = 0.0
    """Seconds for which tables with `every_s` are committed. 0: every table once."""
    report: str
    """File for the report."""
    report_limit: int = MAX_REPORT


class TableReport(_Model):
    """One table after a run. None: not known."""

    topic: str
    reason: Reason
    message: str = ""
    messages: int = 0
    """Messages that this run has committed."""
    rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    behind: int | None = None
    rejected: int | None = None
    lost: int | None = None
    last_commit_ms: int | None = None
    maintained_ms: int | None = None
    proposed: str | None = None
    """The inferred schema that waits for a person, as JSON Schema."""
    success_ms: int | None = None
    """Time of the last look at the topic after which the table had everything that was there."""


class RunReport(_Model):
    """A run that has ended, or one that goes on."""

    run: str
    tables: list[TableReport] = Field(default_factory=list)
    problem: str = ""
    """Why the run failed as a whole."""


def to_text(report: RunReport, limit: int) -> str:
    """Return a report as text of at most `limit` bytes. Messages are cut, and then left out, until it fits."""
    for length in (MAX_MESSAGE, 200, 80, 0):
        cut = report.model_copy(
            update={
                "problem": report.problem[: max(length, 200)],
                "tables": [
                    t.model_copy(
                        update={
                            "message": t.message[:length],
                            # A schema is whole or not there. Without it the message says where to read it.
                            "proposed": t.proposed if length == MAX_MESSAGE else None,
                        }
                    )
                    for t in report.tables
                ],
            }
        )
        plain = cut.model_dump_json(exclude_defaults=True)
        if len(plain.encode()) <= limit:
            return plain
        packed = base64.b85encode(zlib.compress(plain.encode(), 9)).decode()
        if len(packed) <= limit:
            return packed
    problem = f"the run had {len(report.tables)} tables, too many for one report"
    return RunReport(run=report.run, problem=problem).model_dump_json()


def from_text(text: str | None) -> RunReport | None:
    """Return the report of `to_text`; None: this is none."""
    if not text:
        return None
    try:
        if not text.startswith("{"):
            unpack = zlib.decompressobj()
            text = unpack.decompress(base64.b85decode(text), MAX_REPORT).decode()
            if unpack.unconsumed_tail:
                return None
        return RunReport.model_validate_json(text)
    except (ValueError, zlib.error, ValidationError):
        return None
