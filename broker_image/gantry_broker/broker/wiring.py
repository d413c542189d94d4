"""Build all parts of one broker, group after group. Nothing here starts anything.

Each part names in its constructor what it needs. Parts that react to each other do so over `Events`, which exist before
all of them. A part that calls one that is built later gets it as an attribute once that exists, as `wake_pulls`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from gantry_broker import descriptors
from gantry_broker.admission import owners_of
from gantry_broker.broker.access_control import AccessControl
from gantry_broker.broker.after_confirm import AfterConfirm
from gantry_broker.broker.archive_fill import ArchiveFill
from gantry_broker.broker.archive_reads import ArchiveReads
from gantry_broker.broker.archiving import Archiving
from gantry_broker.broker.clients import ClientTable
from gantry_broker.broker.clock import Clock
from gantry_broker.broker.compaction import LOOK_MS, Compaction
from gantry_broker.broker.dead_letters import DeadLetters
from gantry_broker.broker.delay import Delays
from gantry_broker.broker.disk_forecast import FORECAST_MS, DiskForecast
from gantry_broker.broker.disk_watch import REFRESH_MS, DiskWatch
from gantry_broker.broker.dispatch import Dispatcher
from gantry_broker.broker.events import Events
from gantry_broker.broker.forward import Forwarder
from gantry_broker.broker.group_address import GroupAddress
from gantry_broker.broker.group_notifier import GroupNotifier, opaque_numbers
from gantry_broker.broker.handlers.table import handlers_of
from gantry_broker.broker.health import MemberHealth
from gantry_broker.broker.http.app import HttpServer
from gantry_broker.broker.latencies import Latencies
from gantry_broker.broker.locks import QueueLocks
from gantry_broker.broker.log_writer import LogWriter
from gantry_broker.broker.member_requests import MemberRequests
from gantry_broker.broker.metadata.base import base_tables
from gantry_broker.broker.metadata.changes import MetadataChanges
from gantry_broker.broker.metadata.creation import OnDemandCreation
from gantry_broker.broker.metadata.creation_limits import max_links
from gantry_broker.broker.metadata.live_settings import LiveSettings
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.snapshot_writer import SnapshotWriter
from gantry_broker.broker.metadata.tables import Metadata
from gantry_broker.broker.periodic_tasks import PeriodicTask, PeriodicTasks
from gantry_broker.broker.pop.service import PopService
from gantry_broker.broker.ports import Ports
from gantry_broker.broker.processing import RequestProcessor
from gantry_broker.broker.pull.checks import PullChecks
from gantry_broker.broker.pull.filters import Filters, most_bytes
from gantry_broker.broker.pull.held import HeldPulls
from gantry_broker.broker.pull.service import PullService
from gantry_broker.broker.pull.slave_reads import SlaveReads
from gantry_broker.broker.registrar import Registrar
from gantry_broker.broker.relay import RelayedClients, Relays
from gantry_broker.broker.retention import LogRetention, TopicRetention
from gantry_broker.broker.role import RoleState
from gantry_broker.broker.send.large_batches import LargeBatches
from gantry_broker.broker.send.sender import Sender
from gantry_broker.broker.site import Site
from gantry_broker.broker.sites import Sites
from gantry_broker.broker.stats import MessageCounts, Stats
from gantry_broker.broker.topic_routes import TopicRoutes
from gantry_broker.broker.transactions import Transactions
from gantry_broker.loopwatch import LoopWatch
from gantry_broker.protocol.codes import GantryCode
from gantry_broker.remoting.budget import memory_limit, remoting_budget
from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.tls_ports import PortsTls
from gantry_broker.replication.log_repair import LogRepair, answering
from gantry_broker.replication.service import ReplicationService
from gantry_broker.store.log.record_reader import delay_table
from gantry_broker.timeslice import TimeSlices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantry_broker.broker.pull.checks import Pull
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.budget import RemotingBudget
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.members import Membership
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore

OFFSETS_AT_ONCE = 8_192
"""Queues whose offsets one step writes, in some 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What the process starts and stops: ports, HTTP, periodic tasks. `context` has all other parts."""

    context: BrokerContext
    forwarder: Forwarder
    relays: Relays
    relayed: RelayedClients
    processor: RequestProcessor
    dispatcher: Dispatcher
    ports: Ports
    group_address: GroupAddress
    snapshots: SnapshotWriter
    tasks: PeriodicTasks
    http: HttpServer


def wire(
    config: BrokerConfig,
    store: MessageStore,
    store_host: bytes,
    client: RemotingClient,
    membership: Membership,
    tls: PortsTls | None = None,
    source: RemotingClient | None = None,
    site: Site | None = None,
) -> BrokerParts:
    """Build one broker in the running event loop. The parameters are what `Given` says; without `source`, `client` is
    the one to all NameServers.
    """
    settings = store.config.settings
    given = Given(
        config=config,
        settings=settings,
        store=store,
        store_host=store_host,
        delay_levels=delay_table(settings.messageDelayLevel),
        client=client,
        source=source or client,
        membership=membership,
        tls=tls or PortsTls(None, None),
        site=site or Site(),
    )
    basics = _basics(given)
    clients = _of_clients(given, basics)
    counts = _counts(given, basics)
    tables = _tables(given, basics, clients)
    replicated = _replicated(given, basics, clients, counts, tables)
    changing = _changing(given, basics, tables, replicated)
    kept = _kept(given, basics, clients, counts, tables, replicated, changing)
    services = _services(given, basics, clients, counts, tables, replicated, changing, kept)
    groups = (given, basics, clients, counts, tables, replicated, changing, kept, services)
    by_name = {name: part for group in groups for name, part in vars(group).items()}
    parts = _servers(BrokerContext(**by_name, http_port=lambda: parts.http.port))
    return parts


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
    """The part of its cluster in a pair of sites at the start; `role.site` is the present one."""


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


def _basics(given: Given) -> Basics:
    clock, events = Clock(), Events()
    started_ms = clock.unix_ms()
    settings = given.settings
    memory = memory_limit(given.config.memory_limit_bytes)
    budget = remoting_budget(memory, min(settings.maxConnections, descriptors.budget().remoting))
    loop_watch, slices = LoopWatch(), TimeSlices()
    shared = Shared(budget, lambda: settings.maxConnectionsPerAddress, slices)
    slices.on_ran = loop_watch.holds.ran
    return Basics(
        clock=clock, events=events, started_ms=started_ms, memory=memory, budget=budget, loop_watch=loop_watch,
        slices=slices, shared=shared,
    )  # fmt: skip


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


def _of_clients(given: Given, basics: Basics) -> OfClients:
    return OfClients(
        clients=ClientTable(max_links(basics.memory)),
        locks=QueueLocks(),
        filters=Filters(most_bytes(basics.memory)),
        access=AccessControl(given.config, given.store),
        held=HeldPulls(owners=lambda pull: owners_of(pull.conn)),
        next_opaque=opaque_numbers(),
    )


@dataclass(kw_only=True)
class Counts:
    """What is counted and measured."""

    stats: Stats
    counts: MessageCounts
    latencies: Latencies
    disk: DiskWatch
    disk_forecast: DiskForecast


def _counts(given: Given, basics: Basics) -> Counts:
    stats = Stats(basics.clock.now_ms())
    disk = DiskWatch(given.store)
    disk.refresh()
    return Counts(
        stats=stats,
        counts=MessageCounts(stats, given.config.cluster),
        latencies=Latencies(),
        disk=disk,
        disk_forecast=DiskForecast(),
    )


@dataclass(kw_only=True)
class Tables:
    """The tables, and what follows when records are confirmed."""

    meta: Metadata
    dead_letters: DeadLetters
    replay: Replay
    confirmed: AfterConfirm


def _tables(given: Given, basics: Basics, clients: OfClients) -> Tables:
    store = given.store
    meta = Metadata(base_tables(given.config, given.settings, len(given.delay_levels)))
    dead_letters = DeadLetters(meta, store.reader)
    replay = Replay(meta, store, basics.events.tables_changed)
    return Tables(meta=meta, dead_letters=dead_letters, replay=replay, confirmed=AfterConfirm(replay, clients.held))


@dataclass(kw_only=True)
class Replicated:
    """Replication and the role."""

    replication: ReplicationService
    log_repair: LogRepair
    role: RoleState
    health: MemberHealth
    registrar: Registrar


def _replicated(given: Given, basics: Basics, clients: OfClients, counts: Counts, tables: Tables) -> Replicated:
    """Return replication, which alone calls parts that are built after it: it changes nothing before it starts."""
    config, store, client, site, events = given.config, given.store, given.client, given.site, basics.events
    replay = tables.replay

    def epoch_body(epoch: int) -> bytes:
        body = {"kind": "epoch", "epoch": epoch, "group": config.group, "member": config.member}
        return orjson.dumps(body)

    replication = ReplicationService(
        config,
        store,
        client,
        epoch_body=epoch_body,
        on_confirmed=tables.confirmed.confirmed,
        on_role_change=lambda: role.changed(),
        on_change=events.status_changed,
        on_truncated=replay.was_truncated,
        on_store_error=lambda error: health.store_failed(error),
        standby=site.is_standby,
    )
    log_repair = _log_repair(store, client, replication, replay)
    replication.on_flushed = counts.latencies.flush.observe
    role = RoleState(config, replication, replay, clients.locks, events)
    role.site, role.takes_writes = site, not site.refusal()
    health = MemberHealth(config, store, counts.disk, replication, role, events)
    registrar = Registrar(
        config, given.settings, client, meta=tables.meta, replication=replication, role=role, health=health,
        events=events, clock=basics.clock, access=clients.access, source=given.source,
    )  # fmt: skip
    return Replicated(
        replication=replication, log_repair=log_repair, role=role, health=health, registrar=registrar
    )  # fmt: skip


def _log_repair(
    store: MessageStore, client: RemotingClient, replication: ReplicationService, replay: Replay
) -> LogRepair:
    """Return what repairs damage, connected to all that notices some."""
    log_repair = LogRepair(store, replication.peers, replay.repaired)
    replication.on_damaged_answer = log_repair.given_damaged
    replication.on_unreadable = log_repair.suspect
    store.state.on_damage = log_repair.suspect
    store.state.on_queue_damage = log_repair.suspect_queue
    client.register(GantryCode.READ_LOG, answering(log_repair, replication.follows_member))
    return log_repair


@dataclass(kw_only=True)
class Changing:
    """What writes to the log, and through it changes the tables."""

    writer: LogWriter
    changes: MetadataChanges
    live_settings: LiveSettings
    creation: OnDemandCreation


def _changing(given: Given, basics: Basics, tables: Tables, replicated: Replicated) -> Changing:
    config, settings, store, meta = given.config, given.settings, given.store, tables.meta
    clock, events, role, health = basics.clock, basics.events, replicated.role, replicated.health
    writer = LogWriter(config, store, replicated.replication, role, health, clock)
    changes = MetadataChanges(
        meta, store, given.store_host, writer=writer, role=role, health=health, registrar=replicated.registrar,
        events=events, clock=clock,
    )  # fmt: skip
    return Changing(
        writer=writer,
        changes=changes,
        live_settings=LiveSettings(config.settings, settings, meta, changes, role, events),
        creation=OnDemandCreation(
            settings, meta, changes, role=role, health=health, slices=basics.slices, clock=clock
        ),
    )  # fmt: skip


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


def _kept(
    given: Given,
    basics: Basics,
    clients: OfClients,
    counts: Counts,
    tables: Tables,
    replicated: Replicated,
    changing: Changing,
) -> Kept:
    config, store, meta, disk = given.config, given.store, tables.meta, counts.disk
    clock, events, changes = basics.clock, basics.events, changing.changes
    replication, role, health = replicated.replication, replicated.role, replicated.health
    archiving = Archiving(
        config, store, given.delay_levels, replication=replication, events=events, clock=clock, site=lambda: role.site
    )
    sites = Sites(
        config, store, replication=replication, role=role, health=health, archiving=archiving, changes=changes,
        events=events, clock=clock,
    )  # fmt: skip
    archive_reads = ArchiveReads(config, store, meta, clock, lambda: sites.state or archiving.state)
    archive_fill = ArchiveFill(config, store.log.segment_size)
    replication.old_records = archive_fill
    clients.access.stored_topics.archived = archive_reads.topic_of
    compaction = Compaction(
        store, given.store_host, disk, meta=meta, writer=changing.writer, role=role, health=health,
        confirmed=tables.confirmed, events=events, clock=clock,
    )  # fmt: skip
    replication.before_truncation = compaction.prepare
    return Kept(
        archiving=archiving,
        sites=sites,
        archive_reads=archive_reads,
        archive_fill=archive_fill,
        compaction=compaction,
        retention=LogRetention(store, disk, meta, replication, archiving, archive_reads, compaction, clock),
        topic_retention=TopicRetention(store, meta, changes, role, health, archive_reads, clock),
    )


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


def _services(
    given: Given,
    basics: Basics,
    clients: OfClients,
    counts: Counts,
    tables: Tables,
    replicated: Replicated,
    changing: Changing,
    kept: Kept,
) -> Services:
    config, settings, store, store_host = given.config, given.settings, given.store, given.store_host
    meta, confirmed, stats = tables.meta, tables.confirmed, counts.stats
    clock, events, slices = basics.clock, basics.events, basics.slices
    role, health = replicated.role, replicated.health
    writer, changes, creation = changing.writer, changing.changes, changing.creation
    transactions = Transactions(
        config, store, store_host, given.delay_levels, meta=meta, writer=writer, creation=creation,
        clients=clients.clients, next_opaque=clients.next_opaque, role=role, confirmed=confirmed, events=events,
        clock=clock, may_decide=clients.access.may_decide, stats=stats,
    )  # fmt: skip
    delays = Delays(
        store, given.delay_levels, meta=meta, changes=changes, role=role, health=health, confirmed=confirmed,
        events=events, clock=clock, stats=stats,
    )  # fmt: skip
    notifier = GroupNotifier(clients.clients, meta, slices, clients.next_opaque)
    sender = Sender(
        config, store, store_host, given.delay_levels, meta=meta, creation=creation, role=role, writer=writer,
        health=health, counts=counts.counts, stats=stats, latencies=counts.latencies, slices=slices, events=events,
    )  # fmt: skip
    checks = PullChecks(settings, meta, role, filters=clients.filters, clients=clients.clients, creation=creation)
    pulls = PullService(
        store, meta, role, held=clients.held, filters=clients.filters, checks=checks,
        slave_reads=SlaveReads(settings, store, replicated.replication, basics.memory),
        archive_reads=kept.archive_reads, counts=counts.counts, latencies=counts.latencies, slices=slices, clock=clock,
    )  # fmt: skip
    confirmed.wake_pulls = pulls.wake
    pop = PopService(
        store, store_host, config.group, basics.memory, meta=meta, writer=writer, changes=changes, creation=creation,
        role=role, health=health, filters=clients.filters, confirmed=confirmed, archive_reads=kept.archive_reads,
        counts=counts.counts, stats=stats, events=events, slices=slices, clock=clock,
    )  # fmt: skip
    return Services(
        transactions=transactions,
        delays=delays,
        notifier=notifier,
        sender=sender,
        pulls=pulls,
        pop=pop,
        routes=TopicRoutes(config, given.client, meta, clock),
    )


@dataclass(kw_only=True)
class BrokerContext(Given, Basics, OfClients, Counts, Tables, Replicated, Changing, Kept, Services):
    """The parts of all groups. A module of handlers names those that it uses in its `Parts`; mypy refuses others."""

    http_port: Callable[[], int]
    """The HTTP port, once it is bound."""


def _servers(broker: BrokerContext) -> BrokerParts:
    """Return what takes requests, by all ports, and what the clock starts."""
    role, replication, access, pulls = broker.role, broker.replication, broker.access, broker.pulls
    large_batches = LargeBatches(
        broker.sender, broker.settings, role=role, writer=broker.writer, health=broker.health, stats=broker.stats,
        slices=broker.slices, clock=broker.clock,
    )  # fmt: skip
    buffered_bytes = broker.budget.buffered_bytes
    processor = RequestProcessor(broker, handlers_of(broker), broker.sender, large_batches, buffered_bytes)
    forwarder = Forwarder(role, replication, broker.client, processor.process, buffered_bytes)
    broker.events.role_changed.subscribe(lambda master: forwarder.role_changed())
    relays = Relays(
        broker.config, role, replication, broker.clients, broker.notifier, broker.membership, broker.tls.internal
    )
    relayed = RelayedClients(role, replication.refusals)
    relayed.settle, relayed.settle_pops = pulls.settle_all, broker.pop.settle
    dispatcher = Dispatcher(processor, forwarder, role, broker.clients, broker.notifier, access.gate, relays)
    # Who waits for a message may have lost the right to it: the client asks again, and is checked.
    access.on_changed += [pulls.settle_soon, broker.pop.settle, broker.registrar.soon, broker.events.status_changed]
    ports = Ports(
        broker.config, broker.settings, dispatcher=dispatcher,
        member_requests=MemberRequests(
            role, replication, broker.log_repair, processor.process, access.gate, relayed
        ),
        membership=broker.membership, shared=broker.shared, tls=broker.tls, forwarder=forwarder, relays=relays,
        relayed=relayed, pulls=pulls, role=role, replication=replication, events=broker.events,
    )  # fmt: skip
    group_address = GroupAddress(broker.config, role, broker.events, ports.used_within)
    http = HttpServer(broker, ports, broker.events.status_changed)
    snapshots = SnapshotWriter(broker.config.data_dir / "config", broker.meta, broker.store, broker.replay)
    return BrokerParts(
        context=broker,
        forwarder=forwarder,
        relays=relays,
        relayed=relayed,
        processor=processor,
        dispatcher=dispatcher,
        ports=ports,
        group_address=group_address,
        snapshots=snapshots,
        tasks=PeriodicTasks(_periodic_tasks(broker, snapshots), broker.clock),
        http=http,
    )


def _periodic_tasks(broker: BrokerContext, snapshots: SnapshotWriter) -> list[PeriodicTask]:
    """Return what the clock starts, each with its interval."""

    def expire_clients(now_ms: int) -> None:
        changed, silent = broker.clients.expire(now_ms)
        for group in changed:
            broker.notifier.group_changed(group)
        for conn in silent:
            conn.close()
        broker.locks.expire(now_ms)

    def flush_interval_ms() -> int:
        return broker.settings.flushConsumerOffsetInterval

    return [
        PeriodicTask("held pulls", lambda: 100, broker.pulls.expire),
        PeriodicTask("offsets", flush_interval_ms, lambda now: broker.changes.flush_offsets(OFFSETS_AT_ONCE)),
        PeriodicTask("tables in the log", lambda: 1_000, lambda now: broker.changes.write_tables()),
        PeriodicTask("POP state in the log", lambda: 1_000, lambda now: broker.pop.write_whole()),
        PeriodicTask("clients", lambda: 5_000, expire_clients),
        PeriodicTask("statistics", lambda: 10_000, broker.stats.sample),
        PeriodicTask("snapshots", flush_interval_ms, lambda now: snapshots.save_changed()),
        PeriodicTask("dead letters", lambda: 5_000, lambda now: broker.dead_letters.look()),
        PeriodicTask("disk", lambda: REFRESH_MS, lambda now: broker.disk.refresh()),
        PeriodicTask(
            "disk forecast", lambda: FORECAST_MS, lambda now: broker.disk_forecast.note(now, broker.disk.usage)
        ),
        PeriodicTask("compaction", lambda: LOOK_MS, lambda now: broker.compaction.look()),
        PeriodicTask("retention", lambda: 10_000, lambda now: broker.retention.expire()),
        PeriodicTask("retention of topics", lambda: 10_000, lambda now: broker.topic_retention.expire()),
    ]
