"""The project's client by gRPC does the same against Apache RocketMQ's proxy and against Gantry's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.processes import NamespaceUnavailable
from tests.interop5 import own_program, systems
from tests.interop5.clients import ToolMissing

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize("system", ["gantry", "rocketmq"])
def test_sends_receives_acknowledges_delays_and_keeps_the_order(system: str, tmp_path: Path) -> None:
    start = {"gantry": systems.ours, "rocketmq": systems.apache}[system]
    try:
        running = start(tmp_path)
        with running as found:
            topics = [found.topic(f"Own{kind}", kind) for kind in ("NORMAL", "DELAY", "FIFO")]
            group = found.group("own")
            words = [*found.target.prefix, sys.executable, own_program.__file__, found.endpoints, *topics, group]
            done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    except (ToolMissing, NamespaceUnavailable) as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "tagged": [[n, str(n), "a", [f"k{n}"], str(n)] for n in (0, 2, 4, 6)],
        "order": ["0", "1", "2", "3", "4", "5"],
        "queues": 1,
        "early_ms": 0,
        "again": [True, 2],
    }
