"""Which clients are connected, in which groups, and what they subscribe to: state without sockets or clock.

A connection is only a key here; times are milliseconds of a monotonic or Unix clock, the same one in all calls.
The rules are RocketMQ's: a group's members are the connections that sent a heartbeat (request 34) naming it, a
member is gone when its connection closes, when it unregisters (request 35) or after 120 s without a heartbeat, and
every change of a consumer group is told to all its members (request 40).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gantry_broker.protocol.bodies import ClientConnection, SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_TAG
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import tags_hash

EXPIRE_MS = 120_000
"""A client that has sent no heartbeat for this long is gone."""


class Link(Protocol):
    """What is needed of a connection: to be told things, and to be a key."""

    @property
    def closed(self) -> bool: ...

    def send(self, frame: Frame) -> None: ...

    def close(self) -> None: ...

    def __hash__(self) -> int: ...


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

    def client_ids(self) -> list[str]:
        """Each member once, by which members divide the queues among themselves: a client that talked to a slave has
        two connections to it once it is the master, and would leave a share to a second self."""
        return list(dict.fromkeys(c.client_id for c in self.clients.values()))

    def find(self, client_id: str) -> Client | None:
        return next((c for c in self.clients.values() if c.client_id == client_id), None)


class ClientTable:
    """All consumer and producer groups that have a connected member."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Link, Client]] = {}
        self._groups_of: dict[Link, set[str]] = {}
        self._round = 0

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
        return changed

    def heartbeat_producer(self, group: str, client: Client) -> None:
        self.producers.setdefault(group, {})[client.conn] = client
        self._groups_of.setdefault(client.conn, set())

    def leave_consumer(self, group: str, conn: Link) -> bool:
        """True: it was a member."""
        entry = self.consumers.get(group)
        if entry is None or entry.clients.pop(conn, None) is None:
            return False
        if not entry.clients:
            del self.consumers[group]
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
        if members is not None and members.pop(conn, None) is not None and not members:
            del self.producers[group]

    def closed(self, conn: Link) -> list[str]:
        """A connection ended: the consumer groups that lost a member."""
        changed = [g for g in sorted(self._groups_of.pop(conn, ())) if self.leave_consumer(g, conn)]
        for group in [g for g, members in self.producers.items() if conn in members]:
            self.leave_producer(group, conn)
        return changed

    def expire(self, now_ms: int) -> tuple[list[str], list[Link]]:
        """Removes silent members: (consumer groups that changed, connections to close)."""
        silent: list[Link] = []
        for clients in [g.clients for g in self.consumers.values()] + list(self.producers.values()):
            silent += [c.conn for c in clients.values() if now_ms - c.last_ms > EXPIRE_MS and c.conn not in silent]
        changed: list[str] = []
        for conn in silent:
            changed += self.closed(conn)
        return sorted(set(changed)), silent

    def any_producer(self, group: str) -> Link | None:
        """A connection of a producer group, another one each time: whom to ask for the state of a transaction."""
        members = list(self.producers.get(group, ()))
        if not members:
            return None
        self._round += 1
        return members[self._round % len(members)]

    def find_client(self, client_id: str) -> Client | None:
        """The producer's connection with that client id: where a reply message is pushed to."""
        for members in self.producers.values():
            for client in members.values():
                if client.client_id == client_id:
                    return client
        return None

    def groups_of_topic(self, topic: str) -> list[str]:
        return sorted(g.name for g in self.consumers.values() if topic in g.subscriptions)
