"""Nothing that a client sends holds a broker's or NameServer's event loop, or grows its memory without bound.

Real processes, real sockets. The machine may be loaded: what is asserted is that the process stays responsive, keeps
its role and its memory, and says no by an error code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from struct import pack
from typing import Any

import httpx
import pytest
from gantry_broker.config import BrokerConfig, NameServerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.contracts.models import AssignmentModel, MemberStatus
from gantry_broker.namesrv.service import AT_ONCE_BYTES
from gantry_broker.protocol.bodies import RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.remoting.handshake import NONCE_BYTES, HandshakeClient, Identity

from tests.support.free_ports import free_port
from tests.support.remoting import encode_compressed

MIB = 1 << 20
RESPONSIVE_S = 4.0
"""The longest that /livez and a send may take while something hostile is handled, on a loaded machine."""


class Peer:
    """One client's connection, which may send anything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self.frames: list[Frame] = []
        self._opaque = 0

    @classmethod
    async def connect(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))

    @classmethod
    async def broker(cls, server: Server, group: str = "big") -> Peer:
        """A broker's connection to the registration port of a NameServer without a token."""
        assert isinstance(server.config, NameServerConfig)
        peer = await cls.connect(server.config.registration_port or 0)
        handshake = HandshakeClient(Identity("demo", group, 0), lambda: b"", os.urandom(NONCE_BYTES))
        peer.writer.write(handshake.hello())
        while handshake.peer is None:
            data = await peer.reader.read(1 << 16)
            assert data, "the connection was closed"
            peer.writer.write(handshake.receive(data))
        return peer

    def request(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", flag: int = 0) -> Frame:
        self._opaque += 1
        return Frame(code, self._opaque, flag, {k: str(v) for k, v in (ext or {}).items()}, body)

    async def answer(self, opaque: int, timeout_s: float = 60) -> Frame:
        async with asyncio.timeout(timeout_s):
            while True:
                for frame in self.frames:
                    if frame.opaque == opaque and frame.is_response:
                        self.frames.remove(frame)
                        return frame
                data = await self.reader.read(1 << 18)
                assert data, "the connection was closed"
                self.frames += self._decoder.feed(data)

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Frame:
        return (await self.ask_all([self.request(code, ext, body)]))[0]

    async def ask_all(self, requests: Iterable[Frame]) -> list[Frame]:
        """All requests at once, then their answers."""
        asked = list(requests)
        self.writer.write(b"".join(encode_frame(frame) for frame in asked))
        return [await self.answer(frame.opaque) for frame in asked]

    def close(self) -> None:
        self.writer.close()


class Server:
    """A broker's or NameServer's process."""

    def __init__(self, module: str, config: BrokerConfig | NameServerConfig, folder: Path, prefix: str) -> None:
        self.config = config
        self._module = module
        self._file = folder / f"{config.name}.json"
        self._prefix = prefix
        self.process: asyncio.subprocess.Process | None = None
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.http_port}", timeout=30)

    @property
    def port(self) -> int:
        return self.config.port

    async def start(self) -> None:
        self._file.write_text(self.config.model_dump_json())
        with open(self._file.with_suffix(".log"), "ab") as log:  # noqa: ASYNC230
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, "--config", str(self._file), stderr=log
            )
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await self.http.get("/livez")).status_code == 200:
                        return
                await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        lines = [
            line
            for line in text.splitlines()
            if line.startswith((f"{self._prefix}_{name}{{", f"{self._prefix}_{name} "))
        ]
        assert len(lines) == 1, (name, lines)
        return float(lines[0].rpartition(" ")[2])

    async def reaches(self, name: str, value: float) -> None:
        async with asyncio.timeout(60):
            while await self.metric(name) < value:  # noqa: ASYNC110 (another process counts)
                await asyncio.sleep(0.05)

    async def longest_hold_s(self) -> float:
        return await self.metric("event_loop_longest_hold_seconds")

    def resident(self) -> int:
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    @contextlib.asynccontextmanager
    async def stays_responsive(self, more: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
        """/livez (and `more`) is asked all the time within this, and each answer comes soon."""
        slowest = 0.0
        ended = asyncio.Event()

        async def look() -> None:
            nonlocal slowest
            while True:
                begun = time.monotonic()
                assert (await self.http.get("/livez")).status_code == 200
                if more is not None:
                    await more()
                slowest = max(slowest, time.monotonic() - begun)
                if ended.is_set():
                    return
                await asyncio.sleep(0.02)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            ended.set()
            await looking
        assert slowest < RESPONSIVE_S
        assert self.process is not None
        assert self.process.returncode is None

    async def close(self) -> None:
        await self.http.aclose()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


class Broker(Server):
    """A group of one, which leads."""

    async def lead(self) -> None:
        me = (await self.status()).member.value()
        model = AssignmentModel.of(Assignment(LeadershipRecord(1, 1, me, frozenset({me})), f"127.0.0.1:{self.port}"))
        headers = {"Content-Type": "application/json"}
        answer = await self.http.put("/v1/assignment", content=model.model_dump_json(), headers=headers)
        assert answer.json()["accepted"], answer.text

    async def status(self) -> MemberStatus:
        return MemberStatus.model_validate_json((await self.http.get("/v1/status")).content)

    async def leads(self) -> bool:
        status = await self.status()
        return status.role == "Master" and status.writable and status.epoch == 1

    @contextlib.asynccontextmanager
    async def stays_master(self) -> AsyncIterator[None]:
        """/livez and a send are answered soon all the time within this, and it leads after it."""
        peer = await Peer.connect(self.port)

        async def send() -> None:
            assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Steady"), b"x")).code == 0

        await send()
        async with self.stays_responsive(send):
            yield
        assert await self.leads()
        peer.close()


def send_ext(topic: str, properties: str = "TAGS\x01A", **fields: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "producerGroup": "PG",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": properties,
        "reconsumeTimes": 0,
        "unitMode": False,
    }
    return SendHeader(**{**values, **fields}).short_ext()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    port = free_port()
    config = BrokerConfig.model_validate(
        {
            "cluster": "demo",
            "group": "demo-a",
            "member": 0,
            "name": "demo-a-0",
            "data_dir": tmp_path / "store",
            "listen_host": "127.0.0.1",
            "port": port,
            "http_port": free_port(),
            "member_address": f"127.0.0.1:{port}",
            "group_address": f"127.0.0.1:{port}",
            "memory_limit_bytes": 256 * MIB,
            "settings": {
                "mappedFileSizeCommitLog": 64 * MIB,
                "maxHashSlotNum": 5_000,
                "maxIndexNum": 20_000,
                "enablePropertyFilter": True,
            },
        }
    )
    made = Broker("gantry_broker.broker", config, tmp_path, "gantry")
    await made.start()
    await made.lead()
    yield made
    await made.close()


@pytest.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[Server]:
    config = NameServerConfig(
        name="ns-0", listen_host="127.0.0.1", port=free_port(), http_port=free_port(), cluster="demo",
        registration_port=free_port(),
    )  # fmt: skip
    made = Server("gantry_broker.namesrv", config, tmp_path, "gantry_namesrv")
    await made.start()
    yield made
    await made.close()


def heartbeat(groups: Iterable[str], subscriptions: int = 1, client: str = "c1", tag: str = "*") -> bytes:
    return json.dumps(
        {
            "clientID": client,
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": f"T{n}", "subString": tag, "tagsSet": [], "codeSet": [], "subVersion": 1}
                        for n in range(subscriptions)
                    ],
                }
                for group in groups
            ],
        },
        separators=(",", ":"),
    ).encode()


