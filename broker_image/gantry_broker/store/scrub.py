"""Does the log still hold what was written to it? For reads from the disk, for a slow walk over all of it, for mending.

What a start has walked, and what was appended lately, is not looked at again by reads: it was checked then, and lies in
the kernel's memory. The rest comes from a disk, which may have changed it. A CRC covers a record's body only; of its
head, topic and properties the sizes and places must agree.
"""

from __future__ import annotations

import errno
import re
import zlib
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import SysFlag
from gantry_broker.protocol.message import FIXED_V4, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_V4
from gantry_broker.store.errors import BadRecords, OffsetGone
from gantry_broker.store.log.record_reader import FILLER_MIN, MAX_RECORD, SIZE_AND_MAGIC, Damage, Meta, read_meta
from gantry_broker.store.recovery_plan import Scan, scan_plain

if TYPE_CHECKING:
    from gantry_broker.store.log.commit_log import CommitLog
    from gantry_broker.store.store import MessageStore

FRESH_BYTES: Final = 64 << 20
"""So much of the end of the log is taken to be in memory still, as it was written."""
_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_SMALLEST: Final = 91
_SEARCHED: Final = 1 << 20
_MAGIC: Final = re.compile(
    b"|".join(re.escape(m.to_bytes(4, "big", signed=m < 0)) for m in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
)


def count_valid(store: MessageStore, wanted: list[tuple[int, int]], data: list[bytes]) -> int:
    """How many of the records `wanted` (offset, size) are sound, from the first on. `data`: one piece each, or one
    for all."""
    if wanted[0][0] >= max(store.verified_from, store.confirmed - FRESH_BYTES):
        return len(wanted)
    together = len(data) == 1
    at = 0
    for number, (phys, size) in enumerate(wanted):
        if not is_valid_record(data[0] if together else data[number], at, phys, size):
            return number
        if together:
            at += size
    return len(wanted)


def is_valid_record(data: bytes, at: int, phys: int, size: int) -> bool:
    end = at + size
    if not _SMALLEST <= size <= len(data) - at:
        return False
    told, magic, crc, _, _, _, own, flags, _, _, _, _, _, _, length = RECORD_V4.unpack_from(data, at)
    if told != size or own != phys:
        return False
    body_at = at + FIXED_V4
    body_end = body_at + length
    if magic == MAGIC_V1 and not flags & _V6 and length >= 0 and body_end + 4 <= end:
        properties_at = body_end + 3 + data[body_end]
        return (
            properties_at <= end
            and data[properties_at - 2] << 8 | data[properties_at - 1] == end - properties_at
            and zlib.crc32(memoryview(data)[body_at:body_end]) & 0x7FFFFFFF == int(crc)
        )
    try:
        meta = read_meta(data, at, end, phys, check=True)
    except Damage:
        return False
    return isinstance(meta, Meta) and meta.size == size


def verify(store: MessageStore, at: int, max_bytes: int) -> int:
    """See `MessageStore.check`."""
    limit = store.confirmed
    if not store.start <= at < limit:
        raise OffsetGone(at, store.start, limit)
    data = store.log.read(at, min(max(max_bytes, FILLER_MIN), limit - at))
    end = verified_end(store, at, data)
    if end > at:
        return end
    size = SIZE_AND_MAGIC.unpack_from(data)[0] if len(data) >= FILLER_MIN else 0
    if not len(data) < size <= limit - at:
        raise BadRecords(at, f"record of {size} bytes, {limit - at} before the end of what is confirmed")
    end = verified_end(store, at, store.log.read(at, size))
    if end == at:
        raise BadRecords(at, f"record of {size} bytes is not whole")
    return end


def verified_end(store: MessageStore, at: int, data: bytes) -> int:
    """The border after the last whole record of `data`. Raises BadRecords at the first one that is damaged."""
    log = store.log
    found = Scan(at)
    pos, have = 0, len(data)
    while pos < have:
        pos = scan_plain(at, data, pos, log.segment_size, found)
        if have - pos < FILLER_MIN:
            break
        phys = at + pos
        room = log.room(phys)
        size, magic = SIZE_AND_MAGIC.unpack_from(data, pos)
        if magic == MAGIC_BLANK and size == room:
            pos += size
            continue
        if have - pos < size <= min(MAX_RECORD, room - FILLER_MIN):
            break
        try:
            meta = read_meta(data, pos, have, phys, check=True)
        except Damage as damage:
            raise BadRecords(phys, str(damage)) from None
        if not isinstance(meta, Meta) or meta.size + FILLER_MIN > room:
            raise BadRecords(phys, f"{size} bytes where {room} are left in the segment")
        pos += size
    return at + pos


def verified_bytes(store: MessageStore, at: int, max_bytes: int) -> bytes:
    """See `MessageStore.sound_bytes`."""
    return store.log.read(at, verify(store, at, max_bytes) - at)


def next_boundary(log: CommitLog, at: int, stop: int) -> int:
    """Where the next sound record or filler behind damage at `at` begins; else the end of its segment, or `stop`."""
    end = min(at - at % log.segment_size + log.segment_size, stop)
    at += 1
    while at + FILLER_MIN <= end:
        try:
            data = log.read(at, min(_SEARCHED, end - at))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            at += _SEARCHED
            continue
        for found in _MAGIC.finditer(data):
            place = at + found.start() - 4
            if found.start() >= 4 and _begins(log, place, end):
                return place
        at += max(len(data) - FILLER_MIN + 1, 1)
    return end


def _begins(log: CommitLog, at: int, end: int) -> bool:
    try:
        size, magic = SIZE_AND_MAGIC.unpack(log.read(at, FILLER_MIN))
        if magic == MAGIC_BLANK:
            return bool(size == log.room(at))
        return _SMALLEST <= size <= min(MAX_RECORD, end - at) and is_valid_record(log.read(at, size), 0, at, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False


def valid_prefix(store: MessageStore, at: int, limit: int) -> bytes:
    """The sound records of [at, limit), up to the first damaged one, of which `on_damage` is told."""
    data = store.log.read_some(at, limit - at)
    try:
        return data[: verified_end(store, at, data) - at]
    except BadRecords as error:
        store.on_damage(error.at)
        return data[: error.at - at]


def repair(store: MessageStore, at: int, data: bytes) -> None:
    """See `MessageStore.mend`."""
    if not data or not store.start <= at <= at + len(data) <= store.confirmed:
        raise ValueError(f"{len(data)} bytes for {at}, but only {store.start} to {store.confirmed} is confirmed")
    if verified_end(store, at, data) != at + len(data):
        raise BadRecords(at, "the bytes to mend it with are not whole records")
    store.log.overwrite(at, data)
    store.log.sync(at, at + len(data))
