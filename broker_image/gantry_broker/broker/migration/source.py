"""What a RocketMQ master says about itself by ordinary requests: its address, its log's bounds, the state beside it."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.ha import is_controlled
from gantry_broker.broker.registrar import registration_body, topic_json
from gantry_broker.client import Admin, BrokerError, ClientError, Credentials
from gantry_broker.protocol import fastjson, plausible
from gantry_broker.protocol.bodies import BrokerData
from gantry_broker.protocol.codes import (
    CONTROL_TOPIC,
    FORMER_MASTER_ID,
    MASTER_ID,
    SCHEDULE_TOPIC,
    Perm,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Header, Long, RegisterBrokerHeader, TopicHeader
from gantry_broker.protocol.offset_tables import topic_stats_from_json
from gantry_broker.remoting.client import split_address
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions
from gantry_broker.store.index.queue_table import TopicQueues
from gantry_broker.store.log.epochs import MAX_SEGMENT, LeaderEpochs
from gantry_broker.store.log.record_reader import FILLER_MIN

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
SLAVE_S: Final = 1.0
"""Seconds for a slave's answer. A later one counts as none."""
AGAIN_S: Final = 0.2
MASTERS: Final = (str(MASTER_ID), str(FORMER_MASTER_ID))
SILENT_MS: Final = 25_000
"""After this time without a registration a NameServer of 5.x drops an address of a member that is gone."""
MOST_QUEUES: Final = 1 << 16
"""Of a topic on one broker."""
AHEAD_MS: Final = 86_400_000
"""How far a source's clock may be ahead of ours."""
FAILURES: Final = (RemotingError, ClientError, BodyError, OSError, asyncio.TimeoutError)


@dataclass(frozen=True, slots=True)
class Look:
    """A master as it is now. Offsets are bytes of its log."""

    name: str
    cluster: str
    address: str
    ha: tuple[str, int]
    start: int
    end: int
    segment_size: int
    slaves: int
    """Slaves that are registered beside it."""
    version: str
    settings: Mapping[str, str]
    compares_versions: bool = False
    """Whether its NameServer keeps a master's place against one of a lower state version, as those of 5.x do."""
    in_sync: int | None = None
    """Under a controller: the offset up to which each broker of the SyncStateSet has the log; None: not known."""

    @property
    def controlled(self) -> bool:
        """Whether a controller chooses the master."""
        return is_controlled(self.settings)


