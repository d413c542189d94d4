"""The Python client against Apache RocketMQ and Gantry, by the same tour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.target import Target

TOUR = Path(__file__).resolve().parents[1] / "client" / "tour.py"
STOPS = (
    "send_and_consume", "filters", "order", "broadcast", "sharing", "polling", "requests", "administration", "delay",
    "retry", "dead_letters", "times", "transactions",
)  # fmt: skip


@pytest.mark.parametrize("stop", STOPS)
def test_our_client(system: Target, stop: str) -> None:
    done = subprocess.run(
        [*system.prefix, sys.executable, str(TOUR), system.namesrv, stop],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
