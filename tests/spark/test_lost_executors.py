"""Tables while their executors die: JVMs and Python workers are killed at random moments. With SPARK_TESTS=full, as
`make nightly` sets it: executors of their own take a while to start.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest
from gantry_broker.testing import broker
from gantry_spark.tables.job import TableJob
from gantry_spark.tables.spec import TableSpec

from tests.spark.executors import Driver
from tests.spark.test_tables import check, send

pytestmark = pytest.mark.timeout(900)
SEED = int(os.environ.get("SPARK_SEED", "1"))
KILLS = 3
"""Of executors, and of workers, in each mode."""
MOST_ROUNDS = 20


@pytest.mark.parametrize("mode", ["Append", "Upsert"])
def test_a_table_equals_the_model_whoever_dies(java: str, tmp_path: Path, mode: str) -> None:
    chance = random.Random(f"{SEED} {mode}")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/tables"}
    with broker() as mq:
        topic = mq.create_topic(queues=3)
        spec = {"topic": topic, "name_servers": mq.name_servers, "catalog": catalog, "mode": mode, "per_commit": 40}
        with contextlib.closing(Driver(tmp_path, **spec)) as driver:
            sent: list[tuple[str, bytes]] = []
            killed = {"executor": 0, "worker": 0}
            for _ in range(MOST_ROUNDS):
                some = [(f"k{chance.randrange(30)}", b"%d" % chance.randrange(10**9)) for _ in range(240)]
                send(mq, topic, some)
                sent += some
                died, _ = driver.run(chance)
                for kind, count in died.items():
                    killed[kind] += count
                check(TableJob(TableSpec(**spec), None), sent)
                if min(killed.values()) >= KILLS:
                    break
            assert min(killed.values()) >= KILLS, killed
