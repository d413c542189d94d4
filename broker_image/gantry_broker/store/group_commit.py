"""Group commit: one fsync in a worker thread answers everybody who waits for it; the event loop never blocks.

The asyncio edge of the store. While one fsync runs, those who come meanwhile wait for the next one, which then covers
all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.log.commit_log import OpenSegment

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import FlushPoint

AGAIN_S: Final = 0.1
"""After a flush for which no file could be opened."""
CHECKPOINT_S: Final = 60.0
"""Seconds after which the next flush is followed by a checkpoint."""
KEEP_UP_S: Final = 5.0
"""After a checkpoint that brought nothing, on a full disk say, there is none sooner; nor without a flush."""


class GroupCommit:
    """Flushes one store. To be made and used within one event loop; `close` it before the store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        # Its own thread: a disk that hangs must not take the loop's default executor with it. And a bare one: executors
        # make a lock and a future for every flush, and each turn of the interpreter's lock costs both threads.
        self._worker = threading.Thread(target=self._run, name="store-flush", daemon=True)
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        """True: flush; False: end."""
        # Checkpoints may fsync many files; senders do not wait for those.
        self._slow_worker = ThreadPoolExecutor(1, thread_name_prefix="store-checkpoint")
        self._background_worker = ThreadPoolExecutor(1, thread_name_prefix="store-points")
        store.background_writer = self._write_in_background
        self._checkpointed_at = time.monotonic()
        self._durable = -1
        """How far the queues were when the last checkpoint began."""
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._waiting: list[asyncio.Future[None]] = []
        """Those who look again when the flush that runs has ended."""
        self._checkpointing: asyncio.Task[None] | None = None
        self._closed = False
        self.ended: Callable[[], None] = lambda: None
        """Called in the loop when a flush has ended, well or not."""

    def begin(self) -> None:
        """Start a flush of what is in the log now, unless one runs. Nothing happens after a failure or `close`."""
        if self._flushing or self._closed or self._store.failed is not None:
            return
        if not self._worker.ident:
            self._worker.start()
        self._flushing = True
        self._wanted.put(True)
        self._store.write_ahead()

    async def wait(self, offset: int) -> int:
        """Until everything below `offset` is on disk; answers `flushed`.

        Returns early, with a lower number, when the log is cut below `offset` meanwhile. Raises FlushFailed when the
        disk failed, and after `close`.
        """
        store = self._store
        while store.flushed < min(offset, store.end):
            if store.failed is not None:
                raise FlushFailed(f"the disk failed: {store.failed}") from store.failed
            if self._closed:
                raise FlushFailed("the store is closed")
            self.begin()
            await self._turn()
        return store.flushed

    async def _turn(self) -> None:
        """Until the flush that runs has ended."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    async def flush(self) -> int:
        """Make everything durable that is in the log now; answers `flushed`. Raises FlushFailed."""
        return await self.wait(self._store.end)

    def _run(self) -> None:
        """The worker thread."""
        opened = OpenSegment()
        try:
            self._flush_on_demand(opened)
        finally:
            opened.close()

    def _flush_on_demand(self, opened: OpenSegment) -> None:
        while self._wanted.get():
            point, error = None, None
            try:
                point = self._store.flush(opened)
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._flushed, point, error)
            except RuntimeError:
                return  # The loop has ended without a `close`: nobody waits.

    def _flushed(self, point: FlushPoint | None, error: BaseException | None) -> None:
        if _short_of_descriptors(error) and not self._closed:
            self._loop.call_later(AGAIN_S, self._wanted.put, True)  # No file could be opened: nothing was lost.
            return
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        try:
            if point is None and _short_of_descriptors(error):
                return
            if point is None:
                # The kernel may have dropped the pages that it could not write: a second fsync would answer a lie.
                self._store.mark_failed(error or RuntimeError("flush"))
            else:
                self._store.mark_flushed(point)
                self._checkpoint_if_due()
        finally:
            for turn in waiting:
                if not turn.done():
                    turn.set_result(None)
            self.ended()

    def _checkpoint_if_due(self) -> None:
        store, waited = self._store, time.monotonic() - self._checkpointed_at
        due = store.checkpoint_due or waited > CHECKPOINT_S
        if waited <= KEEP_UP_S:
            due = store.checkpoint_due and store.recovery_point.durable > self._durable
        if due and self._checkpointing is None and not self._closed:
            self._checkpointing = self._loop.create_task(self._checkpoint())
            self._checkpointing.add_done_callback(self._checkpoint_done)

    def checkpoint_if_behind(self) -> None:
        """A checkpoint if one is due without a flush, as on a disk too full for messages: retention waits for it."""
        store, waited = self._store, time.monotonic() - self._checkpointed_at
        if store.confirmed > store.recovery_point.durable and store.failed is None and waited > KEEP_UP_S:
            self._checkpoint_if_due()

    async def checkpoint(self) -> None:
        """Move the point from which recovery starts after a power loss up to now. Flushes do that by themselves.

        Answers when it is done, or when the one is that runs already. Raises FlushFailed.
        """
        if self._checkpointing is None:
            if self._closed:
                return
            self._checkpointing = asyncio.get_running_loop().create_task(self._checkpoint())
            self._checkpointing.add_done_callback(self._checkpoint_done)
        await asyncio.shield(self._checkpointing)

    def _checkpoint_done(self, task: asyncio.Task[None]) -> None:
        self._checkpointing = None
        self._checkpointed_at = time.monotonic()
        if not task.cancelled():
            task.exception()  # Looked at: the store is marked as failed, and says so to whoever writes.

    async def _checkpoint(self) -> None:
        self._durable = self._store.recovery_point.durable
        checkpoint = self._store.checkpoint()
        try:
            await self.wait(checkpoint.offset)
            await asyncio.get_running_loop().run_in_executor(self._slow_worker, checkpoint.run)
        except FlushFailed:
            checkpoint.requeue(self._store)
            raise
        except OSError as error:
            if _short_of_descriptors(error):
                checkpoint.requeue(self._store)
                raise FlushFailed(f"the checkpoint waits: {error}") from error
            self._store.mark_failed(error)
            raise FlushFailed(f"the disk failed: {error}") from error
        self._store.checkpointed(checkpoint)
        await asyncio.get_running_loop().run_in_executor(self._background_worker, _nothing)  # after the points

    def _write_in_background(self, work: Callable[[], None]) -> None:
        self._background_worker.submit(work)

    async def close(self) -> None:
        """Wait for what runs, and end the threads."""
        self._closed = True
        self._store.background_writer = lambda work: work()
        while self._flushing:
            await self._turn()
        if self._checkpointing is not None:
            with contextlib.suppress(FlushFailed, asyncio.CancelledError):
                await asyncio.shield(self._checkpointing)
        self._wanted.put(False)
        self._slow_worker.shutdown(wait=False)
        self._background_worker.shutdown(wait=False)


def _short_of_descriptors(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


def _nothing() -> None:
    """What was asked for before it is done."""
