"""Subscriptions and compiled SQL92 expressions of pulls."""

from __future__ import annotations

import weakref
from typing import Final

from gantry_broker.broker.clients import Subscription
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError, compile_filter
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_TAG, ResponseCode
from gantry_broker.protocol.heartbeats import MAX_EXPRESSION

MOST_BYTES: Final = 64 << 20
"""Bytes of the large filters that requests hold, in a process without another limit."""
SMALL: Final = 600
"""Characters of an expression that is too small to count."""


def most_bytes(memory: int) -> int:
    """Return the bytes of large filters that requests may hold in a process with so much memory (bytes)."""
    return min(max(memory // 64, 16 << 20), 256 << 20)


class Filters:
    """Subscriptions and compiled expressions by their text, up to a bound; each is built once."""

    MAX: Final = 4_096
    MAX_CHARACTERS: Final = 1 << 20
    """Characters of all kept expressions of one kind. A compiled expression takes some twenty times as much memory."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: of large filters that requests hold, see `subscription`."""
        self._most_bytes = most_bytes
        self.held_bytes = 0
        """Bytes of the large filters that requests hold, approximately."""
        self._of: dict[str, int] = {}
        """The same by owner."""
        self._subscription_characters = 0
        self._compiled_characters = 0
        self._subscriptions: dict[tuple[str, str, str], Subscription] = {}
        self._compiled: dict[str, Filter | FilterSyntaxError] = {}

    def subscription(self, topic: str, expression: str, kind: str, owner: str = "") -> Subscription:
        """Return the subscription, which the request that needs it has to keep as long as it waits.

        What all waiting requests hold is bounded: a filter of some KiB takes up to 1 MB, and 100,000 may wait. An
        `owner` (a user, an address) may hold as much as is free, as in `Shares`. Raises FilterSyntaxError for an
        expression that is too long, and RequestRejected (SYSTEM_BUSY).
        """
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        key = (topic, expression, kind)
        kept = self._subscriptions.get(key)
        if kept is None:
            self._subscription_characters += len(expression)
            if len(self._subscriptions) >= self.MAX or self._subscription_characters > self.MAX_CHARACTERS:
                self._subscriptions.clear()
                self._subscription_characters = len(expression)
            data = tag_subscription(topic, expression, kind)
            size = _size(data) if len(expression) > SMALL else 0
            if size:
                self._may_hold(size, owner)
            kept = self._subscriptions[key] = Subscription(data)
            if size:
                self.held_bytes += size
                self._of[owner] = self._of.get(owner, 0) + size
                weakref.finalize(kept, self._gone, size, owner).atexit = False
        return kept

    def _may_hold(self, size: int, owner: str) -> None:
        """Make room among the kept ones, or raise RequestRejected."""
        for _ in range(2):
            if self._of.get(owner, 0) + size <= self._most_bytes - self.held_bytes:
                return
            self._subscriptions.clear()
            self._subscription_characters = 0
        raise RequestRejected(
            ResponseCode.SYSTEM_BUSY,
            f"the filters of waiting requests hold {self.held_bytes} bytes, {self._of.get(owner, 0)} of them yours; "
            f"another {size} are over the limit of {self._most_bytes}: ask again later, or subscribe by heartbeats",
        )

    def _gone(self, size: int, owner: str) -> None:
        self.held_bytes -= size
        self._of[owner] -= size
        if not self._of[owner]:
            del self._of[owner]

    def compiled(self, expression: str) -> Filter:
        """Return the compiled expression. Raises FilterSyntaxError."""
        if len(expression) > MAX_EXPRESSION:
            raise _too_long(expression)
        outcome = self._compiled.get(expression)
        if outcome is None:
            self._compiled_characters += len(expression)
            if len(self._compiled) >= self.MAX or self._compiled_characters > self.MAX_CHARACTERS:
                self._compiled.clear()
                self._compiled_characters = len(expression)
            try:
                outcome = compile_filter(expression)
            except FilterSyntaxError as error:
                outcome = error
            self._compiled[expression] = outcome
        if isinstance(outcome, FilterSyntaxError):
            raise outcome.with_traceback(None)  # without this the error keeps the frames of every caller
        return outcome


def _size(data: SubscriptionData) -> int:
    """Estimates the bytes of a subscription with what is made of it: strings and codes of tags, or a compiled
    expression.
    """
    if data.tags:
        return 4 * len(data.expression) + 256 * len(data.tags)
    return 24 * len(data.expression)


def _too_long(expression: str) -> FilterSyntaxError:
    return FilterSyntaxError(f"the expression has {len(expression)} characters, the limit is {MAX_EXPRESSION}")


def tag_subscription(topic: str, expression: str, kind: str) -> SubscriptionData:
    """Return `A || B` as the set of its tags; for SQL92 the expression alone."""
    tags = []
    if kind in ("", EXPRESSION_TAG) and expression not in ("", "*"):
        tags = [tag for part in expression.split("||") if (tag := part.strip())]
    return SubscriptionData(topic, expression, kind or EXPRESSION_TAG, tags)
