"""The broker's state and what all handlers share: metadata changes, appends, confirmed records, the role.

One object, owned by the event loop. Request handling is in `dispatch.py` and `handlers/`, the process in `main.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker import descriptors
from gantry_broker.broker.clients import ClientTable, Link
from gantry_broker.broker.delay import Delays
from gantry_broker.broker.errors import Answer, NotStored, NotWritable
from gantry_broker.broker.fitness import Fitness
from gantry_broker.broker.locks import QueueLocks
from gantry_broker.broker.metadata.creation_limits import (
    CreationRate,
    max_links,
    too_many_groups,
    too_many_topics,
    too_soon,
)
from gantry_broker.broker.metadata.live_settings import LiveSettings
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.tables import Change, Metadata, Tables, encode_change
from gantry_broker.broker.metadata.topics import TIMER_TOPIC, is_system_topic, retry_topic, system_topics
from gantry_broker.broker.pull.held import HeldPulls
from gantry_broker.broker.pull.service import Filters, Pull
from gantry_broker.broker.stats import Stats
from gantry_broker.broker.transactions import Transactions
from gantry_broker.config import BrokerConfig
from gantry_broker.loopwatch import LoopWatch
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    CONTROL_TOPIC,
    DLQ_PREFIX,
    PREDEFINED_GROUPS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    GantryCode,
    Perm,
    RequestCode,
    ResponseCode,
    SendStatus,
)
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.remoting.budget import RemotingBudget, memory_limit, remoting_budget
from gantry_broker.remoting.connection import Shared
from gantry_broker.replication.mending import Mender, answering
from gantry_broker.replication.service import ReplicationService, Role
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import BadRecords, StoreError
from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.log.record_reader import delay_table
from gantry_broker.store.types import Confirmed, Got, Put, Stored
from gantry_broker.timeslice import TimeSlices

if TYPE_CHECKING:
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.members import HandshakeGuard
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

NOTIFY_AT_ONCE: Final = 200
"""Members of a group that one step tells of a change."""
NOTIFY_S: Final = 0.02
"""Who joins or leaves a consumer group within this time is told to the others together."""


def _write_all(links: list[Link], data: bytes) -> None:
    for link in links:
        link.write(data)


class Broker:
    """Everything that one member's handlers need."""

    def __init__(self, config: BrokerConfig, store: MessageStore, client: RemotingClient, store_host: bytes) -> None:
        self.config = config
        self.settings: BrokerSettings = store.config.settings
        self.store = store
        self.client = client
        self.store_host = store_host
        self.store_host_hex = store_host.hex().upper()
        self.started_ms = self.unix_ms()
        self.delay_levels = delay_table(self.settings.messageDelayLevel)
        self.memory = memory_limit(config.memory_limit_bytes)
        """Bytes that this process may use."""
        self.budget: RemotingBudget = remoting_budget(
            self.memory, min(self.settings.maxConnections, descriptors.budget().remoting)
        )
        self.shared = Shared(self.budget, lambda: self.settings.maxConnectionsPerAddress)
        """What the connections of all ports of clients share."""
        self.loop_watch = LoopWatch()
        self.slices = TimeSlices()
        self.slices.on_ran = self.loop_watch.holds.ran
        self.new_names = CreationRate()
        self.clients = ClientTable(max_links(self.memory))
        self.locks = QueueLocks()
        self.held: HeldPulls[Pull] = HeldPulls()
        self.waking: set[tuple[str, int]] = set()
        """Queues whose held pulls are being tried, in slices."""
        self.filters = Filters()
        self.stats = Stats(self.started_ms)
        self.meta = Metadata(base_tables(config, self.settings, len(self.delay_levels)))
        self.replay = Replay(self.meta, store)
        self.put_count = 0
        self.get_count = 0
        self.connections: Callable[[], int] = lambda: 0
        self.connections_refused: Callable[[], int] = lambda: self.shared.refused
        self.http_port: Callable[[], int] = lambda: config.http_port
        self.member_guard: HandshakeGuard | None = None
        """Stands before the replication port; None: there is no such port."""
        self.on_role: list[Callable[[bool], None]] = []
        """Called with "is master" after the role changed and the tables follow it."""
        self.on_grown: dict[str, Callable[[int], None]] = {}
        """Topic to what wants to know that a queue of it grew (delays, transactions, timers)."""
        self.on_grew: Callable[[str, int], None] = lambda topic, queue_id: None
        self.on_topics: list[Callable[[], None]] = []
        """Called when topics or groups changed: the fast path forgets, the NameServers are told."""
        self.routes_told: Callable[[], Awaitable[None]] | None = None
        """Waits until the NameServers know this broker's topics as they are now; None: it has no NameServers."""
        self.on_status: list[Callable[[], None]] = []
        self.stopping = False
        self.letting_go = False
        """Handed over a moment ago: pulls that find nothing are held until their connection ends, which is soon."""
        self.has_guests = False
        """Handed over not long ago: clients still come here for the master, on old connections or by an old route."""
        self._leading = False
        self._role_epoch = -1
        self._opaque = 0
        self._grown: list[tuple[str, int]] = []
        self._changed_groups: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()
        self.live_settings = LiveSettings(self)
        self.transactions = Transactions(self)
        self.delays = Delays(self)
        self.replication = ReplicationService(
            config,
            store,
            client,
            epoch_body=self._epoch_body,
            on_confirmed=self._on_confirmed,
            on_role_change=self.role_changed,
            on_change=self.status_changed,
            on_cut=self._on_cut,
            report=self._report,
            on_store_error=lambda error: self.fitness.store_failed(error),
        )
        self.mender = Mender(store, self.replication.peers, self._on_mended)
        self.replication.on_damaged_answer = self.mender.given_damaged
        self.replication.on_unreadable = self.mender.suspect
        store.on_damage = self.mender.suspect
        self.fitness = Fitness(self)
        client.register(GantryCode.READ_LOG, answering(self.mender))

    # ---- clocks and names

    @staticmethod
    def now_ms() -> int:
        """Monotonic milliseconds: deadlines."""
        return time.monotonic_ns() // 1_000_000

    @staticmethod
    def unix_ms() -> int:
        """What records and clients are told."""
        return time.time_ns() // 1_000_000

    def next_opaque(self) -> int:
        """For one-way requests to clients; those with an answer get theirs from the connection."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    @property
    def leading(self) -> bool:
        """Whether this member is the master and its tables are the master's."""
        return self._leading

    @property
    def may_append(self) -> bool:
        return self._leading and self.replication.may_append

    @property
    def settled(self) -> bool:
        return self.replication.settled

    @property
    def broker_id(self) -> int:
        return 0 if self._leading else self.config.member + 1

    @property
    def address(self) -> str:
        """Where clients reach this member in its present role."""
        return self.config.group_address if self._leading else self.config.member_address

    # ---- appending

    def append(self, puts: list[Put]) -> list[Stored]:
        """Appends a batch of the broker's own. Raises NotWritable and StoreError; the caller calls `appended`."""
        if not self.may_append:
            raise NotWritable(self.refusal())
        stored = self.store.put(puts, self.unix_ms())
        self.fitness.store_took()
        return stored

    def appended(self, answer: Callable[[SendStatus], None] | None, now_ms: int = 0) -> None:
        """Tells replication what was appended, and who waits for the promise."""
        end = self.store.end
        self.replication.appended(end)
        if answer is not None:
            timeout = self.settings.slaveTimeout
            if self.config.flush == "Sync":
                timeout = max(timeout, self.settings.syncFlushTimeout)
            self.replication.add_waiter(end, answer, timeout)

    def refusal(self) -> str:
        """Why a write is refused, in words."""
        if self.replication.parked:
            return "service not available now: the group hands over to another master, send again"
        role = self.replication.role
        if role is Role.SLAVE:
            return f"service not available now: {self.config.name} is a slave, send to the master"
        return f"service not available now: {self.config.name} waits for its role ({self.replication.core.reason})"

    def count_puts(self, puts: list[Put], stored: list[Stored]) -> None:
        """Statistics of a batch of sends, once per topic."""
        self.fitness.store_took()
        self.put_count += len(puts)
        add = self.stats.add
        first = puts[0].topic
        if all([put.topic == first for put in puts]):
            add("TOPIC_PUT_NUMS", first, len(puts), len(puts))
            add("TOPIC_PUT_SIZE", first, sum([where[1] for where in stored]), len(puts))
        else:
            for put, where in zip(puts, stored, strict=True):
                add("TOPIC_PUT_NUMS", put.topic, 1)
                add("TOPIC_PUT_SIZE", put.topic, where.size)
        add("BROKER_PUT_NUMS", self.config.cluster, len(puts), len(puts))

    def count_gets(self, topic: str, group: str, count: int, size: int) -> None:
        self.get_count += count
        key = f"{topic}@{group}"
        self.stats.add("GROUP_GET_NUMS", key, count)
        self.stats.add("GROUP_GET_SIZE", key, size)
        self.stats.add("BROKER_GET_NUMS", self.config.cluster, count)

    # ---- metadata

    def change_put(self, change: Change) -> Put:
        """The control record of a change."""
        return Put(CONTROL_TOPIC, 0, 0, 0, self.unix_ms(), self.store_host, encode_change(change), b"")

    def change(self, change: Change, waiter: Callable[[SendStatus], None] | None = None) -> None:
        """Appends a change of metadata and applies it to the working view. Raises NotWritable and StoreError."""
        change.setdefault("at", self.unix_ms())
        self.append([self.change_put(change)])
        self.applied(change)
        self.appended(waiter)

    def applied(self, change: Change) -> None:
        """A change whose record was appended becomes part of the working view."""
        if self.meta.working.apply(change):
            self._tables_changed()

    async def change_and_wait(self, change: Change) -> None:
        """A change that its asker may rely on: clients find routes to its topics, too.

        Raises NotWritable, StoreError and NotStored.
        """
        done: asyncio.Future[SendStatus] = self._loop.create_future()

        def told(status: SendStatus) -> None:
            if not done.done():
                done.set_result(status)

        self.change(change, told)
        status = await done
        if status is not SendStatus.SEND_OK:
            raise NotStored(f"the change is in this member's log, but not replicated in time: {status.name}")
        if self.routes_told is not None and ("topics" in change or "dropTopics" in change):
            await self.routes_told()

    def ensure_topic(self, name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
        """A topic that the broker itself needs. Raises NotWritable and StoreError."""
        known = self.meta.working.topics.get(name)
        if known is not None:
            return known
        self.may_create(topics=[name])
        self.change({"topics": [TopicConfig(name, queues, queues, perm, sys_flag=sys_flag).to_json()]})
        return self.meta.working.topics[name]

    def may_create(self, *, topics: Sequence[str] = (), groups: Sequence[str] = (), on_demand: bool = True) -> None:
        """Raises Answer when there would be too many topics or groups, or too many of them too fast.

        `on_demand`: nobody asked for them by name; those are made at a limited rate.
        """
        tables = self.meta.working
        new_topics = len({name for name in topics if name not in tables.topics and not is_system_topic(name)})
        new_groups = len({name for name in groups if name not in tables.groups})
        if not new_topics and not new_groups:
            return
        fault = too_many_topics(len(tables.topics), new_topics, self.settings.maxTopics) or too_many_groups(
            len(tables.groups), new_groups, self.settings.maxSubscriptionGroups
        )
        if fault is not None:
            raise Answer(ResponseCode.SYSTEM_ERROR, fault)
        # A group and its %RETRY% topic count once.
        if on_demand and not self.new_names.take(max(new_topics, new_groups), self.now_ms()):
            raise Answer(ResponseCode.SYSTEM_BUSY, too_soon(new_topics, new_groups))

    def ensure_system_topic(self, name: str) -> None:
        if name in (TIMER_TOPIC, SCHEDULE_TOPIC) or name in self.meta.working.topics:
            return
        self.ensure_topic(name, 1, Perm.READ | Perm.WRITE)

    def topic_on_demand(self, name: str, default_topic: str, queues: int) -> TopicConfig | None:
        """The topic that a send to an unknown one would make; None: it may not be made. Nothing is changed yet.

        As `createTopicInSendMessageMethod` of 4.9.7.
        """
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return TopicConfig(name, 1, 1, Perm.READ | Perm.WRITE)
        pattern = self.meta.working.topics.get(default_topic)
        if pattern is None or not pattern.perm & Perm.INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.settings.autoCreateTopicEnable:
            return None
        limit = self.settings.defaultTopicQueueNums if default_topic == AUTO_CREATE_TOPIC else pattern.write_queues
        count = max(min(queues, limit), 1)
        return TopicConfig(name, count, count, pattern.perm & ~Perm.INHERIT)

    def make_topic(self, topic: TopicConfig) -> None:
        """Raises NotWritable and StoreError."""
        self.may_create(topics=[topic.name])
        begun = time.perf_counter()
        log.info("topic %s is made on demand with %d queues", topic.name, topic.write_queues)
        self.change({"topics": [topic.to_json()]})
        self.slices.charge(time.perf_counter() - begun)

    def group_config(self, name: str) -> SubscriptionGroup | None:
        """A consumer group's configuration, made on demand where this member may and the settings allow it."""
        known = self.meta.working.groups.get(name)
        if known is not None:
            return known
        if not self.settings.autoCreateSubscriptionGroup and name not in PREDEFINED_GROUPS:
            return None
        made = SubscriptionGroup(name)
        if self.may_append:
            self.may_create(groups=[name])
            try:
                self.change({"groups": [made.to_json()]})
            except StoreError as error:
                self.fitness.store_failed(error)
        return made

    def group_configs(self, names: Iterable[str]) -> dict[str, SubscriptionGroup]:
        """The configurations of the consumer groups that a client is a member of, with their retry topics.

        What is new is made with one record. Groups that may not be made are left out. Raises Answer when they are too
        many; then nothing is made.
        """
        tables = self.meta.working
        known: dict[str, SubscriptionGroup] = {}
        new: list[SubscriptionGroup] = []
        for name in names:
            group = tables.groups.get(name)
            if group is None:
                if not self.settings.autoCreateSubscriptionGroup and name not in PREDEFINED_GROUPS:
                    continue
                group = SubscriptionGroup(name)
                new.append(group)
            known[name] = group
        if not self.may_append:
            return known
        topics = [
            TopicConfig(topic, queues, queues, Perm.READ | Perm.WRITE)
            for group in known.values()
            if (topic := retry_topic(group.name)) not in tables.topics
            for queues in [max(group.retry_queues, 1)]
        ]
        if not new and not topics:
            return known
        self.may_create(topics=[topic.name for topic in topics], groups=[group.name for group in new])
        change: Change = {}
        if new:
            change["groups"] = [group.to_json() for group in new]
        if topics:
            change["topics"] = [topic.to_json() for topic in topics]
        try:
            self.change(change)
        except StoreError as error:
            self.fitness.store_failed(error)
        return known

    def flush_offsets(self, most: int | None = None) -> bool:
        """Writes the consumer offsets that changed into the log, at most those of so many pairs of topic and group.

        True: more of them wait to be written.
        """
        if not self.may_append:
            return False
        changes = self.meta.take_dirty(self.unix_ms(), most)
        if not changes:
            return False
        try:
            self.append([self.change_put(c) for c in changes])
        except StoreError as error:
            self.meta.put_back(changes)
            self.fitness.store_failed(error)
            return False
        self.appended(None)
        return self.meta.has_dirty

    def notify_group(self, group: str) -> None:
        """Tells all members of a consumer group that it changed (request 40, one-way).

        Once for all that changes within `NOTIFY_S`: at a failover all members come or go together, and telling each of
        them of each other would take seconds where they are thousands.
        """
        if not self._changed_groups:
            self._loop.call_later(NOTIFY_S, self._notify_groups)
        self._changed_groups[group] = None

    def _notify_groups(self) -> None:
        changed, self._changed_groups = self._changed_groups, {}
        for group in changed:
            config = self.meta.working.groups.get(group)
            members = self.clients.consumers.get(group)
            if members is None or (config is not None and not config.notify_ids_changed):
                continue
            frame = Frame(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.next_opaque(), 2, {"consumerGroup": group})
            data = encode_frame(frame)
            links = list(members.clients)
            for start in range(0, len(links), NOTIFY_AT_ONCE):
                part = links[start : start + NOTIFY_AT_ONCE]
                self.slices.run(lambda part=part, data=data: _write_all(part, data))  # type: ignore[misc]

    # ---- what replication tells

    def _epoch_body(self, epoch: int) -> bytes:
        return orjson.dumps({"kind": "epoch", "epoch": epoch, "group": self.config.group, "member": self.config.member})

    def _on_confirmed(self, confirmed: Confirmed) -> None:
        changed = False
        for phys, body in confirmed.control:
            changed = self.meta.confirm(phys, body) or changed
        if changed and not self._leading:
            self._tables_changed()
        # Readers are woken after the caller has finished its own step: what they do may append again.
        if confirmed.available:
            if not self._grown:
                self._loop.call_soon(self._wake)
            self._grown += confirmed.available

    def _wake(self) -> None:
        grown, self._grown = self._grown, []
        held = len(self.held) > 0
        for topic, queue_id in dict.fromkeys(grown):
            told = self.on_grown.get(topic)
            if told is not None:
                told(queue_id)
            if held:
                self.on_grew(topic, queue_id)

    def _on_cut(self, to: int) -> None:
        if self.replay.was_cut(to):
            self._tables_changed()

    def load_tables(self) -> None:
        """Before replication starts. Raises OSError."""
        self.replay.load(self.config.data_dir / "config")
        self._tables_changed()

    def _tables_changed(self) -> None:
        for told in self.on_topics:
            told()

    def _on_mended(self, at: int) -> None:
        if self.replay.lacking:
            log.warning("the tables are built anew, with the control record that was mended")
            offsets = self.meta.take_dirty(self.unix_ms())
            self.replay.rebuild()
            if self._leading:
                self.meta.lead([*self._unconfirmed_control(), *map(encode_change, offsets)])
                self.meta.put_back(offsets)
            self._tables_changed()

    def role_changed(self) -> None:
        """Replication says that the role or `may_append` changed."""
        master = self.replication.role is Role.MASTER
        epoch = self.replication.epoch
        if master and epoch != self._role_epoch:
            self.meta.lead(self._unconfirmed_control())
            self.locks.clear()
            self._role_epoch, self._leading = epoch, True
            log.info("master of %s in epoch %d", self.config.group, epoch)
        elif not master and self._leading:
            self._leading = False
            self._role_epoch = -1
            self.meta.follow()
            log.info("no longer master of %s: %s", self.config.group, self.replication.core.reason or "follows")
        self._tables_changed()
        for notify in self.on_role:
            notify(master)
        self.status_changed()

    def _unconfirmed_control(self) -> list[bytes]:
        """Raises what `store.unconfirmed_control` does. Unless only descriptors were short, the process ends then:
        nobody can give back an end of the log that is on this disk alone, so another member has to lead."""
        try:
            return self.store.unconfirmed_control()
        except (BadRecords, ValueError, OSError) as error:
            if not isinstance(error, OSError) or error.errno not in NO_DESCRIPTORS:
                self.store.mark_failed(error)
            raise

    def status_changed(self) -> None:
        """Something that the status tells is other than before."""
        for told in self.on_status:
            told()

    @staticmethod
    def _report(text: str) -> None:
        log.warning("%s", text)

    def tables_as_changes(self) -> list[Change]:
        """All tables and where every queue ends: what a follower needs whose log does not go back to the start."""
        now = self.unix_ms()
        ends: list[Change] = [
            {"at": now, "ends": {topic: {str(q): number for q, number in queues.items()}}}
            for topic, queues in self.store.next_offsets().items()
        ]
        return [*self.meta.working.all_changes(now), *ends]

    def expire_log(self) -> None:
        """Retention: what is not confirmed stays, and what a follower that fetches has not acknowledged."""
        start = self.store.expire(self.unix_ms(), min(self.store.confirmed, self.replication.needed_from()))
        self.meta.forget_hidden(start)

    # ---- reading from slaves

    def far_behind(self, got: Got) -> bool:
        """Whether a reader's backlog is beyond what memory is expected to hold."""
        return self.backlog_bytes(got) > self.memory * self.settings.accessMessageInMemoryMaxRatio // 100

    def backlog_bytes(self, got: Got) -> int:
        """Bytes of log between what was read last and the confirmed end."""
        if not got.data:
            return 0
        last = int.from_bytes(got.data[28:36], "big")
        return max(self.store.confirmed - last, 0)

    def slave_to_read(self, wanted: int, got: Got) -> int:
        """The brokerId of a slave that fetches, is in sync and so has the wanted records; else the master's."""
        status: dict[str, Any] = self.replication.status_fields()
        alive = [f.member.member + 1 for f in status["followers"] if f.in_sync and f.last_fetch_ms < 5_000]
        if wanted in alive:
            return wanted
        return min(alive, default=0)


def base_tables(config: BrokerConfig, settings: BrokerSettings, levels: int) -> Tables:
    """What a broker has without any record: the system's topics and groups."""
    tables = Tables()
    for name, queues, perm in system_topics(config.cluster, config.group, levels, settings.traceTopicEnable):
        if name == AUTO_CREATE_TOPIC and not settings.autoCreateTopicEnable:
            continue
        count = settings.defaultTopicQueueNums if name == AUTO_CREATE_TOPIC else queues
        tables.topics[name] = TopicConfig(name, count, count, perm)
    for name in sorted(PREDEFINED_GROUPS):
        tables.groups[name] = SubscriptionGroup(name)
    return tables


def resolved_host(address: str) -> tuple[str, int]:
    """The (IP, port) that message ids name, from "host:port"; a name that cannot be resolved becomes 127.0.0.1."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        log.warning("%s cannot be resolved: message ids will name 127.0.0.1", address)
        return "127.0.0.1", int(port)
    found.sort(key=lambda f: f[0] != socket.AF_INET)
    return str(found[0][4][0]), int(port)
