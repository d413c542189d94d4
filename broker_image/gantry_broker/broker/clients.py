"""The connected clients, their groups and their subscriptions: state without sockets or clock.

A connection is only a key here. Times are milliseconds of a monotonic or Unix clock, the same one in all calls. The
rules are RocketMQ's: a group's members are the connections whose heartbeat (request 34) names it. A member is gone when
its connection closes, when it unregisters (request 35), or after 120 s without a heartbeat. All members of a consumer
group are notified of every change (request 40).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gantry_broker.broker.proxied import ProxiedClients
from gantry_broker.protocol.bodies import ClientConnection, SubscriptionData
from gantry_broker.protocol.codes import EXPRESSION_TAG
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.heartbeats import MAX_GROUPS
from gantry_broker.protocol.message import tags_hash

UNIT = 256
"""A subscription counts once, and once more for each `UNIT` characters of its expression or its tags and each 16 tags.
"""
EXPIRE_MS = 120_000
"""A client that has sent no heartbeat for this long is gone."""


class Link(Protocol):
    """A connection as this module needs it: a key that takes frames."""

    @property
    def closed(self) -> bool: ...

    def send(self, frame: Frame) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def __hash__(self) -> int: ...


MAX_IDS = 16
"""Client ids of one connection; RocketMQ's clients have one."""


class NotYourId(Exception):
    """A client id belongs to another user; the text says so."""


class TooManyClients(Exception):
    """A heartbeat exceeds a limit; the text names it."""


def weight(data: SubscriptionData) -> int:
    """Return the units of a subscription against the limit of a broker."""
    return 1 + (len(data.expression) + sum(map(len, data.tags))) // UNIT + len(data.tags) // 16


class Subscription:
    """One group's subscription to one topic, with the tag hashes as a set."""

    __slots__ = ("__weakref__", "codes", "data")

    def __init__(self, data: SubscriptionData) -> None:
        """`data.version` is the client's clock in ms; a pull with a higher one is newer than the heartbeat."""
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
    interests: dict[Link, int] = field(default_factory=dict)
    """A digest of the subscriptions of each member. Members with different ones are a mistake: all of them get what the
    newest subscription says."""
    weight: int = 0
    """Units of the group's subscriptions."""
    owner: str = ""
    """Who pays for them: the owner of the member that named them last."""

    @property
    def inconsistent(self) -> bool:
        """Whether members subscribe to different topics or expressions."""
        return len(set(self.interests.values())) > 1

    @property
    def subscribes(self) -> bool:
        """Whether `subscriptions` is all that the group consumes: its members agree, and get messages by subscription.

        Those that pull (CONSUME_ACTIVELY) may read any topic, and name it or not.
        """
        pulls = self.consume_type == "CONSUME_ACTIVELY"
        return bool(self.clients and self.subscriptions) and not pulls and not self.inconsistent

    def client_ids(self) -> list[str]:
        """Return each member once: members divide the queues by this list. A client that has read from a slave has two
        connections to it after a promotion, and would otherwise get two shares.
        """
        return list(dict.fromkeys(c.client_id for c in self.clients.values()))

    def find(self, client_id: str) -> Client | None:
        return next((c for c in self.clients.values() if c.client_id == client_id), None)


