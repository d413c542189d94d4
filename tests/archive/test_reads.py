"""A broker whose old messages are in its archive only: what requests get, and what others notice of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import archiver
from gantry_broker.archive.chain import GroupArchive
from gantry_broker.archive.errors import Unavailable
from gantry_broker.broker import archive_reads
from gantry_broker.broker.clock import Clock
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.config import ArchiveConfig
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import Record
from gantry_broker.store.log.record_reader import decode_records

from tests.archive.test_broker import until
from tests.broker.conftest import Bench, Wire
from tests.broker.conftest import make_bench as make_bench
from tests.support.failing_calls import raising

SEGMENT = 65_536
COUNT = 300
SETTINGS = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 2_000, "enablePropertyFilter": True}
HOUR_MS = 3_600_000


class Old:
    """The broker. `now`: its clock; each message is a second younger than the one before."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.now = 1_800_000_000_000
        self.reads = bench.broker.archive_reads

    async def fill(self, topic: str = "T", count: int = COUNT) -> None:
        for number in range(count):
            self.now += 1_000
            properties = (
                f"KEYS\x01k{number}\x02UNIQ_KEY\x01U{topic}{number}\x02TAGS\x01{'AB'[number % 2]}\x02n\x01{number}"
            )
            answer = await self.bench.send(b"%d " % number + bytes(1_000), topic, properties=properties)
            assert answer.code == 0, answer.remark

    async def age(self, segments: int = 2) -> None:
        """Archive everything, and remove segments from the disk."""
        await self.archived()
        store = self.bench.store
        store.retention.remove_before(store.log.start + segments * SEGMENT)
        await self.known()

    async def archived(self) -> None:
        archiving, store = self.bench.broker.archiving, self.bench.store

        def done() -> bool:
            self.now += 100  # The interval goes by.
            return archiving.state is not None and archiving.state.end >= store.state.confirmed

        await until(done, 10)

    async def known(self) -> None:
        await until(lambda: self.reads.knows, 10)

    async def topic(self, attributes: str = "") -> None:
        fields = {"topic": "T", "defaultTopic": "", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                  "topicFilterType": "SINGLE_TAG", "attributes": attributes}  # fmt: skip
        assert (await self.bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0

    async def pull(self, offset: int, topic: str = "T", **fields: Any) -> Frame:
        return await self.bench.ask(RequestCode.PULL_MESSAGE, self.bench.pull_ext(topic, offset, **fields))

    async def pull_all(self, topic: str = "T", offset: int = 0, **fields: Any) -> list[Record]:
        found: list[Record] = []
        high = self.bench.store.reader.max_offset(topic, 0)
        while offset < high:
            answer = await self.pull(offset, topic, **fields)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
            assert answer.ext is not None
            assert int(answer.ext["nextBeginOffset"]) > offset
            offset = int(answer.ext["nextBeginOffset"])
            found += decode_records(answer.body)
        return found


@pytest.fixture
async def make_old(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Awaitable[Old]]]:
    made: list[Old] = []
    now = [lambda: 1_800_000_000_000]
    monkeypatch.setattr(Clock, "unix_ms", staticmethod(lambda: now[0]()))
    monkeypatch.setattr(Clock, "now_ms", staticmethod(lambda: now[0]()))
    monkeypatch.setattr(archive_reads, "REFRESH_S", 0.05)
    monkeypatch.setattr(archiver, "LOOK_S", 0.05)

    async def make(**options: Any) -> Old:
        archive = ArchiveConfig(url=f"file://{tmp_path}/archive", uid="u-1", interval_s=1, **options)
        old = Old(make_bench(settings=SETTINGS, archive=archive))
        if made:
            old.now = made[-1].now
        now[0] = lambda: old.now
        made.append(old)
        broker = old.bench.broker
        old.bench.broker.replay.start(old.bench.config.data_dir / "config")
        await old.bench.lead()
        broker.archiving.start()
        broker.archive_reads.start()
        return old

    yield make
    for old in made:
        await close(old)


@pytest.fixture
async def old(make_old: Callable[..., Awaitable[Old]]) -> Old:
    """A broker whose first messages are in the archive only."""
    made = await make_old()
    await made.fill()
    await made.age()
    return made


