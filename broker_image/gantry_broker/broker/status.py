"""The member's status, from replication, store and broker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from gantry_broker.broker.archiving import archive_status
from gantry_broker.broker.metadata.tables import DRAIN, JOINED, RELEASED
from gantry_broker.contracts.models import AccessStatus, DiskStatus, GroupMarks, MemberStatus, Rates
from gantry_broker.version import VERSION

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.dead_letters import DeadLetters
    from gantry_broker.broker.disk_forecast import DiskForecast
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.registrar import Registrar
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.sites import Sites
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.tls_ports import PortsTls
    from gantry_broker.replication.service import ReplicationService


class Parts(Protocol):
    """What the status tells of a member."""

    config: BrokerConfig
    clock: Clock
    started_ms: int
    archiving: Archiving
    archive_reads: ArchiveReads
    sites: Sites
    registrar: Registrar
    replication: ReplicationService
    role: RoleState
    health: MemberHealth
    meta: Metadata
    access: AccessControl
    stats: Stats
    dead_letters: DeadLetters
    disk: DiskWatch
    disk_forecast: DiskForecast
    tls: PortsTls


def member_status(broker: Parts, connections: int) -> MemberStatus:
    """Return the status of the member. `connections`: open connections of clients."""
    config = broker.config
    fields = broker.replication.status_fields()
    usage = broker.disk.usage
    if broker.health.disk_full and not fields["reason"]:
        fields["reason"] = "the disk is full: sends are refused, reads go on"
    if not broker.role.takes_writes and not fields["reason"]:
        fields["reason"] = broker.role.site.refusal()
    if broker.role.site.is_standby:
        fields["reason"] = broker.sites.reason
    fields["writable"] = broker.role.takes_writes and bool(fields["writable"]) and not broker.health.disk_full
    marks, now = broker.meta.confirmed.marks, broker.clock.now_ms()
    return MemberStatus(
        cluster=config.own_cluster,
        group=config.own_group,
        name=config.name,
        not_promotable=broker.health.not_promotable,
        disk=DiskStatus(
            total_bytes=0 if usage is None else usage.total,
            free_bytes=0 if usage is None else usage.free,
            full=broker.health.disk_full,
            full_in_s=-1 if broker.disk_forecast.full_in_s is None else broker.disk_forecast.full_in_s,
        ),
        dead_letters=broker.dead_letters.total,
        certificates=broker.tls.expiry(),
        access=AccessStatus(version=broker.access.version, changes=len(broker.access.changes)),
        marks=GroupMarks(drain=marks.get(DRAIN, ""), joined=JOINED in marks, released=RELEASED in marks),
        archive=archive_status(broker.sites.report or broker.archiving.report, broker.archive_reads),
        site=broker.sites.status(),
        rates=Rates(
            messages_in=broker.stats.tps("BROKER_PUT_NUMS", config.cluster, now),
            bytes_in=broker.stats.tps("BROKER_PUT_SIZE", config.cluster, now),
            messages_out=broker.stats.tps("BROKER_GET_NUMS", config.cluster, now),
        ),
        connections=connections,
        name_servers=broker.registrar.links(),
        address=broker.role.address,
        pid=os.getpid(),
        started_ms=broker.started_ms,
        release=VERSION,
        **fields,
    )
