"""Raw bytes of the commit log over HTTP, for readers such as the Spark source: confirmed records only (rule 9)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, Protocol

from fastapi import HTTPException
from fastapi.responses import StreamingResponse

from gantry_broker.contracts.models import LogInfo, MemberRef, SegmentInfo
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.store.store import MessageStore

CHUNK: Final = 1 << 20


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    store: MessageStore
    replication: ReplicationService


def log_info(broker: Parts) -> LogInfo:
    """Return the segments that have confirmed bytes."""
    store = broker.store
    size = store.log.segment_size
    segments = []
    first = store.log.start - store.log.start % size
    for base in range(first, store.state.confirmed, size):
        start, end = max(base, store.log.start), min(base + size, store.state.confirmed)
        segments.append(SegmentInfo(start=start, end=end, first_store_ms=_store_ms(broker, start)))
    for segment, following in itertools.pairwise(segments):
        segment.last_store_ms = following.first_store_ms
    if segments:
        segments[-1].last_store_ms = store.state.last_store_ms or -1
    return LogInfo(
        cluster=broker.config.own_cluster,
        group=broker.config.own_group,
        member=MemberRef.of(broker.replication.me),
        role=broker.replication.role.value,
        start=store.log.start,
        confirmed=store.state.confirmed,
        segment_bytes=size,
        segments=segments,
        reserved_hours=broker.config.settings.fileReservedTime,
    )


def _store_ms(broker: Parts, offset: int) -> int:
    try:
        return broker.store.reader.record(offset).store_ms
    except StoreError:
        return -1


def log_bytes(broker: Parts, start: int, to: int, rate: int) -> StreamingResponse:
    """Return the log's bytes in [start, to), up to the confirmed offset; 410 below the start of the log."""
    store = broker.store
    if start < store.log.start:
        raise HTTPException(410, f"the log starts at {store.log.start}: from={start} has been removed")
    to = max(min(to, store.state.confirmed), start)
    if start > store.state.confirmed:
        to = start
    return StreamingResponse(
        _stream(broker, start, to, rate),
        media_type="application/octet-stream",
        headers={"Content-Length": str(to - start)},
    )


async def _stream(broker: Parts, start: int, to: int, rate: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    at = start
    while at < to:
        piece = broker.store.reader.read_bytes(at, min(CHUNK, to - at))
        if not piece:
            return  # Removed or truncated meanwhile: the reader sees a short body.
        yield piece
        at += len(piece)
        wait = (at - start) / rate - (loop.time() - began) if rate else 0.0
        await asyncio.sleep(max(wait, 0.0))