async def close(old: Old) -> None:
    if old.bench.store._lock is None:
        return
    old.bench.parts.snapshots.save_now()
    await old.bench.broker.archive_reads.close()
    await old.bench.broker.archiving.close()
    await old.bench.close()


MakeOld = Callable[..., Awaitable[Old]]


def failing(monkeypatch: pytest.MonkeyPatch, why: str = "the store is away") -> None:
    monkeypatch.setattr(GroupArchive, "range_of", raising(Unavailable(why)))


async def test_pulls_go_on_from_the_archive_into_the_log(old: Old) -> None:
    low = old.bench.store.reader.min_offset("T", 0)
    assert low > 50
    found = await old.pull_all()
    assert [int(r.body.split(b" ")[0]) for r in found] == list(range(COUNT))
    for offset in (0, low - 1, low, COUNT - 1):
        answer = await old.pull(offset)
        assert answer.ext is not None
        assert (answer.code, answer.ext["minOffset"], answer.ext["maxOffset"]) == (0, "0", str(COUNT))
    tagged = await old.pull_all(subscription="B", expressionType="TAG")
    assert [int(r.body.split(b" ")[0]) for r in tagged] == list(range(1, COUNT, 2))
    sql = await old.pull_all(subscription="n BETWEEN 5 AND 60", expressionType="SQL92")
    assert [int(r.body.split(b" ")[0]) for r in sql] == list(range(5, 61))
    assert old.reads.served.messages >= low


async def test_nothing_is_said_to_be_gone_before_the_archive_is_known(
    old: Old, make_old: MakeOld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await close(old)
    monkeypatch.setattr(archive_reads.TieredLog, "open", lambda self: (_ for _ in ()).throw(OSError("no disk")))
    again = await make_old()
    again.bench.wire.frames.clear()
    await again.topic()
    asked = again.bench.pull_ext("T", 0)
    for code, fields in ((RequestCode.PULL_MESSAGE, asked), (RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})):
        answer = await again.bench.ask(code, fields)
        assert answer.code == ResponseCode.SYSTEM_BUSY, answer.remark
        assert "the archive cannot be read now" in answer.remark
    assert (await again.pull(COUNT - 1)).code == ResponseCode.SUCCESS


async def test_a_store_that_is_away_hurts_nobody_else(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch)
        answer = await old.pull(0)
        assert (answer.code, "the store is away" in answer.remark) == (ResponseCode.SYSTEM_BUSY, True)
        assert (await old.pull(COUNT - 1)).code == ResponseCode.SUCCESS
        assert (await old.bench.send(b"new")).code == ResponseCode.SUCCESS
        assert old.reads.error == "the store is away"
    await until(lambda: old.reads._away_until < asyncio.get_running_loop().time())
    assert len(await old.pull_all()) == COUNT + 1
    assert old.reads.error == ""


async def test_a_store_that_hangs_holds_a_bounded_number_of_requests(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, threads = threading.Event(), set[int]()

    def hang(self: GroupArchive, name: str, at: int, size: int) -> bytes:
        threads.add(threading.get_ident())
        go_on.wait(30)
        raise Unavailable("late")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(GroupArchive, "range_of", hang)
            patch.setattr(old.reads._waiting, "most", 10)
            frames = [old.bench.frame(RequestCode.PULL_MESSAGE, old.bench.pull_ext("T", n)) for n in range(30)]
            old.bench.give(*frames)
            await until(lambda: sum(f.code == ResponseCode.SYSTEM_BUSY for f in old.bench.wire.frames) >= 25)
            assert len(threads) <= archive_reads.AT_ONCE
            answer = await old.bench.ask(RequestCode.PULL_MESSAGE, old.bench.pull_ext("T", COUNT - 1))
            assert answer.code == ResponseCode.SUCCESS
            assert (await old.bench.send(b"new")).code == ResponseCode.SUCCESS
            assert sum(f.code == ResponseCode.SYSTEM_BUSY for f in old.bench.wire.frames) == 25
            assert old.reads._waiting.taken == 5, "one address has half of the places"
            old.bench.wire = Wire()
            old.bench.wire.peer = ("10.0.0.1", 40_000)
            old.bench.give(*[old.bench.frame(RequestCode.PULL_MESSAGE, old.bench.pull_ext("T", n)) for n in range(3)])
            await until(lambda: old.reads._waiting.taken == 8)
            assert not old.bench.wire.frames, "they wait"
    finally:
        go_on.set()
    await until(lambda: old.reads._waiting.taken == 0)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.QUERY_CONSUME_QUEUE, {"index": 0, "count": 1}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"timestamp": 1_000_000, "group": "G", "isForce": True}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 1_000_000}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {}),
    ],
)
async def test_no_request_takes_all_places_of_reads(
    old: Old, monkeypatch: pytest.MonkeyPatch, code: RequestCode, ext: dict[str, object]
) -> None:
    go_on = threading.Event()

    def hang(self: GroupArchive, name: str, at: int, size: int) -> bytes:
        go_on.wait(30)
        raise Unavailable("late")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(GroupArchive, "range_of", hang)
            patch.setattr(old.reads._waiting, "most", 10)
            named = {"topic": "T", "queueId": 0, **ext}
            old.bench.wire = Wire()
            for _ in range(12):
                old.bench.give(old.bench.frame(code, named))
            await until(lambda: len(old.bench.wire.frames) == 7)
            assert {f.code for f in old.bench.wire.frames} == {ResponseCode.SYSTEM_BUSY}
            assert old.reads._waiting.taken == 5
    finally:
        go_on.set()
    await until(lambda: old.reads._waiting.taken == 0)


