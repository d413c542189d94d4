"""The source and the sink `rocketmq` against a real broker. tests/interop/test_spark_topics.py runs the tour against
Apache RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gantry_broker.testing import LocalBroker, broker

from tests.spark.topic_tour import Tour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with broker(messageDelayLevel="1s 2s") as running:
        yield running


def test_the_tour(spark: SparkSession, mq: LocalBroker, tmp_path: Path) -> None:
    Tour(spark, mq.name_servers, tmp_path, "Tour").run()
