"""Our client's message trace, read by the official `mqadmin`, at both systems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target

TRACED = Path(__file__).with_name("traced.py")


def test_mqadmin_reads_our_client_s_message_trace(driver: Driver, target: Target, fresh: str) -> None:
    driver.mqadmin("updateTopic", "-t", fresh, "-c", target.cluster, "-r", 4, "-w", 4)
    done = subprocess.run(
        [*target.prefix, sys.executable, str(TRACED), target.namesrv, fresh, f"{fresh}_g"],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for _ in range(20):  # A key is found a moment after its message is stored.
        out = driver.mqadmin("queryMsgTraceById", "-i", done.stdout.strip())
        rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("Pub ", "Sub "))}
        if len(rows) == 2:
            break
    assert rows["Pub"][1] == f"{fresh}_g_sender"
    assert rows["Sub"][1] == f"{fresh}_g"
    assert {row[-1] for row in rows.values()} == {"success"}
