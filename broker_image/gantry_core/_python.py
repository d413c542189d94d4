"""The specification of `gantry_core`, in plain Python: the Rust functions give equal bytes, or the same error."""

from __future__ import annotations

import hmac
import json
import re
import zlib
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from operator import mul
from struct import Struct
from typing import Any, Final

_BATCH_HEAD: Final = Struct(">i8xii")
"""Size, flag and body length of a message in a batch; magic and CRC between them count for nothing."""
_HEAD_SIZE: Final = 22
_RECORD: Final = Struct(">iIIiiqqiq8sq8siqi")
_FIXED: Final = 90
"""Bytes of a record without body, topic field and properties, with IPv4 hosts."""
_FILLER_MIN: Final = 8
_ENTRY: Final = Struct(">qiq")
_KEY: Final = Struct(">iqq")
_ARCHIVED: Final = Struct(">qiqq")
_PLACED: Final = Struct(">iq")
_INDEX_ENTRY: Final = Struct(">iqii")
_SLOT: Final = Struct(">i")
_CHANGE: Final = Struct(">Ii")
_SLOTS_AT: Final = 40
_V1: Final = 0xDAA320A7
_V6: Final = 0x30
_BLANK: Final = 0xCBD43194
_SIZE_AND_MAGIC: Final = Struct(">iI")
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_ROW_COLUMNS: Final = 12
_ROW_TOPIC: Final = 8
_ROW_PROPERTIES: Final = 10
_PLAIN_NUMBER: Final = Struct("<Q")
_TRANSACTION: Final = 12
_COMMIT: Final = 8
_ROLLBACK: Final = 12
_MAX_I16: Final = 0x7FFF
_MAX_I32: Final = 0x7FFFFFFF
_MASK: Final = 0xFFFFFFFF
_CHUNK: Final = 64
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK + 1))
_WEIGHTS: Final = tuple(tuple(reversed(_POWERS[:n])) for n in range(_CHUNK + 1))
_INDEXED: Final = ("TAGS", "KEYS", "UNIQ_KEY")
_V2: Final = 0xDAA320AB
_SEND: Final = 10
_SEND_V2: Final = 310
_SEND_BATCH: Final = 320
_SENDS: Final = (_SEND_V2, _SEND_BATCH, _SEND)
_BATCH_PROPERTIES: Final = ("", "WAIT\x01true", "WAIT\x01true\x02")
"""What the properties of a plain batch itself may be."""
_SAME_REQUEST: Final = 0x80
"""The bit of the serialization of a row or a place whose message came in the request of the one before it."""
_SEND_FIELDS: Final = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "brokerName",
)  # fmt: skip
_SHORT_NAMES: Final = {letter: field for letter, field in zip("abcdefghijklmn", _SEND_FIELDS, strict=True)}
_MOST_NAMES: Final = 1024
_MOST_TOPIC: Final = 255
_JAVA_NUMBER: Final = re.compile("0|[1-9][0-9]*")
_MOST_DIGITS: Final = 18
_SMALL_DIGITS: Final = 9
_FRAME: Final = Struct(">iI")
_COMPACT: Final = Struct(">h3xiiii")
"""Code, opaque, flag, size of the remark, size of the fields."""
_DIGEST_TEXT: Final = 28
"""Characters of a SHA-1 digest in Base64."""
_ROW: Final = Struct(">IIiBiH")
"""Size of the record, group, opaque, serialization, tag code, index keys."""
_HASH: Final = Struct(">i")
_PLACE: Final = Struct(">iBiqq")
"""Opaque, serialization, queue, queue offset, offset in the log."""
_NUMBERS: Final = Struct(">qq")
_STORED: Final = Struct(">q8s")
_OWN: Final = Struct(">qq")
_ANSWER: Final = Struct(">hBhiiii")
_MAX_I64: Final = 0x7FFFFFFFFFFFFFFF
Buffer = bytes | bytearray | memoryview
"""Bytes that others may own, as a mapped file."""


def _hash_on(value: int, text: str) -> int:
    """Java's `String.hashCode` of a text that continues one with the hash `value`: over UTF-16 code units."""
    if text.isascii():
        rest = text.encode("ascii")
        while len(rest) > _CHUNK:
            value = (value * _POWERS[_CHUNK] + sum(map(mul, rest[:_CHUNK], _WEIGHTS[_CHUNK]))) & _MASK
            rest = rest[_CHUNK:]
        last: int = sum(map(mul, rest, _WEIGHTS[len(rest)]))
        return (value * _POWERS[len(rest)] + last) & _MASK
    units = text.encode("utf-16-be")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & _MASK
    return value


@lru_cache(maxsize=1024)
def _seed(topic: str) -> int:
    """The hash with which those of a topic's keys begin."""
    return _hash_on(0, topic + "#")


@lru_cache(maxsize=4096)
def _tag_code(tags: str) -> int:
    return _signed(_hash_on(0, tags))


def _signed(value: int) -> int:
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


_PAIRS: Final = {f"{n:02X}": _hash_on(0, f"{n:02X}") for n in range(256)}
_TAIL: Final = 4
"""Unique keys that a producer makes within one millisecond differ in so many characters only, which are hexadecimal."""


@lru_cache(maxsize=4096)
def _prefix(seed: int, text: str) -> int:
    return _hash_on(seed, text)


def key_hash(topic: str, key: str) -> int:
    """The hash under which the index files a key: Java's `abs("topic#key".hashCode())`, and 0 for the least number.
    Source: `indexKeyHashMethod`. Raises ValueError for half of a surrogate pair.
    """
    return _key_hash(_seed(topic), key)


def _key_hash(seed: int, key: str) -> int:
    """As `key_hash`. `seed`: the hash of "topic#"."""
    high, low = _PAIRS.get(key[-4:-2]), _PAIRS.get(key[-2:])
    if high is None or low is None or len(key) > _CHUNK:
        hashed = _hash_on(seed, key)
    else:
        hashed = (_prefix(seed, key[:-_TAIL]) * _POWERS[4] + high * _POWERS[2] + low) & _MASK
    if hashed & 0x8000_0000:
        hashed = 0x1_0000_0000 - hashed
        return 0 if hashed > _MAX_I32 else hashed  # The least number has no absolute value in 32 bits.
    return hashed


