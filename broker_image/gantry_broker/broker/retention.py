"""Retention of the log: the broker's limits on what the store may remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.broker.delay import WaitingMessages

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore


class LogRetention:
    """Removes expired segments that no follower needs."""

    def __init__(self, store: MessageStore, meta: Metadata, replication: ReplicationService, clock: Clock) -> None:
        self._store = store
        self._meta = meta
        self._replication = replication
        self._clock = clock
        self._waiting = WaitingMessages(store, meta)

    def expire(self) -> bool:
        """Keeps unconfirmed records, those that a fetching follower has not acknowledged, and messages that wait for
        their delivery.

        Returns True when it did nothing yet, because it has to look for the latter in another step.
        """
        complete, waiting = self._waiting.lowest()
        if not complete:
            return True
        store = self._store
        keep = min(store.confirmed, self._replication.needed_from())
        start = store.expire(self._clock.unix_ms(), keep if waiting is None else min(keep, waiting))
        self._meta.forget_deletions(start)
        return False
