"""Fixtures of tests that open stores; a folder's conftest imports them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.settings import BrokerSettings


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if the system has one: thousands of histories would wear out a disk."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="gantry-store-", dir=shm))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def small() -> BrokerSettings:
    """Settings with small files, so that every kind of file fills up soon."""
    return BrokerSettings(
        mappedFileSizeCommitLog=65_536, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
    )
