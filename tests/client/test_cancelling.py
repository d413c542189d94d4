"""Cancellation: a task must not lose it, or `close` waits forever."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from gantry_broker.client.consumer import AssignedQueue
from gantry_broker.client.process_queue import ProcessQueue
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import ConnectError


async def test_close_ends_while_a_queue_stops() -> None:
    async def pulls() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    item = AssignedQueue(ProcessQueue(0), asyncio.create_task(pulls()))
    rebalance = asyncio.create_task(item.end())
    await asyncio.sleep(0.01)
    rebalance.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rebalance
    assert item.process.dropped
    await asyncio.wait({item.task})


@pytest.mark.parametrize("steps", range(5))
async def test_a_cancellation_during_a_connect_is_not_lost(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    there = asyncio.Event()

    async def opened(address: str) -> object:
        await there.wait()
        return object()

    client = RemotingClient()
    monkeypatch.setattr(client, "_open", opened)
    waits = asyncio.create_task(client._connect("broker:10911", 5.0))
    await asyncio.sleep(0.01)
    there.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    if waits.done():
        return  # too late: it has its connection
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits


async def test_close_fails_requests_that_wait_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(address: str) -> object:
        await asyncio.Event().wait()
        return None

    client = RemotingClient()
    monkeypatch.setattr(client, "_open", never)
    waits = asyncio.create_task(client._connect("broker:10911", 5.0))
    await asyncio.sleep(0.01)
    with contextlib.suppress(asyncio.CancelledError):
        await client.close()
    with pytest.raises(ConnectError, match="closed"):
        await waits
