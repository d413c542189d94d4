"""The events that several parts of a broker react to: lists of callbacks, built before the parts that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Calls its subscribers in the order of their subscription; an exception of one ends the call."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, callback: Callable[P, object]) -> None:
        self._subscribers.append(callback)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in self._subscribers:
            callback(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of one broker."""

    role_changed: Event[[bool]] = field(default_factory=Event)
    """Called with "is leader" after the role changed and the tables follow it."""
    address_changed: Event[[]] = field(default_factory=Event)
    """Called after the leader's address for clients changed."""
    tables_changed: Event[[]] = field(default_factory=Event)
    """Called after topics, groups or settings changed."""
    status_changed: Event[[]] = field(default_factory=Event)
    """Called after a part of the member's status changed."""