class ClientTable:
    """All consumer and producer groups that have a connected member."""

    def __init__(self, limit: int = 100_000) -> None:
        """`limit`: memberships and units of subscriptions, all together."""
        self.limit = limit
        self.weight = 0
        """Memberships and units of subscriptions at present."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Link, Client]] = {}
        self.proxied = ProxiedClients(limit)
        """Consumers behind proxies."""
        self._groups_of: dict[Link, set[str]] = {}
        self._producing: dict[Link, set[str]] = {}
        self._clients: dict[str, dict[Link, Client]] = {}
        """Producers' connections by client id."""
        self._owners: dict[str, tuple[str | None, dict[Link, None]]] = {}
        """Client id to the user that came with it first, and its connections."""
        self._ids: dict[Link, set[str]] = {}
        self._owner_of: dict[Link, str] = {}
        self._paid: Counter[str] = Counter()
        """The part of `weight` of each owner."""
        self._round = 0

    def admit(
        self, conn: Link, consumers: Mapping[str, list[SubscriptionData]], producers: Iterable[str], owner: str = ""
    ) -> None:
        """Raise TooManyClients when a heartbeat with these groups would exceed a limit.

        `owner`: the user, or the address, which pays; it may have as much as is free, so that none takes the last
        places. Empty: it may have all.
        """
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
                f"this broker has {self.weight} members and subscriptions of groups, {more} more are requested, "
                f"the limit is {self.limit}"
            )
        if owner and more > 0 and self._paid[owner] + more > self.limit - self.weight:
            raise TooManyClients(
                f"{self._paid[owner]} of the {self.weight} members and subscriptions of groups here are of {owner}, "
                f"{more} more are requested, and the limit of all is {self.limit}: no user and no address has more "
                "than what is free for others"
            )
        if owner:
            self._owner_of.setdefault(conn, owner)  # What it has was paid by the first one.

    def claim(self, client_id: str, user: str | None, conn: Link, *, signed_only: bool = False) -> None:
        """Note that a connection has a client id, which belongs to its first user until all its connections end.

        `user`: None for unsigned requests; `signed_only`: these do not count any more. Raises NotYourId and
        TooManyClients.
        """
        self.check_id(client_id, user, conn, signed_only=signed_only)
        mine = self._ids.setdefault(conn, set())
        if client_id not in mine and len(mine) >= MAX_IDS:
            raise TooManyClients(f"this connection has {len(mine)} client ids, the limit is {MAX_IDS}")
        mine.add(client_id)
        owner = self._owners.get(client_id)
        if owner is None or owner[0] != user:
            owner = self._owners[client_id] = user, {} if owner is None else owner[1]
        owner[1][conn] = None

    def check_id(self, client_id: str, user: str | None, conn: Link, *, signed_only: bool = False) -> None:
        """Raise NotYourId when a client id belongs to another user."""
        owner = self._owners.get(client_id)
        if owner is None or owner[0] == user or (signed_only and owner[0] is None):
            return
        if any(link is not conn and not link.closed for link in owner[1]):
            raise NotYourId(
                f"the field clientID: {client_id[:200]!r} is the id of a client of another user; set another instance "
                "name, or wait until that client has gone"
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
        """Note a member and its subscriptions. Returns True when members or subscriptions changed: notify the group.

        `partial`: a 5.x heartbeat without subscriptions; the known ones stay.
        """
        entry = self.consumers.get(group)
        if entry is None:
            entry = self.consumers[group] = ConsumerGroup(group)
        entry.consume_type, entry.message_model, entry.consume_from = consume_type, message_model, consume_from
        former = entry.clients.get(client.conn)
        owner = self._owner_of.get(client.conn, "")
        if former is None:
            self._weigh(owner, 1)
        changed = former is None or former.client_id != client.client_id
        entry.clients[client.conn] = client
        self._groups_of.setdefault(client.conn, set()).add(group)
        if partial:
            return changed
        named = set()
        subscriptions = list(subscriptions)
        entry.interests[client.conn] = hash(
            frozenset((sub.data.topic, sub.data.expression_type, sub.data.expression) for sub in subscriptions)
        )
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
        self._weigh(entry.owner, -entry.weight)
        entry.weight, entry.owner = sum(weight(sub.data) for sub in entry.subscriptions.values()), owner
        self._weigh(owner, entry.weight)
        return changed

    def _weigh(self, owner: str, units: int) -> None:
        self.weight += units
        self._paid[owner] += units
        if not self._paid[owner]:
            del self._paid[owner]

    def heartbeat_producer(self, group: str, client: Client) -> None:
        members = self.producers.setdefault(group, {})
        former = members.get(client.conn)
        if former is None:
            self._weigh(self._owner_of.get(client.conn, ""), 1)
        elif former.client_id != client.client_id:
            self._forget_client(former)
        members[client.conn] = client
        self._producing.setdefault(client.conn, set()).add(group)
        self._clients.setdefault(client.client_id, {})[client.conn] = client

    def leave_consumer(self, group: str, conn: Link) -> bool:
        """Remove a member; return False when it was none."""
        entry = self.consumers.get(group)
        if entry is None or entry.clients.pop(conn, None) is None:
            return False
        self._weigh(self._owner_of.get(conn, ""), -1)
        entry.interests.pop(conn, None)
        if not entry.clients:
            del self.consumers[group]
            self._weigh(entry.owner, -entry.weight)
        if conn in self._groups_of:
            self._groups_of[conn].discard(group)
        return True

    def depart(self, group: str, client_id: str, conn: Link) -> bool:
        """Remove a consumer that unregisters, with all its connections; return False when it was no member.

        A client unregisters on one connection only. A connection from the time when this broker was a slave stays open,
        perhaps for other consumers of the client, and would keep a share of the queues without a reader.
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
        self._weigh(self._owner_of.get(conn, ""), -1)
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
        """Remove an ended connection; return the consumer groups that lost a member."""
        self.proxied.closed(conn)
        for client_id in self._ids.pop(conn, ()):
            links = self._owners[client_id][1]
            links.pop(conn, None)
            if not links:
                del self._owners[client_id]
        changed = [g for g in sorted(self._groups_of.pop(conn, ())) if self.leave_consumer(g, conn)]
        for group in list(self._producing.get(conn, ())):
            self.leave_producer(group, conn)
        self._owner_of.pop(conn, None)
        return changed

    def expire(self, now_ms: int) -> tuple[list[str], list[Link]]:
        """Remove silent members. Returns (consumer groups that changed, connections to close)."""
        self.proxied.expire(now_ms)
        silent: dict[Link, None] = {}
        for clients in [g.clients for g in self.consumers.values()] + list(self.producers.values()):
            silent.update((c.conn, None) for c in clients.values() if now_ms - c.last_ms > EXPIRE_MS)
        changed: list[str] = []
        for conn in silent:
            changed += self.closed(conn)
        return sorted(set(changed)), list(silent)

    def any_producer(self, group: str, may: Callable[[Link], bool] = lambda _: True) -> Link | None:
        """Return a connection of a producer group that `may` allows, another one each time, for the check of a
        transaction.
        """
        members = [link for link in self.producers.get(group, ()) if may(link)]
        if not members:
            return None
        self._round += 1
        return members[self._round % len(members)]

    def find_client(self, client_id: str) -> Client | None:
        """Return the producer's connection with that client id, for the push of a reply message: of several, the open
        one with the last heartbeat.
        """
        candidates = [client for client in self._clients.get(client_id, {}).values() if not client.conn.closed]
        return max(candidates, key=lambda client: client.last_ms, default=None)

    def groups_of_topic(self, topic: str) -> list[str]:
        subscribed = {g.name for g in self.consumers.values() if topic in g.subscriptions}
        return sorted(subscribed | self.proxied.groups_of_topic(topic))
