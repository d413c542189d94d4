"""What the store needs to know of a record, read straight from its bytes: whole and undamaged? which queue? which keys?

`protocol.message` decodes records for people who want all of it; recovery and followers look at every byte of the log,
so here nothing is built that is not used.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from gantry_broker.protocol.codes import SCHEDULE_TOPIC, Prop, SysFlag
from gantry_broker.protocol.message import (
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Record,
    tags_hash,
)

FILLER_MIN: Final = 8
"""Every segment ends with a filler, of at least its own size and magic."""
ROOM_MIN: Final = 2048
"""A record begins only where so much of its segment is left, so that an epoch can begin wherever a record could: else
the new master would fill the segment up where the old one has a record, and no history would tell these logs apart. The
record with which an epoch begins has about 250 bytes and the group's name, and begins wherever it fits: an earlier
version may have left a record there."""
SIZE_AND_MAGIC: Final = Struct(">iI")
MAX_RECORD: Final = 64 * 1024 * 1024
PAGE: Final = 512
LOST: Final = 32
"""A block of the disk that begins with so many zeros, within a record's topic and properties, was never written."""
"""What a disk writes whole or not at all."""
_STORE_MS: Final = Struct(">q")
_AFTER_STORE_HOST: Final = Struct(">iqi")
_U16: Final = Struct(">H")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Meta(NamedTuple):
    """The parts of a record by which the store files it. `properties` are the stored bytes."""

    phys: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes
    body_at: int
    """Where the body begins in the buffer that was read."""
    body_size: int


class Damage(Exception):
    """Why bytes are not a whole, undamaged record."""


def read_meta(
    buf: bytes | memoryview, at: int, stop: int, phys: int, *, check: bool, torn: bool = False, lost: bool = False
) -> Meta | int:
    """The record at `buf[at:]`, of which the bytes up to `stop` are there, and which says that it lies at `phys`.

    A filler is answered as its size. `check` also verifies the body's CRC. Of topic and properties, which no CRC
    covers, `torn` also looks whether they were written to their end, and `lost` whether every block of them reached the
    disk (of `put`'s none ends with a zero or has many in a row). Raises Damage.
    """
    if stop - at < FILLER_MIN:
        raise Damage(f"{stop - at} bytes are less than a record's head")
    size, magic = SIZE_AND_MAGIC.unpack_from(buf, at)
    if magic == MAGIC_BLANK:
        if size < FILLER_MIN:
            raise Damage(f"filler of {size} bytes")
        return int(size)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise Damage("zeros" if size == 0 and magic == 0 else f"unknown magic 0x{magic:08x}")
    if not 91 <= size <= MAX_RECORD:
        raise Damage(f"size of {size} bytes")
    end = at + size
    if end > stop:
        raise Damage(f"record of {size} bytes, of which {stop - at} are there")
    _, _, crc, queue_id, _, queue_offset, own_phys, sys_flag, _ = HEAD.unpack_from(buf, at)
    if own_phys != phys:
        raise Damage(f"record says that it lies at {own_phys}")
    pos = at + (68 if sys_flag & SysFlag.BORN_HOST_V6 else 56)
    (store_ms,) = _STORE_MS.unpack_from(buf, pos)
    pos += 28 if sys_flag & SysFlag.STORE_HOST_V6 else 16
    if pos + 16 > end:
        raise Damage(f"record of {size} bytes ends within its head")
    _, _, body_size = _AFTER_STORE_HOST.unpack_from(buf, pos)
    body_at = pos + 16
    pos = body_at + body_size
    if body_size < 0 or pos + 3 > end:
        raise Damage(f"body of {body_size} bytes does not fit")
    tail_at = pos
    if magic == MAGIC_V2:
        (length,) = _U16.unpack_from(buf, pos)
        pos += 2
    else:
        length = buf[pos]
        pos += 1
    if length == 0 or pos + length + 2 > end:
        raise Damage(f"topic of {length} bytes does not fit")
    topic = bytes(buf[pos : pos + length])
    pos += length
    (length,) = _U16.unpack_from(buf, pos)
    pos += 2
    if pos + length != end:
        raise Damage(f"properties of {length} bytes do not fill the record")
    if queue_id < 0 or queue_offset < 0 or b"\0" in topic:
        raise Damage("queue or topic cannot be")
    if check and zlib.crc32(buf[body_at:tail_at]) & 0x7FFFFFFF != crc:
        raise Damage("body does not match its CRC")
    if torn and length and buf[end - 1] == 0:
        raise Damage("its properties were not written to their end")
    if lost and has_lost_page(buf, tail_at, end if length else end - 2, phys - at):
        raise Damage("a part of its properties was never written")
    return Meta(phys, size, topic, queue_id, queue_offset, sys_flag, store_ms, bytes(buf[pos:end]), body_at, body_size)


