"""Requests with every code, each with every field absent, empty, of the wrong type and enormous.

The cases come from the typed headers. `tests/data/fields/4.9.7.json` holds Apache RocketMQ's answer code for each;
`python -m tests.interop.fields` records them again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from gantry_broker.protocol import headers as h
from gantry_broker.protocol.codes import RequestCode as Code
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import BatchItem, encode_batch

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.interop.fields", *sys.argv[1:])

from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.support import recorded

RECORDED = Path(__file__).resolve().parents[1] / "data" / "fields" / "4.9.7.json"
TOPIC, GROUP = "Fields", "FieldsGroup"
OWN = frozenset({"gantryLarge"})
"""Fields that RocketMQ does not know."""
ENORMOUS_TEXT, ENORMOUS_NUMBER = "y" * 70_000, "9" * 30

BROKER: dict[int, type[h.Header]] = {
    Code.SEND_MESSAGE: h.SendHeader,
    Code.SEND_MESSAGE_V2: h.SendHeader,
    Code.SEND_BATCH_MESSAGE: h.SendHeader,
    Code.SEND_REPLY_MESSAGE: h.SendHeader,
    Code.SEND_REPLY_MESSAGE_V2: h.SendHeader,
    Code.PULL_MESSAGE: h.PullHeader,
    Code.LITE_PULL_MESSAGE: h.PullHeader,
    Code.QUERY_MESSAGE: h.QueryMessageHeader,
    Code.QUERY_CONSUMER_OFFSET: h.QueryOffsetHeader,
    Code.UPDATE_CONSUMER_OFFSET: h.UpdateOffsetHeader,
    Code.UPDATE_AND_CREATE_TOPIC: h.CreateTopicHeader,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: h.SearchOffsetHeader,
    Code.GET_MAX_OFFSET: h.QueueHeader,
    Code.GET_MIN_OFFSET: h.QueueHeader,
    Code.GET_EARLIEST_MSG_STORETIME: h.QueueHeader,
    Code.VIEW_MESSAGE_BY_ID: h.ViewMessageHeader,
    Code.UNREGISTER_CLIENT: h.UnregisterClientHeader,
    Code.CONSUMER_SEND_MSG_BACK: h.SendBackHeader,
    Code.END_TRANSACTION: h.EndTransactionHeader,
    Code.RESUME_CHECK_HALF_MESSAGE: h.ResumeCheckHeader,
    Code.GET_CONSUMER_LIST_BY_GROUP: h.ConsumerGroupHeader,
    Code.GET_TOPIC_STATS_INFO: h.TopicStatsHeader,
    Code.GET_CONSUMER_CONNECTION_LIST: h.ConsumerConnectionsHeader,
    Code.GET_PRODUCER_CONNECTION_LIST: h.ProducerGroupHeader,
    Code.DELETE_SUBSCRIPTIONGROUP: h.DeleteGroupHeader,
    Code.GET_CONSUME_STATS: h.ConsumeStatsHeader,
    Code.DELETE_TOPIC_IN_BROKER: h.TopicHeader,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: h.ResetOffsetHeader,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: h.ConsumerStatusHeader,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: h.TopicHeader,
    Code.QUERY_CONSUME_TIME_SPAN: h.ConsumeTimeSpanHeader,
    Code.GET_CONSUMER_RUNNING_INFO: h.RunningInfoHeader,
    Code.QUERY_CORRECTION_OFFSET: h.CorrectionOffsetHeader,
    Code.CONSUME_MESSAGE_DIRECTLY: h.ConsumeDirectlyHeader,
    Code.CLONE_GROUP_OFFSET: h.CloneOffsetHeader,
    Code.VIEW_BROKER_STATS_DATA: h.StatsDataHeader,
    Code.GET_BROKER_CONSUME_STATS: h.BrokerConsumeStatsHeader,
    Code.QUERY_CONSUME_QUEUE: h.ConsumeQueueHeader,
    Code.QUERY_TOPICS_BY_CONSUMER: h.GroupHeader,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: h.SubscriptionOfGroupHeader,
    Code.GET_TOPIC_CONFIG: h.TopicHeader,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: h.GroupHeader,
}
NAME_SERVER: dict[int, type[h.Header]] = {
    Code.PUT_KV_CONFIG: h.KvHeader,
    Code.GET_KV_CONFIG: h.GetKvHeader,
    Code.DELETE_KV_CONFIG: h.KvHeader,
    Code.REGISTER_BROKER: h.RegisterBrokerHeader,
    Code.UNREGISTER_BROKER: h.UnregisterBrokerHeader,
    Code.GET_ROUTEINFO_BY_TOPIC: h.RouteHeader,
    Code.WIPE_WRITE_PERM_OF_BROKER: h.WritePermHeader,
    Code.ADD_WRITE_PERM_OF_BROKER: h.WritePermHeader,
    Code.DELETE_TOPIC_IN_NAMESRV: h.DeleteTopicInNamesrvHeader,
    Code.GET_KVLIST_BY_NAMESPACE: h.NamespaceHeader,
    Code.GET_TOPICS_BY_CLUSTER: h.ClusterHeader,
    Code.QUERY_DATA_VERSION: h.QueryDataVersionHeader,
}
BODIES: dict[int, str] = {
    Code.UPDATE_AND_CREATE_TOPIC_LIST: "topicConfigList",
    Code.UPDATE_BROKER_CONFIG: "setting",
    Code.HEART_BEAT: "heartbeat",
    Code.LOCK_BATCH_MQ: "lock",
    Code.UNLOCK_BATCH_MQ: "lock",
    Code.CHECK_CLIENT_CONFIG: "checkClient",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "subscriptionGroupConfig",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "groupConfigList",
}
"""Codes with the request in the body, and the name of the request in an error."""
REGISTRATION: frozenset[int] = frozenset({Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION})
"""Codes that a NameServer of Gantry accepts from brokers only, on its registration port."""
WITHOUT: frozenset[int] = frozenset({
    Code.GET_ALL_TOPIC_CONFIG, Code.GET_BROKER_CONFIG, Code.TRIGGER_DELETE_FILES, Code.GET_BROKER_RUNTIME_INFO,
    Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.GET_UNIT_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.CLEAN_UNUSED_TOPIC, Code.GET_ALL_PRODUCER_INFO,
    Code.DELETE_EXPIRED_COMMITLOG, Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Code.GET_NAMESRV_CONFIG,
    Code.UPDATE_NAMESRV_CONFIG,
})  # fmt: skip
"""Requests without a field, and the NameServer's one with a body."""
POP: frozenset[int] = frozenset({
    Code.POP_MESSAGE, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.PEEK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.NOTIFICATION, Code.POLLING_INFO, Code.QUERY_ASSIGNMENT, Code.SET_MESSAGE_REQUEST_MODE,
    Code.GET_ALL_MESSAGE_REQUEST_MODE, Code.RECALL_MESSAGE,
})  # fmt: skip
"""Requests that 4.9.7 does not know: `pop_answers.py` has them with good and bad fields, as 5.5.0 answers them."""
USERS: frozenset[int] = frozenset({
    Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
    Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL,
    Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
})  # fmt: skip
"""Requests about users. They need a super user's signature: `tests/access` and `tests/security/test_access.py`."""

