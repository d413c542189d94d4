"""A batch: the entries, keys and control records of a stretch of the log, for queues, index and metadata."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_broker.store.errors import BadRecords
from gantry_broker.store.index.consume_queue import ENTRY, ConsumeQueue
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    Damage,
    Meta,
    PlainRecord,
    in_index,
    in_queue,
    index_keys,
    plain_tags_code,
    read_records,
    tags_code,
)


class Batch:
    """What [start, end) of the log adds to queues, index and metadata once it is confirmed."""

    __slots__ = ("checked", "control", "end", "entries", "epochs", "keys", "last_ms", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.entries: list[tuple[ConsumeQueue, int, bytes]] = []
        """(queue, queue offset, packed entry), in the order of the log."""
        self.keys: list[tuple[int, int, int]] | None = []
        """(key hash, offset, store time in ms); None when the batch was read without keys."""
        self.control: list[tuple[int, bytes]] = []
        """(offset, body) of the control records."""
        self.epochs: list[EpochStart] = []
        self.checked = False
        """True: this store numbered the records, so every entry is the next one of its queue."""
        self.last_ms = 0
        """Store time of the last record; 0 without one."""

    def split(self, offset: int) -> tuple[Batch, Batch]:
        """The part below `offset` and the rest. Raises ValueError when `offset` lies within a record."""
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


def read_batch(
    start: int,
    data: bytes,
    queues: QueueTable,
    segment_size: int,
    delays: Sequence[int],
    *,
    check: bool,
    keys: bool,
) -> Batch:
    """Read whole records that lie at offset `start` of the log; `check` verifies the CRC of each body.

    Raises BadRecords.
    """
    batch = Batch(start, start + len(data))
    at = start
    try:
        for found in read_records(data, start, segment_size, check=check):
            if isinstance(found, list):
                _add_plain(batch, found, queues, delays, keys)
                at = found[-1][0] + found[-1][1]
            elif isinstance(found, int):
                if at + found > batch.end:
                    raise Damage(f"filler of {found} bytes, of which {batch.end - at} are there")
                at += found
            else:
                _add(batch, found, data, queues, delays, keys)
                at += found.size
    except (Damage, ValueError) as error:
        raise BadRecords(at, str(error)) from None
    if not keys:
        batch.keys = None
    return batch


def _add_plain(batch: Batch, found: list[PlainRecord], queues: QueueTable, delays: Sequence[int], keys: bool) -> None:
    """Raises BadRecords."""
    pack, known = ENTRY.pack, queues.by_bytes
    entries = batch.entries
    hashes = batch.keys if keys and batch.keys is not None else []
    for phys, size, name, queue_id, number, flags, stored, properties in found:
        if queue_id < 0 or number < 0:
            raise BadRecords(phys, f"impossible queue {queue_id} or queue offset {number}")
        try:
            topic = known.get(name) or queues.topic_of(name)
            if in_queue(flags):
                queue = topic.queues.get(queue_id)
                if queue is None or queue.next < 0:
                    queue = queues.queue(topic, queue_id)
                if topic.is_schedule:
                    code = tags_code(topic.name, properties, stored, delays)
                else:
                    code = plain_tags_code(properties)
                entries.append((queue, number, pack(phys, size, code)))
        except ValueError as error:
            raise BadRecords(phys, str(error)) from None
        if keys and in_index(flags):
            for key in index_keys(properties):
                hashes.append((topic.hasher.hash(key), phys, stored))
    batch.last_ms = stored


def _add(batch: Batch, meta: Meta, data: bytes, queues: QueueTable, delays: Sequence[int], keys: bool) -> None:
    """Raises ValueError for a topic that cannot be."""
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
