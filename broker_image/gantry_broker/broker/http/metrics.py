"""Gantry's own metrics of a broker: names that a user can guess, bounded cardinality.

Each value is a plain number of the broker, so there is no registry and no object per series between two pages.
"""

from __future__ import annotations

import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.broker.http.archive_metrics import (
    MAX_TOPICS,
    Described,
    archive_families,
    archive_read_families,
    compaction_families,
)
from gantry_broker.broker.stats import ASIDE
from gantry_broker.exposition import Family, Labels, Remembered
from gantry_broker.http.families import Row, access_families, build_info, refused_values
from gantry_broker.loopwatch import loop_families

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.archive_fill import ArchiveFill
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.archiving import Archiving
    from gantry_broker.broker.compaction import Compaction
    from gantry_broker.broker.dead_letters import DeadLetters
    from gantry_broker.broker.delay import Delays
    from gantry_broker.broker.disk_forecast import DiskForecast
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.ports import Ports
    from gantry_broker.broker.pull.checks import Pull
    from gantry_broker.broker.pull.held import HeldPulls
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.sites import Sites
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.loopwatch import LoopWatch
    from gantry_broker.remoting.connection import Shared
    from gantry_broker.remoting.tls_ports import PortsTls
    from gantry_broker.replication.log_repair import LogRepair
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

_COUNT: Final = itemgetter(1)

Busiest = Mapping[str, list[tuple[str, int]]]
"""The counts of topics and groups by the name of the counter, highest first."""
KnownLabels = Remembered[tuple[str, str], Labels]
"""Labels by kind of series and key."""
Me = dict[str, str]
"""The labels that each series of a member has."""
One = Callable[[float], list[Row]]
"""Makes the rows of a family with one value."""


class Parts(Protocol):
    """What the page shows of a member."""

    config: BrokerConfig
    started_ms: int
    store: MessageStore
    compaction: Compaction
    log_repair: LogRepair
    archiving: Archiving
    archive_reads: ArchiveReads
    archive_fill: ArchiveFill
    sites: Sites
    replication: ReplicationService
    role: RoleState
    health: MemberHealth
    meta: Metadata
    access: AccessControl
    held: HeldPulls[Pull]
    stats: Stats
    latencies: Latencies
    dead_letters: DeadLetters
    disk: DiskWatch
    disk_forecast: DiskForecast
    slices: TimeSlices
    loop_watch: LoopWatch
    shared: Shared
    tls: PortsTls
    delays: Delays


async def busiest(broker: Parts) -> Busiest:
    """Return the counts of a page. Works in slices."""
    by_counter: dict[str, list[tuple[str, int]]] = defaultdict(list)
    async for (name, key), counter in broker.slices.sliced(broker.stats.counters()):
        by_counter[name].append((key, counter.value))
    async for rows in broker.slices.sliced(by_counter.values()):
        rows.sort(key=_COUNT, reverse=True)
    return by_counter


async def gantry_families(
    broker: Parts, ports: Ports, http_refused: Mapping[str, int], counts: Busiest, kept_labels: KnownLabels
) -> list[Family]:
    """Return all families of one page. `http_refused`: refused HTTP requests and connections, by reason."""
    me = {"cluster": broker.config.own_cluster, "group": broker.config.own_group, "member": str(broker.config.member)}

    def one(value: float) -> list[Row]:
        return [(me, value)]

    def topic_labels(topic: str) -> Labels:
        return Labels(me, topic=topic)

    rows = [
        *_of_role_and_log(broker, me, one),
        *await _of_messages(broker, me, topic_labels, counts, kept_labels),
        *_of_connections(broker, me, one, ports, http_refused),
        *_of_held_messages(broker, me, one),
        *_of_disk(broker, one),
        *_of_repairs(broker, one),
        *archive_families(broker.sites.report or broker.archiving.report, broker.config.archive, one),
        *archive_read_families(broker.archive_reads, broker.archive_fill.bytes, one),
        *compaction_families(broker.compaction, topic_labels, one),
        *_of_process(broker, one),
    ]
    return [
        *(Family(name, kind, text, some) for name, kind, text, some in rows),
        *_latencies(broker, me),
        refused_values(broker.replication.refusals, me),
        *access_families(broker.access.gate, me),
        *broker.tls.families(me),
        build_info("broker"),
    ]


