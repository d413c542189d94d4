"""The table remembers what it found last: it answers as one that remembers nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gantry_broker.archive.manifest import Part
from gantry_broker.archive.queue_index import QueueIndex
from gantry_broker.archive.segment import Directory, Piece


def part(rng: random.Random) -> tuple[Part, Directory]:
    """An object of some 10 places in a log of 200, whose records of two queues may overlap those of other objects."""
    start = rng.randrange(0, 200, 10)
    end = start + rng.choice((10, 20))
    queues = {
        ("T", queue): Piece(max(start // 2 + rng.randint(-6, 6), 0), rng.randint(1, 12), rng.randint(1, 99), 9, 1)
        for queue in (0, 1)
        if rng.random() < 0.8
    }
    made = Part(f"{start}-{end}-{rng.random()}", start, end, 1, 1_000, "", 1, start, end)
    return made, Directory(start, end, 64, 1, start, end, (), (), queues)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_remembered_is_what_the_table_says(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    index, other = QueueIndex(tmp_path / "index.db"), QueueIndex(tmp_path / "index.db")
    index.open()
    for _ in range(30):
        if rng.random() < 0.2:
            index.remove(rng.sample(range(0, 200, 10), 2))
        else:
            index.add(*part(rng))
        other.open()  # It remembers nothing.
        for _ in range(30):
            queue, number, place = rng.randrange(2), rng.randrange(120), rng.randrange(0, 200, 10)
            assert index.at_or_behind("T", queue, number) == other._look("T", queue, number)[0]
            assert index.part(place) == other._outlined("WHERE start = ?", place)
    index.close()
    other.close()
