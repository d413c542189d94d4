"""Appends of a leader: bytes, queue offsets, all or nothing."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import SCHEDULE_TOPIC, GetStatus
from gantry_broker.protocol.message import MAGIC_BLANK, decode_record, encode_record, pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import FlushFailed, MessageTooLarge
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("10.1.2.3", 50_000)
HOST_V6 = pack_host("2001:db8::7", 50_000)


def message(topic: str = "Orders", queue_id: int = 0, body: bytes = b"hello", **more: object) -> Put:
    fields: dict[str, object] = {"flag": 0, "sys_flag": 0, "born_ms": 5, "born_host": HOST, "properties": b""}
    return Put(topic=topic, queue_id=queue_id, body=body, **{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def store(quick_dir: Path, small: BrokerSettings) -> Iterator[MessageStore]:
    made = MessageStore.open(StoreConfig(quick_dir / "store", small))
    yield made
    made.close(clean=False)


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_stored_bytes_equal_the_encoding_of_the_protocol_module(
    quick_dir: Path, small: BrokerSettings, host: str
) -> None:
    rng = random.Random(1)
    store = MessageStore.open(StoreConfig(quick_dir / "s", small, store_host=(host, 10911)))
    numbers: dict[str, int] = {}
    for _ in range(300):
        put = message(
            topic=rng.choice(("A", "Ünïcode", "%RETRY%" + "g" * 200)),
            body=rng.randbytes(rng.choice((0, 1, 500))),
            properties=rng.choice((b"", b"KEYS\x01k\x02", b"x\x01" + b"y" * 3_000)),
            born_host=rng.choice((HOST, HOST_V6)),
            flag=rng.randrange(-5, 5),
            sys_flag=rng.choice((0, 1, 769, 8)),
            born_ms=rng.randrange(10**13),
            reconsume_times=rng.randrange(16),
            prepared_offset=rng.randrange(10**6),
        )
        at = store.log.end
        (stored,) = store.appender.put([put], 77)
        number = numbers.get(put.topic, 0)
        numbers[put.topic] = number + 1
        expected = encode_record(
            topic=put.topic.encode(),
            body=put.body,
            properties=put.properties,
            queue_id=0,
            flag=put.flag,
            queue_offset=number,
            phys_offset=stored.phys_offset,
            sys_flag=put.sys_flag,
            born_ms=put.born_ms,
            born_host=put.born_host,
            store_ms=77,
            store_host=pack_host(host, 10911),
            reconsume_times=put.reconsume_times,
            prepared_offset=put.prepared_offset,
        )
        assert store.log.read_raw(stored.phys_offset, 1) == expected
        assert stored.size == len(expected)
        assert stored.phys_offset == at or stored.phys_offset % 65_536 == 0
    store.close(clean=False)


def test_a_record_that_does_not_fit_the_segment_begins_the_next_one(store: MessageStore) -> None:
    sizes = [store.appender.put([message(body=b"x" * 20_000)] * 2, 1) for _ in range(4)]
    offsets = [stored.phys_offset for batch in sizes for stored in batch]
    assert all(
        stored.phys_offset // 65_536 == (stored.phys_offset + stored.size + 7) // 65_536 for b in sizes for stored in b
    )
    assert [offset for offset in offsets if offset and offset % 65_536 == 0] == [65_536, 131_072]
    filler_at = offsets[2] + sizes[0][0].size
    filler = store.log.read_raw(filler_at, 1)
    assert filler == (65_536 - filler_at).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(len(filler) - 8)
    assert [r.phys_offset for r in store.reader.walk(0, store.log.end)] == offsets


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (message(body=b"x" * 65_500), MessageTooLarge),
        (message(properties=b"p" * 32_768), MessageTooLarge),
        (message(topic="a/b"), ValueError),
        (message(topic=".."), ValueError),
        (message(topic=""), ValueError),
        (message(queue_id=-1), ValueError),
        (message(queue_id=1 << 31), ValueError),
        (message(flag=1 << 40), ValueError),
    ],
    ids=lambda value: "" if isinstance(value, type) else f"{value.topic}-{value.queue_id}-{len(value.body)}",
)
def test_a_batch_with_one_impossible_message_leaves_nothing(
    store: MessageStore, wrong: Put, error: type[Exception]
) -> None:
    store.appender.put([message()], 1)
    end = store.log.end
    with pytest.raises(error):
        store.appender.put([message(), message(queue_id=1), wrong], 1)
    assert store.log.end == end
    assert store.queues.next_offset("Orders", 0) == 1
    assert store.queues.next_offset("Orders", 1) == 0
    assert [s.queue_offset for s in store.appender.put([message(), message(queue_id=1)], 1)] == [1, 0]
    assert len(list(store.reader.walk(0, store.log.end))) == 3


def test_half_messages_and_rollbacks_have_no_queue_entry(store: MessageStore) -> None:
    stored = store.appender.put([message(sys_flag=s, keys=("k",)) for s in (0, 4, 8, 12, 1)], 1)
    assert [s.queue_offset for s in stored] == [0, 0, 1, 0, 2]
    store.indexer.confirm(store.log.end)
    assert store.reader.max_offset("Orders", 0) == 3
    half, _, rollback = stored[1], stored[2], stored[3]
    assert store.reader.record(half.phys_offset).sys_flag == 4
    assert store.reader.record(rollback.phys_offset).sys_flag == 12


def test_delayed_messages_are_queued_by_their_time_of_delivery(store: MessageStore) -> None:
    levels = ((b"1", 1_000), (b"3", 10_000), (b"18", 7_200_000), (b"99", 7_200_000))
    for level, _ in levels:
        store.appender.put(
            [message(SCHEDULE_TOPIC, 2, properties=b"DELAY\x01" + level + b"\x02TAGS\x01T\x02", tags_hash=84)], 500
        )
    store.appender.put([message(SCHEDULE_TOPIC, 2, properties=b"TAGS\x01T\x02", tags_hash=84)], 500)
    store.indexer.confirm(store.log.end)
    queue = store.queues.find(SCHEDULE_TOPIC, 2)
    assert queue is not None
    assert [queue.entry(n)[2] for n in range(5)] == [*(500 + ms for _, ms in levels), 84]


def test_rule_9_nothing_is_shown_before_it_is_confirmed(store: MessageStore) -> None:
    (first,) = store.appender.put([message(properties=b"KEYS\x01k\x02", keys=("k",))], 100)
    (second,) = store.appender.put([message(properties=b"KEYS\x01k\x02", keys=("k",))], 200)
    store.checkpointer.run_periodic_tasks(10**12)

    def seen() -> tuple[int, int, int, int]:
        got = store.reader.get("Orders", 0, 0, 32, 10**6)
        return (
            got.count,
            store.reader.max_offset("Orders", 0),
            len(store.reader.query("Orders", "k", 9, 0, 10**9)),
            len(list(store.reader.walk(0))),
        )

    assert seen() == (0, 0, 0, 0)
    with pytest.raises(Exception, match="outside"):
        store.reader.record(first.phys_offset)
    assert store.indexer.confirm(first.phys_offset + first.size).available == [("Orders", 0)]
    assert seen() == (1, 1, 1, 1)
    assert store.reader.offset_at_time("Orders", 0, 150) == 1
    # Unconfirmed records may reach the offset; after "moved" the reader would start over.
    assert store.reader.get("Orders", 0, 2, 32, 10**6).status == GetStatus.OFFSET_OVERFLOW_ONE
    store.indexer.confirm(second.phys_offset + second.size)
    assert seen() == (2, 2, 2, 2)
    assert store.reader.get("Orders", 0, 3, 32, 10**6).status == GetStatus.OFFSET_OVERFLOW_BADLY


@pytest.mark.parametrize("wrong", [lambda s: s.log.end + 1, lambda s: s.log.end - 1])
def test_confirm_refuses_an_offset_within_a_record_or_beyond_the_end(
    store: MessageStore, wrong: Callable[[MessageStore], int]
) -> None:
    store.appender.put([message(), message()], 1)
    with pytest.raises(ValueError, match=r"above the end|within the record"):
        store.indexer.confirm(wrong(store))
    assert store.state.confirmed == 0
    assert store.indexer.confirm(store.log.end).offset == store.log.end
    assert store.reader.max_offset("Orders", 0) == 2


@pytest.mark.parametrize("within", [1, 3, 40])
def test_confirm_never_ends_within_a_record_without_a_queue_entry(store: MessageStore, within: int) -> None:
    first = store.appender.begin_epoch(1, b"one", 1)
    (half,) = store.appender.put([message(sys_flag=4)], 2)
    with pytest.raises(ValueError, match=r"within (a|the) record"):
        store.indexer.confirm(first.phys_offset + within)
    assert store.state.confirmed == 0
    done = store.indexer.confirm(half.phys_offset + within)
    assert (done.offset, done.control) == (half.phys_offset, [(first.phys_offset, b"one")])
    with pytest.raises(ValueError, match=r"within (a|the) record"):
        store.indexer.confirm(half.phys_offset + within)
    assert store.indexer.confirm(store.log.end).offset == store.log.end


def test_confirm_reports_what_lies_before_a_record_that_the_offset_cuts(store: MessageStore) -> None:
    first = store.appender.begin_epoch(1, b"one", 1)
    second, third = store.appender.put([message()], 2)[0], store.appender.put([message()], 3)[0]
    done = store.indexer.confirm(third.phys_offset + 3)
    assert done.offset == third.phys_offset == second.phys_offset + second.size
    assert done.control == [(first.phys_offset, b"one")]
    assert ("Orders", 0) in done.available
    assert store.indexer.confirm(store.log.end).offset == store.log.end
    assert store.reader.max_offset("Orders", 0) == 2


def test_rule_7_an_epoch_begins_with_its_record_and_is_in_the_history(quick_dir: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(quick_dir / "s", small))
    first = store.appender.begin_epoch(3, b"three", 1)
    store.appender.put([message()], 2)
    second = store.appender.begin_epoch(4, b"four", 3)
    assert store.epoch_cache.epochs == ((3, first.phys_offset), (4, second.phys_offset))
    with pytest.raises(ValueError, match="does not come after"):
        store.appender.begin_epoch(4, b"", 4)
    done = store.indexer.confirm(store.log.end)
    assert done.control == [(first.phys_offset, b"three"), (second.phys_offset, b"four")]
    # Without the file, recovery reads the epochs from the log.
    store.close(clean=False)
    (quick_dir / "s" / "config" / "recoveryPoint.json").unlink()
    store = MessageStore.open(StoreConfig(quick_dir / "s", small))
    assert store.epoch_cache.epochs == ((3, first.phys_offset), (4, second.phys_offset))
    store.close(clean=False)


def test_unconfirmed_records_take_bounded_memory(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_broker.store.unconfirmed.MAX_WAITING", 50)
    for n in range(40):
        store.appender.put([message(properties=b"KEYS\x01k%d\x02" % n, keys=(f"k{n}",))] * 5, n)
    assert store.unconfirmed.waiting <= 55
    store.indexer.confirm(store.log.end)
    assert store.reader.max_offset("Orders", 0) == 200
    assert len(store.reader.query("Orders", "k39", 99, 0, 10**9)) == 5
    assert decode_record(store.reader.get("Orders", 0, 199, 1, 1).data).queue_offset == 199


def test_the_store_takes_no_writes_after_a_failed_undo(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise queues would get its entries, and recovery would read its bytes as records."""
    store.appender.begin_epoch(1, b"one", 1)

    def short(*given: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(store.epoch_cache, "set", short)
        without.setattr(store.log, "bases", short)
        with pytest.raises(OSError, match="Too many open files"):
            store.appender.begin_epoch(2, b"two", 2)
    with pytest.raises(FlushFailed):
        store.appender.put([message()], 3)
