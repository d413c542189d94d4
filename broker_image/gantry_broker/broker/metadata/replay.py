"""Keeps the tables in step with the log: at a start, while records are confirmed, and after a truncation.

The store has deletion watermarks and queue ends in memory only, so each start reports them from the tables.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Metadata, encode_change
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.files import NO_DESCRIPTORS

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)


class Replay:
    """Binds `Metadata` to the control records of a store."""

    def __init__(self, meta: Metadata, store: MessageStore, tables_changed: Callable[[], None] = lambda: None) -> None:
        """`tables_changed` is called after a change of topics, groups or settings in the view in use."""
        self._meta = meta
        self._store = store
        self._tables_changed = tables_changed
        self.incomplete = False
        """A control record cannot be read: the tables miss it and are not saved."""
        meta.on_drop = store.queues.drop_topic
        meta.on_ends = store.queues.override_next

    def load(self, directory: Path) -> None:
        """Load the tables of a newly opened store: its snapshot, and the later records of the log. Raises OSError."""
        meta, store = self._meta, self._store
        snapshot = snapshots.load(directory)
        if snapshot is not None:
            meta.load(snapshot.tables, snapshot.applied)
        applied = meta.applied
        # The tables are of another epoch: the log was truncated below them and has grown again since.
        other = snapshot is not None and snapshot.epoch not in (
            -1,
            snapshots.epoch_before(store.epoch_cache.epochs, applied),
        )
        if applied > store.log.end or 0 < applied < store.log.start or (applied > 0 and other):
            log.warning(
                "the log is of %d to %d, the tables of %d: they are rebuilt from it",
                store.log.start, store.log.end, applied,
            )  # fmt: skip
            self._build()
            store.compaction.apply()
        else:
            meta.report()
            self.replay()
            store.compaction.apply()

    def start(self, directory: Path) -> None:
        """Load the tables before replication starts. Raises OSError."""
        self.load(directory)
        self._tables_changed()

    def confirmed(self, control: Iterable[tuple[int, bytes]]) -> None:
        """Apply control records that are confirmed, each with its offset in the log."""
        changed = False
        for phys, body in control:
            changed = self._meta.confirm(phys, body) or changed
        if changed and not self._meta.leading:
            self._tables_changed()

    def was_truncated(self, to: int) -> None:
        """Follows a log that was truncated to `to`, or reset to begin there. Raises as `rebuild`."""
        if to == self._store.log.start:
            log.info("the log was reset to %d: the tables are rebuilt", to)
        elif self._meta.applied > to:
            log.warning("the log was truncated to %d, below the tables: they are rebuilt", to)
        else:
            self._store.compaction.apply()
            return
        self.rebuild()
        self._tables_changed()

    def repaired(self, at: int) -> None:
        """Add a control record that was unreadable before its repair. Raises as `rebuild` and `lead`."""
        if not self.incomplete:
            return
        log.warning("the tables are rebuilt with the repaired control record")
        meta, leading = self._meta, self._meta.leading
        offsets = meta.take_dirty(time.time_ns() // 1_000_000)
        self.rebuild()
        if leading:
            meta.lead([*self._unconfirmed_control(), *map(encode_change, offsets)])
            meta.put_back(offsets)
        self._tables_changed()

    def lead(self) -> None:
        """Becomes the leader's tables: unconfirmed control records count as well.

        Raises OSError, BadRecords and ValueError when the end of the log cannot be read. The process then ends, unless
        only descriptors ran out: the leader would lose a record that is on this disk alone.
        """
        self._meta.lead(self._unconfirmed_control())

    def follow(self) -> None:
        """Becomes a follower's tables, without unconfirmed control records."""
        self._meta.follow()

    def _unconfirmed_control(self) -> list[bytes]:
        try:
            return self._store.indexer.unconfirmed_control()
        except (BadRecords, ValueError, OSError) as error:
            if not isinstance(error, OSError) or error.errno not in NO_DESCRIPTORS:
                self._store.checkpointer.mark_failed(error)
            raise

    def rebuild(self) -> None:
        """Rebuilds the tables from the confirmed control records of the log. Compacted rows that no truncation has
        prepared follow in slices, after `tables_changed`.

        Raises OSError. The store has then failed: the tables are incomplete, and only a new start can continue.
        """
        try:
            self._build()
            self._store.compaction.apply(0.0)
        except OSError as error:
            self._store.checkpointer.mark_failed(error)
            raise

    def _build(self) -> None:
        self._meta.clear()
        self._store.queues.clear_overrides()
        self.incomplete = False
        self.replay()

    def replay(self) -> None:
        """Apply the confirmed control records of the control queue that the tables do not hold yet.

        Raises OSError.
        """
        store, meta = self._store, self._meta
        offset, end = store.reader.bounds(CONTROL_TOPIC, 0)
        queue = store.queues.find(CONTROL_TOPIC, 0)
        if queue is not None and meta.applied:
            offset = max(offset, queue.first_at(meta.applied))
        while offset < end:
            got = store.reader.get(CONTROL_TOPIC, 0, offset, 1_000, 4 << 20)
            for record in decode_records(got.data) if got.data else ():
                meta.confirm(record.phys_offset, record.body)
            self.incomplete = self.incomplete or got.damaged >= 0
            offset = max(got.next_offset + (got.damaged >= 0), offset + 1)
