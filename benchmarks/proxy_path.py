"""Measures the CPU time of the gRPC proxy for sends, receives and acknowledgements, without sockets.

    python benchmarks/proxy_path.py [--clients 64] [--messages 20000] [--body 1024] [--rounds 5] [--profile send]

A real service gets the bytes that a gRPC client writes, each client with one request in work and a request id of its
own. The broker's end of the connection is this program; what it does to answer is not part of the figures. They are
microseconds of CPU a message: the best round. What the kernel and the event loop's sockets take comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import time
import uuid
from collections.abc import Iterator
from typing import Any

import uvloop
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.grpc_contract import SERVICE, v2
from gantry_broker.protocol.message import encode_record
from gantry_broker.protocol.pop_batches import NO_EFFECT
from gantry_broker.proxy import process
from gantry_broker.proxy.authentication import Authentication
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.http2 import hpack
from gantry_broker.proxy.http2.core import PREFACE
from gantry_broker.proxy.http2.endpoint import Endpoint, GrpcConnection
from gantry_broker.proxy.service import Service
from gantry_broker.remoting.connection import Connection, Shared
from send_path import CountingTransport

TOPIC, GROUP, BROKER = "Bench", "bench", "127.0.0.1:10911"


class Wire(CountingTransport):
    """One end of a connection: keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.writes += 1
        self.data += data

    def take(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        return data


class Broker:
    """NameServer and broker: the other end of the proxy's connection."""

    def __init__(self, handler: Any, body: int, batch: int) -> None:
        self.wire = Wire()
        self.conn = Connection(handler)
        self.conn.connection_made(self.wire)
        self.requests = self.messages = 0
        self._decoder = FrameDecoder()
        self._body, self._batch = b"x" * body, batch
        self._offset = 0

    def answers(self) -> bytes:
        """Return the answers to what the proxy has asked."""
        return b"".join([encode_frame(self._answer(frame)) for frame in self._decoder.feed(self.wire.take())])

    def _answer(self, frame: Frame) -> Frame:
        self.requests += 1
        code = frame.code
        if code == RequestCode.SEND_MESSAGE_V2:
            self._offset += 1
            self.messages += 1
            ext = {"msgId": f"7F00000100002A9F{self._offset:016X}", "queueId": "1", "queueOffset": str(self._offset)}
            return Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext)
        if code == RequestCode.POP_MESSAGE:
            ext = {"popTime": "1795240234041", "invisibleTime": "60000", "reviveQid": "0", "restNum": "1000"}
            ext["startOffsetInfo"] = f"0 1 {self._offset}"
            return Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext, body=b"".join(self._records()))
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = {
                "brokerDatas": [{"brokerAddrs": {"0": BROKER}, "brokerName": "a", "cluster": "c"}],
                "queueDatas": [
                    {"brokerName": "a", "perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "topicSysFlag": 0}
                ],
            }
            return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(route))
        if code == RequestCode.GET_TOPIC_CONFIG:
            config = {"attributes": {"message.type": "NORMAL"}}
            return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(config))
        return Frame.response_to(frame, ResponseCode.SUCCESS, ext={NO_EFFECT: ""})

    def _records(self) -> Iterator[bytes]:
        host = b"\x7f\0\0\1\0\0\x2a\x9f"
        for _ in range(self._batch):
            self._offset += 1
            self.messages += 1
            yield encode_record(
                topic=TOPIC.encode(), body=self._body, queue_id=1, queue_offset=self._offset,
                properties=b"UNIQ_KEY\1%032X\2__BORNHOST\1bench\2BORN_TIMESTAMP\0011795240234041\2" % self._offset,
                phys_offset=self._offset * 1_300, born_ms=1_795_240_234_041, born_host=host,
                store_ms=1_795_240_234_042, store_host=host,
            )  # fmt: skip


