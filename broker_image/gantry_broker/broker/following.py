"""A member of a standby: it copies its group's log from the archive of another cluster, as far as that has it.

Each member follows for itself, so a standby needs no leader and no role: all of its bytes are confirmed, because
nothing else is ever uploaded. Where an unclean promotion at the first site undid a part of the archive, the log is
truncated as well. Calls of the object store run in threads; the event loop appends one block at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from gantry_broker.archive import chain
from gantry_broker.archive.archiver import Report, of_manifest
from gantry_broker.archive.chain import Archive, GroupArchive, Identity
from gantry_broker.archive.errors import ArchiveError, Missing
from gantry_broker.archive.manifest import State
from gantry_broker.archive.opening import open_archive
from gantry_broker.archive.segment import Block, Directory, RangeReader
from gantry_broker.archive.threads import in_daemon_thread
from gantry_broker.broker.site import REFILL
from gantry_broker.replication.epochs import divergence
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import atomic_write
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.config import ArchivePlace, BrokerConfig
    from gantry_broker.replication.storelog import StoreLog
    from gantry_broker.store.log.epochs import LeaderEpochs
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Seconds between two looks at the manifest, when the log has all of it."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
PREPARE_S: Final = 0.01
"""Seconds between two looks whether a truncation is prepared."""


class Refill(Exception):
    """The log and the archive have nothing in common that could be continued."""


@dataclass(frozen=True, slots=True)
class Look:
    """The archive of the group, and how far this member has it. Times are Unix ms."""

    owner: Identity
    closed: str
    """The token of a hand-over that was completed; "": the owner may go on writing."""
    handed_over: tuple[str, ...]
    """All groups of the archive that were handed over with this token."""
    groups: tuple[str, ...]
    """All groups of the archive."""
    archived_end: int
    archived_ms: int
    end: int
    """End of this member's confirmed log."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a log must do before it can continue with the archive: end at `truncate`, unless it is None."""

    truncate: int | None


def begin(start: int, end: int, epochs: LeaderEpochs, state: State) -> Begin:
    """Compare a log with the archive. Raises Refill. Pure."""
    agreed = end if end == start == 0 else divergence(state.epochs, state.end, epochs, end)
    if agreed < end:
        if agreed <= start:
            raise Refill(f"the archive differs from the first record on, this log has {start} to {end}")
        return Begin(agreed)
    if end < state.readable_from:
        raise Refill(f"the archive begins at {state.readable_from}, this log ends at {end}")
    return Begin(None)