async def test_a_clock_that_is_set_forward_hides_no_archived_message(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic has a retention of its own; what it hides stays hidden when the clock is right again."""
    tables, wall = old.bench.broker.meta.working, old.bench.broker.clock.unix_ms
    tables.topics["T"] = replace(tables.topics["T"], attributes={"retention.ms": "86400000"})
    assert old.reads.tiered is not None
    await old.reads._refresh(old.reads.tiered)
    before = old.reads.expired["T"]
    monkeypatch.setattr(old.bench.broker.clock, "unix_ms", lambda: wall() + 30 * 86_400_000)
    await old.reads._refresh(old.reads.tiered)
    assert old.reads.expired["T"] == before < old.bench.store.log.start
    assert len(await old.pull_all()) == COUNT


async def test_a_read_that_nobody_waits_for_ends_with_its_fetch(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search looks into many objects. Its client gave up after 3 s, and pulls need its place."""
    go_on, fetches, range_of = threading.Event(), list[str](), GroupArchive.range_of

    def slow(self: GroupArchive, name: str, at: int, size: int) -> bytes:
        fetches.append(name)
        assert go_on.wait(30)
        return range_of(self, name, at, size)

    monkeypatch.setattr(GroupArchive, "range_of", slow)
    monkeypatch.setattr(archive_reads, "LOOKUP_S", 0.2)
    try:
        with pytest.raises(RequestRejected, match="did not answer within"):
            await old.reads.query("T", "no such key", 10, 0, old.now, False, 1 << 20, "user u")
    finally:
        go_on.set()
    await until(lambda: old.reads._store_slots._value == archive_reads.AT_ONCE)
    assert len(fetches) == 1
    monkeypatch.setattr(archive_reads, "LOOKUP_S", 30.0)
    assert await old.reads.query("T", "no such key", 10, 0, old.now, False, 1 << 20, "user u") == []
    assert len(fetches) > 1, "a search needs several fetches here"


async def test_pops_take_old_messages_and_give_them_again(old: Old) -> None:
    pop = {
        "consumerGroup": "P", "topic": "T", "queueId": 0, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": old.now, "initMode": 0, "expType": "TAG", "exp": "*", "order": False,
    }  # fmt: skip
    await old.bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"P","consumeEnable":true}')
    found: list[Record] = []
    while len(found) < 100:
        answer = await old.bench.ask(RequestCode.POP_MESSAGE, pop)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found += decode_records(answer.body)
    assert [r.queue_offset for r in found] == list(range(len(found)))
    old.now += 61_000  # Nobody acknowledges: all come again, with their content.
    retry = "%RETRY%P+T"
    store = old.bench.store

    def again() -> bool:
        old.now += 100
        return store.reader.max_offset(retry, 0) == len(found)

    await until(again)
    got = store.reader.get(retry, 0, 0, 200, 1 << 20)
    assert sorted(int(r.body.split(b" ")[0]) for r in decode_records(got.data)) == list(range(len(found)))


