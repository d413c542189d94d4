"""Who brought consumer offsets: the queues and pairs of topic and group that each user or address pays for. Pure."""

from __future__ import annotations

from collections import Counter


class OffsetOwners:
    """Counts since this member leads. An owner may have as much as is free (see `Shares`), so that none takes all."""

    def __init__(self) -> None:
        self._paid: dict[str, dict[str, int]] = {}
        """Pair of topic and group to the queues that each owner brought."""
        self.queues = Counter[str]()
        """Owner to queues with offsets."""
        self.pairs = Counter[str]()
        """Owner to pairs in which it has a queue."""

    def pay(self, key: str, owner: str, queues: int = 1) -> None:
        """Note that an owner brought offsets of so many queues; empty: the broker itself, which is not counted."""
        if not owner or not queues:
            return
        paid = self._paid.setdefault(key, {})
        if owner not in paid:
            self.pairs[owner] += 1
        paid[owner] = paid.get(owner, 0) + queues
        self.queues[owner] += queues

    def forget(self, key: str) -> None:
        """Note that a pair has no offsets any more."""
        for owner, queues in self._paid.pop(key, {}).items():
            for counts, number in ((self.queues, queues), (self.pairs, 1)):
                counts[owner] -= number
                if not counts[owner]:
                    del counts[owner]

    def clear(self) -> None:
        self._paid.clear()
        self.queues.clear()
        self.pairs.clear()
