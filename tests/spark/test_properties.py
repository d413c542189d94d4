"""The properties of many records against the broker's own parser, also for bytes that no client should send."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from gantry_broker.protocol.message import parse_properties
from gantry_spark import properties
from gantry_spark.properties import parse_properties as parse_many
from hypothesis import given, settings
from hypothesis import strategies as st

pieces = st.lists(
    st.sampled_from(
        [b"KEYS", b"TAGS", b"KEY", b"KEYSS", b"a", b"K", b"\x01", b"\x02", b"\x01\x02", b"v" * 31, b"v" * 32, b"w" * 80]
    ),
    max_size=12,
).map(b"".join)
usual = st.lists(
    st.tuples(st.sampled_from([b"KEYS", b"TAGS", b"x"]), st.binary(max_size=40).map(lambda v: v.replace(b"\x02", b"")))
).map(lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs))


@settings(max_examples=400, deadline=None)
@given(records=st.lists(pieces | usual, max_size=30), gap=st.integers(0, 3))
def test_values_and_maps_are_those_of_the_broker(records: list[bytes], gap: int) -> None:
    buf = np.frombuffer(b"".join(b"\x02" * gap + r for r in records) + b"KEYS\x01", dtype=np.uint8)
    lengths = [len(r) for r in records]
    at = [end - n for end, n in zip(accumulate(n + gap for n in lengths), lengths, strict=True)]
    found = parse_many(buf, np.array(at, dtype=np.int64), np.array(lengths, dtype=np.int64))
    expected = [parse_properties(r) for r in records]
    for name in ("KEYS", "TAGS", "K", "none"):
        assert found.values(name).to_pylist() == [e.get(name) for e in expected]
    assert [dict(m) for m in found.maps().to_pylist()] == expected


@settings(max_examples=100, deadline=None)
@given(records=st.lists(pieces | usual, max_size=30), piece=st.integers(1, 12))
def test_a_name_across_search_blocks_is_found(records: list[bytes], piece: int) -> None:
    buf = np.frombuffer(b"".join(records), dtype=np.uint8)
    lengths = np.array([len(r) for r in records], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(properties, "_PIECE", piece)
        found = parse_many(buf, np.cumsum(lengths) - lengths, lengths).values("KEYS").to_pylist()
    assert found == [parse_properties(r).get("KEYS") for r in records]
