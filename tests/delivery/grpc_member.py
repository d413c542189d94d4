"""A member of a POP group that goes through the gRPC proxies. It runs in the environment of the official Python client.

A member logs each message before it acknowledges it, and each acknowledgement after the answer OK. It changes the
proxy every few seconds, and when one fails.
"""

import argparse
import asyncio
import os
import random
import signal
import struct
import sys
import time

import grpc
from google.protobuf.duration_pb2 import Duration
from rocketmq.grpc_protocol import definition_pb2, service_pb2
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

ENTRY = struct.Struct("<BiqB")  # as plan.LOG_ENTRY
OK = 20000
INVISIBLE_S = 10
IN_TIME_S = 7.0
"""A later acknowledgement is not logged: another member may have the message by then."""


class Member:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self.log, self.acks = os.open(options.log, flags), os.open(options.log + ".acks", flags)
        self.stop = asyncio.Event()
        self.life = 0

    async def run(self, rng: random.Random) -> None:
        while not self.stop.is_set():
            self.life += 1
            try:
                await self.live(rng.choice(self.options.proxies), time.monotonic() + rng.uniform(3, 6))
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                print(f"{self.options.group}: {error!r}"[:300], file=sys.stderr, flush=True)
                await asyncio.sleep(0.2)

    async def live(self, proxy: str, end: float) -> None:
        options, client = self.options, f"{os.getpid()}@{self.life}"
        metadata = [("x-mq-client-id", client), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2")]
        settings = definition_pb2.Settings(client_type=definition_pb2.SIMPLE_CONSUMER)
        settings.subscription.group.name = options.group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = options.topic
        entry.expression.type, entry.expression.expression = definition_pb2.TAG, "*"
        async with grpc.aio.insecure_channel(proxy, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = MessagingServiceStub(channel)
            telemetry = stub.Telemetry(metadata=metadata)
            await telemetry.write(service_pb2.TelemetryCommand(settings=settings))
            await asyncio.wait_for(telemetry.read(), 5)
            request = service_pb2.ReceiveMessageRequest(
                batch_size=32,
                long_polling_timeout=Duration(seconds=5),
                invisible_duration=Duration(seconds=INVISIBLE_S),
            )
            request.group.name = options.group
            request.message_queue.topic.name = options.topic
            request.message_queue.id = -1
            request.message_queue.broker.name = options.broker
            request.filter_expression.type, request.filter_expression.expression = definition_pb2.TAG, "*"
            while time.monotonic() < end and not self.stop.is_set():
                began = time.monotonic()
                messages = [
                    answer.message
                    async for answer in stub.ReceiveMessage(request, metadata=metadata, timeout=10)
                    if answer.HasField("message")
                ]
                if messages:
                    await self.handle(stub, metadata, messages, began)
            telemetry.cancel()
            done = service_pb2.NotifyClientTerminationRequest()
            done.group.name = options.group
            await stub.NotifyClientTermination(done, metadata=metadata, timeout=5)

    async def handle(self, stub, metadata, messages, began: float) -> None:  # type: ignore[no-untyped-def]
        request = service_pb2.AckMessageRequest()
        request.topic.name, request.group.name = self.options.topic, self.options.group
        places = []
        for message in messages:
            key, number = (int(word) for word in message.body.split(b":"))
            properties = message.system_properties
            tried = properties.delivery_attempt - 1
            os.write(self.log, ENTRY.pack(key, number, time.monotonic_ns(), min(tried, 255)))
            request.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
            places.append((key, number, tried))
        answer = await stub.AckMessage(request, metadata=metadata, timeout=5)
        if time.monotonic() - began > IN_TIME_S:
            return
        for (key, number, tried), result in zip(places, answer.entries, strict=True):
            if result.status.code == OK:
                os.write(self.acks, ENTRY.pack(key, number, time.monotonic_ns(), min(tried, 255)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", nargs="+", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    member = Member(options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop.set)
    await member.run(random.Random(options.seed))


asyncio.run(main())
