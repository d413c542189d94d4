"""The values that go into the store and come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from gantry_broker.protocol.codes import GetStatus
from gantry_broker.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Path and settings of a store. `store_host` is the (IP address, port) that records and message ids contain."""

    path: Path
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    sync_flush: bool = False
    store_host: tuple[str, int] = ("127.0.0.1", 10911)


@dataclass(slots=True)
class Put:
    """A message to store. Hosts are packed (8 or 20 bytes); `properties` has the stored form.

    `tags_hash` is the tag code of the queue's entry, `keys` are the index keys (unique key first): the results of
    `record_reader.tags_code` and `record_reader.index_keys`, which the caller already has.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    body: bytes
    properties: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_hash: int = 0
    keys: tuple[str, ...] = ()


Row = tuple[str, int, int, int, int, bytes, bytes, bytes, int, int, int, tuple[str, ...]]
"""The fields of a `Put`, in their order. The hot path makes one for every send: an object costs four times as much."""

row_of: Final[Callable[[Put], Row]] = attrgetter(*(each.name for each in fields(Put)))
"""Returns a message's fields."""


class PlainBatch(NamedTuple):
    """The messages of one batch send, as its body has them: `gantry_core.BatchRules` has found nothing unusual.

    They go to one queue of one topic. `suffix` is added to the properties of each; `messages`: their number.
    """

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    body: bytes
    suffix: bytes
    messages: int


class Stored(NamedTuple):
    """The place of a stored message. A half message (type 4) or a rollback has queue offset 0 and no queue entry."""

    phys_offset: int
    size: int
    queue_offset: int


class StoredBatch(NamedTuple):
    """The place of a stored batch: the queue offset of its first message, and packed queue entries for offsets and
    sizes; their tag codes may be 0.
    """

    queue_offset: int
    entries: bytes


class Confirmed(NamedTuple):
    """The result of `confirm`.

    `available`: queues with new messages, as (topic, queue); `control`: control records (offset, body) in order.
    """

    offset: int
    available: list[tuple[str, int]]
    control: list[tuple[int, bytes]]


@dataclass(slots=True)
class Got:
    """The result of a read of a queue. `data` are the records as on disk; the next read starts at `next_offset`.

    `damaged`: the offset in the log of a record that the disk no longer holds as written, which no read returns; -1 for
    none.
    """

    status: GetStatus
    data: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: int = -1


class FlushPoint(NamedTuple):
    """The result of a flush: the log of this generation is durable up to this offset.

    Truncations raise the generation.
    """

    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Recovery truncated the log at `at`, below what had been flushed or confirmed: acknowledged records are gone.

    The caller must not count this disk as a holder of what it once acknowledged (rule 16).
    """

    at: int
    reason: str
    flushed: int
    confirmed: int


class DiskUsage(NamedTuple):
    """Bytes of the store's file system without the reserved blocks; `ratio` is the used part, 0 to 1."""

    total: int
    free: int
    ratio: float
