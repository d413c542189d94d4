"""A message as JSON, the same for every command and page that prints messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gantry_broker.client import ReceivedMessage


def message_fields(message: ReceivedMessage, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a message for JSON. `more`: further fields."""
    out: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.record.queue_id,
        "offset": message.record.queue_offset,
        "keys": message.record.keys,
        "tags": message.record.tags,
        "storeTime": message.store_ms,
        "properties": dict(message.properties),
        **(more or {}),
    }
    try:
        out["body"] = message.body.decode()
    except UnicodeDecodeError:
        out["bodyBase64"] = base64.b64encode(message.body).decode()
    return out
