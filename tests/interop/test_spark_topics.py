"""Spark's source and sink by topic against Apache RocketMQ 4.9.7 and 5.5.0. tests/spark does the same with Gantry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig import rocketmq
from benchmarks.rig.processes import NamespaceUnavailable

SETTINGS = {
    "messageDelayLevel": "1s 2s", "waitTimeMillsInSendQueue": "10000", "osPageCacheBusyTimeOutMills": "10000",
}  # fmt: skip


@pytest.mark.apache
@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["server49", "server55"])
def test_the_tour(server: str, java_side: Path, tmp_path: Path) -> None:
    try:
        with rocketmq.rocketmq(tmp_path / "system", SETTINGS, server=server) as system:
            done = subprocess.run(
                [*system.prefix, sys.executable, "-m", "tests.spark.topic_tour", system.namesrv, str(tmp_path)],
                capture_output=True, text=True, check=False, timeout=500,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
            assert "the tour is complete" in done.stdout
    except NamespaceUnavailable as e:
        pytest.skip(f"Apache RocketMQ is not compared with here: {e}")
