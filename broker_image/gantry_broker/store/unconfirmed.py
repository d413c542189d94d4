"""The part of the log that is not confirmed yet, in memory: what has to be filed once it is.

A batch is what one append brought. When too much waits (nobody confirms), later batches are not remembered, and are
read from the log again when their time comes: memory stays bounded.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Final

from gantry_broker.protocol.codes import CONTROL_TOPIC, SysFlag
from gantry_broker.protocol.message import FIXED_V4, MAGIC_V1, RECORD_V4, parse_properties
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.index.consume_queue import ENTRY, ConsumeQueue
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.epochs import EPOCH_PROPERTY, EpochStart
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    Damage,
    Meta,
    in_index,
    in_queue,
    index_keys,
    plain_tags_code,
    read_meta,
    tags_code,
)

MAX_WAITING: Final = 50_000
"""Records that are remembered at most."""
_EPOCH: Final = EPOCH_PROPERTY.encode()
_UNCOMMON: Final = SysFlag.TRANSACTION_MASK | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_CONTROL: Final = CONTROL_TOPIC.encode()


class Batch:
    """What [start, end) of the log brings to queues, index and metadata once it is confirmed."""

    __slots__ = ("checked", "control", "end", "entries", "epochs", "keys", "last_ms", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.entries: list[tuple[ConsumeQueue, int, bytes]] = []
        """(queue, queue offset, packed entry), in the order of the log."""
        self.keys: list[tuple[int, int, int]] | None = []
        """(key hash, phys, store ms); None when they have not been looked for."""
        self.control: list[tuple[int, bytes]] = []
        self.epochs: list[EpochStart] = []
        self.checked = False
        """True: every entry is the next one of its queue, which this store numbered itself."""
        self.last_ms = 0

    def split(self, offset: int) -> tuple[Batch, Batch]:
        """The part below `offset` and the rest. Raises ValueError when `offset` is within a record."""
        below, above = Batch(self.start, offset), Batch(offset, self.end)
        for entry in self.entries:
            phys, size, _ = ENTRY.unpack(entry[2])
            if phys < offset < phys + size:
                raise ValueError(f"offset {offset} lies within the record at {phys}")
            (below if phys < offset else above).entries.append(entry)
        for part in (below, above):
            part.checked = self.checked
            part.last_ms = self.last_ms
            part.control = [item for item in self.control if part.start <= item[0] < part.end]
            part.epochs = [item for item in self.epochs if part.start <= item.start < part.end]
            part.keys = None if self.keys is None else [k for k in self.keys if part.start <= k[1] < part.end]
        return below, above


class UnconfirmedBuffer:
    """The batches that wait, oldest first; there may be gaps between them."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.waiting = 0

    def push(self, batch: Batch) -> None:
        if self.waiting < MAX_WAITING:
            self.batches.append(batch)
            self.waiting += 1 + len(batch.entries)

    def pop(self, start: int, limit: int) -> Batch | None:
        """The batch that begins at `start`, no more of it than up to `limit`; None when it is not remembered.

        Raises ValueError when `limit` is within a record.
        """
        while self.batches and self.batches[0].end <= start:
            self._drop_first()
        if not self.batches or self.batches[0].start != start:
            return None
        batch = self._drop_first()
        if batch.end > limit:
            batch, rest = batch.split(limit)
            self.batches.appendleft(rest)
            self.waiting += 1 + len(rest.entries)
        return batch

    def _drop_first(self) -> Batch:
        batch = self.batches.popleft()
        self.waiting -= 1 + len(batch.entries)
        return batch

    def first_start(self, default: int) -> int:
        """Where the first remembered batch begins."""
        return self.batches[0].start if self.batches else default

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of [start, stop) that are not remembered."""
        found = []
        for batch in self.batches:
            if start < batch.start < stop:
                found.append((start, batch.start))
            start = max(start, batch.end)
        return [*found, (start, stop)] if start < stop else found

    def clear(self) -> None:
        self.batches.clear()
        self.waiting = 0


def parse(
    start: int,
    data: bytes,
    queues: QueueTable,
    segment_size: int,
    delays: Sequence[int],
    *,
    check: bool,
    keys: bool,
) -> Batch:
    """Whole records that lie at `start` of the log. With `check` as from a stranger: sizes, places and CRCs.

    Raises BadRecords.
    """
    batch = Batch(start, start + len(data))
    at = 0
    have = len(data)
    while at < have:
        at = _parse_plain(batch, data, at, queues, segment_size, check, keys)
        if at >= have:
            break
        phys = start + at
        room = segment_size - phys % segment_size
        try:
            meta = read_meta(data, at, have, phys, check=check)
            if isinstance(meta, int):
                if meta != room or at + meta > have:
                    raise Damage(f"filler of {meta} bytes where {room} are left, {have - at} of them here")
                at += meta
                continue
            if meta.size + FILLER_MIN > room:
                raise Damage(f"record of {meta.size} bytes crosses the end of its segment, {room} bytes away")
            _collect(batch, meta, data, queues, delays, keys)
        except (Damage, ValueError) as error:
            raise BadRecords(phys, str(error)) from None
        at += meta.size
    if not keys:
        batch.keys = None
    return batch


def _parse_plain(
    batch: Batch, data: bytes, at: int, queues: QueueTable, segment_size: int, check: bool, keys: bool
) -> int:
    """Collect records as long as they are of the common kind: IPv4 hosts, no transaction, a known ordinary topic.

    Answers where the first other one begins; what is wrong with it is for the careful reader to say.
    """
    unpack, crc32, pack = RECORD_V4.unpack_from, zlib.crc32, ENTRY.pack
    known = queues.by_bytes
    entries = batch.entries
    indexed = batch.keys if keys and batch.keys is not None else []
    start = batch.start
    have = len(data)
    last = have - FIXED_V4 - 4
    view = memoryview(data)
    ms = batch.last_ms
    while at <= last:
        size, magic, crc, queue_id, _, number, phys, flags, _, _, stored, _, _, _, length = unpack(data, at)
        body_end = at + FIXED_V4 + length
        end = at + size
        if (
            magic != MAGIC_V1
            or phys != start + at
            or flags & _UNCOMMON
            or length < 0
            or not body_end + 4 <= end <= have
            or queue_id < 0
            or number < 0
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
        topic = known.get(data[body_end + 1 : properties_at - 2])
        if topic is None or topic.is_control or topic.is_schedule:
            break
        properties = data[properties_at:end]
        queue = topic.queues.get(queue_id)
        if queue is None or queue.next < 0:
            queue = queues.queue(topic, queue_id)
        entries.append((queue, number, pack(phys, size, plain_tags_code(properties))))
        if keys:
            for key in index_keys(properties):
                indexed.append((topic.hasher.hash(key), phys, stored))
        ms = stored
        at = end
    batch.last_ms = ms
    return at


def _collect(batch: Batch, meta: Meta, data: bytes, queues: QueueTable, delays: Sequence[int], keys: bool) -> None:
    topic = queues.topic_of(meta.topic)
    if in_queue(meta.sys_flag):
        code = tags_code(topic.name, meta.properties, meta.store_ms, delays)
        queue = queues.queue(topic, meta.queue_id)
        batch.entries.append((queue, meta.queue_offset, ENTRY.pack(meta.phys, meta.size, code)))
    if keys and batch.keys is not None and in_index(meta.sys_flag):
        for key in index_keys(meta.properties):
            batch.keys.append((topic.hasher.hash(key), meta.phys, meta.store_ms))
    if topic.is_control:
        batch.control.append((meta.phys, bytes(data[meta.body_at : meta.body_at + meta.body_size])))
        epoch = epoch_of(meta)
        if epoch is not None:
            batch.epochs.append(EpochStart(epoch, meta.phys))
    batch.last_ms = meta.store_ms


def epoch_of(meta: Meta) -> int | None:
    """The epoch that a record begins; None for every record but an epoch's control record."""
    if meta.topic != _CONTROL or _EPOCH not in meta.properties:
        return None
    value = parse_properties(meta.properties).get(EPOCH_PROPERTY, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None
