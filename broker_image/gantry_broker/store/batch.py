"""A batch: the entries, keys and control records of a stretch of the log, for queues, index and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gantry_core import key_hash, plain_records

from gantry_broker.protocol.codes import CONTROL_TOPIC, SCHEDULE_TOPIC
from gantry_broker.protocol.limits import MAX_KEYS
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.index.consume_queue import ENTRY, ENTRY_SIZE, PHYS, ConsumeQueue
from gantry_broker.store.index.index_file import KEY, keys_within
from gantry_broker.store.index.queue_table import QueueTable
from gantry_broker.store.log.epochs import EpochStart, epoch_of
from gantry_broker.store.log.record_reader import (
    Damage,
    Meta,
    in_index,
    in_queue,
    index_keys,
    read_next,
    tags_code,
)

_UNUSUAL: Final = [CONTROL_TOPIC, SCHEDULE_TOPIC]
"""Topics whose records have more than an entry and keys, or another tag code."""
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
        """(queue, queue offset of the first, packed entries of successive queue offsets). Those of a queue are in the
        order of the log, and queues in the order of their first ones.
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

    def each(self) -> Iterator[tuple[ConsumeQueue, int, bytes]]:
        """Yield the entries one by one."""
        for queue, number, packed in self.entries:
            for at in range(0, len(packed), ENTRY_SIZE):
                yield queue, number + at // ENTRY_SIZE, packed[at : at + ENTRY_SIZE]

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
    done, last_ms, have = 0, 0, len(data)
    at = start
    phys_of = PHYS.unpack_from
    entries = batch.entries
    hashes = bytearray()
    batch.keys = hashes if keys else None
    most = KEYS_AT_ONCE * KEY.size
    topics = queues.by_bytes
    try:
        while done < have:
            if len(hashes) > most and keys:
                if cut:
                    batch.end = start + done
                    break
                batch.keys, keys = None, False
            room = (most - len(hashes)) // KEY.size if keys else None
            done, runs, new_hashes, first_ms, last_ms, steps = plain_records(
                data, done, start, segment_size, check, _UNUSUAL, MAX_KEYS, room, last_ms
            )
            batch.first_ms = batch.first_ms or first_ms
            batch.steps += steps
            for name, queue_id, number, packed in runs:
                (at,) = phys_of(packed)
                topic = topics.get(name) or queues.topic_of(name)
                queue = topic.queues.get(queue_id)
                if queue is None or queue.next < 0:
                    queue = queues.queue(topic, queue_id)
                entries.append((queue, number, packed))
                batch.in_runs += len(packed) // ENTRY_SIZE - 1
            hashes += new_hashes
            at = start + done
            if done == have or (len(hashes) > most and keys):
                continue
            record = read_next(data, done, start, segment_size, check=check)
            if isinstance(record, Meta):
                _add(batch, record, data, queues, delays)
                if record.store_ms < last_ms:
                    batch.steps.append((at, last_ms - record.store_ms))
                last_ms = record.store_ms
                batch.first_ms = batch.first_ms or last_ms
                done += record.size
            elif done + record > have:
                raise Damage(f"filler of {record} bytes, of which {have - done} are there")
            else:
                done += record
            at = start + done
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
            batch.keys += KEY.pack(key_hash(topic.name, key), meta.phys, meta.store_ms)
    if topic.is_control:
        batch.control.append((meta.phys, bytes(data[meta.body_at : meta.body_at + meta.body_size])))
        epoch = epoch_of(meta)
        if epoch is not None:
            batch.epochs.append(EpochStart(epoch, meta.phys))