def _messages(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Flag, body and properties of each message of a batch. Raises ValueError for one that does not fit."""
    at, end = 0, len(body)
    while at < end:
        if end - at < _HEAD_SIZE:
            raise ValueError("no plain batch")
        size, flag, length = _BATCH_HEAD.unpack_from(body, at)
        if size < _HEAD_SIZE or size > end - at or not 0 <= length <= size - _HEAD_SIZE:
            raise ValueError("no plain batch")
        after = at + 20 + length
        properties = int.from_bytes(body[after : after + 2])
        if after + 2 + properties != at + size:
            raise ValueError("no plain batch")
        yield flag, body[at + 20 : after], body[after + 2 : at + size]
        at += size


def _properties(text: str) -> dict[str, str]:
    pieces = [piece.split("\x01", 1) for piece in text.split("\x02") if piece]
    try:
        properties = dict(pieces)
    except ValueError:  # A piece without a separator is none.
        properties = dict([piece for piece in pieces if len(piece) == 2])
    properties.pop("", None)
    return properties


def _words(properties: dict[str, str], most: int) -> list[str]:
    """The keys of the index: the unique one, then the words of KEYS, `most` of them at most."""
    unique = properties.get("UNIQ_KEY")
    words = [key for key in properties.get("KEYS", "").split(" ") if key][:most]
    return [unique, *words] if unique else words


class BatchRules:
    """What a batch may have that needs no other look: limits, and properties that are `special`."""

    def __init__(
        self, special: Sequence[str], suffix: int, messages: int, properties: int, keys: int, all_keys: int
    ) -> None:
        """`suffix`: bytes that are added to the properties of each message. Limits: messages of a batch, bytes of the
        stored properties of a message, words of its KEYS, keys of a batch beside one for each message.
        """
        self._special = frozenset(special) - frozenset(_INDEXED)
        self._suffix = suffix
        self._messages = messages
        self._properties = properties
        self._keys = keys
        self._all_keys = all_keys

    def check(self, body: bytes) -> tuple[int, int] | None:
        """(messages, index keys) of the body of a SEND_BATCH_MESSAGE; None: something about it is unusual.

        A plain batch has whole messages, at least one, within the limits; their properties are UTF-8 without zero bytes
        and without special names.
        """
        count = keys = 0
        try:
            for _, _, properties in _messages(body):
                count += 1
                if count > self._messages or b"\0" in properties:
                    return None
                joint = bool(properties) and properties[-1] != 2
                if len(properties) + joint + self._suffix > self._properties:
                    return None
                by_name = _properties(properties.decode())
                if not self._special.isdisjoint(by_name):
                    return None
                words = len(_words(by_name, len(properties)))
                if words > self._keys + bool(by_name.get("UNIQ_KEY")):
                    return None
                keys += words
        except ValueError:
            return None
        return None if count == 0 or keys > self._all_keys + count else (count, keys)


def batch_records(
    body: bytes,
    suffix: bytes,
    topic: str,
    magic: int,
    queue_id: int,
    number: int,
    phys: int,
    room: int,
    room_min: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    now_ms: int,
    host: bytes,
    keys: int,
) -> tuple[bytes, bytes, bytes] | None:
    """The records of a plain batch, their queue entries (20 bytes each) and their index keys (hash i32, offset i64,
    store time in ms i64).

    `number`: the queue offset of the first one; `phys`: its offset in the log; `room`: bytes that its segment has left
    there. `keys`: words of KEYS that the index takes of a message. None: a record has less room than `room_min`, or no
    room for a filler behind it. Raises ValueError for a body that `BatchRules.check` does not take as plain.
    """
    field = topic.encode()
    field = (len(field).to_bytes(2) if len(field) > 127 else bytes((len(field),))) + field
    seed = _seed(topic)
    records: list[bytes] = []
    entries: list[bytes] = []
    hashes: list[bytes] = []
    for flag, content, properties in _messages(body):
        by_name = _properties(properties.decode())
        joint = b"\x02" if properties and properties[-1] != 2 else b""
        stored = properties + joint + suffix
        if len(stored) > _MAX_I16:
            raise ValueError("no plain batch")
        size = _FIXED + len(field) + len(content) + len(stored)
        if room < room_min or size + _FILLER_MIN > room:
            return None
        crc = zlib.crc32(content) & _MAX_I32
        head = (size, magic, crc, queue_id, flag, number, phys, sys_flag, born_ms, born_host, now_ms, host, 0, 0)
        records += (_RECORD.pack(*head, len(content)), content, field, len(stored).to_bytes(2), stored)
        entries.append(_ENTRY.pack(phys, size, _tag_code(by_name.get("TAGS", ""))))
        hashes += [_KEY.pack(_key_hash(seed, key), phys, now_ms) for key in _words(by_name, keys)]
        number += 1
        phys += size
        room -= size
    return b"".join(records), b"".join(entries), b"".join(hashes)


def entry_sizes(entries: bytes) -> list[int]:
    """The sizes of the records of queue entries."""
    return [size for _, size, _ in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size])]


def message_ids(host: str, entries: bytes) -> str:
    """The offset message ids of queue entries, with commas between. `host`: the store host in hexadecimal."""
    whole = entries[: len(entries) // _ENTRY.size * _ENTRY.size]
    return ",".join([f"{host}{phys & 0xFFFFFFFFFFFFFFFF:016X}" for phys, _, _ in _ENTRY.iter_unpack(whole)])


def key_times(items: bytes) -> tuple[int, int, int, int, bool]:
    """Of index keys: first, last, earliest and latest store time (ms), and whether they rise. Raises ValueError for no
    keys.
    """
    times = [ms for _, _, ms in _KEY.iter_unpack(items[: len(items) // _KEY.size * _KEY.size])]
    if not times:
        raise ValueError("no keys")
    return times[0], times[-1], min(times), max(times), sorted(times) == times


def index_entries(items: bytes, slots: Any, slot_count: int, number: int, begin_ms: int) -> tuple[bytes, bytes, int]:
    """The entries of index keys for an index file, the changes of its slots for `set_slots`, and the number of slots
    that were not used before.

    `slots`: a buffer with the file's header and slots, which is only read; `number`: of the first entry; `begin_ms`:
    the file's first store time. Raises ValueError.
    """
    view = memoryview(slots)
    if slot_count == 0 or len(view) < _SLOTS_AT + 4 * slot_count:
        raise ValueError("slots do not fit their buffer")
    changed: dict[int, int] = {}
    entries: list[bytes] = []
    used = 0
    for key_hash, phys, stored_ms in _KEY.iter_unpack(items[: len(items) // _KEY.size * _KEY.size]):
        slot = key_hash % slot_count
        older = changed.get(slot)
        if older is None:
            older = _SLOT.unpack_from(view, _SLOTS_AT + 4 * slot)[0]
            if older <= 0 or older >= number:
                older = 0
                used += 1
        changed[slot] = number
        seconds = min(max((stored_ms - begin_ms) // 1000, 0), _MAX_I32)
        entries.append(_INDEX_ENTRY.pack(key_hash, phys, seconds, older))
        number += 1
    return b"".join(entries), b"".join([_CHANGE.pack(*change) for change in sorted(changed.items())]), used


def set_slots(slots: Any, changes: bytes) -> None:
    """Let slots name their newest entries. Raises ValueError for a slot that is not there."""
    with memoryview(slots) as view:
        for slot, newest in _CHANGE.iter_unpack(changes[: len(changes) // _CHANGE.size * _CHANGE.size]):
            if _SLOTS_AT + 4 * slot + 4 > len(view):
                raise ValueError("slots do not fit their buffer")
            _SLOT.pack_into(view, _SLOTS_AT + 4 * slot, newest)


def plain_records(
    data: bytes,
    at: int,
    base: int,
    segment_size: int,
    check: bool,
    others: Sequence[str],
    words: int,
    most_keys: int | None,
    before_ms: int,
) -> tuple[int, list[tuple[bytes, int, int, bytes]], bytes, int, int, list[tuple[int, int]]]:
    """What the plain records from `data[at:]` on add to queues and index: (index behind the last one, runs of queue
    entries, index keys, first store time in ms that is not 0, last store time, steps back). `data[0]` lies at offset
    `base` of the log. `before_ms`: the store time of the record before, and the last one without a record. A step back
    is (offset of the record, ms by which it is older than the one before).

    A run is (topic, queue, queue offset of its first entry, packed entries of successive queue offsets); the runs of a
    queue are in the order of the log. A record is plain when it is whole, its magic is V1, its hosts are IPv4, it lies
    within its segment, topic and properties are UTF-8, and the topic is none of `others`. The function ends before any
    other record, and behind the record with which there are more than `most_keys` keys (None: without keys). `words`:
    of KEYS, for one record. `check` verifies the CRC of each body.
    """
    runs: list[tuple[str, int, int, list[bytes]]] = []
    open_runs: dict[tuple[str, int], int] = {}
    keys: list[bytes] = []
    first_ms, last_ms = 0, before_ms
    steps: list[tuple[int, int]] = []
    have = len(data)
    while at < have and (most_keys is None or len(keys) <= most_keys):
        if have - at < _FIXED + 2:
            break
        size, magic, crc, queue_id, _, number, phys, flags, _, _, stored_ms, _, _, _, length = _RECORD.unpack_from(
            data, at
        )
        body_at = at + _RECORD.size
        body_end, end = body_at + length, at + size
        if (
            magic != _V1
            or phys != base + at
            or flags & _V6
            or (queue_id | number) < 0
            or length < 0
            or segment_size <= 0
            or size + _FILLER_MIN > segment_size - phys % segment_size
            or not body_end + 4 <= end <= have
        ):
            break
        properties_at = body_end + 3 + data[body_end]
        if (
            properties_at > end
            or int.from_bytes(data[properties_at - 2 : properties_at]) != end - properties_at
            or (end > properties_at and not data[end - 1])
            or (check and zlib.crc32(data[body_at:body_end]) & _MAX_I32 != crc)
        ):
            break
        try:
            topic = data[body_end + 1 : properties_at - 2].decode()
            by_name = _properties(data[properties_at:end].decode())
        except UnicodeDecodeError:
            break
        if not topic or "\0" in topic or topic in others:
            break
        kind = flags & _TRANSACTION
        if kind in (0, _COMMIT):
            index = open_runs.get((topic, queue_id))
            if index is None or runs[index][2] + len(runs[index][3]) != number:
                index = open_runs[topic, queue_id] = len(runs)
                runs.append((topic, queue_id, number, []))
            runs[index][3].append(_ENTRY.pack(phys, size, _tag_code(by_name.get("TAGS", ""))))
        if most_keys is not None and kind != _ROLLBACK:
            seed = _seed(topic)
            keys += [_KEY.pack(_key_hash(seed, key), phys, stored_ms) for key in _words(by_name, words)]
        if stored_ms < last_ms:
            steps.append((phys, last_ms - stored_ms))
        last_ms = stored_ms
        first_ms = first_ms or last_ms
        at = end
    packed_runs = [(topic.encode(), queue_id, number, b"".join(entries)) for topic, queue_id, number, entries in runs]
    return at, packed_runs, b"".join(keys), first_ms, last_ms, steps


def archived_records(
    data: bytes | memoryview, at: int, base: int, segment_size: int, others: Sequence[str], words: int
) -> tuple[int, list[tuple[bytes, int, int, bytes]], bytes, int, int, int]:
    """What the plain records from `data[at:]` on add to an object of the archive, each with the CRC of its body
    checked: (index behind the last one, runs, keys, records, lowest store time in ms that is not 0, highest one).

    Runs, and what is plain, are as in `plain_records`, but an entry is a row: place, size, tag code, store time
    (`>qiqq`). A key is hash and place (`>iq`). The compiled body lets other threads run meanwhile.
    """
    data = bytes(data)
    end, runs, keys, *_ = plain_records(data, at, base, segment_size, True, others, words, len(data), 0)
    rows = [
        (
            topic,
            queue_id,
            number,
            b"".join(_ARCHIVED.pack(*e, _stored_ms(data, e[0] - base)) for e in _ENTRY.iter_unpack(x)),
        )
        for topic, queue_id, number, x in runs
    ]
    records = low = high = 0
    while at < end:
        stored_ms = _stored_ms(data, at)
        low = min(low or stored_ms, stored_ms or low)
        high = max(high, stored_ms)
        records += 1
        at += int.from_bytes(data[at : at + 4])
    return end, rows, b"".join(_PLACED.pack(*key[:2]) for key in _KEY.iter_unpack(keys)), records, low, high


def checked_records(data: bytes, at: int, base: int, segment_size: int, others: Sequence[str]) -> tuple[int, int, int]:
    """The plain records from `data[at:]` on, as `plain_records` tells them, each with the CRC of its body checked:
    (index behind the last one, records, store time of the last one in ms; 0 without one).
    """
    end, *_, last_ms, _ = plain_records(data, at, base, segment_size, True, others, 0, None, 0)
    records = 0
    while at < end:
        at += int.from_bytes(data[at : at + 4])
        records += 1
    return end, records, last_ms if records else 0


def size_of_whole(data: bytes, at: int) -> int:
    """Return the end in `data` of the whole records and fillers from `at` on, by sizes and magics only."""
    unpack, have = _SIZE_AND_MAGIC.unpack_from, len(data)
    while at + _FILLER_MIN <= have:
        size, magic = unpack(data, at)
        if magic not in (_V1, _V2, _BLANK) or size < _FILLER_MIN or at + size > have:
            break
        at += size
    return at


def _stored_ms(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 56 : at + 64], signed=True)


def archived_columns(rows: bytes) -> bytes:
    """Rows of `archived_records` as the archive has them: all places, then all sizes, tag codes and store times, in
    little endian. Bytes behind the last whole row count for nothing.
    """
    return _little(list(_ARCHIVED.iter_unpack(rows[: len(rows) - len(rows) % _ARCHIVED.size])), "qiqq")


def archived_keys(rows: bytes) -> bytes:
    """Keys of `archived_records`, by hash and then by place, as the archive has them: all hashes, then all places, in
    little endian. Bytes behind the last whole row count for nothing.
    """
    return _little(sorted(_PLACED.iter_unpack(rows[: len(rows) - len(rows) % _PLACED.size])), "iq")


def _little(rows: Sequence[tuple[int, ...]], kinds: str) -> bytes:
    columns = zip(kinds, zip(*rows, strict=True), strict=True) if rows else ()
    return b"".join(Struct(f"<{len(rows)}{kind}").pack(*column) for kind, column in columns)


Topics = list[tuple[str, int, int, int, int, int]]
Split = tuple[int, int, int, int, str | None, Topics, list[int], list[int], int, bytes, bytearray, bytes, bytes, bytes]


class _Unusual(ValueError):
    """The send is not a plain one."""


class SendRules:
    """What a send may have that needs no other look: limits, and properties that are `special`."""

    def __init__(
        self,
        special: Sequence[str],
        suffix: bytes,
        properties: int,
        keys: int,
        all_keys: int,
        frame: int,
        header: int,
        batch_frame: int,
        batch_messages: int,
        batch_keys: int,
    ) -> None:
        """`suffix` is added to the properties of each message. Limits: bytes of a message's stored properties, words of
        its KEYS, index keys of all messages, bytes of a frame behind its length, and of its header. Of a batch: bytes
        of its frame, messages, and index keys beside one for each message.
        """
        self._special = frozenset(special) - {*_INDEXED, "WAIT"}
        self._suffix = suffix
        self._properties = min(properties, _MAX_I16)
        self._keys = keys
        self._all_keys = all_keys
        self._frame = frame
        self._header = header
        self._batch_frame = batch_frame
        self._batch = BatchRules(special, len(suffix), batch_messages, self._properties, keys, batch_keys)

    def split(self, data: bytes, most: int, born_host: bytes) -> Split | None:
        """The plain sends that `data` begins with, `most` of them at most: (bytes, messages, sends, code, access key,
        topics, topic of each queue, queues, bytes of the largest body, properties of the first message, records,
        rows, index keys' hashes, signatures). None: the first frame is none, or is not complete.

        A topic is (name, its largest queue, messages, bytes of their records, of the smallest and of the largest one).
        The records lack queue offset, offset in the log, store time and host. A row has what `place_sends` needs
        besides.

        A plain send is a request of code 10 or 310, not one-way, within the limits, with every field as Java's clients
        write it, properties that are not special, and WAIT absent or true. So is a batch (code 320) that waits for its
        confirmation, with messages that `BatchRules.check` takes; the properties of its first message are not given.
        All have one code and one access key ("" for another credential alone). The signatures are what
        `SignatureKeys.signed` takes; b"": not all are signed, or another look has to decide because a name comes twice.
        """
        sends = _Sends()
        at = 0
        while sends.requests < most:
            try:
                after = self._next(sends, data, at, born_host)
            except (ValueError, OverflowError):
                break
            if not after:
                break
            at = after
        if not sends.requests:
            return None
        topics = [(name, *values) for name, values in sends.topics.items()]
        order = list(sends.topics)
        return (
            at,
            sends.messages,
            sends.requests,
            sends.code,
            sends.user,
            topics,
            [order.index(topic) for topic, _ in sends.groups],
            [queue_id for _, queue_id in sends.groups],
            sends.most_body,
            sends.first,
            bytearray(b"".join(sends.records)),
            b"".join(sends.rows),
            b"".join(sends.hashes),
            b"".join(sends.signed) if sends.all_signed else b"",
        )

    def _next(self, sends: _Sends, data: bytes, at: int, born_host: bytes) -> int:
        """Add the send at `at`; returns where the next frame begins, 0: it cannot be added. Raises ValueError."""
        if len(data) - at < _FRAME.size:
            return 0
        length, mark = _FRAME.unpack_from(data, at)
        size, serialize = mark & 0xFFFFFF, mark >> 24
        begin = at + 8
        stop: int = at + 4 + length
        if not 4 <= length <= max(self._frame, self._batch_frame) or size > min(length - 4, self._header):
            return 0
        if stop > len(data) or serialize > 1:
            return 0
        code, opaque, ext, twice = (_compact_head if serialize else _json_head)(data[begin : begin + size])
        given, user = ext, ext.get("AccessKey")
        if length > (self._batch_frame if code == _SEND_BATCH else self._frame):
            return 0
        if user is None and ("Signature" in ext or "SecurityToken" in ext):
            user = ""
        if sends.requests and (code != sends.code or user != sends.user):
            return 0
        if code != _SEND:
            ext = {_SHORT_NAMES[name]: value for name, value in ext.items() if name in _SHORT_NAMES}
        _check_plain(ext, code)
        topic = ext.get("topic", "")
        encoded = topic.encode()
        if not 0 < len(encoded) <= _MOST_TOPIC:
            return 0
        queue_id, sys_flag, flag = (_number(ext.get(name), _SMALL_DIGITS) for name in ("queueId", "sysFlag", "flag"))
        born_ms = _number(ext.get("bornTimestamp"), _MOST_DIGITS)
        if sys_flag & _TRANSACTION:
            return 0
        body = data[begin + size : stop]
        messages = list(self._of_request(code, ext, flag, body))
        count = sum([len(keys) for *_, keys in messages])
        if not messages or (sends.requests and sends.keys + count > self._all_keys):
            return 0
        if not sends.requests:
            sends.code, sends.user = code, user
            sends.first = b"" if code == _SEND_BATCH else messages[0][2]
        sends.requests += 1
        sends.messages += len(messages)
        sends.keys += count
        sends.most_body = max(sends.most_body, len(body))
        group = sends.groups.setdefault((topic, queue_id), len(sends.groups))
        field = (len(encoded).to_bytes(2) if len(encoded) > 127 else bytes((len(encoded),))) + encoded
        magic = _V2 if len(encoded) > 127 else _V1
        seed = _seed(topic)
        _, sent, total, least, largest = sends.topics.get(topic, (0, 0, 0, _MAX_I64, 0))
        for number, (own_flag, content, stored, tags, keys) in enumerate(messages):
            properties = stored + (b"\x02" if stored and stored[-1] != 2 else b"") + self._suffix
            whole = _FIXED + len(field) + len(content) + len(properties)
            crc = zlib.crc32(content) & _MAX_I32
            head = (whole, magic, crc, queue_id, own_flag, 0, 0, sys_flag & ~_V6, born_ms, born_host, 0, b"", 0, 0)
            sends.records += (_RECORD.pack(*head, len(content)), content, field)
            sends.records += (len(properties).to_bytes(2), properties)
            mark = serialize | _SAME_REQUEST if number else serialize
            sends.rows.append(_ROW.pack(whole, group, opaque, mark, _tag_code(tags), len(keys)))
            sends.hashes += [_HASH.pack(_key_hash(seed, key)) for key in keys]
            sent, total, least, largest = sent + 1, total + whole, min(least, whole), max(largest, whole)
        sends.topics[topic] = (max(sends.topics.get(topic, (0,))[0], queue_id), sent, total, least, largest)
        part = None if user is None or twice else _signed_part(given, body)
        sends.signed.append(part or b"")
        sends.all_signed = sends.all_signed and part is not None
        return stop

    def _of_request(
        self, code: int, ext: dict[str, str], flag: int, body: bytes
    ) -> Iterator[tuple[int, bytes, bytes, str, list[str]]]:
        """The messages of a request: flag, body, properties before the suffix, tags, index keys. Raises ValueError."""
        text = ext.get("properties", "")
        if code == _SEND_BATCH:
            if text not in _BATCH_PROPERTIES or self._batch.check(body) is None:
                raise _Unusual
            for own_flag, content, properties in _messages(body):
                by_name = _properties(properties.decode())
                yield own_flag, content, properties, by_name.get("TAGS", ""), _words(by_name, len(properties))
            return
        if not text or "\0" in text:
            raise _Unusual
        props, stored = self._plain_properties(text)
        keys = _words(props, len(text))
        joint = bool(stored) and stored[-1] != 2
        if len(stored) + joint + len(self._suffix) > self._properties:
            raise _Unusual
        if len(keys) - bool(props.get("UNIQ_KEY")) > self._keys:
            raise _Unusual
        yield flag, body, stored, props.get("TAGS", ""), keys

    def _plain_properties(self, text: str) -> tuple[dict[str, str], bytes]:
        """The properties, and what is stored of them before the suffix. Raises ValueError."""
        pieces = [piece.split("\x01", 1) for piece in text.split("\x02") if piece]
        props = dict(pieces)
        waits = [value for name, *[value] in pieces if name == "WAIT"]
        if "" in props or not self._special.isdisjoint(props) or waits not in ([], ["true"]):
            raise _Unusual
        if waits:
            text = "\x02".join([piece for piece in text.split("\x02") if piece != "WAIT\x01true"])
        return props, text.encode()


class _Sends:
    """What `SendRules.split` has read."""

    def __init__(self) -> None:
        self.code = self.requests = self.messages = self.keys = self.most_body = 0
        self.user: str | None = None
        self.first = b""
        self.topics: dict[str, tuple[int, int, int, int, int]] = {}
        self.groups: dict[tuple[str, int], int] = {}
        self.records: list[bytes] = []
        self.rows: list[bytes] = []
        self.hashes: list[bytes] = []
        self.signed: list[bytes] = []
        self.all_signed = True


class _Pairs(tuple[tuple[str, Any], ...]):
    """The names and values of a JSON object."""

    __slots__ = ()


def _refuse_constant(text: str) -> Any:
    raise _Unusual(text)


def _json_int(text: str) -> int:
    if len(text.removeprefix("-")) > _MOST_DIGITS:
        raise _Unusual
    return int(text)


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_float=_refuse_constant, parse_constant=_refuse_constant, parse_int=_json_int
)


def _json_head(header: bytes) -> tuple[int, int, dict[str, str], bool]:
    """Code, opaque and fields of a request, and whether a name came twice. Raises ValueError."""
    code = next((code for code in _SENDS if header.startswith(b'{"code":%d,' % code)), 0)
    if not code:
        raise _Unusual
    opaque = flag = version = language = None
    ext: dict[str, str] = {}
    twice = False
    try:
        read = _JSON.decode(header.decode())
    except RecursionError:  # A header of nothing but brackets.
        raise _Unusual from None
    for name, value in read:
        name.encode()  # A half of a surrogate pair raises.
        if name == "extFields":
            if type(value) is not _Pairs:
                raise _Unusual
            for field, content in value:
                if type(content) is not str:
                    raise _Unusual
                f"{field}{content}".encode()
            ext = dict(value)
            twice = len(ext) < len(value)
            continue
        if type(value) is str:
            value.encode()
        elif type(value) is not int and type(value) is not bool and value is not None:
            raise _Unusual
        if name in ("code", "flag", "opaque", "version") and type(value) is not int:
            raise _Unusual
        if name == "code" and value != code:
            raise _Unusual
        if name in ("opaque", "version") and not -_MAX_I32 - 1 <= value <= _MAX_I32:
            raise _Unusual
        if name == "remark" and not (value is None or type(value) is str):
            raise _Unusual
        if name == "opaque":
            opaque = value
        elif name == "flag":
            flag = value
        elif name == "version":
            version = value
        elif name == "language":
            if type(value) is not str:
                raise _Unusual
            language = value
    if flag != 0 or opaque is None or version is None or language is None:
        raise _Unusual
    return code, opaque, ext, twice


def _compact_head(header: bytes) -> tuple[int, int, dict[str, str], bool]:
    """As `_json_head`, for a compact header."""
    if len(header) < _COMPACT.size:
        raise _Unusual
    code, opaque, flag, remark, size = _COMPACT.unpack_from(header)
    if code not in _SENDS or flag or remark or size != len(header) - _COMPACT.size:
        raise _Unusual
    ext: dict[str, str] = {}
    twice = False
    at, end = _COMPACT.size, len(header)
    while at < end:
        texts = []
        for width in (2, 4):
            length = int.from_bytes(header[at : at + width], signed=True)
            at += width + length
            if length < 0 or at > end:
                raise _Unusual
            texts.append(header[at - length : at].decode())
        twice = twice or texts[0] in ext
        ext[texts[0]] = texts[1]
    return code, opaque, ext, twice


def _check_plain(ext: dict[str, str], code: int) -> None:
    """Raise ValueError for fields that the slow path has to look at."""
    names = sum([len(ext.get(name, "").encode()) for name in ("producerGroup", "defaultTopic", "brokerName")])
    if (
        names > _MOST_NAMES
        or "producerGroup" not in ext
        or "defaultTopic" not in ext
        or "maxReconsumeTimes" in ext
        or ext.get("reconsumeTimes", "0") != "0"
        or ext.get("unitMode", "true") not in ("false", "true")
        or ext.get("batch", "false") not in (("false", "true") if code == _SEND_BATCH else ("false",))
    ):
        raise _Unusual
    _number(ext.get("defaultTopicQueueNums"), _SMALL_DIGITS)


def _number(text: str | None, most: int) -> int:
    """A number as Java writes it, of `most` digits at most. Raises ValueError."""
    if text is None or len(text) > most or not _JAVA_NUMBER.fullmatch(text):
        raise _Unusual
    return int(text)


def place_sends(
    records: bytearray,
    rows: bytes,
    hashes: bytes,
    numbers: Sequence[int],
    phys: int,
    room: int,
    room_min: int,
    now_ms: int,
    host: bytes,
) -> tuple[list[bytes], bytes, bytes] | None:
    """Write their places into the records of `SendRules.split`; returns the queue entries of each queue, all index
    keys, and what `send_answers` needs.

    `numbers`: the next queue offset of each queue, in the order of `split`; the others as for `batch_records`. None: a
    record has less room than `room_min`, or no room for a filler behind it. Raises ValueError, OverflowError. Then, as
    with None, `records` is of no use any more.
    """
    following = list(numbers)
    entries: list[list[bytes]] = [[] for _ in following]
    keys: list[bytes] = []
    places: list[bytes] = []
    at = key = 0
    for size, group, opaque, serialize, code, count in _ROW.iter_unpack(rows[: len(rows) // _ROW.size * _ROW.size]):
        if (
            size > _MAX_I32
            or group >= len(following)
            or count > _MAX_I16
            or at + size > len(records)
            or size < _FIXED
            or max(phys + at, following[group] + 1) > _MAX_I64
        ):
            raise ValueError("no sends that were split")
        if room < room_min or size + _FILLER_MIN > room:
            return None
        own, number = phys + at, following[group]
        _NUMBERS.pack_into(records, at + 20, number, own)
        _STORED.pack_into(records, at + 56, now_ms, host)
        entries[group].append(_ENTRY.pack(own, size, code))
        for _ in range(count):
            if key + 4 > len(hashes):
                raise ValueError("no sends that were split")
            keys.append(hashes[key : key + 4] + _OWN.pack(own, now_ms))
            key += 4
        places.append(_PLACE.pack(opaque, serialize, _HASH.unpack_from(records, at + 12)[0], number, own))
        following[group] = number + 1
        at += size
        room -= size
    if at != len(records):
        raise ValueError("no sends that were split")
    return [b"".join(own) for own in entries], b"".join(keys), b"".join(places)


def send_answers(places: bytes, code: int, host: str, region: str, version: int) -> bytes:
    """The frames of the answers to sends. `host`: the store host in hexadecimal, with which message ids begin; `region`
    and `version`: of the broker. Raises ValueError for a host or a region with other than plain characters.
    """
    for text in (host, region):
        if not all("!" <= letter <= "~" and letter not in '"\\' for letter in text):
            raise ValueError("host and region are plain texts")
    frames: list[bytes] = []
    requests: list[tuple[tuple[int, int, int, int, int], list[str]]] = []
    for place in _PLACE.iter_unpack(places[: len(places) // _PLACE.size * _PLACE.size]):
        message_id = f"{host}{place[4] & 0xFFFFFFFFFFFFFFFF:016X}"
        if requests and place[1] & _SAME_REQUEST:
            requests[-1][1].append(message_id)
        else:
            requests.append((place, [message_id]))
    for (opaque, mark, queue_id, number, _), ids in requests:
        message_id, serialize = ",".join(ids), mark & ~_SAME_REQUEST
        if serialize == 0:
            header = (
                f'{{"code":{code},"extFields":{{"queueId":"{queue_id}","TRACE_ON":"true","MSG_REGION":"{region}",'
                f'"msgId":"{message_id}","queueOffset":"{number}"}},"flag":1,"language":"JAVA","opaque":{opaque},'
                f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
            ).encode()
        else:
            fields = b"".join(
                [
                    len(name).to_bytes(2) + name.encode() + len(value).to_bytes(4) + value.encode()
                    for name, value in (
                        ("msgId", message_id),
                        ("queueId", str(queue_id)),
                        ("queueOffset", str(number)),
                        ("TRACE_ON", "true"),
                        ("MSG_REGION", region),
                    )
                ]
            )
            header = _ANSWER.pack(code, 0, version, opaque, 1, 0, len(fields)) + fields
        frames.append(_FRAME.pack(4 + len(header), serialize << 24 | len(header)) + header)
    return b"".join(frames)


def _signed_part(ext: dict[str, str], body: bytes) -> bytes | None:
    """The signature of a request, and what it has to be one of; None: there is none."""
    given = ext.get("Signature", "").encode()
    if len(given) != _DIGEST_TEXT:
        return None
    content = "".join([ext[name] for name in sorted(ext) if name != "Signature"]).encode() + body
    return len(content).to_bytes(4) + given + content


class SignatureKeys:
    """The keys of a user."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def signed(self, parts: bytes) -> bool:
        """Whether each of the signatures of `SendRules.split`, one at least, was made with one of the keys."""
        at, begin = 0, 4 + _DIGEST_TEXT
        while at < len(parts):
            after = at + begin + int.from_bytes(parts[at : at + 4])
            if at + begin > len(parts) or after > len(parts):
                return False
            given, content = parts[at + 4 : at + begin], parts[at + begin : after]
            signatures = [b2a_base64(hmac.digest(key, content, "sha1"), newline=False) for key in self._keys]
            if not any([hmac.compare_digest(one, given) for one in signatures]):
                return False
            at = after
        return at > 0


def _places(entries: bytes) -> Iterator[tuple[int, int]]:
    """Offset in the log and size of the record of each queue entry."""
    for phys, size, _ in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size]):
        yield phys, size


