"""Connections that have not proved anything yet: which of them makes room when there are too many. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Crowd(Generic[T]):
    """Connections with their addresses, the one that came or moved last at the end."""

    def __init__(self) -> None:
        self._address_of: dict[T, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address_of)

    def __iter__(self) -> Iterator[T]:
        return iter(self._address_of)

    def __contains__(self, connection: object) -> bool:
        return connection in self._address_of

    def add(self, connection: T, address: str) -> None:
        self._address_of[connection] = address
        self._counts[address] += 1

    def discard(self, connection: T) -> None:
        """Forget a connection, if it is known."""
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def to_end(self, connection: T) -> None:
        """Let a known connection be the one that came last."""
        self._address_of[connection] = self._address_of.pop(connection)

    def first_of_most(self, rather: Callable[[T], bool] = lambda connection: True) -> T | None:
        """Return the first connection of an address that has the most, if there is one, of those that `rather` names:
        a flood from one address makes no other address give up its place. None: there is no connection.
        """
        if not self._counts:
            return None
        most = max(self._counts.values())
        first = None
        for connection, address in self._address_of.items():
            if self._counts[address] == most:
                if rather(connection):
                    return connection
                first = first or connection
        return first
