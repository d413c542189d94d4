"""Objects of the archive that are damaged or missing: they are named, merged around, and uploaded once more from a disk
that still has their records.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import archiver as archiving
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError, Missing, Unavailable
from gantry_broker.archive.inspection import verify
from gantry_broker.archive.manifest import Change, Owner, State, encode, follow
from gantry_broker.archive.upload import Settings, Wait, next_step, repairable
from gantry_broker.archive.verified import Verification, faults_left
from gantry_broker.archive.verifying import verify_group
from gantry_broker.store.log.epochs import EpochStart

from tests.archive.test_histories import SEGMENT, World
from tests.archive.test_topic_restore import Log
from tests.archive.test_upload import part, state, view
from tests.support.failing_calls import raising

NEVER = -1e9


def path_of(name: str) -> str:
    return f"groups/a/parts/{name}"


class SmallParts(Log):
    """A log whose archive has so many small parts, none merged yet."""

    def __init__(self, folder: Path, count: int = 7) -> None:
        super().__init__(folder)
        for number in range(count):
            self.put("T", number % 2, 1)
            self.upload()
        assert len(self.state.parts) == count

    @property
    def state(self) -> State:
        return self.archive.group("a").load()

    def upload(self) -> Archive:
        """As the archiver does: what fails is tried again."""
        for _ in range(archiving.LOST_AT - 1):
            with contextlib.suppress(Unavailable):
                return super().upload()
        return super().upload()

    @property
    def stored(self) -> dict[str, bytes]:
        found: dict[str, bytes] = self.archive.objects.objects  # type: ignore[attr-defined]
        return found

    def damage(self, number: int) -> str:
        """Change one byte of an object."""
        name = self.state.parts[number].name
        data = bytearray(self.stored[path_of(name)])
        data[len(data) // 2] ^= 1
        self.stored[path_of(name)] = bytes(data)
        return name

    def forget_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on the disk gives none of the records that are archived, as after local retention."""
        end = self.state.end
        add = archiving.Archiver._add_block

        def gone(self: archiving.Archiver, writer: Any, disk: Any, limit: int) -> None:
            if writer.end < end:
                raise archiving.Damaged(f"no whole record can be read at {writer.end} of the log")
            add(self, writer, disk, limit)

        monkeypatch.setattr(archiving.Archiver, "_add_block", gone)

    def faults(self) -> tuple[str, ...]:
        return verify(self.archive.group("a"), self.state).damaged


def test_a_damaged_small_part_is_healed_by_its_merge(tmp_path: Path) -> None:
    log = SmallParts(tmp_path)
    log.damage(2)
    assert log.faults()
    log.put("T", 0, 1)
    log.upload()
    assert len(log.state.parts) == 1, "eight small ones became one"
    assert log.faults() == ()
    assert log.state.damaged == frozenset()