def wanted_records(entries: bytes, most_bytes: int, oldest: int, end: int) -> tuple[int, int, int, int]:
    """How many of the records of queue entries one answer gets, the place of the first one, the end of the last one,
    and their bytes: those before the first that does not lie in [oldest, end) behind the one before it, or is blank, or
    with which they have over `most_bytes`. The first one may have more.
    """
    count = first = last = total = 0
    for phys, size in _places(entries):
        if not 0 < size < _MAX_I32 or phys < oldest or phys + size > end:
            break
        if count and (total + size > most_bytes or phys < last):
            break
        if not count:
            first = phys
        count += 1
        last = phys + size
        total += size
    return count, first, last, total


def near_records(entries: bytes, count: int, most_gap: int, most_span: int) -> list[tuple[int, int, int, int]]:
    """The pieces of the log that have the records of the first `count` queue entries: where each begins, its bytes, its
    records, and their bytes alone. Between two records of a piece lie at most `most_gap` bytes. A piece of more than
    one record has at most `most_span`.
    """
    pieces: list[tuple[int, int, int, int]] = []
    for phys, size in islice(_places(entries), count):
        if pieces:
            start, span, records, total = pieces[-1]
            joined = phys - start + size
            if 0 <= phys - start - span <= most_gap and joined <= most_span:
                pieces[-1] = (start, joined, records + 1, total + size)
                continue
        pieces.append((phys, size, 1, size))
    return pieces


