"""Any content of an object, as a program with access to the bucket may write it: named as damaged, in little memory."""

from __future__ import annotations

import contextlib
import copy
import os
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from gantry_broker.archive import chain, restore
from gantry_broker.archive.chain import Archive, Identity
from gantry_broker.archive.errors import ArchiveError, Damaged
from gantry_broker.archive.inspection import prune
from gantry_broker.archive.manifest import MAX_ENTRY, MAX_PART, WHOLE_EVERY, follow
from gantry_broker.archive.numbers import MAX_LISTS
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.segment import _FOOTER, FOOTER_SIZE, MAGIC, MAX_HOLE, RangeReader
from gantry_broker.archive.tiered import TieredLog
from gantry_broker.archive.verified import Verification

from tests.archive.test_tiered import Tiers, filled
from tests.archive.test_topic_restore import Log

Place = tuple[str | int, ...]
BEYOND = (2**63, 2**64 - 1)
"""What JSON and Python can say and a database, a file's offset or an object store's client cannot."""


def changed(value: Any, place: Place, to: Any) -> Any:
    """Return a copy with another value at a place."""
    made = copy.deepcopy(value)
    inner = made
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = to
    return made


def with_directory(data: bytes, directory: bytes) -> bytes:
    """Return the object with another directory, whose checksum is right."""
    at, _, _, version, flags, start, _ = _FOOTER.unpack(data[-FOOTER_SIZE:])
    stored = zstandard.ZstdCompressor().compress(directory)
    return data[:at] + stored + _FOOTER.pack(at, len(stored), zlib.crc32(stored), version, flags, start, MAGIC)


def directory_of(data: bytes) -> Any:
    at, size, *_ = _FOOTER.unpack(data[-FOOTER_SIZE:])
    return orjson.loads(zstandard.ZstdDecompressor().decompress(data[at : at + size]))


def reader_of(data: bytes) -> RangeReader:
    return RangeReader("object", len(data), lambda at, size: data[at : at + size])


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Tiers:
    return filled(tmp_path_factory.mktemp("tiers"))


NUMBERS: list[Place] = [
    *((name,) for name in ("start", "end", "segmentSize", "records", "firstMs", "lastMs")),
    *(("blocks", 0, column) for column in range(7)),
    *(("queues", 0, column) for column in range(1, 7)),
    *(("keys", column) for column in range(4)),
]


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: "-".join(map(str, place)))
def test_a_number_of_a_directory_has_a_range(tiers: Tiers, place: Place) -> None:
    data = tiers.objects.objects[f"groups/a/parts/{tiers.state.parts[1].name}"]
    whole = directory_of(data)
    for number in BEYOND:
        with pytest.raises(Damaged):
            reader_of(with_directory(data, orjson.dumps(changed(whole, place, number)))).directory()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("queues", 0, 2), 2**63 - 1),  # the first offset: what follows would be no offset
        (("queues", 0, 3), MAX_HOLE + 1),
        (("queues", 0, 4), 1 << 40),  # behind the object
        (("blocks", 0, 3), 1 << 40),  # its size: as much would be read at once
        (("keys", 0), 1 << 40),
        (("queues", 0, 1), 2**31),
    ],
)
def test_a_directorys_parts_are_within_the_object(tiers: Tiers, place: Place, value: int) -> None:
    data = tiers.objects.objects[f"groups/a/parts/{tiers.state.parts[1].name}"]
    with pytest.raises(Damaged):
        reader_of(with_directory(data, orjson.dumps(changed(directory_of(data), place, value)))).directory()


@pytest.mark.parametrize("field", ["epochs", "blocks", "queues"])
def test_a_small_object_does_not_become_a_large_directory(tiers: Tiers, field: str) -> None:
    data = tiers.objects.objects[f"groups/a/parts/{tiers.state.parts[1].name}"]
    whole = orjson.dumps({**directory_of(data), field: []})
    bomb = whole.replace(f'"{field}":[]'.encode(), f'"{field}":[{"[]," * 8_000_000}[]]'.encode())
    made = with_directory(data, bomb)
    assert len(made) < 2 * len(data) + (1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match=f"the limit is {MAX_LISTS}"):
            reader_of(made).directory()
        assert tracemalloc.get_traced_memory()[1] < 3 * len(bomb)
    finally:
        tracemalloc.stop()


def test_a_directory_of_another_object_is_not_taken_for_its_own(tiers: Tiers, tmp_path: Path) -> None:
    """Messages of the object would seem never to have been."""
    parts = tiers.state.parts
    names = [f"groups/a/parts/{part.name}" for part in parts[:2]]
    before = dict(tiers.objects.objects)
    try:
        tiers.objects.objects[names[0]] = before[names[1]]
        log = TieredLog(tiers.archive.group("a"), tmp_path, 1 << 20)
        log.open()
        log.refresh(tiers.state, 3 * 65_536, {})
        lost = next(r for r in tiers.model if r.topic == "A" and r.phys_offset < parts[0].end)
        with pytest.raises(Damaged):
            log.get("A", lost.queue_id, lost.queue_offset, tiers.below("A", lost.queue_id), 32, 1 << 20)
        log.close()
    finally:
        tiers.objects.objects.clear()
        tiers.objects.objects.update(before)


