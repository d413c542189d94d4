"""How many topics, groups and clients there may be, and how fast topics and groups come into being on demand. Pure.

Each of them costs memory on every member, a record of the log, and a line of each registration at a NameServer.
RocketMQ has no such limits. The totals that an operator may need to raise are settings (`maxTopics`,
`maxSubscriptionGroups`).
"""

from __future__ import annotations

from typing import Final

BURST: Final = 2_000
"""Topics and groups that may come into being at once, on demand: as when all clients of a new cluster start."""
PER_SECOND: Final = 100
"""And then each second."""
MAX_LINKS: Final = 100_000
"""Memberships (a connection in a group) and what they subscribe to, on one broker."""
LINK_BYTES: Final = 4_096
"""Of the process's memory for one of them: they take about a tenth of it, so together at most a tenth of all."""
MAX_OFFSETS: Final = 200_000
"""Pairs of topic and group with consumer offsets; each is in memory, in the log and in a file."""


def max_links(memory: int) -> int:
    """`MAX_LINKS`, or fewer in a process with little memory (bytes)."""
    return min(MAX_LINKS, max(memory // LINK_BYTES, 1_000))


class CreationRate:
    """A token bucket: `BURST` at once, `PER_SECOND` after that. Time is an argument (ms)."""

    def __init__(self, burst: int = BURST, per_second: int = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._at_ms = 0

    def take(self, count: int, now_ms: int) -> bool:
        """Whether so many may come into being now; all or none of them."""
        self._left = min(self._left + max(now_ms - self._at_ms, 0) * self._per_second / 1000, self._burst)
        self._at_ms = now_ms
        if count > self._left:
            return False
        self._left -= count
        return True


def too_many_topics(have: int, new: int, limit: int) -> str | None:
    """Why so many new topics are refused; None: they are not."""
    if not new or have + new <= limit:
        return None
    return f"there are {have} topics, {new} more are asked for, the limit is {limit}: delete some, or raise maxTopics"


def too_many_groups(have: int, new: int, limit: int) -> str | None:
    """Why so many new consumer groups are refused; None: they are not."""
    if not new or have + new <= limit:
        return None
    return (
        f"there are {have} consumer groups, {new} more are asked for, the limit is {limit}: delete some, or raise "
        "maxSubscriptionGroups"
    )


def too_soon(topics: int, groups: int) -> str:
    return (
        f"{topics} topics and {groups} consumer groups would come into being on demand; at most {BURST} do at once and "
        f"{PER_SECOND} each second after that: send again later, or create them by name"
    )