def gather_records(block: bytes, base: int, entries: bytes, count: int) -> bytes:
    """The records of the first `count` queue entries, out of the bytes of the log from `base` on. Raises ValueError for
    a record that is not all there.
    """
    parts = []
    for phys, size in islice(_places(entries), count):
        at = phys - base
        if at < 0 or size < 0 or at + size > len(block):
            raise ValueError("a record lies outside")
        parts.append(block[at : at + size])
    return b"".join(parts)


def _records(data: bytes, entries: bytes, count: int) -> Iterator[tuple[bytes, int]]:
    """Each record of the first `count` entries and its place in the log; b"" for one that is not there."""
    at = 0
    for phys, size in islice(_places(entries), count):
        yield data[at : at + size] if size >= 0 and at + size <= len(data) else b"", phys
        at += size


def records_named(data: bytes, entries: bytes, count: int, topic: bytes, queue_id: int, number: int) -> bool:
    """Whether the records that follow one another in `data` are those of the entries, of this queue, and have the queue
    offsets from `number` on. False also for records of other forms.
    """
    for record, phys in _records(data, entries, count):
        if len(record) < _FIXED - 1:
            return False
        size, magic, _, own_queue, _, own, place, flags, *_, length = _RECORD.unpack_from(record)
        if (
            (size, magic, own_queue, own, place) != (len(record), _V1, queue_id, number, phys)
            or flags & _V6
            or length < 0
            or len(topic) > 255
            or not record.startswith(bytes((len(topic),)) + topic, _RECORD.size + length)
        ):
            return False
        number += 1
    return True


