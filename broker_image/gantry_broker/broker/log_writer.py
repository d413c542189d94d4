"""The broker's own appends: control records, retries, delayed messages, decisions on transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gantry_broker.broker.errors import NotWritable
from gantry_broker.protocol.codes import SendStatus

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Put, Stored


class LogWriter:
    """Appends to the log while this member may, and passes the records to replication."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        replication: ReplicationService,
        role: RoleState,
        health: MemberHealth,
        clock: Clock,
    ) -> None:
        self._settings = store.config.settings
        self._sync_flush = config.flush == "Sync"
        self._store = store
        self._role = role
        self._clock = clock
        self._store_took = health.store_took
        self._replicate = replication.appended
        self._add_waiter = replication.add_waiter

    def append(self, puts: list[Put]) -> list[Stored]:
        """Append a batch; the caller calls `appended` afterwards. Raises NotWritable and StoreError."""
        if not self._role.may_append:
            raise NotWritable(self._role.refusal())
        stored = self._store.appender.put(puts, self._clock.unix_ms())
        self._store_took()
        return stored

    def appended(self, on_status: Callable[[SendStatus], None] | None) -> None:
        """Replicates the appended records; `on_status` gets the result once all copies exist, or after the timeout."""
        end = self._store.log.end
        self._replicate(end)
        if on_status is not None:
            settings = self._settings
            timeout = settings.slaveTimeout
            if self._sync_flush:
                timeout = max(timeout, settings.syncFlushTimeout)
            self._add_waiter(end, on_status, timeout)
