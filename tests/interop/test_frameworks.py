"""Taskiq and Celery against Apache RocketMQ 5.5.0. tests/client does the same with Gantry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig import rocketmq
from benchmarks.rig.processes import NamespaceUnavailable

SETTINGS = {"waitTimeMillsInSendQueue": "10000", "osPageCacheBusyTimeOutMills": "10000"}


@pytest.mark.apache
@pytest.mark.timeout(600)
def test_the_tours(java_side: Path, tmp_path: Path) -> None:
    try:
        with rocketmq.rocketmq(tmp_path / "system", SETTINGS, server="server55") as system:
            for framework in ("taskiq", "celery"):
                done = subprocess.run(
                    [*system.prefix, sys.executable, "-m", "tests.client.frameworks_tour", system.namesrv, framework],
                    capture_output=True, text=True, check=False, timeout=250,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr[-4000:]
                assert "the tour is complete" in done.stdout
    except NamespaceUnavailable as e:
        pytest.skip(f"Apache RocketMQ is not compared with here: {e}")
