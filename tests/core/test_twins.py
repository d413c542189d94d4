"""Both bodies of the core do the same: on seeded, mutated buffers, on what hypothesis finds, and in a real store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.message import BatchItem, encode_batch, java_hash
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import append
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import PlainBatch, StoreConfig
from gantry_core import _python as python
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import twins
from tests.core.bodies import BODIES, body_of

COUNT = 40_000
"""The night has a million: docs/testing.md."""


@pytest.fixture(scope="module")
def rust() -> Any:
    return body_of("rust")


def test_mutated_buffers_give_equal_bytes_or_the_same_error(rust: Any) -> None:
    for seed in range(COUNT):
        assert not (said := twins.difference(seed, rust)), said


def test_the_inputs_reach_every_outcome() -> None:
    """Comparing is worth what it compares: plain batches and refused ones, records and ends of segments."""
    plain = made = ends = refused = 0
    for seed in range(0, 4_000, 2):
        (checked, records, *_), _ = twins.compare_batches(random.Random(seed), python)
        plain += isinstance(checked, tuple)
        made += isinstance(records, tuple) and bool(records[0]) and bool(records[2])
        ends += records is None
        refused += records is ValueError
    assert min(plain, made, ends, refused) > 100, (plain, made, ends, refused)
    whole = stopped = runs = 0
    for seed in range(2_000):
        ((at, found, keys, *_), *_), _ = twins.compare_records(random.Random(seed), python)
        whole += bool(at and keys)
        stopped += not at
        runs += len(found) > 2
    assert min(whole, stopped, runs) > 100, (whole, stopped, runs)


def test_the_sends_reach_every_outcome() -> None:
    several = batches = unusual = compact = placed = ends = refused = 0
    for seed in range(5_000):
        (split, made, *_), _ = twins.compare_sends(random.Random(seed), python)
        several += isinstance(split, tuple) and split[1] > 1 and len(split[5]) > 1 and len(split[7]) > 2
        batches += isinstance(split, tuple) and split[1] > split[2]
        unusual += split is None
        compact += isinstance(split, tuple) and any(split[11][at + 12] & 1 for at in range(0, len(split[11]), 19))
        placed += isinstance(made, tuple) and bool(made[1])
        ends += split is not None and made is None
        refused += made is ValueError
    assert min(several, batches, unusual, compact, placed, ends, refused) > 50, (
        several,
        batches,
        unusual,
        compact,
        placed,
        ends,
        refused,
    )


def test_the_reads_reach_every_outcome() -> None:
    several = named = whole = outside = apart = 0
    for seed in range(2_000):
        (wanted, data, near, is_named, is_whole), _ = twins.compare_reads(random.Random(seed), python)
        several += isinstance(wanted, tuple) and wanted[0] > 2
        named += bool(is_named and data)
        whole += bool(is_whole and data)
        outside += data is ValueError
        apart += 1 < len(near) < wanted[0]
    assert min(several, named, whole, outside, apart) > 30, (several, named, whole, outside, apart)


def test_the_rows_reach_every_outcome() -> None:
    several = stopped = nulls = outside = 0
    for seed in range(1_500):
        (made, _, texts, maps), _ = twins.compare_rows(random.Random(seed), python)
        several += len(made[1]) > 96 * 3
        stopped += not made[1]
        nulls += isinstance(texts[0], tuple) and 0 < texts[0][0] < len(made[1]) // 96
        outside += maps is ValueError
    assert min(several, stopped, nulls, outside) > 50, (several, stopped, nulls, outside)


def test_the_signatures_reach_every_outcome() -> None:
    found = [twins.compare_signed(random.Random(seed), python)[0][1] for seed in range(600)]
    assert found.count(True) > 100
    assert found.count(False) > 100


@pytest.mark.parametrize("body", BODIES)
def test_the_hash_of_a_key_is_javas(body: str) -> None:
    rng, hashed = random.Random(5), body_of(body).key_hash
    alphabet = "0123456789ABCDEFabcxyz-_%größe😀"
    for topic in ("T", "%RETRY%group", "Ünïcode"):
        for _ in range(2_000):
            size = rng.choice((1, 2, 3, 4, 19, 20, 21, 32, 84, 85, 300))
            key = "".join(rng.choices(alphabet[: rng.choice((16, 22, 30))], k=size))
            value = abs(java_hash(f"{topic}#{key}"))
            assert hashed(topic, key) == (0 if value == 1 << 31 else value)
    # In Java, abs() of the smallest number is itself; such a key counts as 0.
    assert java_hash("orders#YZjajfr") == -(1 << 31)
    assert hashed("orders", "YZjajfr") == 0
    with pytest.raises(ValueError, match="surrogates"):
        hashed("T", "\ud83d")


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet='\0\x01\x02 aTAGSKEYUNIQ_WAITtrue\n"\\é\U0001f600', max_size=80),
    st.dictionaries(st.sampled_from(twins._NAMES), st.text(alphabet="0129trufalse-ä\x7f", max_size=12), max_size=3),
    st.booleans(),
)
def test_sends_that_hypothesis_makes(rust: Any, text: str, others: dict[str, str], compact: bool) -> None:
    plain = random.Random(1)
    fields = {**twins.send_fields(plain), "properties": text, **others}
    data = twins.send_frame(random.Random(3 if compact else 4), fields, b"body") * 2
    found = [
        twins.outcome(
            one.SendRules(*twins.SEND_RULES, 30_000, 20, 50, 65_536, 16_384, 1 << 20, 9, 40).split, data, 9, twins.HOST
        )
        for one in (python, rust)
    ]
    assert found[0] == found[1]


def test_a_header_of_brackets_is_no_plain_send(rust: Any) -> None:
    """As many as a header may have: deeper than the interpreter's stack."""
    header = b'{"code":310,"x":' + b"[" * 16_000
    data = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    for one in (python, rust):
        rules = one.SendRules(*twins.SEND_RULES, 30_000, 20, 50, 65_536, 16_384, 1 << 20, 9, 40)
        assert rules.split(data, 9, twins.HOST) is None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=40), st.text(alphabet="\0\x01\x02 aTAGSKEYUNIQ_é\U0001f600", max_size=60))),
    st.integers(0, 5_000),
)
def test_batches_that_hypothesis_makes(rust: Any, items: list[tuple[bytes, str]], room: int) -> None:
    body = encode_batch(BatchItem(one, text.encode()) for one, text in items)
    place = (1, 2, 3, room, 100, 0, 4, twins.HOST, 5, twins.HOST, 7)
    found = [
        (
            twins.outcome(one.BatchRules(twins.SPECIAL, 9, 20, 100, 5, 20).check, body),
            twins.outcome(one.batch_records, body, b"CLUSTER\x01c", "T", 0xDAA320A7, *place),
        )
        for one in (python, rust)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("seed", range(12))
def test_a_store_has_the_same_files_by_batches_and_message_by_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, seed: int
) -> None:
    """Log, queues and index, across ends of segments, confirmed in pieces and after a truncation."""
    monkeypatch.setattr(append, "batch_records", body_of(body).batch_records)
    shape = BrokerSettings(
        mappedFileSizeCommitLog=65_536, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=100, maxIndexNum=400
    )
    stores = [MessageStore.open(StoreConfig(tmp_path / name, shape)) for name in ("batches", "rows")]
    rng = random.Random(seed)
    rules = python.BatchRules((), len(twins.SUFFIX), 1000, 30_000, 1000, 4000)
    together = 0
    for now in range(1_000_000, 1_000_150):
        read: list[PlainBatch] = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            encoded = twins.batch_body(rng)
            if (counts := rules.check(encoded)) is not None:
                topic, queue = rng.choice(("T", "orders", "x" * 128)), rng.randrange(3)
                read.append(PlainBatch(topic, queue, 0, 5, twins.HOST, encoded, twins.SUFFIX, counts[0]))
        if not read:
            continue
        first, second = stores
        placed = first.appender.put_batches(read, now)
        singles = second.appender.put_rows([row for one in read for row in append.rows_of_batch(one)], now)
        assert [(one.queue_offset, python.entry_sizes(one.entries)) for one in placed] == [
            (singles[at].queue_offset, [where.size for where in singles[at : at + one.messages]])
            for at, one in zip(starts(read), read, strict=True)
        ]
        together += len(placed)
        assert first.log.end == second.log.end
        kind = rng.randrange(4)
        within = [where.phys_offset for where in singles]
        target = rng.choice((first.log.end, rng.choice(within)))
        for store in stores:
            if kind == 0:
                store.indexer.confirm(target)
            elif kind == 1 and target >= store.state.confirmed:
                store.truncator.truncate(target)
    assert together > 100
    assert stores[0].log.end > 2 * 65_536, "segments ended"
    files = []
    for store in stores:
        store.indexer.confirm(store.log.end)
        store.close()
        root = store.config.path
        found = {}
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if path.is_file() and name.parts[0] in ("commitlog", "consumequeue", "index"):
                found[name.parts[0] if name.parts[0] == "index" else str(name)] = path.read_bytes()
        files.append(found)
    assert files[0].keys() == files[1].keys()
    assert [name for name in files[0] if files[0][name] != files[1][name]] == []


def starts(read: list[PlainBatch]) -> list[int]:
    at, found = 0, []
    for one in read:
        found.append(at)
        at += one.messages
    return found
