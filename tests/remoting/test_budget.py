"""Limits of bytes and connections follow the memory of the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.remoting.budget import MIB, RemotingBudget, memory_limit, remoting_budget

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("memory", "wanted"),
    [
        (128 * MIB, RemotingBudget(20 * MIB, 64 * 1024, 10 * MIB, 16 * MIB, 8 * MIB, 2_048, 128)),
        (512 * MIB, RemotingBudget(64 * MIB, 128 * 1024, 32 * MIB, 64 * MIB, 32 * MIB, 8_192, 512)),
        (24 * GIB, RemotingBudget(256 * MIB, MIB, 32 * MIB, 1024 * MIB, 64 * MIB, 10_000, 1_024)),
    ],
    ids=["128 MiB", "512 MiB", "24 GiB"],
)
def test_parts_of_memory(memory: int, wanted: RemotingBudget) -> None:
    assert remoting_budget(memory) == wanted


@pytest.mark.parametrize("memory", [128 * MIB, 200 * MIB, 512 * MIB, GIB, 5 * GIB, 64 * GIB])
def test_all_parts_together_are_less_than_half_of_memory(memory: int) -> None:
    parts = remoting_budget(memory)
    assert parts.unfinished_bytes + parts.unsent_bytes + parts.buffered_bytes <= memory // 2
    assert parts.unsent_bytes_each <= parts.unsent_bytes


def test_connections_leave_descriptors_for_files() -> None:
    assert remoting_budget(24 * GIB, 512).connections == 512
    assert remoting_budget(24 * GIB).connections == 10_000
    assert remoting_budget(24 * GIB, max_connections=300).connections == 300


def test_memory_is_what_was_configured_or_the_cgroups_limit_or_the_machines(tmp_path: Path) -> None:
    file, unlimited, absent = tmp_path / "memory.max", tmp_path / "unlimited", str(tmp_path / "absent")
    file.write_text("134217728\n")
    unlimited.write_text("max\n")
    machine = memory_limit(None, ())
    assert memory_limit(5, (str(file),)) == 5
    assert memory_limit(None, (absent, str(file))) == 128 * MIB
    assert memory_limit(None, (str(unlimited),)) == machine > 128 * MIB
    file.write_text(str(1 << 62))
    assert memory_limit(None, (str(file),)) == machine
