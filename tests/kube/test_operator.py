"""The operator's process: what it waits for before it looks after clusters."""

from __future__ import annotations

import asyncio

import pytest
from fakeapi import FakeApi
from gantry_operator.kube import operator
from gantry_operator.kube.client import KubeApi
from gantry_operator.kube.operator import Operator
from gantry_operator.kube.render import OperatorSettings
from running import running


@pytest.mark.parametrize(("kind", "begins"), [("NetworkPolicy", True), ("Pod", False)])
async def test_only_what_a_failover_needs_has_to_be_listed(
    fake: FakeApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch, kind: str, begins: bool
) -> None:
    """A list may take a minute, or be refused for ever."""
    monkeypatch.setattr(operator, "LISTED_S", 0.2)
    fake.unanswered = [("GET", kind)]
    acting = asyncio.Event()

    async def act(self: Operator) -> None:
        acting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Operator, "_kopf", act)
    async with running(Operator(api, OperatorSettings("broker", "", "ops", ()), "op-0")) as found:
        async with asyncio.timeout(3):
            await asyncio.gather(*(m.ready() for k, m in found.followed().items() if k != kind))
        assert found.shared.unlisted() == [kind]
        await asyncio.sleep(0.5)
        assert acting.is_set() == begins
