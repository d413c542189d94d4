"""Fields of a ConsumerGroup's spec, and of `SubscriptionGroup`, which brokers have."""

from __future__ import annotations

from typing import Final

GROUP_FIELDS: Final = {
    "retryMax": "retry_max_times",
    "retryQueues": "retry_queues",
    "consumeOrderly": "orderly",
    "consumeEnable": "consume_enable",
    "broadcast": "consume_broadcast_enable",
}
