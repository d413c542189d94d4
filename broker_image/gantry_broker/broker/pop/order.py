"""What an orderly queue has in flight. Pure: time is an argument."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Order:
    """The messages of an orderly queue from the first unfinished one on; the first `given` of them are with a client.

    A message that is acknowledged before an earlier one stays: as in 5.5.0, when the time of the earlier one is over,
    both come again, so that the client can restore the order.
    """

    __slots__ = (
        "acked", "attempt", "counts", "given", "invisible_ms", "offsets", "pop_ms", "since_ms", "suspended", "visible",
    )  # fmt: skip

    def __init__(
        self,
        offsets: list[int],
        counts: list[int],
        given: int,
        since_ms: int,
        pop_ms: int,
        invisible_ms: int,
        attempt: str | None,
    ) -> None:
        self.offsets = offsets
        self.counts = counts
        """Earlier deliveries of each message that ended without an acknowledgement."""
        self.given = given
        self.since_ms = since_ms
        """The first pop of the same attempt: a client may have popped more than once before it got an answer."""
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.attempt = attempt
        self.visible: dict[int, int] = {}
        """When a message that a renewal moved is visible."""
        self.suspended: set[int] = set()
        self.acked: set[int] = set()
        """Messages that are acknowledged while an earlier one is not. The next delivery forgets that."""

    @property
    def in_flight(self) -> int:
        return len(self.offsets) - len(self.acked)

    def visible_ms(self) -> int:
        """Return when the last unacknowledged message that is with a client becomes visible."""
        visible, usual, acked = self.visible, self.pop_ms + self.invisible_ms, self.acked
        with_client = self.offsets[: self.given]
        return max([visible.get(offset, usual) for offset in with_client if offset not in acked], default=0)

    def blocks(self, attempt: str | None, now_ms: int) -> bool:
        """Whether an orderly pop has to wait: messages are with a client, and not by the same attempt."""
        same = attempt is not None and self.attempt == attempt
        return not same and self.given > 0 and self.visible_ms() > now_ms

    def has(self, offset: int) -> bool:
        number = bisect_left(self.offsets, offset)
        return number < len(self.offsets) and self.offsets[number] == offset

    def remove(self, begin: int, count: int = 1) -> None:
        """Remove messages from the place `begin` on."""
        for offset in self.offsets[begin : begin + count]:
            self.visible.pop(offset, None)
            self.suspended.discard(offset)
            self.acked.discard(offset)
        del self.offsets[begin : begin + count]
        del self.counts[begin : begin + count]
        self.given -= max(min(self.given - begin, count), 0)

    def acknowledge(self, offset: int) -> bool:
        """Note that a message is acknowledged; return False when it already was. `forget` removes it in its turn."""
        if offset in self.acked:
            return False
        self.acked.add(offset)
        return True

    def renew(self, offset: int, visible_ms: int, suspended: bool) -> bool:
        """Make a message visible at a new time; return False when it is not with a client."""
        if offset not in self.offsets[: self.given] or offset in self.acked:
            return False
        self.visible[offset] = visible_ms
        if suspended:
            self.suspended.add(offset)
        else:
            self.suspended.discard(offset)
        return True

    def forget(self, offsets: Iterable[int]) -> None:
        """Remove messages, and then those at the beginning that are acknowledged."""
        for offset in offsets:
            if self.has(offset):
                self.remove(bisect_left(self.offsets, offset))
        done = 0
        while done < len(self.offsets) and self.offsets[done] in self.acked:
            done += 1
        self.remove(0, done)

    def check_invariants(self) -> None:
        """Raise AssertionError if the columns contradict each other."""
        assert self.offsets == sorted(set(self.offsets)), "offsets do not rise"
        assert len(self.counts) == len(self.offsets)
        assert 0 <= self.given <= len(self.offsets)
        # A queue drops an empty order. Its first message is not acknowledged: the consumer offset is there.
        assert self.offsets
        assert self.offsets[0] not in self.acked
        assert {*self.acked, *self.suspended, *self.visible} <= set(self.offsets), "notes on messages that are gone"

    def is_delivered(self, offset: int, pop_ms: int) -> bool:
        """Return whether a handle with that pop time is of a message's present delivery."""
        first, last = sorted((self.since_ms, self.pop_ms))
        present = first <= pop_ms <= last
        return present and offset in self.offsets[: self.given]

    def again(self, same_attempt: bool) -> list[tuple[int, int]]:
        """Return (offset, count) of all messages as the next pop gives them."""
        out = []
        for number, (offset, count) in enumerate(zip(self.offsets, self.counts, strict=True)):
            counts = number < self.given and not same_attempt and offset not in self.suspended
            out.append((offset, count + counts))
        return out
