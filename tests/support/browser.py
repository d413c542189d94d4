"""The system's Chromium."""

from __future__ import annotations

import shutil
from typing import Final

import pytest

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium_path() -> str:
    """Return its path. Without it the test is skipped."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            "there is no browser here that draws the page: install Chromium "
            "(`python .ci/checks.py --tools`, as root, on Debian)"
        )
    return found
