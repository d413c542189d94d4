"""How far everything is, written down: often for a killed process, seldom and fsynced for a power loss."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gantry_broker.store.files import fsync_dir, sync_file
from gantry_broker.store.filing import catch_up, complain, write_out
from gantry_broker.store.points import Points, boot_id, save_checkpoint

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_POINTS_INTERVAL_MS: Final = 1_000
_QUEUES_AT_ONCE: Final = 128
"""Consume queues that are written out in one go: a millisecond or two."""
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
"""After so many bytes of the log a checkpoint is due: walking them again takes a few seconds."""


class Checkpoint:
    """What has to be made durable so that recovery need not look below `offset`. `run` may go to another thread."""

    def __init__(self, offset: int, index: int, generation: int, files: list[str], directories: list[str]) -> None:
        self.offset = offset
        self.index = index
        self.generation = generation
        self._files = files
        self._directories = directories

    def run(self) -> None:
        """Blocks on the disk. Raises OSError."""
        for path in self._files:
            sync_file(path)
        for path in self._directories:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(path)


def upkeep(store: MessageStore, now_ms: int) -> None:
    """Called about ten times a second: writes out a bounded part of what waits in memory, notes how far it is.

    A full disk is no error here; what could not be written is tried again.
    """
    write_out(store, _QUEUES_AT_ONCE)
    second = now_ms - store.points_saved_ms >= _POINTS_INTERVAL_MS or now_ms < store.points_saved_ms
    index = store.index
    if index is not None:
        if not index.behind:
            index.drain()
        elif second or not index.stalled:
            # Faster than messages come in, so that it gets there; a full disk is not asked all the time.
            for _ in range(3):
                if not catch_up(store):
                    break
    if second:
        store.points_saved_ms = now_ms
        save_points(store, durable=False)


def save_points(store: MessageStore, *, durable: bool) -> None:
    before = store.points
    pending = store.queues.oldest_pending()
    points = Points(
        boot=boot_id(),
        clean=False,
        durable=before.durable,
        durable_index=before.durable_index,
        written=store.confirmed if pending is None else min(pending, store.confirmed),
        written_index=store.confirmed if store.index is None else min(store.index.written, store.confirmed),
        flushed=store.flushed,
        confirmed=store.confirmed,
    )
    if points == before:
        return
    try:
        points.save(store.points_path, durable=durable)
        index_ms = store.index.end_ms if store.index is not None else 0
        save_checkpoint(store.config.path / "checkpoint", store.last_store_ms, store.last_store_ms, index_ms)
    except OSError as error:
        complain(store, f"cannot save {store.points_path}", error)
        return
    store.points = points


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
    return Checkpoint(offset, index_at, store.log.generation, files, sorted(directories))


def checkpointed(store: MessageStore, done: Checkpoint) -> None:
    """Note a checkpoint that has run; what a cut came between counts for nothing."""
    if done.generation == store.log.generation:
        offset = min(done.offset, store.flushed)
        store.points = replace(store.points, durable=offset, durable_index=min(done.index, offset))
    save_points(store, durable=True)
