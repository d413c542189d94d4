"""The JSON dialect of RocketMQ's bodies, as fastjson writes it and other parsers refuse it.

It differs from JSON in two points: keys may be bare numbers (`{0:"10.0.0.1:10911"}`) and keys may be objects
(`{{"brokerName":"a","queueId":0,"topic":"T"}:13}`, a map whose key is a message queue). `loads` reads both, and plain
JSON at full speed; `dumps` writes such keys where the value has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from json import decoder
from typing import Any, Final, NamedTuple

import orjson

from gantry_broker.protocol.digits import MAX_INT, MIN_INT

MAX_DIALECT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the longest text in the dialect. The parser is Python, reads some 10 MB/s, and blocks the event loop."""
MAX_REQUEST_DIALECT: Final = 64 * 1024
"""The same for the body of a request: neither clients nor brokers write large ones in the dialect."""
MAX_DEPTH: Final = 32

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")
_scan_string: Callable[[str, int, bool], tuple[str, int]] = decoder.scanstring  # type: ignore[attr-defined]


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker group."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class JsonError(ValueError):
    """A text that is neither JSON nor fastjson's dialect."""


def loads(data: bytes, dialect: int = MAX_DIALECT_BYTES) -> Any:
    """Parse a body, at most `dialect` bytes of it in the dialect. Raises JsonError.

    Bare number keys become strings, message-queue keys `MessageQueue`. Keys that are other objects become tuples of
    their (name, value) pairs.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if len(data) > dialect:
            raise JsonError(f"text of {len(data)} bytes is not JSON: {error}") from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise JsonError(f"text is not UTF-8: {error}") from None
    try:
        value, at = _value(text, _skip(text, 0), 0)
    except (IndexError, StopIteration):
        raise JsonError("text ends within a value") from None
    except JsonError:
        raise
    except ValueError as error:
        raise JsonError(f"text cannot be read: {error}") from None
    at = _skip(text, at)
    if at != len(text):
        raise JsonError(f"unexpected {text[at : at + 20]!r} at {at} after the value")
    return value


def dumps(value: Any) -> bytes:
    """Write a value in the dialect: mapping keys may be `int` (bare) or `MessageQueue` (an object). Raises
    TypeError.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    if isinstance(value, MessageQueue):
        return orjson.dumps({"brokerName": value.broker, "queueId": value.queue_id, "topic": value.topic})
    if isinstance(value, Mapping):
        return b"{" + b",".join(_key(key) + b":" + dumps(item) for key, item in value.items()) + b"}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return b"[" + b",".join(dumps(item) for item in value) + b"]"
    raise TypeError(f"a {type(value).__name__} cannot be written")


def _key(key: Any) -> bytes:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key)).encode()
    if isinstance(key, (str, MessageQueue)):
        return dumps(key)
    raise TypeError(f"a {type(key).__name__} cannot be a key")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise JsonError(f"values are nested more than {MAX_DEPTH} deep")
    first = text[at]
    if first == '"':
        return _scan_string(text, at + 1, True)
    if first == "{":
        return _object(text, at + 1, depth)
    if first == "[":
        return _array(text, at + 1, depth)
    number = _NUMBER.match(text, at)
    if number:
        digits = number.group()
        if number.group(1) or number.group(2):
            return float(digits), number.end()
        if len(digits) > 24:
            raise JsonError(f"number of {len(digits)} digits at {at}")
        return int(digits), number.end()
    word = _WORD.match(text, at)
    if word:
        return _WORDS[word.group()], word.end()
    raise JsonError(f"unexpected {text[at : at + 20]!r} at {at}")


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    at = _skip(text, at)
    if text[at] == "]":
        return out, at + 1
    while True:
        item, at = _value(text, at, depth + 1)
        out.append(item)
        at = _skip(text, at)
        if text[at] == "]":
            return out, at + 1
        if text[at] != ",":
            raise JsonError(f"',' or ']' is expected at {at}")
        at = _skip(text, at + 1)


def _object(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    out: dict[Any, Any] = {}
    at = _skip(text, at)
    if text[at] == "}":
        return out, at + 1
    while True:
        raw, at = _value(text, at, depth + 1)
        at = _skip(text, at)
        if text[at] != ":":
            raise JsonError(f"':' is expected at {at}")
        value, at = _value(text, _skip(text, at + 1), depth + 1)
        out[_read_key(raw, at)] = value
        at = _skip(text, at)
        if text[at] == "}":
            return out, at + 1
        if text[at] != ",":
            raise JsonError(f"',' or '}}' is expected at {at}")
        at = _skip(text, at + 1)


def _read_key(raw: Any, at: int) -> Any:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, dict):
        topic, broker, queue = raw.get("topic"), raw.get("brokerName"), raw.get("queueId")
        if len(raw) == 3 and isinstance(topic, str) and isinstance(broker, str) and type(queue) is int:
            if not MIN_INT <= queue <= MAX_INT:
                raise JsonError(f"the queueId {queue} of a key is outside {MIN_INT} to {MAX_INT}, before {at}")
            return MessageQueue(topic, broker, queue)
        if all(isinstance(value, (str, int, float, type(None))) for value in raw.values()):
            return tuple(sorted(raw.items(), key=lambda pair: str(pair[0])))
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return str(raw)
    raise JsonError(f"a {type(raw).__name__} cannot be a key, before {at}")
