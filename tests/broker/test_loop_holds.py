"""The longest time for which one peer holds the event loop: each request code at its largest, many in one read.

What counts is the CPU time of the loop's thread between two passes, so a busy machine changes little. Of several
rounds the best one counts: a hold that the code causes is in each of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from gantry_broker.broker.handlers.table import HANDLERS
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.heartbeats import MAX_EXPRESSION
from gantry_broker.protocol.limits import MAX_KEYS, MAX_REQUEST_KEYS
from gantry_broker.protocol.message import MAX_BATCH, BatchItem, encode_batch
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.protocol.requests import TO_SENDER
from gantry_broker.remoting.connection import READ, Connection

from tests.broker.conftest import Bench
from tests.support.remoting import Socket

MOST_S: Final = 0.05
READS: Final = 32
"""Reads of one connection in one pass of the event loop, as uvloop does them."""
AT_ONCE: Final = 2 << 20
"""Bytes that a peer sends together."""
ROUNDS: Final = 3
HEADER: Final = 15 * 1024

Largest = Callable[[], tuple[dict[str, Any], bytes]]


class Peer:
    """A connection and what its peer sends: at most `READS` reads in a pass, and none while reading pauses."""

    def __init__(self, conn: Connection, data: bytes) -> None:
        self.conn, self.socket, self.data = conn, Socket(), data
        conn.connection_made(self.socket)

    def read(self) -> None:
        for _ in range(READS):
            if not self.data or self.socket.paused or self.socket.closed:
                return
            data, self.data = self.data[:READ], self.data[READ:]
            self.conn.data_received(data)

    @property
    def done(self) -> bool:
        waits = self.conn._inbox or self.conn.attrs.get("waiting") or "busy" in self.conn.attrs
        return self.socket.closed or not (self.data or waits)


async def longest_hold(peers: list[Peer], limit_s: float = 0.4) -> float:
    """Returns the most CPU seconds between two passes until the peers' bytes are handled, or the time is over."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        longest, ends = 0.0, time.thread_time() + limit_s
        while not all(peer.done for peer in peers) and time.thread_time() < ends:
            begun = time.thread_time()
            for peer in peers:
                peer.read()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)
        return longest
    finally:
        gc.enable()
        gc.unfreeze()