class Client:
    """A gRPC client as its bytes: it names fields that stay the same once, as grpcio does."""

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        self.wire = Wire()
        self.conn = GrpcConnection(endpoint)
        self.conn.connection_made(self.wire)
        self.conn.data_received(PREFACE + b"\0\0\0\4\0\0\0\0\0")
        self._client = f"client-{number}@1@0@x"
        self._stream = -1
        self._known: list[tuple[str, str]] = []

    def request(self, method: str, message: bytes) -> bytes:
        """Return the frames of a call."""
        self._stream += 2
        block = b"\x83\x86" + b"".join(
            [
                self._indexed(":path", SERVICE + method),
                self._indexed(":authority", "127.0.0.1:8081"),
                self._indexed("te", "trailers"),
                self._indexed("content-type", "application/grpc"),
                self._indexed("user-agent", "grpc-python-asyncio/1.75.0 grpc-c/49.0.0 (linux; chttp2)"),
                self._indexed("grpc-accept-encoding", "identity, deflate, gzip"),
                hpack.literal("x-mq-client-id", self._client),
                hpack.literal("x-mq-language", "PYTHON"),
                hpack.literal("x-mq-client-version", "5.1.2"),
                hpack.literal("x-mq-protocol", "v2"),
                hpack.literal("x-mq-date-time", time.strftime("%Y%m%dT%H%M%SZ")),
                hpack.literal("x-mq-request-id", str(uuid.uuid4())),
                hpack.literal("grpc-timeout", "10S"),
            ]
        )
        stream = self._stream.to_bytes(4, "big")
        out = [len(block).to_bytes(3, "big"), b"\1\4", stream, block]
        data = b"\0" + len(message).to_bytes(4, "big") + message
        while data:
            part, data = data[:16_384], data[16_384:]
            out += [len(part).to_bytes(3, "big"), b"\0", b"\0" if data else b"\1", stream, part]
        window = b"\0\0\4\x08\0" + b"\0\0\0\0" + (64_000).to_bytes(4, "big")
        return b"".join(out) + window

    def _indexed(self, name: str, value: str) -> bytes:
        if (name, value) not in self._known:
            self._known.insert(0, (name, value))
            return b"\x40" + hpack.literal(name, value)[1:]
        return bytes((0x80 | (62 + self._known.index((name, value))),))

    def answer(self) -> list[bytes]:
        """Return the messages that have come."""
        data, at, parts = self.wire.take(), 0, bytearray()
        while at < len(data):
            length = int.from_bytes(data[at : at + 3], "big")
            if data[at + 3] == 0:
                parts += data[at + 9 : at + 9 + length]
            at += 9 + length
        found = []
        while parts:
            stop = 5 + int.from_bytes(parts[1:5], "big")
            found.append(bytes(parts[5:stop]))
            del parts[:stop]
        return found


