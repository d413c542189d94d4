"""Spark on RocketMQ: the data sources `commitlog` (logs) and `rocketmq` (topics), and the jobs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `commitlog` and `rocketmq` with a session, and enable filter pushdown for Python sources."""
    from gantry_spark.aggregates import AggregatesSource
    from gantry_spark.source import CommitLogSource
    from gantry_spark.topics.source import TopicSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(CommitLogSource)
    spark.dataSource.register(AggregatesSource)
    spark.dataSource.register(TopicSource)