def _of_role_and_log(broker: Parts, me: Me, one: One) -> list[Described]:
    status = broker.replication.status_fields()
    full = broker.health.disk_full
    followers: list[Row] = [
        ({**me, "follower": str(f.member.member)}, max(status["end"] - f.acked, 0))
        for f in status["followers"]
        if f.acked >= 0
    ]
    return [
        ("gantry_role_master", "gauge", "1 on the master of the group.", one(int(status["role"] == "Master"))),
        (
            "gantry_site_standby",
            "gauge",
            "1 while the cluster follows the archive of another one.",
            one(int(broker.role.site.is_standby)),
        ),
        ("gantry_epoch", "gauge", "Epoch of the assignment that the member holds.", one(status["epoch"])),
        ("gantry_writable", "gauge", "1 while the broker takes sends.", one(int(status["writable"] and not full))),
        ("gantry_in_sync_members", "gauge", "Size of the recorded in-sync set.", one(len(status["in_sync"]))),
        ("gantry_log_start_offset_bytes", "gauge", "First offset of the commit log.", one(status["start"])),
        ("gantry_log_end_offset_bytes", "gauge", "End of the commit log.", one(status["end"])),
        ("gantry_log_flushed_offset_bytes", "gauge", "The log is on disk up to here.", one(status["flushed"])),
        ("gantry_log_confirmed_offset_bytes", "gauge", "Consumers see the log up to here.", one(status["confirmed"])),
        (
            "gantry_replication_lag_bytes",
            "gauge",
            "Bytes that a slave lacks of its master's log.",
            one(status["lag_bytes"]),
        ),
        ("gantry_follower_lag_bytes", "gauge", "Bytes that a follower has not acknowledged.", followers),
    ]


async def _of_messages(
    broker: Parts, me: Me, topic_labels: Callable[[str], Labels], counts: Busiest, kept_labels: KnownLabels
) -> list[Described]:
    stats = broker.stats

    def group_labels(key: str) -> Labels:
        topic, _, group = key.partition("@")
        return Labels(me, topic=topic, consumer_group=group)

    async def rows_of(name: str, labels: Callable[[str], Labels]) -> list[Row]:
        kind = labels.__qualname__
        return [
            (kept_labels.get((kind, key), labels, key), value)
            async for key, value in broker.slices.sliced(counts.get(name, [])[:MAX_TOPICS])
        ]

    messages_in = await rows_of("TOPIC_PUT_NUMS", topic_labels)
    bytes_in = await rows_of("TOPIC_PUT_SIZE", topic_labels)
    messages_out = await rows_of("GROUP_GET_NUMS", group_labels)
    return [
        (
            "gantry_messages_in_total",
            "counter",
            "Messages stored for producers, by topic.",
            messages_in,
        ),
        ("gantry_bytes_in_total", "counter", "Bytes of those messages, by topic.", bytes_in),
        (
            "gantry_messages_out_total",
            "counter",
            "Messages given to consumers, by topic and group.",
            messages_out,
        ),
        (
            "gantry_sends_refused_total",
            "counter",
            "Sends that were not stored or not acknowledged, by the answer's code.",
            [({**me, "code": str(code)}, count) for code, count in sorted(stats.refused.items())],
        ),
        (
            "gantry_records_set_aside_total",
            "counter",
            "Records that could not be delivered, retried or checked as they should, and were passed over, by kind.",
            [({**me, "kind": kind}, stats.set_aside.get(kind, 0)) for kind in ASIDE],
        ),
    ]


def _of_connections(broker: Parts, me: Me, one: One, ports: Ports, http_refused: Mapping[str, int]) -> list[Described]:
    guard = ports.guard
    refused: list[Row] = (
        [] if guard is None else [({**me, "reason": reason}, n) for reason, n in sorted(guard.refused.items())]
    )
    return [
        ("gantry_connections", "gauge", "Open remoting connections.", one(ports.connections)),
        (
            "gantry_member_handshakes_failed_total",
            "counter",
            "Connections to the replication port that failed to prove a member, by reason.",
            refused,
        ),
        (
            "gantry_http_refused_total",
            "counter",
            "HTTP requests and connections refused, by reason: host, token, body, time, connections.",
            [({**me, "reason": reason}, count) for reason, count in sorted(http_refused.items())],
        ),
        (
            "gantry_connections_refused_total",
            "counter",
            "Connections refused over a limit.",
            one(ports.connections_refused),
        ),
        (
            "gantry_connections_cut_total",
            "counter",
            "Connections closed because of the bytes that they held.",
            one(broker.shared.cut),
        ),
        ("gantry_unfinished_frame_bytes", "gauge", "Bytes of incomplete frames.", one(broker.shared.held)),
    ]


