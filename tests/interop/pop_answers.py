"""What Apache RocketMQ 5.5.0 answers to requests about POP, timers, recall and topic attributes, and what Gantry does.

`play` sends the same frames to a broker and reduces each answer to its code, its fields and its body with times,
offsets and addresses as words. `tests/data/pop/5.5.0.json` has Apache's answers; `python -m tests.interop.pop_answers`
records them again. It needs what the other tests of this folder need.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.interop.pop_answers", *sys.argv[1:])

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import Perm, Prop, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import CreateTopicHeader, Long, SendHeader
from gantry_broker.protocol.message import decode_records, format_properties, parse_properties

from benchmarks.rig import rocketmq
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.support import recorded
from tests.support.heartbeats import heartbeat

RECORDED: Final = Path(__file__).resolve().parents[1] / "data" / "pop" / "5.5.0.json"

Answers = dict[str, dict[str, Any]]
DAY_MS: Final = 86_400_000
_TIME: Final = re.compile(r"\b1[5-9]\d{11}\b")
_ADDRESS: Final = re.compile(r"/?127\.0\.0\.1:\d+")


HIDDEN: Final = (
    Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, Prop.CLUSTER, Prop.MSG_REGION, Prop.TRACE_SWITCH, Prop.WAIT_STORE_MSG_OK,
)  # fmt: skip
"""Properties of each message, or that the two systems keep or not whatever the request is."""


def plain(text: str) -> str:
    """Returns a text with times and addresses as words."""
    return _ADDRESS.sub("ADDRESS", _TIME.sub("TIME", text))


class Story:
    """One play: connections, and the answers so far."""

    def __init__(self, target: Target, stack: ExitStack) -> None:
        self.target = target
        self.answers: Answers = {}
        self._stack = stack
        self.wire = self.connect()
        self._ids = itertools.count(1)

    def connect(self) -> Wire:
        return self._stack.enter_context(Wire(self.target.broker_address, 30, self.target.prefix))

    def ask(self, name: str, code: int, ext: dict[str, Any], body: bytes = b"", wire: Wire | None = None) -> Frame:
        """Sends a request, and notes the answer under a name. Fields that are None are absent."""
        fields = {key: str(value) for key, value in ext.items() if value is not None}
        answer = (wire or self.wire).ask(code, fields, body)
        noted: dict[str, Any] = {"code": answer.code}
        if answer.ext:
            noted["ext"] = {key: _field(key, value) for key, value in sorted(answer.ext.items()) if value}
        if answer.body:
            noted["body"] = _body(answer.body)
        if name in self.answers:
            raise ValueError(f"two cases have the name {name}")
        self.answers[name] = noted
        return answer

    def topic(self, name: str, queues: int = 1, perm: int = Perm.READ | Perm.WRITE) -> str:
        header = CreateTopicHeader(name, "TBW102", queues, queues, perm, "SINGLE_TAG", 0, False)
        self.wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.ext())
        self._routed(name)
        return name

    def _routed(self, topic: str) -> None:
        """Waits for the route: 5.5.0's brokers read it for assignments."""
        ends = time.monotonic() + 40
        while time.monotonic() < ends:
            with Wire(self.target.namesrv, 10, self.target.prefix) as names:
                if names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"{topic} has no route")

    def group(self, name: str, **more: Any) -> str:
        config = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, **more}
        body = json.dumps(config).encode()
        self.wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        return name

    def send(self, topic: str, queue: int = 0, body: bytes = b"x", **props: str) -> tuple[dict[str, str], str]:
        """Returns the fields of a send's answer, and the unique key."""
        answer, key = self.try_send(topic, queue, body, **props)
        if answer.code != 0:
            raise RuntimeError(f"send to {topic}: {answer.code} {answer.remark}")
        time.sleep(0.05)  # 5.5.0 puts it into its queue some milliseconds later.
        return answer.ext, key

    def try_send(self, topic: str, queue: int = 0, body: bytes = b"x", **props: str) -> tuple[Frame, str]:
        key = f"AC110001{next(self._ids):024X}"
        named = {Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: key, Prop.WAIT_STORE_MSG_OK: "true", **props}
        text = format_properties(named).decode()
        header = SendHeader("p", topic, "TBW102", 4, queue, 0, Long(int(time.time() * 1000)), 0, text, 0, False)
        return self.wire.ask(RequestCode.SEND_MESSAGE_V2, header.short_ext(), body), key


