"""Numbers and names in JSON bodies: what Java could not read is refused, field by field; what is stored is read."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.namesrv.registration import decode_registration
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import (
    BatchAcks,
    ClientConnection,
    ConsumerData,
    DataVersion,
    Heartbeat,
    LockRequest,
    QueueData,
    RegisterBody,
    RequestMode,
    SubscriptionData,
    SubscriptionGroup,
    TopicConfig,
    TopicConfigs,
)
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.offset_tables import offset_table

NO_NUMBERS = ("\u00b2", "\uff11", "1_0", "x", " 1")
INT, LONG = 2**31 - 1, 2**63 - 1
SUBSCRIPTION = SubscriptionData("T", "a", "TAG", ["a"], [97], 5)
GROUP = SubscriptionGroup("g", attributes={"+a": "b"})
BODIES: dict[str, tuple[Callable[[Any], Any], Any, dict[str, tuple[int, int]]]] = {
    "topic": (
        TopicConfig.from_json,
        TopicConfig("T").to_json(),
        {"readQueueNums": (0, INT), "writeQueueNums": (0, INT), "perm": (0, INT), "topicSysFlag": (-INT - 1, INT)},
    ),
    "group": (
        SubscriptionGroup.from_json,
        GROUP.to_json(),
        {
            "retryQueueNums": (0, 1_024), "retryMaxTimes": (0, INT), "brokerId": (0, LONG),
            "whichBrokerWhenConsumeSlowly": (0, LONG), "groupSysFlag": (-INT - 1, INT),
            "consumeTimeoutMinute": (0, INT),
        },
    ),
    "subscription": (
        SubscriptionData.from_json, SUBSCRIPTION.to_json(), {"subVersion": (-LONG - 1, LONG)},
    ),
    "version": (
        DataVersion.from_json,
        DataVersion(1, 2, 3).to_json(),
        dict.fromkeys(("counter", "timestamp", "stateVersion"), (-LONG - 1, LONG)),
    ),
    "queues": (
        QueueData.from_json,
        QueueData("b", 1, 1, 6).to_json(),
        dict.fromkeys(("readQueueNums", "writeQueueNums", "perm", "topicSysFlag"), (-INT - 1, INT)),
    ),
    "heartbeat": (
        Heartbeat.from_json,
        {
            **Heartbeat("c", ["p"], [ConsumerData("g", subscriptions=[SUBSCRIPTION])]).to_json(),
            "heartbeatFingerprint": 1,
        },
        {"heartbeatFingerprint": (-INT - 1, INT)},
    ),
    "mode": (RequestMode.from_json, RequestMode("T", "g", "POP", 1).to_json(), {"popShareQueueNum": (-INT - 1, INT)}),
    "connection": (
        ClientConnection.from_json, ClientConnection("c", "a", "JAVA", 1).to_json(), {"version": (-INT - 1, INT)},
    ),
    "ack": (
        lambda value: BatchAcks.from_json({"acks": [value]}),
        {"c": "g", "t": "T", "r": "0", "b": "AQ==", "so": 1, "q": 0, "rq": 0, "pt": 1, "it": 1},
        {"so": (-LONG - 1, LONG), "pt": (-LONG - 1, LONG), "it": (-LONG - 1, LONG), "q": (-INT - 1, INT),
         "rq": (-INT - 1, INT)},
    ),
}  # fmt: skip
"""Each body with the ranges of its numbers."""


@pytest.mark.parametrize("name", BODIES)
def test_each_number_has_a_range(name: str) -> None:
    parse, good, ranges = BODIES[name]
    parse(good)
    numbers = {field for field, value in good.items() if type(value) is int}
    assert numbers == set(ranges), "no number is without one"
    for field, (low, high) in ranges.items():
        for value in (low, high, str(high)):
            parse({**good, field: value})
        for value in (low - 1, high + 1, 10**30, str(high + 1), 1.5, True, [], {}, *NO_NUMBERS):
            with pytest.raises(BodyError, match=rf"\.{field} is .*{low} to {high}"):
                parse({**good, field: value})


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("seed", range(10))
def test_any_value_of_any_field_is_read_or_refused(name: str, seed: int) -> None:
    """Nothing raises another error, and what is read goes to Java within its ranges."""
    dice = random.Random(seed)
    refusals: list[str] = []
    parse, good, _ = BODIES[name]
    values: list[Any] = [None, True, -1, 0, 2**31, 2**63, 10**30, 0.5, "", "x", "1", [], [1], {}, {"a": 1}, [[]], [{}]]
    for _ in range(300):
        value = {field: dice.choice(values) if dice.random() < 0.2 else item for field, item in good.items()}
        try:
            found = parse(value)
        except BodyError as error:
            refusals.append(str(error))
            continue
        if name != "ack" and name != "mode":
            _within(found.to_json())
    assert all([re.search("expected|absent|valid|CLUSTERING", text) for text in refusals])


def _within(value: Any) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _within(item)
    elif isinstance(value, list):
        for item in value:
            _within(item)
    elif isinstance(value, int):
        assert -LONG - 1 <= value <= LONG


def test_names_that_java_does_not_know_are_refused() -> None:
    data = ConsumerData("g").to_json()
    for field in ("consumeType", "messageModel", "consumeFromWhere"):
        with pytest.raises(BodyError, match=f"{field} is 'x'"):
            ConsumerData.from_json({**data, field: "x"})
    with pytest.raises(BodyError, match="topicFilterType is 'x'; SINGLE_TAG or MULTI_TAG"):
        TopicConfig.from_json({**TopicConfig("T").to_json(), "topicFilterType": "x"})
    with pytest.raises(BodyError, match="attributes has 'a'"):
        TopicConfig.from_json({**TopicConfig("T").to_json(), "attributes": {"a": {}}})


def test_codes_and_queues_have_javas_ranges() -> None:
    for code in (2**31, "2147483648", 1.0, "x"):
        with pytest.raises(BodyError, match="codeSet is"):
            SubscriptionData.from_json({**SUBSCRIPTION.to_json(), "codeSet": [code]})
    queue = {"topic": "T", "brokerName": "b", "queueId": 2**31}
    with pytest.raises(BodyError, match="queueId is 2147483648"):
        LockRequest.from_json({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]})
    key = b'{"offsetTable":{{"brokerName":"b","queueId":%s,"topic":"T"}:%s}}'
    assert offset_table(key % (b"2147483647", b"5")) == {MessageQueue("T", "b", INT): 5}
    for queue_id, offset in ((b"2147483648", b"5"), (b"true", b"5"), (b"1", b"9223372036854775808"), (b"1", b"1.5")):
        with pytest.raises(BodyError):
            offset_table(key % (queue_id, offset))


def test_a_registration_has_javas_ranges() -> None:
    configs = TopicConfigs({"T": TopicConfig("T", 2**31, 1)})
    with pytest.raises(BodyError, match="readQueueNums is 2147483648"):
        decode_registration(fastjson.dumps(RegisterBody(configs).to_json()), compressed=False)


def test_what_a_former_release_stored_is_read_and_answered_within_the_ranges() -> None:
    bad = {
        **GROUP.to_json(),
        "retryMaxTimes": 2**31,
        "consumeTimeoutMinute": -5,
        "brokerId": 2**63,
        "groupSysFlag": -(2**40),
    }
    negative = {**GROUP.to_json(), "groupName": "n", "retryMaxTimes": -1}
    topic = {
        **TopicConfig("T").to_json(),
        "topicSysFlag": 2**40,
        "topicFilterType": "x",
        "attributes": {"a": {}, "b": 1},
    }
    tables = Tables()
    assert tables.apply({"at": 1, "groups": [bad, negative], "topics": [topic]})
    group = tables.groups["g"].to_json()
    assert group["retryMaxTimes"] == group["consumeTimeoutMinute"] + INT == INT
    assert (group["brokerId"], group["groupSysFlag"]) == (LONG, -INT - 1)
    assert tables.groups["n"].retry_max_times == 16
    found = tables.topics["T"]
    assert (found.sys_flag, found.filter_type, found.attributes) == (INT, "SINGLE_TAG", {"b": "1"})
    SubscriptionGroup.from_json(group)
    TopicConfig.from_json(found.to_json())
