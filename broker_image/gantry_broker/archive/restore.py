"""From the archive to a store's folder: the segments of a log up to a time or an offset, and its leader epochs.

A start of a broker does the rest, as after a crash: it reads the log, and rebuilds queues, index and tables from it.
Work that was broken off goes on: a segment that is there whole is not fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import orjson
from gantry_core import size_of_whole

from gantry_broker.archive import segment
from gantry_broker.archive.chain import GroupArchive
from gantry_broker.archive.errors import ArchiveError, Missing
from gantry_broker.archive.manifest import Part, State
from gantry_broker.archive.segment import RangeReader
from gantry_broker.archive.threads import in_background
from gantry_broker.store.describe import utc
from gantry_broker.store.files import atomic_write, fsync_dir
from gantry_broker.store.log.commit_log import NAME_DIGITS
from gantry_broker.store.log.epochs import EpochFile, truncate_epochs
from gantry_broker.store.restored import RESTORED
from gantry_broker.store.sealed import seal, unseal

MARK: Final = "config/restoring.json"
"""In the store's folder while its restore is under way: what is restored. Its absence beside a log says "done"."""
WRITERS: Final = 2
"""Threads that write."""
WAITING_WRITES: Final = 4
"""Blocks that wait to be written, at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """How far to restore: up to an offset of the log, up to a store time (Unix ms), or with neither up to the end."""

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What a restore would bring. Offsets are bytes of the log."""

    start: int
    end: int
    """The part across the target counts up to `end`, which is a record's border only after `find_end`."""
    parts: tuple[Part, ...]
    download: int
    """Bytes to fetch."""
    records: int
    """Records in these parts; those after the target in the last one count as well."""
    first_ms: int
    last_ms: int


def outline(state: State, target: Target) -> Outline:
    """Return what a restore to the target needs: a run of parts without a gap. Raises Missing when the archive cannot
    give it.
    """
    parts = _reaching(_runs(state), state, target)
    start = parts[0].start
    if target.offset is not None:
        parts = [p for p in parts if p.start < target.offset]
    if target.time_ms is not None:
        # Clocks differ: the first record that is too young ends the log, also where older ones follow.
        upto = next((i for i, p in enumerate(parts) if p.last_ms > target.time_ms), len(parts) - 1)
        parts = parts[: upto + 1]
    end = parts[-1].end if target.offset is None else min(target.offset, parts[-1].end)
    return Outline(
        start,
        end,
        tuple(parts),
        sum(p.size for p in parts),
        sum(p.records for p in parts),
        parts[0].first_ms,
        parts[-1].last_ms,
    )


def _runs(state: State) -> list[list[Part]]:
    """Return the parts that follow each other without a gap, run by run."""
    runs: list[list[Part]] = []
    for part in state.parts:
        if runs and runs[-1][-1].end == part.start:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _first_ms(run: list[Part]) -> int:
    """Return the store time of the first record. A part without records has none."""
    return next((part.first_ms for part in run if part.records), 0)


def _reaching(runs: list[list[Part]], state: State, target: Target) -> list[Part]:
    """Return the run that a target lies in. Raises Missing."""
    if not runs:
        raise Missing("the archive has no records to restore")
    if target.offset is not None:
        for run in runs:
            if run[0].start < target.offset <= run[-1].end:
                return run
        ranges = " or ".join(f"above {run[0].start}, up to {run[-1].end}" for run in runs)
        raise Missing(f"offset {target.offset} is not in the archive: write one {ranges}")
    if target.time_ms is None:
        if runs[-1][0].start < state.readable_from:
            raise Missing("the archive ends with a gap: write a time or an offset before it")
        return runs[-1]
    number = next((i for i, run in reversed(list(enumerate(runs))) if _first_ms(run) <= target.time_ms), None)
    if number is None:
        raise Missing(
            f"time {utc(target.time_ms)} is before the first record of the archive: write {utc(_first_ms(runs[0]))} "
            "or later"
        )
    run = runs[number]
    last_ms = max(part.last_ms for part in run)
    if run[-1].end < state.end and target.time_ms > last_ms:
        later = f", or {utc(_first_ms(runs[number + 1]))} or later" if run is not runs[-1] else ""
        raise Missing(
            f"time {utc(target.time_ms)} lies in a gap of the archive: write {utc(last_ms)} or earlier{later}"
        )
    return run