def _field(key: str, value: str) -> str:
    if key in ("startOffsetInfo", "msgOffsetInfo"):
        return ";".join(sorted(value.split(";")))  # RocketMQ begins with any queue.
    if key == "reviveQid":
        return re.sub(r"^[0-7]$", "REVIVE", value)
    if key == "recallHandle":
        words = base64.urlsafe_b64decode(value).decode().split(" ")
        return " ".join([words[0], words[1], "BROKER", "TIME", "KEY", *words[5:]])
    if key in ("msgId", "transactionId", "MSG_REGION", "TRACE_ON"):
        return "TEXT"
    return plain(value)


def _body(body: bytes) -> Any:
    if body[:1] in (b"{", b"["):
        return _shape(fastjson.loads(body))
    return [
        _record(record) for record in sorted(decode_records(body), key=lambda one: (one.queue_id, one.queue_offset))
    ]


def _record(record: Any) -> dict[str, Any]:
    props = parse_properties(record.properties)
    shown = {name: plain(value) for name, value in sorted(props.items()) if name not in HIDDEN}
    return {
        "topic": record.topic, "queue": record.queue_id, "offset": record.queue_offset, "body": record.body.decode(),
        "reconsumeTimes": record.reconsume_times, "props": shown,
    }  # fmt: skip


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {plain(str(key)): _shape(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, float):
        return "NUMBER"
    if isinstance(value, int) and value > 1_500_000_000_000:
        return "TIME"
    if isinstance(value, list):
        return sorted((_shape(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return plain(value) if isinstance(value, str) else value


POP: Final = RequestCode.POP_MESSAGE


def pop_ext(group: str, topic: str, /, **more: Any) -> dict[str, Any]:
    """Returns the fields of a POP_MESSAGE that does not wait."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": 8, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": int(time.time() * 1000), "initMode": 0, "expType": "TAG", "exp": "*", "order": "false", **more,
    }  # fmt: skip


def handle_of(answer: Frame, at: int = 0, order: bool = False) -> str:
    """Returns the handle of a popped record as the official clients build it from the answer's fields."""
    record = decode_records(answer.body)[at]
    ext = answer.ext
    start = dict(_rows(ext["startOffsetInfo"]))
    key = ("0", str(record.queue_id))
    props = parse_properties(record.properties)
    if Prop.POP_CK in props:
        return f"{props[Prop.POP_CK]} {record.queue_offset}"
    broker = "demo-a"
    kind = "0" if ("0", str(record.queue_id)) in start else "1"
    first = start.get(key) or start[(kind, str(record.queue_id))]
    return (
        f"{first} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} {kind} {broker} "
        f"{record.queue_id} {record.queue_offset}"
    )


def _rows(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    for row in text.split(";"):
        if row:
            kind, queue, value = row.split(" ")
            yield (kind, queue), value


def ack_ext(group: str, topic: str, answer: Frame, at: int = 0, /, **more: Any) -> dict[str, Any]:
    record = decode_records(answer.body)[at]
    return {
        "consumerGroup": group, "topic": topic, "queueId": record.queue_id, "offset": record.queue_offset,
        "extraInfo": handle_of(answer, at), **more,
    }  # fmt: skip


def play(target: Target, parts: Sequence[Callable[[Story], None]]) -> Answers:
    """Returns the answer to each case."""
    with ExitStack() as stack:
        story = Story(target, stack)
        for part in parts:
            part(story)
        return story.answers


def pops(story: Story) -> None:
    topic, group = story.topic("Pop", 2), story.group("popGroup")
    story.topic("PopNoRead", 1, Perm.WRITE)
    story.group("popDisabled", consumeEnable=False)
    good = pop_ext(group, topic)
    for field in good:
        story.ask(f"pop without {field}", POP, {**pop_ext(group, topic), field: None})
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of an unknown group": {"consumerGroup": "noSuchPopGroup"},
        "of a group that may not consume": {"consumerGroup": "popDisabled"},
        "of a topic without read permission": {"topic": "PopNoRead"},
        "of 33": {"maxMsgNums": 33},
        "of 0": {"maxMsgNums": 0},
        "of -1": {"maxMsgNums": -1},
        "of a queue too high": {"queueId": 2},
        "of queue -2": {"queueId": -2},
        "born long ago": {"bornTime": 1},
        "born long ago with a wait": {"bornTime": int(time.time() * 1000) - 60_000, "pollTime": 1000},
        "with a broken SQL": {"expType": "SQL92", "exp": "a >"},
        "with an unknown kind of filter": {"expType": "GREP", "exp": "a"},
        "with init mode 7": {"initMode": 7},
        "with invisible time 0": {"invisibleTime": 0},
        "with invisible time -1": {"invisibleTime": -1},
        "with a queue that is no number": {"queueId": "x"},
        "with order that is no boolean": {"order": "x"},
        "of an empty topic, with a wait of 300 ms": {"pollTime": 300},
    }.items():
        story.ask(f"pop {case}", POP, {**pop_ext(group, topic), **more})
    for body in (b"a", b"b", b"c"):
        story.send(topic, 0, body, TAGS="T")
    story.ask("pop of three", POP, pop_ext(group, topic, queueId=0))
    story.ask("pop while three are in flight", POP, pop_ext(group, topic, queueId=0))
    story.send(topic, 1, b"d", TAGS="U")
    story.send(topic, 1, b"e", TAGS="T")
    story.ask("pop by tag", POP, pop_ext(group, topic, queueId=1, exp="T"))
    story.send(topic, 0, b"f")
    story.send(topic, 1, b"g")
    story.ask("pop from all queues", POP, pop_ext(group, topic))


def acks(story: Story) -> None:
    topic, group = story.topic("PopAck"), story.group("popAckGroup")
    for body in (b"a", b"b", b"c", b"d", b"e"):
        story.send(topic, 0, body)
    got = story.ask("pop of five", POP, pop_ext(group, topic))
    code = RequestCode.ACK_MESSAGE
    for field in ack_ext(group, topic, got):
        story.ask(f"ack without {field}", code, ack_ext(group, topic, got, **{field: None}))
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of a queue too high": {"queueId": 1},
        "of queue -1": {"queueId": -1},
        "of an offset too high": {"offset": 6},
        "of the offset after the last": {"offset": 5},
        "of offset -1": {"offset": -1},
        "with a broken handle": {"extraInfo": "x"},
        "with an empty handle": {"extraInfo": ""},
        "with letters in the handle": {"extraInfo": "a b c d e f g h"},
        "with a group that does not exist": {"consumerGroup": "noSuchAckGroup"},
    }.items():
        story.ask(f"ack {case}", code, ack_ext(group, topic, got, **more))
    story.ask("ack", code, ack_ext(group, topic, got, 0))
    story.ask("ack again", code, ack_ext(group, topic, got, 0))
    batch = RequestCode.BATCH_ACK_MESSAGE
    story.ask("batch ack without a body", batch, {})
    story.ask("batch ack of nothing", batch, {}, json.dumps({"brokerName": "demo-a", "acks": []}).encode())
    story.ask("batch ack with a body that is no JSON", batch, {}, b"{")
    start, pop_time, invisible, revive = handle_of(got).split(" ")[:4]
    bits = base64.b64encode(bytes([0b00000110])).decode()
    entry = {
        "c": group, "t": topic, "r": "0", "so": int(start), "q": 0, "rq": int(revive), "pt": int(pop_time),
        "it": int(invisible), "b": bits,
    }  # fmt: skip
    story.ask("batch ack", batch, {}, json.dumps({"brokerName": "demo-a", "acks": [entry]}).encode())
    unknown = {**entry, "t": "NoSuch"}
    body = json.dumps({"brokerName": "demo-a", "acks": [unknown]}).encode()
    story.ask("batch ack of an unknown topic", batch, {}, body)
    once = story.group("popExpiredGroup")
    got = story.ask("pop for a second", POP, pop_ext(once, topic, maxMsgNums=1, invisibleTime=1_000))
    time.sleep(1.5)
    story.ask("ack too late", code, ack_ext(once, topic, got))
    ext = {"consumerGroup": group, "topic": topic}
    story.ask("stats of a group with messages in flight", RequestCode.GET_CONSUME_STATS, ext)


def changes(story: Story) -> None:
    topic, group = story.topic("PopChange"), story.group("popChangeGroup")
    for body in (b"a", b"b"):
        story.send(topic, 0, body)
    got = story.ask("pop for changes", POP, pop_ext(group, topic))
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    good = ack_ext(group, topic, got, invisibleTime=30_000)
    for field in good:
        story.ask(f"change without {field}", code, {**good, field: None})
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of a queue too high": {"queueId": 1},
        "of an offset too high": {"offset": 9},
        "of the offset after the last": {"offset": 2},
        "with a broken handle": {"extraInfo": "x"},
    }.items():
        story.ask(f"change {case}", code, {**good, **more})
    changed = story.ask("change", code, good)
    story.ask("change with the old handle", code, good)
    story.ask("change of an unknown group", code, {**good, "consumerGroup": "noSuchChangeGroup"})
    words = good["extraInfo"].split(" ")
    words[1], words[2] = changed.ext["popTime"], changed.ext["invisibleTime"]
    story.ask("change with the new handle", code, {**good, "extraInfo": " ".join(words), "invisibleTime": 20_000})
    story.ask("change with suspend", code, ack_ext(group, topic, got, 1, invisibleTime=10_000, suspend="true"))


def orders(story: Story) -> None:
    topic, group = story.topic("PopOrder"), story.group("popOrderGroup", consumeMessageOrderly=True)
    for body in (b"a", b"b"):
        story.send(topic, 0, body)
    first = story.ask("orderly pop", POP, pop_ext(group, topic, order="true", maxMsgNums=1, attemptId="one"))
    story.ask("orderly pop of another attempt", POP, pop_ext(group, topic, order="true", maxMsgNums=1, attemptId="two"))
    again = story.ask(
        "orderly pop of the same attempt", POP, pop_ext(group, topic, order="true", maxMsgNums=1, attemptId="one")
    )
    story.ask("orderly ack of the first handle", RequestCode.ACK_MESSAGE, ack_ext(group, topic, first))
    if again.body:
        story.ask("orderly ack of the second handle", RequestCode.ACK_MESSAGE, ack_ext(group, topic, again))
    story.ask("orderly pop after the ack", POP, pop_ext(group, topic, order="true", maxMsgNums=1, attemptId="three"))
    unordered_acks(story)


def unordered_acks(story: Story) -> None:
    """Later messages of an orderly pop are acknowledged, the first one is not: all come again."""
    topic, group = story.topic("PopOrderAcks"), story.group("popOrderAcksGroup", consumeMessageOrderly=True)
    for body in (b"a", b"b", b"c", b"d", b"e"):
        story.send(topic, 0, body)

    def pop(case: str, attempt: str, most: int) -> Frame:
        ext = pop_ext(group, topic, order="true", maxMsgNums=most, invisibleTime=1_500, attemptId=attempt)
        return story.ask(f"unordered acks: {case}", POP, ext)

    def ack(case: str, answer: Frame, at: int) -> None:
        story.ask(f"unordered acks: {case}", RequestCode.ACK_MESSAGE, ack_ext(group, topic, answer, at))

    first = pop("pop of three", "one", 3)
    ack("ack of the second", first, 1)
    ack("ack of the third", first, 2)
    ack("ack of the third again", first, 2)
    pop("pop while the first is with the client", "two", 3)
    time.sleep(2)
    second = pop("pop after the time of the first", "three", 8)
    ack("ack of the second message again", second, 1)
    ack("ack of the first message", second, 0)
    time.sleep(2)
    third = pop("pop after the first two", "four", 2)
    ack("ack of the fourth message", third, 1)
    pop("pop of the same attempt after an ack", "four", 2)


def peeks(story: Story) -> None:
    topic, group = story.topic("PopPeek"), story.group("popPeekGroup")
    ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "maxMsgNums": 8}
    code = RequestCode.PEEK_MESSAGE
    story.ask("peek of nothing", code, ext)
    story.send(topic, 0, b"a")
    story.ask("peek", code, ext)
    story.ask("peek again", code, ext)
    for field in ext:
        story.ask(f"peek without {field}", code, {**ext, field: None})
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of an unknown group": {"consumerGroup": "noSuchPeekGroup"},
        "of a group that may not consume": {"consumerGroup": "popDisabled"},
        "of a topic without read permission": {"topic": "PopNoRead"},
        "of a queue too high": {"queueId": 1},
        "of all queues": {"queueId": -1},
    }.items():
        story.ask(f"peek {case}", code, {**ext, **more})


