"""The tables of a NameServer: the brokers of each group, and the topics of each group. Pure; time is an argument (ms).

As in RocketMQ, broker id 0 is a group's master and others are slaves. The NameServer forgets a broker that is silent
for `EXPIRE_MS`, and at once one whose connection breaks. Gantry's additions, for brokers that send `gantryMember`:

- While a master is registered and its connection lives, a lower `gantryEpoch` than its is refused for broker id 0: an
  old master cannot take the route back. The fence ends with that connection, so a forged epoch keeps the group's own
  master out for no longer than a forged registration that is repeated would. Epochs of slaves do not count.
- An epoch that cannot follow that of the registered master is refused.
- A member has one entry: when a member becomes master, its slave entry is removed, and so on.
- A farewell counts only over the connection of the registration that it ends: a group has one address, under which the
  old master's successor may have registered already.
- A master that leaves stays in the route for `GRACE_MS` while other members of its group live. Its successor serves
  the same address, and a client that lost the route meanwhile would wait for its next poll, up to 30 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from gantry_broker.protocol import plausible
from gantry_broker.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigs,
    TopicRoute,
)
from gantry_broker.protocol.codes import MASTER_ID, Perm, TopicFlag

T = TypeVar("T")

PART = 4_000
"""Topics that one step of a list reads, in 1 ms."""
EXPIRE_MS = 120_000
GRACE_MS = 30_000


class Fenced(Exception):
    """A registration as master with an epoch below that of the master that is registered."""

    def __init__(self, group: str, epoch: int, highest: int) -> None:
        super().__init__(f"epoch {epoch} is over: group {group} has reached epoch {highest}")


class NotHeld(Exception):
    """Changes of topics since a version that these tables do not have: the broker has to register all topics."""


class WrongGroup(Exception):
    """A registration that contradicts its group, or exceeds a limit."""


MAX_GROUPS = 1_000
"""Most broker groups of one NameServer: each route request iterates over them."""
MAX_BROKERS = 64
"""Most brokers of one group."""
MAX_TOPICS = 200_000
"""Most topics of all groups: some 60 MB."""


@dataclass(slots=True)
class Registration:
    """A broker's registration. `source` stands for its connection."""

    cluster: str
    group: str
    broker_id: int
    address: str
    source: int
    ha_address: str = ""
    member: int | None = None
    epoch: int = 0
    listeners: dict[str, str] = field(default_factory=dict)
    expire_ms: int = EXPIRE_MS


@dataclass(slots=True)
class Entry:
    """One broker id of a group."""

    registration: Registration
    version: DataVersion
    seen_ms: int
    left_ms: int | None = None
    """The time at which its owner left and the grace began."""

    def address_for(self, listener: str) -> str | None:
        """Return the address for clients of a listener; None: they cannot reach this broker."""
        return self.registration.listeners.get(listener) if listener else self.registration.address


@dataclass(slots=True)
class Group:
    """All data of one `brokerName`."""

    cluster: str
    entries: dict[int, Entry] = field(default_factory=dict)
    topics: dict[str, QueueData] = field(default_factory=dict)
    incomplete: bool = False
    """An administrator has deleted topics here that the broker may have."""

    def live(self) -> bool:
        return any(entry.left_ms is None for entry in self.entries.values())


