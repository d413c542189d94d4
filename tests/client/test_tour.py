"""The tour of tests/interop (against Apache RocketMQ), here against Gantry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.client.cluster import Cluster
from tests.client.tour import STOPS, Tour


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__)
async def test_tour(empty_cluster: Cluster, stop: Callable[[Tour], Awaitable[None]]) -> None:
    await empty_cluster.add(
        "a",
        enablePropertyFilter=True,
        messageDelayLevel="1s 5s 1s 1s",
        transactionTimeOut=300,
        transactionCheckInterval=300,
    )
    await stop(Tour(empty_cluster.name_server))
