"""`spec.analytics`: Spark over the commit logs, on a schedule."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from gantry_operator.api import cron
from gantry_operator.api.base import CRON, OBJECT_NAME, ZONE, Model, Rule, VolumeSize, Window, more_than_nothing
from gantry_operator.api.pods import SparkPodResources


class ReportOutput(Model):
    """Location of the reports: a volume of the cluster, or any path that Hadoop's file systems support."""

    path: str | None = Field(
        None, description="For example s3a://reports/demo. Default: the volume.", min_length=1, max_length=512
    )
    size: VolumeSize = Field("5Gi", description="Size of the volume for reports, used without a path.")
    className: str | None = Field(
        None, description="Storage class of that volume. Default: the default class.", max_length=253
    )

    rules: ClassVar[tuple[Rule, ...]] = (more_than_nothing("size"),)


def spark_queue() -> Any:
    """Return the field that names a queue of Kueue."""
    return Field(
        None, description="LocalQueue of Kueue, which then says when a run starts: the label "
        "kueue.x-k8s.io/queue-name of its Job and of its executor pods.", min_length=1, max_length=63,
        pattern=OBJECT_NAME,
    )  # fmt: skip


def spark_engine() -> Any:
    """Return the field that says what a run is."""
    return Field(
        "Job",
        description="What a run is. Job: nothing else has to be installed. SparkApplication: an object of Apache's "
        "Spark operator (spark.apache.org/v1), which makes driver and executors; it has to be installed and to watch "
        "this namespace.",
    )


class SparkResources(Model):
    """CPU and memory of Spark's pods."""

    driver: SparkPodResources = Field(default_factory=lambda: SparkPodResources(), description="Of the driver.")
    executor: SparkPodResources = Field(default_factory=lambda: SparkPodResources(), description="Of each executor.")


class Analytics(Model):
    """A report on the logs and the savings of compaction, produced by Spark on a schedule."""

    schedule: str = Field(
        "0 3 * * *",
        description="Schedule as in a CronJob: minute, hour, day of month, month, day of week; or @daily.",
        pattern=CRON,
        max_length=128,
    )
    timeZone: str | None = Field(
        None, description="Time zone of the schedule, for example Europe/Berlin. Default: the control plane's.",
        max_length=64, pattern=ZONE,
    )  # fmt: skip
    source: Literal["Brokers", "Archive"] = Field(
        "Brokers",
        description="Where the logs are read. Archive: from spec.archive, without any load on brokers; the report then "
        "lacks the lag of consumer groups.",
    )
    engine: Literal["Job", "SparkApplication"] = spark_engine()
    suspend: bool = Field(False, description="Keep the schedule, but start no run.")
    topics: list[Annotated[str, Field(max_length=127)]] = Field(
        default_factory=list,
        description="Topics in the report, with * and ? as wildcards. Empty: all, including the broker's own.",
        max_length=256,
    )
    window: Window = Field(
        "7d",
        description="Age of the oldest records in all figures, including savedBytes. Growth, the time of a full disk, "
        "and the lag of groups use the whole log.",
    )
    executors: int = Field(2, ge=0, le=256, description="Number of executor pods. 0: the driver does all the work.")
    resources: SparkResources = Field(
        default_factory=lambda: SparkResources(), description="CPU and memory of driver and executors."
    )
    queue: str | None = spark_queue()
    output: ReportOutput = Field(default_factory=lambda: ReportOutput(), description="Location of the reports.")
    image: str | None = Field(
        None, description="Image with Spark. Default: the image in the operator's chart. The chart must allow any "
        "other image (image.allowed).", min_length=1, max_length=512,
    )  # fmt: skip
    sparkConf: dict[Annotated[str, Field(max_length=256)], str] = Field(
        default_factory=dict,
        max_length=256,
        description="Spark settings for tuning, such as spark.sql.shuffle.partitions: '8'. Others are refused unless "
        "the operator's chart allows them (analytics.allowedSparkConf).",
    )
    reportsHistory: int = Field(10, ge=1, le=1000, description="Number of reports to keep.")

    _can_be_due = field_validator("schedule", "timeZone")(cron.can_be_due)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.sparkConf) || self.sparkConf.all(k, k.startsWith('spark.'))",
            "sparkConf has a key that does not begin with 'spark.': write the full name, "
            "for example spark.sql.shuffle.partitions",
            lambda a: all(k.startswith("spark.") for k in a.sparkConf),
            "sparkConf",
        ),
        Rule(
            "!has(self.topics) || self.topics.all(t, t.matches('^[%|a-zA-Z0-9_*?-]{1,127}$'))",
            "topics has a name that no topic can have: write letters, digits, %, |, _ and -, with * and ? as wildcards",
            lambda a: all(re.fullmatch(r"[%|a-zA-Z0-9_*?-]{1,127}", t) for t in a.topics),
            "topics",
        ),
        Rule(
            "!has(self.engine) || self.engine != 'SparkApplication' || !has(self.executors) || self.executors > 0",
            "executors is 0, and a SparkApplication has executors: write at least 1, or engine: Job",
            lambda a: a.engine != "SparkApplication" or a.executors > 0,
            "executors",
        ),
    )
