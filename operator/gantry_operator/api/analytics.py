"""`spec.analytics`: Spark over the commit logs, on a schedule."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import Field

from gantry_operator.api.base import Model, Rule, VolumeSize, Window
from gantry_operator.api.pods import Resources

_CRON = (
    r"^(@(hourly|daily|weekly|monthly|yearly|annually|midnight)"
    r"|[0-9*/,-]+ +[0-9*/,?LW-]+ +[0-9*/,?LW-]+ +[0-9A-Za-z*/,-]+ +[0-9A-Za-z*/,?L#-]+)$"
)


class ReportOutput(Model):
    """Where reports lie: a volume of the cluster's own, or any path that Hadoop's file systems know."""

    path: str | None = Field(
        None, description="For example s3a://reports/demo; left out: the volume.", min_length=1, max_length=512
    )
    size: VolumeSize = Field("5Gi", description="Size of the volume that is made when no path is given.")
    className: str | None = Field(
        None, description="Storage class of that volume; left out: the default class.", max_length=253
    )


class SparkResources(Model):
    """CPU and memory of Spark's pods."""

    driver: Resources = Field(default_factory=lambda: Resources(), description="Of the driver.")
    executor: Resources = Field(default_factory=lambda: Resources(), description="Of each executor.")


class Analytics(Model):
    """A report on what the logs hold and what compaction would save, made by Spark on a schedule."""

    schedule: str = Field(
        "0 3 * * *",
        description="When it runs, as in a CronJob: minute, hour, day of month, month, day of week; or @daily.",
        pattern=_CRON,
        max_length=128,
    )
    timeZone: str | None = Field(
        None, description="Time zone of the schedule, for example Europe/Berlin; left out: the control plane's.",
        max_length=64, pattern=r"^[A-Za-z_]+(/[A-Za-z0-9_+-]+)*$",
    )  # fmt: skip
    suspend: bool = Field(False, description="Keep the schedule but start nothing.")
    topics: list[Annotated[str, Field(max_length=127)]] = Field(
        default_factory=list,
        description="Topics to look at, * and ? allowed; empty: all, also the broker's own.",
        max_length=256,
    )
    window: Window = Field(
        "7d",
        description="How far back records are looked at, for all figures, savedBytes too. Growth, when the disk "
        "fills, and how far groups are behind are of the whole log.",
    )
    executors: int = Field(2, ge=0, le=256, description="Executor pods; 0: the driver does all the work.")
    resources: SparkResources = Field(
        default_factory=lambda: SparkResources(), description="CPU and memory of driver and executors."
    )
    output: ReportOutput = Field(default_factory=lambda: ReportOutput(), description="Where reports lie.")
    image: str | None = Field(
        None, description="Image with Spark; left out: the one named by the operator's chart. Another one has to be "
        "allowed there (image.allowed).", min_length=1, max_length=512,
    )  # fmt: skip
    sparkConf: dict[Annotated[str, Field(max_length=256)], str] = Field(
        default_factory=dict,
        max_length=256,
        description="Spark settings that tune, such as spark.sql.shuffle.partitions: '8'. Others are refused unless "
        "the operator's chart allows them (analytics.allowedSparkConf).",
    )
    reportsHistory: int = Field(10, ge=1, le=1000, description="How many reports are kept.")

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
    )
