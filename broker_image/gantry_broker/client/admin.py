"""Administration over the remoting protocol, as `mqadmin` does it, for Gantry's and Apache's brokers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError, NoRoute
from gantry_broker.client.message import ReceivedMessage, check_group, check_topic
from gantry_broker.client.pulling import Puller
from gantry_broker.client.selection import readable_queues
from gantry_broker.client.session import Session, session_of
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import (
    ClientConnection,
    ClusterInfo,
    RequestMode,
    SubscriptionData,
    SubscriptionGroup,
    TopicConfig,
    TopicConfigs,
    TopicRoute,
)
from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    MASTER_ID,
    ORDER_TOPIC_NAMESPACE,
    Perm,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError, parse
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import (
    POPPED,
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteTopicInNamesrvHeader,
    Header,
    KvHeader,
    Long,
    NamespaceHeader,
    OffsetAnswer,
    ProducerGroupHeader,
    QueryMessageHeader,
    QueryOffsetHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicHeader,
    UpdateOffsetHeader,
    ViewMessageHeader,
)
from gantry_broker.protocol.message import decode_record, decode_records, parse_message_id
from gantry_broker.protocol.offset_tables import (
    ConsumeOffset,
    TopicOffset,
    consume_stats_from_json,
    offset_table,
    topic_stats_from_json,
)
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.remoting.tls import TlsOptions

ADMIN_SECONDS: Final = 5.0
ROUTE_LOOK_S: Final = 0.1
"""Seconds between two looks for the route of a new topic."""
MAX_LONG: Final = 2**63 - 1
MAX_HELD: Final = 1_024
"""Queues of one client that its answer is read for."""


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The clients that consume as a group now."""

    connections: list[ClientConnection]
    consume_type: str
    message_model: str
    from_where: str
    subscriptions: dict[str, str]
    """Topic to expression."""


@dataclass(slots=True, frozen=True)
class ClientState:
    """What a client says of itself, for one consumer group."""

    subscriptions: dict[str, str]
    """Topic to expression."""
    queues: tuple[MessageQueue, ...]
    """The queues that it holds now; none: it pops, or has none."""


