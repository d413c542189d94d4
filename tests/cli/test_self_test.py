"""`gantry self-test`: the verdict of figures, and a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_operator.cli.self_test import Measured, judge, measure, verdict

GOOD = Measured([0.5] * 200, 500e6, 100 * 10**9, True, [], 65_536, 8 * 10**9, 4)


@pytest.mark.parametrize(
    ("change", "subject", "level"),
    [
        ({}, "", "good"),
        ({"fsync_ms": [0.5] * 190 + [30.0] * 10}, "fsync", "fair"),
        ({"fsync_ms": [0.5] * 190 + [300.0] * 10}, "fsync", "bad"),
        ({"fsync_ms": [1.0]}, "", "good"),
        ({"write_bytes_s": 50e6}, "throughput", "fair"),
        ({"write_bytes_s": 1e6}, "throughput", "bad"),
        ({"free_bytes": 10**9}, "room", "bad"),
        ({"clock_synchronized": False}, "clock", "fair"),
        ({"clock_synchronized": None}, "clock", "unknown"),
        ({"taken_ports": [9876]}, "ports", "fair"),
        ({"files": 1_024}, "open files", "bad"),
        ({"memory": 10**9}, "machine", "fair"),
    ],
)
def test_each_figure_has_its_verdict(change: dict[str, object], subject: str, level: str) -> None:
    found = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    others = {f.subject: f.level for f in found if f.level != "good"}
    assert others == ({subject: level} if subject else {})
    said = verdict(found)
    expected = {"bad": f"not fit for a cluster under load: {subject}", "fair": f"fit, with limits: {subject}"}
    assert said == expected.get(level, "fit for a cluster")


def test_it_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    made = measure(tmp_path)
    assert len(made.fsync_ms) == 200
    assert made.write_bytes_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gantry_operator.cli", "self-test", "--dir"]
    wrong = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "none cannot be written" in wrong.stderr
    done = subprocess.run([*command, str(tmp_path), "-o", "json"], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert {f["subject"] for f in said["findings"]} >= {"fsync", "clock", "ports", "open files"}
    assert done.returncode == (1 if any(f["level"] == "bad" for f in said["findings"]) else 0)


def test_the_version_is_an_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gantry_operator.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("gantry 0.")
