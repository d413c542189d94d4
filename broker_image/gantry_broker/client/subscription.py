"""Subscriptions to a topic, by tags ("A || B", "*") or by an SQL92 condition over properties."""

from __future__ import annotations

import time

from gantry_broker.client.errors import InvalidMessage
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_SQL92, EXPRESSION_TAG
from gantry_broker.protocol.message import java_hash


def subscription(topic: str, expression: str = "*", *, sql: bool = False) -> SubscriptionData:
    """Return a subscription in wire form. Raises InvalidMessage for an expression without any tag."""
    version = time.time_ns() // 1_000_000
    if sql:
        if not expression.strip():
            raise InvalidMessage(f"subscription to {topic}: the SQL condition is empty")
        return SubscriptionData(topic, expression, EXPRESSION_SQL92, version=version)
    expression = expression.strip() or "*"
    data = SubscriptionData(topic, expression, EXPRESSION_TAG, version=version)
    if expression != "*":
        data.tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
        if not data.tags:
            raise InvalidMessage(f"subscription to {topic}: {expression!r} names no tag; write 'A || B' or '*'")
        data.codes = [java_hash(tag) for tag in data.tags]
    return data


def wanted(message: ReceivedMessage, data: SubscriptionData) -> bool:
    """Compare the tags themselves: brokers compare only hashes, which may collide."""
    return not data.tags or data.class_filter or message.tags in data.tags
