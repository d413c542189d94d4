"""Whether this member should lead: room on its disk, a working disk, NameServers that answer.

The operator reads `not_promotable` and promotes a better member. A failed disk ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from gantry_broker.store.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

ROOM_CHECK_S: Final = 1.0
ROOM_BYTES: Final = 8 << 20
"""Free bytes at which a disk that was full counts as having room."""
HAND_OVER_S: Final = 5.0
"""Seconds that a leader with a failed disk waits for another leader."""
DRAIN_S: Final = 2.0
"""Seconds that it then forwards before its process ends."""
ALONE_S: Final = 10.0
"""Seconds after which a lack of NameServers counts. A leader without an answering NameServer stays promotable for a
registration period and this long: every other member has tried once by then. A slave that had none for this long
becomes promotable only this long after a NameServer answers again. So if no member has a NameServer, none is better
than the others, and the role stays.
"""


class MemberHealth:
    """The health of one broker, owned by its event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        disk: DiskWatch,
        replication: ReplicationService,
        role: RoleState,
        events: Events,
    ) -> None:
        self.disk_full = False
        self.must_end = asyncio.Event()
        """The disk failed. Only a new process that opens the store again can continue."""
        self.stopping = False
        self._config = config
        self._settings = store.config.settings
        self._store = store
        self._disk = disk
        self._full_at = 0.0
        """When the store last refused a batch for lack of room, by the monotonic clock."""
        self._replication = replication
        self._role = role
        self._role_changed = events.role_changed
        self._status_changed = events.status_changed
        self._loop = asyncio.get_running_loop()
        self._next_check: asyncio.TimerHandle | None = None
        self._alone_since: float | None = None
        """Since when no NameServer answers, by the loop's clock."""
        self._alone_until = 0.0
        """Until this time the member counts as not answered, though a NameServer answers again."""
        store.state.on_failed = self._store_failed_for_good

    @property
    def not_promotable(self) -> str:
        """The reason for which another member should lead; empty: none."""
        if self.stopping:
            return "it stops"
        if self.disk_full:
            return "its disk is full"
        if self._store.state.failed is not None:
            return f"its disk failed: {self._store.state.failed}"
        return "no NameServer answers it" if self._is_alone() else ""

    # ---- the disk

    def store_failed(self, error: StoreError) -> None:
        """Note that the store refused a batch."""
        if isinstance(error, StoreFull):
            self._full_at = time.monotonic()
        if isinstance(error, StoreFull) and not self.disk_full:
            self.disk_full = True
            log.error("the disk is full: sends are refused until there is room: %s", error)
            self._check_later()
            self._status_changed()
        elif not isinstance(error, StoreFull):
            log.error("the store refused a batch: %s", error)

    def store_took(self) -> None:
        """Note that the store took a batch."""
        if self.disk_full:
            self.disk_full = False
            log.info("there is room on the disk again: sends are accepted")
            self._status_changed()

    def _check_later(self) -> None:
        """Schedules one check at a time, however often the disk is full and has room again."""
        if self._next_check is None:
            self._next_check = self._loop.call_later(ROOM_CHECK_S, self._check_room)

    def _check_room(self) -> None:
        """Check the room on the disk: a member that does not lead gets no send that would show it."""
        self._next_check = None
        usage = self._disk.since(self._full_at)
        if self.disk_full and not self._role.leading and usage is not None and usage.free >= ROOM_BYTES:
            self.store_took()
        if self.disk_full:
            self._disk.refresh()
            self._check_later()

    def _store_failed_for_good(self) -> None:
        self._loop.call_soon(self._disk_failed)

    def _disk_failed(self) -> None:
        """End the process, after a handover if possible: records that Async acknowledged may be on no other member."""
        replication, config = self._replication, self._config
        self._status_changed()
        replication.disk_failed()
        others = replication.core.leadership.in_sync - {replication.me}
        if not (self._role.leading and others) or config.flush == "Sync" or config.mode == "Raft":
            self.must_end.set()  # With flush: Sync no follower can get records that are not on disk.
            return
        self._loop.call_later(HAND_OVER_S, self.must_end.set)
        self._role_changed.subscribe(lambda leads: None if leads else self._end_soon())

    def _end_soon(self) -> None:
        self._loop.call_later(DRAIN_S, self.must_end.set)

    # ---- NameServers

    def name_servers_answer(self, any_of_them: bool) -> None:
        """Note the result of each registration: without routes, new clients do not find the leader."""
        now, since = self._loop.time(), self._alone_since
        if any_of_them and since is not None and now - since >= ALONE_S:
            self._alone_until = now + ALONE_S
        self._alone_since = None if any_of_them else since or now
        if (since is None) != any_of_them:
            self._status_changed()

    def _is_alone(self) -> bool:
        now, since = self._loop.time(), self._alone_since
        if not self._role.leading:
            return since is not None or now < self._alone_until
        patience = self._settings.registerNameServerPeriod / 1000 + ALONE_S
        return since is not None and now - since >= patience
