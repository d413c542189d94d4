"""Metrics under RocketMQ 5's names and labels, so that its dashboards, rules and KEDA scalers work unchanged.

Names, units and labels were recorded from the Prometheus exporter of a 5.5.0 broker. docs/metrics.md lists every
difference. All values come from tables and counters that exist. Only the age of unread messages needs the log: one
small read for each queue that lags, which the page remembers while the offset stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final, Protocol

from gantry_broker.broker.http.metrics import Busiest, KnownLabels
from gantry_broker.broker.metadata.tables import position, route_permission
from gantry_broker.broker.metadata.topics import TIMER_TOPIC, is_system_topic
from gantry_broker.exposition import Family, Labels
from gantry_broker.protocol.codes import RETRY_PREFIX, SCHEDULE_TOPIC, TRANS_HALF_TOPIC

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clients import ClientTable
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

MAX_SERIES: Final = 2_000
"""Series of one family, those with the highest values. Others are missing; `gantry_metrics_omitted_series` counts
them."""
MAX_HISTOGRAMS: Final = 200
"""Topics with a histogram, those with the most messages; each has nine series."""
_MESSAGE_TYPES: Final = {TRANS_HALF_TOPIC: "transaction", SCHEDULE_TOPIC: "delay", TIMER_TOPIC: "delay"}
_SYSTEM_GROUPS: Final = ("CID_RMQ_SYS_", "CID_SYS_", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "FILTERSRV_CONSUMER")
_V4_0_0: Final = 213
"""Ordinal of V4_0_0 in RocketMQ's enum of versions. From there on each version has a snapshot and a release."""


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    store: MessageStore
    archive_reads: ArchiveReads
    role: RoleState
    meta: Metadata
    clients: ClientTable
    stats: Stats
    latencies: Latencies
    slices: TimeSlices


def version_name(ordinal: int) -> str:
    """Return the version of a client as RocketMQ's label has it, e.g. `v5_5_0`. `ordinal`: the header's version."""
    number, release = divmod(ordinal - _V4_0_0 + 1, 2)
    if not 0 <= number < 600:
        return "unknown"
    return f"v{'_'.join(str(number + 400))}{'' if release else '_snapshot'}"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def is_system_group(name: str) -> bool:
    """Whether a consumer group is RocketMQ's own."""
    return name.startswith(_SYSTEM_GROUPS)


@dataclass(slots=True)
class Lag:
    """The progress of one consumer group in one topic of this broker group."""

    topic: str
    group: str
    committed: int = 0
    """Messages that the group has not committed."""
    ready: int = 0
    """Messages that no consumer has pulled."""
    unread_ms: int | None = None
    """Store time of the oldest message that is not committed, Unix ms."""
    unpulled_ms: int | None = None
    """Store time of the oldest message that is not pulled, Unix ms."""