def notifications(story: Story) -> None:
    topic, group = story.topic("PopNotify"), story.group("popNotifyGroup")
    code = RequestCode.NOTIFICATION

    def ext(**more: Any) -> dict[str, Any]:
        now = int(time.time() * 1000)
        return {"consumerGroup": group, "topic": topic, "queueId": -1, "pollTime": 0, "bornTime": now, **more}

    story.ask("notification of nothing", code, ext())
    story.ask("notification of nothing after 300 ms", code, ext(pollTime=300))
    for field in ext():
        story.ask(f"notification without {field}", code, ext(**{field: None}))
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of an unknown group": {"consumerGroup": "noSuchNotifyGroup"},
        "of a group that may not consume": {"consumerGroup": "popDisabled"},
        "of a topic without read permission": {"topic": "PopNoRead"},
        "of a queue too high": {"queueId": 1},
    }.items():
        story.ask(f"notification {case}", code, ext(**more))
    story.send(topic, 0, b"a")
    story.ask("notification of a message", code, ext())
    story.ask("pop after the notification", POP, pop_ext(group, topic))
    story.ask("notification while it is in flight", code, ext())
    info = {"consumerGroup": group, "topic": topic, "queueId": -1}
    code = RequestCode.POLLING_INFO
    story.ask("polling info", code, info)
    for field in info:
        story.ask(f"polling info without {field}", code, {**info, field: None})
    for case, change in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of an unknown group": {"consumerGroup": "noSuchInfoGroup"},
        "of a group that may not consume": {"consumerGroup": "popDisabled"},
        "of a topic without read permission": {"topic": "PopNoRead"},
        "of a queue too high": {"queueId": 1},
    }.items():
        story.ask(f"polling info {case}", code, {**info, **change})