# ---- heartbeats


@pytest.mark.parametrize("size", [8 * MIB, 15 * MIB], ids=["8 MB", "15 MB"])
async def test_a_large_heartbeat_is_refused(broker: Broker, size: int) -> None:
    before = broker.resident()
    one = b'{"topic":"T","subString":"*"},'
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":['
    body += (one * (size // len(one)))[:-1] + b"]}]}"
    peer = await Peer.connect(broker.port)
    async with broker.stays_master():
        answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the body of request 34" in (answer.remark or "")
        assert "limit" in (answer.remark or "")
        again = await peer.ask(RequestCode.HEART_BEAT, body=heartbeat(["G"]))
        assert again.code == 0, "the connection goes on"
    assert await broker.longest_hold_s() < 1.0
    assert broker.resident() - before < 12 * MIB
    peer.close()


async def test_heartbeats_with_a_thousand_groups_each_are_bounded(broker: Broker) -> None:
    before = broker.resident()
    end = (await broker.status()).end
    peer = await Peer.connect(broker.port)
    async with broker.stays_master():
        answers = await peer.ask_all(
            peer.request(RequestCode.HEART_BEAT, body=heartbeat([f"g{beat}-{n}" for n in range(1_000)]))
            for beat in range(30)
        )
    assert {a.code for a in answers} == {ResponseCode.SYSTEM_ERROR}
    assert "the heartbeat names 1000 groups, the limit is 500" in (answers[0].remark or "")
    assert await broker.metric("consumer_groups") < 50
    assert (await broker.status()).end - end < 2 * MIB
    assert broker.resident() - before < 40 * MIB
    peer.close()


async def test_groups_that_come_into_being_are_bounded_in_rate_and_take_one_record_a_heartbeat(broker: Broker) -> None:
    peers = [await Peer.connect(broker.port) for _ in range(20)]
    codes = []
    async with broker.stays_master():
        for number, peer in enumerate(peers):
            body = heartbeat([f"g{number}-{n}" for n in range(400)])
            codes.append((await peer.ask(RequestCode.HEART_BEAT, body=body)).code)
    assert codes[:2] == [0, 0]
    assert ResponseCode.SYSTEM_BUSY in codes
    assert await broker.metric("consumer_groups") < 4_000
    for peer in peers:
        peer.close()


async def test_many_heartbeats_of_many_clients_at_once_are_answered_in_slices(broker: Broker) -> None:
    first = await Peer.connect(broker.port)
    body = heartbeat([f"g{n}" for n in range(300)], subscriptions=5)
    assert (await first.ask(RequestCode.HEART_BEAT, body=body)).code == 0
    peers = [await Peer.connect(broker.port) for _ in range(15)]
    async with broker.stays_master():
        await asyncio.gather(
            *(peer.ask_all([peer.request(RequestCode.HEART_BEAT, body=body) for _ in range(5)]) for peer in peers)
        )
    assert await broker.longest_hold_s() < 1.0
    for peer in peers:
        peer.close()


# ---- filters


def pull_ext(**fields: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "a = 1",
        "expressionType": "SQL92",
        "subVersion": 0,
        **fields,
    }


async def fill(broker: Broker, count: int, properties: str) -> Peer:
    peer = await Peer.connect(broker.port)
    assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")).code == 0
    for start in range(0, count, 500):
        sends = [
            peer.request(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties), b"x")
            for _ in range(min(500, count - start))
        ]
        assert {a.code for a in await peer.ask_all(sends)} == {0}
    return peer


async def test_an_expression_of_64_kib_is_refused(broker: Broker) -> None:
    peer = await fill(broker, 0, "")
    async with broker.stays_master():
        for text in ("a=1 OR " * 9_000 + "a=1", "a=1 OR " * 2_000 + "a=1", "a=1 OR " * 1_000 + "a=1"):
            answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext(subscription=text))
            assert answer.code in (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR)
            assert "at most" in (answer.remark or "") or "limit" in (answer.remark or "")
    assert await broker.longest_hold_s() < 1.0
    peer.close()


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        (" OR ".join(["a=1"] * 140), "a\x012\x02b\x013"),
        (" OR ".join(["a=1"] * 140), "a\x01" + "9" * 30_000),
        ("a CONTAINS 'zz' OR " * 100 + "b", "\x02".join(f"p{n}\x01v" for n in range(3_000))),
    ],
    ids=["many conditions", "a number of 30,000 digits", "many properties"],
)
async def test_a_filter_that_matches_nothing_is_evaluated_in_slices(
    broker: Broker, expression: str, properties: str
) -> None:
    """The pull is answered with what was found and where to go on; the whole queue is read in the end."""
    count = 500
    peer = await fill(broker, count, properties)
    pullers = [await Peer.connect(broker.port) for _ in range(5)]

    async def read_all(peer: Peer) -> int:
        at, pulls = 0, 0
        while at <= count:
            answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext(subscription=expression, queueOffset=at))
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, answer.remark
            assert int(answer.ext["nextBeginOffset"]) > at
            at = int(answer.ext["nextBeginOffset"])
            pulls += 1
        assert at == count + 1
        return pulls

    async with broker.stays_master():
        pulls = await asyncio.gather(*(read_all(p) for p in pullers))
    assert min(pulls) > 1
    assert await broker.longest_hold_s() < 1.0
    for one in (peer, *pullers):
        one.close()