class Stand:
    """The proxy's parts and both ends of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.session = Session("127.0.0.1:9876")
        producer = Producer(self.session, "bench-proxy")
        self.service = Service(Brokers(self.session), producer, Authentication("Disabled"), advertise=None)
        self.endpoint = Endpoint(self.service.methods, "127.0.0.1", 0, shared=Shared())
        self.broker = Broker(self.session.remoting, options.body, options.batch)
        connections = self.session.remoting._connections
        connections[BROKER] = connections["127.0.0.1:9876"] = self.broker.conn
        self.clients = [Client(self.endpoint, number) for number in range(options.clients)]
        self.profiler = cProfile.Profile()

    async def turn(self, requests: list[bytes], *, profiled: bool) -> tuple[float, list[list[bytes]]]:
        """All clients ask at once; returns the CPU seconds of the proxy, and the answers."""
        spent = 0.0
        answers: list[list[bytes]] = [[] for _ in self.clients]
        begun = self._begin(profiled)
        for client, data in zip(self.clients, requests, strict=True):
            client.conn.data_received(data)
        missing = len(requests)
        while missing:
            for _ in range(3):
                await asyncio.sleep(0)
            spent += self._end(begun, profiled)
            data = self.broker.answers()
            for number, client in enumerate(self.clients):
                if client.wire.data:
                    if b"grpc-status" in client.wire.data:
                        missing -= 1
                    answers[number] += client.answer()
            begun = self._begin(profiled)
            if data:
                self.broker.conn.data_received(data)
        return spent + self._end(begun, profiled), answers

    def _begin(self, profiled: bool) -> float:
        if profiled:
            self.profiler.enable()
        return time.process_time()

    def _end(self, begun: float, profiled: bool) -> float:
        spent = time.process_time() - begun
        if profiled:
            self.profiler.disable()
        return spent

    def settings(self) -> None:
        """The consumers say who they are."""
        settings = v2.Settings(client_type=3)
        settings.request_timeout.seconds = 3
        settings.subscription.group.name = GROUP
        for client in self.clients:
            known = self.service.clients.enter(client._client, "127.0.0.1")
            assert known is not None
            self.service.clients.set_settings(known, settings)

    async def sends(self, turns: int, profiled: bool = False) -> float:
        message = v2.Message(body=b"x" * self.options.body)
        message.topic.name = TOPIC
        message.system_properties.message_type = message.system_properties.body_encoding = 1
        message.system_properties.born_host = "bench"
        spent = 0.0
        for number in range(turns):
            message.system_properties.message_id = f"01{number:032X}"
            asked = v2.SendMessageRequest(messages=[message]).SerializeToString()
            used, answers = await self.turn(
                [client.request("SendMessage", asked) for client in self.clients], profiled=profiled
            )
            spent += used
            for [answer] in answers:
                if v2.SendMessageResponse.FromString(answer).status.code != 20_000:
                    raise RuntimeError(f"a send failed: {v2.SendMessageResponse.FromString(answer)}")
        return spent / (turns * len(self.clients)) * 1e6

    async def receives(self, turns: int, profile: str | None = None) -> tuple[float, float]:
        request = v2.ReceiveMessageRequest(batch_size=32)
        request.group.name, request.message_queue.topic.name = GROUP, TOPIC
        request.message_queue.id, request.message_queue.broker.name = -1, "a"
        request.filter_expression.type, request.filter_expression.expression = 1, "*"
        request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 5
        asked = request.SerializeToString()
        receive_s = ack_s = 0.0
        messages = turns * len(self.clients) * self.options.batch
        for _ in range(turns):
            used, answers = await self.turn(
                [client.request("ReceiveMessage", asked) for client in self.clients], profiled=profile == "receive"
            )
            receive_s += used
            acks = []
            for client, parts in zip(self.clients, answers, strict=True):
                ack = v2.AckMessageRequest()
                ack.topic.name, ack.group.name = TOPIC, GROUP
                for part in map(v2.ReceiveMessageResponse.FromString, parts):
                    if part.HasField("message"):
                        system = part.message.system_properties
                        ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
                if len(ack.entries) != self.options.batch:
                    raise RuntimeError(f"{len(ack.entries)} messages came, {self.options.batch} are expected: {parts}")
                acks.append(client.request("AckMessage", ack.SerializeToString()))
            used, answers = await self.turn(acks, profiled=profile == "ack")
            ack_s += used
            for [answer] in answers:
                if v2.AckMessageResponse.FromString(answer).status.code != 20_000:
                    raise RuntimeError(f"an ack failed: {v2.AckMessageResponse.FromString(answer)}")
        return receive_s / messages * 1e6, ack_s / messages * 1e6


async def run(options: argparse.Namespace) -> None:
    stand = Stand(options)
    stand.settings()
    turns = max(options.messages // options.clients, 1)
    few = max(options.messages // options.clients // options.batch, 1)
    await stand.sends(max(turns // 10, 2))
    await stand.receives(max(few // 10, 2))
    process.tune_memory()
    rows = []
    for _ in range(options.rounds):
        rows.append((await stand.sends(turns), *(await stand.receives(few))))
    send_us, receive_us, ack_us = map(min, zip(*rows, strict=True))
    print(f"{options.clients} clients: send {send_us:.1f} us, receive {receive_us:.1f} us, ack {ack_us:.1f} us")
    if options.profile == "send":
        await stand.sends(turns, profiled=True)
    elif options.profile:
        await stand.receives(few, options.profile)
    if options.profile:
        pstats.Stats(stand.profiler).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--messages", type=int, default=20_000, help="of each kind and round")
    parser.add_argument("--body", type=int, default=1_024, help="bytes")
    parser.add_argument("--batch", type=int, default=32, help="messages of one receive")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=["send", "receive", "ack"], help="print the profile of one round of it")
    options = parser.parse_args()
    logging.disable()
    uvloop.run(run(options))


if __name__ == "__main__":
    main()
