"""Each file of a store's config folder, damaged: the broker starts with all it had, or refuses in words."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from gantry_broker.replication.identity import StateError
from gantry_broker.store.errors import StoreError

from tests.broker.conftest import Bench

Damage = Callable[[bytes, random.Random], bytes]


def flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]


KINDS: Final[dict[str, Damage]] = {
    "empty": lambda data, rng: b"",
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "zeros": lambda data, rng: bytes(len(data)),
    "flipped": flipped,
    "array": lambda data, rng: b"[1]",
    "object": lambda data, rng: b"{}",
    "text": lambda data, rng: b'"x"',
    "null": lambda data, rng: b"null",
    "nested": lambda data, rng: b"[" * 5_000,
    "not UTF-8": lambda data, rng: b'{"a":"\xff"}',
}
ALWAYS: Final = ("empty", "cut", "flipped", "object")
NAMES: Final = (
    "replica.json", "epochs.json", "recoveryPoint.json", "queueEnds.json", "topics.json", "subscriptionGroup.json",
    "consumerOffset.json", "delayOffset.json", "gantryTables.json",
)  # fmt: skip


def of(bench: Bench) -> tuple[dict[str, int], set[str], object]:
    """The messages of each topic, the topics and the offsets of the groups."""
    queues = {topic: sum(bench.store.reader.max_offset(topic, n) for n in range(4)) for topic in ("T", "H")}
    tables = bench.broker.meta.working
    return queues, {"T", "H"} & set(tables.topics), dict(tables.offsets)


@pytest.fixture
async def written(tmp_path: Path) -> tuple[Path, object]:
    bench = Bench(tmp_path / "written")
    await bench.lead()
    for topic in ("T", "T", "H"):
        assert (await bench.send(b"x", topic)).code == 0
    bench.parts.snapshots.save_now()
    found = of(bench)
    await bench.close()
    return tmp_path / "written", found


def damaged(root: Path, written: Path) -> Iterator[tuple[str, Path, bytes]]:
    """Copies of the store, each with one file that is damaged in one way."""
    rng = random.Random(11)
    for name in NAMES:
        whole = (written / "store" / "config" / name).read_bytes()
        others = [kind for kind in KINDS if kind not in ALWAYS]
        for kind in (*ALWAYS, rng.choice(others)):
            place = root / f"{name}-{kind}".replace(" ", "-")
            shutil.copytree(written, place)
            (place / "store" / "config" / name).write_bytes(KINDS[kind](whole, rng))
            yield name, place, whole


async def test_a_damaged_file_loses_nothing_and_is_said(
    tmp_path: Path, written: tuple[Path, object], caplog: pytest.LogCaptureFixture
) -> None:
    refused = started = 0
    for name, place, whole in damaged(tmp_path, written[0]):
        caplog.clear()
        file = place / "store" / "config" / name
        try:
            bench = Bench(place)
        except StoreError as error:
            bench = None
            said = str(error)
        if bench is not None:
            try:
                bench.broker.replay.start(place / "store" / "config")
                await bench.lead()
            except StateError as error:
                said = str(error)
            else:
                said = ""
                assert of(bench) == written[1], place.name
                assert (await bench.send(b"y", "T")).code == 0, place.name
                started += 1
                if file.read_bytes() != whole and name not in ("recoveryPoint.json", "replica.json"):
                    assert name in caplog.text or "queue" in caplog.text or name == "queueEnds.json", place.name
            await bench.close()
        if said:
            refused += 1
            assert str(file) in said, place.name
            assert "restore the file" in said, place.name
            assert "Error" not in said, f"no Python exception as a text: {said}"
        shutil.rmtree(place)
    assert refused >= 8
    assert started >= 30