async def test_a_busy_queue_does_not_keep_pops_from_the_archived_one(old: Old) -> None:
    fields = {"topic": "T", "defaultTopic": "", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
              "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert (await old.bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    await old.bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"P","consumeEnable":true}')
    pop = {
        "consumerGroup": "P", "topic": "T", "queueId": -1, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": old.now, "initMode": 0, "expType": "TAG", "exp": "*", "order": False,
    }  # fmt: skip
    for _ in range(3):
        assert (await old.bench.send(b"new", queueId=1)).code == ResponseCode.SUCCESS

    async def one() -> int:
        assert (await old.bench.send(b"new", queueId=1)).code == ResponseCode.SUCCESS
        answer = await old.bench.ask(RequestCode.POP_MESSAGE, pop)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return next(decode_records(answer.body)).queue_id

    seen = set[int]()
    for _ in range(60):
        seen.add(await one())
        await asyncio.sleep(0.01)
    assert seen == {0, 1}


async def test_a_group_begins_where_it_did_without_an_archive(old: Old) -> None:
    """A client that begins at the end asks for its offset first: an answer of 0 would make it read everything."""
    ask = {"consumerGroup": "new", "topic": "T", "queueId": 0}
    assert (await old.bench.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_message_that_failed_goes_to_the_retry_topic(old: Old) -> None:
    [record] = list(decode_records((await old.pull(3, maxMsgNums=1)).body))
    await old.bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"G","consumeEnable":true}')
    fields = {"offset": record.phys_offset, "group": "G", "delayLevel": 3, "originTopic": "T"}
    answer = await old.bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    answer = await old.bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.phys_offset})
    assert next(decode_records(answer.body)).body == record.body
    answer = await old.bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.phys_offset + 1})
    assert "look message by offset failed" in answer.remark


async def test_a_deleted_topic_stays_deleted_in_the_archive(make_old: MakeOld) -> None:
    old = await make_old()
    await old.fill("Gone", 100)
    await old.bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    await old.fill("Other", 150)
    await old.fill("Gone", 20)
    await old.fill("Other", 150)
    await old.age(6)
    assert old.bench.store.reader.min_offset("Gone", 0) == 120
    answer = await old.pull(0, "Gone")
    assert answer.ext is not None
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "100")
    assert [r.queue_offset for r in await old.pull_all("Gone", 100)] == list(range(100, 120))
    answer = await old.bench.ask(RequestCode.GET_MIN_OFFSET, {"topic": "Gone", "queueId": 0})
    assert answer.ext == {"offset": "100"}
    old.bench.broker.retention.expire()
    # The log no longer has the deletion, and the tables are made from the log alone.
    changes = list(old.bench.broker.meta.working.all_changes(1))
    assert [change["deleted"] for change in changes if "deleted" in change] == [
        {"Gone": old.bench.store.queues.deletion_watermarks["Gone"]}
    ]


async def test_a_topics_retention_counts_in_the_archive(make_old: MakeOld) -> None:
    old = await make_old()
    await old.topic("+retention.ms=3600000")
    await old.fill()
    filled = old.now
    await old.age()  # The clock goes on meanwhile, for as long as it takes.
    assert old.bench.store.reader.min_offset("T", 0) > 60
    old.now = filled + HOUR_MS - (COUNT - 50) * 1_000  # The first 50 messages are older than an hour now.
    await until(lambda: old.reads.expired.get("T", 0) > 0)

    def expired() -> bool:
        while old.bench.broker.topic_retention.expire():
            pass
        return old.reads.min_offset("T", 0) >= 49

    await until(expired)
    assert old.reads.min_offset("T", 0) in (49, 50, 51)
    answer = await old.pull(0)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    first = old.reads.min_offset("T", 0)
    assert answer.ext is not None
    assert answer.ext["nextBeginOffset"] == str(first)
    assert [r.queue_offset for r in await old.pull_all("T", first)] == list(range(first, COUNT))


async def test_without_a_cache_the_archive_is_not_read(make_old: MakeOld) -> None:
    old = await make_old(read_cache_bytes=0)
    await old.fill()
    await old.archived()
    store = old.bench.store
    store.retention.remove_before(2 * SEGMENT)
    low = store.reader.min_offset("T", 0)
    assert (await old.pull(0)).code == ResponseCode.PULL_OFFSET_MOVED
    answer = await old.bench.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})
    assert answer.ext == {"offset": str(low)}
