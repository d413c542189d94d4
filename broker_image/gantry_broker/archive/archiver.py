"""The edge of the archive in a broker: one thread that reads confirmed records from the disk and uploads them.

The event loop only gives the thread a view of the log, and reads its report. Compression, checksums and calls of the
object store run in the thread and in a few beside it. While the archive is behind, one part is sent while the next is
made, within `MEMORY`. A failing store is asked again with growing pauses; senders notice nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gantry_broker.archive import chain, upload
from gantry_broker.archive.buffers import Buffers
from gantry_broker.archive.chain import Archive, GroupArchive
from gantry_broker.archive.errors import ArchiveError, Damaged, Fenced, Missing, Overtaken, Unavailable
from gantry_broker.archive.inspection import check_part
from gantry_broker.archive.manifest import Change, Gap, Owner, Part, State
from gantry_broker.archive.segment import BLOCK, LEVEL, SegmentWriter, read_range
from gantry_broker.archive.threads import in_background, in_daemon_thread
from gantry_broker.archive.upload import (
    Begin,
    Cut,
    MarkGap,
    Merge,
    Prune,
    Settings,
    Upload,
    View,
    Wait,
    Waiting,
    full_part,
)
from gantry_broker.archive.verified import Verification, faults_left
from gantry_broker.store.log.epochs import EpochStart
from gantry_broker.store.log.read_only_log import ReadOnlyLog
from gantry_broker.store.log.record_reader import size_of_first
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Seconds between two looks at the log by the member that uploads."""
FOLLOW_S: Final = 15.0
"""Seconds between two looks at the manifest by the others."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
OVERTAKEN_AT: Final = 3
"""So many steps in a row that another member overtook are shown as an error."""
LOST_AT: Final = 6
"""So many times, with growing pauses, a part that is to be cut or merged is read before it counts as lost: a store may
answer that it has no such object, and have it a moment later.
"""
SMALLEST_PART: Final = 1 << 20
"""Each failure halves what the next try uploads, down to this: a slow way to the store takes a small object in time."""
CLEAN_S: Final = 3_600.0
"""Seconds between two searches for objects and entries that no reader needs."""
WAITS_S: Final = 60.0
"""A member that cannot continue the archive for this long says why: one that is behind has caught up by then."""
VERIFIED_S: Final = 30.0
"""Seconds between two looks for the result of a verification."""
COMPARE_S: Final = 60.0
"""Seconds for which the difference between this clock and the store's counts: a clock may be set at any time."""
PARTS_AT_ONCE: Final = 16
"""Parts that one entry of the manifest adds while the archive is behind."""
ENTRY_S: Final = 10.0
"""After so many seconds an entry gets no more parts: with a slow store the archive moves on, too."""
SENDING: Final = 4
"""Parts that are sent at the same time, at most."""
COMPRESSING: Final = 2
"""Threads that compress."""
MEMORY: Final = 64 << 20
"""Bytes of parts that are sent or put together, at most; a part of the largest size is always let through."""
AHEAD_MS: Final = 60_000
"""A clock that is ahead by so much is worth a warning."""
LAG_MS: Final = 3_600_000
"""For so long a list may lag behind: entries of the manifest that it may need are kept."""
GRACE_MS: Final = 24 * 3_600_000
"""An object that the manifest does not have is removed when it is a day old: a reader that began before may still read
it. One that misses it reads the manifest again.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of the archive: for status and metrics. Times are Unix ms; 0: not known."""

    known: bool = False
    """The manifest was read since the start."""
    uploads: bool = False
    """This member uploads."""
    recoverable_from_ms: int = 0
    archived_ms: int = 0
    """Store time of the last archived record."""
    start: int = 0
    end: int = 0
    """Offset behind the last archived record."""
    behind_bytes: int = 0
    behind_ms: int = 0
    """For how long confirmed records have waited for their upload; 0: none waits."""
    size: int = 0
    parts: int = 0
    gaps: int = 0
    uploaded_bytes: int = 0
    """Bytes sent by this process."""
    error: str = ""
    """Why the last step failed; "" when it succeeded."""
    error_ms: int = 0
    fenced: str = ""
    """Why this cluster may not write to the archive at all."""
    superseded: str = ""
    """The archive was this cluster's, and belongs to another one now: that one was promoted."""
    closed: str = ""
    """The token of the hand-over with which this cluster ended its writes."""
    last_upload_ms: int = 0
    verification: Verification | None = None
    """What the last verification of the archive found; None: there was none, or this member does not upload."""
    faults: int = 0
    """Objects that are damaged or missing, as far as is known. `fault`: about one of them."""
    fault: str = ""
    epochs: tuple[EpochStart, ...] = field(default=(), repr=False)