def _mode(topic: Any, group: Any, mode: Any = "POP", share: Any = 0) -> bytes:
    value = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    return json.dumps({key: item for key, item in value.items() if item is not None}).encode()


def modes(story: Story) -> None:
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    topic, group = story.topic("PopMode", 8), story.group("popModeGroup")
    for case, body in {
        "of a retry topic": _mode(f"%RETRY%{group}", group),
        "of an unknown topic": _mode("NoSuch", group),
        "of an unknown group": _mode(topic, "noSuchModeGroup"),
        "that does not exist": _mode(topic, group, "PUSH"),
        "with -5 shared queues": _mode(topic, group, "POP", -5),
        "without a topic": _mode(None, group),
        "without a group": _mode(topic, None),
        "without a mode": _mode(topic, group, None),
        "without a body": b"",
        "that is no JSON": b"{",
        "to PULL": _mode(topic, group, "PULL"),
        "to POP": _mode(topic, group),
    }.items():
        story.ask(f"mode {case}", code, {}, body)


def assignments(story: Story) -> None:
    topic, group = story.topic("PopAssign", 8), story.group("popAssignGroup")
    code = RequestCode.QUERY_ASSIGNMENT

    def body(client: Any, **more: Any) -> bytes:
        value = {
            "topic": topic, "consumerGroup": group, "clientId": client, "strategyName": "AVG",
            "messageModel": "CLUSTERING", **more,
        }  # fmt: skip
        return json.dumps({key: item for key, item in value.items() if item is not None}).encode()

    story.ask("assignment without members", code, {}, body("c0"))
    for number in range(4):
        wire = story.connect()
        beat = heartbeat(group, topic, client=f"c{number}")
        wire.call(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
    for client in ("c0", "c3", "stranger"):
        story.ask(f"assignment of {client}", code, {}, body(client))
    story.ask("assignment by circle", code, {}, body("c1", strategyName="AVG_BY_CIRCLE"))
    story.ask("assignment by an unknown strategy", code, {}, body("c1", strategyName="NONE"))
    story.ask("assignment without a strategy", code, {}, body("c1", strategyName=None))
    story.ask("assignment for broadcasting", code, {}, body("c1", messageModel="BROADCASTING"))
    story.ask("assignment of an unknown topic", code, {}, body("c1", topic="NoSuch"))
    for field in ("topic", "consumerGroup", "clientId", "messageModel"):
        story.ask(f"assignment without {field}", code, {}, body("c1", **{field: None}))
    story.ask("assignment without a body", code, {})
    story.ask("assignment of the retry topic", code, {}, body("c1", topic=f"%RETRY%{group}"))
    for share in (0, 1, 2, 3):
        story.wire.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, _mode(topic, group, "POP", share))
        for client in ("c0", "c3", "stranger"):
            story.ask(f"assignment of {client} in mode POP, {share} shared", code, {}, body(client))
    narrow = story.topic("PopNarrow", 2)
    story.wire.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, _mode(narrow, group, "POP", 1))
    story.ask("assignment of c3 with few queues", code, {}, body("c3", topic=narrow))
    story.wire.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, _mode(topic, group, "PULL"))
    story.ask("assignment of c3 back in mode PULL", code, {}, body("c3"))


