"""Renewal of invisible times for push consumers: while a client works on a message, no other one gets it.

`Renewals` decides: which handle is renewed when and for how long, and which one a client means by an older one. Time is
an argument. A handle counts until its client acknowledges it, says goodbye or is not seen any more.

A handle does not name its consumer group. Two groups that pop a message in the same millisecond get the same handle, so
only group, topic and handle together stand for one delivery.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

FIRST_MS: Final = 60_000
"""The invisible time of messages that are renewed."""
STEPS_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
"""The next invisible times: longer and longer."""
AHEAD_MS: Final = 10_000
"""A handle is renewed so long before it expires."""
AGAIN_MS: Final = 1_000
"""The pause after a failed renewal."""
LONGEST_MS: Final = 3 * 3_600_000
"""After so long the client gets no more time: the message goes to another one."""
MAX_HANDLES: Final = 500_000

Key = tuple[str, str, str]
"""Group, topic, and the handle that the client has."""


@dataclass(slots=True, eq=False)
class Held:
    """A message that a client works on."""

    client: Hashable
    group: str
    topic: str
    handle: str
    """The present one, which the client does not know."""
    given: str
    """The one that the client has."""
    expires_ms: int
    since_ms: int
    attempt: int = 1
    """The number of this delivery."""
    renewed: int = 0
    busy: bool = False
    """A renewal is under way."""
    done: bool = False
    failed: int = 0

    @property
    def key(self) -> Key:
        return self.group, self.topic, self.given


@dataclass(slots=True)
class Due:
    """A renewal to make."""

    held: Held
    invisible_ms: int | None
    """None: the client gets no more time; the retry policy of its group says when another gets the message."""

    @property
    def last(self) -> bool:
        return self.invisible_ms is None


@dataclass(slots=True)
class Renewals:
    """The messages of all push consumers of this process."""

    _by_key: dict[Key, Held] = field(default_factory=dict)
    _by_client: dict[Hashable, set[Held]] = field(default_factory=dict)
    _times: list[tuple[int, int, Held]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    made: int = 0
    failures: int = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def add(
        self, client: Hashable, group: str, topic: str, handle: str, expires_ms: int, now_ms: int, attempt: int = 1
    ) -> None:
        """Note that a client got a message. Times: milliseconds of a clock that never steps."""
        held = Held(client, group, topic, handle, handle, expires_ms, now_ms, attempt)
        if len(self._by_key) >= MAX_HANDLES or held.key in self._by_key:
            return
        self._by_key[held.key] = held
        self._by_client.setdefault(client, set()).add(held)
        self._schedule(held, expires_ms - AHEAD_MS)

    def find(self, group: str, topic: str, handle: str) -> Held | None:
        """Return the message for which the client got this handle."""
        return self._by_key.get((group, topic, handle))

    def remove(self, group: str, topic: str, handle: str) -> Held | None:
        """Renew the message no more: the client is done with it."""
        held = self._by_key.pop((group, topic, handle), None)
        if held is None:
            return None
        held.done = True
        of_client = self._by_client.get(held.client)
        if of_client is not None:
            of_client.discard(held)
            if not of_client:
                del self._by_client[held.client]
        return held

    def client_gone(self, client: Hashable) -> list[Held]:
        """Remove all messages of a client, and return them: others shall get them soon."""
        return [held for held in list(self._by_client.get(client, ())) if self.remove(*held.key) is not None]

    def due(self, now_ms: int, most: int = 1_000) -> list[Due]:
        """Return renewals to make now; the caller reports their end by `renewed` or `failed`."""
        due_now: list[Due] = []
        times = self._times
        while times and times[0][0] <= now_ms and len(due_now) < most:
            _, _, held = heapq.heappop(times)
            if held.done or held.busy:
                continue
            if now_ms >= held.expires_ms:
                self.remove(*held.key)  # too late: somebody else gets it
                continue
            held.busy = True
            if now_ms - held.since_ms >= LONGEST_MS:
                due_now.append(Due(held, None))
            else:
                due_now.append(Due(held, STEPS_MS[min(held.renewed, len(STEPS_MS) - 1)]))
        return due_now

    def renewed(self, due: Due, handle: str, expires_ms: int) -> None:
        held = due.held
        held.busy = False
        held.handle, held.expires_ms = handle, expires_ms
        held.renewed += 1
        held.failed = 0
        self.made += 1
        if due.last:
            self.remove(*held.key)
        elif not held.done:
            self._schedule(held, expires_ms - AHEAD_MS)

    def failed(self, due: Due, now_ms: int, *, final: bool) -> None:
        """Note a failed renewal. `final`: the broker refused the handle; others are tried until the message expires."""
        held = due.held
        held.busy = False
        held.failed += 1
        self.failures += 1
        if final:
            self.remove(*held.key)
        elif not held.done:
            self._schedule(held, min(now_ms + AGAIN_MS * held.failed, max(held.expires_ms - 500, now_ms + 200)))

    def _schedule(self, held: Held, at_ms: int) -> None:
        heapq.heappush(self._times, (at_ms, next(self._numbers), held))
