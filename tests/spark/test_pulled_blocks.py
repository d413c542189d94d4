"""Answers to pulls become the same rows by the compiled core and by numpy, whatever they bring."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_spark import scan
from gantry_spark.topics.columns import batches, spark_schema
from gantry_spark.topics.pull import PullSettings, _decode
from gantry_spark.topics.queues import QueueRange
from pyspark.sql.pandas.types import to_arrow_schema

from tests.core.twins import NOT_BUILT, log_record, mutated

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "tags", "keys", "msgId", "properties")
WANTED = QueueRange(MessageQueue("T", "demo-a", 0), 1, 8)


def decoded(block: list[bytes], tags: tuple[str, ...]) -> tuple[list[Any], list[str]]:
    settings = PullSettings("g", tags, True, False)
    schema = to_arrow_schema(spark_schema(COLUMNS), timezone="UTC")
    found = [
        batch
        for one in _decode(memoryview(b"".join(block)), WANTED, settings, "q")
        for batch in batches(one, "T", "a", COLUMNS, schema)
    ]
    return found, settings.losses


@pytest.mark.skipif(not scan.COMPILED, reason=NOT_BUILT)
def test_both_ways_make_the_same_rows_and_report_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lost = 0
    for seed in range(400):
        rng = random.Random(seed)
        block = [
            b"".join([log_record(rng, rng.randrange(1 << 40)) for _ in range(rng.randrange(1, 9))])
            for _ in range(rng.randrange(1, 4))
        ]
        if rng.random() < 0.3:
            block[-1] = mutated(rng, block[-1])
        tags = rng.choice(((), ("TagA", "ä")))
        by_core = decoded(block, tags)
        with monkeypatch.context() as patch:
            patch.setattr(scan, "COMPILED", False)
            assert decoded(block, tags) == by_core, seed
        rows += sum(batch.num_rows for batch in by_core[0])
        lost += bool(by_core[1])
    assert rows > 1_000
    assert lost > 50
