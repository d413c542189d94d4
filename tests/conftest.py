"""What all tests share: how generated cases are chosen, and disks that are soon full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for free_ports

# The same cases in every run, so that a red run is a change's doing. HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], Path]]:
    """Makes a folder that is a disk of so many bytes (a tmpfs of its own); it is gone after the test."""
    mounted: list[Path] = []

    def make(folder: Path, size: int) -> Path:
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "gantry-test", str(folder)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"a full disk needs a small one, and only root may mount that: {why.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
