"""Rows of topics, consumer groups, dead letters and clients from the tables of all broker groups. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from gantry_broker.client.deadletters import MARK_GROUP
from gantry_broker.protocol.codes import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, Perm

from gantry_operator.api.status import TableRow

STALE_S: Final = 10.0
"""Seconds after which the answer of one broker group is older than those of the others."""
REPLIES: Final = f"_{REPLY_TOPIC_SUFFIX}"
"""The end of the name of a topic that brokers make for replies, also of another cluster that is followed."""
PAGE: Final = 50
"""Rows of a page."""
T = TypeVar("T")
N = TypeVar("N", "TopicRow", "ConsumerGroupRow")


@dataclass(frozen=True, slots=True)
class GroupTables:
    """The answer of one broker group's master to GET /v1/tables, and when it came."""

    at: float
    data: Mapping[str, Any]


@dataclass(slots=True)
class TopicRow:
    """A topic over all broker groups. Rates are messages a second; None: not known yet."""

    name: str
    system: bool
    queues: int = 0
    messages: int = 0
    rate: float | None = None
    received: int = 0
    """Messages of producers since the brokers started."""
    received_bytes: int = 0
    readable: bool = True
    writable: bool = True
    consumers: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    seen_bytes: int | None = None
    """Bytes that compaction has looked at; None: it is not compacted."""
    kept_bytes: int = 0
    """Of them, those that it keeps."""

    @property
    def mean_bytes(self) -> float | None:
        return self.received_bytes / self.received if self.received else None


def table_of(status: Mapping[str, Any], topic: str) -> TableRow | None:
    """Return the Iceberg table of a topic, from the cluster's status; None: it has none."""
    for row in status.get("tables") or []:
        if isinstance(row, Mapping) and row.get("topic") == topic:
            return TableRow.model_validate(row)
    return None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue, and one group's position in it where there is one."""

    topic: str
    broker: str
    queue: int
    first: int
    end: int
    committed: int = 0

    @property
    def lag(self) -> int:
        return max(self.end - max(self.committed, self.first), 0)


@dataclass(slots=True)
class ClientRow:
    """A connected client."""

    id: str
    address: str
    language: str
    version: str
    addresses: set[str] = field(default_factory=set)
    """Of its connections, one to each broker."""
    consumes: list[str] = field(default_factory=list)
    produces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerGroupRow:
    """A consumer group over all broker groups."""

    name: str
    system: bool
    lag: int = 0
    oldest_ms: int | None = None
    """Store time of its oldest unread message, Unix ms; None: nothing is unread."""
    rate: float | None = None
    model: str = ""
    topics: list[str] = field(default_factory=list)
    clients: dict[str, ClientRow] = field(default_factory=dict)
    subscriptions: dict[str, str] = field(default_factory=dict)
    inconsistent: bool = False
    queues: list[QueueRow] = field(default_factory=list)

    @property
    def online(self) -> bool:
        return bool(self.clients)

    @property
    def versions(self) -> list[str]:
        return sorted({f"{c.language} {c.version}" for c in self.clients.values()})


@dataclass(slots=True)
class DeadRow:
    """The dead letters of a consumer group. `waiting`: not sent again yet."""

    group: str
    letters: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Tables:
    """All rows, and the answers that they are from."""

    parts: Mapping[str, GroupTables] = field(default_factory=dict)
    topics: Mapping[str, TopicRow] = field(default_factory=dict)
    groups: Mapping[str, ConsumerGroupRow] = field(default_factory=dict)
    clients: Mapping[str, ClientRow] = field(default_factory=dict)
    dead: Mapping[str, DeadRow] = field(default_factory=dict)
    received: float | None = None
    """Messages a second that producers send, without the system's topics; None: not known, as after a failover."""
    sent: float | None = None
    """Messages a second that consumers get, without the system's groups."""


def combine(parts: Mapping[str, GroupTables], before: Mapping[str, GroupTables]) -> Tables:
    """Rows from the newest answer of each group. `before`: the answers before, for rates."""
    topics = _topics(parts)
    dead = _dead(parts, topics)
    groups, clients = _groups(parts)
    received = sent = 0.0
    has_rates = False
    newest = max((part.at for part in parts.values()), default=0.0)
    for name, part in parts.items():
        earlier = before.get(name)
        if newest - part.at > max(STALE_S, 3 * (part.at - earlier.at) if earlier is not None else 0.0):
            continue  # Its master does not answer any more: the rate of its last answer is none of now.
        if earlier is None or part.data["started_ms"] != earlier.data["started_ms"] or part.at <= earlier.at:
            continue
        seconds = (part.data["now_ms"] - earlier.data["now_ms"]) / 1000
        if seconds <= 0:
            continue
        has_rates = True
        for topic, new in part.data["topics"].items():
            old = earlier.data["topics"].get(topic)
            grown = new["in"] - (old["in"] if old is not None else 0)
            rate = max(grown, 0) / seconds
            row = topics[topic]
            row.rate = (row.rate or 0.0) + rate
            received += 0.0 if row.system else rate
        counts = {(lag["topic"], lag["group"]): lag["out"] for lag in earlier.data["lags"]}
        for lag in part.data["lags"]:
            old_count = counts.get((lag["topic"], lag["group"]), 0)
            rate = max(lag["out"] - old_count, 0) / seconds
            group = groups[lag["group"]]
            group.rate = (group.rate or 0.0) + rate
            sent += 0.0 if group.system else rate
    return Tables(parts, topics, groups, clients, dead, received if has_rates else None, sent if has_rates else None)


