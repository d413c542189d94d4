"""Files that people and other programs leave in an archive's place: they stop no backup, and nothing removes them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from gantry_broker.archive.chain import MAX_STRANGERS, Archive
from gantry_broker.archive.errors import Damaged
from gantry_broker.archive.objects import ObjectStore

from tests.archive.s3 import server as server
from tests.archive.test_objects import store as store
from tests.archive.test_topic_restore import Log
from tests.archive.test_verifying import filled

STRANGERS = [
    "identity/.DS_Store",
    "identity/note.txt",
    "identity/former/00000009.json",
    "identity/0000000009.json",
    "identity/00000000.json",
    *(f"groups/a/{folder}/{name}" for folder in ("manifest", "parts", "clock", "verified") for name in (
        ".DS_Store", "note.txt", "000000000001 (copy).json", "old/000000000099.json", "zzz")),
    "groups/.DS_Store",
    "groups/note.txt",
    "groups/a/note.txt",
    "groups/~b/manifest/000000000001.json",
    "note.txt",
]  # fmt: skip
FAR_MS = 1 << 50


def again(log: Log) -> None:
    """Go on as a member that has just started, with a later log."""
    known = log.archive.group("a").load().end
    log.archiver._state = log.archiver._owner = None
    log.put("T", 0, 50)
    log.upload()
    assert log.archive.group("a").load().end == log.store.log.end > known


def test_strangers_stop_nothing_and_stay(store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path / "log", Archive(store))
    for name in STRANGERS:
        store.create(name, b"not ours")
    with caplog.at_level(logging.WARNING):
        again(log)
        again(log)
    for name in ("identity/note.txt", "groups/a/manifest/.DS_Store"):
        assert [r.getMessage() for r in caplog.records].count(
            f"the archive: {name!r} is none of its objects, and is ignored"
        ) == 1, "once"
    archive = Archive(store)
    group = archive.group("a")
    assert archive.groups() == ["a"]
    assert group.last_verification() is None
    assert group.orphans(group.load(), FAR_MS) == []
    group.forget_clocks(FAR_MS)
    group.forget_entries(FAR_MS)
    assert group.load() == log.archive.group("a").load()
    for name in STRANGERS:
        assert store.get(name, 100) == b"not ours"


@pytest.mark.parametrize("name", ["identity/00000002.json", "groups/a/manifest/000000000999.json"])
def test_what_has_a_name_of_the_archives_own_counts(store: ObjectStore, tmp_path: Path, name: str) -> None:
    log = filled(tmp_path / "log", Archive(store))
    store.create(name, b"not ours")
    log.archiver._state = log.archiver._owner = None
    with pytest.raises(Damaged):
        log.upload()


def test_names_of_strangers_take_no_memory_without_bound(store: ObjectStore) -> None:
    for number in range(MAX_STRANGERS + 20):
        store.create(f"identity/{number} of mine", b"")
    archive = Archive(store)
    assert archive.identity() is None
    assert len(archive._strangers) == MAX_STRANGERS
