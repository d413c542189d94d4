"""Fair shares of the places in which requests wait, or of the bytes that they hold there. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantry_broker.protocol.frame import Frame

Owners = Sequence[Hashable]
"""Who pays for a request that waits: its connection, and its user or, unsigned, its address."""


class Shares:
    """Places of which an owner may have as many as are free.

    So one owner alone gets half of them, two get a third each, and a new one always finds some: no share has to be set,
    and no owner can take the last places.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._of: dict[Hashable, int] = {}

    def take(self, owners: Owners, count: int = 1) -> bool:
        """Take places, or bytes; return False when there are not so many for one of the owners."""
        of, free = self._of, self.most - self.taken
        if count > free or any(of.get(owner, 0) + count > free for owner in owners):
            return False
        self.take_anyway(owners, count)
        return True

    def take_anyway(self, owners: Owners, count: int = 1) -> None:
        """Take places whatever the share is. `count` is above 0."""
        self.taken += count
        of = self._of
        for owner in owners:
            of[owner] = of.get(owner, 0) + count

    def give_back(self, owners: Owners, count: int = 1) -> None:
        """Give places back that were taken for these owners."""
        self.taken -= count
        for owner in owners:
            left = self._of[owner] - count
            if left:
                self._of[owner] = left
            else:
                del self._of[owner]


def request_bytes(frame: Frame) -> int:
    """Return the bytes that a waiting request counts for, in memory and in a bundle."""
    return len(frame.body) + sum(map(len, frame.ext.values())) + 512