class Admin:
    """Administers all clusters that a NameServer knows.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=8)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | Session,
        *,
        timeout: float = ADMIN_SECONDS,
        tls: TlsOptions | ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`timeout`: seconds for each request; `credentials`: with which they are signed. `tls`: see `Session`; a given
        session has its own.

        All calls raise RemotingError, BrokerError or BodyError.
        """
        self.session = session_of(name_servers, credentials, tls)
        self.timeout = timeout
        self.left_out: frozenset[str] = frozenset()
        """Broker groups that are not asked, because their masters do not answer."""

    async def __aenter__(self) -> Self:
        await self.session.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close()

    # Clusters and brokers

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and the clusters that they belong to."""
        answer = await self._call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, None, "cluster information")
        return ClusterInfo.from_json(_loads(answer.body, "clusterInfo"))

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Map group names to their masters' addresses, for one cluster or for all."""
        info = await self.cluster_info()
        return {
            name: broker.addresses[MASTER_ID]
            for name, broker in sorted(info.brokers.items())
            if MASTER_ID in broker.addresses and cluster in (None, broker.cluster) and name not in self.left_out
        }

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return a broker's runtime information, as `mqadmin brokerStatus` shows it."""
        answer = await self._call(address, RequestCode.GET_BROKER_RUNTIME_INFO, None, "runtime information")
        table = parse(answer.body, "runtimeInfo").map("table")
        return {str(key): str(value) for key, value in sorted(table.items())}

    async def broker_config(self, address: str) -> dict[str, str]:
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG, None, "broker configuration")
        return parse_java_properties(answer.body.decode("utf-8", "replace"))

    async def update_broker_config(self, address: str, changes: dict[str, str]) -> None:
        body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
        await self._call(address, RequestCode.UPDATE_BROKER_CONFIG, None, "change of broker configuration", body)

    async def wipe_write_perm(self, group: str) -> int:
        """Remove the write permission of a broker group on all NameServers, and return the number of topics."""
        return await self._perm(RequestCode.WIPE_WRITE_PERM_OF_BROKER, group, "wipeTopicCount")

    async def add_write_perm(self, group: str) -> int:
        """Reverses `wipe_write_perm`."""
        return await self._perm(RequestCode.ADD_WRITE_PERM_OF_BROKER, group, "addTopicCount")

    async def _perm(self, code: int, group: str, field: str) -> int:
        counts = [
            whole_number(answer.ext.get(field, "0")) or 0
            for answer in await self._call_all_name_servers(code, {"brokerName": group}, f"permission of {group}")
        ]
        return max(counts, default=0)

    # Topics

    async def topics(self) -> list[str]:
        answer = await self._call_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, "list of topics")
        return sorted(parse(answer.body, "topicList").texts("topicList"))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises NoRoute when no broker has the topic."""
        route = await self.session.route(topic, fresh=True)
        if route is None:
            raise NoRoute(f"no broker has the topic {topic}")
        return route

    async def topic_config(self, address: str) -> TopicConfigs:
        """Return all topics of one broker."""
        answer = await self._call(address, RequestCode.GET_ALL_TOPIC_CONFIG, None, "topics of a broker")
        return TopicConfigs.from_json(_loads(answer.body, "topics"), stored=True)

    async def topic_attributes(self, topic: str) -> dict[str, str]:
        """Return the attributes of a topic, as the first broker group has them that answers.

        Raises NoRoute, BrokerError, and RemotingError or ClientError if none answers.
        """
        failure: RemotingError | None = None
        for broker in (await self.topic_route(topic)).brokers:
            address = broker.addresses.get(MASTER_ID)
            if address is None:
                continue
            try:
                answer = await self._call(address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic), "a topic")
            except RemotingError as error:
                failure = error
                continue
            attributes = parse(answer.body, "topic").map("attributes")
            return {str(name): str(value) for name, value in attributes.items()}
        raise failure or ClientError(f"no broker group of the topic {topic} has a master")

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        cluster: str | None = None,
        groups: Iterable[str] | None = None,
    ) -> list[str]:
        """Create or change a topic on all groups of a cluster, or on some, and return the groups.

        `queues` counts per group, for reading and, unless `write_queues` differs, for writing.
        """
        check_topic(topic)
        config = TopicConfig(topic, queues, queues if write_queues is None else write_queues, perm, order=order)
        masters = await self._select_masters(cluster, groups)
        for address in masters.values():
            await self.create_topic_at(address, config)
        if order:
            value = ";".join(f"{group}:{config.write_queues}" for group in masters)
            await self.put_kv(ORDER_TOPIC_NAMESPACE, topic, value)
        return list(masters)

    async def ensure_topic(self, topic: str, *, patience_s: float = 10.0) -> None:
        """Create a topic that no broker has, and wait until a NameServer knows it. One that exists stays as it is.

        Raises NoRoute when no NameServer knows it after `patience_s`.
        """
        try:
            await self.topic_route(topic)
            return
        except NoRoute:
            await self.create_topic(topic)
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await self.topic_route(topic)
                return
            except NoRoute:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(ROUTE_LOOK_S)

    async def create_topic_at(
        self, address: str, config: TopicConfig, attributes: Sequence[str] | None = None
    ) -> None:  # fmt: skip
        """Create or change a topic on one broker. `attributes`: changes such as `+retention.ms=60000` and
        `-retention.ms`, in place of those of `config`.
        """
        if attributes is None:
            attributes = [f"+{name}={value}" for name, value in config.attributes.items()]
        header = CreateTopicHeader(
            config.name,
            AUTO_CREATE_TOPIC,
            config.read_queues,
            config.write_queues,
            config.perm,
            config.filter_type,
            config.sys_flag,
            config.order,
            attributes=",".join(attributes) or None,
        )
        await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, f"creation of topic {config.name}")

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from all brokers of a cluster (None: of all clusters) and from the NameServers."""
        for address in (await self._select_masters(cluster, None)).values():
            await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic), f"deletion of {topic}")
        header = DeleteTopicInNamesrvHeader(topic, cluster)
        await self._call_all_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header.ext(), f"deletion of {topic}")

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and last offsets of every queue."""
        offsets: dict[MessageQueue, TopicOffset] = {}
        for address in self._masters_of(await self.topic_route(topic)):
            answer = await self._call(
                address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic), f"offsets of {topic}"
            )
            offsets |= topic_stats_from_json(answer.body)
        return dict(sorted(offsets.items()))

    async def topic_consumers(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or have consumed it."""
        groups: set[str] = set()
        for address in self._masters_of(await self.topic_route(topic)):
            answer = await self._call(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic), f"consumers of {topic}"
            )
            groups |= set(parse(answer.body, "groups").texts("groupList"))
        return sorted(groups)

    # Groups and offsets

    async def groups(self, address: str) -> dict[str, SubscriptionGroup]:
        """Return all consumer groups of one broker."""
        answer = await self._call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, "groups of a broker")
        table = parse(answer.body, "groups").map("subscriptionGroupTable")
        return {
            str(name): SubscriptionGroup.from_json(item, str(name), stored=True) for name, item in sorted(table.items())
        }

    async def create_group(
        self, group: SubscriptionGroup, *, cluster: str | None = None, groups: Iterable[str] | None = None
    ) -> list[str]:
        """Create or change a consumer group on all broker groups of a cluster, or on some."""
        check_group(group.name)
        masters = await self._select_masters(cluster, groups)
        for address in masters.values():
            await self._call(
                address,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                None,
                f"creation of group {group.name}",
                fastjson.dumps(group.to_json()),
            )
        return list(masters)

    async def delete_group(self, group: str, *, cluster: str | None = None, offsets: bool = False) -> None:
        """Delete a consumer group, and its committed offsets with `offsets`."""
        header = DeleteGroupHeader(group, offsets, offsets)
        for address in (await self._select_masters(cluster, None)).values():
            await self._call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, f"deletion of group {group}")

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffset]:
        """Return a group's offsets in every queue that it consumes."""
        offsets: dict[MessageQueue, ConsumeOffset] = {}
        masters = await self._select_masters(None, None)
        for address in masters.values():
            try:
                answer = await self._call(
                    address, RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, topic), f"offsets of {group}"
                )
            except BrokerError as error:
                if error.code in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST):
                    continue
                raise
            offsets |= consume_stats_from_json(answer.body)[0]
        return dict(sorted(offsets.items()))

    async def consumer_connections(self, group: str) -> GroupConnections | None:
        """Return the clients that consume as a group now; None: the group has no clients."""
        for address in (await self._select_masters(None, None)).values():
            try:
                answer = await self._call(
                    address,
                    RequestCode.GET_CONSUMER_CONNECTION_LIST,
                    ConsumerGroupHeader(group),
                    f"connections of {group}",
                )
            except BrokerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            fields = parse(answer.body, "connections")
            subscriptions = fields.map("subscriptionTable")
            return GroupConnections(
                [ClientConnection.from_json(item) for item in fields.items("connectionSet")],
                fields.text("consumeType", ""),
                fields.text("messageModel", ""),
                fields.text("consumeFromWhere", ""),
                {str(topic): str(item.get("subString", "")) for topic, item in subscriptions.items()},
            )
        return None

    async def pops(self, address: str, group: str, topic: str) -> tuple[int, bool]:
        """Return how many pops of a group wait at a broker, and whether it has popped from the topic there before
        (RocketMQ's brokers do not say that). The group has to exist: a broker may create it otherwise.
        """
        frame = Frame(RequestCode.POLLING_INFO, ext={"consumerGroup": group, "topic": topic, "queueId": "-1"})
        answer = await self.session.call(address, frame, self.timeout)
        if answer.code != ResponseCode.SUCCESS:
            return 0, False  # It has no such topic, or it is of RocketMQ 4.9.
        return whole_number(answer.ext.get("pollingNum", "")) or 0, answer.ext.get(POPPED) == "true"

    async def client_subscriptions(self, address: str, group: str, client_id: str) -> dict[str, str]:
        """Asks one client of a group through a broker, and returns its own subscriptions: topic to expression."""
        return (await self.client_state(address, group, client_id)).subscriptions

    async def client_state(self, address: str, group: str, client_id: str) -> ClientState:
        """Ask one client of a group through a broker what it does: RocketMQ's ConsumerRunningInfo."""
        header = RunningInfoHeader(group, client_id)
        answer = await self._call(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, f"subscriptions of {client_id}"
        )
        fields = parse(answer.body, "running")
        subscriptions = [SubscriptionData.from_json(item) for item in fields.items("subscriptionSet")]
        held = (queue for queue in fields.map("mqTable") if isinstance(queue, MessageQueue))
        return ClientState({data.topic: data.expression for data in subscriptions}, tuple(sorted(held)[:MAX_HELD]))

    async def producer_connections(self, group: str, topic: str) -> list[ClientConnection]:
        """Return the clients that produce as a group now, as the brokers of a topic know them."""
        by_client: dict[str, ClientConnection] = {}
        for address in self._masters_of(await self.topic_route(topic)):
            try:
                answer = await self._call(
                    address,
                    RequestCode.GET_PRODUCER_CONNECTION_LIST,
                    ProducerGroupHeader(group),
                    f"connections of {group}",
                )
            except BrokerError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:
                    continue  # RocketMQ's answer for a group without connections
                raise
            for item in parse(answer.body, "connections").items("connectionSet"):
                connection = ClientConnection.from_json(item)
                by_client[connection.client_id] = connection
        return list(by_client.values())

    async def offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group in a queue; None: it has none."""
        header = QueryOffsetHeader(group, queue.topic, queue.queue_id)
        address = await self._master_of(queue)
        try:
            answer = await self._call(address, RequestCode.QUERY_CONSUMER_OFFSET, header, f"offset of {group}")
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return OffsetAnswer.from_ext(answer.ext).offset

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateOffsetHeader(group, queue.topic, queue.queue_id, Long(offset))
        await self._call(await self._master_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header, f"offset of {group}")

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Reset a group to a time (milliseconds since 1970), -1: to the end. Connected members continue from there
        at once.
        """
        new_offsets: dict[MessageQueue, int] = {}
        for address in self._masters_of(await self.topic_route(topic)):
            header = ResetOffsetHeader(topic, group, Long(timestamp_ms), True)
            answer = await self._call(
                address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, f"reset of {group} in {topic}"
            )
            new_offsets |= offset_table(answer.body)
        return dict(sorted(new_offsets.items()))

    async def set_request_mode(self, mode: RequestMode) -> None:
        """Says whether a group's clients that let brokers assign queues shall pull a topic's messages or pop them."""
        for address in self._masters_of(await self.topic_route(mode.topic)):
            body = fastjson.dumps(mode.to_json())
            what = f"mode of {mode.group} for {mode.topic}"
            await self._call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, what, body)

    # Messages

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = MAX_LONG,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        """Return the messages with a key, or with a unique key of a producer."""
        messages = []
        route = await self.topic_route(topic)
        header = QueryMessageHeader(topic, key, count, Long(begin_ms), Long(end_ms), unique, "U" if unique else None)
        for broker in route.brokers:
            address = broker.addresses.get(MASTER_ID)
            if address is None or broker.name in self.left_out:
                continue
            try:
                answer = await self._call(address, RequestCode.QUERY_MESSAGE, header, f"query of {key}")
            except BrokerError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                raise
            messages += [ReceivedMessage(record, broker.name) for record in decode_records(answer.body)]
        return messages

    async def view(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return the message with an offset id. Raises ValueError for a malformed id."""
        host, port, offset = parse_message_id(message_id)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        answer = await self._call(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(Long(offset), topic), f"message {message_id}"
        )
        return ReceivedMessage(decode_record(answer.body), "")

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, without those of groups that are left out. Raises NoRoute
        when no broker has the topic.
        """
        queues = readable_queues(topic, await self.topic_route(topic))
        return [queue for queue in queues if queue.broker not in self.left_out]

    def puller(self, group: str = "TOOLS_CONSUMER") -> Puller:
        """Return a puller that reads queues without being a member of a group."""
        return Puller(self.session, group)

    # Key-value configuration

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Write the value on all NameServers, because they share nothing."""
        ext = KvHeader(namespace, key, value).ext()
        await self._call_all_name_servers(RequestCode.PUT_KV_CONFIG, ext, f"configuration {namespace}/{key}")

    async def get_kv(self, namespace: str, key: str) -> str | None:
        try:
            answer = await self._call_name_server(RequestCode.GET_KV_CONFIG, KvHeader(namespace, key), key)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.ext.get("value")

    async def delete_kv(self, namespace: str, key: str) -> None:
        ext = KvHeader(namespace, key).ext()
        await self._call_all_name_servers(RequestCode.DELETE_KV_CONFIG, ext, f"configuration {namespace}/{key}")

    async def kv_table(self, namespace: str) -> dict[str, str]:
        try:
            answer = await self._call_name_server(
                RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace), namespace
            )
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return {str(key): str(value) for key, value in parse(answer.body, "kv").map("table").items()}

    # Internals

    async def ask(self, address: str, code: RequestCode, header: Header | None = None) -> bytes:
        """Return the body of a broker's answer to a request that has no method here."""
        return (await self._call(address, code, header, code.name)).body

    async def _call(self, address: str, code: int, header: Header | None, what: str, body: bytes = b"") -> Frame:
        frame = Frame(code, ext=header.ext() if header is not None else {}, body=body)
        return await self.session.call_checked(address, frame, f"{what} at {address}", self.timeout)

    async def _call_name_server(self, code: int, header: Header | None, what: str) -> Frame:
        frame = Frame(code, ext=header.ext() if header is not None else {})
        answer = await self.session.call_name_server(frame, self.timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(what, answer.code, answer.remark)
        return answer

    async def _call_all_name_servers(self, code: int, ext: dict[str, str], what: str) -> list[Frame]:
        """Send a request to all NameServers, because they share nothing. Raises the first failure, after all have
        answered.
        """

        async def call(address: str) -> Frame:
            return await self.session.call_checked(
                address, Frame(code, ext=dict(ext)), f"{what} at {address}", self.timeout
            )

        answers = await asyncio.gather(
            *(call(address) for address in self.session.name_servers), return_exceptions=True
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, (RemotingError, ClientError)):
                raise failure
        if failures:
            raise failures[0]
        return [answer for answer in answers if isinstance(answer, Frame)]

    async def _select_masters(self, cluster: str | None, groups: Iterable[str] | None) -> dict[str, str]:
        masters = await self.masters(cluster)
        if groups is not None:
            chosen = list(groups)
            unknown = [group for group in chosen if group not in masters]
            if unknown:
                raise NoRoute(f"group {unknown[0]} has no master; groups with one are {', '.join(masters) or 'none'}")
            masters = {group: masters[group] for group in chosen}
        if not masters:
            where = f"cluster {cluster}" if cluster is not None else "any cluster"
            raise NoRoute(f"no broker group of {where} has a master")
        return masters

    def _masters_of(self, route: TopicRoute) -> list[str]:
        return [
            broker.addresses[MASTER_ID]
            for broker in route.brokers
            if MASTER_ID in broker.addresses and broker.name not in self.left_out
        ]

    async def _master_of(self, queue: MessageQueue) -> str:
        await self.session.route(queue.topic)
        return await self.session.master(queue.broker, queue.topic)


def _loads(body: bytes, what: str) -> object:
    try:
        return fastjson.loads(body)
    except fastjson.JsonError as error:
        raise BodyError(f"{what}: {error}") from None


def parse_java_properties(text: str) -> dict[str, str]:
    """Parse lines of `key=value`, without comments."""
    properties = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.lstrip().startswith(("#", "!")):
            properties[key.strip()] = value.strip()
    return properties
