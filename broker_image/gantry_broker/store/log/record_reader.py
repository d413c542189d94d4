"""Reads records from the log's bytes: whole and undamaged? which queue? which keys?

`protocol.message` decodes every field of a record. Recovery, followers and the scrub read every byte of the log, so
this module extracts only what the store uses. `read_records` walks over many records; `read_record` reads one.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from gantry_broker.protocol.codes import CONTROL_TOPIC, KEY_SEPARATOR, SCHEDULE_TOPIC, Prop, SysFlag
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.protocol.message import (
    FIXED_V4,
    HEAD,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYS_OFFSET_AT,
    RECORD_V4,
    Record,
    RecordError,
    decode_record,
    tags_hash,
)
from gantry_broker.store.errors import BadRecords

FILLER_MIN: Final = 8
"""Every segment ends with a filler of at least this size: its own size and magic."""
ROOM_MIN: Final = 2048
"""A record begins only where its segment has at least this much room left.

An epoch's control record (about 250 bytes and the group's name) therefore fits wherever a record could begin.
Otherwise a new leader would fill the segment up at an offset where the old leader has a record, and the leader epochs
would not show the difference. The control record itself begins wherever it fits."""
SIZE_AND_MAGIC: Final = Struct(">iI")
HEAD_SIZE: Final = PHYS_OFFSET_AT + 8
"""Bytes of a record up to the end of its own offset."""
TIME_HEAD_SIZE: Final = 80
"""Bytes of a record that contain its store time."""
MAX_RECORD: Final = 64 * 1024 * 1024
"""Bytes."""
MIN_RECORD: Final = 91
"""Bytes of a record with IPv4 hosts and nothing of variable length."""
PAGE: Final = 512
"""Bytes that a disk writes as a whole or not at all."""
LOST: Final = 32
"""A page that begins with this many zeros within a record's topic and properties never reached the disk."""
NEVER: Final = sys.maxsize
"""For `lost_from`: every page reached the disk."""
_STORE_MS: Final = Struct(">q")
_SYS_FLAG: Final = Struct(">i")
_AFTER_STORE_HOST: Final = Struct(">iqi")
_U16: Final = Struct(">H")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_CONTROL: Final = CONTROL_TOPIC.encode()
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2, MAGIC_BLANK})
_ANY_MAGIC: Final = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in sorted(_MAGICS)))


_PLACE: Final = Struct(">iI4xi4xqqi")
"""Of a record's head: size, magic, queue, queue offset, own offset, system flags."""
LMQ: Final = b"%LMQ%"
"""Queues of this prefix are further queues of records of other topics (multi-dispatch of RocketMQ)."""


def is_record_of(data: bytes, at: int, size: int, phys: int, topic: bytes, queue_id: int, number: int) -> bool:
    """Whether the bytes at `at`, which lie at offset `phys` of the log, are the record of this queue offset.

    For an entry of a consume queue: as far as sizes, offsets and the topic show. CRCs are not checked.
    """
    if topic.startswith(LMQ):
        return True
    if at + MIN_RECORD > len(data):
        return False
    own_size, magic, own_queue, own_number, own_phys, flags = _PLACE.unpack_from(data, at)
    if own_size != size or own_phys != phys or own_number != number or own_queue != queue_id:
        return False
    length_at = at + FIXED_V4 - 4
    if flags & _V6:
        length_at += 12 * (bool(flags & SysFlag.BORN_HOST_V6) + bool(flags & SysFlag.STORE_HOST_V6))
    topic_at = length_at + 4 + int.from_bytes(data[length_at : length_at + 4], "big")
    width = 2 if magic == MAGIC_V2 else 1
    name_at = topic_at + width
    return int.from_bytes(data[topic_at:name_at], "big") == len(topic) and data[name_at : name_at + len(topic)] == topic


