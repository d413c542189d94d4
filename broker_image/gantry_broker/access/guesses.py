"""A limit for wrong signatures, and for requests without one: no one finds a key by trying, and a flood costs little.

It counts by address, and only what is wrong. A request that is signed right passes whatever others at its address do:
clients behind one router share its address.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

from gantry_broker.access.quota import Bucket

WRONG_A_SECOND: Final = 20
"""Wrong signatures of one address that are answered at once."""
UNSIGNED_A_SECOND: Final = 1_000
"""Requests without a signature of one address that are answered at once."""
HOLD_S: Final = 1.0
"""Seconds for which more of them hold their connection, or their call, before it ends."""
MAX_ADDRESSES: Final = 1_024


class Guesses:
    """The latest addresses with wrong signatures; of IPv6 the networks of 64 bits, which one peer has as a whole."""

    def __init__(self, rate: int = WRONG_A_SECOND) -> None:
        """`rate`: those of one address in a second that are answered."""
        self._rate = rate
        self._buckets: dict[str | int, Bucket] = {}
        self.held = 0
        """Those over the limit."""

    def too_many(self, address: str, now: float) -> bool:
        """Count one. `now`: seconds of a monotonic clock."""
        place = _place(address)
        bucket = self._buckets.pop(place, None)
        if bucket is None:
            bucket = Bucket(self._rate, now)
            if len(self._buckets) >= MAX_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[place] = bucket  # at the end: the first one is the oldest
        if not bucket.has_some(now):
            self.held += 1
            return True
        bucket.take(1)
        return False


def _place(address: str) -> str | int:
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    return int(ip) >> 64 if isinstance(ip, IPv6Address) and ip.ipv4_mapped is None else address
