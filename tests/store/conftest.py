from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.settings import BrokerSettings


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the system has one: thousands of histories would wear a disk out."""
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
    """Settings with which every kind of file is soon full."""
    return BrokerSettings(
        mappedFileSizeCommitLog=65_536, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
    )