def _topics(parts: Mapping[str, GroupTables]) -> dict[str, TopicRow]:
    topics: dict[str, TopicRow] = {}
    for part in parts.values():
        for name, table in part.data["topics"].items():
            row = topics.get(name)
            if row is None:
                special = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
                row = topics[name] = TopicRow(name, bool(table["system"]) or special or name.endswith(REPLIES))
            row.queues += len(table["queues"])
            row.messages += sum(end - first for first, end in table["queues"])
            row.received += table["in"]
            row.received_bytes += table["bytes_in"]
            row.attributes |= (table.get("config") or {}).get("attributes") or {}
            compaction = table.get("compaction")
            if compaction is not None:
                row.seen_bytes = (row.seen_bytes or 0) + compaction["seen_bytes"]
                row.kept_bytes += compaction["kept_bytes"]
            row.readable = bool(table["perm"] & Perm.READ)
            row.writable = bool(table["perm"] & Perm.WRITE)
        for lag in part.data["lags"]:
            row = topics.get(lag["topic"])
            if row is not None and lag["group"] not in row.consumers:
                row.consumers.append(lag["group"])
        for group, consumers in part.data["consumers"].items():
            for topic in consumers["subscriptions"]:
                row = topics.get(topic)
                if row is not None and group not in row.consumers:
                    row.consumers.append(group)
    return topics


def _dead(parts: Mapping[str, GroupTables], topics: Mapping[str, TopicRow]) -> dict[str, DeadRow]:
    dead: dict[str, DeadRow] = {}
    for topic, row in topics.items():
        if topic.startswith(DLQ_PREFIX) and row.messages:
            group = topic.removeprefix(DLQ_PREFIX)
            dead[group] = DeadRow(group, row.messages, row.messages)
    for part in parts.values():
        for lag in part.data["lags"]:
            if lag["group"] != MARK_GROUP or not lag["topic"].startswith(DLQ_PREFIX):
                continue
            marked = dead.get(lag["topic"].removeprefix(DLQ_PREFIX))
            if marked is None:
                continue
            queues = part.data["topics"][lag["topic"]]["queues"]
            for queue, _, committed in lag["queues"]:
                first = queues[queue][0] if queue < len(queues) else committed
                marked.waiting -= max(committed - first, 0)
    return dead