# ---- other requests that could hold the loop


async def test_a_batch_of_very_many_messages_is_refused(broker: Broker) -> None:
    one = pack(">iiiii", 22, 0, 0, 0, 0) + pack(">h", 0)
    peer = await fill(broker, 0, "")
    async with broker.stays_master():
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), one * 180_000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "over 32768 messages" in (answer.remark or "")
    peer.close()


async def test_many_held_pulls_of_one_queue_delay_no_other_request(broker: Broker) -> None:
    peer = await fill(broker, 0, "")
    end = int((await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})).ext["offset"])
    held = [await Peer.connect(broker.port) for _ in range(8)]
    ext = pull_ext(queueOffset=end, sysFlag=6, suspendTimeoutMillis=30_000, subscription="no", expressionType="TAG")
    for one in held:
        one.writer.write(b"".join(encode_frame(one.request(RequestCode.PULL_MESSAGE, ext)) for _ in range(2_500)))
        await one.writer.drain()
    await broker.reaches("held_pulls", 20_000)
    async with broker.stays_master():
        for _ in range(20):
            assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")).code == 0
        await asyncio.gather(*(one.answer(2_500) for one in held))
    assert await broker.longest_hold_s() < 1.0
    for one in (peer, *held):
        one.close()


async def test_a_consumers_long_answer_about_its_offsets_is_not_read(broker: Broker) -> None:
    consumer, admin = await Peer.connect(broker.port), await Peer.connect(broker.port)
    assert (await consumer.ask(RequestCode.HEART_BEAT, body=heartbeat(["g"]))).code == 0
    queue = '{"brokerName":"a","queueId":%d,"topic":"T"}:1'
    few, many = [
        ('{"messageQueueTable":{' + ",".join(queue % n for n in range(entries)) + "}}").encode()
        for entries in (10, 100_000)
    ]
    for body, read in ((few, True), (many, False), (b"{", False), (b"\xff", False)):
        request = admin.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
        async with broker.stays_responsive():
            admin.writer.write(encode_frame(request))
            async with asyncio.timeout(30):
                while not any(f.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT for f in consumer.frames):
                    consumer.frames += consumer._decoder.feed(await consumer.reader.read(1 << 16))
            asked = next(f for f in consumer.frames if f.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
            consumer.frames.clear()
            consumer.writer.write(encode_frame(Frame.response_to(asked, 0, body=body)))
            answer = await admin.answer(request.opaque)
        assert answer.code == 0
        assert (b"queueId" in answer.body) is read
    for one in (consumer, admin):
        one.close()


# ---- unfinished frames, at a broker and at a NameServer


async def never_finish(server: Server, code: int, cut: int) -> tuple[float, int]:
    """60 connections send most of a frame of 4 MiB: bytes that are held then, and by how much memory grew."""
    before = server.resident()
    begun = encode_frame(Frame(code, 1, body=bytes(4 * MIB)))[: -MIB // 8]
    peers = []
    async with server.stays_responsive():
        for _ in range(80):
            peer = await Peer.connect(server.port)
            peer.writer.write(begun)
            peers.append(peer)
        await server.reaches("connections_cut_total", cut)
        held = await server.metric("unfinished_frame_bytes")
    grown = server.resident() - before
    for peer in peers:
        peer.close()
    return held, grown


async def test_frames_that_are_never_finished_hold_little_of_a_broker(broker: Broker) -> None:
    held, grown = await never_finish(broker, RequestCode.SEND_MESSAGE, cut=5)
    assert held <= 32 * MIB, "an eighth of its memory"
    assert grown < 80 * MIB


async def test_frames_that_are_never_finished_hold_little_of_a_name_server(name_server: Server) -> None:
    held, grown = await never_finish(name_server, RequestCode.REGISTER_BROKER, cut=0)
    assert held == 0, "a body over the limit of its code is not kept"
    assert grown < 40 * MIB


# ---- registrations


REGISTER = {
    "brokerName": "big",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "demo",
    "brokerId": 0,
    "haServerAddr": "127.0.0.1:2",
}


def compressed(topics: int) -> bytes:
    def sized(piece: bytes) -> bytes:
        return pack(">i", len(piece)) + piece

    version = sized(b'{"counter":1,"stateVersion":0,"timestamp":1}')
    lines = b"".join(sized(b"t%07d 8 8 6 SINGLE_TAG" % n) for n in range(topics))
    return zlib.compress(version + pack(">i", topics) + lines + sized(b"[]"), 9)


async def test_a_compressed_registration_of_very_many_topics_is_refused(name_server: Server) -> None:
    before = name_server.resident()
    peer = await Peer.broker(name_server)
    bomb = zlib.compress(b"\0" * (256 * MIB), 9)
    async with name_server.stays_responsive():
        for body in (compressed(1_500_000), bomb):
            answer = await peer.ask(RequestCode.REGISTER_BROKER, {**REGISTER, "compressed": "true"}, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "8388608 bytes" in (answer.remark or "")
        answer = await peer.ask(RequestCode.REGISTER_BROKER, {**REGISTER, "compressed": "true"}, compressed(51_000))
        assert "51000 topics, the limit is 50000" in (answer.remark or "")
    assert await name_server.longest_hold_s() < 1.0
    assert name_server.resident() - before < 60 * MIB
    peer.close()


@pytest.mark.parametrize("form", ["compressed", "JSON"])
async def test_large_registrations_of_many_brokers_are_read_in_slices(name_server: Server, form: str) -> None:
    topics = 20_000
    table = {f"t{n:07d}": {"topicName": f"t{n:07d}", "readQueueNums": 8, "writeQueueNums": 8} for n in range(topics)}
    plain = json.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": {"counter": 1}}}
    ).encode()
    ext = {**REGISTER, "compressed": "true"} if form == "compressed" else REGISTER
    body = compressed(topics) if form == "compressed" else plain
    peers = [await Peer.broker(name_server, f"big-{number}") for number in range(6)]
    client = await Peer.connect(name_server.port)
    async with name_server.stays_responsive():
        answers = await asyncio.gather(
            *(
                peer.ask(RequestCode.REGISTER_BROKER, {**ext, "brokerName": f"big-{number}"}, body)
                for number, peer in enumerate(peers)
            )
        )
        route = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t0000007"})
    assert [a.code for a in answers] == [0] * 6
    assert len(json.loads(route.body)["brokerDatas"]) == 6
    assert await name_server.longest_hold_s() < 1.0
    for peer in (client, *peers):
        peer.close()


@pytest.mark.parametrize("form", ["compressed", "JSON"])
async def test_a_large_registration_of_a_stranger_or_of_another_group_changes_no_route(
    name_server: Server, form: str
) -> None:
    topics = [f"t{zlib.crc32(b'%d' % n):010d}{n:06d}" for n in range(30_000)]
    if form == "compressed":
        body = encode_compressed(RegisterBody(TopicConfigs({name: TopicConfig(name, 8, 8) for name in topics})))
    else:
        table = {name: {"topicName": name, "readQueueNums": 8, "writeQueueNums": 8} for name in topics}
        body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
    assert len(body) > AT_ONCE_BYTES
    ext = {**REGISTER, "compressed": str(form == "compressed").lower()}
    stranger, other = await Peer.connect(name_server.port), await Peer.broker(name_server, "other")
    refused = await stranger.ask(RequestCode.REGISTER_BROKER, ext, body)
    assert (refused.code, "the limit is 65536" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    refused = await other.ask(RequestCode.REGISTER_BROKER, ext, body)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "the peer is member 0 of demo/other" in (refused.remark or "")
    route = await stranger.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topics[0]})
    assert route.code == ResponseCode.TOPIC_NOT_EXIST
    assert (await name_server.http.get("/healthz")).json()["groups"] == []
    for peer in (stranger, other):
        peer.close()
