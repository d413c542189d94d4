"""The collaborators that the handlers of requests and the HTTP pages use: a record without behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.archive_fill import ArchiveFill
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.broker.dead_letters import DeadLetters
    from gantry_broker.broker.disk_forecast import DiskForecast
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.locks import QueueLocks
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.live_settings import LiveSettings
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.service import PopService
    from gantry_broker.broker.pull.checks import Pull
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.pull.held import HeldPulls
    from gantry_broker.broker.pull.service import PullService
    from gantry_broker.broker.registrar import Registrar
    from gantry_broker.broker.retention import LogRetention, TopicRetention
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.sites import Sites
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.broker.topic_routes import TopicRoutes
    from gantry_broker.broker.transactions import Transactions
    from gantry_broker.config import BrokerConfig
    from gantry_broker.loopwatch import LoopWatch
    from gantry_broker.remoting.connection import Shared
    from gantry_broker.remoting.tls_ports import PortsTls
    from gantry_broker.replication.log_repair import LogRepair
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """One member's parts. `wiring.py` builds it. A module of handlers names those that it uses in its `Parts`, and
    gets no others.
    """

    config: BrokerConfig
    settings: BrokerSettings
    """The settings in use; they change while the broker runs."""
    clock: Clock
    started_ms: int
    """Start of the process, Unix ms."""

    store: MessageStore
    store_host_hex: str
    """The begin of message ids: packed address and port in upper-case hexadecimal."""
    delay_levels: Sequence[int]
    """Milliseconds of each delay level, level 1 first."""
    writer: LogWriter
    compaction: Compaction
    retention: LogRetention
    topic_retention: TopicRetention
    log_repair: LogRepair
    archiving: Archiving
    archive_reads: ArchiveReads
    archive_fill: ArchiveFill
    sites: Sites

    replication: ReplicationService
    registrar: Registrar
    role: RoleState
    health: MemberHealth

    meta: Metadata
    changes: MetadataChanges
    creation: OnDemandCreation
    live_settings: LiveSettings

    access: AccessControl
    clients: ClientTable
    notifier: GroupNotifier
    locks: QueueLocks
    next_opaque: Callable[[], int]
    """Opaques of one-way requests to clients."""

    filters: Filters
    held: HeldPulls[Pull]
    pulls: PullService
    routes: TopicRoutes
    transactions: Transactions
    pop: PopService
    timers_waiting: Callable[[], int]
    """How many timer messages wait."""

    stats: Stats
    counts: MessageCounts
    latencies: Latencies
    dead_letters: DeadLetters
    disk: DiskWatch
    disk_forecast: DiskForecast
    slices: TimeSlices
    """Turns for costly work on the event loop."""
    loop_watch: LoopWatch
    shared: Shared
    """Limits and counts of the connections of all clients' ports."""
    tls: PortsTls
    http_port: Callable[[], int]
    """The HTTP port, once it is bound."""
