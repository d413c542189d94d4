"""Many cursors find the boundaries that a single walk finds, for every input."""

from __future__ import annotations

import random

import pytest
from gantry_broker.protocol.message import MAGIC_V1, MAGIC_V2
from gantry_spark.layout import MIN_RECORD
from gantry_spark.record_boundaries import find_record_boundaries
from hypothesis import given, settings
from hypothesis import strategies as st


def single_walk(buf: bytes, filled: int, stop: int) -> tuple[list[int], int]:
    starts = []
    at = 0
    while at < stop and at + MIN_RECORD <= filled:
        size = int.from_bytes(buf[at : at + 4], "big", signed=True)
        if size < MIN_RECORD or at + size > filled:
            break
        starts.append(at)
        at += size
    return starts, at


def block(rng: random.Random, records: int, spread: int, traps: float, breaks: float) -> bytearray:
    """Return records of random bytes. `traps`: share with a size and a magic inside. `breaks`: share with a wrong
    size.
    """
    out = bytearray()
    for _ in range(records):
        size = MIN_RECORD + (rng.randrange(spread) if rng.random() < 0.5 else spread)
        record = bytearray(rng.randbytes(size))
        record[:8] = size.to_bytes(4, "big") + rng.choice([MAGIC_V1, MAGIC_V2]).to_bytes(4, "big")
        if rng.random() < traps:
            at = rng.randrange(8, size - 8)
            lie = rng.choice([0, MIN_RECORD, size - at, rng.randrange(3 * size), 2**31 - 1, 2**32 - 1])
            record[at : at + 8] = lie.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big")
        if rng.random() < breaks:
            record[:4] = rng.choice([rng.randbytes(4), (MIN_RECORD + rng.randrange(3 * spread)).to_bytes(4, "big")])
        out += record
    return out


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    records=st.integers(0, 300),
    spread=st.sampled_from([20, 200, 2000]),
    traps=st.sampled_from([0.0, 0.2, 1.0]),
    breaks=st.sampled_from([0.0, 0.02, 0.2]),
    single_walk_records=st.sampled_from([0, 20, 100]),
    cut=st.floats(0, 1),
    stop=st.floats(0, 2),
)
def test_cursors_find_what_a_single_walk_finds(
    seed: int, records: int, spread: int, traps: float, breaks: float, single_walk_records: int, cut: float, stop: float
) -> None:
    rng = random.Random(seed)
    buf = block(rng, records, spread, traps, breaks)
    filled = len(buf) - int(cut * min(len(buf), 100))
    until = int(stop * filled)
    starts, after = find_record_boundaries(buf, filled, until, single_walk_records)
    assert (starts.tolist(), after) == single_walk(buf, filled, until)


@pytest.mark.parametrize("traps", [0.0, 1.0])
def test_a_block_of_many_records(traps: float) -> None:
    buf = block(random.Random(1), 6000, 400, traps, 0.0)
    starts, after = find_record_boundaries(buf, len(buf), len(buf))
    assert (starts.tolist(), after) == single_walk(buf, len(buf), len(buf))
    assert len(starts) == 6000


def test_records_longer_than_the_first_ones() -> None:
    rng = random.Random(2)
    buf = block(rng, 100, 20, 0.0, 0.0) + block(rng, 300, 20_000, 0.1, 0.0) + block(rng, 3000, 20, 0.0, 0.0)
    for view in (buf, memoryview(buf).toreadonly()):
        starts, after = find_record_boundaries(view, len(buf), len(buf), 100)
        assert (starts.tolist(), after) == single_walk(buf, len(buf), len(buf))
