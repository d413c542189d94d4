"""The body of REGISTER_BROKER: JSON, or RocketMQ's own compressed list (`compressed: true`)."""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BodyError, DataVersion, RegisterBody, TopicConfig, TopicConfigs

MAX_PLAIN: Final = 64 * 1024 * 1024
"""Bytes of the longest decompressed body: some 600,000 topics."""
_INT = Struct(">i")
_SEPARATOR: Final = " "


def decode_registration(body: bytes, *, compressed: bool) -> RegisterBody:
    """Raises BodyError."""
    if compressed:
        return _decode_compressed(body)
    try:
        return RegisterBody.from_json(fastjson.loads(body))
    except fastjson.JsonError as error:
        raise BodyError(f"registration: {error}") from None


def encode_compressed(body: RegisterBody) -> bytes:
    """RocketMQ's compressed form: lengths and JSON pieces, deflated as a whole."""
    parts = [_sized(fastjson.dumps(body.configs.version.to_json())), _INT.pack(len(body.configs.topics))]
    for config in body.configs.topics.values():
        line = _SEPARATOR.join(
            (config.name, str(config.read_queues), str(config.write_queues), str(config.perm), config.filter_type)
        )
        parts.append(_sized(line.encode()))
    parts.append(_sized(fastjson.dumps(body.filter_servers)))
    return zlib.compress(b"".join(parts), 9)


def _sized(piece: bytes) -> bytes:
    return _INT.pack(len(piece)) + piece


def _decode_compressed(body: bytes) -> RegisterBody:
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(body, MAX_PLAIN)
    except zlib.error as error:
        raise BodyError(f"compressed registration is damaged: {error}") from None
    if engine.unconsumed_tail or not engine.eof:
        raise BodyError(f"compressed registration is cut, or over {MAX_PLAIN} bytes")
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(plain):
            raise BodyError(f"compressed registration ends at {len(plain)}, within a number")
        (value,) = _INT.unpack_from(plain, at)
        at += 4
        if value < 0:
            raise BodyError(f"compressed registration has the length {value}")
        return int(value)

    def piece() -> bytes:
        nonlocal at
        size = number()
        if at + size > len(plain):
            raise BodyError(f"compressed registration ends at {len(plain)}, within a piece of {size} bytes")
        at += size
        return plain[at - size : at]

    try:
        version = DataVersion.from_json(fastjson.loads(piece()))
        topics = {}
        for _ in range(number()):
            config = _topic(piece())
            topics[config.name] = config
        filters = fastjson.loads(piece()) if at < len(plain) else []
    except (fastjson.JsonError, UnicodeDecodeError) as error:
        raise BodyError(f"compressed registration: {error}") from None
    if not isinstance(filters, list) or not all(isinstance(item, str) for item in filters):
        raise BodyError("compressed registration: filterServerList is not a list of texts")
    return RegisterBody(TopicConfigs(topics, version), filters)


def _topic(line: bytes) -> TopicConfig:
    """`name read write perm filter [attributes]`, the last in 5.x only."""
    words = line.decode().split(_SEPARATOR, 5)
    if len(words) < 5 or not all(word.isdigit() and len(word) < 10 for word in words[1:4]):
        raise BodyError(f"compressed registration: {line[:80]!r} is not 'topic read write perm filter'")
    return TopicConfig(words[0], int(words[1]), int(words[2]), int(words[3]), words[4])
