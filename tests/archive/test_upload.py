"""The rules of `archive/upload.py`, one by one, on small states."""

from __future__ import annotations

from gantry_broker.archive.manifest import Change, Gap, Owner, Part, State
from gantry_broker.archive.upload import (
    Begin,
    Cut,
    MarkGap,
    Merge,
    Prune,
    Settings,
    Step,
    Upload,
    View,
    Wait,
    Waiting,
    expired_below,
    next_step,
    shared_to,
)
from gantry_broker.store.log.epochs import EpochStart

SEGMENT = 1_000
NOW = 1_000_000
OWNER = Owner(1, "u")


def part(start: int, end: int, first_ms: int = 1, last_ms: int | None = None, *, records: int = 1) -> Part:
    last = first_ms if last_ms is None else last_ms
    return Part(f"{start}-{end}", start, end, 1, 10, "", records, first_ms, last)


def state(*parts: Part, epochs: tuple[tuple[int, int], ...] = ((1, 0),), gaps: tuple[Gap, ...] = ()) -> State:
    made = tuple(EpochStart(*e) for e in epochs)
    return State(5, OWNER, SEGMENT, made, parts[0].start if parts else 0, parts, gaps)


def view(start: int, confirmed: int, *epochs: tuple[int, int]) -> View:
    return View(start, confirmed, SEGMENT, tuple(EpochStart(*e) for e in epochs or ((1, 0),)))


def step(known: State, log: View, settings: Settings | None = None, since_ms: int = 0) -> Step:
    return next_step(known, log, settings or Settings(60_000, None, 500), NOW, NOW - since_ms)


def test_an_upload_continues_the_end_within_one_segment_and_only_what_is_confirmed() -> None:
    known = state(part(0, 700))
    assert step(known, view(0, 900)) == Wait()
    assert step(known, view(0, 900), since_ms=60_000) == Upload(700, 900, 500)
    assert step(known, view(0, 2_500)) == Upload(700, 1_000, 500)
    assert step(state(part(0, 100)), view(0, 600)) == Upload(100, 600, 500), "a part is full"
    assert next_step(known, view(0, 900), Settings(60_000, None, 500), NOW, NOW + 1) == Upload(700, 900, 500)


def test_a_member_whose_log_is_behind_or_older_or_cut_differently_waits() -> None:
    known = state(part(0, 700), epochs=((1, 0), (3, 300)))
    assert step(known, view(0, 600, (1, 0), (3, 300))) == Wait("this member is behind the archive")
    assert step(known, view(0, 900, (1, 0), (2, 300))) == Wait("this member is in an earlier epoch than the archive")
    contradicts = Wait("the epochs of this member contradict those of the archive")
    assert step(known, view(0, 900, (1, 0), (3, 400))) == contradicts
    other = View(0, 900, 2_000, (EpochStart(1, 0),))
    assert step(known, other) == Wait("the archive has segments of 1000 bytes, this member 2000")


def test_a_later_epoch_cuts_where_the_histories_part() -> None:
    known = state(part(0, 300), part(300, 700), epochs=((1, 0), (2, 500)))
    assert step(known, view(0, 900, (1, 0), (3, 400))) == Cut(400, known.parts[1])
    assert step(known, view(0, 900, (1, 0), (3, 300))) == Cut(300, None)
    assert step(known, view(0, 900, (1, 0), (3, 600))) == Cut(500, known.parts[1]), "epoch 2 is undone"
    short = view(600, 900, (2, 500), (3, 700))
    assert step(known, short, since_ms=60_000) == Upload(700, 900, 500), "a log that forgot its first epochs"
    assert step(known, view(0, 900, (1, 0), (2, 500), (3, 700)), since_ms=60_000) == Upload(700, 900, 500)


def test_an_archive_that_is_undone_whole_begins_once_more() -> None:
    """Retention had removed what both histories share. Otherwise the archive would continue another log."""
    known = state(part(2_000, 2_500), epochs=((1, 0), (2, 1_800)))
    log = view(1_000, 3_500, (1, 0), (3, 1_500))
    assert step(known, log) == Begin(1_000, (EpochStart(1, 0),), cut=1_500)
    new = known.next(
        Change(cut=1_500, base=(1_000, (EpochStart(1, 0),))), owner=OWNER, segment_size=SEGMENT, epochs=(), at_ms=NOW
    )
    assert (new.start, new.end, new.parts, new.epochs) == (1_000, 1_000, (), (EpochStart(1, 0),))
    assert step(new, log) == Upload(1_000, 2_000, 500)
    assert step(known, view(1_000, 3_500, (1, 0), (3, 2_000))) == Begin(1_000, (EpochStart(1, 0),), cut=1_800)


