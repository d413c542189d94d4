"""Prometheus and promtool: those of the path, or those that `.ci/checks.py` brought."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

BROUGHT: Final = Path(__file__).parents[2] / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`. The test is skipped without it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{BROUGHT}")
    if found is None:
        pytest.skip(f"there is no {name} here: `python .ci/checks.py --tools` brings it on Debian")
    return found
