"""The parts of one member in rooms, each a record without behaviour, in the order in which `wiring.py` builds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.after_confirm import AfterConfirm
    from gantry_broker.broker.archive_fill import ArchiveFill
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.broker.dead_letters import DeadLetters
    from gantry_broker.broker.delay import Delays
    from gantry_broker.broker.disk_forecast import DiskForecast
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.group_notifier import GroupNotifier
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.locks import QueueLocks
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.live_settings import LiveSettings
    from gantry_broker.broker.metadata.replay import Replay
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.service import PopService
    from gantry_broker.broker.pull.checks import Pull
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.pull.held import HeldPulls
    from gantry_broker.broker.pull.service import PullService
    from gantry_broker.broker.registrar import Registrar
    from gantry_broker.broker.retention import LogRetention, TopicRetention
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.send.sender import Sender
    from gantry_broker.broker.site import Site
    from gantry_broker.broker.sites import Sites
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.broker.topic_routes import TopicRoutes
    from gantry_broker.broker.transactions import Transactions
    from gantry_broker.config import BrokerConfig
    from gantry_broker.loopwatch import LoopWatch
    from gantry_broker.remoting.budget import RemotingBudget
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.connection import Shared
    from gantry_broker.remoting.members import Membership
    from gantry_broker.remoting.tls_ports import PortsTls
    from gantry_broker.replication.log_repair import LogRepair
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices


@dataclass(kw_only=True)
class Given:
    """What the process begins with."""

    config: BrokerConfig
    settings: BrokerSettings
    """The settings in use; they change while the broker runs."""
    store: MessageStore
    store_host: bytes
    """Address and port of message ids, packed."""
    delay_levels: Sequence[int]
    """Milliseconds of each delay level, level 1 first."""
    client: RemotingClient
    """To members of the cluster, and to NameServers."""
    source: RemotingClient
    """To RocketMQ's NameServers of a migrated cluster."""
    membership: Membership
    tls: PortsTls
    site: Site
    """The part of its cluster in a pair of sites."""


@dataclass(kw_only=True)
class Basics:
    """Clock, events, and the limits of what the process holds."""

    clock: Clock
    events: Events
    started_ms: int
    """Start of the process, Unix ms."""
    memory: int
    """Bytes that the process may use."""
    budget: RemotingBudget
    loop_watch: LoopWatch
    slices: TimeSlices
    """Turns for costly work on the event loop."""
    shared: Shared
    """Limits and counts of the connections of all clients' ports."""


@dataclass(kw_only=True)
class OfClients:
    """What is known of clients."""

    clients: ClientTable
    locks: QueueLocks
    filters: Filters
    access: AccessControl
    held: HeldPulls[Pull]
    next_opaque: Callable[[], int]
    """Opaques of one-way requests to clients."""


@dataclass(kw_only=True)
class Counts:
    """What is counted and measured."""

    stats: Stats
    counts: MessageCounts
    latencies: Latencies
    disk: DiskWatch
    disk_forecast: DiskForecast


@dataclass(kw_only=True)
class Tables:
    """The tables, and what follows when records are confirmed."""

    meta: Metadata
    dead_letters: DeadLetters
    replay: Replay
    confirmed: AfterConfirm


@dataclass(kw_only=True)
class Replicated:
    """Replication and the role."""

    replication: ReplicationService
    log_repair: LogRepair
    role: RoleState
    health: MemberHealth
    registrar: Registrar


@dataclass(kw_only=True)
class Changing:
    """What writes to the log, and through it changes the tables."""

    writer: LogWriter
    changes: MetadataChanges
    live_settings: LiveSettings
    creation: OnDemandCreation


@dataclass(kw_only=True)
class Kept:
    """What keeps records, elsewhere too, and what lets go of them."""

    archiving: Archiving
    sites: Sites
    archive_reads: ArchiveReads
    archive_fill: ArchiveFill
    compaction: Compaction
    retention: LogRetention
    topic_retention: TopicRetention


@dataclass(kw_only=True)
class Services:
    """What clients' requests are carried out with."""

    transactions: Transactions
    delays: Delays
    notifier: GroupNotifier
    sender: Sender
    pulls: PullService
    pop: PopService
    routes: TopicRoutes


@dataclass(kw_only=True)
class BrokerContext(Given, Basics, OfClients, Counts, Tables, Replicated, Changing, Kept, Services):
    """The parts of all rooms. A module of handlers names those that it uses in its `Parts`, and gets no others."""

    http_port: Callable[[], int]
    """The HTTP port, once it is bound."""
