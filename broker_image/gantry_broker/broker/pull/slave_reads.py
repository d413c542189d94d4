"""Reads from slaves: a consumer with a long backlog is sent to a slave, as with RocketMQ's `slaveReadEnable`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Got

FETCHES_MS: Final = 5_000
"""A slave that has not fetched for this long serves no reads."""


class SlaveReads:
    """Decide from which member a consumer should pull next."""

    def __init__(
        self, settings: BrokerSettings, store: MessageStore, replication: ReplicationService, memory: int
    ) -> None:
        """`memory`: bytes that this process may use."""
        self._settings = settings
        self._store = store
        self._replication = replication
        self._memory = memory

    def far_behind(self, got: Got) -> bool:
        """Whether a reader's backlog is larger than the memory that is expected to hold it."""
        return self.backlog_bytes(got) > self._memory * self._settings.accessMessageInMemoryMaxRatio // 100

    def backlog_bytes(self, got: Got) -> int:
        """Bytes of log between the last read record and the confirmed end."""
        if not got.data:
            return 0
        last = int.from_bytes(got.data[28:36], "big")
        return max(self._store.state.confirmed - last, 0)

    def slave_for(self, preferred: int, got: Got) -> int:
        """Return `preferred` if that slave is in sync and fetches, else the brokerId of another such slave, else 0."""
        status: dict[str, Any] = self._replication.status_fields()
        alive = [f.member.member + 1 for f in status["followers"] if f.in_sync and f.last_fetch_ms < FETCHES_MS]
        if preferred in alive:
            return preferred
        return min(alive, default=0)
