"""Spark on Gantry's commit logs: the `commitlog` data source and the jobs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the `commitlog` data source with a session, and enable filter pushdown for Python sources."""
    from gantry_spark.aggregates import AggregatesSource
    from gantry_spark.source import CommitLogSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(CommitLogSource)
    spark.dataSource.register(AggregatesSource)
