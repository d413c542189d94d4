"""Every request code with random fields and bodies: an answer each time, nothing raised."""

from __future__ import annotations

import asyncio
import random
import zlib

import pytest
from gantry_broker.namesrv.kv import KvConfig
from gantry_broker.namesrv.service import SERVED, NameService
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.handshake import Identity

FIELDS = [
    "brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr", "compressed", "bodyCrc32", "topic",
    "namespace", "key", "value", "cluster", "gantryEpoch", "gantryMember", "gantryAddresses", "heartbeatTimeoutMillis",
    "acceptStandardJsonOnly", "enableActingMaster",
]  # fmt: skip
VALUES = [
    "", "a", "0", "1", "-1", "true", "9" * 25, "x" * 5000, "\0", "é😀", "null", "{}", '{"external":"h:1"}', '{"a":1}',
    "[",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b"5", b"{0:1}", b"{{}:1}", b'{"topicConfigSerializeWrapper":[]}', b"\xff\xfe",
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}', b'{"counter":"a"}', b"a=b", b"=",
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"readQueueNums":99999999999999999999}}}}',
    b'{"filterServerList":[1]}', b"[" * 5000, zlib.compress(b"\x7f\xff\xff\xff"), zlib.compress(bytes(1000)),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
async def test_any_request_gets_an_answer(seed: int) -> None:
    rng = random.Random(seed)
    service = NameService("ns", KvConfig(None), clock=lambda: rng.randrange(10**6))
    client, broker = Connection(service), Connection(service)
    broker.identity = Identity("c", "a", 1)
    for conn in (client, broker):
        service.on_open(conn)
    for _ in range(2500):
        frame = Frame(
            rng.choice(sorted(SERVED)),
            rng.randrange(-(2**31), 2**31),
            0,
            {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randrange(len(FIELDS)))},
            rng.choice(BODIES),
            serialize=rng.randrange(2),
        )
        if rng.randrange(3) == 0:
            frame.ext.pop("bodyCrc32", None)
            frame.ext |= {"brokerName": rng.choice("ab"), "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}
        answer = await service.answer_in_slices(rng.choice((client, broker)), frame)
        assert answer.opaque == frame.opaque
        assert FrameDecoder().feed(encode_frame(answer)) == [answer]
        service.expire()
    await asyncio.sleep(0)
