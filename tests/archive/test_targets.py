"""Which part of an archive a restore to a target takes, on small states, and what it says where there is none."""

from __future__ import annotations

import pytest
from gantry_broker.archive.errors import Missing
from gantry_broker.archive.manifest import Gap, Owner, Part, State
from gantry_broker.archive.restore import Target, outline
from gantry_broker.store.log.epochs import EpochStart

MONDAY = 1_767_571_200_000
"""2026-01-05, midnight in UTC."""


def part(start: int, end: int, first_s: int, last_s: int, *, records: int = 1) -> Part:
    first_ms, last_ms = (MONDAY + s * 1_000 if records else 0 for s in (first_s, last_s))
    return Part(f"{start}-{end}", start, end, 1, 10, "", records, first_ms, last_ms)


def state(*parts: Part, gaps: tuple[Gap, ...] = ()) -> State:
    return State(5, Owner(1, "u"), 1_000, (EpochStart(1, 0),), parts[0].start if parts else 0, parts, gaps)


WHOLE = state(part(1_000, 1_700, 10, 20), part(1_700, 2_000, 30, 40))
HOLED = state(
    part(1_000, 1_700, 10, 20), part(1_700, 2_000, 30, 40), part(4_000, 4_500, 70, 80),
    gaps=(Gap(2_000, 4_000, "away"),),
)  # fmt: skip
ENDS_WITH_A_GAP = state(part(1_000, 2_000, 10, 40), gaps=(Gap(2_000, 4_000, "away"),))


def at(seconds: int) -> Target:
    return Target(time_ms=MONDAY + seconds * 1_000)


def reached(known: State, target: Target) -> tuple[int, int, int]:
    found = outline(known, target)
    return found.start, found.end, len(found.parts)


def test_without_a_gap() -> None:
    assert reached(WHOLE, Target()) == (1_000, 2_000, 2)
    assert reached(WHOLE, Target(offset=1_001)) == (1_000, 1_001, 1)
    assert reached(WHOLE, Target(offset=2_000)) == (1_000, 2_000, 2)
    assert reached(WHOLE, at(10)) == (1_000, 1_700, 1)
    assert reached(WHOLE, at(25)) == (1_000, 2_000, 2), "the second part is cut at its first record"
    assert reached(WHOLE, at(100)) == (1_000, 2_000, 2)


def test_a_moment_before_a_gap_is_reached() -> None:
    assert reached(HOLED, Target()) == (4_000, 4_500, 1)
    assert reached(HOLED, at(15)) == (1_000, 1_700, 1)
    assert reached(HOLED, at(40)) == (1_000, 2_000, 2)
    assert reached(HOLED, at(70)) == (4_000, 4_500, 1)
    assert reached(HOLED, Target(offset=1_900)) == (1_000, 1_900, 2)
    assert reached(HOLED, Target(offset=4_100)) == (4_000, 4_100, 1)
    assert reached(ENDS_WITH_A_GAP, at(40)) == (1_000, 2_000, 1)


@pytest.mark.parametrize(
    ("known", "target", "said"),
    [
        (state(), Target(), "no records to restore"),
        (WHOLE, at(9), "time 2026-01-05T00:00:09.000Z is before .*: write 2026-01-05T00:00:10.000Z or later"),
        (WHOLE, Target(offset=0), "offset 0 is not in the archive: write one above 1000, up to 2000$"),
        (WHOLE, Target(offset=1_000), "write one above 1000, up to 2000$"),
        (WHOLE, Target(offset=2_001), "write one above 1000, up to 2000$"),
        (HOLED, Target(offset=3_000), "write one above 1000, up to 2000 or above 4000, up to 4500$"),
        (HOLED, at(50), "lies in a gap .*: write 2026-01-05T00:00:40.000Z or earlier, or 2026-01-05T00:01:10.000Z or"),
        (ENDS_WITH_A_GAP, at(50), "lies in a gap of the archive: write 2026-01-05T00:00:40.000Z or earlier$"),
        (ENDS_WITH_A_GAP, Target(), "ends with a gap: write a time or an offset before it"),
    ],
)  # fmt: skip
def test_what_no_restore_reaches_is_said(known: State, target: Target, said: str) -> None:
    with pytest.raises(Missing, match=said):
        outline(known, target)


def test_a_part_with_only_a_filler_has_no_time() -> None:
    filler = part(4_000, 4_100, 0, 0, records=0)
    known = state(part(1_000, 2_000, 10, 40), filler, part(4_100, 4_500, 70, 80), gaps=(Gap(2_000, 4_000, "away"),))
    assert reached(known, at(20)) == (1_000, 2_000, 1)
    assert reached(known, at(75)) == (4_000, 4_500, 2)
    with pytest.raises(Missing, match="lies in a gap"):
        outline(known, at(50))