class Source:
    """The master of one broker group of RocketMQ. Use it as an async context manager."""

    def __init__(
        self,
        name_servers: Sequence[str],
        name: str,
        *,
        cluster: str | None = None,
        credentials: Credentials | None = None,
        tls: TlsOptions | ssl.SSLContext | None = None,
        own: str = "",
        known: tuple[str, str] | None = None,
    ) -> None:
        """`name`: the brokerName. `cluster`: its cluster; None: any. `own`: an address in the routes that is not the
        source's. `known`: its cluster and address as they were known last.
        """
        self.name = name
        self._own = own
        self._last_seen = known
        self._cluster = cluster
        self._slaves: list[str] = []
        self.admin = Admin(list(name_servers), timeout=TIMEOUT_S, credentials=credentials, tls=tls)

    async def __aenter__(self) -> Self:
        await self.admin.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.admin.__aexit__(*exc)

    async def look(self) -> Look:
        """Ask NameServer and master. Raises MigrationError when one of them does not answer, SourceBroken."""
        try:
            info = await self.admin.cluster_info()
            broker = info.brokers.get(self.name)
            if broker is None and self._last_seen is not None:
                # A NameServer forgets what a member has registered with the end of its connection, and the source
                # registers again after half a minute only.
                broker = BrokerData(self._last_seen[0], self.name, {})
            if broker is None or self._cluster not in (None, broker.cluster):
                names = ", ".join(sorted(info.brokers)) or "none"
                raise MigrationError(f"the NameServer knows no broker {self.name}; it knows {names}")
            # Who has the place beside Gantry is the master that a controller has chosen since.
            addresses = [broker.addresses.get(number) for number in (MASTER_ID, FORMER_MASTER_ID)]
            address = next((one for one in addresses if one not in (None, self._own)), None)
            if address is None and self._last_seen is not None:
                address = self._last_seen[1]  # It has not registered again yet.
            settings = {} if address is None else await self.admin.broker_config(address)
            if address is None or settings.get("brokerId") not in MASTERS:
                raise MigrationError(f"broker {self.name} has no master now")
            self._last_seen = broker.cluster, address
            runtime = await self.admin.runtime_info(address)
            status = b""
            if is_controlled(settings):
                status = await self.admin.ask(address, RequestCode.GET_BROKER_HA_STATUS)
        except FAILURES as error:
            raise MigrationError(f"broker {self.name} of the source does not answer: {error}") from error
        slaves = len([number for number in broker.addresses if number not in (MASTER_ID, FORMER_MASTER_ID)])
        look = look_of(self.name, broker.cluster, address, settings, runtime, slaves)
        look = replace(look, compares_versions=broker.compares_versions)
        return replace(look, in_sync=in_sync_of(status)) if status else look

    async def slave_ends(self, master: str) -> tuple[int, dict[str, int | None]]:
        """Return the end of a master's log, and after it the end of each slave's that is registered; None: it does not
        answer. Without a NameServer the slaves are those that it named before. Raises MigrationError.
        """
        end = await self._end(master)
        if end is None:
            raise MigrationError(f"{master} does not answer within {SLAVE_S:g} s")
        ends = await self._slave_ends(master)
        if None in ends.values():  # One that was killed is registered for a moment more.
            await asyncio.sleep(AGAIN_S)
            ends = await self._slave_ends(master)
        return end, ends

    async def _slave_ends(self, master: str) -> dict[str, int | None]:
        try:
            async with asyncio.timeout(SLAVE_S):
                broker = (await self.admin.cluster_info()).brokers.get(self.name)
            if broker is not None:
                addresses = {at for n, at in broker.addresses.items() if n not in (MASTER_ID, FORMER_MASTER_ID)}
                self._slaves = sorted(addresses - {self._own, master})
        except FAILURES as error:
            log.info("the NameServer does not answer: %s", error)
        ends = await asyncio.gather(*map(self._end, self._slaves))
        return dict(zip(self._slaves, ends, strict=True))

    async def _end(self, address: str) -> int | None:
        """Return the end of a broker's log; None: it does not say."""
        try:
            async with asyncio.timeout(SLAVE_S):
                runtime = await self.admin.runtime_info(address)
        except FAILURES:
            return None
        return whole_number(runtime.get("commitLogMaxOffset", ""), 0, plausible.MAX_OFFSET)

    async def register(self, look: Look, tables: Tables, address: str) -> None:
        """Register an address as the master's with every NameServer, and the source's topics. Raises MigrationError.

        A NameServer of 5.x keeps it, by a state version above the source's, also where the source goes on to register
        as the master. It is thrown out of the routes by that, and gets its other number here.
        """
        topics = [topic_json(name, config, Perm.READ | Perm.WRITE) for name, config in sorted(tables.topics.items())]
        version = replace(tables.topic_version, state_version=tables.topic_version.state_version + 1)
        frames = [_registration(look, address, MASTER_ID, registration_body(version, topics, []))]
        if look.compares_versions and look.settings.get("brokerId") == str(MASTER_ID):
            frames.append(_registration(look, look.address, FORMER_MASTER_ID, registration_body(version, [], [])))
        session = self.admin.session
        for server in session.name_servers:
            try:
                for frame in frames:
                    await session.call_checked(server, frame, f"registration with {server}", TIMEOUT_S)
            except FAILURES as error:
                raise MigrationError(f"NameServer {server} does not take the new address: {error}") from error

    async def step_down(self, look: Look, tables: Tables, address: str) -> None:
        """Let the source take its place back from `address` at the NameServers that answer: until it does, clients
        still find that.
        """
        topics = [topic_json(name, config, Perm.READ | Perm.WRITE) for name, config in sorted(tables.topics.items())]
        body = registration_body(replace(tables.topic_version, state_version=0), topics, [])
        frame = _registration(look, address, MASTER_ID, body)
        for server in self.admin.session.name_servers:
            try:
                await self.admin.session.call_checked(server, frame, f"registration with {server}", SLAVE_S)
            except FAILURES as error:
                log.warning(
                    "NameServer %s keeps %s as the master's address until it is silent: %s", server, address, error
                )

    async def first_offsets(self, address: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Return the first queue offset of each queue of these topics. Raises MigrationError."""
        offsets: dict[tuple[str, int], int] = {}
        for topic in topics:
            queues = await self.bounds(address, topic)
            offsets.update({(topic, queue): low for queue, (low, _) in queues.items()})
        return offsets

    async def bounds(self, address: str, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first and the next queue offset of each queue of a topic. Raises MigrationError."""
        body = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
        try:
            stats = topic_stats_from_json(body)
        except BodyError as error:
            raise MigrationError(f"the offsets of topic {topic} cannot be read: {error}") from error
        return {queue.queue_id: (max(o.min_offset, 0), max(o.max_offset, 0)) for queue, o in stats.items()}

    async def tables(self, address: str) -> Tables:
        """Return the state beside the log, of one moment. Raises MigrationError when it cannot be read."""
        topics = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        offsets = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delay = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        return tables_of(topics, groups, offsets, delay, await self._modes(address))

    async def _modes(self, address: str) -> bytes:
        """Return which groups pop which topics; empty: the source has no POP, as 4.9. Raises MigrationError."""
        try:
            return await self.admin.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except FAILURES as error:
            if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return b""
            raise MigrationError(f"{address} does not answer GET_ALL_MESSAGE_REQUEST_MODE: {error}") from error

    async def timers_delivered_ms(self, address: str) -> int | None:
        """Return the time up to which the source has delivered timer messages; None: it has none, as 4.9."""
        try:
            body = await self.admin.ask(address, RequestCode.GET_TIMER_CHECK_POINT)
        except ClientError:
            return None
        except FAILURES as error:
            raise MigrationError(f"{address} does not answer GET_TIMER_CHECK_POINT: {error}") from error
        if len(body) < 8:
            return None
        try:
            # Source: `TimerCheckpoint.encode`, whose first number is `lastReadTimeMs`.
            at = plausible.offset("lastReadTimeMs", int.from_bytes(body[:8], "big", signed=True))
            # What is due before it counts as delivered: a time to come would lose what waits.
            return plausible.number("lastReadTimeMs", at, 0, time.time_ns() // 1_000_000 + AHEAD_MS)
        except plausible.Implausible as error:
            raise MigrationError(f"the progress of timers of {address} cannot be: {error}") from error

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> bytes:
        try:
            return await self.admin.ask(address, code, header)
        except FAILURES as error:
            raise MigrationError(f"{address} does not answer {code.name}: {error}") from error


def _registration(look: Look, address: str, number: int, body: bytes) -> Frame:
    header = RegisterBrokerHeader(
        brokerName=look.name,
        brokerAddr=address,
        clusterName=look.cluster,
        brokerId=Long(number),
        # Slaves of the source take it from the NameServer, and go on with their master.
        haServerAddr=f"{look.ha[0]}:{look.ha[1]}",
        bodyCrc32=Long(zlib.crc32(body) & 0x7FFFFFFF),
        heartbeatTimeoutMillis=Long(SILENT_MS),
    )
    return Frame(RequestCode.REGISTER_BROKER, ext=header.ext(), body=body)


def guarded(settings: Mapping[str, str]) -> str:
    """Return which kind of users a broker has by its settings: "4.9", "5.x", or "" for none."""
    if settings.get("authenticationEnabled") == "true" or settings.get("authorizationEnabled") == "true":
        return "5.x"
    return "4.9" if settings.get("aclEnable") == "true" else ""


def look_of(
    name: str, cluster: str, address: str, settings: Mapping[str, str], runtime: Mapping[str, str], slaves: int
) -> Look:
    """Check what a master said. Raises SourceBroken for what no master of RocketMQ says."""

    def number(table: Mapping[str, str], field: str, low: int, high: int) -> int:
        value = whole_number(table.get(field, ""), low, high)
        if value is None:
            raise SourceBroken(
                f"{field} of broker {name} is {table.get(field)!r}, a number of {low} to {high} is expected: "
                "only Apache RocketMQ 4.9 and 5.x are followed"
            )
        return value

    if settings.get("enableDLegerCommitLog") == "true":
        raise SourceBroken(
            f"broker {name} keeps its log with DLedger, which has no HA port: migrate it by messages "
            "(gantry migrate start --by messages)"
        )
    # A master that has never got a message says -1.
    start = max(number(runtime, "commitLogMinOffset", -1, plausible.MAX_OFFSET), 0)
    end = number(runtime, "commitLogMaxOffset", start, plausible.MAX_OFFSET)
    host, _ = split_address(address)
    return Look(
        name,
        cluster,
        address,
        (host, number(settings, "haListenPort", 1, 65_535)),
        start,
        end,
        number(settings, "mappedFileSizeCommitLog", FILLER_MIN + 1, MAX_SEGMENT),
        slaves,
        runtime.get("brokerVersionDesc", ""),
        settings,
    )


def in_sync_of(status: bytes) -> int | None:
    """Return the offset up to which each broker of a SyncStateSet has the log, by the master's answer to
    GET_BROKER_HA_STATUS; None: it does not say. Raises MigrationError for an answer that cannot be read.

    A broker that joins the SyncStateSet later has at least what the master had then. Source: `AutoSwitchHAService`,
    `getRuntimeInfo` and `maybeExpandInSyncStateSet` of 5.5.0.
    """
    try:
        info = fastjson.loads(status)
        if info["master"] is not True:
            return None
        end = plausible.offset("masterCommitLogMaxOffset", info["masterCommitLogMaxOffset"])
        slaves = [one for one in info.get("haConnectionInfo") or () if one["inSync"] is True]
        # One that has just connected says -1.
        offsets = [plausible.offset("slaveAckOffset", max(one["slaveAckOffset"], 0)) for one in slaves]
        return min([end, *offsets]) if len(offsets) >= info["inSyncSlaveNums"] else None
    except (fastjson.JsonError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MigrationError(f"the source's HA status cannot be read: {error!r}") from error


def tables_of(topics: bytes, groups: bytes, offsets: bytes, delay: bytes, modes: bytes = b"") -> Tables:
    """Return the tables of these answers. Raises MigrationError for what cannot be read."""
    tables = Tables()
    try:
        snapshots.read_topics(tables, fastjson.loads(topics))
        snapshots.read_groups(tables, fastjson.loads(groups))
        snapshots.read_offsets(tables, fastjson.loads(offsets))
        snapshots.read_delay(tables, fastjson.loads(delay))
        if modes:
            snapshots.read_modes(tables, fastjson.loads(modes))
    except (BodyError, fastjson.JsonError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MigrationError(f"the source's tables cannot be read: {error}") from error
    if CONTROL_TOPIC in tables.topics:
        raise SourceBroken(f"the source has a topic {CONTROL_TOPIC}: it is no RocketMQ, or was a cluster of Gantry")
    for name, topic in tables.topics.items():
        try:
            TopicQueues(name)
        except ValueError as error:
            raise MigrationError(f"the source has a topic that cannot be: {error}") from error
        if max(topic.read_queues, topic.write_queues) > MOST_QUEUES:
            raise MigrationError(f"topic {name} of the source has more than {MOST_QUEUES} queues")
    places = [(key, queue, at) for key, queues in tables.offsets.items() for queue, at in queues.items()]
    places += [(SCHEDULE_TOPIC, level, at) for level, at in tables.delay.items()]
    for key, queue, offset in places:
        if not 0 <= queue <= MAX_INT or not 0 <= offset <= plausible.MAX_OFFSET:
            raise MigrationError(f"offset {offset} of queue {queue} of {key} cannot be")
    return tables


def bound(tables: Tables, next_offset: Callable[[str, int], int]) -> int:
    """Take offsets back that lie behind the ends of their queues, and return their number: what comes next there would
    count as read, and a delayed message as delivered. `next_offset`: of a topic's queue, in the copy.
    """
    count = 0
    for key, queues in tables.offsets.items():
        for queue, offset in queues.items():
            if offset > (end := next_offset(key.partition("@")[0], queue)):
                queues[queue] = end
                count += 1
    for level, offset in tables.delay.items():
        if offset > (end := next_offset(SCHEDULE_TOPIC, level - 1)):
            tables.delay[level] = end
            count += 1
    return count


def save(tables: Tables, config: Path, leader_epochs: LeaderEpochs) -> None:
    """Write the tables as the files that a start of a broker reads. Blocks. Raises OSError."""
    config.mkdir(parents=True, exist_ok=True)
    snapshots.write(config, snapshots.render(snapshots.Frozen(tables, 0), leader_epochs))