def test_others_are_merged_around_a_part_that_nobody_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays as it is, named in the manifest; nothing is tried for ever."""
    log = SmallParts(tmp_path)
    name = log.damage(2)
    log.forget_disk(monkeypatch)
    with caplog.at_level(logging.ERROR):
        for number in range(30):
            log.put("T", number % 2, 1)
            log.upload()
    state = log.state
    assert name in caplog.text
    assert state.damaged == {name}
    assert state.end == log.store.state.confirmed
    assert path_of(name) in log.stored
    assert len(state.parts) < 20, "those before it and those behind it were merged"
    assert log.faults() == (name,)
    assert len([r for r in caplog.records if name in r.getMessage()]) <= 2
    log.archiver._note(log_view(log), uploads=True, error="", fenced="")
    assert (log.archiver.report.faults, log.archiver.report.fault) == (1, f"{name} cannot be read back")


def test_a_missing_part_that_is_found_by_a_verification_is_uploaded_once_more(tmp_path: Path) -> None:
    """Also a large one, which is never merged."""
    log = SmallParts(tmp_path)
    name = log.state.parts[4].name
    del log.stored[path_of(name)]
    verify_group(log.archive, "a", lambda size: None)
    log.archiver._verified_at = NEVER
    log.upload()
    assert name not in {p.name for p in log.state.parts}
    assert log.faults() == ()
    log.archiver._note(log_view(log), uploads=True, error="", fenced="")
    assert log.archiver.report.verification is not None
    assert log.archiver.report.verification.faults == 1
    assert log.archiver.report.faults == 0, "what was found is repaired"


def test_an_object_that_somebody_brings_back_is_damaged_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SmallParts(tmp_path)
    good = dict(log.stored)
    name = log.damage(3)
    log.forget_disk(monkeypatch)
    verify_group(log.archive, "a", lambda size: None)
    log.archiver._verified_at = NEVER
    log.upload()
    assert log.state.damaged == {name}
    log.stored[path_of(name)] = good[path_of(name)]
    log.upload()
    assert log.state.damaged == {name}, "it is looked at once in an hour"
    log.archiver._suspected_at = NEVER
    log.upload()
    assert log.state.damaged == frozenset()


@pytest.mark.parametrize("answers", [1, 2, 9])
def test_wrong_answers_of_the_store_for_a_moment_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    log = SmallParts(tmp_path)
    log.forget_disk(monkeypatch)
    name, get = log.state.parts[2].name, log.archive.objects.get
    wrong = [path_of(name)] * answers

    def answer(asked: str, most: int = 1 << 30) -> bytes:
        if asked in wrong:
            wrong.remove(asked)
            if answers > 1:
                raise Missing(asked)
            return b""
        return bytes(get(asked, most))

    monkeypatch.setattr(log.archive.objects, "get", answer)
    log.put("T", 0, 1)
    log.upload()
    assert not wrong
    assert (len(log.state.parts), log.state.damaged) == (1, frozenset())


def test_a_cut_through_a_part_that_nobody_can_read_keeps_what_is_before_it(tmp_path: Path) -> None:
    """Otherwise the archive would stop there for ever."""
    log = SmallParts(tmp_path)
    before = log.state
    log.damage(5)
    across = before.parts[5]
    cut = log.store.state.confirmed - (log.store.state.confirmed - across.start) // 2
    step_view = log_view(log)
    for _ in range(archiving.LOST_AT - 1):
        with pytest.raises(Unavailable, match="cannot be read back"):
            log.archiver._cut(before, across.end - 1, across, view_without_disk(step_view, cut))
        assert log.state == before, "a store that answers nothing for a moment loses nothing"
    log.archiver._cut(before, across.end - 1, across, view_without_disk(step_view, cut))
    state = log.state
    assert (state.end, len(state.parts)) == (across.start, 5)
    log.upload()
    assert log.state.end == log.store.state.confirmed
    assert log.faults() == ()


def log_view(log: Log) -> archiving.View:
    store = log.store
    return archiving.View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)


def view_without_disk(of: archiving.View, start: int) -> archiving.View:
    return archiving.View(start, of.confirmed, of.segment_size, of.epochs)


def test_a_store_that_is_away_damages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SmallParts(tmp_path)
    name = log.damage(1)
    verify_group(log.archive, "a", lambda size: None)
    log.archiver._verified_at = NEVER
    monkeypatch.setattr(archiving, "check_part", raising(Unavailable("away")))
    with pytest.raises(Unavailable):
        log.upload()
    assert log.state.damaged == frozenset()
    monkeypatch.undo()
    log.upload()
    assert name not in {p.name for p in log.state.parts}


@pytest.mark.parametrize("seed", range(12))
def test_in_a_history_all_damage_is_repaired_or_named(seed: int, quick_dir: Path) -> None:
    """Objects rot or vanish at any time; a verification finds them; members lead in turn and lose old segments."""
    check_damage(seed, quick_dir)


def check_damage(seed: int, folder: Path) -> None:
    world = World(seed, folder)
    world.run(60)
    world.settle()
    for _ in range(2):
        state = world.group.load()
        for one in world.random.sample(state.parts, min(3, len(state.parts))):
            rot(world, one.name)
        noted = verify(world.group, state)
        result = Verification(world.now, state.end, 1, 1, 1, 1, len(noted.faults), noted.faults, noted.damaged)
        world.group.note_verification(result)
        for archiver in world.archivers:
            archiver._verified_at = NEVER
        if world.random.random() < 0.5:
            world.retain(world.leader)
        world.put()
        state = settled(world)
        left = verify(world.group, state)
        assert set(left.damaged) == state.damaged, "all that is damaged is named, and nothing else"
        disk = world.members[world.leader].log.start
        assert all(p.start < disk for p in state.parts if p.name in state.damaged), "the disk has no more of it"
        assert faults_left(result, state)[0] == len(state.damaged)
        assert state.end == world.members[world.leader].state.confirmed


def settled(world: World) -> State:
    """As `World.settle`, and until the archiver has nothing left to do."""
    world.settle()
    store = world.members[world.leader]
    view_now = archiving.View(store.log.start, store.state.confirmed, SEGMENT, store.epoch_cache.epochs)
    world.objects.lag = 0
    world.archivers[world.leader]._verified_at = NEVER
    for _ in range(200):
        try:
            if not world.archivers[world.leader]._step(view_now, world.settings, True):
                return world.group.load()
        except ArchiveError:
            world.archivers[world.leader]._state = None
    raise AssertionError("the archiver does not come to an end")


def rot(world: World, name: str) -> None:
    objects = world.objects.objects
    if world.random.random() < 0.3:
        objects.pop(path_of(name), None)
    elif path_of(name) in objects:
        data = bytearray(objects[path_of(name)])
        data[world.random.randrange(len(data))] ^= 1 << world.random.randrange(8)
        objects[path_of(name)] = bytes(data)


# The pure rules


def marked(known: State, *names: str) -> State:
    return known.next(
        Change(damaged=names), owner=Owner(1, "u"), segment_size=1_000, epochs=(), at_ms=1
    )  # fmt: skip


def test_a_damaged_part_is_merged_with_no_other() -> None:
    parts = [part(n * 50, n * 50 + 50) for n in range(8)]
    known = marked(state(*parts), parts[3].name)
    settings = Settings(60_000, None, 500)
    assert next_step(known, view(0, 400), settings, 1, 1) == Wait()


def test_only_what_the_disk_has_is_repaired() -> None:
    parts = [part(n * 50, n * 50 + 50) for n in range(8)]
    known = marked(state(*parts), parts[3].name, parts[5].name)
    none: frozenset[str] = frozenset()
    assert repairable(known, view(0, 400), none) == parts[3]
    assert repairable(known, view(160, 400), none) == parts[5], "the disk has half of the first one"
    assert repairable(known, view(0, 400), frozenset({parts[3].name})) == parts[5]
    assert repairable(known, view(300, 400), none) is None
    assert repairable(state(*parts), view(0, 400), none) is None


def test_the_manifest_names_damaged_parts_until_they_leave() -> None:
    first = State().next(
        Change(base=(0, (EpochStart(1, 0),)), added=(part(0, 50), part(50, 100))), owner=Owner(1, "u"),
        segment_size=1_000, epochs=(), at_ms=1,
    )  # fmt: skip
    second = marked(first, "0-50", "gone")
    assert second.damaged == {"0-50"}
    assert follow(first, encode(second, Change(damaged=("0-50", "gone")), ())) == second
    third = second.next(
        Change(added=(part(0, 50)._replace(name="new"),), removed=("0-50",)), owner=Owner(1, "u"), segment_size=1_000,
        epochs=(), at_ms=1,
    )  # fmt: skip
    assert third.damaged == frozenset()


def test_what_is_left_of_a_verification() -> None:
    found = Verification(1, 1, 1, 1, 1, 1, 3, ("a/0-50: bad", "a/gone: bad"), ("0-50", "gone"))
    known = state(part(0, 50), part(50, 100))
    assert faults_left(found, known) == (2, "a/0-50: bad"), "one of the three is not named, so it still counts"
    assert faults_left(found, marked(known, "50-100")) == (3, "a/0-50: bad")
    assert faults_left(None, marked(known, "50-100")) == (1, "50-100 cannot be read back")
    assert faults_left(None, known) == (0, "")
    old = Verification(1, 1, 1, 1, 1, 1, 2, ("bad",))
    assert faults_left(old, known) == (2, "bad"), "written before results had names"