def attributes(story: Story) -> None:
    names = itertools.count(1)

    def create(text: str, topic: str = "", **more: Any) -> tuple[int, str]:
        name = topic or f"Attributes{next(names)}"
        header = CreateTopicHeader(name, "TBW102", 1, 1, 6, "SINGLE_TAG", 0, False, text)
        case = f"attributes {text!r}{' of a topic with ' + topic if topic else ''}"
        return story.ask(case, RequestCode.UPDATE_AND_CREATE_TOPIC, {**header.ext(), **more}).code, name

    for kind in ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED", "fifo", "X", ""):
        code, name = create(f"+message.type={kind}")
        if code == 0 and kind in ("FIFO", "DELAY"):
            story.ask(f"topic of type {kind}", RequestCode.GET_TOPIC_CONFIG, {"topic": name})
    for text in (
        "message.type=FIFO", "+message.type", "-message.type", "+=x", "+", "-", ",", "+nothing=x",
        "+queue.type=BatchCQ",
        "+queue.type=SimpleCQ", "+queue.type=x", "+cleanup.policy=DELETE", "+cleanup.policy=COMPACTION",
        "+cleanup.policy=x", "+reserve.time=-1", "+reserve.time=-2", "+reserve.time=60", "+reserve.time=x",
        "+reserve.time=9223372036854775807", "+reserve.time=9223372036854775808", "+lite.topic.expiration=1",
        "+lite.topic.expiration=-1", "+lite.topic.expiration=-2", "+lite.topic.expiration=0",
        "+lite.topic.expiration=43200", "+lite.topic.expiration=43201", "+lite.topic.expiration=2592001",
        "+message.type=FIFO,+message.type=NORMAL", "+message.type=FIFO,-message.type", "+message.type=FIFO,",
        " +message.type=FIFO", "+message.type=FIFO, +reserve.time=1", "+a-b=c", "+message.type=FIFO=x",
    ):  # fmt: skip
        create(text)
    name = "AttributesOf"
    create("+message.type=FIFO,+queue.type=SimpleCQ,+cleanup.policy=DELETE", name)
    for text in (
        "+message.type=NORMAL", "+queue.type=SimpleCQ", "-queue.type", "+cleanup.policy=COMPACTION", "-reserve.time",
        "+reserve.time=1", "-reserve.time ", "-message.type", "message.type=DELAY", "+nothing=1", "-nothing",
    ):  # fmt: skip
        create(text, name)
    story.ask("topic after the changes", RequestCode.GET_TOPIC_CONFIG, {"topic": name})
    fifo = "AttributesFifo"
    create("+message.type=FIFO", fifo)
    delayed = "AttributesDelay"
    create("+message.type=DELAY", delayed)
    for topic in (fifo, delayed):
        for case, props in {
            "normal": {}, "sharded": {Prop.SHARDING_KEY: "k"}, "delayed": {Prop.DELAY_TIME_LEVEL: "1"},
            "prepared": {Prop.TRANSACTION_PREPARED: "true", Prop.PRODUCER_GROUP: "p"}, "priority": {Prop.PRIORITY: "1"},
            "lite": {Prop.LITE_TOPIC: "l"},
        }.items():  # fmt: skip
            answer, _ = story.try_send(topic, 0, b"x", **props)
            story.answers[f"send of a {case} message to {topic}"] = {"code": answer.code}


