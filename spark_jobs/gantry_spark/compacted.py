"""What brokers say of their own compaction."""

from __future__ import annotations

from typing import NamedTuple


class Compacted(NamedTuple):
    """What the brokers' own compaction has done to a topic, in the names of `GET /v1/tables`."""

    seen_records: int = 0
    """Messages that it has looked at since the topic is compacted."""
    seen_bytes: int = 0
    kept_records: int = 0
    """Of them, those that it keeps."""
    kept_bytes: int = 0
