"""The JSON of an archive's objects, read with limits: every program that may write to the bucket can have made it."""

from __future__ import annotations

import re
import zlib
from typing import Any, Final

import orjson

from gantry_broker.archive.errors import Damaged
from gantry_broker.protocol import plausible

MAX_LISTS: Final = 500_000
"""Lists in one object. A part of 32 MiB has at most some 370,000 records, and a list for each queue."""
MAX_VALUES: Final = 5_000_000
"""Values in all lists of one object: each takes some 40 bytes of memory."""
MAX_OBJECTS: Final = 16
"""JSON objects in one object: a manifest's entry has three."""
_MOST: Final = ((b"[", MAX_LISTS), (b",", MAX_VALUES), (b"{", MAX_OBJECTS))


_CRC: Final = re.compile(rb',"crc":([0-9]{1,10})\}\Z')
_CRC_SIZE: Final = len(b',"crc":4294967295}')


def write_json(value: dict[str, Any]) -> bytes:
    """Return an object whose last field is the CRC-32 of what it is without this field."""
    data = orjson.dumps(value)
    return b'%b,"crc":%d}' % (data[:-1], zlib.crc32(data))


def read_json(what: str, data: bytes, most: int) -> dict[str, Any]:
    """Return the JSON object of at most `most` bytes. `what`: its name, for messages. Raises Damaged.

    Its parts are counted before they are read: the smallest take 30 times their bytes in memory. Objects of former
    versions have no CRC.
    """
    if len(data) > most:
        raise Damaged(f"{what} has {len(data)} bytes, the limit is {most}")
    for mark, limit in _MOST:
        if (count := data.count(mark)) > limit:
            raise Damaged(f"{what} has {count} times {mark.decode()!r}, the limit is {limit}")
    crc = _CRC.search(data, max(len(data) - _CRC_SIZE, 0))
    if crc is not None and zlib.crc32(b"}", zlib.crc32(memoryview(data)[: crc.start()])) != int(crc[1]):
        raise Damaged(f"{what} does not match its checksum")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"{what} is invalid: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{what} is invalid: it is no JSON object")
    return value


def natural(value: Any) -> int:
    """Return a number from 0 to the highest offset. Raises ValueError."""
    return plausible.offset("number", value)
