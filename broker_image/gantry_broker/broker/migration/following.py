"""Follows one RocketMQ master: its log goes byte for byte into a store. The edge of `ha`.

The store is the migration's alone while it runs: no client is served. All that arrives counts as confirmed, because the
source is the authority; a source that contradicts itself stops the migration (`SourceBroken`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from gantry_broker.broker.migration import ha
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.log.epochs import FOREIGN
from gantry_broker.store.store import MessageStore
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

READ: Final = 256 << 10
"""Bytes of one read at most: indexing them holds the event loop for a few milliseconds."""
SILENT_S: Final = 20.0
"""Seconds without a byte after which a connection is given up; a master sends a heartbeat every five seconds."""
CONNECT_S: Final = 5.0
FULL_S: Final = 5.0
TICK_S: Final = 0.1
MOST_OVERLAP: Final = 64 << 20
"""Bytes that are compared at most when a connection begins: a segment's empty rest is below the largest record."""
SLOW_DISK_S: Final = 2.0
"""Seconds for a flush. A slower disk would let the senders of a SYNC_MASTER wait: the connection ends instead."""
LOST: Final = "the source's own slaves do not follow it: the copy waits for them, so that no sender waits for the copy"


class Follower:
    """One store that follows one master."""

    def __init__(self, store: MessageStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self.received = store.log.end
        """The offset after the last byte that came from the source."""
        self.bytes = 0
        """Bytes taken by this process."""
        self.reports = ha.Reports.NEUTRAL
        self.connected = False
        self.compared = False
        """Whether the present source has sent the end of the log as it is here."""
        self._appended = asyncio.Event()

    async def follow(
        self,
        host: str,
        port: int,
        promise: Callable[[], ha.Promise],
        in_sync: Callable[[], int | None] | None = None,
    ) -> None:
        """Follow over one connection until it ends. Cancel it to stop.

        `promise`: what the source promises now. `in_sync`: of a source under a controller, the offset up to which each
        broker of its SyncStateSet has the log; None: it has no controller. Raises MigrationError when the connection
        ended, SourceBroken when the migration must stop for good, StoreError, OSError.
        """
        store = self._store
        self.compared = False
        shape = (store.log.start, store.log.end, self._overlap(), store.log.segment_size)
        stream = ha.Stream(*shape) if in_sync is None else ha.LearnerStream(*shape, in_sync)
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=READ)
        except (TimeoutError, OSError) as error:
            raise MigrationError(f"the HA port {host}:{port} cannot be reached: {error or 'no answer'}") from error
        self.reports = ha.reports_for(promise())
        reporting = asyncio.create_task(self._report(writer, stream, promise))
        try:
            writer.write(stream.greeting())
            self.connected = True
            while True:
                try:
                    async with asyncio.timeout(SILENT_S):
                        data = await reader.read(READ)
                except TimeoutError:
                    raise MigrationError(f"the source sent nothing for {SILENT_S:g} s") from None
                if not data:
                    if reporting.done():
                        reporting.result()
                    raise MigrationError("the source ended the connection")
                if answer := stream.feed(data):
                    writer.write(answer)
                self.compared = stream.compared
                self.received = max(self.received, stream.received)
                self.bytes += len(data)
                await self._take(stream)
                full_until = self._now() + FULL_S
                while stream.full:
                    if self._now() > full_until:  # What is confirmed comes with frames that are not read.
                        raise MigrationError(
                            f"the source's own slaves lack {ha.MAX_HELD >> 20} MiB for {FULL_S:g} s: it is tried again"
                        )
                    await asyncio.sleep(TICK_S)
                    await self._take(stream)
                if reporting.done():
                    reporting.result()
        except ConnectionError as error:
            raise MigrationError(f"the connection to the source ended: {error}") from error
        finally:
            self.connected = False
            writer.transport.abort()
            await end_tasks(reporting)

    def _overlap(self) -> bytes:
        """Return the last bytes of the log, which the source has to send once more: of records, not only the empty rest
        of a segment, which is the same in many logs.
        """
        log, size = self._store.log, ha.OVERLAP
        data = self._read(ha.first_offset(log.start, log.end), log.end)
        while size <= len(data) < MOST_OVERLAP and len(data.rstrip(b"\0")) < ha.OVERLAP // 2:
            size *= 2
            data = self._read(max(log.end - size, log.start, 1), log.end - len(data)) + data
        return data

    def _read(self, first: int, end: int) -> bytes:
        data = b""
        while first + len(data) < end:  # A read ends with its segment.
            data += self._store.reader.read_bytes(first + len(data), end - first - len(data))
        return data

    async def _take(self, stream: ha.Stream) -> None:
        """Append what has arrived whole. Raises SourceBroken, StoreError, OSError."""
        while whole := stream.take():
            self._append(whole)
            self._appended.set()
            await asyncio.sleep(0)

    def _append(self, data: bytes) -> None:
        """Append the source's bytes. Raises SourceBroken, StoreError, OSError."""
        store = self._store
        try:
            store.appender.append_raw(store.log.end, data)
        except BadRecords as error:
            raise SourceBroken(f"the record at offset {error.at} of the source is damaged: {error}") from error
        if store.epoch_cache.epochs != FOREIGN:
            raise SourceBroken("the source's log has leaderships of Gantry: it is no RocketMQ")
        if store.indexer.confirm(store.log.end).control:
            raise SourceBroken("the source's log has control records of Gantry: it is no RocketMQ")

    async def _report(self, writer: asyncio.StreamWriter, stream: ha.Stream, promise: Callable[[], ha.Promise]) -> None:
        """Flush, and report, until the connection ends. Raises MigrationError for a slow disk, OSError."""
        store, reported, reported_at, near = self._store, stream.asked, self._now(), False
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._take(stream)  # What waited for the source's own slaves.
                if store.state.flushed < store.log.end:
                    began = self._now()
                    point = await loop.run_in_executor(None, store.flush)
                    store.mark_flushed(point)
                    if self._now() - began > SLOW_DISK_S and promise().sync:
                        raise MigrationError(f"a flush took {self._now() - began:.1f} s: senders would wait for it")
                if store.checkpointer.due:
                    checkpoint = store.checkpointer.checkpoint()
                    await loop.run_in_executor(None, checkpoint.run)
                    store.checkpointer.checkpointed(checkpoint)
                store.checkpointer.run_periodic_tasks(time.monotonic_ns() // 1_000_000)
                present = promise()
                self.reports = ha.reports_for(present)
                if self.reports is ha.Reports.AWAY:
                    raise MigrationError(LOST)
                # Senders wait from a report near the master's end on, and would wait for all that is missing then.
                near = near or not present.sync or store.state.flushed >= present.end
                offset = reported
                if self.reports is ha.Reports.DURABLE and near and stream.compared:
                    offset = max(reported, store.state.flushed)
                if stream.greeted and (offset != reported or self._now() - reported_at >= ha.REPORT_S):
                    writer.write(stream.report(offset))
                    reported, reported_at = offset, self._now()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._appended.wait()
                self._appended.clear()
        except BaseException:
            writer.transport.abort()
            raise
