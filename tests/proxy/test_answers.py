"""The same 80 questions that Apache's proxy 5.5.0 was asked in cluster mode: the same codes, and the same messages."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from gantry_broker.protocol.grpc_contract import Code, v2
from google.protobuf.json_format import MessageToDict

from tests.proxy import cluster as c

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "grpc" / "5.5.0.json").read_text())

TEXT_DIFFERS = {
    "ReceiveMessage bad filter": "here, with the place in the expression",
    "AckMessage garbage handle": "there, an exception of Java with its line",
    "ForwardMessageToDeadLetterQueue": "there, the text of OK is 0",
}
DIFFERS = {
    "ReceiveMessage before settings": "a receive is served with the settings of its group (clients 1137)",
    "SendMessage delay 2 days": "messages may be timed up to 40 days: docs/grpc.md",
}
"""Docs have the same differences."""


class Questions:
    def __init__(self, stub: c.Stub, prefix: str) -> None:
        self.stub = stub
        self.prefix = prefix
        self.answers: dict[str, Any] = {}
        self.lines: list[c.Line] = []

    async def ask(self, name: str, call: Any, request: Any, client: str | None = "prod@1", **more: Any) -> Any:
        timeout = more.pop("timeout", 20)
        try:
            answer = await call(request, metadata=c.metadata(client, **more), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            self.answers[name] = {"grpc": error.code().name, "message": error.details()}
            return None
        found = {"code": Code(answer.status.code).name, "message": self._same(answer.status.message)}
        if getattr(answer, "entries", None):
            found["entries"] = [Code(entry.status.code).name for entry in answer.entries]
        if getattr(answer, "message_queues", None):
            found["queues"] = [
                [queue.get("id", 0), queue["permission"], queue["acceptMessageTypes"]]
                for queue in (MessageToDict(one) for one in answer.message_queues)
            ]
        if getattr(answer, "assignments", None):
            found["queues"] = [one.message_queue.id for one in answer.assignments]
        self.answers[name] = found
        return answer

    async def receive(self, name: str, request: Any, client: str, timeout: float = 20) -> list[Any]:
        call = self.stub.ReceiveMessage(request, metadata=c.metadata(client), timeout=timeout)
        parts = [part async for part in call]
        assert parts[-1].HasField("delivery_timestamp")
        status = parts[0].status
        self.answers[name] = {"code": Code(status.code).name, "message": self._same(status.message)}
        return [part.message for part in parts if part.HasField("message")]

    async def settings(self, name: str, client: str, settings: Any) -> c.Line:
        line = c.Line(self.stub, client)
        self.lines.append(line)
        try:
            answer = await line.settings(settings)
        except grpc.aio.AioRpcError as error:
            self.answers[name] = {"grpc": error.code().name, "message": error.details()}
            return line
        if answer == grpc.aio.EOF:
            self.answers[name] = {"grpc": (await line.call.code()).name, "message": await line.call.details()}
            return line
        shown = MessageToDict(answer)
        self.answers[name] = {
            "code": shown["status"]["code"],
            "message": shown["status"]["message"],
            "settings": json.loads(
                self._same(
                    json.dumps(
                        {
                            part: shown["settings"][part]
                            for part in ("backoffPolicy", "publishing", "subscription", "metric")
                            if part in shown["settings"]
                        }
                    )
                )
            ),
        }
        return line

    def _same(self, text: str) -> str:
        return text.replace(self.prefix + "-", "P-")


@pytest.mark.timeout(90)
async def test_the_answers_are_those_of_apaches_proxy(tmp_path: Path) -> None:
    settings = {"transactionTimeOut": 3_000, "transactionCheckInterval": 500, "enablePropertyFilter": True}
    async with c.served(tmp_path, **settings) as cluster:
        pre = "f1"
        kinds = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "trans": "TRANSACTION"}
        for name, kind in kinds.items():
            await c.make_topic(cluster, f"{pre}-{name}", kind)
        await c.make_group(cluster, f"{pre}-g")
        await c.make_group(cluster, f"{pre}-go", orderly=True)
        async with c.proxied(cluster) as (_, stub):
            questions = Questions(stub, pre)
            await _ask_all(questions, stub, pre)
    found = questions.answers
    assert set(found) == set(RECORDED)
    wrong = {}
    for name, answer in found.items():
        wanted = dict(RECORDED[name])
        if name in DIFFERS:
            continue
        if name in TEXT_DIFFERS:
            wanted.pop("message")
            answer = {part: value for part, value in answer.items() if part != "message"}
        if answer != wanted:
            wrong[name] = (wanted, answer)
    assert not wrong
    assert found["SendMessage delay 2 days"]["code"] == "OK"
    assert found["ReceiveMessage before settings"]["code"] == "MESSAGE_NOT_FOUND"


async def _ask_all(q: Questions, st: c.Stub, pre: str) -> None:
    normal, fifo, delay, trans, g, go = (f"{pre}-{x}" for x in ("normal", "fifo", "delay", "trans", "g", "go"))
    simple, push, orderly = "simple@1", "push@1", "pusho@1"
    message, receive, ack = c.message, c.receive, c.ack
    route = v2.QueryRouteRequest()
    route.topic.name = normal
    route.endpoints.scheme = 1
    route.endpoints.addresses.add(host="127.0.0.1", port=8081)
    await q.ask("QueryRoute normal", st.QueryRoute, route)
    await q.ask("QueryRoute without client id", st.QueryRoute, route, None)
    await q.ask("QueryRoute without language", st.QueryRoute, route, x_mq_language=None)
    for name, topic in (("unknown topic", pre + "-none"), ("bad topic", "a b"), ("system topic", "TBW102")):
        other = v2.QueryRouteRequest(endpoints=route.endpoints)
        other.topic.name = topic
        await q.ask(f"QueryRoute {name}", st.QueryRoute, other)
    bare = v2.QueryRouteRequest()
    bare.topic.name = normal
    await q.ask("QueryRoute without endpoints", st.QueryRoute, bare)
    beat = v2.HeartbeatRequest(client_type=1)
    await q.ask("Heartbeat before settings", st.Heartbeat, beat)
    await q.receive("ReceiveMessage before settings", receive(g, normal), "nobody", timeout=10)
    line = await q.settings("Telemetry settings producer", "prod@1", c.producer(normal, fifo, delay, trans))
    await q.settings("Telemetry settings simple", simple, c.consumer(g, normal, fifo))
    await q.settings("Telemetry settings push", push, c.consumer(g, normal, kind=2))
    await q.settings("Telemetry settings push orderly", orderly, c.consumer(go, fifo, kind=2))
    await q.settings("Telemetry settings unknown group", "other@1", c.consumer(pre + "-new", normal, kind=2))
    await q.settings("Telemetry settings nothing", "other@2", v2.Settings(client_type=1))
    await q.settings("Telemetry settings producer without topics", "other@3", c.producer())
    await q.settings("Telemetry settings unknown topic", "other@4", c.producer(pre + "-none"))
    await q.ask("Heartbeat producer", st.Heartbeat, beat)
    of_consumer = v2.HeartbeatRequest(client_type=3)
    of_consumer.group.name = g
    await q.ask("Heartbeat simple", st.Heartbeat, of_consumer, simple)

    async def send(name: str, *messages: Any) -> Any:
        return await q.ask(f"SendMessage {name}", st.SendMessage, v2.SendMessageRequest(messages=messages))

    await send("normal", message(normal, tag="a", keys=["k1", "k2"], props={"p": "v"}))
    await send("two normal", message(normal, tag="a"), message(normal, tag="b"))
    await send("fifo", message(fifo, b"1", kind=2, message_group="g1"))
    two = [message(fifo, kind=2, message_group="g1") for _ in range(2)]
    await send("two fifo in one", *two)
    delayed = await send("delay 30 s", message(delay, kind=3, at=time.time() + 30))
    await send("delay in the past", message(delay, kind=3, at=time.time() - 30))
    await send("delay 2 days", message(delay, kind=3, at=time.time() + 2 * 86_400))
    half = await send("transaction", message(trans, b"t1", kind=4))
    await send("transaction left alone", message(trans, b"t2", kind=4))
    await send("normal to fifo topic", message(fifo))
    await send("fifo to normal topic", message(normal, kind=2, message_group="g"))
    await send("type says fifo, no group", message(normal, kind=2))
    await send("unknown topic", message(pre + "-none"))
    await send("no id", message(normal, mid=""))
    await send("empty body", message(normal, b""))
    await send("5 MiB", message(normal, b"x" * (5 << 20)))
    await send("tag a|b", message(normal, tag="a|b"))
    await send("blank tag", message(normal, tag=" "))
    await send("blank key", message(normal, keys=[" "]))
    await send("control char in property", message(normal, props={"a": "\x01"}))
    await send("reserved property", message(normal, props={"KEYS": "x"}))
    await send("129 properties", message(normal, props={f"p{number}": "v" for number in range(129)}))
    await send("17 KiB of properties", message(normal, props={"p": "v" * 17_000}))
    await send("group of 64", message(fifo, kind=2, message_group="g" * 64))
    await send("nothing")
    await send("two topics", message(normal), message(fifo, kind=2, message_group="g"))

    assignment = v2.QueryAssignmentRequest(endpoints=route.endpoints)
    assignment.topic.name, assignment.group.name = normal, g
    await q.ask("QueryAssignment normal", st.QueryAssignment, assignment, push)
    assignment.topic.name, assignment.group.name = fifo, go
    await q.ask("QueryAssignment orderly", st.QueryAssignment, assignment, orderly)
    assignment.topic.name = pre + "-none"
    await q.ask("QueryAssignment unknown topic", st.QueryAssignment, assignment, orderly)

    await q.receive("ReceiveMessage bad filter", receive(g, normal, expression="a &&", kind=2), simple)
    await q.receive("ReceiveMessage invisible 1 s", receive(g, normal, invisible=1), simple)
    await q.receive("ReceiveMessage invisible 13 h", receive(g, normal, invisible=46_800), simple)
    await q.receive("ReceiveMessage unknown topic", receive(g, pre + "-none"), simple)
    await q.receive("ReceiveMessage deadline 1 s", receive(g, normal), simple, timeout=1)
    got = await q.receive("ReceiveMessage normal", receive(g, normal, n=32), simple)
    ends = time.monotonic() + 15
    while len(got) < 3 and time.monotonic() < ends:
        got += await q.receive("ReceiveMessage normal", receive(g, normal, n=32), simple)
    await q.receive("ReceiveMessage empty", receive(g, delay), simple)
    first, second, third = got[:3]
    await q.ask("AckMessage", st.AckMessage, ack(normal, g, first), simple)
    await q.ask("AckMessage again", st.AckMessage, ack(normal, g, first), simple)
    await q.ask("AckMessage garbage handle", st.AckMessage, ack(normal, g, first, handle="abc"), simple)
    parts = first.system_properties.receipt_handle.split(" ")
    parts[1] = str(int(parts[1]) - 100_000)
    await q.ask("AckMessage expired handle", st.AckMessage, ack(normal, g, first, handle=" ".join(parts)), simple)
    change = v2.ChangeInvisibleDurationRequest(receipt_handle=second.system_properties.receipt_handle)
    change.topic.name, change.group.name = normal, g
    change.invisible_duration.seconds = 12
    changed = await q.ask("ChangeInvisibleDuration", st.ChangeInvisibleDuration, change, simple)
    await q.ask("AckMessage with the old handle", st.AckMessage, ack(normal, g, second), simple)
    fresh = ack(normal, g, second, handle=changed.receipt_handle)
    await q.ask("AckMessage with the new handle", st.AckMessage, fresh, simple)
    change.invisible_duration.seconds = 46_800
    await q.ask("ChangeInvisibleDuration 13 h", st.ChangeInvisibleDuration, change, simple)
    dead = v2.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=third.system_properties.receipt_handle,
        message_id=third.system_properties.message_id,
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    dead.topic.name, dead.group.name = normal, g
    await q.ask("ForwardMessageToDeadLetterQueue", st.ForwardMessageToDeadLetterQueue, dead, simple)
    request = receive(go, fifo, invisible=None, auto=True, n=32)
    ordered = await q.receive("ReceiveMessage push orderly, auto renew", request, orderly)
    assert len(ordered) == 3
    assert {m.system_properties.receipt_handle.split(" ")[3] for m in ordered} == {"999"}
    await q.receive("ReceiveMessage orderly while blocked", request, orderly)
    await q.ask("AckMessage orderly", st.AckMessage, ack(fifo, go, *ordered), orderly)
    end = v2.EndTransactionRequest(
        message_id=half.entries[0].message_id, transaction_id=half.entries[0].transaction_id, resolution=1, source=1
    )
    end.topic.name = trans
    await q.ask("EndTransaction commit", st.EndTransaction, end)
    await q.ask("EndTransaction commit twice", st.EndTransaction, end)
    end.transaction_id = ""
    await q.ask("EndTransaction without id", st.EndTransaction, end)
    recall = v2.RecallMessageRequest(recall_handle=delayed.entries[0].recall_handle)
    recall.topic.name = delay
    await q.ask("RecallMessage", st.RecallMessage, recall)
    recall.recall_handle = "abc"
    await q.ask("RecallMessage garbage", st.RecallMessage, recall)
    for name in ("GetOffset", "UpdateOffset", "QueryOffset", "PullMessage"):
        await q.ask(name, getattr(st, name), b"")
    lite = v2.SyncLiteSubscriptionRequest(action=0, lite_topic_set=["x"])
    lite.topic.name, lite.group.name = normal, g
    await q.ask("SyncLiteSubscription", st.SyncLiteSubscription, lite, push)
    command = await line.read(30)
    q.answers["Telemetry orphaned transaction"] = {"command": _camel(command.WhichOneof("command"))}
    asked = command.recover_orphaned_transaction_command
    while asked.message.body == b"t1":  # it was checked before its end
        asked = (await line.read(30)).recover_orphaned_transaction_command
    assert asked.message.body == b"t2"
    end.transaction_id, end.resolution, end.source = asked.transaction_id, 2, 2
    assert (await st.EndTransaction(end, metadata=c.metadata("prod@1"))).status.code == Code.OK
    bye = v2.NotifyClientTerminationRequest()
    await q.ask("NotifyClientTermination producer", st.NotifyClientTermination, bye)
    await q.ask("NotifyClientTermination again", st.NotifyClientTermination, bye)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)
