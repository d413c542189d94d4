"""The specification of `gantry_core`, in plain Python: the Rust functions give equal bytes, or the same error."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
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
_INDEX_ENTRY: Final = Struct(">iqii")
_SLOT: Final = Struct(">i")
_CHANGE: Final = Struct(">Ii")
_SLOTS_AT: Final = 40
_V1: Final = 0xDAA320A7
_V6: Final = 0x30
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


def _key_hash(seed: int, key: str) -> int:
    """The hash under which the index files a key. `seed`: the hash of "topic#"."""
    value = abs(_signed(_hash_on(seed, key)))
    return 0 if value > _MAX_I32 else value  # The least number has no absolute value in 32 bits.


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
        found = dict(pieces)
    except ValueError:  # A piece without a separator is none.
        found = dict([piece for piece in pieces if len(piece) == 2])
    found.pop("", None)
    return found


def _words(found: dict[str, str], most: int) -> list[str]:
    """The keys of the index: the unique one, then the words of KEYS, `most` of them at most."""
    unique = found.get("UNIQ_KEY")
    words = [key for key in found.get("KEYS", "").split(" ") if key][:most]
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
                found = _properties(properties.decode())
                if not self._special.isdisjoint(found):
                    return None
                words = len(_words(found, len(properties)))
                if words > self._keys + bool(found.get("UNIQ_KEY")):
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
        found = _properties(properties.decode())
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
        entries.append(_ENTRY.pack(phys, size, _tag_code(found.get("TAGS", ""))))
        hashes += [_KEY.pack(_key_hash(seed, key), phys, now_ms) for key in _words(found, keys)]
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
            found = _properties(data[properties_at:end].decode())
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
            runs[index][3].append(_ENTRY.pack(phys, size, _tag_code(found.get("TAGS", ""))))
        if most_keys is not None and kind != _ROLLBACK:
            seed = _seed(topic)
            keys += [_KEY.pack(_key_hash(seed, key), phys, stored_ms) for key in _words(found, words)]
        if stored_ms < last_ms:
            steps.append((phys, last_ms - stored_ms))
        last_ms = stored_ms
        first_ms = first_ms or last_ms
        at = end
    made = [(topic.encode(), queue_id, number, b"".join(entries)) for topic, queue_id, number, entries in runs]
    return at, made, b"".join(keys), first_ms, last_ms, steps