def _of_held_messages(broker: Parts, me: Me, one: One) -> list[Described]:
    return [
        (
            "gantry_dead_letters",
            "gauge",
            "Messages in the dead letter topic of a consumer group.",
            [
                ({**me, "consumer_group": group}, count)
                for group, count in sorted(broker.dead_letters.by_group.items(), key=_COUNT, reverse=True)[:MAX_TOPICS]
            ]
            if broker.role.leading
            else [],
        ),
        ("gantry_held_pulls", "gauge", "Pulls that wait for messages.", one(len(broker.held))),
        (
            "gantry_timer_messages",
            "gauge",
            "Timer messages and recalls that wait.",
            one(broker.delays.timers_waiting()),
        ),
        ("gantry_topics", "gauge", "Topics.", one(len(broker.meta.working.topics))),
        ("gantry_consumer_groups", "gauge", "Consumer groups known.", one(len(broker.meta.working.groups))),
    ]


def _of_disk(broker: Parts, one: One) -> list[Described]:
    usage = broker.disk.usage
    forecast = broker.disk_forecast.full_in_s
    full = broker.health.disk_full

    def room(value: int | None) -> list[Row]:
        return [] if value is None else one(value)  # No sample where nothing is known.

    return [
        ("gantry_disk_free_bytes", "gauge", "Free bytes of the store's disk.", room(usage and usage.free)),
        ("gantry_disk_size_bytes", "gauge", "Size of the store's disk.", room(usage and usage.total)),
        (
            "gantry_disk_full_forecast_seconds",
            "gauge",
            "Seconds until the disk is full at the pace of the last hour; +Inf: it does not fill, or not known yet.",
            one(math.inf if forecast is None else forecast),
        ),
        ("gantry_disk_full", "gauge", "1 while sends are refused because the disk is full.", one(int(full))),
    ]


def _of_repairs(broker: Parts, one: One) -> list[Described]:
    return [
        (
            "gantry_log_damaged_places",
            "gauge",
            "Damaged places of the log that await repair.",
            one(broker.log_repair.damaged),
        ),
        (
            "gantry_log_repaired_total",
            "counter",
            "Places repaired from another member.",
            one(broker.log_repair.repaired),
        ),
        (
            "gantry_queues_rebuilt",
            "gauge",
            "Consume queues that the start built from the log because their files were damaged.",
            one(broker.store.state.queues_rebuilt),
        ),
        (
            "gantry_queue_entries_repaired_total",
            "counter",
            "Damaged entries of consume queues, written again from the log.",
            one(broker.store.state.queue_entries_repaired),
        ),
    ]


def _of_process(broker: Parts, one: One) -> list[Described]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [
        *((name, kind, text, one(v)) for name, kind, text, v in loop_families(broker.loop_watch.holds, "gantry")),
        ("gantry_uptime_seconds", "gauge", "Since the process started.", one(time.time() - broker.started_ms / 1000)),
        ("process_cpu_seconds_total", "counter", "CPU time used.", [({}, used.ru_utime + used.ru_stime)]),
        ("process_resident_memory_bytes", "gauge", "Resident memory.", [({}, _resident())]),
    ]


def _latencies(broker: Parts, me: Me) -> list[Family]:
    latencies = broker.latencies
    latencies.sends.settle()
    histograms = [
        ("gantry_send_latency_seconds", "From the arrival of a send until its answer is written.", latencies.send),
        ("gantry_append_latency_seconds", "Appends to the log, by message.", latencies.append),
        ("gantry_flush_latency_seconds", "Each fsync of the log.", latencies.flush),
        (
            "gantry_replication_latency_seconds",
            "From the append of messages until they are confirmed.",
            latencies.replication,
        ),
        (
            "gantry_pull_latency_seconds",
            "Pulls until their answer, without the time for which they were held.",
            latencies.pull,
        ),
        ("gantry_event_loop_lag_seconds", "How late a timer of the event loop runs.", broker.loop_watch.lag),
    ]
    return [Family(name, "histogram", text, histograms=[(me, histogram)]) for name, text, histogram in histograms]


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
