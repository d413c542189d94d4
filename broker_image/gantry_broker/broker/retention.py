"""Retention of the log: the broker's limits on what the store may remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def expire(self) -> None:
        """Keeps unconfirmed records, and the records that a fetching follower has not acknowledged."""
        store = self._store
        start = store.expire(self._clock.unix_ms(), min(store.confirmed, self._replication.needed_from()))
        self._meta.forget_deletions(start)