class StoreTimes:
    """Remembers the store times of the messages at the consumers' offsets from one page to the next."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], int] = {}
        self._next: dict[tuple[str, int, int], int] = {}

    def of(self, store: MessageStore, topic: str, queue: int, offset: int) -> int | None:
        """Return the store time in Unix ms; None: the record cannot be read."""
        key = (topic, queue, offset)
        stored_ms = self._last.get(key)
        if stored_ms is None:
            stored_ms = store.reader.store_time(topic, queue, offset)
        self._next[key] = stored_ms
        return stored_ms if stored_ms > 0 else None

    def turn(self) -> None:
        """Forget what the page that ends now did not use."""
        self._last, self._next = self._next, {}


def queue_progress(broker: Parts, key: str, offsets: Mapping[int, int]) -> list[tuple[int, int, int, int]]:
    """Return (queue, end, position, next offset to pull) of all queues of one topic and group."""
    topic = key.rpartition("@")[0]
    config = broker.meta.working.topics.get(topic)
    if config is None:
        return []
    pulled = broker.stats.pulled.get(key)
    bounds = broker.archive_reads.bounds if broker.archive_reads.on else broker.store.reader.bounds
    rows = []
    for queue in range(config.read_queues):
        low, end = bounds(topic, queue)
        committed = position(offsets, queue, low, end)
        after = committed if pulled is None else min(max(pulled.get(queue, committed), committed), end)
        rows.append((queue, end, committed, after))
    return rows


async def lags(broker: Parts, times: StoreTimes) -> tuple[list[Lag], int]:
    """Return the groups with the most unread messages first, and the number of those beyond `MAX_SERIES`.

    Works in slices: there may be very many topics and groups.
    """
    offsets = broker.meta.working.offsets
    keys, more = list(offsets), 0
    if len(keys) > MAX_SERIES:
        keys, more = await _most_unread(broker, keys)
    out = []
    async for key in broker.slices.sliced(keys):
        rows = queue_progress(broker, key, offsets.get(key, {}))
        if not rows:
            continue
        topic, _, group = key.rpartition("@")
        lag = Lag(topic, group)
        for queue, end, committed, pulled in rows:
            if committed == end:
                continue
            lag.committed += end - committed
            unread = times.of(broker.store, topic, queue, committed)
            lag.unread_ms = _older(lag.unread_ms, unread)
            if pulled < end:
                lag.ready += end - pulled
                unpulled = unread if pulled == committed else times.of(broker.store, topic, queue, pulled)
                lag.unpulled_ms = _older(lag.unpulled_ms, unpulled)
        out.append(lag)
    times.turn()
    out.sort(key=lambda lag: (-lag.committed, lag.topic, lag.group))
    return out, more


async def _most_unread(broker: Parts, keys: list[str]) -> tuple[list[str], int]:
    """Return the `MAX_SERIES` topics and groups with the most unread messages, and the number of the others."""
    offsets = broker.meta.working.offsets
    most: list[tuple[int, str]] = []
    count = 0
    async for key in broker.slices.sliced(keys):
        rows = queue_progress(broker, key, offsets.get(key, {}))
        if not rows:
            continue
        count += 1
        unread = sum([end - committed for _, end, committed, _ in rows])
        if len(most) < MAX_SERIES:
            heappush(most, (unread, key))
        elif unread >= most[0][0]:
            heappushpop(most, (unread, key))
    return [key for _, key in most], count - len(most)


def _older(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


async def rocketmq_families(broker: Parts, times: StoreTimes, counts: Busiest, labels: KnownLabels) -> list[Family]:
    """Return all families of one page. Only the master reports its consumers: each would count twice otherwise."""
    me = {"cluster": broker.config.cluster, "node_type": "broker", "node_id": broker.config.group}
    omitted = Family("gantry_metrics_omitted_series", "gauge", "Series beyond the limit of one family, by family.")
    families: list[Family] = []
    families += await _messages(broker, me, omitted, counts, labels)
    parts: tuple[Callable[[], list[Family]], ...] = (
        lambda: _connections(broker, me),
        lambda: _tables(broker, me),
        lambda: _storage(broker, me),
        lambda: _requests(broker, me),
    )
    async for part in broker.slices.sliced(parts):
        families += part()
    if broker.role.leading:
        rows, more = await lags(broker, times)
        families += await _consumers(broker, rows, me, labels)
        if more:
            omitted.add({"family": "rocketmq_consumer_lag_messages"}, more)
    return [*families, omitted]


async def _consumers(broker: Parts, rows: list[Lag], me: dict[str, str], kept_labels: KnownLabels) -> list[Family]:
    now_ms = broker.clock.unix_ms()
    lag = Family("rocketmq_consumer_lag_messages", "gauge", "Messages that the group has not committed.")
    latency = Family(
        "rocketmq_consumer_lag_latency_milliseconds", "gauge", "Age of the oldest message that is not committed."
    )
    inflight = Family(
        "rocketmq_consumer_inflight_messages", "gauge", "Messages that were pulled and are not committed."
    )
    ready = Family("rocketmq_consumer_ready_messages", "gauge", "Messages that no consumer has pulled.")
    queueing = Family(
        "rocketmq_consumer_queueing_latency_milliseconds", "gauge", "Age of the oldest message that is not pulled."
    )

    def labels_of(topic: str, group: str) -> Labels:
        return Labels(
            me,
            topic=topic,
            consumer_group=group,
            is_retry=_flag(topic.startswith(RETRY_PREFIX)),
            is_system=_flag(is_system_topic(topic) or is_system_group(group)),
        )

    async for row in broker.slices.sliced(rows):
        topic, group = row.topic, row.group
        labels = kept_labels.get(("lag", f"{topic}@{group}"), labels_of, topic, group)
        lag.add(labels, row.committed)
        latency.add(labels, 0 if row.unread_ms is None else max(now_ms - row.unread_ms, 0))
        inflight.add(labels, row.committed - row.ready)
        ready.add(labels, row.ready)
        queueing.add(labels, 0 if row.unpulled_ms is None else max(now_ms - row.unpulled_ms, 0))
    return [lag, latency, inflight, ready, queueing]


def _most(rows: list[tuple[str, int]], family: str, omitted: Family, most: int = MAX_SERIES) -> list[tuple[str, int]]:
    if len(rows) > most:
        omitted.add({"family": family}, len(rows) - most)
    return rows[:most]


async def _messages(
    broker: Parts, me: dict[str, str], omitted: Family, counts: Busiest, kept_labels: KnownLabels
) -> list[Family]:
    stats = broker.stats

    def topic_labels(topic: str) -> Labels:
        kind = _MESSAGE_TYPES.get(topic, "normal")
        return Labels(me, topic=topic, message_type=kind, is_system=_flag(is_system_topic(topic)))

    def group_labels(key: str) -> Labels:
        topic, _, group = key.rpartition("@")
        system = is_system_topic(topic) or is_system_group(group)
        return Labels(me, topic=topic, consumer_group=group, is_system=_flag(system))

    async def family(name: str, text: str, counter: str, labels: Callable[[str], Labels]) -> Family:
        family_ = Family(name, "counter", text)
        kind = labels.__qualname__
        async for key, value in broker.slices.sliced(_most(counts.get(counter, []), name, omitted)):
            family_.add(kept_labels.get((kind, key), labels, key), value)
        return family_

    sizes = Family("rocketmq_message_size", "histogram", "Stored bytes of the messages that producers sent.")
    sent = counts.get("TOPIC_PUT_NUMS", [])
    for topic, _ in _most([row for row in sent if row[0] in stats.sizes], sizes.name, omitted, MAX_HISTOGRAMS):
        labels = kept_labels.get((topic_labels.__qualname__, topic), topic_labels, topic)
        sizes.histograms.append((labels, stats.sizes[topic]))
    described = (
        ("rocketmq_messages_in_total", "Messages stored for producers.", "TOPIC_PUT_NUMS", topic_labels),
        ("rocketmq_throughput_in_total", "Stored bytes of those messages.", "TOPIC_PUT_SIZE", topic_labels),
        ("rocketmq_messages_out_total", "Messages given to consumers.", "GROUP_GET_NUMS", group_labels),
        ("rocketmq_throughput_out_total", "Stored bytes of those messages.", "GROUP_GET_SIZE", group_labels),
        ("rocketmq_send_to_dlq_messages_total", "Messages moved to a dead letter topic.", "DLQ_PUT_NUMS", group_labels),
    )
    return [*[await family(*each) for each in described], sizes]


def _connections(broker: Parts, me: dict[str, str]) -> list[Family]:
    clients = broker.clients
    producers = Family("rocketmq_producer_connections", "gauge", "Connections of producers, by client.")
    kinds = Counter(
        {client.conn: (client.language, client.version) for members in clients.producers.values()
         for client in members.values()}.values()
    )  # fmt: skip
    for (language, version), count in sorted(kinds.items()):
        producers.add({**me, **_client(language, version)}, count)
    consumers = Family("rocketmq_consumer_connections", "gauge", "Connections of consumers, by group and client.")
    rows = [
        (group.name, "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull", kind, count)
        for group in clients.consumers.values()
        for kind, count in sorted(Counter((c.language, c.version) for c in group.clients.values()).items())
    ]
    for name, mode, (language, version), count in sorted(rows, key=lambda row: -row[3])[:MAX_SERIES]:
        labels = {"consumer_group": name, "consume_mode": mode, "is_system": _flag(is_system_group(name))}
        consumers.add({**me, **labels, **_client(language, version)}, count)
    proxied = [
        (name, "push" if push else "pop", language, version, count)
        for name in clients.proxied.groups()
        for (push, language, version), count in sorted(
            Counter((c.push, c.language, c.version) for c in clients.proxied.of_group(name)).items()
        )
    ]
    for name, mode, spoken, release, count in sorted(proxied, key=lambda row: -row[4])[:MAX_SERIES]:
        labels = {"consumer_group": name, "consume_mode": mode, "is_system": _flag(is_system_group(name))}
        client = {"language": spoken.lower(), "version": release, "protocol_type": "grpc"}
        consumers.add({**me, **labels, **client}, count)
    return [producers, consumers]


def _client(language: str, version: int) -> dict[str, str]:
    return {"language": language.lower(), "version": version_name(version), "protocol_type": "remoting"}


def _tables(broker: Parts, me: dict[str, str]) -> list[Family]:
    tables = broker.meta.working
    waiting = Family("rocketmq_processor_watermark", "gauge", "Requests that wait for their turn.")
    waiting.add({**me, "processor": "admin"}, len(broker.slices))
    return [
        Family("rocketmq_topic_number", "gauge", "Topics.", [(me, len(tables.topics))]),
        Family("rocketmq_consumer_group_number", "gauge", "Consumer groups.", [(me, len(tables.groups))]),
        Family(
            "rocketmq_broker_permission", "gauge", "2: writes, 4: reads, 6: both.",
            [(me, route_permission(broker.settings.brokerPermission, broker.meta.working.marks))],
        ),
        waiting,
    ]  # fmt: skip


def _storage(broker: Parts, me: dict[str, str]) -> list[Family]:
    store = broker.store
    labels = {**me, "storage_type": "local", "storage_medium": "disk"}
    flush = "rocketmq_storage_flush_behind_bytes"
    dispatch = "rocketmq_storage_dispatch_behind_bytes"
    return [
        Family(
            "rocketmq_storage_size_bytes", "gauge", "Bytes of the log.", [(labels, store.log.end - store.log.start)]
        ),
        Family(
            flush, "gauge", "Bytes of the log that are not on disk.", [(labels, store.log.end - store.state.flushed)]
        ),
        Family(
            dispatch, "gauge", "Bytes that no consumer sees yet.", [(labels, store.log.end - store.state.confirmed)]
        ),
    ]


def _requests(broker: Parts, me: dict[str, str]) -> list[Family]:
    family = Family("rocketmq_rpc_latency_milliseconds", "histogram", "Requests of clients, until their answer.")
    family.histograms = [({**me, **labels}, histogram) for labels, histogram in broker.latencies.rpc.rows()]
    return [family]
