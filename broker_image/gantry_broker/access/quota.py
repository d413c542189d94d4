"""Token buckets: how much a user may send, with time as an argument."""

from __future__ import annotations


class Bucket:
    """`rate` a second, and at most one second's worth at once.

    A request passes while anything is left, and may leave a debt: a message that is larger than a second's worth is
    sent too, and the next ones wait for longer.
    """

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._left = float(rate)
        self._at = now

    def has_some(self, now: float) -> bool:
        """Whether a request may pass at `now` (seconds)."""
        if now > self._at:
            self._left = min(self._left + (now - self._at) * self.rate, float(self.rate))
            self._at = now
        return self._left > 0

    def take(self, amount: int) -> None:
        self._left -= amount


class Meter:
    """Bytes and messages of one user or topic."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, bytes_per_second: int | None, messages_per_second: int | None, now: float) -> None:
        self._bytes = None if bytes_per_second is None else Bucket(bytes_per_second, now)
        self._messages = None if messages_per_second is None else Bucket(messages_per_second, now)

    def has_some(self, now: float) -> bool:
        return (self._bytes is None or self._bytes.has_some(now)) and (
            self._messages is None or self._messages.has_some(now)
        )

    def take(self, size: int, messages: int) -> None:
        if self._bytes is not None:
            self._bytes.take(size)
        if self._messages is not None:
            self._messages.take(messages)
