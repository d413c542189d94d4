"""The body of REGISTER_BROKER: JSON, or RocketMQ's own compressed list (`compressed: true`)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.fields import BodyError, Fields

MAX_PLAIN: Final = 8 * 1024 * 1024
"""Most bytes of a decompressed body."""
MAX_TOPICS: Final = 50_000
"""Most topics of one registration, as many as a broker may have (`maxTopics`)."""
MAX_TOPIC: Final = 255
"""Most characters of a topic's name."""
AT_ONCE: Final = 200
"""Topics that one step reads, in some 2 ms."""
_INT = Struct(">i")
_SEPARATOR: Final = " "


def decode_registration(body: bytes, *, compressed: bool) -> RegisterBody:
    """Return the whole body, read in one step. Raises BodyError."""
    for whole in registration_steps(body, compressed=compressed):
        if whole is not None:
            return whole
    raise BodyError("registration: it does not end")


def registration_steps(body: bytes, *, compressed: bool) -> Iterator[RegisterBody | None]:
    """Read a body in steps of some 2 ms: None after each, the body after the last one. Raises BodyError."""
    if compressed:
        yield from _compressed_steps(body)
        return
    try:
        value = fastjson.loads(body, fastjson.MAX_REQUEST_DIALECT)
    except fastjson.JsonError as error:
        raise BodyError(f"registration: {error}") from None
    yield None
    fields = Fields(value, "registration")
    wrapper = Fields(fields.map("topicConfigSerializeWrapper"), "topicConfigSerializeWrapper")
    table = wrapper.map("topicConfigTable")
    _check_count(len(table))
    topics = {}
    for number, (name, item) in enumerate(table.items(), 1):
        config = _checked(TopicConfig.from_json(item, str(name)))
        topics[config.name] = config
        if number % AT_ONCE == 0:
            yield None
    version = DataVersion.from_json(wrapper.map("dataVersion") or None)
    yield RegisterBody(TopicConfigs(topics, version), fields.texts("filterServerList"))


def _check_count(count: int) -> None:
    if count > MAX_TOPICS:
        raise BodyError(f"the registration has {count} topics, the limit is {MAX_TOPICS}")


def _checked(config: TopicConfig) -> TopicConfig:
    if len(config.name) > MAX_TOPIC:
        raise BodyError(f"the registration has a topic of {len(config.name)} characters, the limit is {MAX_TOPIC}")
    return config


def _inflate(body: bytes) -> bytes:
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(body, MAX_PLAIN)
    except zlib.error as error:
        raise BodyError(f"compressed registration is damaged: {error}") from None
    if engine.unconsumed_tail or not engine.eof:
        raise BodyError(f"compressed registration is incomplete, or over {MAX_PLAIN} bytes when decompressed")
    return plain


def _compressed_steps(body: bytes) -> Iterator[RegisterBody | None]:
    plain = _inflate(body)
    yield None
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
        version = DataVersion.from_json(fastjson.loads(piece(), fastjson.MAX_REQUEST_DIALECT))
        topics = {}
        count = number()
        _check_count(count)
        for done in range(1, count + 1):
            config = _checked(_topic(piece()))
            topics[config.name] = config
            if done % AT_ONCE == 0:
                yield None
        filters = fastjson.loads(piece(), fastjson.MAX_REQUEST_DIALECT) if at < len(plain) else []
    except (fastjson.JsonError, UnicodeDecodeError) as error:
        raise BodyError(f"compressed registration: {error}") from None
    if not isinstance(filters, list) or not all(isinstance(item, str) for item in filters):
        raise BodyError("compressed registration: filterServerList is not a list of texts")
    yield RegisterBody(TopicConfigs(topics, version), filters)


def _topic(line: bytes) -> TopicConfig:
    """`name read write perm filter [attributes]`, the last in 5.x only."""
    words = line.decode().split(_SEPARATOR, 5)
    reads, writes, perm = (whole_number(word, 0, MAX_INT) for word in (*words[1:4], "", "", "")[:3])
    if len(words) < 5 or reads is None or writes is None or perm is None:
        raise BodyError(f"compressed registration: {line[:80]!r} is not 'topic read write perm filter'")
    return TopicConfig(words[0], reads, writes, perm, words[4])
