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