class Meta(NamedTuple):
    """The fields of a record that the store indexes. `properties` are the stored bytes."""

    phys: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes
    body_at: int
    """Index of the body in the buffer that was read."""
    body_size: int


PlainRecord = tuple[int, int, bytes, int, int, int, int, bytes]
"""(offset, size, topic, queue, queue offset, system flags, store time in ms, properties) of a plain record.

A record is plain when its hosts have IPv4 addresses, its magic is V1 and its topic is not the control topic. Queue and
queue offset may be negative in a damaged record."""


class Damage(Exception):
    """The reason why bytes are not a whole, undamaged record."""


def read_records(
    data: bytes, base: int, segment_size: int, *, check: bool, torn: bool = False, lost_from: int = NEVER
) -> Iterator[PlainRecord | Meta | int]:
    """Walk over the records that begin with data[0], which lies at offset `base` of the log.

    Yields each plain record, each other record, and the size of each filler, which may reach beyond `data`. `check`,
    `torn` as in `read_record`; pages from offset `lost_from` on may be lost. Raises Damage at the first record that is
    damaged or not whole.
    """
    unpack, crc32 = RECORD_V4.unpack_from, zlib.crc32
    at, have = 0, len(data)
    last = have - FIXED_V4 - 4
    view = memoryview(data)
    valid_topic: bytes | None = None
    while at < have:
        while at <= last:  # Plain records: the common kind, without the cost of `read_record`.
            size, magic, crc, queue_id, _, number, phys, flags, _, _, stored, _, _, _, length = unpack(data, at)
            body_end = at + FIXED_V4 + length
            end = at + size
            if (
                magic != MAGIC_V1
                or phys != base + at
                or flags & _V6
                or length < 0
                or not body_end + 4 <= end <= have
                or size + FILLER_MIN > segment_size - phys % segment_size
            ):
                break
            properties_at = body_end + 3 + data[body_end]
            if (
                properties_at > end
                or data[properties_at - 2] << 8 | data[properties_at - 1] != end - properties_at
                or (check and crc32(view[at + FIXED_V4 : body_end]) & 0x7FFFFFFF != crc)
            ):
                break
            topic = data[body_end + 1 : properties_at - 2]
            if topic != valid_topic:
                if topic == _CONTROL or not topic or b"\0" in topic:
                    break
                valid_topic = topic
            if (not data[end - 1] and end > properties_at) or (
                phys >= lost_from
                and (phys + size - 1) // PAGE != (body_end + base) // PAGE
                and has_lost_page(data, body_end, end, base)
            ):
                break
            yield phys, size, topic, queue_id, number, flags, stored, data[properties_at:end]
            at = end
        if at >= have:
            return
        record = read_next(data, at, base, segment_size, check=check, torn=torn, lost_from=lost_from)
        at += record if isinstance(record, int) else record.size
        yield record


def read_next(
    data: bytes, at: int, base: int, segment_size: int, *, check: bool, torn: bool = False, lost_from: int = NEVER
) -> Meta | int:
    """Read one record or filler of any kind, as `read_records`. Raises Damage."""
    phys = base + at
    room = segment_size - phys % segment_size
    record = read_record(data, at, len(data), phys, check=check, torn=torn, lost=phys >= lost_from)
    if isinstance(record, int):
        if record != room:
            raise Damage(f"filler of {record} bytes where {room} are left")
    elif record.size + FILLER_MIN > room:
        raise Damage(f"record of {record.size} bytes crosses the end of its segment, {room} bytes away")
    return record


