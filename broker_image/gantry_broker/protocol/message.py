"""RocketMQ's stored message: the record of the commit log and of pull answers.

Layout, big endian: size i32, magic, body CRC, queue id i32, flag i32, queue offset i64, physical offset i64, system
flag i32, born ms i64, born host (4 or 16 bytes of address, i32 port), store ms i64, store host (likewise), reconsume
times i32, prepared transaction offset i64, body (i32 length), topic (u8 length; u16 in version 2), properties (i16
length). Source: records on disk of 4.9.7 and 5.5.0.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final

from gantry_broker.protocol.codes import KEY_SEPARATOR, Prop, SysFlag
from gantry_broker.protocol.errors import RecordError as RecordError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""5.x, for topics longer than 127 bytes: the topic's length has two bytes."""
MAGIC_BLANK: Final = 0xCBD43194
"""Fills the rest of a segment when the next record does not fit: size i32, magic, zeros."""

# Offsets of the fields that are the same in every record, independent of the hosts' length.
MAGIC_AT: Final = 4
QUEUE_OFFSET_AT: Final = 20
PHYS_OFFSET_AT: Final = 28
BORN_HOST_AT: Final = 48
FIXED_V4: Final = 88
"""Bytes before the body, with its length field, when both hosts are IPv4; 12 more for each IPv6 host."""

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES: Final = 32_767

HEAD = Struct(">iIIiiqqiq")
"""size, magic, body CRC, queue id, flag, queue offset, physical offset, system flag, born ms: 48 bytes."""
_AFTER_HOSTS = Struct(">iqi")
_LONG = Struct(">q")
_INT = Struct(">i")
_PORT = Struct(">I")
_U16 = Struct(">H")
_BATCH_HEAD = Struct(">iIIii")
_MESSAGE_ID = Struct(">iq")
RECORD_V4 = Struct(">iIIiiqqiq8sq8siqi")
"""All fields before the body when both hosts are IPv4."""


class Record:
    """One stored message. Times are milliseconds since 1970; hosts are (IP address, port)."""

    __slots__ = (
        "body",
        "body_crc",
        "born_host",
        "born_ms",
        "flag",
        "magic",
        "phys_offset",
        "prepared_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_host",
        "store_ms",
        "sys_flag",
        "topic",
    )

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phys_offset: int
    sys_flag: int
    born_ms: int
    born_host: tuple[str, int]
    store_ms: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def props(self) -> dict[str, str]:
        return parse_properties(self.properties)

    @property
    def keys(self) -> tuple[str, ...]:
        """The words of the KEYS property."""
        return tuple(key for key in self.props.get(Prop.KEYS, "").split(KEY_SEPARATOR) if key)

    @property
    def tags(self) -> str | None:
        return self.props.get(Prop.TAGS)

    @property
    def uniq_key(self) -> str | None:
        """The unique key from the producer's client."""
        return self.props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

    @property
    def offset_id(self) -> str:
        """The message id made of the store host and the physical offset."""
        return offset_message_id(self.store_host[0], self.store_host[1], self.phys_offset)

    def payload(self, limit: int = 64 * 1024 * 1024) -> bytes:
        """Return the decompressed body. Raises RecordError; `limit` is in bytes."""
        from gantry_broker.protocol.compression import decompress  # brokers only move messages and never need it

        return decompress(self.body, self.sys_flag, limit)

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return encode_record(
            topic=self.topic.encode(),
            body=self.body,
            properties=self.properties,
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=self.queue_offset,
            phys_offset=self.phys_offset,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            born_host=pack_host(*self.born_host),
            store_ms=self.store_ms,
            store_host=pack_host(*self.store_host),
            reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
            body_crc=self.body_crc,
            version_2=self.magic == MAGIC_V2,
        )


