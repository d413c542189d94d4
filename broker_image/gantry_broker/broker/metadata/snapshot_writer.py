"""Writes the snapshots of the tables while the broker runs, and when it stops."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_broker.broker.metadata import snapshots

if TYPE_CHECKING:
    from gantry_broker.broker.metadata.replay import Replay
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.store.log.epochs import LeaderEpochs
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)


class SnapshotWriter:
    """Writes the confirmed tables after changes, one write at a time."""

    def __init__(self, directory: Path, meta: Metadata, store: MessageStore, replay: Replay) -> None:
        self._directory = directory
        self._meta = meta
        self._store = store
        self._replay = replay
        self._saving: asyncio.Task[None] | None = None

    def save_changed(self) -> None:
        """Start a write in another thread: thousands of topics take a second as JSON."""
        meta = self._meta
        if not self._may_save() or not meta.changed or (self._saving is not None and not self._saving.done()):
            return
        meta.changed = False
        write = self._write(snapshots.Frozen.of(meta), self._store.epoch_cache.epochs)
        self._saving = asyncio.get_running_loop().create_task(write)

    def _may_save(self) -> bool:
        return self._store.state.failed is None and not self._replay.incomplete

    async def _write(self, tables: snapshots.Frozen, epochs: LeaderEpochs) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(
                None, lambda: snapshots.write(self._directory, snapshots.render(tables.settled(), epochs))
            )
        except OSError as error:
            self._meta.changed = True
            self._store.warnings.warn("the tables' snapshots cannot be written", error)

    async def close(self) -> None:
        """Wait for the current write."""
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)

    def save_now(self) -> None:
        """Write the tables at a stop. Blocks."""
        if not self._may_save():
            return
        try:
            snapshots.write(self._directory, snapshots.render(self._meta, self._store.epoch_cache.epochs))
        except OSError as error:
            # The next start reads the last snapshots and the log, which the caller closes after this.
            log.warning("the tables' snapshots cannot be written: %s", error)
