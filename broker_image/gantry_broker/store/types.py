"""The words of the store: what is put in, what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gantry_broker.protocol.codes import GetStatus
from gantry_broker.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where a store is and how it behaves. `store_host` is the (IP address, port) that records and ids name."""

    path: Path
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    sync_flush: bool = False
    store_host: tuple[str, int] = ("127.0.0.1", 10911)


@dataclass(slots=True)
class Put:
    """A message to store. Hosts are packed (8 or 20 bytes), `properties` is the stored form.

    `tags_hash` is the tag code of the queue's entry and `keys` is what the index files it under (unique key first),
    as `records.tags_code` and `records.index_keys` tell them; the caller has them at hand.
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


class Stored(NamedTuple):
    """Where a message went. A half message (type 4) or rollback has queue offset 0 and no place in the queue."""

    phys_offset: int
    size: int
    queue_offset: int


class Confirmed(NamedTuple):
    """What a move of the confirmed offset brought: queues that grew, and control records (offset, body) in order."""

    offset: int
    available: list[tuple[str, int]]
    control: list[tuple[int, bytes]]


@dataclass(slots=True)
class Got:
    """The answer to a read of a queue. `data` is the records as they lie on disk, `next_offset` where to go on.

    `damaged`: where in the log the wanted record lies, when the disk no longer holds it as it was written; it is never
    given to anybody. -1: nothing of the kind.
    """

    status: GetStatus
    data: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: int = -1


class FlushPoint(NamedTuple):
    """What a flush has made durable: the log of this generation (it grows with every cut) up to this offset."""

    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Recovery cut the log at `at`, below what had been flushed or confirmed: acknowledged records are gone.

    The caller must not count this disk as one that holds what it once acknowledged (rule 16).
    """

    at: int
    reason: str
    flushed: int
    confirmed: int


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds the store, without those reserved for others; `ratio`: the used part."""

    total: int
    free: int
    ratio: float