def records_whole(data: bytes, entries: bytes, count: int) -> bool:
    """Whether the records that follow one another in `data` are those of the entries, undamaged. False also for records
    of other forms.
    """
    for record, phys in _records(data, entries, count):
        if len(record) < _FIXED - 1:
            return False
        size, magic, crc, _, _, _, place, flags, *_, length = _RECORD.unpack_from(record)
        end = _RECORD.size + length
        if (size, magic, place) != (len(record), _V1, phys) or flags & _V6 or length < 0 or end >= len(record):
            return False
        properties_at = end + 3 + record[end]
        if (
            properties_at > len(record)
            or int.from_bytes(record[properties_at - 2 : properties_at]) != len(record) - properties_at
            or zlib.crc32(record[_RECORD.size : end]) & _MAX_I32 != crc
        ):
            return False
    return True


def record_rows(
    data: Buffer, base: int | None, stop: int, check: bool, names: Sequence[bytes]
) -> tuple[int, bytes, tuple[bytes, bytes], list[tuple[int, bytes, bytes, bytes]]]:
    """The valid records that follow one another from `data[0]` on, and begin before `stop`: (index behind the last one,
    rows, their topics, their properties of each of `names`). `base`: where `data[0]` lies in the log; None: `data` is
    no piece of the log, and the records may be of any place.

    Rows are 12 columns of numbers (`<i8`), one after the other: index in `data`, size, queue, queue offset, system
    flag, store time (ms), index and length of the body, of the topic, and of the properties. A record is valid when it
    is whole, knows its place (if `base` is given), its lengths agree, and its topic is UTF-8. `check` verifies the CRC
    of each body. Topics are as from `row_slices`, properties as from `row_properties`. Other programs may write to
    `data` meanwhile.
    """
    data = bytes(data)
    columns: list[list[bytes]] = [[] for _ in range(_ROW_COLUMNS)]
    at = 0
    while at < stop:
        row = _record_row(data, at, base, check)
        if row is None:
            break
        for column, value in zip(columns, row, strict=True):
            column.append(value.to_bytes(8, "little", signed=True))
        at += row[1]
    rows = b"".join([b"".join(column) for column in columns])
    return at, rows, row_slices(data, rows, _ROW_TOPIC), [row_properties(data, rows, name) for name in names]