def end_at_time(group: GroupArchive, state: State, time_ms: int | None) -> int:
    """Return the offset of the first record that was stored after a time; the end of the archive without one, or
    without a time. It reads one block at most. Raises ArchiveError.
    """
    part = None if time_ms is None else next((p for p in state.parts if p.last_ms > time_ms), None)
    if time_ms is None or part is None:
        return state.end
    reader = group.reader(part)
    directory = reader.directory()
    for block in directory.blocks:
        if block.last_ms > time_ms:
            data = reader.block(directory, block)
            return segment.cut_at_time(data, block.start, state.segment_size, time_ms)
    return part.end


def part_bytes(
    group: GroupArchive, state: State, target: Target, plan: Outline, part: Part
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole records) of one part of the plan, up to the target. Raises ArchiveError."""
    yield from _bytes_of(group.whole(part), state, target, plan, part)


def _bytes_of(
    reader: RangeReader, state: State, target: Target, plan: Outline, part: Part
) -> Iterator[tuple[int, bytes]]:
    directory = reader.directory()
    time_ms = target.time_ms
    if time_ms is not None and part.last_ms <= time_ms:
        time_ms = None  # None of its records is too young.
    for at, data in segment.read_range(reader, directory, part.start, min(part.end, plan.end)):
        stop = at + len(data)
        if time_ms is not None:
            stop = segment.cut_at_time(data, at, state.segment_size, time_ms)
        elif stop == target.offset:
            stop = at + size_of_whole(data, 0)
        if stop > at:
            yield at, data[: stop - at]
        if stop < at + len(data):
            return


def log_bytes(group: GroupArchive, state: State, target: Target) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole records) up to the target, in order. Raises ArchiveError."""
    plan = outline(state, target)
    for part in plan.parts:
        yield from part_bytes(group, state, target, plan, part)


def restore(
    group: GroupArchive,
    state: State,
    target: Target,
    store: Path,
    *,
    source: str = "",
    progress: Callable[[int], None] = lambda fetched: None,
) -> int:
    """Write the log up to the target into the store's folder, which is empty or has a part of the same restore; return
    the log's end. `source`: the archive's URL, so that no other one continues what was begun. Raises ArchiveError,
    OSError.

    `progress` gets the bytes fetched so far. Each part is written and flushed before the mark says so.
    """
    plan = outline(state, target)
    log_dir, mark = store / "commitlog", store / MARK
    log_dir.mkdir(parents=True, exist_ok=True)
    mark.parent.mkdir(parents=True, exist_ok=True)
    goal: dict[str, object] = {"url": source, "group": group.name, "offset": target.offset, "timeMs": target.time_ms}
    end, epochs = _begun(mark, goal, log_dir)
    # The archive may have been pruned or cut since the restore was broken off: an unclean promotion writes other
    # records at the same offsets, in another epoch.
    if end and (not plan.start <= end <= plan.end or epochs != _epochs_below(state, end)):
        for path in log_dir.iterdir():
            path.unlink()
        fsync_dir(log_dir)
        end = 0
    end = end or plan.start
    parts = [part for part in plan.parts if part.end > end]
    fetched = plan.download - sum(part.size for part in parts)
    with _LogFiles(log_dir, state.segment_size) as files:
        for part, reader in _one_ahead(group, parts):
            for at, data in _bytes_of(reader, state, target, plan, part):
                files.write(at, data)
                end = at + len(data)
            if files.flushed():
                progress(fetched)
            done = {**goal, "upto": end, "epochs": _epochs_below(state, end)}
            files.flush(partial(atomic_write, mark, seal(orjson.dumps(done)), durable=True))
            fetched += part.size
            if end < min(part.end, plan.end):
                break
        if files.flushed():
            progress(fetched)
    if end == plan.start:
        mark.unlink()
        raise Missing(f"the archive has no record before the target: write one behind its start, {plan.start}")
    EpochFile(state.segment_size, truncate_epochs(state.epochs, end)).save(store / "config" / "epochs.json")
    atomic_write(store / RESTORED, seal(orjson.dumps({**goal, "end": end})), durable=True)
    # Last: with the mark a start goes on with the restore, and without it the log counts as whole.
    mark.unlink()
    fsync_dir(mark.parent)
    return end


