"""100,000 messages of 1 KiB through the official clients: no loss, no repetition, in order within each queue.

Each client version and each header format once; with INTEROP=full, every combination.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target

COUNT = int(os.environ.get("GANTRY_INTEROP_MESSAGES", "100000"))
QUEUES = 16
EVERY = [("49", "JSON"), ("55", "ROCKETMQ"), ("49", "ROCKETMQ"), ("55", "JSON")]
BOTH = EVERY if os.environ.get("INTEROP") == "full" else EVERY[:2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "serialize"), BOTH)
def test_volume_and_order(
    ours: Target, drivers: Callable[[Target, str, str], Driver], version: str, serialize: str
) -> None:
    driver = drivers(ours, version, serialize)
    name = f"volume_{version}_{serialize}"
    driver.mqadmin("updateTopic", "-t", name, "-c", ours.cluster, "-r", QUEUES, "-w", QUEUES)
    sent = driver.run(
        "produce", topic=name, run=name, count=COUNT, size=1024, keys=f"{name}-", tags="red,green,blue",
        properties=True, shards=QUEUES, threads=QUEUES, within_s=300,
    )  # fmt: skip
    assert sent.summary["errors"] == {}
    assert sent.summary["statuses"] == {"SEND_OK": COUNT}
    assert len(sent.summary["queues"]) == QUEUES
    got = driver.run(
        "consume", topic=name, group=f"g_{name}", run=name, mode="orderly", count=COUNT, keys=f"{name}-",
        check_tags="red,green,blue", properties=True, timeout_s=300, within_s=310, settle_ms=2000,
    ).summary  # fmt: skip
    assert got["unique"] == COUNT
    assert got["repeated"] == 0
    assert got["disorder"] == 0
    assert got["wrong"] == 0
    assert got["strangers"] == 0
    assert got["digest"] == sent.summary["digest"]
    assert got["queues"] == sent.summary["queues"]