def _record_row(data: bytes, at: int, base: int | None, check: bool) -> tuple[int, ...] | None:
    """The row of the valid record that begins at `data[at]`; None: there is none."""
    if len(data) - at < _RECORD.size:
        return None
    size, magic, crc, queue_id, _, number, phys, flags, *_, length = _RECORD.unpack_from(data, at)
    moved, late = 12 * bool(flags & _BORN_V6), 12 * bool(flags & _STORE_V6)
    end, body_at = at + size, at + _RECORD.size + moved + late
    if magic not in (_V1, _V2) or (base is not None and phys != base + at) or not body_at <= end <= len(data):
        return None
    if moved or late:
        length = int.from_bytes(data[body_at - 4 : body_at], signed=True)
    body_end, wide = body_at + length, 2 if magic == _V2 else 1
    if length < 0 or body_end + 4 > end:
        return None
    topic_at = body_end + wide
    topic_len = int.from_bytes(data[body_end:topic_at])
    properties_at = topic_at + topic_len + 2
    if properties_at > end or int.from_bytes(data[properties_at - 2 : properties_at]) != end - properties_at:
        return None
    if check and zlib.crc32(data[body_at:body_end]) & _MAX_I32 != crc:
        return None
    try:
        data[topic_at : topic_at + topic_len].decode()
    except UnicodeDecodeError:
        return None
    stored_ms = int.from_bytes(data[at + 56 + moved : at + 64 + moved], signed=True)
    return (
        at, size, queue_id, number, flags, stored_ms, body_at, length, topic_at, topic_len, properties_at,
        end - properties_at,
    )  # fmt: skip


