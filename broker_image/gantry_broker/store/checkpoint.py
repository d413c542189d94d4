"""How far everything is, written down: often for a killed process, seldom and fsynced for a power loss."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gantry_broker.store.append import persist_epochs
from gantry_broker.store.files import fsync_dir, sync_file
from gantry_broker.store.indexing import catch_up, retry_unindexed, warn_rate_limited, write_out
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantry_broker.store.store import MessageStore

_RECOVERY_POINT_INTERVAL_MS: Final = 1_000
_QUEUES_AT_ONCE: Final = 128
_PART_AT_ONCE: Final = 8
"""Consume queues that are written out in one go: so many, or this part of those that wait when that is more."""
_SECONDS_AT_ONCE: Final = 0.005
"""No longer than this, whatever the disk does: who sends waits meanwhile."""
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
"""After so many bytes of the log a checkpoint is due: walking them again takes a few seconds."""


class Checkpoint:
    """What has to be made durable so that recovery need not look below `offset`. `run` may go to another thread."""

    def __init__(self, store: MessageStore, offset: int, index: int, files: list[str], directories: list[str]) -> None:
        self.offset = offset
        self.index = index
        self.truncations = store.truncations
        self._files = files
        self._directories = directories

    def run(self) -> None:
        """Blocks on the disk. Raises OSError."""
        for path in self._files:
            sync_file(path)
        for path in self._directories:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(path)

    def requeue(self, store: MessageStore) -> None:
        """It did not run to its end: the next checkpoint has its files to do as well."""
        store.queues.unsynced.update(self._files)
        store.known_directories.difference_update(self._files)


def run_periodic_tasks(store: MessageStore, now_ms: int) -> None:
    """Called about ten times a second: writes out a bounded part of what waits in memory, notes how far it is.

    A full disk is no error here; what could not be written is tried again.
    """
    some = max(_QUEUES_AT_ONCE, len(store.queues.dirty) // _PART_AT_ONCE)
    write_out(store, some, time.monotonic() + _SECONDS_AT_ONCE)
    second = (
        now_ms - store.recovery_point_saved_ms >= _RECOVERY_POINT_INTERVAL_MS or now_ms < store.recovery_point_saved_ms
    )
    index = store.index
    if index is not None:
        if not index.behind:
            index.drain()
        elif second or not index.stalled:
            # Faster than messages come in, so that it gets there; a full disk is not asked all the time.
            for _ in range(3):
                if not catch_up(store):
                    break
    if second and store.unindexed:
        retry_unindexed(store)
    if second and not store.recovery_point_file.busy:
        store.recovery_point_saved_ms = now_ms
        save_recovery_point(store, durable=False, background_writer=True)


def save_recovery_point(
    store: MessageStore, *, durable: bool, background_writer: bool = False, again: bool = False
) -> None:
    """Write down how far everything is; `aside`: where files are written that nobody waits for; `again`: though
    nothing has changed."""
    recovery_point = current_recovery_point(store)
    if recovery_point == store.recovery_point and not again and not store.recovery_point_unsaved:
        return
    store.recovery_point_unsaved = False
    log_ms, index_ms = store.last_store_ms, store.index.end_ms if store.index is not None else 0
    path = store.config.path / "checkpoint"
    write = store.recovery_point_file.prepare(
        recovery_point, durable=durable, after=lambda: save_checkpoint(path, log_ms, log_ms, index_ms)
    )
    store.recovery_point = recovery_point

    def run() -> None:
        try:
            write()
        except OSError as error:
            warn_rate_limited(store, f"cannot save {store.recovery_point_file.path}", error)
            store.recovery_point_unsaved = True

    (store.background_writer if background_writer else _here)(run)


def current_recovery_point(store: MessageStore) -> RecoveryPoint:
    """How far everything is, of a store that is not marked as clean."""
    before = store.recovery_point
    boot = "" if store.disk_untrusted else boot_id()
    if store.reset_in_progress:
        return RecoveryPoint(boot=boot)
    pending = store.queues.oldest_pending()
    kept = _epochs_persisted(store)
    return RecoveryPoint(
        boot=boot,
        clean=False,
        durable=before.durable,
        durable_index=before.durable_index,
        written=before.written if not kept else store.confirmed if pending is None else min(pending, store.confirmed),
        written_index=store.confirmed if store.index is None else min(store.index.written, store.confirmed),
        flushed=store.flushed,
        confirmed=store.confirmed,
    )


def _epochs_persisted(store: MessageStore) -> bool:
    """Whether a start may begin where the log is now: what comes before it knows from the history's file only."""
    try:
        return persist_epochs(store)
    except OSError as error:
        warn_rate_limited(store, f"cannot write {store.epochs_path}", error)
        return False


def _here(work: Callable[[], None]) -> None:
    work()


def checkpoint(store: MessageStore) -> Checkpoint:
    """Write everything out and tell what must be made durable so that recovery after a power loss starts here."""
    write_out(store, None)
    files = sorted(store.queues.unsynced)
    store.queues.unsynced.clear()
    index_at = store.confirmed
    if store.index is not None:
        if not store.index.behind:
            store.index.drain()
        files += sorted(store.index.unsynced)
        store.index.unsynced.clear()
        index_at = min(store.index.written, store.confirmed)
    directories: set[str] = set()
    for path in files:
        directory = os.path.dirname(path)
        if path not in store.known_directories:
            store.known_directories.add(path)
            directories.update((directory, os.path.dirname(directory), os.path.dirname(os.path.dirname(directory))))
    pending = store.queues.oldest_pending()
    offset = store.confirmed if pending is None else min(pending, store.confirmed)
    return Checkpoint(store, offset, index_at, files, sorted(directories))


def checkpointed(store: MessageStore, done: Checkpoint) -> None:
    """Note a checkpoint that has run; what a cut came between counts for nothing."""
    before = store.recovery_point
    if done.truncations == store.truncations and _epochs_persisted(store):
        offset = min(done.offset, store.flushed)
        store.recovery_point = replace(store.recovery_point, durable=offset, durable_index=min(done.index, offset))
    save_recovery_point(store, durable=True, background_writer=True, again=store.recovery_point != before)
