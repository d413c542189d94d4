"""A compacted topic on a broker: the attribute, sends without a key, passes, retention, and what clients are given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gantry_broker.broker.clock import AgeClock, Clock
from gantry_broker.broker.compaction import is_due
from gantry_broker.broker.metadata.attributes import is_compacted, tombstone_ms
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.message import Record, decode_records
from gantry_broker.store.types import DiskUsage

from tests.broker.conftest import Bench
from tests.broker.conftest import make_bench as make_bench
from tests.store.opened import make_checkpoint

HOUR = 3_600_000
FULL = DiskUsage(1 << 40, 1, 0.99)


class World:
    """A broker with small segments, whose clock the test sets."""

    def __init__(self, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
        self.make = make
        self.now = 1_800_000_000_000
        monkeypatch.setattr(Clock, "unix_ms", staticmethod(lambda: self.now))
        monkeypatch.setattr(AgeClock, "unix_ms", lambda age, now_ms, unix_ms: unix_ms)  # The hours have passed.
        self.bench = self.opened()

    def opened(self) -> Bench:
        return self.make(settings={"compactionScheduleInternal": 100, "mappedFileSizeCommitLog": 65_536})

    async def again(self) -> None:
        await self.bench.close()
        self.bench = self.opened()
        self.bench.broker.replay.start(self.bench.config.data_dir / "config")
        await self.bench.lead()

    async def topic(self, attributes: str, name: str = "T") -> Any:
        fields = {"topic": name, "defaultTopic": "", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                  "topicFilterType": "SINGLE_TAG", "attributes": attributes}  # fmt: skip
        return await self.bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def send(self, key: str, body: bytes = b"x") -> Any:
        properties = f"KEYS\x01{key}\x02" if key else ""
        return await self.bench.send(body, "T", queueId=0, properties=properties)

    async def compact(self, idle_ms: int = 100) -> None:
        """Run passes until nothing is left to do. `idle_ms`: the time since the last pass over each queue."""
        compaction = self.bench.broker.compaction
        for key in compaction._last:
            compaction._last[key] = self.bench.broker.clock.now_ms() - idle_ms
        compaction.look()
        if compaction._task is not None:
            await asyncio.wait([compaction._task])
            await asyncio.sleep(0)
        assert compaction.error == ""

    async def expire(self) -> None:
        """Remove all segments that may go: the disk is full."""
        store = self.bench.store
        while self.bench.broker.changes.write_tables():  # As every second: control records expire with their segment.
            pass
        make_checkpoint(store)
        store.retention.expire(self.now, self.bench.broker.compaction.needed_from(), FULL)

    async def shown(self, offset: int = 0) -> dict[str, bytes]:
        """What a consumer is given that begins at an offset."""
        found = {}
        for _ in range(10_000):
            answer = await self.bench.ask(RequestCode.PULL_MESSAGE, self.bench.pull_ext(offset=offset))
            assert answer.ext is not None, answer
            assert "nextBeginOffset" in answer.ext, answer
            following = int(answer.ext["nextBeginOffset"])
            if answer.code == ResponseCode.SUCCESS:
                for record in decode_records(answer.body):
                    found[record.keys[0]] = record.body
            elif following <= offset:
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                return found
            offset = following
        raise AssertionError("the pulls do not end")


@pytest.fixture
async def world(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(make_bench, monkeypatch)
    await made.bench.lead()
    yield made
    await made.bench.close()


def test_attributes_of_an_unknown_form_compact_nothing() -> None:
    assert not is_compacted({})
    assert not is_compacted({"cleanup.policy": "compaction"})
    assert tombstone_ms({"delete.retention.ms": "x"}) == tombstone_ms({}) == 24 * HOUR
    assert tombstone_ms({"delete.retention.ms": "0"}) == 0


@pytest.mark.parametrize(
    ("new", "rows", "tombstones", "since", "due"),
    [
        (0, 9, 0, 10**9, False),
        (0, 9, 1, 399, False),
        (0, 9, 1, 400, True),
        (1, 9, 0, 99, False),
        (1, 10, 0, 100, True),
        (1, 11, 0, 100, False),
        (1, 11, 0, 400, True),
        (50_000, 10**9, 0, 100, True),
    ],
)
def test_when_a_pass_pays(new: int, rows: int, tombstones: int, since: int, due: bool) -> None:
    assert is_due(new, rows, tombstones, since, 100) is due


async def test_a_message_without_a_key_is_refused_as_by_rocketmq(world: World) -> None:
    assert (await world.topic("+cleanup.policy=COMPACTION")).code == 0
    for key in ("", " "):
        answer = await world.send(key)
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
    for _ in range(2):
        assert (await world.send("a")).code == 0
        assert (await world.send("")).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await world.topic("-cleanup.policy")).code == 0
    assert (await world.send("")).code == 0


async def test_retention_takes_no_newest_message_of_a_key(world: World) -> None:
    await world.topic("+cleanup.policy=COMPACTION")
    expected = {}
    for number in range(300):
        key = f"k{number % 40 if number < 200 else number % 7}"
        expected[key] = f"{number}".encode() + bytes(900)
        assert (await world.send(key, expected[key])).code == 0
    store = world.bench.store
    assert store.log.end > 4 * 65_536
    await world.expire()
    assert store.log.start == 0, "no pass has looked at them yet"
    await world.compact()
    for _ in range(10):
        world.bench.broker.compaction._disk = type("Full", (), {"usage": FULL})()
        await world.compact()
        await world.expire()
    assert store.log.start > 3 * 65_536
    assert await world.shown() == expected
    low = (await world.bench.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})).ext["offset"]
    assert low == "167"
    saved = world.bench.broker.compaction.saved("T")
    assert (saved.seen_records, saved.kept_records) == (300, 40)
    assert 40 * 900 < saved.kept_bytes < saved.seen_bytes / 7
    for _ in range(2):
        await world.again()
        assert await world.shown() == expected
        assert world.bench.broker.compaction.saved("T") == saved
    found = await world.bench.ask(RequestCode.PULL_MESSAGE, world.bench.pull_ext(offset=180))
    assert decode_records(found.body)[0].queue_offset == 180
    for key in ("k3", "k20"):  # The first one's record is in the log, the other one's is a copy.
        query = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        (record,) = decode_records((await world.bench.ask(RequestCode.QUERY_MESSAGE, query)).body)
        assert record.body == expected[key]


async def test_what_the_archive_has_of_removed_messages_is_not_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive keeps each message: a query and a look by id show none that a newer one has replaced."""
    await world.topic("+cleanup.policy=COMPACTION")
    for number in range(20):
        await world.send(f"k{number % 5}", b"%d" % number)
    store, archive = world.bench.store, world.bench.broker.archive_reads
    everything = decode_records(store.reader.get("T", 0, 0, 100, 1 << 20).data)
    await world.compact()

    async def query(*args: Any) -> list[Record]:
        return [record for record in everything if "k2" in record.keys]

    async def one(phys: int) -> Record:
        return next(record for record in everything if record.phys_offset == phys)

    monkeypatch.setattr(type(archive), "may_have_older", lambda self, begin: True)
    monkeypatch.setattr(type(archive), "may_have_place", lambda self, phys: True)
    monkeypatch.setattr(type(archive), "query", lambda self, *args: query(*args))
    monkeypatch.setattr(type(archive), "record", lambda self, phys, owner: one(phys))
    fields = {"topic": "T", "key": "k2", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    found = decode_records((await world.bench.ask(RequestCode.QUERY_MESSAGE, fields)).body)
    assert [record.body for record in found] == [b"17"]
    codes = [
        (await world.bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": r.phys_offset})).code for r in everything
    ]
    assert codes == [ResponseCode.SYSTEM_ERROR] * 15 + [ResponseCode.SUCCESS] * 5


async def test_tombstones_go_when_they_are_old_enough(world: World) -> None:
    await world.topic("+cleanup.policy=COMPACTION,+delete.retention.ms=3600000")
    await world.send("a", b"1")
    await world.send("b", b"1")
    await world.compact()
    await world.send("a", b"")
    await world.compact()
    assert await world.shown() == {"a": b"", "b": b"1"}
    world.now += 2 * HOUR
    await world.send("c", b"1")
    await world.compact()
    assert await world.shown() == {"b": b"1", "c": b"1"}


async def test_a_clock_that_was_set_forward_removes_no_tombstone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.topic("+cleanup.policy=COMPACTION,+delete.retention.ms=3600000")
    await world.send("a", b"")
    await world.compact()
    passed = world.now
    monkeypatch.setattr(AgeClock, "unix_ms", lambda age, now_ms, unix_ms: passed)  # A step counts after an hour.
    world.now += 2 * HOUR
    await world.send("b", b"1")
    await world.compact()
    assert await world.shown() == {"a": b"", "b": b"1"}


async def test_tombstones_go_without_new_messages(world: World) -> None:
    await world.topic("+cleanup.policy=COMPACTION,+delete.retention.ms=0")
    await world.send("a", b"")
    await world.send("b", b"1")
    await world.compact()
    assert await world.shown() == {"a": b"", "b": b"1"}
    await world.compact(idle_ms=1_000)
    assert await world.shown() == {"b": b"1"}


async def test_a_deleted_topic_has_no_compacted_messages(world: World) -> None:
    await world.topic("+cleanup.policy=COMPACTION")
    for key in "aab":
        await world.send(key)
    await world.compact()
    assert (await world.bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await world.topic("+cleanup.policy=COMPACTION")
    assert await world.shown() == {}
    await world.send("c", b"2")
    for _ in range(2):
        await world.compact()
        assert await world.shown() == {"c": b"2"}
        await world.again()
        assert await world.shown() == {"c": b"2"}


async def test_a_topic_that_is_compacted_no_more_ends_as_others_do(world: World) -> None:
    await world.topic("+cleanup.policy=COMPACTION")
    for key in "aab":
        await world.send(key, bytes(900))
    await world.compact()
    await world.topic("+cleanup.policy=DELETE")
    for _ in range(200):
        await world.send("z", bytes(900))
    await world.expire()
    assert world.bench.store.log.start >= 65_536
    assert set(await world.shown()) == {"z"}
