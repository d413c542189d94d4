"""Fair shares of the places in which requests wait. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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

    def take(self, owners: Owners) -> bool:
        """Take a place; return False when there is none for one of the owners."""
        of, free = self._of, self.most - self.taken
        if free <= 0 or any(of.get(owner, 0) >= free for owner in owners):
            return False
        self.take_anyway(owners)
        return True

    def take_anyway(self, owners: Owners) -> None:
        """Take a place whatever the share is."""
        self.taken += 1
        of = self._of
        for owner in owners:
            of[owner] = of.get(owner, 0) + 1

    def give_back(self, owners: Owners) -> None:
        """Give a place back that was taken for these owners."""
        self.taken -= 1
        for owner in owners:
            left = self._of[owner] - 1
            if left:
                self._of[owner] = left
            else:
                del self._of[owner]
