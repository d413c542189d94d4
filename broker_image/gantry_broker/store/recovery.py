"""Opening a store: who may, how far is it sound, what has to be filed again."""

from __future__ import annotations

import fcntl
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.store import recovery_plan
from gantry_broker.store.append import set_epochs, set_epochs_lazily
from gantry_broker.store.checkpoint import save_recovery_point
from gantry_broker.store.errors import StoreLocked
from gantry_broker.store.files import NO_ROOM, atomic_write
from gantry_broker.store.indexing import catch_up, push_unconfirmed, read_batch, valid_batches, write_out
from gantry_broker.store.log.commit_log import segment_bases
from gantry_broker.store.log.epochs import FOREIGN, EpochFile, extend_epochs, truncate_epochs
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.types import Damage

if TYPE_CHECKING:
    from gantry_broker.store.store import MessageStore

_log = logging.getLogger(__name__)


DAMAGED: Final = "damaged"
"""In config/: a start has cut the log below what was acknowledged, and it is not known yet that somebody heeds it."""
_INDEX_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes of the log that the index reads at most before the store is open; the rest comes with the upkeep."""


def recover(store: MessageStore, epochs: EpochFile | None) -> None:
    """Bring log, queues and index to where they agree. Raises StoreError, OSError."""
    log = store.log
    recovery_point = RecoveryPoint.load(store.recovery_point_file.path)
    plan = recovery_plan.plan(store.config.path, log, recovery_point, known=epochs is not None)
    bases = log.bases()
    log.start = recovery_plan.first_offset(bases, log.segment_size)
    store.verified_from = plan.scan_from
    # What was flushed is there, unless the disk had failed.
    flushed = recovery_point.flushed if recovery_point is not None and recovery_point.boot else 0
    lost_from = flushed if plan.rebooted else None
    empty = recovery_plan.Scan(0, "an empty store")
    found = recovery_plan.scan(log, plan.scan_from, lost_from=lost_from) if bases else empty
    log.end = found.end
    before = recovery_point or RecoveryPoint()
    _find_damage(store, found, before, known=recovery_point is not None or epochs is None)
    if bases:
        log.truncate(found.end)
    store.last_store_ms = found.last_ms
    store.was_clean = plan.clean or not bases
    if plan.foreign:
        store.epochs = FOREIGN
        store.confirmed = log.end
    else:
        # What was walked is the truth; the file knows what came before.
        known = tuple(e for e in epochs.epochs if e.start < plan.scan_from or e in FOREIGN) if epochs else ()
        store.epochs = truncate_epochs(extend_epochs(known, found.epochs), log.end)
        store.confirmed = min(max(before.confirmed, log.start), log.end)
    if epochs is None:
        set_epochs(store, store.epochs)  # It says from now on that this store is ours.
    elif epochs.epochs != store.epochs:
        set_epochs_lazily(store, store.epochs)
    _mark_open(store)
    trusted = min(store.confirmed if plan.trusted is None else plan.trusted, store.confirmed)
    if before.reindexing:
        trusted = log.start
    store.recovery_point = replace(before.at_most(trusted), reindexing=False)
    if recovery_point is not None and trusted <= log.start < max(recovery_point.durable, recovery_point.written):
        # Somebody has removed the queues. If this start is interrupted, the next one must not take for all of them what
        # this one has filed.
        claimed = replace(recovery_point, clean=False, durable_index=trusted, written_index=trusted, reindexing=True)
        store.recovery_point_file.lower(claimed)
    if not plan.clean or trusted != plan.trusted:
        store.queues.truncate(trusted)
    _recover_index(store, plan, trusted)
    if not plan.clean and not plan.rebooted:
        _mark_unsynced(store)
    _reindex(store, trusted)
    for offset, data in log.chunks(store.confirmed, log.end):
        push_unconfirmed(store, read_batch(store, offset, data))
    unflushed = min(max(before.flushed, log.start), log.end)
    if recovery_point is not None and not recovery_point.boot:
        # Where a flush has failed, the next one says that all is well, though the kernel writes nothing any more.
        for offset, data in log.chunks(unflushed, log.end):
            log.overwrite(offset, data)
    log.sync(unflushed, log.end)
    store.flushed = log.end
    # The file may claim more than there was: what is damage now would be found again by each start.
    save_recovery_point(store, durable=True, again=True)


def _mark_unsynced(store: MessageStore) -> None:
    """What the process before this one wrote since its last checkpoint the kernel has; the disk may not have it yet."""
    for queue in store.queues:
        store.queues.unsynced.update(queue.files_since(store.recovery_point.durable))
    if store.index is not None:
        store.index.unsynced.update(store.index.files_since(store.recovery_point.durable_index))


def _find_damage(store: MessageStore, found: recovery_plan.Scan, before: RecoveryPoint, *, known: bool) -> None:
    """Whether the log is cut below what was acknowledged. It stays said until whoever acts upon it has it on disk.

    `known`: where the log ended is; otherwise whatever lies behind the place where it is cut counts.
    """
    mark = store.config.path / "config" / DAMAGED
    if found.end < max(before.flushed, before.confirmed) or (not known and store.log.holds_beyond(found.end)):
        store.damage = Damage(found.end, found.reason, before.flushed, before.confirmed)
        _log.error("the log ends at %d (%s), but was known sound up to %s", found.end, found.reason, store.damage)
        try:
            atomic_write(mark, b"{}")
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.warning("cannot write %s: %s", mark, error)
    elif mark.exists():
        store.damage = Damage(found.end, "found at an earlier start", before.flushed, before.confirmed)


def _mark_open(store: MessageStore) -> None:
    """From here on only a clean close is one. A disk too full for the mark loses the old one instead."""
    try:
        with open(store.config.path / "abort", "w") as mark:
            mark.write(str(os.getpid()))
    except OSError as error:
        _log.warning("cannot write %s: %s", store.config.path / "abort", error)
        store.recovery_point_file.path.unlink(missing_ok=True)


def _reindex(store: MessageStore, start: int) -> None:
    """Give the queues, and the index unless it is behind, what they lack of [start, confirmed)."""
    index = store.index
    for batch in valid_batches(store, start, store.confirmed):
        live = index is not None and not index.behind and index.position == batch.start
        for queue, number, entry in batch.entries:
            queue.add(number, entry)
            queue.next = queue.max
            if queue.pending:
                store.queues.dirty[queue] = None
        write_out(store, None)
        if index is not None and live:
            index.pending += batch.keys or []
            index.position = batch.end
            index.drain()
    if index is not None:
        index.behind = index.position < store.confirmed


def _recover_index(store: MessageStore, plan: recovery_plan.Plan, start: int) -> None:
    """Cut the index to where it is sure, and bring it up to `start`, from where the queues are filed as well."""
    index = store.index
    if index is None:
        return
    index.position = store.confirmed
    if plan.trusted_index is not None:
        limit = min(plan.trusted_index, store.confirmed)
        if not plan.clean or index.end_phys >= limit:
            index.truncate(limit, rebuild=plan.rebooted)
        index.position = limit
    index.behind = index.position < start
    budget = index.position + _INDEX_AT_ONCE
    while index.behind and index.position < budget and catch_up(store, start):
        pass


def lock_store(root: Path) -> int:
    """RocketMQ's own lock file, locked the way Java locks it. Raises StoreLocked, OSError."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(fd)
        raise StoreLocked(f"{root} is in use by another process") from error
    return fd


def segment_size(root: Path) -> int | None:
    """The size of the segments of a store that we have never had open."""
    bases = segment_bases(root / "commitlog")
    if not bases:
        return None
    if len(bases) > 1:
        return bases[1] - bases[0]
    return os.stat(root / "commitlog" / f"{bases[0]:020d}").st_size or None
