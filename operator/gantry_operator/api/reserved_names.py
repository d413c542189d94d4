"""Names of topics and consumer groups that are RocketMQ's or Gantry's own. No model is needed to tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    PREDEFINED_GROUPS,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def reserved_topic(name: str) -> bool:
    """Whether the name is RocketMQ's or Gantry's own."""
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX))


def cluster_topics(clusters: Iterable[str], groups: Iterable[str]) -> set[str]:
    """Return the topics that brokers make with the names of their clusters and groups."""
    names = set(clusters)
    return names | {f"{name}_{REPLY_TOPIC_SUFFIX}" for name in names} | set(groups)


def reserved_group(name: str) -> bool:
    return name in PREDEFINED_GROUPS or name.startswith((SYSTEM_GROUP_PREFIX, RETRY_PREFIX, DLQ_PREFIX))