def timers(story: Story) -> None:
    topic = story.topic("PopTimers")
    now = int(time.time() * 1000)
    for case, props in {
        "in 1 s": {Prop.TIMER_DELAY_MS: "1000"},
        "in 2 s by seconds": {Prop.TIMER_DELAY_SEC: "2"},
        "at a time": {Prop.TIMER_DELIVER_MS: str(now + 3_000)},
        "in 2 days": {Prop.TIMER_DELIVER_MS: str(now + 2 * DAY_MS)},
        "in 4 days": {Prop.TIMER_DELIVER_MS: str(now + 4 * DAY_MS)},
        "in 41 days": {Prop.TIMER_DELIVER_MS: str(now + 41 * DAY_MS)},
        "in 4 days by seconds": {Prop.TIMER_DELAY_SEC: str(4 * 86_400)},
        "in the past": {Prop.TIMER_DELIVER_MS: str(now - 1_000)},
        "in -1 s": {Prop.TIMER_DELAY_SEC: "-1"},
        "at a time that is no number": {Prop.TIMER_DELIVER_MS: "x"},
        "after an empty time": {Prop.TIMER_DELAY_MS: ""},
        "by level and time": {Prop.DELAY_TIME_LEVEL: "1", Prop.TIMER_DELAY_MS: "1000"},
        "by level": {Prop.DELAY_TIME_LEVEL: "1"},
        "not at all": {},
    }.items():
        answer, _ = story.try_send(topic, 0, case.encode(), **props)
        noted: dict[str, Any] = {"code": answer.code}
        if "recallHandle" in answer.ext:
            noted["recallHandle"] = _field("recallHandle", answer.ext["recallHandle"])
        story.answers[f"send due {case}"] = noted
    for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS, RequestCode.SWITCH_TIMER_ENGINE):
        answer = story.wire.ask(code, {})
        story.answers[code.name] = {"code": answer.code, "fields": sorted(answer.ext)}
        if code == RequestCode.GET_TIMER_METRICS and answer.body:
            story.answers[code.name]["body"] = sorted(json.loads(answer.body))


