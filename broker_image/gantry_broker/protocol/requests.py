"""What is true of each request code: the one table. A new code begins with its row here.

All sets of codes below the table are derived from it, as are the handlers of brokers (`broker/handlers/table.py`) and
NameServers (`namesrv/service.py`). A code without a row is answered with "not supported", and needs a super user.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import GantryCode, RequestCode
from gantry_broker.protocol.frame import MAX_FRAME, MAX_HEADER
from gantry_broker.protocol.limits import HEADER, KIB, MAX_ACCESS, MAX_RELAYED, SMALL_BODY
from gantry_broker.protocol.rights import (
    CREATE,
    DELETE,
    GET,
    GROUP,
    LIST,
    MOVE,
    PUB,
    READ,
    SUB,
    TOPIC,
    UPDATE,
    All,
    Named,
    Right,
    acked,
    assigned,
    check_client,
    cluster,
    consumed_directly,
    delivery,
    ended,
    given,
    group,
    heartbeat,
    in_body,
    lock,
    mode_set,
    resumed,
    route,
    sent_back,
    topic,
    viewed,
)

HANDSHAKE: Final = "handshake"
SENDER: Final = "sender"
"""Stands for `broker/send/sender.py`, which takes all sends of one read together."""


class Request(NamedTuple):
    """One row. The first five fields say who answers; all of them absent: nobody, the code is not supported."""

    broker: str = ""
    """The function of `broker/handlers/` (module.function) that answers at a broker's ports for clients, or SENDER."""
    name_server: str = ""
    """The method of `NameService` that answers at a NameServer's ports for clients."""
    registration: str = ""
    """The method of `NameService` that answers brokers, at the registration port."""
    member: str = ""
    """The method of `MemberRequests` that answers members of the group, at the replication port, or HANDSHAKE."""
    to_client: bool = False
    """Brokers send it to clients."""

    right: Right | None = None
    """What a user needs; None: to be a super user."""
    users: bool = False
    """It is about users: it needs a super user's signature in each mode. It is in the audit log, too."""
    audited: bool = False
    """It changes more than messages and a consumer's own progress: the audit log has it."""
    place: bool = False
    """It is about the record at a place of the log. Where no record is, it is refused whatever the rules say: the
    record may come while the request waits for its turn, and no one learns what exists."""
    followers: str = ""
    """A leader takes it from members alone that fetch from it; this is its name in metrics of refusals."""

    body: int = SMALL_BODY
    """Bytes that its body may have; of a send it is the broker's `maxMessageSize`."""
    header: int = HEADER
    """Bytes that its header may have."""
    send: bool = False
    """It carries messages: quotas count them, and too large a body is MESSAGE_ILLEGAL."""

    writes: bool = False
    """Only the leader carries it out: it is kept and forwarded during a handover, and refused by other members.

    Changes without it (offset resets, clones, locks) are not forwarded: who asks for them asks again."""
    leader: bool = False
    """The same for a read: only the leader knows the answer, as what POP has handed out."""
    newest: bool = False
    """A read that a former leader passes on while clients still take it for the leader: a slave learns of the last
    confirmed record some milliseconds late, and a client must find the message that was acknowledged just before."""
    every_member: bool = False
    """A write that mqadmin sends to masters and slaves (`-c`), and gives up at the first refusal. RocketMQ's slaves
    carry it out by themselves; here they pass it on to the leader, for which a second time changes nothing."""
    for_leader: bool = False
    """Clients send it only to the member that they take for the leader. So they do with writes, too."""

    cheap: bool = False
    """It costs 0.1 ms at most whatever it holds; others run in slices of the event loop. A pull or a pop with an SQL92
    filter takes slices by itself."""
    polls: bool = False
    """A leader may hold it until there are messages."""


LISTS: Final = cluster(GET, LIST)

