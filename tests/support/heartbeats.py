"""The heartbeat of a consumer."""

from __future__ import annotations

from typing import Any


def heartbeat(group: str, *topics: str, client: str = "c") -> dict[str, Any]:
    """Return what a pushing consumer of one group with these topics tells a broker, with all fields that Java sends."""
    subscriptions = [{"topic": t, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for t in topics]
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False, "subscriptionDataSet": subscriptions,
    }  # fmt: skip
    return {"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}
