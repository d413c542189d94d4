"""A broker in this process, as tests of `tests/broker` have it, with POP requests in place of frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.pop.popbench import PopBench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PopBench]:
    made = PopBench(tmp_path)
    await made.lead()
    yield made
    await made.close()
