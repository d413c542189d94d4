"""Both bodies of the core, for tests."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_core import _python as python

from tests.core import twins

BODIES = ("python", "rust")


def body_of(name: str) -> Any:
    """Return a body. Without Rust there is no compiled one: the test is skipped, and the run says so."""
    found = python if name == "python" else twins.native()
    if found is None:
        pytest.skip(twins.NOT_BUILT)
    return found