def test_what_the_disk_lacks_is_a_gap_also_at_the_start() -> None:
    assert step(state(part(0, 700)), view(2_000, 2_500)) == MarkGap(700, 2_000)
    assert step(state(), view(2_000, 2_500)) == MarkGap(0, 2_000)
    assert step(state(part(0, 700)), view(700, 800), since_ms=60_000) == Upload(700, 800, 500), "nothing is lost"
    known = state(part(0, 700), gaps=(Gap(700, 2_000, ""),))
    assert (known.end, known.readable_from) == (2_000, 2_000)
    assert step(known, view(2_000, 2_500)) == Upload(2_000, 2_500, 500)


def test_small_parts_of_one_segment_become_one() -> None:
    eight = tuple(part(n * 50, n * 50 + 50) for n in range(8))
    assert step(state(*eight), view(0, 400)) == Merge(eight)
    assert step(state(*eight[:7]), view(0, 350)) == Wait()
    whole = (part(0, 200), part(200, 400), part(400, 1_000))
    assert step(state(*whole), view(0, 1_000)) == Merge(whole[:2]), "the segment is whole, three would be too large"
    across = (part(900, 1_000), part(1_000, 1_100))
    assert step(state(*across), view(0, 1_100)) == Wait(), "never across segments"
    holed = (part(0, 100), part(200, 400), part(600, 1_000))
    gaps = (Gap(100, 200, ""), Gap(400, 600, ""))
    assert step(state(*holed, gaps=gaps), view(0, 1_000)) == Wait(), "never across a gap"


def test_retention_removes_whole_segments_that_are_older() -> None:
    old = state(part(0, 1_000, 100), part(1_000, 1_500, 200), part(1_500, 2_000, 300), part(2_000, 3_000, 900))
    assert expired_below(old, 700, 900) == 1_000, "a restore to 200 needs the segment from 1000 on"
    assert expired_below(old, 0, 900) == 2_000
    assert expired_below(old, 900, 900) == 0
    assert step(old, view(0, 3_000), Settings(60_000, 1, 5_000)) == Prune(2_000), "before any merge"


def test_one_record_of_a_wrong_clock_removes_nothing_younger() -> None:
    back = state(part(0, 1_000, 800), part(1_000, 2_000, 10, 850), part(2_000, 3_000, 900))
    assert expired_below(back, 300, 1_000) == 0
    ahead = state(part(0, 1_000, 100, 5_000), part(1_000, 2_000, 200), part(2_000, 3_000, 900))
    assert expired_below(ahead, 100, 1_000) == 0, "what seems young stays"
    young = state(part(0, 1_000, 100), part(1_000, 2_000, 900))
    assert expired_below(young, 300, 1_000) == 0, "a restore to 700 needs the segment before"


def test_a_part_with_only_a_filler_holds_nothing_back() -> None:
    filler = part(990, 1_000, 0, records=0)
    old = state(part(0, 990, 100), filler, part(1_000, 2_000, 200), part(2_000, 3_000, 300))
    assert expired_below(old, 10, 1_000) == 2_000


def test_records_wait_since_the_oldest_of_them_was_seen() -> None:
    """An archive that grows more slowly than the log is late by more and more."""
    waiting = Waiting()
    for second in range(100):
        waiting.note(confirmed=(second + 1) * 100, archived=second * 50, now_ms=second * 1_000)
    assert waiting.for_ms(99_000) == 99_000 - 49_000
    waiting.note(10_000, 10_000, 100_000)
    assert waiting.for_ms(100_000) == 0


def test_what_waits_takes_bounded_memory() -> None:
    waiting = Waiting()
    for second in range(10_000):
        waiting.note(second + 1, 0, second * 1_000)
    assert len(waiting._seen) <= 512
    assert waiting.for_ms(10_000_000) == 10_000_000


def test_what_the_archive_has_of_another_history_is_no_copy_of_this_log() -> None:
    known = state(part(0, 300), part(300, 700), epochs=((1, 0), (2, 500)))
    assert shared_to(known, (EpochStart(1, 0), EpochStart(2, 500)), 0) == 700
    assert shared_to(known, (EpochStart(1, 0), EpochStart(2, 500), EpochStart(3, 800)), 0) == 700
    assert shared_to(known, (EpochStart(1, 0), EpochStart(3, 400)), 0) == 400, "records of epoch 3 are not archived"
    assert shared_to(known, (EpochStart(1, 0),), 0) == 500, "another leader's records lie where this log has its own"
    assert shared_to(known, (EpochStart(2, 500),), 600) == 700, "a log that forgot its first epochs"