def of_manifest(report: Report, state: State) -> Report:
    """Return the report with what a manifest says."""
    faults, fault = faults_left(report.verification, state)
    return replace(
        report,
        known=True,
        recoverable_from_ms=state.first_ms,
        archived_ms=state.last_ms,
        start=state.start,
        end=state.end,
        size=state.size,
        parts=len(state.parts),
        gaps=len(state.gaps),
        faults=faults,
        fault=fault,
    )


class _Once:
    """A call with a writer that it holds no longer once the call begins: its blocks take memory."""

    def __init__(self, writer: SegmentWriter, call: Callable[[SegmentWriter], tuple[Part, tuple[EpochStart, ...]]]):
        self._held = [writer]
        self._call = call

    def __call__(self) -> tuple[Part, tuple[EpochStart, ...]]:
        return self._call(self._held.pop())


class _Sending(NamedTuple):
    """A part on its way, and the bytes of its blocks."""

    done: Future[tuple[Part, tuple[EpochStart, ...]]]
    size: int

    @property
    def failed(self) -> bool:
        return self.done.done() and self.done.exception() is not None


class Archiver:
    """Keeps one group's archive up to date from one member."""

    def __init__(
        self,
        archive: Archive,
        *,
        group: str,
        uid: str,
        cluster: str,
        log_dir: Path,
        view: Callable[[], View | None],
        turn: Callable[[], bool],
        settings: Callable[[], Settings],
        delays: Sequence[int],
        level: int = LEVEL,
        rate: Callable[[], int | None] = lambda: None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_superseded: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`view`, `turn`, `settings` and `on_superseded` are called on the event loop. `view`: the log now; None: not
        started yet. `turn`: whether this member uploads. `rate`: bytes a second at most, of the object as stored.
        `on_superseded`: another cluster has taken the archive over; with "": it is this cluster's again.
        """
        self.report = Report()
        self._archive = archive
        self._group: GroupArchive = archive.group(group)
        self._uid, self._cluster = uid, cluster
        self._log_dir = log_dir
        self._view, self._turn, self._settings = view, turn, settings
        self._delays = delays
        self._level = level
        self._rate = rate
        self._clock_ms = clock_ms
        self._on_superseded = on_superseded
        self._state: State | None = None
        self._owner: Owner | None = None
        self._last_upload_ms = 0
        self._waiting = Waiting()
        self._noted: State | None = None
        self._failures = 0
        self._cleaned = 0.0
        self._ahead_ms = 0
        self._last: tuple[str, int] | None = None
        self._superseded = ""
        self._looked_at: Owner | None = None
        self._compared = 0.0
        self._verification: Verification | None = None
        self._verified_at = -math.inf
        self._suspects: list[str] = []
        """Names of parts that may be damaged, or be whole again."""
        self._examined = 0
        """The number of the verification whose parts were looked at."""
        self._suspected_at = -math.inf
        self._unreadable: set[str] = set()
        """Names of damaged parts whose records the disk does not give, either."""
        self._lost = ("", 0)
        """A part that could not be read back, and how often in a row."""
        self._waits = ("", 0.0)
        """Why this member cannot continue the archive, and since when (monotonic)."""
        self._compared_log = False
        """The disk's records were found to be those of the archive, since the start."""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = threading.Event()
        self._pacing = threading.Lock()
        self._buffers = Buffers(BLOCK)
        """For the blocks that this step reads from the disk."""

    @property
    def state(self) -> State | None:
        """The newest state of the manifest that is known; None: none was read since the start."""
        return self._noted

    def start(self) -> None:
        self._last_upload_ms = self._clock_ms()
        self._task = asyncio.create_task(self._run())

    def soon(self) -> None:
        """Look now, for example after a change of the role."""
        self._wake.set()

    def finish(self, token: str, end: int) -> None:
        """Upload all up to `end`, the confirmed end of a log that does not grow any more, and close the manifest with
        this token. `report.closed` says that it is done.
        """
        self._last = (token, end)
        self._wake.set()

    def finish_no_more(self) -> None:
        """Forget a `finish` that is not done: this member leads no more, and its successor's log goes on behind it."""
        self._last = None

    async def close(self) -> None:
        """Stop after the present call of the object store; what is missing is uploaded after the next start."""
        self._stopping.set()
        await end_tasks(self._task)

    async def _run(self) -> None:
        pause = 0.0
        while True:
            self._wake.clear()
            if pause:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
            pause = await self._look()

    async def _look(self) -> float:
        """Do one step, note how it ended, and return the seconds until the next one."""
        view, uploads, error, fenced = None, self.report.uploads, "", ""
        try:
            view, uploads = self._view(), self._turn() or self._last is not None
            if view is None:
                return LOOK_S
            more = await in_daemon_thread(partial(self._step, view, self._settings(), uploads))
            self._failures = 0
            pause = 0.0 if more else (LOOK_S if uploads else FOLLOW_S)
        except Overtaken as overtaken:
            # Two members had their turn at the same time: no failure, but it does not go on for ever unseen.
            log.info("the archive: %s", overtaken)
            self._state = None
            pause, error = self._failed(), str(overtaken) if self._failures > OVERTAKEN_AT else ""
        except Fenced as refused:
            self._state = None
            pause, error = self._failed(), str(refused)
            fenced = error if self._owner is None else ""
        except (ArchiveError, OSError) as failed:
            if str(failed) != self.report.error:
                log.warning("the archive: %s", failed)
            pause, error = self._failed(), str(failed)
        except Exception as unexpected:  # The loop must go on: one that ends silently would archive nothing more.
            log.exception("the archive's step failed")
            pause, error = self._failed(), f"{type(unexpected).__name__}: {unexpected}"
        if view is not None:
            self._note(view, uploads, error, fenced)
        return pause

    def _failed(self) -> float:
        self._failures += 1
        return _pause(self._failures)

    # On the event loop

    def _note(self, view: View, uploads: bool, error: str, fenced: str) -> None:
        before, state, now = self.report, self._state, self._clock_ms()
        if self._superseded != before.superseded or (self._looked_at is not None and not before.known):
            self._on_superseded(self._superseded)
        end = before.end if state is None else state.end
        behind = max(view.confirmed - end, 0) if state is not None or before.known else 0
        self._waiting.note(view.confirmed, view.confirmed - behind, now)
        report = replace(
            before,
            uploads=uploads,
            error=error,
            error_ms=now if error else before.error_ms,
            fenced=fenced,
            superseded=self._superseded,
            behind_bytes=behind,
            behind_ms=self._waiting.for_ms(now),
            last_upload_ms=self._last_upload_ms,
            verification=self._verification if uploads else None,
        )
        if state is not None and state is not self._noted:
            self._noted = state
            report = replace(
                of_manifest(report, state),
                epochs=state.epochs,
                closed=state.closed if state.owner is not None and state.owner.uid == self._uid else "",
            )
        elif self._noted is not None and report.verification is not before.verification:
            report = of_manifest(report, self._noted)
        self.report = report

    # In the thread

    def _step(self, view: View, settings: Settings, uploads: bool) -> bool:
        """Do one step; True: there may be more to do. Raises ArchiveError, Fenced, OSError."""
        self._buffers = Buffers(BLOCK)
        self._state = self._group.load(self._state, checked=not uploads)
        self._look_for_successor(self._state.owner)
        if not uploads:
            return False
        self._look_for_verification()
        if self._owner is None:
            self._owner = self._claim()
        state = self._state
        if state.owner is not None and state.owner.number > self._owner.number:
            self._owner = None
            raise Fenced("the archive has another owner now")
        if state.closed and state.owner == self._owner:
            return False  # The cluster has handed the archive over.
        settings = replace(settings, part=self._part(settings.part))
        if (last := self._last) is not None:
            settings = replace(settings, interval_ms=0)
            token, end = last
            if state.n and state.end == view.confirmed == end:
                self._write(state, Change(closed=token), view, (), closes=last)
                return False
        step = self._decide(state, view, settings)
        # Decided again by the store's clock: a member whose own is ahead would remove what is still needed.
        if isinstance(step, Prune) and self._compare_clocks():
            step = self._decide(state, view, settings)
        if state.n and (not self._compared_log or isinstance(step, (Begin, Cut))):
            self._compare_log(state, view, step)
        self._note_wait(step.why if isinstance(step, Wait) else "")
        match step:
            case Wait(why):
                if not why and self._mend(state, view):
                    return True
                self._clean(state)
                return False
            case Begin(base, epochs, cut):
                if cut is not None:
                    log.error("the archive begins once more at %d: an unclean promotion undid all that it had", base)
                self._write(state, Change(cut=cut, base=(base, epochs)), view, ())
                self._compared_log = True
            case Cut(at, across):
                log.warning("the archive is cut at %d: an unclean promotion undid what it has from there on", at)
                self._cut(state, at, across, view)
            case MarkGap(start, end):
                log.error("the archive lacks [%d, %d) of the log for ever: the disk no longer has it", start, end)
                gap = Gap(start, end, "removed from the disk before its upload")
                # Without the epochs in the gap the archive would seem to differ from the log for ever.
                self._write(state, Change(gap=gap), view, [e for e in view.epochs if start <= e.start < end])
            case Upload(start, limit, most):
                self._upload(state, start, limit, most, view)
            case Merge(parts):
                self._merge(state, parts, view)
            case Prune(start):
                gone = [p.name for p in state.parts if p.end <= start]
                # The manifest first: an object that goes while it is named would look like damage.
                self._write(state, Change(start=start), view, ())
                self._group.remove_parts(gone)
        return True

    def _note_wait(self, why: str) -> None:
        """Note why there is nothing to upload; "": all is there. Raises ArchiveError when it has been so for long."""
        now = time.monotonic()
        if why != self._waits[0]:
            self._waits = (why, now)
        elif why and now - self._waits[1] > WAITS_S:
            raise ArchiveError(f"nothing is uploaded: {why}")

    def _claim(self) -> Owner:
        """Return the owner as which this cluster writes. Raises Fenced, ArchiveError."""
        try:
            identity = self._archive.claim(self._uid, self._cluster, self._clock_ms())
        except Fenced:
            if not self._superseded:
                raise
            raise Fenced(f"{self._superseded}. `gantry demote --accept-loss` makes this one the standby") from None
        return Owner(identity.number, identity.uid)

    def _look_for_successor(self, owner: Owner | None) -> None:
        """Find out whether the archive was this cluster's and is another one's now. Raises ArchiveError."""
        if owner == self._looked_at:
            return
        superseded = ""  # As long as this is not known, what was known counts.
        if owner is not None and owner.uid != self._uid:
            identity = self._archive.identity()
            if identity is None or identity.number < owner.number:
                raise Unavailable(
                    f"the object store does not answer the archive's identity {owner.number}, or an old one"
                )
            if identity.uid != self._uid and self._archive.was_owner(self._uid, identity):
                superseded = (
                    f"cluster {identity.cluster} ({identity.uid}) was promoted and owns the archive now: "
                    "send to that cluster"
                )
        self._looked_at, self._superseded = owner, superseded

    def _look_for_verification(self) -> None:
        """Read what the last verification found. It is a report: one that cannot be read stops no upload."""
        now = time.monotonic()
        if now - self._verified_at < VERIFIED_S:
            return
        self._verified_at = now
        try:
            self._verification = self._group.last_verification(self._verification)
        except ArchiveError as error:
            log.warning("the archive: %s", error)

    def _decide(self, state: State, view: View, settings: Settings) -> upload.Step:
        return upload.next_step(state, view, settings, self._clock_ms(), self._last_upload_ms, self._ahead_ms)

    def _compare_clocks(self) -> bool:
        """Find out by how much this member's clock is ahead of the store's. False: it was found out a moment ago."""
        now = time.monotonic()
        if self._compared and now - self._compared < COMPARE_S:
            return False
        self._ahead_ms = max(self._clock_ms() - self._group.clock_ms(), 0)
        self._compared = now
        if self._ahead_ms >= AHEAD_MS:
            log.warning("this clock is %d s ahead of the object store, whose clock counts", self._ahead_ms // 1000)
        return True

    def _compare_log(self, state: State, view: View, step: upload.Step) -> None:
        """Check that the archive has this very log: leader epochs of another one may be the same, after all disks of a
        group were lost and it began once more. Raises ArchiveError.
        """
        if state.segment_size != view.segment_size:
            return
        end = min(upload.shared_to(state, view.epochs, view.start), view.confirmed)
        first = max(view.start, state.start)
        if first >= end:
            if isinstance(step, Begin) and state.parts and self._first_ms(view) > state.last_ms:
                raise ArchiveError(_another_log(state, view.start))
            return
        # One place may be damaged on the disk.
        places = [(part, at) for at in (end - 1, first) if (part := state.part_at(at)) is not None]
        agree = [self._has_bytes_of(state, part, at, end, view) for part, at in places]
        if False in agree and True not in agree:
            raise ArchiveError(_another_log(state, first))
        self._compared_log = True in agree

    def _has_bytes_of(self, state: State, part: Part, at: int, end: int, view: View) -> bool | None:
        """Return whether the disk has the bytes below `end` of the block of a part that has an offset; None: the part
        is lost. Raises ArchiveError, OSError.
        """
        if part.name in state.damaged:
            return None
        try:
            reader = self._group.reader(part)
            directory = reader.directory()
            block = directory.blocks_of(at, at + 1)[0]
            theirs = reader.block(directory, block)[: end - block.start]
        except (Damaged, Missing) as error:
            self._expect_again(part, error)
            return None
        with ReadOnlyLog(self._log_dir, view.segment_size) as disk:
            return disk.raw(block.start, len(theirs)) == theirs

    def _first_ms(self, view: View) -> int:
        """Return the store time of the first record on the disk; 0 without one. Raises ArchiveError, OSError."""
        writer = self._writer(view.start, view)
        with ReadOnlyLog(self._log_dir, view.segment_size) as disk:
            self._add_block(writer, disk, view.confirmed)
        return writer.first_ms

    def _part(self, most: int) -> int:
        return max(most >> min(self._failures, 6), min(most, SMALLEST_PART))

    def _write(
        self, state: State, change: Change, view: View, epochs: Sequence[EpochStart],
        closes: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Append an entry to the manifest. `closes`: the `finish` that it carries out, if that still counts."""
        assert self._owner is not None

        def check() -> None:
            self._still_owner()
            if closes is not None and self._last != closes:
                raise Overtaken("this member leads no more, so another one closes the archive")

        self._state = chain.write(
            self._group,
            state,
            change,
            owner=self._owner,
            segment_size=view.segment_size,
            epochs=epochs,
            now_ms=self._clock_ms(),
            check=check,
        )

    def _still_owner(self) -> None:
        """Check the owner. Raises Fenced when another cluster has taken the archive over."""
        if self._stopping.is_set():
            raise ArchiveError("the member stops")
        # Read for every write: the other cluster may have taken the archive over since the last one.
        identity = self._archive.identity()
        if identity is not None and identity.uid != self._uid:
            self._owner = None
            raise Fenced(f"the archive belongs to cluster {identity.cluster} ({identity.uid}) now")

    def _writer(self, start: int, view: View, threads: Executor | None = None) -> SegmentWriter:
        return SegmentWriter(
            start, view.segment_size, self._delays, level=self._level, sealer=self._group.sealer, threads=threads
        )

    def _upload(self, state: State, start: int, limit: int, most: int, view: View) -> None:
        """Upload one part, or some of them in one entry when the archive is behind: some are finished and sent while
        the next one is made.

        Raises what the first failure was, once the parts before it are in the manifest.
        """
        sending: list[_Sending] = []
        failed: Exception | None = None
        at, stop, parts = start, limit, PARTS_AT_ONCE if self._failures == 0 else 1
        ends = time.monotonic() + ENTRY_S
        with ReadOnlyLog(self._log_dir, view.segment_size) as disk, ThreadPoolExecutor(COMPRESSING) as threads:
            while True:
                try:
                    writer = self._writer(at, view, threads)
                    while writer.end < stop and writer.end - at < most:
                        self._add_block(writer, disk, stop)
                    size = writer.size
                    self._wait_for_room(sending, size)
                except (ArchiveError, OSError) as error:
                    failed = error
                    break
                at = writer.end
                sending.append(_Sending(in_background(_Once(writer, partial(self._send, view=view))), size))
                del writer
                following = (at, stop) if at < stop else full_part(at, view, most)
                if following is None or len(sending) == parts or time.monotonic() > ends or self._stopping.is_set():
                    break
                if any(sent.failed for sent in sending):
                    break
                at, stop = following
            added: list[Part] = []
            epochs: list[EpochStart] = []
            for sent in sending:  # Before the threads end: parts that are finished need them.
                try:
                    part, begun = sent.done.result()
                except (ArchiveError, OSError) as error:
                    failed = error
                    break
                added.append(part)
                epochs += begun
        if added:
            self._write(state, Change(added=tuple(added)), view, epochs)
            self._note_sent(sum(part.size for part in added))
            self._last_upload_ms = self._clock_ms()
        if failed is not None:
            raise failed

    def _send(self, writer: SegmentWriter, view: View) -> tuple[Part, tuple[EpochStart, ...]]:
        """Finish and send a part. Return it, with the epochs that begin in it. Raises ArchiveError."""
        data, directory = writer.finish()
        del writer
        with self._pacing:
            self._throttle(len(data))
        return self._group.put_part(data, directory, _epoch_of(view, directory.end)), directory.epochs

    def _wait_for_room(self, sending: Sequence[_Sending], size: int) -> None:
        """Wait until a part of this size can be put together within the memory, which it takes twice, and be sent."""
        for sent in sending:
            waiting = [s.size for s in sending if not s.done.done()]
            if sum(waiting) + 2 * size <= MEMORY and len(waiting) < SENDING:
                return
            wait([sent.done])

    def _add_block(self, writer: SegmentWriter, disk: ReadOnlyLog, limit: int) -> None:
        """Add a block to the object. Raises ArchiveError when the disk does not give what lies there."""
        at = writer.end
        buffer = self._buffers.take()
        data = buffer[: disk.raw_into(at, buffer[: min(BLOCK, limit - at)])]
        if writer.add_whole(data, partial(self._buffers.give, buffer)) == 0:
            first = size_of_first(data)
            self._buffers.give(buffer)
            if writer.add_whole(disk.raw(at, min(first, limit - at)) if first else b"") == 0:
                raise Damaged(f"no whole record can be read at {at} of the log")

    def _put(self, state: State, writer: SegmentWriter, view: View, removed: tuple[str, ...]) -> None:
        data, directory = writer.finish()
        self._throttle(len(data))
        # The object before the entry: no reader may be led to what is not there.
        part = self._group.put_part(data, directory, _epoch_of(view, directory.end))
        self._write(state, Change(added=(part,), removed=removed), view, ())
        self._note_sent(len(data))

    def _note_sent(self, size: int) -> None:
        self.report = replace(self.report, uploaded_bytes=self.report.uploaded_bytes + size)

    def _throttle(self, size: int) -> None:
        rate = self._rate()
        if rate:
            self._stopping.wait(size / rate)

    def _merge(self, state: State, parts: tuple[Part, ...], view: View) -> None:
        """Replace parts by one. One that cannot be read is named in the manifest instead: others are merged next."""
        writer = self._writer(parts[0].start, view)
        for part in parts:
            try:
                self._copy(writer, part, part.end, view)
            except (Damaged, Missing) as error:
                self._expect_again(part, error)
                log.error("the archive: %s stays as it is, since it cannot be read back: %s", part.name, error)
                self._write(state, Change(damaged=(*sorted(state.damaged), part.name)), view, ())
                return
        # The former objects stay until they are a day old (`_clean`): a reader that began before may still read them.
        self._put(state, writer, view, removed=tuple(p.name for p in parts))

    def _copy(self, writer: SegmentWriter, part: Part, upto: int, view: View) -> None:
        """Add the log up to an offset, which a part has, to an object: from the disk if it still has all of the part,
        else from the archive. Raises Damaged or Missing when neither gives it, ArchiveError.
        """
        if view.start <= part.start:
            with contextlib.suppress(Damaged, OSError):
                self._add_from_disk(writer, upto, view)
                return
        for again in (True, False):  # One wrong answer of the store is no damage.
            try:
                reader = self._group.whole(part)
                for _, data in read_range(reader, reader.directory(), writer.end, upto):
                    writer.add(data)
            except (Damaged, Missing):
                if not again:
                    raise
            else:
                return

    def _add_from_disk(self, writer: SegmentWriter, upto: int, view: View) -> None:
        """Add the log up to an offset to an object. Raises Damaged when the disk does not give it, OSError."""
        with ReadOnlyLog(self._log_dir, view.segment_size) as disk:
            while writer.end < upto:
                self._add_block(writer, disk, upto)

    def _mend(self, state: State, view: View) -> bool:
        """Look after parts that may be damaged, one at a time: name them in the manifest, and upload those once more
        whose records the disk still has. False: there is nothing to do. Raises ArchiveError.
        """
        self._look_for_suspects(state)
        if self._suspects:
            part = next((part for part in state.parts if part.name == self._suspects[-1]), None)
            if part is not None and self._is_damaged(state, part) != (part.name in state.damaged):
                names = state.damaged ^ {part.name}
                self._write(state, Change(damaged=tuple(sorted(names))), view, ())
            self._suspects.pop()
            return True
        damaged = upload.repairable(state, view, frozenset(self._unreadable))
        if damaged is None:
            return False
        writer = self._writer(damaged.start, view)
        try:
            self._add_from_disk(writer, damaged.end, view)
        except (Damaged, OSError) as error:
            log.error("the archive: the disk does not give the records of %s, either: %s", damaged.name, error)
            self._unreadable.add(damaged.name)
            return True
        self._put(state, writer, view, removed=(damaged.name,))
        log.warning("the archive: %s was damaged, and is uploaded once more", damaged.name)
        return True

    def _look_for_suspects(self, state: State) -> None:
        """Suspect what a new verification names, and once in `CLEAN_S` what the manifest names: somebody may have
        brought the object back.
        """
        now, verification = time.monotonic(), self._verification
        if verification is not None and verification.number != self._examined:
            self._examined = verification.number
            self._suspects += verification.damaged
        if state.damaged and now - self._suspected_at >= CLEAN_S:
            self._suspected_at = now
            self._suspects += sorted(state.damaged)

    def _is_damaged(self, state: State, part: Part) -> bool:
        """Read a part back, twice if need be. Raises ArchiveError when the store does not answer."""
        for _ in range(2):
            try:
                check_part(self._group, state, part)
            except (Damaged, Missing) as error:
                log.warning("the archive: %s", error)
            else:
                return False
        return True

    def _cut(self, state: State, at: int, across: Part | None, view: View) -> None:
        added: tuple[Part, ...] = ()
        if across is not None:
            writer = self._writer(across.start, view)
            try:
                self._copy(writer, across, at, view)
            except (Damaged, Missing) as error:
                self._expect_again(across, error)
                # What the disk has behind its start is uploaded next, and what it lacks becomes a gap.
                log.error("the archive: %s is cut off, since it cannot be read back: %s", across.name, error)
                at = across.start
            else:
                data, directory = writer.finish()
                epoch = max((e.epoch for e in state.epochs if e.start < at), default=0)
                added = (self._group.put_part(data, directory, epoch),)
        removed = () if across is None else (across.name,)
        self._write(state, Change(cut=at, added=added, removed=removed), view, ())

    def _expect_again(self, part: Part, error: ArchiveError) -> None:
        """Count that a part could not be read back. Raises Unavailable below `LOST_AT`."""
        self._lost = self._lost if self._lost[0] == part.name else (part.name, 0)
        self._lost = (part.name, self._lost[1] + 1)
        if self._lost[1] < LOST_AT:
            raise Unavailable(f"{part.name} cannot be read back: {error}") from error

    def _clean(self, state: State) -> None:
        """Remove what no reader needs, once in `CLEAN_S`. `state` may be old: this member may have slept for days, and
        what others uploaded meanwhile is no remainder. Raises ArchiveError.
        """
        now = time.monotonic()
        if now - self._cleaned < CLEAN_S and self._cleaned:
            return
        self._compare_clocks()
        # In this order: of what is as old, the state that is read afterwards has all that any reader needs.
        now_ms = self._clock_ms() - self._ahead_ms
        before_ms = now_ms - GRACE_MS
        newest = self._state = self._group.load(state)
        # Parts of another owner are no remainders of this one.
        if newest.owner != self._owner:
            return
        self._cleaned = now
        self._group.forget_entries(now_ms - LAG_MS)
        self._group.remove_parts(self._group.orphans(newest, before_ms))
        self._group.forget_clocks(before_ms)


def _another_log(state: State, at: int) -> str:
    return (
        f"the archive has another log than the disks, whose records from {at} on differ: the group began once more. "
        f"What the archive has, up to {state.end}, may be the only copy. Restore it into another cluster, and write "
        "another spec.archive.url here"
    )


def _epoch_of(view: View, end: int) -> int:
    """Return the leader epoch of the last record below an offset."""
    return max((e.epoch for e in view.epochs if e.start < end), default=0)


def _pause(failures: int) -> float:
    longest: float = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S)
    return longest * (0.5 + random.random() / 2)