def _groups(parts: Mapping[str, GroupTables]) -> tuple[dict[str, ConsumerGroupRow], dict[str, ClientRow]]:
    groups: dict[str, ConsumerGroupRow] = {}
    clients: dict[str, ClientRow] = {}
    reading: dict[str, set[str]] = defaultdict(set)

    def row_of(name: str, system: bool = False) -> ConsumerGroupRow:
        row = groups.get(name)
        if row is None:
            row = groups[name] = ConsumerGroupRow(name, system)
        return row

    def client_of(entry: Mapping[str, str]) -> ClientRow:
        client = clients.get(entry["id"])
        if client is None:
            client = ClientRow(entry["id"], entry["address"], entry["language"], entry["version"])
            clients[entry["id"]] = client
        client.addresses.add(entry["address"])
        return client

    for broker, part in parts.items():
        for name, settings in part.data["groups"].items():
            row_of(name, bool(settings["system"]))
        for lag in part.data["lags"]:
            row = row_of(lag["group"])
            reading[row.name].add(lag["topic"])
            oldest = lag["oldest_unread_ms"]
            if oldest is not None and (row.oldest_ms is None or oldest < row.oldest_ms):
                row.oldest_ms = oldest
            ends = (part.data["topics"].get(lag["topic"]) or {"queues": []})["queues"]
            for queue, end, committed in lag["queues"]:
                first = ends[queue][0] if queue < len(ends) else 0
                queue_row = QueueRow(lag["topic"], broker, queue, first, end, committed)
                row.queues.append(queue_row)
                row.lag += queue_row.lag
        for name, group in part.data["consumers"].items():
            row = row_of(name)
            row.model = group["model"]
            row.inconsistent = row.inconsistent or bool(group["inconsistent"])
            row.subscriptions |= {t: e for t, e in group["subscriptions"].items() if not t.startswith(RETRY_PREFIX)}
            reading[name] |= set(row.subscriptions)
            for entry in group["clients"]:
                client = client_of(entry)
                row.clients[client.id] = client
                if name not in client.consumes:
                    client.consumes.append(name)
        for name, members in part.data["producers"].items():
            for entry in members:
                client = client_of(entry)
                if name not in client.produces:
                    client.produces.append(name)
    for name, row in groups.items():
        row.topics = sorted(t for t in reading[name] if not t.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    return groups, clients


def queues_of(tables: Tables, topic: str) -> list[QueueRow]:
    """Return the queues of a topic in all broker groups."""
    rows = []
    for broker, part in sorted(tables.parts.items()):
        entry = part.data["topics"].get(topic)
        for queue, (first, end) in enumerate([] if entry is None else entry["queues"]):
            rows.append(QueueRow(topic, broker, queue, first, end))
    return rows


@dataclass(frozen=True, slots=True)
class TopicReader:
    """One consumer group of a topic. `lags`: its unread messages by (broker group, queue)."""

    group: ConsumerGroupRow
    lag: int
    lags: Mapping[tuple[str, int], int]


def readers_of(tables: Tables, topic: TopicRow) -> list[TopicReader]:
    """Return the consumer groups of a topic, the one with the most unread messages in it first."""
    readers = []
    for name in topic.consumers:
        group = tables.groups.get(name)
        if group is not None:
            lags = {(q.broker, q.queue): q.lag for q in group.queues if q.topic == topic.name}
            readers.append(TopicReader(group, sum(lags.values()), lags))
    return sorted(readers, key=lambda r: (-r.lag, r.group.name))


def marks_of(tables: Tables, group: str) -> dict[tuple[str, int], int]:
    """Return by (broker group, queue) the offset before which the dead letters of a group were sent again."""
    marks: dict[tuple[str, int], int] = {}
    for broker, part in tables.parts.items():
        for lag in part.data["lags"]:
            if lag["group"] == MARK_GROUP and lag["topic"] == DLQ_PREFIX + group:
                marks |= {(broker, queue): committed for queue, _, committed in lag["queues"]}
    return marks


@dataclass(frozen=True, slots=True)
class PageOf(Generic[T]):
    """One page of rows."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int

    @property
    def first(self) -> int:
        return (self.number - 1) * PAGE + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.number * PAGE, self.total)


def page_of(rows: Sequence[T], number: int) -> PageOf[T]:
    """Return the page with this number, or the nearest one."""
    pages = max(-(-len(rows) // PAGE), 1)
    number = min(max(number, 1), pages)
    return PageOf(rows[(number - 1) * PAGE : number * PAGE], number, pages, len(rows))


TOPIC_ORDERS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "name": lambda r: r.name.lower(),
    "rate": lambda r: (-(r.rate or 0.0), r.name),
    "messages": lambda r: (-r.messages, r.name),
    "queues": lambda r: (-r.queues, r.name),
    "size": lambda r: (-(r.mean_bytes or 0.0), r.name),
}
GROUP_ORDERS: Final[Mapping[str, Callable[[ConsumerGroupRow], Any]]] = {
    "lag": lambda r: (-r.lag, r.name),
    "name": lambda r: r.name.lower(),
    "age": lambda r: (r.oldest_ms or 1 << 62, r.name),
    "rate": lambda r: (-(r.rate or 0.0), r.name),
}


def choose(
    rows: Iterable[N], orders: Mapping[str, Callable[[N], Any]], search: str, order: str, system: bool
) -> list[N]:
    """Rows whose name contains `search`, in one of `orders`, the other way round with "-" before it; the first one for
    an order that is none. `system`: also the system's own.
    """
    text = search.lower()
    matching = [r for r in rows if (system or not r.system) and text in r.name.lower()]
    key = orders.get(order.removeprefix("-"), next(iter(orders.values())))
    return sorted(matching, key=key, reverse=order.startswith("-"))


def choose_dead(rows: Iterable[DeadRow], search: str) -> list[DeadRow]:
    """Return groups with dead letters and `search` in their name, those with the most waiting ones first."""
    text = search.lower()
    return sorted((r for r in rows if text in r.group.lower()), key=lambda r: (-r.waiting, r.group))


def choose_clients(rows: Iterable[ClientRow], search: str) -> list[ClientRow]:
    """Clients with `search` in their id, address or groups."""
    text = search.lower()
    matching = [r for r in rows if any(text in part.lower() for part in (r.id, r.address, *r.consumes, *r.produces))]
    return sorted(matching, key=lambda r: r.id)