def _one_ahead(group: GroupArchive, parts: Sequence[Part]) -> Iterator[tuple[Part, RangeReader]]:
    """Yield the parts with their readers; while one is used, the next one is fetched. Raises ArchiveError."""
    fetching = [in_background(partial(group.whole, part)) for part in parts[:1]]
    for number, part in enumerate(parts):
        reader = fetching.pop().result()
        fetching += [in_background(partial(group.whole, following)) for following in parts[number + 1 : number + 2]]
        yield part, reader


def _epochs_below(state: State, end: int) -> list[list[int]]:
    """Return the leader epochs of the log below an offset, as the mark has them."""
    return [[entry.epoch, entry.start] for entry in truncate_epochs(state.epochs, end)]


def _begun(mark: Path, goal: dict[str, object], log_dir: Path) -> tuple[int, object]:
    """Return where an earlier try ended, and the leader epochs up to there; 0 for none. Raises ArchiveError for a
    folder with something else.
    """
    try:
        former_goal = orjson.loads(unseal(mark.read_bytes()))
        upto, epochs = int(former_goal.pop("upto")), former_goal.pop("epochs", None)
    except FileNotFoundError:
        if any(log_dir.iterdir()):
            raise ArchiveError(f"{log_dir} has a log already: a restore needs an empty folder") from None
        atomic_write(mark, seal(orjson.dumps({**goal, "upto": 0})), durable=True)
        return 0, None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{mark} is invalid: {error!r}; empty the folder") from None
    if former_goal != goal:
        raise ArchiveError(f"{mark} is of another restore: {former_goal}; write the same again, or empty the folder")
    return upto, epochs


class _LogFiles:
    """Writes the segments of a log in threads, so that blocks are read meanwhile. Use as a context manager."""

    def __init__(self, log_dir: Path, segment_size: int) -> None:
        self._log_dir = log_dir
        self._segment_size = segment_size
        self._files: dict[int, int] = {}
        """By the first offset of a segment: its file, open until the next flush has it."""
        self._threads = ThreadPoolExecutor(WRITERS)
        self._writing: list[Future[None]] = []
        """Since the last flush began."""
        self._flushing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.shutdown()
        if self._flushing is not None:
            wait([self._flushing])
        for descriptor in self._files.values():
            os.close(descriptor)

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at an offset of the log, soon. Raises OSError, also of a write before."""
        while data:
            base = at - at % self._segment_size
            step = min(len(data), base + self._segment_size - at)
            if len(self._writing) >= WAITING_WRITES:
                self._writing[-WAITING_WRITES].result()
            self._writing.append(self._threads.submit(_write, self._file(base), data[:step], at - base))
            data, at = data[step:], at + step

    def flush(self, then: Callable[[], None]) -> None:
        """Begin to make durable what was written, and to call `then` behind it; `flushed` waits for it."""
        written, self._writing = self._writing, []
        files, self._files = self._files, {}
        self._flushing = in_background(partial(_flush, written, list(files.values()), self._log_dir, then))

    def flushed(self) -> bool:
        """Wait for the last flush; False: there was none. Raises OSError, of a write as well."""
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()
        return flushing is not None

    def _file(self, base: int) -> int:
        descriptor = self._files.get(base)
        if descriptor is None:
            path = self._log_dir / f"{base:0{NAME_DIGITS}d}"
            descriptor = self._files[base] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(descriptor, self._segment_size)
        return descriptor


def _write(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, place)
        view, place = view[count:], place + count


def _flush(
    written: Sequence[Future[None]], descriptors: Sequence[int], log_dir: Path, then: Callable[[], None]
) -> None:
    """Make the writes durable, and the names of the files, and close them; then call `then`. Raises OSError."""
    try:
        wait(written)  # Also behind one that failed: its file's number may be another file's as soon as it is closed.
        for write in written:
            write.result()
        for descriptor in descriptors:
            os.fdatasync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    fsync_dir(log_dir)
    then()