def entry(tiers: Tiers) -> dict[str, Any]:
    """The first entry of the manifest that adds parts, as the state that its number makes a reader take."""
    names = sorted(name for name in tiers.objects.objects if "/manifest/" in name)
    values = [orjson.loads(tiers.objects.objects[name]) for name in names]
    found: dict[str, Any] = next(value for value in values if value["added"])
    del found["crc"]
    part = found["added"][0]
    whole = {
        "n": WHOLE_EVERY, "owner": [1, "u"], "segmentSize": found["segmentSize"], "epochs": [[1, 0]], "base": part[1],
        "parts": [part], "gaps": [], "atMs": 1, "closed": "",
    }  # fmt: skip
    return {**found, "n": WHOLE_EVERY, "whole": whole}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("whole", "parts", 0, column), number) for column in (1, 2, 3, 4, 6, 7, 8) for number in BEYOND),
        (("whole", "parts", 0, 4), MAX_PART + 1),
        (("whole", "parts", 0, 0), ".."),
        (("whole", "parts", 0, 0), "a\0b"),
        (("whole", "parts", 0, 0), "x" * 300),
        (("whole", "parts", 0, 5), "\x1b[2J"),
        (("whole", "segmentSize"), 1),  # A restore would make a file for each byte.
        (("whole", "segmentSize"), 2**40),
        (("whole", "base"), 2**63),
        (("whole", "atMs"), 2**63),
        (("whole", "closed"), "\x1b]0;x\x07"),
        (("whole", "owner"), [2**63, "u"]),
        (("whole", "gaps"), [[0, 2**64 - 1, "x"]]),
        (("whole", "gaps"), [[1, 2, "\x1b[31m"]]),
        (("whole", "epochs"), [[2**60, 0]]),
    ],
)
def test_a_value_of_a_manifest_has_a_range(tiers: Tiers, place: Place, value: Any) -> None:
    good = entry(tiers)
    assert follow(None, orjson.dumps(good)).parts
    with pytest.raises(ArchiveError):
        follow(None, orjson.dumps(changed(good, place, value)))


@pytest.mark.parametrize("field", ["uid", "cluster", "reason", "token", "keyId"])
def test_an_identity_has_no_control_characters(field: str) -> None:
    name = "identity/00000001.json"
    value = orjson.loads(Identity(1, "u", "c", 1).to_json())
    del value["crc"]  # As in a former version.
    assert Identity.from_json(name, orjson.dumps(value)).uid == "u"
    with pytest.raises(Damaged):
        Identity.from_json(name, orjson.dumps({**value, field: "\x1b[2J"}))


def test_each_flipped_bit_of_an_object_with_a_crc_is_found(tiers: Tiers) -> None:
    """It changes nothing, or the object is damaged."""
    identity = Identity(1, "u", "c", 1, token="t").to_json()
    names = sorted(name for name in tiers.objects.objects if "/manifest/" in name)
    first = tiers.objects.objects[names[0]]
    result = Verification(1, 2, 3, 4, 5, 6, 1, ("a fault",), ("a",)).to_json()
    reads: list[tuple[bytes, Callable[[bytes], object]]] = [
        (identity, lambda data: Identity.from_json("identity/00000001.json", data)),
        (first, lambda data: follow(None, data)),
        (result, lambda data: Verification.from_json("result", data)),
    ]
    for good, read in reads:
        assert b',"crc":' in good[-20:]
        wanted = read(good)
        for at in range(len(good)):
            for bit in range(8):
                data = bytearray(good)
                data[at] ^= 1 << bit
                with contextlib.suppress(ArchiveError):
                    assert read(bytes(data)) == wanted, (at, bit)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("identity/00000001.json", lambda archive: archive.identity()),
        ("groups/a/manifest/000000000001.json", lambda archive: archive.group("a").load()),
        ("groups/a/verified/0000000000000001.json", lambda archive: archive.group("a").last_verification()),
    ],
)
def test_an_object_that_is_too_large_is_not_read(tmp_path: Path, name: str, read: Callable[[Archive], object]) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, MAX_ENTRY + (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="the limit is"):
            read(Archive(ObjectStore(Location(tmp_path.as_uri()))))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_object_that_grew_is_not_read_for_a_restore(tiers: Tiers, tmp_path: Path) -> None:
    name = f"groups/a/parts/{tiers.state.parts[0].name}"
    before = tiers.objects.objects[name]
    try:
        tiers.objects.objects[name] = before + bytes(1 << 20)
        with pytest.raises(Damaged):
            restore.restore(tiers.archive.group("a"), tiers.state, restore.Target(), tmp_path / "store")
    finally:
        tiers.objects.objects[name] = before


def test_a_manifest_that_no_reader_would_take_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    monkeypatch.setattr(chain, "MAX_ENTRY", 8_000)

    def grow() -> None:
        for _ in range(WHOLE_EVERY):
            log.put("T", 0, 150)
            log.upload()

    with pytest.raises(ArchiveError, match="the limit is 8000: remove old ones with `gantry archive prune"):
        grow()
    group = log.archive.group("a")
    state = group.load()
    assert len(state.parts) > 20
    log.archive.objects.now_ms = 2 * log.now  # type: ignore[attr-defined]
    prune(log.archive, group, state, 0, 2 * log.now)
    log.upload()
    assert group.load().end == log.store.log.end
