"""A batch: the entries, keys and control records of a stretch of the log, for queues, index and metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gantry_broker.protocol.codes import SysFlag
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.index.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.index_file import KEY, keys_within
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    Damage,
    Meta,
    in_index,
    in_queue,
    index_keys,
    plain_tags_code,
    read_records,
    tags_code,
)

_TRANSACTION: Final = int(SysFlag.TRANSACTION_MASK)
KEYS_AT_ONCE: Final = 20_000
"""Keys that one step hashes, in some 20 ms. A mebibyte of the smallest messages with three keys each has fewer."""


class Batch:
    """What [start, end) of the log adds to queues, index and metadata once it is confirmed."""

    __slots__ = (
        "checked", "control", "end", "entries", "epochs", "first_ms", "in_runs", "keys", "last_ms", "start", "steps",
    )  # fmt: skip

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.entries: list[tuple[ConsumeQueue, int, bytes]] = []
        """(queue, queue offset, packed entry), in the order of the log; or, of messages that were sent together, the
        entries of successive queue offsets.
        """
        self.in_runs = 0
        """Entries that are not the first of their packed ones."""
        self.keys: bytes | bytearray | None = b""
        """Index keys, as `gantry_core` packs them; None when the batch was read without keys, or has too many."""
        self.control: list[tuple[int, bytes]] = []
        """(offset, body) of the control records."""
        self.epochs: list[EpochStart] = []
        self.checked = False
        """True: this store numbered the records, so every entry is the next one of its queue."""
        self.last_ms = 0
        """Store time of the last record; 0 without one."""
        self.first_ms = 0
        """Store time of the first record; 0: the same as the last."""
        self.steps: list[tuple[int, int]] = []
        """Offset and milliseconds of each record that was stored before the one before it (`clock_steps`)."""

    @property
    def count(self) -> int:
        """The number of queue entries."""
        return len(self.entries) + self.in_runs

    def split(self, offset: int) -> tuple[Batch, Batch]:
        """Return the part below `offset` and the rest. Raises ValueError when `offset` lies within a record."""
        below, above = Batch(self.start, offset), Batch(offset, self.end)
        for queue, number, packed in self.entries:
            at = 0
            for phys, size, _ in ENTRY.iter_unpack(packed):
                if phys >= offset:
                    break
                if offset < phys + size:
                    raise ValueError(f"offset {offset} lies within the record at {phys}")
                at += ENTRY_SIZE
            for part, first, own in ((below, number, packed[:at]), (above, number + at // ENTRY_SIZE, packed[at:])):
                if own:
                    part.entries.append((queue, first, own))
                    part.in_runs += len(own) // ENTRY_SIZE - 1
        for part in (below, above):
            part.checked = self.checked
            part.last_ms = self.last_ms
            part.steps = [step for step in self.steps if part.start <= step[0] < part.end]
            part.control = [item for item in self.control if part.start <= item[0] < part.end]
            part.epochs = [item for item in self.epochs if part.start <= item.start < part.end]
            part.keys = None if self.keys is None else keys_within(self.keys, part.start, part.end)
        below.first_ms = self.first_ms
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
    cut: bool = False,
) -> Batch:
    """Read whole records that lie at offset `start` of the log; `check` verifies the CRC of each body.

    Of records with more than `KEYS_AT_ONCE` keys it reads all, and gives up the keys: the key index then falls behind
    and reads the log in pieces. With `cut` the batch ends there instead. Raises BadRecords.
    """
    batch = Batch(start, start + len(data))
    at, last_ms = start, 0
    before_ms = 0
    pack, pack_key, known = ENTRY.pack, KEY.pack, queues.by_bytes
    entries = batch.entries
    hashes = bytearray()
    batch.keys = hashes if keys else None
    try:
        for found in read_records(data, start, segment_size, check=check):
            if len(hashes) > KEYS_AT_ONCE * KEY.size and keys:
                if cut:
                    batch.end = at
                    break
                batch.keys, keys = None, False
            if isinstance(found, Meta):
                _add(batch, found, data, queues, delays)
                last_ms = found.store_ms
                if last_ms < before_ms:
                    batch.steps.append((at, before_ms - last_ms))
                before_ms = last_ms
                batch.first_ms = batch.first_ms or last_ms
                at += found.size
            elif isinstance(found, int):
                if at + found > batch.end:
                    raise Damage(f"filler of {found} bytes, of which {batch.end - at} are there")
                at += found
            else:
                at, size, name, queue_id, number, flags, last_ms, properties = found
                if (queue_id | number) < 0:
                    raise Damage(f"impossible queue {queue_id} or queue offset {number}")
                if last_ms != before_ms:
                    if last_ms < before_ms:
                        batch.steps.append((at, before_ms - last_ms))
                    batch.first_ms = batch.first_ms or last_ms
                    before_ms = last_ms
                topic = known.get(name) or queues.topic_of(name)
                transaction = flags & _TRANSACTION
                if not transaction or in_queue(flags):
                    queue = topic.queues.get(queue_id)
                    if queue is None or queue.next < 0:
                        queue = queues.queue(topic, queue_id)
                    if topic.is_schedule:
                        code = tags_code(topic.name, properties, last_ms, delays)
                    else:
                        code = plain_tags_code(properties)
                    entries.append((queue, number, pack(at, size, code)))
                if keys and (not transaction or in_index(flags)):
                    for key in index_keys(properties):
                        hashes += pack_key(topic.hasher.hash(key), at, last_ms)
                at += size
    except (Damage, ValueError) as error:
        raise BadRecords(at, str(error)) from None
    batch.last_ms = last_ms
    return batch


def _add(batch: Batch, meta: Meta, data: bytes, queues: QueueTable, delays: Sequence[int]) -> None:
    """Add a record to the batch. Raises ValueError for a topic that cannot be."""
    topic = queues.topic_of(meta.topic)
    if in_queue(meta.sys_flag):
        code = tags_code(topic.name, meta.properties, meta.store_ms, delays)
        queue = queues.queue(topic, meta.queue_id)
        batch.entries.append((queue, meta.queue_offset, ENTRY.pack(meta.phys, meta.size, code)))
    if batch.keys is not None and in_index(meta.sys_flag):
        for key in index_keys(meta.properties):
            batch.keys += KEY.pack(topic.hasher.hash(key), meta.phys, meta.store_ms)
    if topic.is_control:
        batch.control.append((meta.phys, bytes(data[meta.body_at : meta.body_at + meta.body_size])))
        epoch = epoch_of(meta)
        if epoch is not None:
            batch.epochs.append(EpochStart(epoch, meta.phys))