def _row_slices(data: Buffer, rows: bytes, column: int) -> list[bytes]:
    data = bytes(data)
    width = len(rows) // _ROW_COLUMNS
    if len(rows) % (8 * _ROW_COLUMNS) or column + 1 >= _ROW_COLUMNS:
        raise ValueError("no rows of records")
    begins, lengths = (
        [number for (number,) in _PLAIN_NUMBER.iter_unpack(rows[first : first + width])]
        for first in (column * width, (column + 1) * width)
    )
    if any([at + length > len(data) for at, length in zip(begins, lengths, strict=True)]):
        raise ValueError("a row names bytes outside")
    return [data[at : at + length] for at, length in zip(begins, lengths, strict=True)]


def _values(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Offsets (`<i4`) and bytes of values, as Arrow keeps them."""
    ends = accumulate(map(len, values), initial=0)
    return b"".join([end.to_bytes(4, "little") for end in ends]), b"".join(values)


def row_slices(data: Buffer, rows: bytes, column: int) -> tuple[bytes, bytes]:
    """Offsets (`<i4`) and bytes of an Arrow column: what the columns `column` and `column + 1` of `record_rows` name.
    Raises ValueError for rows that are none, and for bytes outside `data`.
    """
    return _values(_row_slices(data, rows, column))


def _lossy(value: bytes) -> bytes:
    return value.decode("utf-8", "replace").encode()


def _pairs(properties: bytes) -> dict[bytes, bytes]:
    """The last value of each name, in the order of these."""
    values: dict[bytes, bytes] = {}
    for piece in properties.split(b"\x02"):
        name, mark, value = piece.partition(b"\x01")
        if name and mark:
            values.pop(name, None)
            values[name] = value
    return values


def row_properties(data: Buffer, rows: bytes, name: bytes) -> tuple[int, bytes, bytes, bytes]:
    """The property `name`, which is not empty, of each row as an Arrow column: nulls, validity bits, offsets (`<i4`)
    and bytes. What is not UTF-8 becomes U+FFFD. Raises ValueError as `row_slices`.
    """
    values = [_pairs(one).get(name) for one in _row_slices(data, rows, _ROW_PROPERTIES)]
    valid = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        valid[index // 8] |= (value is not None) << index % 8
    return values.count(None), bytes(valid), *_values([_lossy(value or b"") for value in values])


def row_maps(data: Buffer, rows: bytes) -> tuple[bytes, tuple[bytes, bytes], tuple[bytes, bytes]]:
    """All properties of each row as an Arrow column of maps: offsets (`<i4`) of the rows' pairs, and offsets and bytes
    of names and values. What is not UTF-8 becomes U+FFFD. Raises ValueError as `row_slices`.
    """
    rows_pairs = [_pairs(one) for one in _row_slices(data, rows, _ROW_PROPERTIES)]
    edges = accumulate(map(len, rows_pairs), initial=0)
    names = [_lossy(name) for pairs in rows_pairs for name in pairs]
    values = [_lossy(value) for pairs in rows_pairs for value in pairs.values()]
    return b"".join([edge.to_bytes(4, "little") for edge in edges]), _values(names), _values(values)
