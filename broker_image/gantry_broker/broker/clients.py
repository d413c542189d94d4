"""Which clients are connected, in which groups, and what they subscribe to: state without sockets or clock.

A connection is only a key here; times are milliseconds of a monotonic or Unix clock, the same one in all calls.
The rules are RocketMQ's: a group's members are the connections that sent a heartbeat (request 34) naming it, a
member is gone when its connection closes, when it unregisters (request 35) or after 120 s without a heartbeat, and
every change of a consumer group is told to all its members (request 40).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gantry_broker.protocol.bodies import ClientConnection, SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_TAG
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.heartbeats import MAX_GROUPS
from gantry_broker.protocol.message import tags_hash

UNIT = 256
"""A subscription counts once, and once more for each `UNIT` characters of its expression and 16 of its tags."""
EXPIRE_MS = 120_000
"""A client that has sent no heartbeat for this long is gone."""


class Link(Protocol):
    """What is needed of a connection: to be told things, and to be a key."""

    @property
    def closed(self) -> bool: ...

    def send(self, frame: Frame) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def __hash__(self) -> int: ...


class TooManyClients(Exception):
    """A heartbeat beyond a limit; the text names it."""


def weight(data: SubscriptionData) -> int:
    """What a subscription counts against the limit of a broker."""
    return 1 + len(data.expression) // UNIT + len(data.tags) // 16


class Subscription:
    """What one group wants of one topic, with the tag hashes as a set."""

    __slots__ = ("codes", "data")

    def __init__(self, data: SubscriptionData) -> None:
        """`data.version` is the client's clock in ms; a pull that names a higher one is ahead of the heartbeat."""
        self.data = data
        self.codes = frozenset(data.codes or (tags_hash(tag) for tag in data.tags))

    @property
    def is_tag(self) -> bool:
        return self.data.expression_type in ("", EXPRESSION_TAG)

    def same_interest(self, other: Subscription) -> bool:
        mine, theirs = self.data, other.data
        return mine.expression == theirs.expression and mine.expression_type == theirs.expression_type


