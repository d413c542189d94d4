"""What a member does next for the archive of its group. Pure: the state of the manifest, the member's log, the time.

The rules:
1. Only confirmed bytes are uploaded, so what the archive has can be undone by an unclean promotion alone.
2. An upload continues the archive's end. A member whose log is behind, or of another history, waits.
3. After an unclean promotion the archive is cut where the new history begins, by a member that is in a later epoch.
   Where that is at or below its start, all of it is undone, and it begins once more.
4. Bytes that the disk no longer has and the archive never had become a gap, which the manifest names.
5. Small parts that follow each other are merged, so that their number grows with the log, not with time. A part that
   cannot be read back stays as it is, and is named in the manifest.
6. Retention removes whole segments, all of whose records are older than the recovery window, from the oldest on. One
   record of a clock that was wrong removes nothing younger, nor does a member whose clock is ahead: the object store's
   clock counts.
7. A part that cannot be read back is uploaded once more by a member whose disk still has its records.

Before these rules count, `Archiver` compares records: a group whose disks were all lost may begin once more with the
same epochs, and its log neither continues the archive nor undoes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gantry_broker.archive.manifest import Part, State
from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.store.log.epochs import LeaderEpochs

PART: Final = 32 << 20
"""Bytes of the log in one part at most, plus one record."""
PLAIN_PART: Final = 16 << 20
"""The same without compression: of larger ones the memory for parts has room for one alone, so that the next one waits.
"""
MERGE_AT: Final = 8
"""Parts that follow each other and fit into one are merged when there are so many."""

MARKS: Final = 512
"""Moments at most that `Waiting` keeps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the cluster's spec says about its archive."""

    interval_ms: int = 60_000
    """Confirmed records are uploaded after so many milliseconds, also when they do not fill a part."""
    retention_ms: int | None = None
    """The recovery window; None: everything is kept."""
    part: int = PART


@dataclass(frozen=True, slots=True)
class View:
    """The log of this member. `epochs`: of the whole log. Offsets are bytes."""

    start: int
    confirmed: int
    segment_size: int
    epochs: LeaderEpochs


@dataclass(frozen=True, slots=True)
class Begin:
    """Write the first entry: the archive begins at `base`. `cut`: all that it has is undone, so it begins once more;
    None: it has nothing yet.
    """

    base: int
    epochs: LeaderEpochs
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """End the archive at `at`: a later epoch begins there. `across`: the part that holds this offset."""

    at: int
    across: Part | None


@dataclass(frozen=True, slots=True)
class MarkGap:
    """Write down that [start, end) is lost for the archive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Upload whole records from `start` on, up to `limit` and about `most` bytes."""

    start: int
    limit: int
    most: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Replace these parts, which follow each other, by one."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """Remove everything below `start`, the first offset of a segment."""

    start: int


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do. `why`: what keeps the archive behind; "" when nothing does."""

    why: str = ""


Step = Begin | Cut | MarkGap | Upload | Merge | Prune | Wait


def uploader(leadership: LeadershipRecord) -> int | None:
    """Return the number of the member that uploads: the lowest in-sync follower, or the leader without one.

    None: the group has no leader. Two members that disagree for a moment do no harm: each entry is written once.
    """
    if leadership.master is None:
        return None
    followers = sorted(m.member for m in leadership.in_sync if m != leadership.master)
    return followers[0] if followers else leadership.master.member


def has_turn(leadership: LeadershipRecord, member: int, behind_ms: int, interval_ms: int) -> bool:
    """Return whether a member uploads: the one that `uploader` names, or another one when that one does not.

    `behind_ms`: for how long the archive has lacked confirmed records. The members take over one after the other.
    """
    return uploader(leadership) == member or behind_ms > interval_ms * (3 + member)


def next_step(
    state: State, view: View, settings: Settings, now_ms: int, last_upload_ms: int, ahead_ms: int = 0
) -> Step:
    """Return the next step. `last_upload_ms`: when this member last uploaded, or began to watch; Unix ms.

    `ahead_ms`: by how much this member's clock is ahead of the store's, as far as is known. A `Prune` is carried out
    only once it is.
    """
    if state.n == 0:
        return Begin(view.start, _before(view))
    if state.segment_size != view.segment_size:
        return Wait(f"the archive has segments of {state.segment_size} bytes, this member {view.segment_size}")
    differs = _divergence(state, view)
    if isinstance(differs, Wait):
        return differs
    if differs is not None and differs <= state.start:
        return Begin(view.start, _before(view), cut=differs)
    if differs is not None:
        return Cut(differs, next((p for p in state.parts if p.start < differs < p.end), None))
    # Not an undone end: this member has not heard yet what is confirmed. A cut would remove records that are promised.
    if state.end > view.confirmed:
        return Wait("this member is behind the archive")
    # Named, never skipped: parts on both sides of it must not look like one log.
    if view.start > state.end:
        return MarkGap(state.end, view.start)
    # Nothing above the confirmed offset: the next leader may put other bytes there.
    pending = view.confirmed - state.end
    segment_end = state.end - state.end % view.segment_size + view.segment_size
    limit = min(view.confirmed, segment_end)
    if pending and (
        full_part(state.end, view, settings.part) is not None
        or now_ms - last_upload_ms >= settings.interval_ms
        or now_ms < last_upload_ms
    ):
        return Upload(state.end, limit, settings.part)
    keep_from = state.start
    if settings.retention_ms is not None:
        keep_from = expired_below(state, settings.retention_ms, now_ms - ahead_ms)
    if keep_from > state.start:
        return Prune(keep_from)
    merge = _mergeable(state, view.segment_size, settings.part)
    return Merge(merge) if merge else Wait()


