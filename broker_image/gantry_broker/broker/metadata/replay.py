"""Keeps the tables in step with the log: at a start, while records are confirmed, and when some are undone.

What they tell of queues (`hidden`, `ends`) the store has in memory only, so it is told by each start.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Metadata
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.protocol.message import decode_records

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)


class Replay:
    """Binds `Metadata` to the control records of a store."""

    def __init__(self, meta: Metadata, store: MessageStore) -> None:
        self._meta = meta
        self._store = store
        self.lacking = False
        """A control record cannot be read here: the tables are without it, and are not to be saved."""
        meta.on_drop = store.drop_topic
        meta.on_ends = store.ensure_next

    def load(self, directory: Path) -> None:
        """The tables of a store that was opened just now: its snapshot, and what the log has beyond. Raises OSError."""
        meta, store = self._meta, self._store
        found = snapshots.load(directory)
        if found is not None:
            meta.load(found.tables, found.applied)
        applied = meta.applied
        # Of another epoch: the log was cut below the tables and has grown again since.
        other = found is not None and found.epoch not in (-1, snapshots.epoch_before(store.epochs, applied))
        if applied > store.end or 0 < applied < store.start or (applied > 0 and other):
            log.warning(
                "the log is of %d to %d, the tables of %d: they are built anew from it",
                store.start, store.end, applied,
            )  # fmt: skip
            self._build()
        else:
            meta.tell()
            self.replay()

    def was_cut(self, to: int) -> bool:
        """The log was cut to `to`, or begins there anew. True: the tables changed. Raises what `rebuild` does."""
        if to == self._store.start:
            log.info("the log begins anew at %d: so do the tables", to)
        elif self._meta.applied > to:
            log.warning("the log was cut to %d, below the tables: they are built anew", to)
        else:
            return False
        self.rebuild()
        return True

    def rebuild(self) -> None:
        """The tables anew, from the control records that the log holds and that are confirmed.

        Raises OSError, after which the store has failed: half of them would be taken for all, so only a start goes on.
        """
        try:
            self._build()
        except OSError as error:
            self._store.mark_failed(error)
            raise

    def _build(self) -> None:
        self._meta.clear()
        self._store.clear_overrides()
        self.lacking = False
        self.replay()

    def replay(self) -> None:
        """Applies the confirmed control records that the tables do not hold yet: they are in the control queue.

        Raises OSError.
        """
        store, meta = self._store, self._meta
        offset, end = store.min_offset(CONTROL_TOPIC, 0), store.max_offset(CONTROL_TOPIC, 0)
        queue = store.queues.find(CONTROL_TOPIC, 0)
        if queue is not None and meta.applied:
            offset = max(offset, queue.first_at(meta.applied))
        while offset < end:
            got = store.get(CONTROL_TOPIC, 0, offset, 1_000, 4 << 20)
            for record in decode_records(got.data) if got.data else ():
                meta.confirm(record.phys_offset, record.body)
            self.lacking = self.lacking or got.damaged >= 0
            offset = max(got.next_offset + (got.damaged >= 0), offset + 1)
