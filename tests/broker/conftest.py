"""One broker with a real store in this process, without sockets: requests go in as frames, answers are gathered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.pull.held import HeldPull
from gantry_broker.broker.wiring import wire
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import SendHeader
from gantry_broker.protocol.message import pack_host
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig


class Numbered(HeldPull):
    """A held pull that has a number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Wire:
    """A client's connection: what the broker writes to it is decoded."""

    def __init__(self, port: int = 40_000) -> None:
        self.peer = ("127.0.0.1", port)
        self.peer_bytes = pack_host("127.0.0.1", port)
        self.closed = False
        self.listener = ""
        self.paused = self.throttled = self.later = False
        self.attrs: dict[str, Any] = {}
        self.frames: list[Frame] = []
        self.arrived = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.frames += FrameDecoder().feed(data)
        self.arrived.set()

    def write_with(self, head: bytes, body: bytes) -> None:
        self.write(head + body)

    def send(self, frame: Frame) -> None:
        self.write(encode_frame(frame))

    def throttle(self, wait: bool) -> None:
        self.throttled = wait

    def read_later(self, wait: bool) -> None:
        self.later = wait

    def close(self) -> None:
        self.closed = True


class Bench:
    """The broker under test."""

    closed = False

    def __init__(self, path: Path, **options: Any) -> None:
        values: dict[str, Any] = {
            "cluster": "demo",
            "group": "demo-a",
            "member": 0,
            "name": "demo-a-0",
            "data_dir": path / "store",
            "port": 0,
            "http_port": 0,
            "member_address": "127.0.0.1:10911",
            "group_address": "127.0.0.1:10911",
            "settings": {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 500, "maxIndexNum": 2_000},
        }
        settings = {**values["settings"], **options.pop("settings", {})}
        self.config = BrokerConfig.model_validate({**values, **options, "settings": settings})
        self.store = MessageStore.open(
            StoreConfig(self.config.data_dir, self.config.settings.model_copy(), False, ("127.0.0.1", 10911))
        )
        self.client = RemotingClient()
        membership = Membership(Identity(self.config.cluster, self.config.group, self.config.member), None)
        self.parts = wire(self.config, self.store, pack_host("127.0.0.1", 10911), self.client, membership)
        self.broker = self.parts.context
        self.dispatcher = self.parts.dispatcher
        self.wire = Wire()
        self.together = 0
        """Sends that the broker took as one value with the others of their read."""
        self._opaque = 0

    async def lead(self) -> None:
        await self.broker.replication.start()
        me = self.broker.replication.me
        epoch = self.broker.replication.epoch + 1
        await self.broker.replication.assign(
            Assignment(LeadershipRecord(epoch, epoch, me, frozenset({me})), "127.0.0.1:10911")
        )

    def give(self, *frames: Frame, wire: Wire | None = None) -> None:
        """All frames as one read, as `Connection.handle` takes it."""
        conn: Any = wire or self.wire
        decoder = FrameDecoder()
        rules = self.dispatcher.send_rules()
        found = decoder.feed(b"".join(map(encode_frame, frames)), rules=rules, host=conn.peer_bytes)
        sends = decoder.sends
        if sends is not None:
            if self.dispatcher.take_sends(conn, sends):
                self.together += sends.messages
            else:
                found = sends.frames() + found
        if found:
            self.dispatcher.on_frames(conn, found)

    def frame(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", serialize: int = 0) -> Frame:
        self._opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        return Frame(code, self._opaque, ext=fields, body=body, serialize=serialize)

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", serialize: int = 0) -> Frame:
        """One request and its answer."""
        frame = self.frame(code, ext, body, serialize)
        self.give(frame)
        return await self.answer(frame.opaque)

    async def answer(self, opaque: int, timeout_s: float = 10) -> Frame:
        async with asyncio.timeout(timeout_s):
            while True:
                for found in self.wire.frames:
                    if found.opaque == opaque and found.is_response:
                        return found
                self.wire.arrived.clear()
                await self.wire.arrived.wait()

    def send_ext(self, topic: str = "T", **fields: Any) -> dict[str, str]:
        values: dict[str, Any] = {
            "producerGroup": "PG",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 0,
            "sysFlag": 0,
            "bornTimestamp": int(time.time() * 1000),
            "flag": 0,
            "properties": "KEYS\x01k\x02UNIQ_KEY\x01U1\x02TAGS\x01A",
            "reconsumeTimes": 0,
            "unitMode": False,
            "batch": False,
        }
        return SendHeader(**{**values, **fields}).short_ext()

    async def send(self, body: bytes, topic: str = "T", **fields: Any) -> Frame:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, self.send_ext(topic, **fields), body)

    def append(self, *puts: Put) -> int:
        """Append messages behind the requests, and return where the first one begins."""
        placed = self.broker.writer.append(list(puts))
        self.broker.writer.appended(None)
        return placed[0].phys_offset

    async def check_at_any_age(self) -> None:
        """Have producers asked about half messages however young these are."""
        assert (await self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionTimeOut=0")).code == 0
        await self.broker.transactions.loaded.wait()

    def check_transactions(self) -> None:
        """Look at all half messages, as if their time had come."""
        for item in self.broker.transactions._waiting.values():
            item.ask_at_ms = 0
        self.broker.transactions._check()

    def pull_ext(self, topic: str = "T", offset: int = 0, **fields: Any) -> dict[str, Any]:
        return {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            **fields,
        }

    async def close(self) -> None:
        self.closed = True
        self.broker.delays.close()
        self.broker.transactions.close()
        await self.broker.replication.stop()
        await self.parts.forwarder.close()
        await self.parts.processor.close()
        await self.client.close()
        self.store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.lead()
    yield made
    await made.close()


@pytest.fixture
async def make_bench(tmp_path: Path) -> AsyncIterator[Callable[..., Bench]]:
    """`make_bench(path, **options)`: another broker; what a test leaves open is closed at its end."""
    benches: list[Bench] = []

    def make(path: Path | None = None, **options: Any) -> Bench:
        benches.append(Bench(path or tmp_path / "other", **options))
        return benches[-1]

    yield make
    for bench in benches:
        if not bench.closed:
            await bench.close()