def full_part(at: int, view: View, part: int) -> tuple[int, int] | None:
    """Return (start, limit) of the next part behind a part that ends at `at`, which is not written down yet; None when
    there is no full part yet, so that it waits for its interval.
    """
    segment_end = at - at % view.segment_size + view.segment_size
    limit = min(view.confirmed, segment_end)
    return (at, limit) if limit - at >= part or view.confirmed >= segment_end else None


def repairable(state: State, view: View, without: frozenset[str]) -> Part | None:
    """Return the first damaged part whose records this log still has; None: there is none. It counts only where
    `next_step` finds nothing else to do: the log and the archive then have one history. `without`: parts whose records
    the disk does not give, either.
    """
    damaged = (part for part in state.parts if part.name in state.damaged and part.name not in without)
    # The whole part has to be on this disk: half of it would replace an object that may come back.
    return next((part for part in damaged if view.start <= part.start and part.end <= view.confirmed), None)


def _before(view: View) -> LeaderEpochs:
    return tuple(e for e in view.epochs if e.start <= view.start)


def _divergence(state: State, view: View) -> int | Wait | None:
    """Where a later epoch of this member begins below the archive's end; None: both have one history."""
    if not state.epochs or not view.epochs:
        return None
    if view.epochs[-1].epoch < state.epochs[-1].epoch:
        return Wait("this member is in an earlier epoch than the archive")
    cuts = _differences(state, view.epochs, view.start)
    if not cuts:
        return None
    # Of one epoch there is one history. Somebody's epochs are wrong, and a guess would remove the right ones.
    if view.epochs[-1].epoch == state.epochs[-1].epoch:
        return Wait("the epochs of this member contradict those of the archive")
    return min(cuts)


def _differences(state: State, epochs: LeaderEpochs, log_start: int) -> list[int]:
    """Where an epoch begins that only the archive or only the log has, below the archive's end and in the log."""
    archived = {e.epoch: e.start for e in state.epochs}
    local = {e.epoch: e.start for e in epochs}
    cuts = [start for epoch, start in local.items() if archived.get(epoch) != start and start < state.end]
    return cuts + [start for epoch, start in archived.items() if local.get(epoch) != start and start >= log_start]


def shared_to(state: State, epochs: LeaderEpochs, log_start: int) -> int:
    """Return the offset up to which the archive has this log. `epochs`: of the whole log.

    Beyond it the archive has nothing, or another history: that of a leader whose records an unclean promotion undid,
    or that of another site.
    """
    return min([state.end, *_differences(state, epochs, log_start)])


def _mergeable(state: State, segment_size: int, most: int) -> tuple[Part, ...]:
    """Return the first run of parts that one part could replace: many, or two in a segment that is archived whole."""
    run: list[Part] = []
    size = 0
    for part in (*state.parts, None):
        whole = part is not None and part.name not in state.damaged
        fits = (
            part is not None
            and whole
            and bool(run)
            and part.start == run[-1].end
            and part.start // segment_size == run[0].start // segment_size
            and size + part.end - part.start <= most
        )
        if fits:
            assert part is not None
            run.append(part)
            size += part.end - part.start
            if len(run) < MERGE_AT:
                continue
        if len(run) >= MERGE_AT or (len(run) > 1 and (run[0].start // segment_size + 1) * segment_size <= state.end):
            return tuple(run)
        run, size = ([part], part.end - part.start) if part is not None and whole else ([], 0)
    return ()


def expired_below(state: State, retention_ms: int, now_ms: int) -> int:
    """Return the first offset of the segment from which a recovery window needs the archive."""
    start, horizon = state.start, now_ms - retention_ms
    for part, following in pairwise(state.parts):
        # A restore to a time needs the segment whose records are the last before it. A part without records has 0.
        if part.last_ms > horizon or following.first_ms > horizon:
            break
        if following.start % state.segment_size == 0:
            start = following.start
    return start


class Waiting:
    """For how long confirmed records have waited for their upload: since the oldest of them was seen.

    An archive that grows, but slower than the log, is behind by more and more time.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []
        """Ends of the log and when they were seen (ms), both rising."""

    def note(self, confirmed: int, archived: int, now_ms: int) -> None:
        """Note how far the log and the archive are. `archived`: the end of the archive, at most `confirmed`."""
        seen = [(end, at) for end, at in self._seen if archived < end <= confirmed and at <= now_ms]
        if confirmed > archived and (not seen or seen[-1][0] < confirmed):
            seen.append((confirmed, now_ms))
        if len(seen) > MARKS:
            # The oldest stays. A younger one that goes makes its records as old as those after it: less, by little.
            del seen[1:-1:2]
        self._seen = seen

    def for_ms(self, now_ms: int) -> int:
        """Milliseconds that the oldest record has waited; 0: none waits."""
        return max(now_ms - self._seen[0][1], 0) if self._seen else 0
