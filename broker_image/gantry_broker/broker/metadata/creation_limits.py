"""Limits of topics, groups and clients, and of the rate at which topics and groups are created on demand. Pure.

Each of them costs memory on every member, a record of the log, and a line of each registration at a NameServer.
RocketMQ has no such limits. An operator may need to raise some totals; these are settings (`maxTopics`,
`maxSubscriptionGroups`).
"""

from __future__ import annotations

from typing import Final

BURST: Final = 2_000
"""Topics and groups that may be created on demand at once, as when all clients of a new cluster start."""
PER_SECOND: Final = 100
"""Topics and groups that may be created on demand in each further second."""
MAX_LINKS: Final = 100_000
"""Memberships (a connection in a group) and their subscriptions, on one broker."""
LINK_BYTES: Final = 4_096
"""Bytes of the process's memory for each link. A link takes about a tenth of that, so all take at most a tenth."""
MAX_OFFSETS: Final = 200_000
"""Pairs of topic and group with consumer offsets. Each is in memory, in the log and in a file."""
MAX_OFFSET_QUEUES: Final = 1_000_000
"""Queues of all those pairs, some 100 bytes each: 4,096 for each pair would be more than a process has."""


def max_links(memory: int) -> int:
    """Return `MAX_LINKS`, or fewer for a process with little memory (bytes)."""
    return min(MAX_LINKS, max(memory // LINK_BYTES, 1_000))


class CreationRate:
    """A token bucket: `BURST` at once, `PER_SECOND` after that. Time is an argument (ms)."""

    def __init__(self, burst: int = BURST, per_second: int = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._at_ms = 0

    def take(self, count: int, now_ms: int) -> bool:
        """Return whether `count` topics or groups may be created now, all of them or none."""
        self._left = min(self._left + max(now_ms - self._at_ms, 0) * self._per_second / 1000, self._burst)
        self._at_ms = now_ms
        if count > self._left:
            return False
        self._left -= count
        return True


def too_many_topics(have: int, new: int, limit: int) -> str | None:
    """Return why `new` more topics are refused; None: they are allowed."""
    if not new or have + new <= limit:
        return None
    return f"there are {have} topics, {new} more are requested, the limit is {limit}: delete some, or raise maxTopics"


def too_many_groups(have: int, new: int, limit: int) -> str | None:
    """Return why `new` more consumer groups are refused; None: they are allowed."""
    if not new or have + new <= limit:
        return None
    return (
        f"there are {have} consumer groups, {new} more are requested, the limit is {limit}: delete some, or raise "
        "maxSubscriptionGroups"
    )


def too_soon(topics: int, groups: int) -> str:
    return (
        f"{topics} topics and {groups} consumer groups would be created on demand; at most {BURST} are at once and "
        f"{PER_SECOND} each second after that: send again later, or create them by name"
    )
