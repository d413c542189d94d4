"""A topic with a retention of its own: its older messages are not readable, on every member, for good."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker.clock import PATIENCE_MS, AgeClock, Clock
from gantry_broker.broker.metadata.attributes import retention_ms
from gantry_broker.protocol.codes import CONTROL_TOPIC, RequestCode, ResponseCode
from gantry_broker.store.log.commit_log import CommitLog

from tests.broker.conftest import Bench
from tests.store.test_dropping import Member
from tests.support.present import present

MINUTE = 60_000


class World:
    """A broker whose clock the test sets."""

    def __init__(self, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
        self.make = make
        self.now = 1_800_000_000_000
        self.step = 0
        """Milliseconds by which the wall clock is wrong."""
        monkeypatch.setattr(Clock, "unix_ms", staticmethod(lambda: self.now + self.step))
        monkeypatch.setattr(Clock, "now_ms", staticmethod(lambda: self.now))
        self.bench = make()

    async def again(self) -> None:
        """Stop the broker and start it again, without its saved tables: the log has all."""
        await self.bench.close()
        self.bench = self.make()
        self.bench.broker.replay.start(self.bench.config.data_dir / "config")
        await self.bench.lead()

    async def topic(self, attributes: str, name: str = "T", queues: int = 2) -> Any:
        fields = {"topic": name, "defaultTopic": "", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
                  "topicFilterType": "SINGLE_TAG", "attributes": attributes}  # fmt: skip
        return await self.bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def send(self, count: int, queue: int = 0, topic: str = "T") -> None:
        for _ in range(count):
            assert (await self.bench.send(b"x", topic, queueId=queue)).code == 0

    def expire(self) -> None:
        while self.bench.broker.topic_retention.expire():
            pass

    async def low(self, queue: int = 0, topic: str = "T") -> int:
        found = await self.bench.ask(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": queue})
        return int(present(found.ext)["offset"])

    def records(self) -> int:
        """Control records so far."""
        return self.bench.store.reader.max_offset(CONTROL_TOPIC, 0)


@pytest.fixture
async def world(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(make_bench, monkeypatch)
    await made.bench.lead()
    yield made
    await made.bench.close()


@pytest.mark.parametrize("value", ["59999", "-1", "0", "1h", "", "9" * 19])
async def test_a_retention_that_is_none_is_refused_with_words(world: World, value: str) -> None:
    answer = await world.topic(f"+retention.ms={value}")
    assert answer.code != 0
    assert "retention.ms" in answer.remark
    if value:
        assert "milliseconds: a whole number of 60000 or more" in answer.remark


def test_an_attribute_of_an_unknown_form_hides_nothing() -> None:
    """A store of another program may have any."""
    assert [retention_ms({"retention.ms": text}) for text in ("", "1", "x", "60000")] == [None, None, None, 60_000]
    assert retention_ms({}) is None


async def test_messages_older_than_the_retention_are_not_readable(world: World) -> None:
    await world.topic(f"+retention.ms={10 * MINUTE}")
    await world.topic("", "Kept")
    await world.send(3)
    await world.send(2, topic="Kept")
    world.now += 6 * MINUTE
    await world.send(2)
    await world.send(1, queue=1)
    world.expire()
    assert await world.low() == 0
    world.now += 5 * MINUTE
    world.expire()
    assert (await world.low(), await world.low(1), await world.low(topic="Kept")) == (3, 0, 0)
    moved = await world.bench.ask(RequestCode.PULL_MESSAGE, world.bench.pull_ext())
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert present(moved.ext)["nextBeginOffset"] == "3"
    found = await world.bench.ask(RequestCode.PULL_MESSAGE, world.bench.pull_ext(offset=3))
    assert found.code == ResponseCode.SUCCESS
    assert len(world.bench.store.reader.query("T", "k", 99, 0, 1 << 60)) == 3
    for _ in range(2):  # The same after a restart, and the numbers go on.
        assert (await world.low(), await world.low(1)) == (3, 0)
        await world.again()
    world.now += 6 * MINUTE
    world.expire()
    assert (await world.low(), await world.low(1)) == (5, 1)
    await world.send(1)
    assert world.bench.store.reader.max_offset("T", 0) == 6
    assert await world.low() == 5


async def test_a_calm_topic_writes_no_records(world: World) -> None:
    await world.topic(f"+retention.ms={MINUTE}")
    await world.send(2)
    world.expire()
    before = world.records()
    world.now += 2 * MINUTE
    world.expire()
    assert world.records() == before + 1
    for _ in range(3):
        world.now += MINUTE
        world.expire()
    assert world.records() == before + 1


async def test_what_was_hidden_stays_hidden_without_the_attribute(world: World) -> None:
    await world.topic(f"+retention.ms={MINUTE}")
    await world.send(2)
    world.now += 2 * MINUTE
    await world.send(1)
    world.expire()
    assert (await world.topic("-retention.ms")).code == 0
    world.now += 100 * MINUTE
    world.expire()
    assert await world.low() == 2


async def test_many_topics_are_several_steps_and_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        await world.topic(f"+retention.ms={MINUTE}", f"T{n}", 1)
        await world.send(1, topic=f"T{n}")
    world.now += 2 * MINUTE
    monkeypatch.setattr("gantry_broker.broker.retention.TOPICS", 2)
    monkeypatch.setattr("gantry_broker.broker.retention.SLICE_S", -1.0)
    before, steps = world.records(), 0
    while world.bench.broker.topic_retention.expire():
        steps += 1
    assert steps >= 5
    assert world.records() == before + 3
    assert [await world.low(topic=f"T{n}") for n in range(5)] == [1] * 5


async def test_an_unreadable_record_holds_its_own_topic_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Bad", "Good"):
        await world.topic(f"+retention.ms={MINUTE}", name, 1)
        await world.send(1, topic=name)
    world.now += 2 * MINUTE
    at = world.bench.store.reader.place("Bad", 0, 0)
    real = CommitLog.read

    def read(log: CommitLog, offset: int, count: int) -> bytes:
        if offset == at:
            raise OSError(errno.EIO, "Input/output error")
        return real(log, offset, count)

    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "read", read)
        world.expire()
    assert (await world.low(topic="Bad"), await world.low(topic="Good")) == (0, 1)


async def test_a_member_that_does_not_lead_decides_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.topic(f"+retention.ms={MINUTE}")
    await world.send(1)
    world.now += 2 * MINUTE
    monkeypatch.setattr(type(world.bench.broker.role), "may_append", False)
    world.expire()
    assert await world.low() == 0


async def test_mqadmins_request_to_clean_applies_it_at_once(world: World) -> None:
    await world.topic(f"+retention.ms={MINUTE}")
    await world.send(1)
    world.now += 2 * MINUTE
    assert (await world.bench.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    assert await world.low() == 1


def test_each_member_hides_what_the_log_says(tmp_path: Path) -> None:
    """A follower, a member that starts again, one whose log lost the decision, and one that reads it from the tables
    of a later segment.
    """
    leader, follower = Member(tmp_path / "leader"), Member(tmp_path / "follower")
    leader.put(0, 15)
    before = leader.store.log.end
    leader.change(expired={"Orders": leader.store.queues.find("Orders", 0).entry(10)[0]})  # type: ignore[union-attr]
    leader.confirm()
    leader.put(15, 5)
    follower.follow(leader)
    assert leader.shown() == follower.shown() == list(range(10, 19))
    follower.save()
    follower.again()
    follower.confirm()
    assert follower.shown() == list(range(10, 19))
    late = Member(tmp_path / "late")
    for change in leader.meta.confirmed.all_changes(1):
        late.meta.confirmed.apply(change)
    late.meta.report()
    late.follow(leader)
    assert late.shown() == list(range(10, 19))
    follower.truncate(before)
    assert follower.shown() == list(range(14))
    leader.meta.forget_deletions(leader.store.log.end)
    assert leader.meta.confirmed.expired == {}
    for member in (leader, follower, late):
        member.store.close(clean=False)


def test_a_step_of_the_clock_counts_for_age_after_an_hour() -> None:
    age, wall = AgeClock(), 1_800_000_000_000
    assert age.unix_ms(0, wall) == wall
    assert age.unix_ms(10_000, wall + 11_000) == wall + 11_000, "drift is followed"
    year = 365 * 86_400_000
    assert age.unix_ms(20_000, wall + year) == wall + 21_000
    assert age.unix_ms(30_000, wall + 30_000) == wall + 30_000, "it was corrected"
    assert age.unix_ms(40_000, wall + year) == wall + 40_000
    assert age.unix_ms(40_000 + PATIENCE_MS - 1, wall + year) == wall + 40_000 + PATIENCE_MS - 1
    assert age.unix_ms(40_000 + PATIENCE_MS, wall + year) == wall + year, "it stays so"
    assert age.unix_ms(50_000 + PATIENCE_MS, wall) == wall, "back: less is old"


async def test_a_clock_that_steps_forward_hides_no_message_at_once(world: World) -> None:
    await world.topic(f"+retention.ms={60 * MINUTE}")
    await world.send(3)
    world.expire()
    world.step = 30 * 24 * 60 * MINUTE
    world.expire()
    assert await world.low() == 0
    world.now += PATIENCE_MS + MINUTE
    world.expire()
    assert await world.low() == 3
