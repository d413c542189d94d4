"""The API server in memory, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from gantry_operator.platforms.kubernetes.api.client import KubeApi

from tests.kubernetes.fake_api import FakeApi


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


@pytest.fixture
def api(fake: FakeApi) -> KubeApi:
    return fake.api
