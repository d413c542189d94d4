"""The member's role: whether it leads, whether it may append, and the address that clients use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gantry_broker.broker.site import Site
from gantry_broker.replication.core import Role
from gantry_broker.replication.service import ReplicationService

if TYPE_CHECKING:
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.locks import QueueLocks
    from gantry_broker.broker.metadata.replay import Replay
    from gantry_broker.config import BrokerConfig

log = logging.getLogger(__name__)


class RoleState:
    """The role as clients see it; it follows the role of replication."""

    def __init__(
        self, config: BrokerConfig, replication: ReplicationService, replay: Replay, locks: QueueLocks, events: Events
    ) -> None:
        self.leading = False
        """This member leads, and its tables are the leader's."""
        self.draining = False
        """A moment after a handover: pulls without messages are held until their connection ends, which is soon."""
        self.has_stale_clients = False
        """A short time after a handover, in which clients still use old connections or the old route to the leader."""
        self.address_lost = False
        """Nothing answers at the group's address while this member leads."""
        self.site = Site()
        """The part of the cluster in a pair of sites."""
        self.takes_writes = True
        """False: the cluster is a standby, hands over, or was superseded by another site."""
        self._config = config
        self._replication = replication
        self._replay = replay
        self._locks = locks
        self._events = events
        self._epoch = -1

    @property
    def epoch(self) -> int:
        """The epoch in which this member leads; -1: it does not."""
        return self._epoch

    @property
    def may_append(self) -> bool:
        return self.leading and self._replication.may_append and self.takes_writes

    @property
    def serves(self) -> bool:
        """Whether readers may take this member for the group's master: it leads, or its cluster is a standby."""
        return self.leading or self.site.is_standby

    @property
    def epoch_confirmed(self) -> bool:
        """False: a new leader does not know yet how far its log is confirmed (rule 9)."""
        return self._replication.epoch_confirmed

    @property
    def broker_id(self) -> int:
        """RocketMQ's brokerId: 0 for the leader, else the member's number + 1. A standby has no leader: its first
        member stands in for it, for clients that read.
        """
        stands_in = self.site.is_standby and self._config.member == 0
        return 0 if self.leading or stands_in else self._config.member + 1

    @property
    def address(self) -> str:
        """The "host:port" at which clients reach this member in its present role."""
        return self._config.group_address if self.at_group_address else self._config.member_address

    @property
    def at_group_address(self) -> bool:
        """Whether clients reach this member at the group's address."""
        return self.leading and not self.address_lost

    def refusal(self) -> str:
        """Return the reason for the refusal of a write."""
        if not self.takes_writes:
            return self.site.refusal()
        if self._replication.writes_paused:
            return "service not available now: the group hands over to another master, send again"
        role, name = self._replication.role, self._config.name
        if role is Role.SLAVE:
            return f"service not available now: {name} is a slave, send to the master"
        return f"service not available now: {name} waits for its role ({self._replication.core.reason})"

    def take_site(self, site: Site) -> None:
        """Follows what the control plane says of the sites."""
        self.site = site
        self.takes_writes = not site.refusal()
        self._events.tables_changed()
        self._events.role_changed(self.leading)
        self._events.status_changed()

    def changed(self) -> None:
        """Follows replication after its role or `may_append` changed.

        Raises as `Replay.lead`. The role is not taken then, and replication calls again.
        """
        leads = self._replication.role is Role.MASTER
        epoch = self._replication.epoch
        if leads and epoch != self._epoch:
            # The tables first: writes that are taken before them would be checked against a follower's.
            self._replay.lead()
            self._locks.clear()
            self._epoch, self.leading = epoch, True
            log.info("master of %s in epoch %d", self._config.group, epoch)
        elif not leads and self.leading:
            self.leading = False
            self._epoch = -1
            self._replay.follow()
            reason = self._replication.core.reason or "follows"
            log.info("no longer master of %s: %s", self._config.group, reason)
        self._events.tables_changed()
        self._events.role_changed(leads)
        self._events.status_changed()
