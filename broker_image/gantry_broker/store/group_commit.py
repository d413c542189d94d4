"""Group commit: one fsync serves all waiting callers; the event loop never blocks.

This is the asyncio edge of the store. Callers that arrive during an fsync wait for the next one, which covers all of
them. The kernel runs the fsync in the background, or a worker thread where the kernel cannot, or where more than the
last segment has to be synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from gantry_broker.store.async_sync import AsyncSync
from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.log.commit_log import OpenSegment
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import FlushPoint

_log = logging.getLogger(__name__)

AGAIN_S: Final = 0.1
"""Seconds between two tries when no descriptor is free."""
CHECKPOINT_S: Final = 60.0
"""A checkpoint follows the first flush after this many seconds."""
BETWEEN_SLICES_S: Final = 0.015
"""Seconds between two slices of writing queues before a checkpoint."""
RETRY_CHECKPOINT_S: Final = 5.0
"""Seconds after a checkpoint that moved nothing (on a full disk, for example), and before one without a flush."""


OnDurable = Callable[[FlushFailed | None], None]


class GroupCommit:
    """Flushes one store. It belongs to one event loop; close it before the store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        # Its own thread: a hanging disk must not block the loop's default executor. A bare thread: an executor makes a
        # lock and a future for every flush, and each change of the interpreter's lock costs both threads.
        self._worker = threading.Thread(target=self._run, name="store-flush", daemon=True)
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        """True: flush; False: end."""
        self._async_sync: AsyncSync | None = None
        """None: the thread runs every fdatasync."""
        try:
            self._async_sync = AsyncSync(self._async_ended)
        except OSError as error:
            _log.info("a thread flushes the log, which costs more CPU time: no asynchronous fdatasync (%s)", error)
        self._opened = OpenSegment()
        self._async_point: FlushPoint | None = None
        """What the fdatasync under way makes durable."""
        # A checkpoint may fsync many files; senders do not wait for them.
        self._slow_worker = ThreadPoolExecutor(1, thread_name_prefix="store-checkpoint")
        self._background_worker = ThreadPoolExecutor(1, thread_name_prefix="store-background")
        store.set_background_writer(self._write_in_background)
        self._checkpointed_at = time.monotonic()
        self._durable = -1
        """The durable offset when the last checkpoint began."""
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._begun = 0.0
        """When the running flush began, by the performance counter."""
        self._waiting: list[asyncio.Future[None]] = []
        """Waiters that look again at the end of the running flush."""
        self._to_call: list[tuple[int, OnDurable]] = []
        """The calls of `when_durable` that wait for the running flush."""
        self._checkpointing: asyncio.Task[None] | None = None
        self._closed = False
        self.ended: Callable[[], None] = lambda: None
        """Called in the loop at the end of each flush, also after a failure."""
        self.took: Callable[[float], None] = lambda seconds: None
        """Called with the duration of each successful flush, seconds."""

    def begin(self) -> None:
        """Start a flush of the log, unless one runs. Does nothing after a failure of the disk or `close`."""
        if self._flushing or self._closed or self._store.state.failed is not None:
            return
        self._flushing = True
        self._begun = time.perf_counter()
        if not self._begin_async():
            if not self._worker.ident:
                self._worker.start()
            self._wanted.put(True)
        self._store.write_ahead()

    def _begin_async(self) -> bool:
        """Let the kernel flush; False: the thread has to."""
        if self._async_sync is None:
            return False
        try:
            one = self._store.flush_of_one_file(self._opened)
        except OSError:
            return False  # The thread meets the error as well.
        if one is None:
            return False
        if not self._async_sync.begin(one[0]):
            if not self._async_sync.offered:
                _log.info("a thread flushes the log, which costs more CPU time: the kernel has refused an fdatasync")
                self._stop_async()
            return False
        self._async_point = one[1]
        return True

    def _async_ended(self, error: OSError | None) -> None:
        self._flushed(self._async_point if error is None else None, error)

    def _stop_async(self) -> None:
        if self._async_sync is not None:
            self._async_sync.stop()
            self._slow_worker.submit(self._async_sync.destroy)
            self._async_sync = None

    async def wait(self, offset: int) -> int:
        """Wait until everything below `offset` is on disk; returns `flushed`.

        Returns early, with a lower number, after a truncation below `offset`. Raises FlushFailed after a failure of the
        disk and after `close`.
        """
        store = self._store
        while store.state.flushed < min(offset, store.log.end):
            error = self._never()
            if error is not None:
                raise error from store.state.failed
            self.begin()
            await self._turn()
        return store.state.flushed

    def when_durable(self, offset: int, then: OnDurable) -> None:
        """Call `then` once `wait` would return (with None) or raise (with the error). It raises nothing.

        The call comes at once, or with the end of a flush: a waiting task costs another pass of the event loop.
        """
        store = self._store
        if store.state.flushed >= min(offset, store.log.end):
            then(None)
        elif (error := self._never()) is not None:
            then(error)
        else:
            self.begin()
            self._to_call.append((offset, then))

    def _never(self) -> FlushFailed | None:
        """Why no flush will come."""
        if self._store.state.failed is not None:
            return FlushFailed(f"the disk failed: {self._store.state.failed}")
        return FlushFailed("the store is closed") if self._closed else None

    async def _turn(self) -> None:
        """Wait for the end of the running flush."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    async def flush(self) -> int:
        """Make the whole log durable; returns `flushed`. Raises FlushFailed."""
        return await self.wait(self._store.log.end)

    def _run(self) -> None:
        """Return the worker thread."""
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
                return  # The loop has ended without a `close`: no one waits.

    def _flushed(self, point: FlushPoint | None, error: BaseException | None) -> None:
        if _short_of_descriptors(error) and not self._closed:
            self._loop.call_later(AGAIN_S, self._wanted.put, True)  # No file could be opened: nothing is lost.
            return
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        try:
            if point is None and _short_of_descriptors(error):
                return
            if point is None:
                # The kernel may have dropped unwritten pages: a second fsync would report success without them.
                self._store.checkpointer.mark_failed(error or RuntimeError("flush"))
            else:
                self.took(time.perf_counter() - self._begun)
                # The point was taken before the fsync began: what was appended during it may not be on the disk.
                self._store.mark_flushed(point)
                self._checkpoint_if_due()
        finally:
            for turn in waiting:
                if not turn.done():
                    turn.set_result(None)
            try:
                self.ended()
            finally:
                self._call()

    def _call(self) -> None:
        to_call, self._to_call = self._to_call, []
        for offset, then in to_call:
            self.when_durable(offset, then)

    def _checkpoint_if_due(self) -> None:
        store, waited = self._store, time.monotonic() - self._checkpointed_at
        due = store.checkpointer.due or waited > CHECKPOINT_S
        if waited <= RETRY_CHECKPOINT_S:
            due = store.checkpointer.due and store.state.recovery_point.durable > self._durable
        if due and self._checkpointing is None and not self._closed:
            self._checkpointing = self._loop.create_task(self._checkpoint())
            self._checkpointing.add_done_callback(self._checkpoint_done)

    def checkpoint_if_behind(self) -> None:
        """Start a due checkpoint without a flush: on a disk too full for messages, retention waits for it."""
        store, waited = self._store, time.monotonic() - self._checkpointed_at
        if (
            store.state.confirmed > store.state.recovery_point.durable
            and store.state.failed is None
            and waited > RETRY_CHECKPOINT_S
        ):
            self._checkpoint_if_due()

    async def checkpoint(self) -> None:
        """Make a checkpoint, or wait for the running one.

        Raises FlushFailed. Flushes start due checkpoints themselves.
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
            task.exception()  # Retrieved, or asyncio logs it; the store is marked as failed.

    async def _checkpoint(self) -> None:
        self._durable = self._store.state.recovery_point.durable
        # After first messages to thousands of topics, all their files at once would hold the loop for seconds.
        waiting = len(self._store.queues.dirty)  # New messages add queues meanwhile, and those can wait.
        while waiting > 0 and self._store.state.failed is None and not self._closed:
            wrote = self._store.checkpointer.write_some()
            if not wrote:
                break
            waiting -= wrote
            await asyncio.sleep(BETWEEN_SLICES_S)
        checkpoint = self._store.checkpointer.checkpoint()
        try:
            # The log first: queues that are durable beyond it would lead to records that a power loss took.
            await self.wait(checkpoint.offset)
            await asyncio.get_running_loop().run_in_executor(self._slow_worker, checkpoint.run)
        except FlushFailed:
            checkpoint.requeue()
            raise
        except OSError as error:
            if _short_of_descriptors(error):
                checkpoint.requeue()
                raise FlushFailed(f"no checkpoint for now: {error}") from error
            # A second fsync may report success without the pages that the first one lost.
            self._store.checkpointer.mark_failed(error)
            raise FlushFailed(f"the disk failed: {error}") from error
        self._store.checkpointer.checkpointed(checkpoint)
        # Wait for the writes in the queue of `_background_worker`.
        await asyncio.get_running_loop().run_in_executor(self._background_worker, _nothing)

    def _write_in_background(self, work: Callable[[], None]) -> None:
        self._background_worker.submit(work)

    async def close(self) -> None:
        """Wait for the running flush and checkpoint, and end the threads."""
        self._closed = True
        self._store.set_background_writer(None)
        while self._flushing:
            await self._turn()
        self._call()
        if self._checkpointing is not None:
            with contextlib.suppress(FlushFailed, asyncio.CancelledError):
                await asyncio.shield(self._checkpointing)
        self._stop_async()
        self._opened.close()
        self._wanted.put(False)
        self._slow_worker.shutdown(wait=False)
        self._background_worker.shutdown(wait=False)


def _short_of_descriptors(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


def _nothing() -> None:
    """Return the last task of a queue: once it has run, all earlier ones have."""