@dataclass(slots=True)
class Client:
    """One connection in one group."""

    conn: Link
    client_id: str
    language: str
    version: int
    address: str
    last_ms: int

    def connection(self) -> ClientConnection:
        return ClientConnection(self.client_id, self.address, self.language, self.version)


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    clients: dict[Link, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    weight: int = 0
    """Of its subscriptions."""

    def client_ids(self) -> list[str]:
        """Each member once, by which members divide the queues among themselves: a client that talked to a slave has
        two connections to it once it is the master, and would leave a share to a second self."""
        return list(dict.fromkeys(c.client_id for c in self.clients.values()))

    def find(self, client_id: str) -> Client | None:
        return next((c for c in self.clients.values() if c.client_id == client_id), None)


class ClientTable:
    """All consumer and producer groups that have a connected member."""

    def __init__(self, limit: int = 100_000) -> None:
        """`limit`: memberships and subscriptions, together."""
        self.limit = limit
        self.weight = 0
        """Memberships and subscriptions that there are."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Link, Client]] = {}
        self._groups_of: dict[Link, set[str]] = {}
        self._producing: dict[Link, set[str]] = {}
        self._clients: dict[str, dict[Link, Client]] = {}
        """Producers' connections by client id."""
        self._round = 0

    def admit(self, conn: Link, consumers: Mapping[str, list[SubscriptionData]], producers: Iterable[str]) -> None:
        """Raises TooManyClients when a heartbeat with these groups would be beyond a limit; changes nothing."""
        mine = self._groups_of.get(conn, set())
        new_consumers = [group for group in consumers if group not in mine]
        produced = self._producing.get(conn, set())
        new_producers = {group for group in producers if group not in produced}
        count = len(mine) + len(produced) + len(new_consumers) + len(new_producers)
        if count > MAX_GROUPS:
            raise TooManyClients(f"this connection would be in {count} groups, the limit is {MAX_GROUPS}")
        more = len(new_consumers) + len(new_producers)
        for group, subscriptions in consumers.items():
            entry = self.consumers.get(group)
            more += sum(weight(data) for data in subscriptions) - (0 if entry is None else entry.weight)
        if more > 0 and self.weight + more > self.limit:
            raise TooManyClients(
                f"this broker has {self.weight} members and subscriptions of groups, {more} more are asked for, "
                f"the limit is {self.limit}"
            )

    def heartbeat_consumer(
        self,
        group: str,
        client: Client,
        subscriptions: Iterable[Subscription],
        consume_type: str,
        message_model: str,
        consume_from: str,
        partial: bool = False,
    ) -> bool:
        """Notes a member and what it subscribes to. True: members or subscriptions changed, so the group is told.

        `partial`: a 5.x heartbeat that leaves the subscriptions out; those known stay.
        """
        entry = self.consumers.get(group)
        if entry is None:
            entry = self.consumers[group] = ConsumerGroup(group)
        entry.consume_type, entry.message_model, entry.consume_from = consume_type, message_model, consume_from
        known = entry.clients.get(client.conn)
        if known is None:
            self.weight += 1
        changed = known is None or known.client_id != client.client_id
        entry.clients[client.conn] = client
        self._groups_of.setdefault(client.conn, set()).add(group)
        if partial:
            return changed
        named = set()
        for sub in subscriptions:
            topic = sub.data.topic
            named.add(topic)
            old = entry.subscriptions.get(topic)
            if old is None:
                changed = True
                entry.subscriptions[topic] = sub
            elif sub.data.version > old.data.version:
                changed = changed or not old.same_interest(sub)
                entry.subscriptions[topic] = sub
        for topic in [t for t in entry.subscriptions if t not in named]:
            del entry.subscriptions[topic]
            changed = True
        before, entry.weight = entry.weight, sum(weight(sub.data) for sub in entry.subscriptions.values())
        self.weight += entry.weight - before
        return changed

    def heartbeat_producer(self, group: str, client: Client) -> None:
        members = self.producers.setdefault(group, {})
        known = members.get(client.conn)
        if known is None:
            self.weight += 1
        elif known.client_id != client.client_id:
            self._forget_client(known)
        members[client.conn] = client
        self._producing.setdefault(client.conn, set()).add(group)
        self._clients.setdefault(client.client_id, {})[client.conn] = client

    def leave_consumer(self, group: str, conn: Link) -> bool:
        """True: it was a member."""
        entry = self.consumers.get(group)
        if entry is None or entry.clients.pop(conn, None) is None:
            return False
        self.weight -= 1
        if not entry.clients:
            del self.consumers[group]
            self.weight -= entry.weight
        if conn in self._groups_of:
            self._groups_of[conn].discard(group)
        return True

    def depart(self, group: str, client_id: str, conn: Link) -> bool:
        """A consumer says farewell; True: it was a member.

        It says so on one connection. One that it made to this broker as a slave stays, perhaps for others of its
        consumers, and would keep a share of the queues for nobody.
        """
        entry = self.consumers.get(group)
        mine = entry.clients.get(conn) if entry is not None else None
        if entry is None or mine is None or mine.client_id != client_id:
            return self.leave_consumer(group, conn)
        host = mine.address.rpartition(":")[0]
        same = [c.conn for c in entry.clients.values() if c.client_id == client_id and c.address.startswith(f"{host}:")]
        return all([self.leave_consumer(group, link) for link in same])

    def leave_producer(self, group: str, conn: Link) -> None:
        members = self.producers.get(group)
        client = members.pop(conn, None) if members is not None else None
        if members is None or client is None:
            return
        self.weight -= 1
        if not members:
            del self.producers[group]
        produced = self._producing[conn]
        produced.discard(group)
        if not produced:
            del self._producing[conn]
            self._forget_client(client)

    def _forget_client(self, client: Client) -> None:
        links = self._clients.get(client.client_id, {})
        links.pop(client.conn, None)
        if not links:
            self._clients.pop(client.client_id, None)

    def closed(self, conn: Link) -> list[str]:
        """A connection ended: the consumer groups that lost a member."""
        changed = [g for g in sorted(self._groups_of.pop(conn, ())) if self.leave_consumer(g, conn)]
        for group in list(self._producing.get(conn, ())):
            self.leave_producer(group, conn)
        return changed

    def expire(self, now_ms: int) -> tuple[list[str], list[Link]]:
        """Removes silent members: (consumer groups that changed, connections to close)."""
        silent: dict[Link, None] = {}
        for clients in [g.clients for g in self.consumers.values()] + list(self.producers.values()):
            silent.update((c.conn, None) for c in clients.values() if now_ms - c.last_ms > EXPIRE_MS)
        changed: list[str] = []
        for conn in silent:
            changed += self.closed(conn)
        return sorted(set(changed)), list(silent)

    def any_producer(self, group: str, may: Callable[[Link], bool] = lambda _: True) -> Link | None:
        """A connection of a producer group that may be asked for the state of a transaction, another one each time."""
        members = [link for link in self.producers.get(group, ()) if may(link)]
        if not members:
            return None
        self._round += 1
        return members[self._round % len(members)]

    def find_client(self, client_id: str) -> Client | None:
        """The producer's connection with that client id: where a reply message is pushed to."""
        return next(iter(self._clients.get(client_id, {}).values()), None)

    def groups_of_topic(self, topic: str) -> list[str]:
        return sorted(g.name for g in self.consumers.values() if topic in g.subscriptions)
