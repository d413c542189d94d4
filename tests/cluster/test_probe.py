"""The reason for which clients cannot write to a group, one for all commands and platforms."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_broker.remoting.client import RemotingClient
from gantry_operator.cluster import probe


@pytest.mark.parametrize(
    ("waits", "leader", "status", "reason"),
    [
        ("waiting for t-a-1", "t-a-0", {"writable": True}, "waiting for t-a-1"),
        ("", None, None, "no member leads"),
        ("", "t-a-0", None, "t-a-0 takes no writes: it has just taken the role"),
        ("", "t-a-0", {"writable": False, "reason": "the disk is full"}, "t-a-0 takes no writes: the disk is full"),
        ("", "t-a-0", {"writable": True}, None),
    ],
)
def test_not_writable(waits: str, leader: str | None, status: dict[str, Any] | None, reason: str | None) -> None:
    assert probe.not_writable(waits, leader, status) == reason


async def test_one_name_server_with_the_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    async def send_and_read(client: RemotingClient, broker: str) -> str | None:
        sent.append(broker)
        return "it does not answer"

    monkeypatch.setattr(probe, "send_and_read", send_and_read)
    async with RemotingClient() as client:
        assert await probe.route_and_send(client, [], "b:1") == "there is no NameServer"
        assert await probe.route_and_send(client, ["s does not answer"], "b:1") == "s does not answer"
        assert not sent
        assert await probe.route_and_send(client, ["s does not answer", None], "b:1") == "it does not answer"
    assert sent == ["b:1"]
