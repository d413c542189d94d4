"""What a heartbeat may bring: looked at before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_GROUPS = 500
"""Consumer and producer groups of one connection."""
MAX_SUBSCRIPTIONS = 2_000
"""Topics that the consumer groups of one heartbeat subscribe to, together."""
MAX_TAGS = 10_000
"""Tags and tag codes in the subscriptions of one heartbeat, together."""
MAX_EXPRESSION = 16_384
"""Characters of the expression of a subscription. SQL92 expressions have a lower limit of their own."""
MAX_TOPIC = 255
"""Characters of the name of a topic, or of a broker group."""
MAX_ID = 1_024
"""Characters of a client id, and of other short texts."""
MAX_TAG_CHARACTERS = 65_536
"""Characters of all tags of one heartbeat."""


def heartbeat_fault(value: Any) -> str | None:
    """Why the JSON of a heartbeat is refused before anything is made of it; None: it is within its limits.

    What is of the wrong type is left to `Heartbeat.from_json`, which names it.
    """
    if not isinstance(value, Mapping):
        return None
    consumers, producers = _array(value, "consumerDataSet"), _array(value, "producerDataSet")
    if (count := len(consumers) + len(producers)) > MAX_GROUPS:
        return f"the heartbeat names {count} groups, the limit is {MAX_GROUPS}"
    if fault := long_text(value, "clientID", MAX_ID):
        return fault
    subscriptions = tags = characters = 0
    for consumer in consumers:
        listed = _array(consumer, "subscriptionDataSet")
        subscriptions += len(listed)
        if subscriptions > MAX_SUBSCRIPTIONS:
            return f"the heartbeat has over {MAX_SUBSCRIPTIONS} subscriptions, which is the limit"
        for subscription in listed:
            for name, most in (("topic", MAX_TOPIC), ("expressionType", MAX_ID)):
                if fault := long_text(subscription, name, most):
                    return fault
            characters += sum(len(tag) for tag in _array(subscription, "tagsSet") if isinstance(tag, str))
            if characters > MAX_TAG_CHARACTERS:
                return f"the tags of the heartbeat have over {MAX_TAG_CHARACTERS} characters, which is the limit"
            tags += len(_array(subscription, "tagsSet")) + len(_array(subscription, "codeSet"))
            expression = subscription.get("subString") if isinstance(subscription, Mapping) else None
            if isinstance(expression, str) and len(expression) > MAX_EXPRESSION:
                return f"the field subString has {len(expression)} characters, the limit is {MAX_EXPRESSION}"
    if tags > MAX_TAGS:
        return f"the subscriptions of the heartbeat have {tags} tags, the limit is {MAX_TAGS}"
    return None


def long_text(value: Any, name: str, most: int) -> str:
    """Why a text of an object is too long to be kept; empty: it is not."""
    text = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(text, str) or len(text) <= most:
        return ""
    return f"the field {name} has {len(text)} characters, the limit is {most}"


def _array(value: Any, name: str) -> list[Any]:
    array = value.get(name) if isinstance(value, Mapping) else None
    return array if isinstance(array, list) else []