def read_record(
    buf: bytes | memoryview, at: int, stop: int, phys: int, *, check: bool, torn: bool = False, lost: bool = False
) -> Meta | int:
    """Read the record at `buf[at:]`, which must contain its own offset `phys`; a filler gives its size.

    `stop`: the end of the bytes in `buf`. `check` verifies the CRC of the body. No CRC covers topic and properties:
    `torn` checks that their last byte was written, `lost` that each of their pages reached the disk (what `put` stores
    neither ends with a zero nor has many zeros in a row). Raises Damage.
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
    if not MIN_RECORD <= size <= MAX_RECORD:
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
        raise Damage("impossible queue, queue offset or topic")
    if check and zlib.crc32(buf[body_at:tail_at]) & 0x7FFFFFFF != crc:
        raise Damage("body does not match its CRC")
    if torn and length and buf[end - 1] == 0:
        raise Damage("its properties were not written to their end")
    if lost and has_lost_page(buf, tail_at, end if length else end - 2, phys - at):
        raise Damage("a part of its properties was never written")
    return Meta(phys, size, topic, queue_id, queue_offset, sys_flag, store_ms, bytes(buf[pos:end]), body_at, body_size)


def body_place(head: bytes) -> int:
    """Return where the body begins in a record, by the record's first bytes."""
    flags = int.from_bytes(head[PHYS_OFFSET_AT + 8 : PHYS_OFFSET_AT + 12])
    return FIXED_V4 + 12 * (bool(flags & SysFlag.BORN_HOST_V6) + bool(flags & SysFlag.STORE_HOST_V6))


def compaction_keys(properties: bytes) -> bytes | None:
    """Return the property KEYS as it is stored: the key of compaction."""
    return property_of(properties, _KEYS) if _KEYS in properties else None


def is_valid_record(data: bytes, at: int, phys: int, size: int) -> bool:
    """Whether data[at : at + size] is the undamaged record of offset `phys`."""
    end = at + size
    if not MIN_RECORD <= size <= len(data) - at:
        return False
    own_size, magic, crc, _, _, _, own, flags, _, _, _, _, _, _, length = RECORD_V4.unpack_from(data, at)
    if own_size != size or own != phys:
        return False
    body_at = at + FIXED_V4
    body_end = body_at + length
    if magic == MAGIC_V1 and not flags & _V6 and length >= 0 and body_end + 4 <= end:
        # `read_record` costs several times as much, and a read of old messages checks each of them.
        properties_at = body_end + 3 + data[body_end]
        return (
            properties_at <= end
            and data[properties_at - 2] << 8 | data[properties_at - 1] == end - properties_at
            and zlib.crc32(memoryview(data)[body_at:body_end]) & 0x7FFFFFFF == int(crc)
        )
    try:
        record = read_record(data, at, end, phys, check=True)
    except Damage:
        return False
    return isinstance(record, Meta) and record.size == size


def begins_at(head: bytes, phys: int, room: int) -> bool:
    """Whether `head`, the bytes at offset `phys`, begin a record or filler. `room`: bytes left in the segment."""
    size, magic = SIZE_AND_MAGIC.unpack_from(head) if len(head) >= FILLER_MIN else (0, 0)
    if magic == MAGIC_BLANK:
        return bool(size == room)
    own = int.from_bytes(head[PHYS_OFFSET_AT : PHYS_OFFSET_AT + 8])
    return magic in (MAGIC_V1, MAGIC_V2) and own == phys


def find_magic(data: bytes) -> Iterator[int]:
    """Where in `data` a record or filler may begin: 4 bytes before each magic number."""
    for match in _ANY_MAGIC.finditer(data, MAGIC_AT):
        yield match.start() - MAGIC_AT


def store_ms_of(head: bytes) -> int:
    """Return the store time (ms) of the record with these first `TIME_HEAD_SIZE` bytes."""
    v6 = _SYS_FLAG.unpack_from(head, 36)[0] & SysFlag.BORN_HOST_V6
    ms: int = _STORE_MS.unpack_from(head, 68 if v6 else 56)[0]
    return ms


def size_of_first(data: bytes | memoryview) -> int:
    """Return the size of the record or filler that begins with data[0]; 0 when none does."""
    size, magic = SIZE_AND_MAGIC.unpack_from(data) if len(data) >= FILLER_MIN else (0, 0)
    return int(size) if magic in _MAGICS and size >= FILLER_MIN else 0