def recalls(story: Story) -> None:
    topic = story.topic("PopRecall")
    story.topic("PopRecallOther")
    code = RequestCode.RECALL_MESSAGE
    now = int(time.time() * 1000)
    sent, _ = story.send(topic, 0, b"x", **{Prop.TIMER_DELIVER_MS: str(now + 6_000)})
    kept, _ = story.send(topic, 0, b"kept", **{Prop.TIMER_DELIVER_MS: str(now + 6_000)})
    ext = {"producerGroup": "p", "topic": topic, "recallHandle": sent["recallHandle"]}
    story.ask("recall while it is off", code, ext)
    on = b"recallMessageEnable=true\n"
    story.wire.call(RequestCode.UPDATE_BROKER_CONFIG, {}, on)
    for field in ext:
        if field != "producerGroup":
            story.ask(f"recall without {field}", code, {**ext, field: None})

    def handle(*words: Any) -> str:
        return base64.urlsafe_b64encode(" ".join(str(word) for word in words).encode()).decode()

    broker, key = "demo-a", "AC110001000000000000000000000F00"
    soon = now + 60_000
    for case, more in {
        "of an unknown topic": {"topic": "NoSuch"},
        "of another topic": {"topic": "PopRecallOther"},
        "with an empty handle": {"recallHandle": ""},
        "with a handle that is no base64": {"recallHandle": "***"},
        "with a short handle": {"recallHandle": handle("v1", topic, broker, soon)},
        "with a handle of version 2": {"recallHandle": handle("v2", topic, broker, soon, key)},
        "with a handle of another broker": {"recallHandle": handle("v1", topic, "other", soon, key)},
        "in the past": {"recallHandle": handle("v1", topic, broker, now - 1, key)},
        "in 41 days": {"recallHandle": handle("v1", topic, broker, now + 41 * DAY_MS, key)},
        "at a time that is no number": {"recallHandle": handle("v1", topic, broker, "x", key)},
        "of a message that nobody sent": {"recallHandle": handle("v1", topic, broker, soon, key)},
    }.items():
        story.ask(f"recall {case}", code, {**ext, **more})
    story.ask("recall", code, ext)
    story.ask("recall again", code, ext)
    ends = time.monotonic() + 20
    records: list[Any] = []
    while not records and time.monotonic() < ends:
        time.sleep(0.5)
        records = list(story.wire.read(topic, 0))
    time.sleep(2)
    records = list(story.wire.read(topic, 0))
    story.answers["what came after the recall"] = {"bodies": [record.body.decode() for record in records]}
    story.answers["its properties"] = {
        "names": sorted({name for record in records for name in parse_properties(record.properties)})
    }
    late = {**ext, "recallHandle": kept["recallHandle"]}
    story.ask("recall after the delivery", code, late)


PARTS: Final = (
    pops, acks, changes, orders, peeks, notifications, modes, assignments, attributes, timers, recalls,
)  # fmt: skip


PARTS: Final = (
    attributes, modes, assignments, timers, recalls, pops, acks, changes, orders, peeks, notifications,
)  # fmt: skip


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        rocketmq.rocketmq(Path(name), heap="512m", direct="512m", server="server55") as target,
    ):
        answers = play(target, PARTS)
    recorded.write(RECORDED, dict(sorted(answers.items())))
    print(f"{len(answers)} answers")


if __name__ == "__main__":
    main()
