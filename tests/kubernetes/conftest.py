"""The API server in memory, and clients of it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gantry_operator.platforms.kubernetes.client import KubeApi

sys.path.insert(0, str(Path(__file__).parent))

from fakeapi import FakeApi


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


@pytest.fixture
async def api(fake: FakeApi) -> AsyncIterator[KubeApi]:
    async with fake.client() as api:
        yield api
