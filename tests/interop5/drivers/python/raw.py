"""Single gRPC calls, each as a client could make it: commands as JSON lines in, events as JSON lines out.

It uses the stubs that the official Python client ships, and grpcio. Messages are in protobuf's JSON form.
"""

import asyncio
import json
import os
import sys
import time

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from rocketmq.grpc_protocol import service_pb2
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

OUT = os.fdopen(os.dup(1), "w", buffering=1)
CHANNELS = {}
STREAMS = {}


def say(command, event, **values):
    OUT.write(json.dumps({"id": command, "event": event, **values}) + "\n")


def channel(c):
    """The client's connection; the client id is its key, so each client has its own."""
    key = (c["client"], c["endpoints"])
    if key not in CHANNELS:
        options = [("grpc.use_local_subchannel_pool", 1), *((k, v) for k, v in c.get("options", {}).items())]
        if c["tls"]:
            credentials = grpc.ssl_channel_credentials(c["ca"].encode())
            CHANNELS[key] = grpc.aio.secure_channel(c["endpoints"], credentials, options)
        else:
            CHANNELS[key] = grpc.aio.insecure_channel(c["endpoints"], options)
    return CHANNELS[key]


def metadata(c):
    given = {
        "x-mq-client-id": c["client"],
        "x-mq-language": "PYTHON",
        "x-mq-client-version": "5.1.2",
        "x-mq-protocol": "v2",
        "x-mq-date-time": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
    }
    given.update(c.get("metadata", {}))
    return [(name, value) for name, value in given.items() if value is not None]


async def call(c):
    method = c["method"]
    request = ParseDict(c["request"], getattr(service_pb2, f"{method}Request")())
    stub = getattr(MessagingServiceStub(channel(c)), method)
    timeout = c.get("deadlineMs", 30_000) / 1000
    if method in ("ReceiveMessage", "PullMessage"):
        async for answer in stub(request, metadata=metadata(c), timeout=timeout):
            say(c["id"], "answer", at=time.time() * 1000, **MessageToDict(answer))
    else:
        answer = await stub(request, metadata=metadata(c), timeout=timeout)
        say(c["id"], "answer", at=time.time() * 1000, **MessageToDict(answer))


async def telemetry(c):
    """A telemetry stream that stays until it is stopped; `send` sends more on it."""
    commands = asyncio.Queue()
    STREAMS[c["id"]] = commands
    await commands.put(c.get("first"))

    async def requests():
        while (command := await commands.get()) is not None:
            yield ParseDict(command, service_pb2.TelemetryCommand())

    async for answer in MessagingServiceStub(channel(c)).Telemetry(requests(), metadata=metadata(c)):
        say(c["id"], "settings", at=time.time() * 1000, **MessageToDict(answer))


async def connections(c):
    """Many idle clients, each with a connection and a telemetry stream. `send` gives each of them a message to send."""
    first = ParseDict(c["first"], service_pb2.TelemetryCommand())
    streams, stubs = [], []
    for n in range(c["count"]):
        own = {**c, "client": f"{c['client']}-{n}"}
        stubs.append(MessagingServiceStub(channel(own)))
        stream = stubs[-1].Telemetry(metadata=metadata(own))
        await stream.write(first)
        answer = MessageToDict(await asyncio.wait_for(stream.read(), 20))
        assert answer["status"]["code"] == "OK", answer
        streams.append(stream)
    say(c["id"], "connected", count=len(streams))
    commands = STREAMS[c["id"]] = asyncio.Queue()
    some = asyncio.Semaphore(32)

    async def send(n, message):
        request = ParseDict({"messages": [message]}, service_pb2.SendMessageRequest())
        async with some:
            given = metadata({**c, "client": f"{c['client']}-{n}"})
            answer = await stubs[n].SendMessage(request, metadata=given, timeout=30)
        return MessageToDict(answer)["status"]["code"]

    while (messages := await commands.get()) is not None:
        codes = await asyncio.gather(*(send(n, message) for n, message in enumerate(messages)))
        say(c["id"], "sent", codes={code: codes.count(code) for code in set(codes)})
    still = sum(not stream.done() for stream in streams)
    say(c["id"], "connected", count=still)
    for stream in streams:
        stream.cancel()


async def run(c):
    try:
        await {"call": call, "telemetry": telemetry, "connections": connections}[c["do"]](c)
    except grpc.aio.AioRpcError as error:
        say(c["id"], "error", code=error.code().name, text=str(error.details()))
    except Exception as error:
        say(c["id"], "error", code=None, text=f"{type(error).__name__}: {error}")
    say(c["id"], "done")


async def main():
    say("", "ready")
    tasks = set()
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        c = json.loads(line)
        if c["do"] == "stop":
            await STREAMS[c["of"]].put(None)
        elif c["do"] == "send":
            await STREAMS[c["of"]].put(c["command"])
        elif c["do"] == "drop":
            for key in [key for key in CHANNELS if key[0] == c["client"]]:
                await CHANNELS.pop(key).close()
        else:
            task = asyncio.create_task(run(c))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    os._exit(0)


asyncio.run(main())
