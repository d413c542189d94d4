"""Seeded bad input for the codec and for live servers: a seed and a number give the same bytes on every machine."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from struct import Struct

VECTORS = Path(__file__).resolve().parents[1] / "data" / "vectors" / "vectors.jsonl"

_INT = Struct(">i")
_HOSTILE_NUMBERS = (
    0, 1, -1, 3, 4, 7, 8, 21, 127, 255, 65_535, 65_536, 0x7FFFFFFF, -0x80000000, 16 * 1024 * 1024, 16 * 1024 * 1024 + 1,
)  # fmt: skip
HOSTILE_TEXTS = (
    "", " ", "0", "-1", "null", "true", "NaN", "1e9", "9" * 400, "-9223372036854775809", "9223372036854775807",
    "2147483648", "\x00", "\x01\x02", "../../etc/passwd", "%RETRY%", "a" * 5000, "\N{GRINNING FACE}" * 50, "'; --",
    "TBW102", "SCHEDULE_TOPIC_XXXX", "*", "a > 5 AND", "(" * 300,
)  # fmt: skip
_JSON_HEADERS = (
    b"", b"null", b"[]", b"{}", b"0", b'"x"', b"{", b'{"code":', b"[" * 20_000, b'{"a":' * 5_000,
    b'{"code":1e400,"opaque":1}', b'{"code":"10","opaque":1,"flag":0}', b'{"code":10,"opaque":"1"}',
    b'{"code":10,"opaque":99999999999999999999,"flag":0}', b'{"code":10,"opaque":1,"flag":0,"extFields":[1]}',
    b'{"code":10,"opaque":1,"flag":0,"version":0,"language":"JAVA","extFields":{"a":{"b":[1,2]}}}',
    b'{"code":10,"opaque":1,"flag":0,"version":0,"language":"KLINGON","extFields":{"a":null,"b":1,"c":true}}',
    b'{"code":10,"opaque":1,"flag":0,"remark":[1],"language":7}', b'{"code":10,"code":11,"opaque":1,"opaque":2}',
    b'{"code":10,"opaque":1,"flag":0,"remark":"\\ud800"}', b'\xef\xbb\xbf{"code":10}', b'{"code":10,"x":"\xff\xfe"}',
    b'{"code":9223372036854775807,"opaque":1,"flag":0,"version":0,"language":"JAVA"}',
)  # fmt: skip


@cache
def golden() -> dict[str, list[bytes]]:
    """The recorded bytes: frames of clients, frames of servers, records on disk."""
    found: dict[str, list[bytes]] = {"client->server": [], "server->client": [], "disk": []}
    for line in VECTORS.read_text().splitlines():
        vector = json.loads(line)
        found[vector["direction"]].append(bytes.fromhex(vector["hex"]))
    return found


def frame(header: bytes, body: bytes = b"", serialize: int = 0) -> bytes:
    """Makes a frame with these bytes as its header."""
    return _INT.pack(4 + len(header) + len(body)) + (serialize << 24 | len(header)).to_bytes(4, "big") + header + body


def json_request(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """Makes a well-formed request with these fields."""
    header = {"code": code, "language": "JAVA", "version": 399, "opaque": opaque, "flag": 0, "extFields": ext}
    return frame(json.dumps(header).encode(), body)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Damages a good input in several places: bits, numbers, truncations, repeats, splices."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not out:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(7)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at : at + 4] = _INT.pack(rng.choice(_HOSTILE_NUMBERS))
        elif kind == 3:
            del out[at : at + rng.randint(1, 40)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randint(1, 40))
        elif kind == 5:
            out[at:at] = out[at : at + rng.randint(1, 40)]
        else:
            out = out[:at]
    return bytes(out)


def hostile_fields(rng: random.Random, data: bytes) -> bytes | None:
    """Damages a recorded JSON request: fields are absent, empty, of the wrong type or enormous; None: not JSON."""
    if data[4] != 0:
        return None
    size = int.from_bytes(data[5:8], "big")
    header = json.loads(data[8 : 8 + size])
    ext = header.get("extFields") or {"topic": "x"}
    for name in rng.sample(sorted(ext), min(len(ext), rng.randint(1, 3))):
        kind = rng.randrange(4)
        if kind == 0:
            del ext[name]
        elif kind == 1:
            ext[name] = rng.choice(HOSTILE_TEXTS)
        elif kind == 2:
            ext[name] = rng.choice((None, True, 12345678901234567890, 1.5, [], {}, ["a"]))
        else:
            ext[name] = str(rng.choice(_HOSTILE_NUMBERS))
    header["extFields"] = ext
    if rng.random() < 0.1:
        header["code"] = rng.choice((-1, 0, 9, 999, 65_535, 200_050, 0x7FFFFFFF))
    return frame(json.dumps(header).encode(), data[8 + size :])


def bad_frame(rng: random.Random) -> bytes:
    """Makes one input of any kind."""
    kind = rng.randrange(10)
    if kind == 0:
        return rng.randbytes(rng.randint(1, 300))
    if kind == 1:
        return _INT.pack(rng.choice(_HOSTILE_NUMBERS)) + _INT.pack(rng.choice(_HOSTILE_NUMBERS)) + rng.randbytes(16)
    if kind == 2:
        return frame(rng.choice(_JSON_HEADERS), rng.randbytes(rng.randint(0, 20)), rng.choice((0, 0, 0, 1, 2, 255)))
    if kind == 3:
        return frame(rng.randbytes(rng.randint(0, 80)), rng.randbytes(8), 1)
    if kind in (4, 5):
        request = hostile_fields(rng, rng.choice(golden()["client->server"]))
        if request is not None:
            return request
    base = rng.choice(golden()[rng.choice(("client->server", "client->server", "server->client"))])
    if kind == 6:
        return base[: rng.randrange(1, len(base))]
    if kind == 7:
        return mutate(rng, base) + base
    return mutate(rng, base)


_HTTP = (
    b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n",
    b"GET /metrics?name=gantry HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n",
    b"PUT /v1/access HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    b'{"version":1}',
    b"PUT /v1/assignment HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\n{"a":\r\n2\r\n1}\r\n0\r\n\r\n',
    b"GET /v1/tables?ages=false HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
    b"GET /v1/log/1024?bytes=4096 HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes=0-100\r\nConnection: close\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /readyz HTTP/1.0\r\n\r\n",
)


def bad_http(rng: random.Random) -> bytes:
    """Makes one damaged input of HTTP/1.1."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randint(1, 300))
    return mutate(rng, rng.choice(_HTTP))


_HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_METHODS = ("QueryRoute", "SendMessage", "ReceiveMessage", "Heartbeat", "Telemetry", "AckMessage", "EndTransaction")


def _http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _grpc_call(rng: random.Random, stream: int) -> bytes:
    """A well-formed call; the fields of its header are literals without an index (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"/apache.rocketmq.v2.MessagingService/{rng.choice(_METHODS)}",
        ":authority": "127.0.0.1", "content-type": "application/grpc", "te": "trailers",
        "x-mq-client-id": f"fuzz-{rng.randrange(9)}", "grpc-timeout": "1S",
    }  # fmt: skip
    block = b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )
    topic = b"\x12\x01T"
    message = b"\x0a" + bytes((len(topic),)) + topic
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return _http2_frame(1, 4, stream, block) + _http2_frame(0, 1, stream, data)


def bad_grpc(rng: random.Random) -> bytes:
    """Makes one damaged input of gRPC over HTTP/2: mostly after a good start, sometimes in the start itself."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randint(1, 300))
    calls = b"".join(_grpc_call(rng, stream) for stream in range(1, 2 * rng.randint(1, 3), 2))
    if kind < 0.1:
        return mutate(rng, _HTTP2_START + calls)
    if kind < 0.3:
        strange = _http2_frame(
            rng.randrange(12),
            rng.randrange(256),
            rng.choice((0, 1, 3, 2**31)),
            rng.randbytes(rng.choice((0, 4, 8, 30))),
        )
        return _HTTP2_START + calls + strange
    return _HTTP2_START + mutate(rng, calls)