def body_crc(body: bytes) -> int:
    """Return RocketMQ's CRC of a body: CRC-32 without its highest bit (`UtilAll.crc32`)."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_record(
    *,
    topic: bytes,
    body: bytes,
    properties: bytes = b"",
    queue_id: int,
    flag: int = 0,
    queue_offset: int,
    phys_offset: int,
    sys_flag: int = 0,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    body_crc: int | None = None,
    version_2: bool = False,
) -> bytes:
    """Encode a record. Hosts are packed (`pack_host`); their length sets the IPv6 bits of the system flag.

    `body_crc` None: computed. A topic of more than 127 bytes makes a version 2 record. Raises RecordError when a field
    does not fit.
    """
    version_2 = version_2 or len(topic) > 127
    if not 0 < len(topic) <= 32_767:
        raise RecordError(f"topic has {len(topic)} bytes; 1 to 32767 fit")
    if len(properties) > MAX_PROPERTIES:
        raise RecordError(f"properties have {len(properties)} bytes; at most {MAX_PROPERTIES} fit")
    if len(born_host) == 20:
        sys_flag |= SysFlag.BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= SysFlag.STORE_HOST_V6
    topic_length = _U16.pack(len(topic)) if version_2 else bytes((len(topic),))
    size = 72 + len(born_host) + len(store_host) + len(body) + len(topic_length) + len(topic) + 2 + len(properties)
    return b"".join(
        (
            HEAD.pack(
                size,
                MAGIC_V2 if version_2 else MAGIC_V1,
                zlib.crc32(body) & 0x7FFFFFFF if body_crc is None else body_crc,
                queue_id,
                flag,
                queue_offset,
                phys_offset,
                sys_flag,
                born_ms,
            ),
            born_host,
            _LONG.pack(store_ms),
            store_host,
            _AFTER_HOSTS.pack(reconsume_times, prepared_offset, len(body)),
            body,
            topic_length,
            topic,
            _U16.pack(len(properties)),
            properties,
        )
    )


def decode_record(buf: bytes | bytearray | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the record at `offset`. Raises RecordError when it is incomplete, damaged or a segment's filler."""
    end = len(buf)
    if end - offset < FIXED_V4 + 3:
        raise RecordError(f"{end - offset} bytes at {offset} are less than the smallest record")
    record = Record()
    (
        size,
        magic,
        crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.phys_offset,
        sys_flag,
        record.born_ms,
    ) = HEAD.unpack_from(buf, offset)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        kind = "the filler at a segment's end" if magic == MAGIC_BLANK else f"unknown magic 0x{magic:08x}"
        raise RecordError(f"no message at {offset}: {kind}")
    stop = offset + size
    fixed = FIXED_V4
    if sys_flag & SysFlag.BORN_HOST_V6:
        fixed += 12
    if sys_flag & SysFlag.STORE_HOST_V6:
        fixed += 12
    if size < fixed + 4 or stop > end:
        raise RecordError(f"record at {offset} says {size} bytes; {end - offset} are there")
    record.size = size
    record.magic = magic
    record.body_crc = crc
    record.sys_flag = sys_flag
    at = offset + BORN_HOST_AT
    width = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    record.born_host = unpack_host(bytes(buf[at : at + width]))
    at += width
    (record.store_ms,) = _LONG.unpack_from(buf, at)
    at += 8
    width = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    record.store_host = unpack_host(bytes(buf[at : at + width]))
    at += width
    record.reconsume_times, record.prepared_offset, length = _AFTER_HOSTS.unpack_from(buf, at)
    at += 16
    if length < 0 or at + length + 3 > stop:
        raise RecordError(f"record at {offset}: body of {length} bytes does not fit its {size} bytes")
    record.body = bytes(buf[at : at + length])
    at += length
    if magic == MAGIC_V2:
        (length,) = _U16.unpack_from(buf, at)
        at += 2
    else:
        length = buf[at]
        at += 1
    if at + length + 2 > stop:
        raise RecordError(f"record at {offset}: topic of {length} bytes does not fit its {size} bytes")
    try:
        record.topic = str(buf[at : at + length], "utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"record at {offset}: topic is not UTF-8: {error}") from None
    at += length
    (length,) = _U16.unpack_from(buf, at)
    at += 2
    if at + length != stop:
        raise RecordError(f"record at {offset}: properties of {length} bytes do not fill its {size} bytes")
    record.properties = bytes(buf[at:stop])
    if check_crc and zlib.crc32(record.body) & 0x7FFFFFFF != crc:
        raise RecordError(f"record at {offset}: body does not match its CRC {crc}")
    return record


def decode_records(buf: bytes) -> list[Record]:
    """Decode all records of a pull answer's body. Raises RecordError."""
    records = []
    offset = 0
    while offset < len(buf):
        record = decode_record(buf, offset)
        records.append(record)
        offset += record.size
    return records


def pack_host(address: str, port: int) -> bytes:
    """Packs an address and a port: 8 bytes for IPv4, 20 for IPv6. Raises ValueError for anything else."""
    return ip_address(address).packed + _PORT.pack(port & 0xFFFFFFFF)


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Unpacks an address and a port from 8 or 20 bytes. Raises ValueError for another length."""
    if len(packed) == 8:
        a, b, c, d = packed[:4]
        return f"{a}.{b}.{c}.{d}", _PORT.unpack_from(packed, 4)[0]
    if len(packed) != 20:
        raise ValueError(f"a packed host has 8 or 20 bytes, not {len(packed)}")
    return str(IPv6Address(packed[:16])), _PORT.unpack_from(packed, 16)[0]


def parse_properties(properties: bytes | str) -> dict[str, str]:
    """Parse `name 0x01 value 0x02 ...`. It replaces bytes that are not UTF-8, and ignores pieces without a name."""
    text = properties if isinstance(properties, str) else properties.decode("utf-8", "replace")
    values = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if separator and name:
            values[name] = value
    return values


def format_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties. Raises RecordError when a name or value contains a separator, or all are too long."""
    joined = PROPERTY_SEPARATOR.join([f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()])
    if (
        joined.count(NAME_VALUE_SEPARATOR) != len(properties)
        or joined.count(PROPERTY_SEPARATOR) != max(len(properties) - 1, 0)
        or "" in properties
    ):
        name = next((name for name, value in properties.items() if not _has_no_separator(name, value)), "")
        raise RecordError(f"property {name!r}: names and values must not hold the characters 0x01 and 0x02")
    packed = joined.encode()
    if len(packed) > MAX_PROPERTIES:
        raise RecordError(f"properties have {len(packed)} bytes; at most {MAX_PROPERTIES} fit")
    return packed


def repack_properties(properties: Mapping[str, str]) -> bytes:
    """Encode what `parse_properties` returned, values with 0x01 included. Raises RecordError when it is too long."""
    packed = PROPERTY_SEPARATOR.join(
        [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()]
    ).encode("utf-8", "replace")
    if len(packed) > MAX_PROPERTIES:
        raise RecordError(f"properties have {len(packed)} bytes; at most {MAX_PROPERTIES} fit")
    return packed


def _has_no_separator(name: str, value: str) -> bool:
    both = name + value
    return bool(name) and NAME_VALUE_SEPARATOR not in both and PROPERTY_SEPARATOR not in both


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 code units, a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_hash(tags: str) -> int:
    """Return the tag code of a consume-queue entry: the hash of the TAGS property, 0 without one."""
    return java_hash(tags) if tags else 0


def offset_message_id(address: str, port: int, phys_offset: int) -> str:
    """Return host and physical offset in hexadecimal: 32 characters for IPv4, 56 for IPv6."""
    return (ip_address(address).packed + _MESSAGE_ID.pack(port, phys_offset)).hex().upper()


def parse_message_id(message_id: str) -> tuple[str, int, int]:
    """Split an offset message id into (address, port, physical offset). Raises ValueError."""
    if len(message_id) not in (32, 56):
        raise ValueError(f"message id {message_id[:80]!r} has {len(message_id)} characters; 32 or 56 are expected")
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raise ValueError(f"message id {message_id[:80]!r} is not hexadecimal") from None
    if len(raw) not in (16, 28):
        raise ValueError(f"message id {message_id[:80]!r} is not hexadecimal")
    packed = raw[:-12]
    port, phys_offset = _MESSAGE_ID.unpack_from(raw, len(packed))
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)), port, phys_offset


