"""Build all parts of one broker: `wire` says which part is built from which. Nothing here starts anything.

Each part names in its constructor what it needs. Parts that react to each other do so over `Events`, which exist before
all of them. Only replication is called back by parts that are built later.
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
from gantry_broker.broker.context import BrokerContext
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
from gantry_broker.broker.pull.checks import Pull, PullChecks
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
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.members import Membership
    from gantry_broker.store.store import MessageStore

OFFSETS_AT_ONCE = 8_192
"""Queues whose offsets one step writes, in some 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts that the process starts and stops, and those that tests look into."""

    context: BrokerContext
    events: Events
    replay: Replay
    confirmed: AfterConfirm
    delays: Delays
    forwarder: Forwarder
    relays: Relays
    relayed: RelayedClients
    processor: RequestProcessor
    dispatcher: Dispatcher
    ports: Ports
    group_address: GroupAddress
    registrar: Registrar
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
    """Build one broker in the running event loop. `store_host`: address and port of message ids, packed.

    `source`: the client for RocketMQ's NameServers of a migrated cluster. `site`: the part of its cluster in a pair of
    sites.
    """
    settings = store.config.settings
    tls = tls or PortsTls(None, None)
    source = source or client
    site = site or Site()
    clock, events = Clock(), Events()
    started_ms = clock.unix_ms()
    delay_levels = delay_table(settings.messageDelayLevel)
    memory = memory_limit(config.memory_limit_bytes)
    budget = remoting_budget(memory, min(settings.maxConnections, descriptors.budget().remoting))
    loop_watch, slices = LoopWatch(), TimeSlices()
    shared = Shared(budget, lambda: settings.maxConnectionsPerAddress, slices)
    slices.on_ran = loop_watch.holds.ran
    clients, locks, filters = ClientTable(max_links(memory)), QueueLocks(), Filters(most_bytes(memory))
    access = AccessControl(config, store)
    held: HeldPulls[Pull] = HeldPulls(owners=lambda pull: owners_of(pull.conn))
    stats = Stats(clock.now_ms())
    counts = MessageCounts(stats, config.cluster)
    latencies = Latencies()
    disk, disk_forecast = DiskWatch(store), DiskForecast()
    disk.refresh()
    next_opaque = opaque_numbers()

    # The tables, and what follows when records are confirmed.
    meta = Metadata(base_tables(config, settings, len(delay_levels)))
    dead_letters = DeadLetters(meta, store.reader)
    replay = Replay(meta, store, events.tables_changed)
    confirmed = AfterConfirm(replay, held)

    # Replication and the role.
    def epoch_body(epoch: int) -> bytes:
        body = {"kind": "epoch", "epoch": epoch, "group": config.group, "member": config.member}
        return orjson.dumps(body)

    replication = ReplicationService(
        config,
        store,
        client,
        epoch_body=epoch_body,
        on_confirmed=confirmed.confirmed,
        on_role_change=lambda: role.changed(),
        on_change=events.status_changed,
        on_truncated=replay.was_truncated,
        on_store_error=lambda error: health.store_failed(error),
        standby=site.is_standby,
    )
    log_repair = _log_repair(store, client, replication, replay)
    replication.on_flushed = latencies.flush.observe
    role = RoleState(config, replication, replay, locks, events)
    role.site, role.takes_writes = site, not site.refusal()
    health = MemberHealth(config, store, disk, replication, role, events)
    registrar = Registrar(
        config, settings, client, meta=meta, replication=replication, role=role, health=health, events=events,
        clock=clock, access=access, source=source,
    )  # fmt: skip

    # Changes of the log and of the tables.
    writer = LogWriter(config, store, replication, role, health, clock)
    changes = MetadataChanges(
        meta, store, store_host, writer=writer, role=role, health=health, registrar=registrar, events=events,
        clock=clock,
    )  # fmt: skip
    live_settings = LiveSettings(config.settings, settings, meta, changes, role, events)
    creation = OnDemandCreation(settings, meta, changes, role=role, health=health, slices=slices, clock=clock)
    archiving = Archiving(
        config, store, delay_levels, replication=replication, events=events, clock=clock, site=lambda: role.site
    )
    sites = Sites(
        config, store, replication=replication, role=role, health=health, archiving=archiving, changes=changes,
        events=events, clock=clock,
    )  # fmt: skip
    archive_reads = ArchiveReads(config, store, meta, clock, lambda: sites.state or archiving.state)
    archive_fill = ArchiveFill(config, store.log.segment_size)
    replication.old_records = archive_fill
    access.stored_topics.archived = archive_reads.topic_of
    compaction = Compaction(
        store, store_host, disk, meta=meta, writer=writer, role=role, health=health, confirmed=confirmed, events=events,
        clock=clock,
    )  # fmt: skip
    replication.before_truncation = compaction.prepare
    retention = LogRetention(store, disk, meta, replication, archiving, archive_reads, compaction, clock)
    topic_retention = TopicRetention(store, meta, changes, role, health, archive_reads, clock)
    transactions = Transactions(
        config, store, store_host, delay_levels, meta=meta, writer=writer, creation=creation, clients=clients,
        next_opaque=next_opaque, role=role, confirmed=confirmed, events=events, clock=clock,
        may_decide=access.may_decide, stats=stats,
    )  # fmt: skip
    delays = Delays(
        store, delay_levels, meta=meta, changes=changes, role=role, health=health, confirmed=confirmed, events=events,
        clock=clock, stats=stats,
    )  # fmt: skip

    # Requests of clients.
    notifier = GroupNotifier(clients, meta, slices, next_opaque)
    sender = Sender(
        config, store, store_host, delay_levels, meta=meta, creation=creation, role=role, writer=writer,
        health=health, counts=counts, stats=stats, latencies=latencies, slices=slices, events=events,
    )  # fmt: skip
    checks = PullChecks(settings, meta, role, filters=filters, clients=clients, creation=creation)
    pulls = PullService(
        store, meta, role, held=held, filters=filters, checks=checks,
        slave_reads=SlaveReads(settings, store, replication, memory), archive_reads=archive_reads, counts=counts,
        latencies=latencies, slices=slices, clock=clock,
    )  # fmt: skip
    confirmed.wake_pulls = pulls.wake
    pop = PopService(
        store, store_host, config.group, memory, meta=meta, writer=writer, changes=changes, creation=creation,
        role=role, health=health, filters=filters, confirmed=confirmed, archive_reads=archive_reads, counts=counts,
        stats=stats, events=events, slices=slices, clock=clock,
    )  # fmt: skip
    context = BrokerContext(
        config=config,
        settings=settings,
        clock=clock,
        started_ms=started_ms,
        store=store,
        store_host_hex=store_host.hex().upper(),
        delay_levels=delay_levels,
        writer=writer,
        compaction=compaction,
        retention=retention,
        topic_retention=topic_retention,
        log_repair=log_repair,
        archiving=archiving,
        archive_reads=archive_reads,
        archive_fill=archive_fill,
        sites=sites,
        replication=replication,
        registrar=registrar,
        role=role,
        health=health,
        meta=meta,
        changes=changes,
        creation=creation,
        live_settings=live_settings,
        access=access,
        clients=clients,
        notifier=notifier,
        locks=locks,
        next_opaque=next_opaque,
        filters=filters,
        held=held,
        pulls=pulls,
        routes=TopicRoutes(config, client, meta, clock),
        transactions=transactions,
        pop=pop,
        timers_waiting=delays.timers_waiting,
        stats=stats,
        counts=counts,
        latencies=latencies,
        dead_letters=dead_letters,
        disk=disk,
        disk_forecast=disk_forecast,
        slices=slices,
        loop_watch=loop_watch,
        shared=shared,
        tls=tls,
        http_port=lambda: http.port,
    )
    large_batches = LargeBatches(
        sender, settings, role=role, writer=writer, health=health, stats=stats, slices=slices, clock=clock
    )
    processor = RequestProcessor(context, handlers_of(context), sender, large_batches, budget.buffered_bytes)
    forwarder = Forwarder(role, replication, client, processor.process, budget.buffered_bytes)
    events.role_changed.subscribe(lambda master: forwarder.role_changed())
    relays = Relays(config, role, replication, clients, notifier, membership, tls.internal)
    relayed = RelayedClients(role, replication.refusals)
    relayed.settle, relayed.settle_pops = pulls.settle_all, pop.settle
    dispatcher = Dispatcher(processor, forwarder, role, clients, notifier, access.gate, relays)
    # Who waits for a message may have lost the right to it: the client asks again, and is checked.
    access.on_changed += [pulls.settle_soon, pop.settle, registrar.soon, events.status_changed]

    # Ports and the clock.
    ports = Ports(
        config, settings, dispatcher=dispatcher,
        member_requests=MemberRequests(role, replication, log_repair, processor.process, access.gate, relayed),
        membership=membership, shared=shared, tls=tls, forwarder=forwarder, relays=relays, relayed=relayed, pulls=pulls,
        role=role, replication=replication, events=events,
    )  # fmt: skip
    group_address = GroupAddress(config, role, events, ports.used_within)
    http = HttpServer(context, ports, events.status_changed)
    snapshots = SnapshotWriter(config.data_dir / "config", meta, store, replay)

    tasks = PeriodicTasks(_periodic_tasks(context, snapshots), clock)
    return BrokerParts(
        context=context,
        events=events,
        replay=replay,
        confirmed=confirmed,
        delays=delays,
        forwarder=forwarder,
        relays=relays,
        relayed=relayed,
        processor=processor,
        dispatcher=dispatcher,
        ports=ports,
        group_address=group_address,
        registrar=registrar,
        snapshots=snapshots,
        tasks=tasks,
        http=http,
    )


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