class RouteTable:
    """The tables. All methods are plain calls without I/O."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.unwritable: Set[str] = frozenset()
        """Groups whose write permission an administrator has taken (request 205). Routes leave it out; what brokers
        register stays as it is, so no registration gives it back."""

    def has_master(self) -> bool:
        return any(MASTER_ID in group.entries for group in self.groups.values())

    # Registration and removal of brokers

    def register(self, registration: Registration, configs: TopicConfigs | None, now_ms: int) -> Entry | None:
        """Register a broker; return the group's master entry (None: it has none).

        `configs` None: the body was empty. Raises Fenced, WrongGroup, Implausible; then nothing is changed.
        """
        if registration.member is not None:
            plausible.member_number("gantryMember", registration.member)
        plausible.epoch("gantryEpoch", registration.epoch)
        group = self.groups.get(registration.group)
        if group is not None and group.cluster != registration.cluster and group.live():
            raise WrongGroup(
                f"group {registration.group} belongs to cluster {group.cluster}; "
                f"{registration.address} says {registration.cluster}: "
                "group names must differ between clusters that share a NameServer"
            )
        self._check_room(registration, group, configs)
        ours = registration.member is not None
        master = None if group is None else group.entries.get(MASTER_ID)
        if ours and master is not None and master.registration.member is not None and master.left_ms is None:
            if registration.broker_id == MASTER_ID and registration.epoch < master.registration.epoch:
                raise Fenced(registration.group, registration.epoch, master.registration.epoch)
            if jump := plausible.jump_refusal(master.registration.epoch, registration.epoch):
                raise plausible.Implausible(f"gantryEpoch: {jump}", "epoch-jump")
        if group is None:
            group = self.groups[registration.group] = Group(registration.cluster)
        group.cluster = registration.cluster
        self._make_room(group, registration, now_ms)
        before = group.entries.get(registration.broker_id)
        version = configs.version if configs is not None else DataVersion()
        group.entries[registration.broker_id] = Entry(registration, version, now_ms)
        if registration.broker_id == MASTER_ID and configs is not None:
            first = (
                before is None
                or before.registration.address != registration.address
                or before.registration.member != registration.member
            )
            if first or before is None or before.version != version:
                self._take_topics(group, registration, configs, complete=ours)
        return group.entries.get(MASTER_ID)

    def register_changes(
        self,
        registration: Registration,
        since: DataVersion,
        configs: TopicConfigs,
        gone: Iterable[str],
        now_ms: int,
    ) -> Entry | None:
        """Register a broker again whose topics have changed since the version that it registered over this connection;
        return the group's master entry. The work is proportional to the changes.

        `configs`: the changed topics and their new version; `gone`: the deleted ones. Raises NotHeld, WrongGroup; then
        nothing is changed.
        """
        group = self.groups.get(registration.group)
        entry = None if group is None else group.entries.get(registration.broker_id)
        gone = list(gone)
        if group is None or entry is None or entry.left_ms is not None or entry.version != since:
            raise NotHeld(f"the topics of group {registration.group} with that version are not known")
        if replace(entry.registration, expire_ms=registration.expire_ms) != registration:
            raise NotHeld(f"{registration.address} has registered differently, or over another connection")
        if group.incomplete and (configs.topics or gone):
            raise NotHeld(f"topics of group {registration.group} were deleted here")
        if registration.broker_id == MASTER_ID:
            new = sum(name not in group.topics for name in configs.topics)
            if new and (total := sum(len(other.topics) for other in self.groups.values()) + new) > MAX_TOPICS:
                raise WrongGroup(
                    f"group {registration.group} would make it {total} topics of all groups, the limit is {MAX_TOPICS}"
                )
            for name in gone:
                group.topics.pop(name, None)
            for config in configs.topics.values():
                group.topics[config.name] = _queue_data(registration.group, config)
        entry.registration, entry.version, entry.seen_ms = registration, configs.version, now_ms
        return group.entries.get(MASTER_ID)

    def _check_room(self, registration: Registration, group: Group | None, configs: TopicConfigs | None) -> None:
        """Check the limits. Raises WrongGroup when the registration would exceed a limit; nothing is changed then."""
        if group is None and len(self.groups) >= MAX_GROUPS:
            raise WrongGroup(f"{len(self.groups)} broker groups are registered here, the limit is {MAX_GROUPS}")
        if group is not None and registration.broker_id not in group.entries and len(group.entries) >= MAX_BROKERS:
            raise WrongGroup(f"group {registration.group} has {len(group.entries)} brokers, the limit is {MAX_BROKERS}")
        new = len(configs.topics) if configs is not None and registration.broker_id == MASTER_ID else 0
        if new > (have := 0 if group is None else len(group.topics)):
            total = (
                sum(len(other.topics) for other in self.groups.values())
                + new
                - have * (registration.member is not None)
            )
            if total > MAX_TOPICS:
                raise WrongGroup(
                    f"group {registration.group} would make it {total} topics of all groups, the limit is {MAX_TOPICS}"
                )

    def _make_room(self, group: Group, registration: Registration, now_ms: int) -> None:
        """Remove earlier entries of the registering broker."""
        for broker_id, entry in list(group.entries.items()):
            if broker_id == registration.broker_id:
                continue
            if registration.member is not None and entry.registration.member == registration.member:
                if broker_id == MASTER_ID:
                    # A demoted master: the address stays, its successor will register it.
                    entry.left_ms = entry.left_ms or now_ms
                else:
                    del group.entries[broker_id]
            elif entry.registration.address == registration.address and registration.member is None:
                del group.entries[broker_id]

    def _take_topics(self, group: Group, registration: Registration, configs: TopicConfigs, *, complete: bool) -> None:
        """Update the group's topics. RocketMQ's brokers may register single topics, so theirs only add; ours always
        send all.
        """
        fresh = {config.name: _queue_data(registration.group, config) for config in configs.topics.values()}
        if complete:
            group.topics = fresh
            group.incomplete = False
        else:
            group.topics.update(fresh)

    def unregister(self, group_name: str, broker_id: int, address: str, source: int, now_ms: int) -> bool:
        """Forget a broker that unregisters; return False when that id belongs to another broker.

        Each of RocketMQ's brokers has its own address, which is enough to compare. Several of Gantry's brokers use one
        address, one after the other.
        """
        group = self.groups.get(group_name)
        entry = group.entries.get(broker_id) if group is not None else None
        if group is None or entry is None or entry.registration.address != address:
            return False
        if entry.registration.member is not None and entry.registration.source != source:
            return False
        self._leave(group_name, group, broker_id, now_ms)
        return True

    def connection_lost(self, source: int, now_ms: int) -> list[str]:
        """Forget the brokers that registered last over this connection; return their addresses."""
        gone = []
        for name, group in list(self.groups.items()):
            for broker_id, entry in list(group.entries.items()):
                if entry.registration.source == source and entry.left_ms is None:
                    gone.append(entry.registration.address)
                    self._leave(name, group, broker_id, now_ms)
        return gone

    def expire(self, now_ms: int) -> list[str]:
        """Forget silent brokers and masters whose grace is over; return their addresses."""
        gone = []
        for name, group in list(self.groups.items()):
            for broker_id, entry in list(group.entries.items()):
                if entry.left_ms is not None:
                    if now_ms - entry.left_ms >= GRACE_MS:
                        gone.append(entry.registration.address)
                        self._remove(name, group, broker_id)
                elif now_ms - entry.seen_ms > entry.registration.expire_ms:
                    gone.append(entry.registration.address)
                    self._leave(name, group, broker_id, now_ms)
        return gone

    def _leave(self, name: str, group: Group, broker_id: int, now_ms: int) -> None:
        entry = group.entries[broker_id]
        others = any(other.left_ms is None for key, other in group.entries.items() if key != broker_id)
        if broker_id == MASTER_ID and entry.registration.member is not None and others:
            entry.left_ms = now_ms
            return
        self._remove(name, group, broker_id)

    def _remove(self, name: str, group: Group, broker_id: int) -> None:
        del group.entries[broker_id]
        if not group.live():
            del self.groups[name]

    def touch(self, group_name: str, broker_id: int, address: str, now_ms: int) -> DataVersion | None:
        """Note a broker's heartbeat; return the version of its topics in these tables, None for an unknown broker."""
        group = self.groups.get(group_name)
        entry = group.entries.get(broker_id) if group is not None else None
        if entry is None or entry.registration.address != address or entry.left_ms is not None:
            return None
        entry.seen_ms = now_ms
        return entry.version

    # Requests of clients

    def route(self, topic: str, listener: str = "") -> TopicRoute | None:
        """Return the groups that have a topic, and their brokers as seen from a listener; None: no group has it."""
        queues = []
        brokers = []
        for name in sorted(self.groups):
            group = self.groups[name]
            data = group.topics.get(topic)
            if data is None:
                continue
            addresses = _addresses(group, listener)
            if addresses:
                queues.append(replace(data, perm=data.perm & ~Perm.WRITE) if name in self.unwritable else data)
                brokers.append(BrokerData(group.cluster, name, addresses))
        return TopicRoute(queues, brokers) if queues else None

    def cluster_info(self, listener: str = "") -> ClusterInfo:
        info = ClusterInfo()
        for name in sorted(self.groups):
            group = self.groups[name]
            info.brokers[name] = BrokerData(group.cluster, name, _addresses(group, listener))
            info.clusters.setdefault(group.cluster, []).append(name)
        return info

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of a cluster's."""
        return list(dict.fromkeys(chain.from_iterable(self.topics_in_parts(cluster))))

    def topics_in_parts(self, cluster: str | None = None) -> Iterator[list[str]]:
        """Yield the names of all topics, or of a cluster's, in parts of `PART`: a name comes once for each group.

        Topics may change between two parts.
        """
        for group in list(self.groups.values()):
            if cluster is None or group.cluster == cluster:
                yield from _parts(list(group.topics))

    def topic_count(self) -> int:
        """Return how many topics all groups have; a topic counts for each group that has it."""
        return sum(len(group.topics) for group in self.groups.values())

    def system_topics(self, listener: str = "") -> tuple[list[str], str | None]:
        """Return the names of clusters and groups, which brokers register as topics, and the address of some broker."""
        names: dict[str, None] = {}
        address = None
        for name, group in self.groups.items():
            names[group.cluster] = None
            names[name] = None
            address = address or next(iter(_addresses(group, listener).values()), None)
        return list(names), address

    def unit_topics_in_parts(self, *, unit: bool | None, subscribed: bool | None) -> Iterator[list[str]]:
        """Yield topics by the bits of their system flag, in parts as `topics_in_parts`; None: either."""
        for group in list(self.groups.values()):
            for part in _parts(list(group.topics.items())):
                yield [
                    topic
                    for topic, data in part
                    if _matches(data.sys_flag, TopicFlag.UNIT, unit)
                    and _matches(data.sys_flag, TopicFlag.UNIT_SUB, subscribed)
                ]

    # Changes by administrators

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic, in one cluster or everywhere; False: no group had it."""
        had_it = False
        for group in self.groups.values():
            if cluster in (None, group.cluster) and group.topics.pop(topic, None) is not None:
                had_it = group.incomplete = True
        return had_it

    def topics_of(self, group_name: str) -> int:
        """Return how many topics a group has; 0 for an unknown group."""
        group = self.groups.get(group_name)
        return 0 if group is None else len(group.topics)


def _parts(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), PART):
        yield items[start : start + PART]


def _queue_data(group: str, config: TopicConfig) -> QueueData:
    return QueueData(group, config.read_queues, config.write_queues, config.perm, config.sys_flag)


def _addresses(group: Group, listener: str) -> dict[int, str]:
    addresses = {}
    for broker_id in sorted(group.entries):
        address = group.entries[broker_id].address_for(listener)
        if address is not None:
            addresses[broker_id] = address
    return addresses


def _matches(flags: int, bit: int, expected: bool | None) -> bool:
    return expected is None or bool(flags & bit) == expected