def is_cut(data: bytes | memoryview, at: int) -> bool:
    """Return whether a record or filler begins with data[at] whose end is not there."""
    have = len(data) - at
    if have < FILLER_MIN:
        return True
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    return magic in _MAGICS and size > have


def decode_records(data: bytes) -> Iterator[Record]:
    """Decode all records of whole records and fillers. Raises BadRecords, with an offset within `data`."""
    at = 0
    while at < len(data):
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        if magic != MAGIC_BLANK:
            try:
                yield decode_record(data, at)
            except RecordError as error:
                raise BadRecords(at, str(error)) from None
        at += max(size, FILLER_MIN)


def has_lost_page(buf: bytes | memoryview, start: int, stop: int, base: int) -> bool:
    """Whether a page within buf[start:stop] begins with zeros; buf[i] lies at offset base + i of the log.

    `stop` excludes the length field of empty properties, which is zero by intent.
    """
    page = -(-(start + base) // PAGE) * PAGE - base
    while page < stop:
        head = bytes(buf[page : min(page + LOST, stop)])
        if head.count(0) == len(head):
            return True
        page += PAGE
    return False


def property_of(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of a property in the stored form, None without it.

    `name` ends with 0x01. The last occurrence counts.
    """
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


def words_of(keys: str) -> list[str]:
    """Return the words of a property KEYS, at most `MAX_KEYS`: brokers refuse more, but older logs may have them."""
    return [key for key in keys.split(KEY_SEPARATOR) if key][:MAX_KEYS]


def index_keys(properties: bytes) -> list[str]:
    """Return the keys of a record: its unique key, then the words of KEYS. Source: `IndexService.buildIndex`."""
    keys = []
    uniq = property_of(properties, _UNIQ)
    if uniq:
        keys.append(uniq.decode("utf-8", "replace"))
    words = property_of(properties, _KEYS) if _KEYS in properties else None
    if words:
        keys += words_of(words.decode("utf-8", "replace"))
    return keys


def delay_table(levels: str) -> tuple[int, ...]:
    """`messageDelayLevel` in milliseconds, level 1 first. The settings check the form."""
    return tuple(int(word[:-1]) * _UNITS[word[-1]] for word in levels.split())


def tags_code(topic: str, properties: bytes, store_ms: int, delays: Sequence[int]) -> int:
    """Return the third field of a queue entry: the hash of the tags; in the delay topic, the time of delivery (ms).

    A level above the last one counts as the last. Source: `CommitLog.checkMessageAndReturnSize` of 4.9.7.
    """
    if topic == SCHEDULE_TOPIC:
        level = property_of(properties, _DELAY)
        if level is not None and re.fullmatch(rb"\d{1,9}", level) and int(level) > 0 and delays:
            return store_ms + delays[min(int(level), len(delays)) - 1]
    return plain_tags_code(properties)


def plain_tags_code(properties: bytes) -> int:
    """`tags_code` in every topic except the delay topic."""
    tags = property_of(properties, _TAGS)
    return _tags_hash(tags) if tags else 0


@lru_cache(maxsize=4096)
def _tags_hash(tags: bytes) -> int:
    return tags_hash(tags.decode("utf-8", "replace"))


def in_queue(sys_flag: int) -> bool:
    """Whether a record has a queue entry; half messages of type 4 and rollbacks have none."""
    return sys_flag & SysFlag.TRANSACTION_MASK in (SysFlag.TRANSACTION_NOT, SysFlag.TRANSACTION_COMMIT)


def in_index(sys_flag: int) -> bool:
    """Whether a record has entries in the key index; rollbacks have none."""
    return sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK


def filler(size: int) -> bytes:
    """Return the head of a filler; its other bytes are zeros, as a new segment has them."""
    return SIZE_AND_MAGIC.pack(size, MAGIC_BLANK)