class Following:
    """Keeps one member's log up to date; owned by the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        source: ArchivePlace,
        store: MessageStore,
        store_log: StoreLog,
        clock: Clock,
        *,
        changed: Callable[[], None],
        restart: Callable[[], None],
        before_truncation: Callable[[int], bool],
    ) -> None:
        """Take the edges. `changed`: the report is another one. `restart`: ends this process, so that its disk is
        filled once more. `before_truncation`: is called with the offset to which the log is to be truncated until it
        returns True.

        Raises ArchiveError for an archive that cannot be.
        """
        self.report = Report()
        self.reason = "reads the archive"
        self._config = config
        self._archive: Archive = open_archive(source)
        self._group: GroupArchive = self._archive.group(config.own_group)
        self._url = source.url
        self._store, self._log = store, store_log
        self._clock = clock
        self._changed, self._restart = changed, restart
        self._before_truncation = before_truncation
        self._state: State | None = None
        self._failures = 0
        self._compared = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while the log is compared and continued: a promotion waits for its end."""

    @property
    def state(self) -> State | None:
        """The newest state of the manifest that is known; None: none was read since the start."""
        return self._state

    @property
    def ready(self) -> bool:
        """Whether it has read the archive, and serves what it has of it."""
        return self.report.known

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = await self._guarded()
            if pause:
                await set_within(self._wake, pause)

    async def _guarded(self) -> float:
        try:
            async with self._lock:
                more = await self._step()
            self._failures, error = 0, ""
            pause = 0.0 if more else LOOK_S
        except Refill as why:
            log.warning("%s: this member is filled from the archive once more", why)
            try:
                atomic_write(self._config.data_dir / REFILL, orjson.dumps({"why": str(why)}), durable=True)
            except OSError as failed:
                pause, error = self._failed(), f"{why}; this cannot be noted: {failed}"
            else:
                self._restart()
                return LONGEST_PAUSE_S
        except (ArchiveError, StoreError, OSError, ValueError) as failed:
            pause, error = self._failed(), str(failed)
            if error != self.report.error:
                log.warning("following the archive: %s", error)
        except Exception as unexpected:  # The loop must go on: a standby that stands still is seen too late.
            log.exception("following the archive failed")
            pause, error = self._failed(), f"{type(unexpected).__name__}: {unexpected}"
        self._note(error)
        return pause

    def _failed(self) -> float:
        self._failures += 1
        longest: float = min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE_S)
        return longest * (0.5 + random.random() / 2)

    async def _step(self) -> bool:
        """Continue the log by one part at most; True: there may be more. Raises Refill, ArchiveError, StoreError."""
        state = self._state = await in_daemon_thread(partial(self._group.load, self._state))
        if state.n == 0:
            self.reason = f"{self._url} has nothing of group {self._group.name} yet"
            return False
        store = self._store
        if state.segment_size != store.log.segment_size:
            raise ArchiveError(
                f"the archive has segments of {state.segment_size} bytes, this cluster of {store.log.segment_size}: "
                f"write spec.broker.mappedFileSizeCommitLog: {state.segment_size}"
            )
        truncate = begin(store.log.start, store.log.end, self._log.leader_epochs, state).truncate
        if truncate is not None:
            log.warning("the archive ends at %d or differs from there on: the log is truncated", truncate)
            while not self._before_truncation(truncate):  # noqa: ASYNC110 (it goes on by itself)
                await asyncio.sleep(PREPARE_S)
            self._log.truncate(truncate)
        await self._compare_tail(state)
        await self._confirm()
        part = state.part_at(store.log.end)
        if part is None:
            self.reason = ""
            return False
        reader = self._group.reader(part)
        directory = await in_daemon_thread(reader.directory)
        for block in directory.blocks_of(store.log.end, part.end):
            data = await in_daemon_thread(partial(_block, reader, directory, block))
            self._log.append_raw(store.log.end, data[store.log.end - block.start :])
            await self._confirm()
            self._note("")
        self.reason = ""
        return True

    async def _compare_tail(self, state: State) -> None:
        """Once after a start: the last bytes of this log must be those of the archive. Raises Refill, ArchiveError."""
        store = self._store
        end = store.log.end
        part = state.part_at(end - 1) if end > store.log.start else None
        if self._compared or part is None:
            return
        reader = self._group.reader(part)
        directory = await in_daemon_thread(reader.directory)
        block = directory.blocks_of(end - 1, end)[0]
        data = await in_daemon_thread(partial(_block, reader, directory, block))
        if block.start >= store.log.start:
            mine = store.log.read(block.start, end - block.start)
            if mine != data[: end - block.start]:
                raise Refill(f"the last records below {end} differ from those of the archive")
        self._compared = True

    async def _confirm(self) -> None:
        """Let readers see all of it. Each call indexes for a bounded time."""
        store = self._store
        while store.state.confirmed < store.log.end:
            before = store.state.confirmed
            # The archive has confirmed records alone, so readers may see all that came from it.
            self._log.confirm(store.log.end)
            if store.state.confirmed == before:
                raise StoreError(f"the records at {before} of the log cannot be read")
            await asyncio.sleep(0)

    def _note(self, error: str) -> None:
        state, now = self._state, self._clock.unix_ms()
        report = replace(self.report, error=error, error_ms=now if error else self.report.error_ms)
        if state is not None and state.n:
            behind = max(state.end - self._store.state.confirmed, 0)
            report = replace(
                of_manifest(report, state),
                behind_bytes=behind,
                behind_ms=0 if not behind else max(now - state.at_ms, 0),
            )
        was, self.report = self.report, report
        if (was.known, was.error) != (report.known, report.error):
            self._changed()

    # ---- a promotion

    async def look(self) -> Look:
        """Read the newest state. Raises ArchiveError."""
        identity, state, groups, handed_over = await in_daemon_thread(self._read)
        if identity is None:
            raise Missing(f"{self._url} has no archive")
        self._wake.set()
        confirmed = self._store.state.confirmed
        return Look(identity, state.closed, handed_over, groups, state.end, state.last_ms, confirmed)

    def _read(self) -> tuple[Identity | None, State, tuple[str, ...], tuple[str, ...]]:
        identity, state, groups = self._archive.identity(), self._group.load(self._state), self._archive.groups()
        closed_groups = groups if state.closed else []
        same = (name for name in closed_groups if self._archive.group(name).load().closed == state.closed)
        return identity, state, tuple(groups), tuple(same)

    async def take_over(self, uid: str, cluster: str, token: str, *, accept_loss: bool) -> int:
        """Make this cluster the owner of the archive, for good, and return where the former owner's log ends in it.

        It is done once the identity object and an entry of the group's manifest say so: from then on each write of the
        former owner fails. It may be called again. Raises Fenced, ArchiveError.
        """
        take = partial(chain.take_over, self._archive, self._group, uid, cluster, token, accept_loss=accept_loss)
        return await in_daemon_thread(partial(take, now_ms=self._clock.unix_ms()))


def _block(reader: RangeReader, directory: Directory, block: Block) -> bytes:
    return reader.block(directory, block)