def repeated(code: int, ext: dict[str, Any], body: bytes, total: int = AT_ONCE) -> bytes:
    fields = {name: str(value) for name, value in ext.items()}
    one = encode_frame(Frame(code, 1, ext=fields, body=body))
    return one * max(total // len(one), 2)


COMMON: Final[dict[str, Any]] = {
    "topic": "T", "consumerGroup": "G", "group": "G", "groupName": "G", "producerGroup": "PG", "clientID": "c",
    "clientId": "c", "queueId": 0, "offset": 0, "queueOffset": 0, "commitOffset": 0, "timestamp": 1, "maxNum": 64,
    "beginTimestamp": 0, "endTimestamp": 1 << 60, "key": "k", "maxMsgNums": 32, "invisibleTime": 60_000,
    "pollTime": 0, "bornTime": 0, "sysFlag": 4, "subVersion": 0, "suspendTimeoutMillis": 0, "extraInfo": "x",
    "delayLevel": 1, "originTopic": "T", "commitOrRollback": 8, "tranStateTableOffset": 0, "commitLogOffset": 0,
    "index": 0, "count": 1_000, "isOrder": False, "srcGroup": "G", "destGroup": "H", "compareGroup": "G",
    "filterGroups": "G", "statsName": "TOPIC_PUT_NUMS", "statsKey": "T", "strategyName": "AVG", "messageModel": "x",
    "consumerGroupName": "G", "username": "u", "subject": "User:u", "namespace": "n", "value": "v", "cluster": "c",
    "brokerName": "a", "clusterName": "c", "brokerAddr": "h:1", "brokerId": 0,
}  # fmt: skip


def small() -> tuple[dict[str, Any], bytes]:
    """A request without a body: as many as fit."""
    return COMMON, b""


def filled(code: int) -> Largest:
    """A body that the code does not read, as large as it may be."""
    return lambda: (COMMON, b"x" * RequestLimits().body(code))


def body_of(make: Callable[[int], Any], most: int) -> Largest:
    """A JSON body of the largest number of entries that fits."""

    def made() -> tuple[dict[str, Any], bytes]:
        size = len(orjson.dumps(make(100))) / 100
        count = int(most / size)
        while len(body := orjson.dumps(make(count))) > most:
            count = int(count * 0.97)
        return COMMON, body

    return made


def heartbeat() -> tuple[dict[str, Any], bytes]:
    tags = [f"tag-{number}" for number in range(4_900)]
    codes = list(range(4_900))
    one = {"topic": "T", "subString": "*", "tagsSet": tags, "codeSet": codes, "subVersion": 1}
    consumer = {"groupName": "G", "subscriptionDataSet": [one], "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}  # fmt: skip
    return {}, orjson.dumps({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []})


def queues(count: int) -> dict[str, Any]:
    named = [{"topic": "T", "brokerName": "a", "queueId": number} for number in range(count)]
    return {"consumerGroup": "G", "clientId": "c", "mqSet": named}


def topics(count: int) -> dict[str, Any]:
    return {"topicConfigList": [TopicConfig(f"TX{number}", 1, 1).to_json() for number in range(count)]}


def groups(count: int) -> dict[str, Any]:
    return {"groupConfigList": [{"groupName": f"GX{number}"} for number in range(count)]}


def acks(count: int) -> dict[str, Any]:
    one = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60_000, "b": "AQ=="}
    return {"brokerName": "demo-a", "acks": [{**one, "so": number} for number in range(count)]}


def send_ext(properties: str, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": properties, "reconsumeTimes": 0,
        "unitMode": False, "batch": False,
    }  # fmt: skip
    return SendHeader(**{**given, **fields}).short_ext()


def many_keys() -> tuple[dict[str, Any], bytes]:
    return send_ext("KEYS\x01" + " ".join(f"{n:x}" for n in range(MAX_KEYS)) + "\x02"), b"x"


def long_send() -> tuple[dict[str, Any], bytes]:
    ext = {**COMMON, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "bornTimestamp": 1, "flag": 0, "sysFlag": 0,
           "properties": "KEYS\x01a"}  # fmt: skip
    return ext, b"x" * (4 << 20)


def batch() -> tuple[dict[str, Any], bytes]:
    keys = MAX_REQUEST_KEYS // MAX_BATCH
    items = [
        BatchItem(b"x", ("KEYS\x01" + " ".join(f"{number}-{n}" for n in range(keys))).encode())
        for number in range(MAX_BATCH)
    ]
    return send_ext(""), encode_batch(items)


def pull() -> tuple[dict[str, Any], bytes]:
    """The same tags in each request are kept, so the test of new ones is `test_pulls_with_new_tags`."""
    return {**COMMON, "subscription": "||".join(f"t{n}" for n in range(2_000))[:MAX_EXPRESSION]}, b""


BODIES: Final[dict[int, Largest]] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.LOCK_BATCH_MQ: body_of(queues, 256 * 1024),
    RequestCode.UNLOCK_BATCH_MQ: body_of(queues, 256 * 1024),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: body_of(topics, 512 * 1024),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: body_of(groups, 512 * 1024),
    RequestCode.BATCH_ACK_MESSAGE: body_of(acks, 64 * 1024),
    RequestCode.SEND_MESSAGE_V2: many_keys,
    RequestCode.SEND_MESSAGE: long_send,
    RequestCode.SEND_BATCH_MESSAGE: batch,
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
}
"""Requests whose cost grows with their body or their header."""


def largest(code: int) -> Largest:
    return BODIES.get(code, small)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, settings={"mappedFileSizeCommitLog": 64 << 20, "maxIndexNum": 2_000_000})
    await made.lead()
    for name in ("T", "H"):
        assert (await made.send(b"x", name)).code == 0
    yield made
    await made.close()


def peer(bench: Bench, data: bytes) -> Peer:
    return Peer(Connection(bench.dispatcher, accepted=True, limits=RequestLimits(lambda: 4 << 20),
                           shared=bench.broker.shared), data)  # fmt: skip


async def best(measure: Callable[[], Any]) -> float:
    found = []
    for _ in range(ROUNDS):
        found.append(await measure())
        if len(found) > 1 and found[-1] <= MOST_S:
            break
    return min(found[1:] or found)


@pytest.mark.parametrize("code", sorted({*HANDLERS, *TO_SENDER}))
async def test_no_request_of_a_client_holds_the_loop(bench: Bench, code: int) -> None:
    ext, body = largest(code)()
    data = repeated(code, ext, body)

    async def measure() -> float:
        made = peer(bench, data)
        try:
            return await longest_hold([made])
        finally:
            made.conn.connection_lost(None)

    assert await best(measure) <= MOST_S
