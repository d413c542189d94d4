"""What `gantry migrate check` finds in what a source says. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.source import Look, Source, bound, in_sync_of, look_of, tables_of
from gantry_broker.settings import BrokerSettings
from gantry_operator.migration.check import Facts, findings

SETTINGS = BrokerSettings()
CONFIG = {
    "brokerRole": "ASYNC_MASTER",
    "haListenPort": "10912",
    "mappedFileSizeCommitLog": str(SETTINGS.mappedFileSizeCommitLog),
    "messageDelayLevel": SETTINGS.messageDelayLevel,
}
NOW = {"brokerPermission": "6", "brokerId": "0", "startAcceptSendRequestTimeStamp": "0"}
TOPICS, GROUPS, EMPTY = b'{"topicConfigTable":{}}', b'{"subscriptionGroupTable":{}}', b'{"offsetTable":{}}'
RUNTIME = {"commitLogMinOffset": "0", "commitLogMaxOffset": "5000000000", "brokerVersionDesc": "V4_9_7"}


def look(version: str = "V4_9_7", **config: str) -> Look:
    runtime = RUNTIME | {"brokerVersionDesc": version}
    return look_of("a", "demo", "127.0.0.1:10911", CONFIG | config, runtime, 1)


def facts(**more: Any) -> Facts:
    bounds = {"SCHEDULE_TOPIC_XXXX": {0: (0, 7), 4: (10, 30)}}
    return replace(Facts(look(), Tables(delay={1: 5, 5: 0}), None, bounds, 0, ""), **more)


def kinds(found: Facts) -> dict[str, tuple[str, str]]:
    return {f.item: (f.kind, f.amount) for f in findings(found, SETTINGS, None)}


def test_what_comes_has_its_size_and_what_is_not_known_has_a_dash() -> None:
    found = kinds(facts())
    assert found["log"] == ("comes", "4.7 GiB")
    assert found["delayed by level"] == ("comes", "22")
    assert found["half messages"] == ("comes", "-")
    assert not [item for item, (kind, _) in found.items() if kind != "comes"]


@pytest.mark.parametrize(
    ("more", "item", "kind"),
    [
        ({"look": look(aclEnable="true")}, "users and rules", "changed"),
        ({"look": look(aclEnable="true")}, "signatures", "refused"),
        ({"look": look(authorizationEnabled="true")}, "signatures", "refused"),
        ({"look": look(aclEnable="true"), "users": None}, "users and rules", "missing"),
        ({"look": look(messageStorePlugIn="org.apache.rocketmq.tieredstore.X")}, "tiered storage", "missing"),
        ({"look": look(enableLmq="true")}, "light queues (%LMQ%)", "missing"),
        ({"look": look(messageDelayLevel="1s 2s")}, "delay levels", "changed"),
        (
            {"look": look(transRocksDBEnable="true", transWriteOriginTransHalfEnable="false")},
            "half messages",
            "refused",
        ),
        ({"look": look(transRocksDBEnable="true", transWriteOriginTransHalfEnable="true")}, "half messages", "comes"),
        ({"look": look(mappedFileSizeCommitLog="1048576")}, "segments", "refused"),
        ({"look": look(**NOW | {"brokerPermission": "0"})}, "settings", "refused"),
        ({"look": look(**NOW | {"brokerId": "900"})}, "settings", "refused"),
        ({"look": look(**NOW | {"startAcceptSendRequestTimeStamp": "4102444800000"})}, "settings", "refused"),
        ({"look": look(enableControllerMode="true", version="V5_5_0")}, "controller mode", "comes"),
        ({"look": look(enableControllerMode="true", version="V5_1_0")}, "controller mode", "refused"),
        ({"look": look(enableControllerMode="true", version="V5_0_0")}, "controller mode", "refused"),
        ({"look": replace(look(), version="V4_3_0")}, "version", "refused"),
        ({"ha_problem": "no answer"}, "HA port", "refused"),
        ({"ordered": 3}, "order configuration", "comes"),
    ],
)
def test_what_does_not_come_is_named(more: dict[str, Any], item: str, kind: str) -> None:
    assert kinds(facts(**more))[item][0] == kind


def test_dledger_is_refused_with_the_way_by_messages() -> None:
    with pytest.raises(SourceBroken, match="gantry migrate start --by messages"):
        look(enableDLegerCommitLog="true")


@pytest.mark.parametrize("value", ["", "-1", "1_0", "x", "99999999999999999999"])
def test_a_number_that_no_master_says_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(SourceBroken, match="commitLogMaxOffset of broker a is"):
        look_of("a", "demo", "127.0.0.1:1", CONFIG, RUNTIME | {"commitLogMaxOffset": value}, 0)


def test_a_master_that_never_got_a_message_has_an_empty_log() -> None:
    empty = RUNTIME | {"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}
    found = look_of("a", "demo", "127.0.0.1:1", CONFIG, empty, 0)
    assert (found.start, found.end) == (0, 0)


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"[]",
        b'{"offsetTable":{"T@g":{"0":-5}}}',
        b'{"offsetTable":{"T@g":{"x":1}}}',
        b'{"offsetTable":3}',
        b'{"offsetTable":{"T@g":{"0":1e999}}}',
        b'{"offsetTable":{"T@g":{"9999999999":1}}}',
    ],
)
def test_tables_that_cannot_be_are_refused(table: bytes) -> None:
    topics, groups = b'{"topicConfigTable":{}}', b'{"subscriptionGroupTable":{}}'
    with pytest.raises(MigrationError):
        tables_of(topics, groups, table, b'{"offsetTable":{}}')


@pytest.mark.parametrize(
    "table",
    [b'{"3":1e999}', b'{"3":-1}', b'{"3":99999999999999999999999}', b'{"-3":5}', b'{"9999999999":5}', b'{"x":1}'],
)
def test_a_progress_of_delays_that_cannot_be_is_refused(table: bytes) -> None:
    with pytest.raises(MigrationError):
        tables_of(TOPICS, GROUPS, EMPTY, b'{"offsetTable":' + table + b"}")
    assert tables_of(TOPICS, GROUPS, EMPTY, b'{"offsetTable":{"3":5}}').delay == {3: 5}


def modes_of(**more: object) -> bytes:
    """What 5.5.0 answers for one group that pops a topic."""
    mode = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2, "topic": "T", **more}
    return json.dumps({"messageRequestModeMap": {"T": {"G": mode}}}).encode()


def test_groups_go_on_to_pop() -> None:
    assert tables_of(TOPICS, GROUPS, EMPTY, EMPTY, modes_of()).modes == {"T@G": ("POP", 2)}
    assert tables_of(TOPICS, GROUPS, EMPTY, EMPTY).modes == {}, "4.9 has no POP"


@pytest.mark.parametrize(
    "modes", [b"x", b"[]", b'{"messageRequestModeMap":{"T":3}}', modes_of(mode="X"), modes_of(popShareQueueNum="x")]
)
def test_modes_that_cannot_be_are_refused(modes: bytes) -> None:
    with pytest.raises(MigrationError):
        tables_of(TOPICS, GROUPS, EMPTY, EMPTY, modes)


@pytest.mark.parametrize(
    ("name", "queues"), [("../../evil", 4), ("a/b", 4), ("..", 4), ("", 4), ("T" * 256, 4), ("T", 2**31 - 1)]
)
def test_a_topic_that_no_broker_has_is_refused(name: str, queues: int) -> None:
    topic = {"topicName": name, "readQueueNums": 4, "writeQueueNums": queues}
    with pytest.raises(MigrationError, match=r"topic that cannot be|more than 65536 queues"):
        tables_of(json.dumps({"topicConfigTable": {name: topic}}).encode(), GROUPS, EMPTY, EMPTY)


def test_offsets_behind_the_ends_of_their_queues_are_taken_back() -> None:
    """A message that comes next would count as read, and a delayed one as delivered."""
    tables = Tables(delay={1: 5, 3: 2**62}, offsets={"T@g": {0: 10, 1: 7, 2: 3}})
    ends = {("T", 0): 10, ("T", 1): 4, ("SCHEDULE_TOPIC_XXXX", 0): 5, ("SCHEDULE_TOPIC_XXXX", 2): 8}
    assert bound(tables, lambda topic, queue: ends.get((topic, queue), 0)) == 3
    assert tables.delay == {1: 5, 3: 8}
    assert tables.offsets == {"T@g": {0: 10, 1: 4, 2: 0}}


def test_a_topic_of_gantrys_own_stops_it() -> None:
    topics = b'{"topicConfigTable":{"rmq_sys_GANTRY_CONTROL":{"topicName":"rmq_sys_GANTRY_CONTROL"}}}'
    with pytest.raises(SourceBroken, match="it is no RocketMQ"):
        tables_of(topics, b'{"subscriptionGroupTable":{}}', b'{"offsetTable":{}}', b'{"offsetTable":{}}')


def status_of(*slaves: tuple[bool, int], end: int = 900, in_sync: int | None = None, master: bool = True) -> bytes:
    rows = [{"inSync": is_in, "slaveAckOffset": ack, "addr": "x"} for is_in, ack in slaves]
    number = sum(is_in for is_in, _ in slaves) if in_sync is None else in_sync
    return json.dumps(
        {"master": master, "masterCommitLogMaxOffset": end, "inSyncSlaveNums": number, "haConnectionInfo": rows}
    ).encode()


@pytest.mark.parametrize(
    ("status", "offset"),
    [
        (status_of(), 900),
        (status_of((False, 1)), 900),
        (status_of((True, 700), (True, 800), (False, 1)), 700),
        (status_of((True, -1)), 0),
        (status_of((True, 950)), 900),
        (status_of((True, 700), in_sync=2), None),  # One of them is not connected now.
        (status_of(master=False), None),
    ],
)
def test_what_a_failover_keeps_is_what_each_broker_of_the_set_has(status: bytes, offset: int | None) -> None:
    assert in_sync_of(status) == offset


@pytest.mark.parametrize("status", [b"", b"[]", b"{}", status_of(end=-1), status_of(end=2**63), b'{"master":true}'])
def test_an_ha_status_that_no_master_says_is_an_error(status: bytes) -> None:
    with pytest.raises(MigrationError, match="HA status cannot be read"):
        in_sync_of(status)


@pytest.mark.parametrize("body", [b"\xff" * 8, b"\x80" + bytes(7), b"\x7f" * 8])
async def test_a_progress_of_timers_that_cannot_be_is_an_error_of_the_source(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: Any) -> bytes:
        return body

    source = Source(["127.0.0.1:1"], "a")
    monkeypatch.setattr(source.admin, "ask", ask)
    with pytest.raises(MigrationError, match="progress of timers"):
        await source.timers_delivered_ms("127.0.0.1:1")
