"""Subscriptions and compiled SQL92 expressions of pulls."""

from __future__ import annotations

from typing import Final

from gantry_broker.broker.clients import Subscription
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError, compile_filter
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_TAG
from gantry_broker.protocol.heartbeats import MAX_EXPRESSION


class Filters:
    """Subscriptions and compiled expressions by their text, up to a bound; each is built once."""

    MAX: Final = 4_096
    MAX_CHARACTERS: Final = 1 << 20
    """Characters of all kept expressions of one kind. A compiled expression takes some twenty times as much memory."""

    def __init__(self) -> None:
        self._subscription_characters = 0
        self._compiled_characters = 0
        self._subscriptions: dict[tuple[str, str, str], Subscription] = {}
        self._compiled: dict[str, Filter | FilterSyntaxError] = {}

    def subscription(self, topic: str, expression: str, kind: str) -> Subscription:
        """Returns the subscription. Raises FilterSyntaxError for an expression that is too long."""
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        key = (topic, expression, kind)
        known = self._subscriptions.get(key)
        if known is None:
            self._subscription_characters += len(expression)
            if len(self._subscriptions) >= self.MAX or self._subscription_characters > self.MAX_CHARACTERS:
                self._subscriptions.clear()
                self._subscription_characters = len(expression)
            known = self._subscriptions[key] = Subscription(tag_subscription(topic, expression, kind))
        return known

    def compiled(self, expression: str) -> Filter:
        """Returns the compiled expression. Raises FilterSyntaxError."""
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        known = self._compiled.get(expression)
        if known is None:
            self._compiled_characters += len(expression)
            if len(self._compiled) >= self.MAX or self._compiled_characters > self.MAX_CHARACTERS:
                self._compiled.clear()
                self._compiled_characters = len(expression)
            try:
                known = compile_filter(expression)
            except FilterSyntaxError as error:
                known = error
            self._compiled[expression] = known
        if isinstance(known, FilterSyntaxError):
            raise known.with_traceback(None)  # without this the error keeps the frames of every caller
        return known


def _too_long(expression: str) -> FilterSyntaxError:
    return FilterSyntaxError(f"the expression has {len(expression)} characters, the limit is {MAX_EXPRESSION}")


def tag_subscription(topic: str, expression: str, kind: str) -> SubscriptionData:
    """Returns `A || B` as the set of its tags; for SQL92 the expression alone."""
    tags = []
    if kind in ("", EXPRESSION_TAG) and expression not in ("", "*"):
        tags = [tag for part in expression.split("||") if (tag := part.strip())]
    return SubscriptionData(topic, expression, kind or EXPRESSION_TAG, tags)