REQUESTS: Final[dict[int, Request]] = {
    # sends
    RequestCode.SEND_MESSAGE: Request(broker=SENDER, right=topic("topic", PUB), send=True, writes=True),
    RequestCode.SEND_MESSAGE_V2: Request(broker=SENDER, right=topic("b", PUB), send=True, writes=True),
    RequestCode.SEND_BATCH_MESSAGE: Request(broker=SENDER, right=topic("b", PUB), send=True, writes=True),
    RequestCode.SEND_REPLY_MESSAGE: Request(
        broker="reply.send_reply", right=topic("topic", PUB), send=True, writes=True
    ),
    RequestCode.SEND_REPLY_MESSAGE_V2: Request(
        broker="reply.send_reply", right=topic("b", PUB), send=True, writes=True
    ),
    RequestCode.END_TRANSACTION: Request(
        broker="transaction.end_transaction", right=ended, place=True, writes=True, cheap=True
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Request(
        broker="transaction.resume_check", right=resumed, place=True, audited=True, writes=True
    ),
    RequestCode.RECALL_MESSAGE: Request(broker="recall.recall", right=topic("topic", PUB), writes=True),
    # consumers
    RequestCode.PULL_MESSAGE: Request(
        broker="pulls.pull", right=All(topic("topic", SUB), group("consumerGroup", SUB)), cheap=True, polls=True
    ),
    RequestCode.LITE_PULL_MESSAGE: Request(
        broker="pulls.pull", right=All(topic("topic", SUB), group("consumerGroup", SUB)), cheap=True, polls=True
    ),
    RequestCode.QUERY_CONSUMER_OFFSET: Request(
        broker="offsets.query_offset", right=All(topic("topic", *READ), group("consumerGroup", *READ)), cheap=True
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Request(
        broker="offsets.update_offset",
        right=All(topic("topic", *MOVE), group("consumerGroup", *MOVE)),
        writes=True,
        cheap=True,
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: Request(
        broker="retry.send_back", right=sent_back, place=True, writes=True, cheap=True
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Request(
        broker="clients.consumer_list", right=group("consumerGroup", *READ)
    ),
    RequestCode.LOCK_BATCH_MQ: Request(broker="clients.lock", right=lock, for_leader=True, body=256 * KIB),
    RequestCode.UNLOCK_BATCH_MQ: Request(broker="clients.unlock", right=lock, for_leader=True, body=256 * KIB),
    RequestCode.CHECK_CLIENT_CONFIG: Request(broker="clients.check_client", right=check_client),
    RequestCode.HEART_BEAT: Request(broker="clients.heartbeat", right=heartbeat, body=512 * KIB),
    RequestCode.UNREGISTER_CLIENT: Request(broker="clients.unregister", right=given(group, "consumerGroup", SUB)),
    RequestCode.POP_MESSAGE: Request(
        broker="pop.pop",
        right=All(topic("topic", SUB), group("consumerGroup", SUB)),
        writes=True,
        cheap=True,
        polls=True,
    ),
    RequestCode.PEEK_MESSAGE: Request(
        broker="pop.peek", right=All(topic("topic", SUB), group("consumerGroup", SUB)), leader=True
    ),
    RequestCode.NOTIFICATION: Request(
        broker="pop.notification", right=All(topic("topic", SUB), group("consumerGroup", SUB)), leader=True, polls=True
    ),
    RequestCode.ACK_MESSAGE: Request(broker="pop.ack", right=delivery, writes=True, cheap=True),
    RequestCode.BATCH_ACK_MESSAGE: Request(broker="pop.batch_ack", right=acked, writes=True),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Request(
        broker="pop.change_invisible", right=delivery, writes=True, cheap=True
    ),
    RequestCode.POLLING_INFO: Request(
        broker="pop.polling_info", right=All(topic("topic", *READ), group("consumerGroup", *READ)), leader=True
    ),
    RequestCode.QUERY_ASSIGNMENT: Request(broker="assignments.query_assignment", right=assigned),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Request(
        broker="assignments.set_request_mode", right=mode_set, audited=True, writes=True
    ),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: Request(broker="assignments.all_request_modes", right=LISTS),
    # messages and offsets
    RequestCode.QUERY_MESSAGE: Request(broker="query.query_message", right=topic("topic", *READ)),
    RequestCode.VIEW_MESSAGE_BY_ID: Request(broker="query.view_message", right=viewed, place=True),
    RequestCode.QUERY_CONSUME_QUEUE: Request(
        broker="query.query_consume_queue", right=All(topic("topic", GET), given(group, "consumerGroup", GET))
    ),
    RequestCode.GET_MAX_OFFSET: Request(
        broker="offsets.max_offset", right=topic("topic", *READ), newest=True, cheap=True
    ),
    RequestCode.GET_MIN_OFFSET: Request(broker="offsets.min_offset", right=topic("topic", *READ), cheap=True),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Request(broker="offsets.search_offset", right=topic("topic", *READ)),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Request(broker="offsets.earliest_store_time", right=topic("topic", *READ)),
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: Request(
        broker="topicadmin.create_topic", right=topic("topic", CREATE), audited=True, writes=True
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Request(
        broker="topicadmin.create_topics",
        right=in_body(TOPIC, "topicConfigList", "topicName"),
        audited=True,
        writes=True,
        body=512 * KIB,
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Request(
        broker="topicadmin.delete_topic", right=topic("topic", DELETE), audited=True, writes=True, every_member=True
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Request(
        name_server="_delete_topic", right=topic("topic", DELETE), audited=True
    ),
    RequestCode.GET_TOPIC_CONFIG: Request(broker="topicadmin.topic_config", right=topic("topic", GET)),
    RequestCode.GET_TOPIC_STATS_INFO: Request(broker="topicadmin.topic_stats", right=topic("topic", GET)),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Request(broker="topicadmin.consumed_by", right=topic("topic", GET)),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Request(name_server="_route", registration="_route", right=route),
    RequestCode.GET_ALL_TOPIC_CONFIG: Request(broker="topicadmin.all_topics", right=LISTS),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Request(name_server="_list_topics", right=LISTS),
    RequestCode.GET_TOPICS_BY_CLUSTER: Request(name_server="_list_topics", right=LISTS),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Request(name_server="_system_topics", right=LISTS),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Request(broker="topicadmin.system_topic_list", right=LISTS),
    RequestCode.GET_UNIT_TOPIC_LIST: Request(broker="topicadmin.unit_topics", name_server="_list_topics", right=LISTS),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Request(
        broker="topicadmin.unit_topics", name_server="_list_topics", right=LISTS
    ),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Request(name_server="_list_topics", right=LISTS),
    RequestCode.CLEAN_UNUSED_TOPIC: Request(
        broker="topicadmin.clean_unused", right=cluster(UPDATE), audited=True, writes=True, every_member=True
    ),
    # groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Request(
        broker="groupadmin.create_group", right=in_body(GROUP, "", "groupName"), audited=True, writes=True
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Request(
        broker="groupadmin.create_groups",
        right=in_body(GROUP, "groupConfigList", "groupName"),
        audited=True,
        writes=True,
        body=512 * KIB,
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Request(
        broker="groupadmin.delete_group", right=group("groupName", DELETE), audited=True, writes=True
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Request(broker="groupadmin.group_config", right=group("group", GET)),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Request(broker="groupadmin.all_groups", right=LISTS),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Request(
        broker="groupadmin.consumer_connections", right=group("consumerGroup", GET)
    ),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Request(
        broker="groupadmin.producer_connections", right=group("producerGroup", GET)
    ),
    RequestCode.GET_ALL_PRODUCER_INFO: Request(broker="groupadmin.all_producers", right=LISTS),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Request(broker="groupadmin.running_info", right=group("consumerGroup", GET)),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Request(
        broker="groupadmin.consume_directly", right=consumed_directly, place=True, audited=True
    ),
    RequestCode.GET_CONSUME_STATS: Request(
        broker="groupadmin.consume_stats", right=All(group("consumerGroup", GET), given(topic, "topic", GET))
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: Request(broker="groupadmin.broker_consume_stats", right=cluster(GET)),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Request(broker="groupadmin.topics_by_consumer", right=group("group", GET)),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Request(
        broker="groupadmin.subscription_by_consumer", right=All(group("group", GET), topic("topic", GET))
    ),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Request(
        broker="groupadmin.consume_time_span", right=All(group("group", GET), topic("topic", GET))
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: Request(
        broker="groupadmin.correction_offset", right=All(topic("topic", GET), given(group, "compareGroup", GET))
    ),
    RequestCode.CLONE_GROUP_OFFSET: Request(
        broker="groupadmin.clone_offsets",
        right=All(group("srcGroup", GET), group("destGroup", UPDATE), given(topic, "topic", GET)),
        audited=True,
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Request(
        broker="groupadmin.reset_offsets", right=All(group("group", UPDATE), topic("topic", UPDATE, GET)), audited=True
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Request(
        broker="groupadmin.consumer_status", right=All(group("group", GET), topic("topic", GET))
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: Request(broker="groupadmin.all_offsets", right=cluster(GET)),
    RequestCode.GET_ALL_DELAY_OFFSET: Request(broker="groupadmin.all_delay", right=cluster(GET)),
    # the broker and the NameServer
    RequestCode.UPDATE_BROKER_CONFIG: Request(
        broker="admin.update_config", right=cluster(UPDATE), audited=True, writes=True, every_member=True
    ),
    RequestCode.GET_BROKER_CONFIG: Request(broker="admin.get_config", right=cluster(GET)),
    RequestCode.GET_BROKER_RUNTIME_INFO: Request(broker="admin.runtime_info", right=cluster(GET)),
    RequestCode.VIEW_BROKER_STATS_DATA: Request(broker="admin.stats_data", right=cluster(GET)),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Request(
        broker="topicadmin.clean_queues", right=cluster(UPDATE), audited=True
    ),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Request(broker="topicadmin.clean_log", right=cluster(UPDATE), audited=True),
    RequestCode.TRIGGER_DELETE_FILES: Request(broker="topicadmin.clean_log", right=cluster(UPDATE), audited=True),
    RequestCode.GET_BROKER_CLUSTER_INFO: Request(name_server="_cluster_info", right=cluster(GET)),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Request(name_server="_change_kv", right=cluster(UPDATE), audited=True),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Request(name_server="_change_kv", right=cluster(UPDATE), audited=True),
    RequestCode.PUT_KV_CONFIG: Request(
        name_server="_change_kv", right=cluster(UPDATE), audited=True, header=MAX_HEADER
    ),
    RequestCode.DELETE_KV_CONFIG: Request(name_server="_change_kv", right=cluster(UPDATE), audited=True),
    RequestCode.GET_KV_CONFIG: Request(name_server="_get_kv", right=cluster(GET)),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Request(name_server="_kv_list", right=cluster(GET)),
    RequestCode.UPDATE_NAMESRV_CONFIG: Request(name_server="_update_config", right=cluster(UPDATE), audited=True),
    RequestCode.GET_NAMESRV_CONFIG: Request(name_server="_get_config", right=cluster(GET)),
    # users
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: Request(broker="users.manage", users=True),
    RequestCode.DELETE_ACL_CONFIG: Request(broker="users.manage", users=True),
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: Request(broker="users.manage", users=True),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Request(broker="users.manage", users=True),
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: Request(broker="users.manage", users=True),
    RequestCode.AUTH_CREATE_USER: Request(broker="users.manage", users=True),
    RequestCode.AUTH_UPDATE_USER: Request(broker="users.manage", users=True),
    RequestCode.AUTH_DELETE_USER: Request(broker="users.manage", users=True),
    RequestCode.AUTH_GET_USER: Request(broker="users.manage", users=True),
    RequestCode.AUTH_LIST_USER: Request(broker="users.manage", users=True),
    RequestCode.AUTH_CREATE_ACL: Request(broker="users.manage", users=True),
    RequestCode.AUTH_UPDATE_ACL: Request(broker="users.manage", users=True),
    RequestCode.AUTH_DELETE_ACL: Request(broker="users.manage", users=True),
    RequestCode.AUTH_GET_ACL: Request(broker="users.manage", users=True),
    RequestCode.AUTH_LIST_ACL: Request(broker="users.manage", users=True),
    # registrations, from brokers to NameServers
    RequestCode.REGISTER_BROKER: Request(
        registration="_register", body=8 * KIB * KIB
    ),  # some 50,000 topics; parsed in slices
    RequestCode.UNREGISTER_BROKER: Request(registration="_unregister"),
    RequestCode.QUERY_DATA_VERSION: Request(registration="_query_data_version"),
    # requests from brokers to clients
    RequestCode.CHECK_TRANSACTION_STATE: Request(to_client=True),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Request(to_client=True),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Request(to_client=True),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Request(to_client=True),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Request(to_client=True),
    # requests between Gantry's own processes
    GantryCode.FETCH: Request(member="fetch", body=plausible.MAX_LEADER_EPOCHS_BYTES),
    GantryCode.FORWARD: Request(
        member="forward", followers="forward", body=MAX_FRAME
    ),  # bundles, which are bounded by their sender
    GantryCode.RAFT: Request(member="raft"),
    GantryCode.READ_LOG: Request(member="read_log", followers="read-log"),
    GantryCode.HANDSHAKE: Request(member=HANDSHAKE),
    GantryCode.UPDATE_ACCESS: Request(registration="_update_access", body=MAX_ACCESS),
    GantryCode.PROXY_CLIENTS: Request(broker="clients.proxy_clients", body=1024 * KIB),  # 200 clients of 16 topics
    GantryCode.RELAY: Request(member="relay", followers="relay", body=MAX_RELAYED),
    GantryCode.REGISTER_CHANGES: Request(registration="_register_changes"),  # SMALL_BODY: some 400 topics
    # not supported (docs/compatibility.md says why)
    **dict.fromkeys(
        (
            RequestCode.QUERY_BROKER_OFFSET,
            RequestCode.GET_TOPIC_CONFIG_LIST,
            RequestCode.GET_TOPIC_NAME_LIST,
            RequestCode.GET_CLIENT_CONFIG,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
            RequestCode.SUSPEND_CONSUMER,
            RequestCode.RESUME_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
            RequestCode.ADJUST_CONSUMER_THREAD_POOL,
            RequestCode.WHO_CONSUME_THE_MESSAGE,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RequestCode.REGISTER_FILTER_SERVER,
            RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            RequestCode.GET_BROKER_MEMBER_GROUP,
            RequestCode.ADD_BROKER,
            RequestCode.REMOVE_BROKER,
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.RESET_MASTER_FLUSH_OFFSET,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.GET_BROKER_EPOCH_CACHE,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.GET_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
            RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
            RequestCode.GET_SYNC_STATE_DATA_REQUEST,
            RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
            RequestCode.SET_COMMITLOG_READ_MODE,
            RequestCode.SWITCH_TIMER_ENGINE,
            RequestCode.POP_ROLLBACK,
            RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL,
            RequestCode.ACK_LITE_MESSAGE,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
            RequestCode.GET_BROKER_LITE_INFO,
            RequestCode.GET_PARENT_TOPIC_INFO,
            RequestCode.GET_LITE_TOPIC_INFO,
            RequestCode.GET_LITE_CLIENT_INFO,
            RequestCode.GET_LITE_GROUP_INFO,
            RequestCode.TRIGGER_LITE_DISPATCH,
        ),
        Request(),
    ),
}


def _codes(true_of: Callable[[Request], object]) -> frozenset[int]:
    return frozenset(int(code) for code, row in REQUESTS.items() if true_of(row))


# ---- who answers

TO_SENDER: Final = _codes(lambda row: row.broker == SENDER)
"""Sends that the sender takes; replies are sends, too, and have a handler."""
PULLS: Final = _codes(lambda row: row.broker == "pulls.pull")
OF_FOLLOWERS: Final = {int(code): row.followers for code, row in REQUESTS.items() if row.followers}
"""Codes that a leader takes from its followers only, with their names in metrics."""

# ---- who may ask

RIGHTS: Final[dict[int, Right]] = {int(code): row.right for code, row in REQUESTS.items() if row.right is not None}
NAMED: Final[dict[int, tuple[str, ...]]] = {
    code: tuple(right.fields) for code, right in RIGHTS.items() if isinstance(right, (Named, All)) and right.fields
}
"""For codes whose resources stand in the header and nowhere else: the fields of their names. Requests of one code with
the same names need the same rights."""
NAMES: Final[dict[int, Callable[[Mapping[str, str]], Hashable]]] = {
    code: itemgetter(*fields) for code, fields in NAMED.items()
}
"""Reads these names. Raises KeyError when one is absent."""
USER_CODES: Final = _codes(lambda row: row.users)
ADMINISTRATIVE: Final = _codes(lambda row: row.users or row.audited)
PLACES: Final = _codes(lambda row: row.place)

# ---- how much they may bring

SENDS: Final = _codes(lambda row: row.send)
BODIES: Final[dict[int, int]] = {
    int(code): row.body for code, row in REQUESTS.items() if row.body != SMALL_BODY and (row.broker or row.name_server)
}
"""Bytes of the body by request code, where that is more than `SMALL_BODY`."""
MEMBERS_BODIES: Final[dict[int, int]] = {
    int(code): row.body for code, row in REQUESTS.items() if row.body != SMALL_BODY and (row.member or row.registration)
}
"""The same for requests that only the ports between members take."""
HEADERS: Final[dict[int, int]] = {int(code): row.header for code, row in REQUESTS.items() if row.header != HEADER}
"""Bytes of the header by request code, where that is more than `HEADER`."""

# ---- which member carries them out

LEADER_ONLY: Final = _codes(lambda row: row.writes or row.leader)
FORWARDED: Final = _codes(lambda row: row.writes or row.leader or row.newest)
"""Requests that a former leader passes on; a FORWARD may wrap no others."""
TO_EVERY_MEMBER: Final = _codes(lambda row: row.every_member)
FOR_LEADER: Final = _codes(lambda row: row.for_leader or ((row.writes or row.leader) and not row.every_member))
"""Requests that a client sends only to the member that it takes for the leader, pulls that commit an offset aside."""

# ---- how they run

CHEAP: Final = _codes(lambda row: row.cheap)
POLLS: Final = _codes(lambda row: row.polls)
POP_POLLS: Final = POLLS - PULLS
"""Polls that wait in a task of their own; the pull service holds pulls."""