_VALUES: dict[str, str] = {
    "topic": TOPIC, "consumerGroup": GROUP, "group": GROUP, "groupName": GROUP, "srcGroup": GROUP,
    "destGroup": "FieldsClone", "producerGroup": "FieldsProducers", "defaultTopic": "TBW102", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "readQueueNums": "4", "writeQueueNums": "4", "defaultTopicQueueNums": "4",
    "maxMsgNums": "1", "maxNum": "1", "sysFlag": "0", "key": "k", "clientID": "nobody", "clientId": "nobody",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC, "count": "1", "namespace": "fields", "value": "v",
    "brokerName": "fields", "brokerAddr": "127.0.0.1:1", "clusterName": "demo", "cluster": "demo", "brokerId": "0",
    "delayLevel": "0", "commitOrRollback": "8",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One request with one bad field."""

    code: int
    field: str
    wrong: str
    """absent, empty, type or enormous; nothing: a correct request"""
    required: bool
    kind: str
    ext: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return f"{self.code} {self.field} {self.wrong}".replace("  ", " ")


def cases(table: dict[int, type[h.Header]]) -> Iterator[Case]:
    """All cases of a table, for required and optional fields; an optional field has no absent case."""
    for code, header in table.items():
        short = h.SHORT_SEND_NAMES if code in (310, 320, 325) else {}
        wire = {long: letter for letter, long in short.items()}
        plan = [
            (header.WIRE_NAMES.get(name, name), kind, required)
            for name, kind, required, _ in header._fields()
            if name not in OWN
        ]
        good = {
            name: _VALUES.get(name, {"str": "x", "bool": "false"}.get(kind, "0"))
            for name, kind, required in plan
            if required or name in _VALUES
        }
        body = encode_batch([BatchItem(b"x", b"")]) if code == Code.SEND_BATCH_MESSAGE else b""
        fine = {wire.get(key, key): text for key, text in good.items()}
        yield Case(int(code), "", "nothing", False, "", fine, body)
        for name, kind, required in plan:
            values = {
                "absent": None if required else MISSING,
                "empty": "",
                "type": MISSING if kind == "str" else "x",
                "enormous": ENORMOUS_TEXT if kind in ("str", "bool") else ENORMOUS_NUMBER,
            }
            for wrong, value in values.items():
                if value is MISSING:
                    continue
                ext = {key: text for key, text in good.items() if key != name}
                if isinstance(value, str):
                    ext[name] = value
                ext = {wire.get(key, key): text for key, text in ext.items()}
                yield Case(int(code), name, wrong, required, kind, ext, body)


def prepare(target: Target) -> None:
    """Creates the topic and the group of the requests."""
    with Wire(target.broker_address, prefix=target.prefix) as broker:
        config = h.CreateTopicHeader(TOPIC, "TBW102", 4, 4, 6, "SINGLE_TAG")
        broker.call(Code.UPDATE_AND_CREATE_TOPIC, config.ext())
        broker.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": GROUP}).encode())


def ask(address: str, case: Case, prefix: list[str], timeout_s: float) -> Frame | None:
    """Returns the answer, on a connection of its own; None: a timeout."""
    with Wire(address, timeout_s, prefix) as wire:
        try:
            return wire.ask(case.code, case.ext, case.body)
        except OSError:
            return None


def main() -> None:
    from benchmarks.rig import rocketmq

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, rocketmq.rocketmq(Path(name)) as target:
        prepare(target)
        for table, address in ((NAME_SERVER, target.namesrv), (BROKER, target.broker_address)):
            for case in cases(table):
                if case.wrong == "nothing":
                    prepare(target)  # the request before may have deleted the topic or group of the next one
                answer = ask(address, case, target.prefix, 1.5)
                found[case.name] = None if answer is None else answer.code
    recorded.write(RECORDED, found, by_first_word=True)
    print(f"{len(found)} answers")


if __name__ == "__main__":
    main()
