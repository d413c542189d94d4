"""The handle by which a producer recalls a timer message (5.x)."""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

_VERSION: Final = "v1"
MAX_KEY: Final = 255
"""Characters of a message's unique key."""


class RecallHandle(NamedTuple):
    """The topic, the broker group, when the message is due (Unix ms) and its unique key."""

    topic: str
    broker: str
    due: str
    key: str

    def encode(self) -> str:
        """RocketMQ's text: base64 of `v1 topic broker time key`."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Decode the text. Raises ValueError."""
        try:
            padded = text + "=" * (-len(text) % 4)  # Clients may leave the padding out.
            words = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError):
            words = []
        if len(words) < 5 or words[0] != _VERSION or not words[4].isprintable() or len(words[4]) > MAX_KEY:
            raise ValueError("recall handle is invalid")
        return cls(*words[1:5])