def has_lost_page(buf: bytes | memoryview, start: int, stop: int, base: int) -> bool:
    """Whether a block of the disk within buf[start:stop] begins with zeros; buf[i] lies at base + i of the log.

    `stop` leaves out the length of properties that are none: those zeros are meant.
    """
    page = -(-(start + base) // PAGE) * PAGE - base
    while page < stop:
        head = bytes(buf[page : min(page + LOST, stop)])
        if head.count(0) == len(head):
            return True
        page += PAGE
    return False


def property_of(properties: bytes, name: bytes) -> bytes | None:
    """The value of one property in the stored form; `name` ends with 0x01. The last one of that name counts."""
    at = properties.rfind(name)
    while at > 0 and properties[at - 1] != 2:
        at = properties.rfind(name, 0, at + len(name) - 1)
    if at < 0:
        return None
    at += len(name)
    stop = properties.find(b"\x02", at)
    return properties[at:] if stop < 0 else properties[at:stop]


_KEYS: Final = Prop.KEYS.encode() + b"\x01"
_UNIQ: Final = Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode() + b"\x01"
_TAGS: Final = Prop.TAGS.encode() + b"\x01"
_DELAY: Final = Prop.DELAY_TIME_LEVEL.encode() + b"\x01"


def index_keys(properties: bytes) -> list[str]:
    """What the index files a record under: its unique key, then the words of KEYS (`IndexService.buildIndex`)."""
    found = []
    uniq = property_of(properties, _UNIQ)
    if uniq:
        found.append(uniq.decode("utf-8", "replace"))
    keys = property_of(properties, _KEYS)
    if keys:
        found += [key for key in keys.decode("utf-8", "replace").split(" ") if key]
    return found


def delay_table(levels: str) -> tuple[int, ...]:
    """`messageDelayLevel` in milliseconds, level 1 first. The settings have checked the form."""
    return tuple(int(word[:-1]) * _UNITS[word[-1]] for word in levels.split())


def tags_code(topic: str, properties: bytes, store_ms: int, delays: Sequence[int]) -> int:
    """The third field of a consume-queue entry: the hash of the tags; in the delay topic, the time of delivery (ms).

    A level above the table's last counts as the last (`CommitLog.checkMessageAndReturnSize` of 4.9.7).
    """
    if topic == SCHEDULE_TOPIC:
        level = property_of(properties, _DELAY)
        if level is not None and re.fullmatch(rb"\d{1,9}", level) and int(level) > 0 and delays:
            return store_ms + delays[min(int(level), len(delays)) - 1]
    return plain_tags_code(properties)


def plain_tags_code(properties: bytes) -> int:
    """`tags_code` in every topic but the delay topic."""
    tags = property_of(properties, _TAGS)
    return _tags_hash(tags) if tags else 0


@lru_cache(maxsize=4096)
def _tags_hash(tags: bytes) -> int:
    return tags_hash(tags.decode("utf-8", "replace"))


def record_tags_code(record: Record, delays: Sequence[int]) -> int:
    """`tags_code` of a decoded record."""
    return tags_code(record.topic, record.properties, record.store_ms, delays)


def in_queue(sys_flag: int) -> bool:
    """Whether a record has a place in its topic's queue: half messages of type 4 and rollbacks have not."""
    return sys_flag & SysFlag.TRANSACTION_MASK in (SysFlag.TRANSACTION_NOT, SysFlag.TRANSACTION_COMMIT)


def in_index(sys_flag: int) -> bool:
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK


def filler(size: int) -> bytes:
    """The head of a filler; the rest of it is zeros, which a fresh segment holds already."""
    return SIZE_AND_MAGIC.pack(size, MAGIC_BLANK)