class BatchItem:
    """One message in the body of a batch send."""

    __slots__ = ("body", "flag", "properties")

    def __init__(self, body: bytes, properties: bytes = b"", flag: int = 0) -> None:
        self.body = body
        self.properties = properties
        self.flag = flag


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Encode the body of SEND_BATCH_MESSAGE: per message size, magic 0, CRC 0, flag, body, properties
    (`encodeMessage`).
    """
    parts: list[bytes] = []
    for item in items:
        if len(item.properties) > MAX_PROPERTIES:
            raise RecordError(f"properties have {len(item.properties)} bytes; at most {MAX_PROPERTIES} fit")
        size = 22 + len(item.body) + len(item.properties)
        parts += (
            _BATCH_HEAD.pack(size, 0, 0, item.flag, len(item.body)),
            item.body,
            _U16.pack(len(item.properties)),
            item.properties,
        )
    return b"".join(parts)


BATCH_PART: Final = 1_000
"""Messages of a batch that are stored in one step, which takes some 20 ms at most."""
MAX_BATCH: Final = 32_768
"""Messages of one batch. RocketMQ limits a batch by its bytes alone, and its clients need 65 bytes for the smallest
message. The answer's header, which names each of them, has 2 MiB at most.
"""
_LEAST_ITEM: Final = 22


def count_batch(body: bytes, most: int = MAX_BATCH) -> int:
    """Messages that a batch's lengths make it have, `most + 1` at most; what is wrong with it is left to
    `decode_batch`.
    """
    count = at = 0
    while len(body) - at >= 4 and count <= most:
        at += max(int.from_bytes(body[at : at + 4], "big"), _LEAST_ITEM)
        count += 1
    return count


def is_large_batch(body: bytes) -> bool:
    """Return whether a batch has over `BATCH_PART` messages."""
    return len(body) > BATCH_PART * _LEAST_ITEM and count_batch(body, BATCH_PART) > BATCH_PART


def batch_parts(body: bytes) -> Iterator[bytes]:
    """Yield a batch in parts of `BATCH_PART` messages. A message that does not fit ends the last one of them."""
    start = at = 0
    while at < len(body):
        for _ in range(BATCH_PART):
            size = int.from_bytes(body[at : at + 4], "big")
            if size < _LEAST_ITEM or at + size > len(body):
                yield body[start : at + _LEAST_ITEM]
                return
            at += size
            if at == len(body):
                break
        yield body[start:at]
        start = at


def decode_batch(body: bytes) -> list[BatchItem]:
    """Decode the messages in the body of SEND_BATCH_MESSAGE. Raises RecordError."""
    if len(body) > MAX_BATCH * _LEAST_ITEM and count_batch(body) > MAX_BATCH:
        raise RecordError(f"the batch has over {MAX_BATCH} messages, which is the limit")
    items: list[BatchItem] = []
    at = 0
    end = len(body)
    while at < end:
        if end - at < 22:
            raise RecordError(f"batch ends within its message {len(items)}")
        size, _, _, flag, length = _BATCH_HEAD.unpack_from(body, at)
        stop = at + size
        if size < 22 or stop > end or length < 0 or length > size - 22:
            raise RecordError(f"batch message {len(items)}: size {size} and body length {length} do not fit the batch")
        start = at + 20
        (props,) = _U16.unpack_from(body, start + length)
        if start + length + 2 + props != stop:
            raise RecordError(f"batch message {len(items)}: properties of {props} bytes do not fill its {size} bytes")
        items.append(BatchItem(body[start : start + length], body[start + length + 2 : stop], flag))
        at = stop
    return items
