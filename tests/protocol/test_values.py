"""Headers, fastjson's dialect and bodies: refused input and its error texts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from gantry_broker.protocol import fastjson, headers
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import (
    Heartbeat,
    LockRequest,
    RegisterBody,
    SubscriptionData,
    SubscriptionGroup,
    TopicConfig,
    TopicRoute,
)
from gantry_broker.protocol.fastjson import JsonError, MessageQueue
from gantry_broker.protocol.fields import BodyError, parse
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import PullHeader, QueueHeader, RegisterBrokerHeader, SendHeader
from gantry_broker.protocol.offset_tables import offset_table
from hypothesis import given
from hypothesis import strategies as st

SEND = dict(zip("abcdefgh", ["pg", "T", "TBW102", "4", "0", "0", "1", "0"], strict=True))


@pytest.mark.parametrize(
    ("ext", "words"),
    [
        ({**SEND, "e": "x"}, "the field queueId is 'x'; a whole number from -2147483648 to 2147483647 is expected"),
        ({**SEND, "e": "99999999999"}, "the field queueId"),
        ({**SEND, "g": "٣"}, "the field bornTimestamp"),
        ({**SEND, "m": "perhaps"}, "the field batch is 'perhaps'; true or false is expected"),
        ({key: value for key, value in SEND.items() if key != "b"}, "the field topic is absent; a text is expected"),
        ({**SEND, "d": "1" * 5000}, "the field defaultTopicQueueNums"),
    ],
)
def test_a_bad_field_is_named_by_its_long_name(ext: dict[str, str], words: str) -> None:
    with pytest.raises(BadField) as caught:
        SendHeader.parse(Frame(310, ext=ext))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_defaults_and_long_numbers() -> None:
    header = PullHeader.from_ext(
        {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(2**62), "maxMsgNums": "32",
         "sysFlag": "2", "commitOffset": "0"}
    )  # fmt: skip
    assert (header.queueOffset, header.suspendTimeoutMillis, header.expressionType) == (2**62, 0, "TAG")
    assert RegisterBrokerHeader.from_ext(
        {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0", "gantryEpoch": "7"}
    ).gantryEpoch == 7  # fmt: skip


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=8))
def test_any_fields_are_a_header_or_a_bad_field(ext: dict[str, str]) -> None:
    for kind in (SendHeader, PullHeader, QueueHeader):
        with pytest.raises(BadField):
            kind.from_ext(ext)


def test_the_annotations_of_a_header_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    QueueHeader.from_ext({"topic": "T", "queueId": "0"})

    def read_again(cls: type) -> dict[str, object]:
        raise AssertionError(f"the annotations of {cls.__name__} are read for each request")

    monkeypatch.setattr(headers, "get_type_hints", read_again)
    assert QueueHeader.from_ext({"topic": "T", "queueId": "7"}) == QueueHeader("T", 7)


def test_the_dialect_is_read() -> None:
    queue = MessageQueue("T", "a", 0)
    assert fastjson.loads(b'{0:"x" , -1:"y"}') == {"0": "x", "-1": "y"}
    assert fastjson.loads(b'{{"brokerName":"a","queueId":0,"topic":"T"}:{"x":[1,2.5,null,true]}}') == {
        queue: {"x": [1, 2.5, None, True]}
    }
    assert fastjson.loads(b'{{"id":3}:"z"}') == {(("id", 3),): "z"}


def test_the_dialect_is_written() -> None:
    queue = MessageQueue("T", "a", 0)
    assert fastjson.dumps({"t": {queue: 1}}) == b'{"t":{{"brokerName":"a","queueId":0,"topic":"T"}:1}}'
    assert fastjson.dumps({0: "x", 1: [queue]}) == b'{0:"x",1:[{"brokerName":"a","queueId":0,"topic":"T"}]}'
    with pytest.raises(TypeError):
        fastjson.dumps({"x": object()})
    with pytest.raises(TypeError):
        fastjson.dumps({(1, 2): 3})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
        | st.dictionaries(
            st.builds(MessageQueue, st.just("T"), st.just("b"), st.integers(0, 9)), inner, min_size=1, max_size=3
        )
    ),
    max_leaves=8,
)


@given(values)
def test_any_value_of_the_dialect_round_trips(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value


@given(st.text(alphabet='{}[]":,0123456789-.eE truefalsn\\u', max_size=40))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    with suppress(JsonError):
        fastjson.loads(text.encode())


def test_deep_and_long_texts_are_refused() -> None:
    with pytest.raises(JsonError, match="deep"):
        fastjson.loads(b"{0:" * 100)
    with pytest.raises(JsonError, match="deep"):
        fastjson.loads(b"{0:[" + b"[" * 100_000)
    with pytest.raises(JsonError, match="bytes"):
        fastjson.loads(b"{" * (fastjson.MAX_DIALECT_BYTES + 1))
    with pytest.raises(JsonError, match="digits"):
        fastjson.loads(b"{0:" + b"9" * 100_000 + b"}")
    with pytest.raises(JsonError, match="UTF-8"):
        fastjson.loads(b'{0:"\xff"}')


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Heartbeat.from_json([]), "heartbeat is a JSON list; an object is expected"),
        (lambda: Heartbeat.from_json({"clientID": 5}), "heartbeat.clientID is 5; a text is expected"),
        (
            lambda: Heartbeat.from_json({"clientID": "c", "consumerDataSet": [{"groupName": "g", "unitMode": 1}]}),
            "consumerData.unitMode is 1; true or false is expected",
        ),
        (lambda: Heartbeat.from_json({"clientID": "c", "producerDataSet": 7}), "an array is expected"),
        (lambda: LockRequest.from_json({"consumerGroup": "g"}), "lock.clientId is absent"),
        (lambda: TopicConfig.from_json({"topicName": "T", "perm": "rw"}), "topicConfig.perm is 'rw'"),
        (lambda: SubscriptionGroup.from_json({}), "subscriptionGroupConfig.groupName is absent"),
        (lambda: RegisterBody.from_json({"topicConfigSerializeWrapper": 3}), "topicConfigSerializeWrapper is 3"),
        (
            lambda: TopicRoute.from_json({"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"x": "h:1"}}]}),
            "brokerAddrs",
        ),
        (lambda: offset_table(b'{"offsetTable":{"a":1}}'), "offsetTable"),
        (lambda: parse(b"<xml/>", "heartbeat"), "heartbeat: unexpected"),
    ],
)
def test_a_bad_body_names_its_field(call: object, words: str) -> None:
    with pytest.raises(BodyError) as caught:
        call()  # type: ignore[operator]
    assert words in str(caught.value)


def test_offsets_in_the_form_of_other_languages() -> None:
    body = b'{"offsetTable":[{"topic":"T","brokerName":"a","queueId":1,"offset":9}]}'
    assert offset_table(body) == {MessageQueue("T", "a", 1): 9}


def test_tag_codes_may_be_written_as_texts() -> None:
    """RocketMQ's Go client does this."""
    data = SubscriptionData.from_json({"topic": "T", "subString": "a || b", "codeSet": ["97", 98]})
    assert data.codes == [97, 98]
    for wrong in ("x", "", "9" * 30, "1.5", None, True):
        with pytest.raises(BodyError, match="codeSet"):
            SubscriptionData.from_json({"topic": "T", "codeSet": [wrong]})
