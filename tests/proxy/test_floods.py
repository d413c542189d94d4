"""gRPC floods by a program of its own, all kinds at once: a client's sends keep their answers, the master its role."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from gantry_broker.protocol.grpc_contract import Code, v2

from tests.proxy import cluster as c
from tests.proxy.test_members import context_of
from tests.support.running import until

FLOOD: Final = """
import contextlib, socket, sys, threading, time
from gantry_broker.proxy.http2 import hpack
from gantry_broker.proxy.http2.core import PREFACE

def frame(kind, flags=0, stream=0, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload

def request(*more):
    fields = [(":path", "/apache.rocketmq.v2.MessagingService/SendMessage"), ("content-type", "application/grpc"),
              ("x-mq-client-id", "flood"), *more]
    return b"\\x83\\x86" + b"".join(hpack.literal(*field) for field in fields)

plain, large = request(), request(*((f"x-{n}", "v" * 900) for n in range(16)))
numbers = range(1, 2_001, 2)
body = b"\\0" + (15 << 20).to_bytes(4, "big")
KINDS = {
    "resets": b"".join(frame(1, 4, n, plain) + frame(3, 0, n, b"\\0\\0\\0\\x08") for n in numbers),
    "streams": b"".join(frame(1, 4, n, plain) for n in numbers),
    "metadata": b"".join(frame(1, 5, n, large) for n in numbers[:200]),
    "messages": frame(1, 4, 1, plain) + frame(0, 0, 1, body) + frame(0, 0, 1, bytes(16_000)) * 60,
    "pings": frame(6, 0, 0, bytes(8)) * 20_000,
    "settings": frame(4, 0, 0, b"\\0\\4\\0\\0\\xff\\xff" * 1_000) * 50,
    "pieces": frame(1, 4, 1, plain) + frame(0, 0, 1, b"\\0") * 20_000,
}

def flood(data):
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as sock:
            sock.sendall(PREFACE + frame(4) + data)  # and reads nothing
            time.sleep(0.2)
        time.sleep(0.01)
        print(".", end="", flush=True)

for data in KINDS.values():
    threading.Thread(target=flood, args=(data,), daemon=True).start()
time.sleep(60)
"""
SENDS: Final = 20
LIMIT_S: Final = 5.0
"""For one send, on a machine that may be busy."""


async def test_floods_take_no_answer_from_others(tmp_path: Path) -> None:
    async with c.served(tmp_path) as cluster, c.proxied(cluster) as (proxy, stub):
        port = proxy.endpoint
        assert port is not None
        await c.make_topic(cluster, "T")
        context = context_of(cluster)
        epoch = context.replication.epoch
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOD, str(proxy.port), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            await process.stdout.readexactly(10)  # The flood is under way.
            for number in range(SENDS):
                request = v2.SendMessageRequest(messages=[c.message("T", f"{number}".encode())])
                answer = await stub.SendMessage(request, metadata=c.metadata("honest"), timeout=LIMIT_S)
                assert answer.status.code == Code.OK, answer.status
            assert process.returncode is None
            assert sum(port.refused.counts.values()) > 0, "connections of the flood ended"
        finally:
            process.kill()
            await process.wait()
        assert context.role.leading
        assert context.replication.epoch == epoch
        await until(lambda: len(port.connections) <= 1, timeout_s=30)
