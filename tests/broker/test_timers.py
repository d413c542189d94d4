"""Delayed messages: by the levels of RocketMQ, and with a time of delivery of their own."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from gantry_broker.broker.clock import AgeClock
from gantry_broker.broker.clock import Clock as BrokerClock
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import TIMERS_DELIVERED, Tables
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.broker.send.messages import TIMER_BUCKETS, timer_bucket
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.message import decode_records, format_properties
from gantry_broker.store.log.epochs import FOREIGN, EpochStart
from gantry_broker.store.types import Put

from tests.store.opened import make_checkpoint
from tests.support.present import present
from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

MINUTE = 1_800_000_000_000 // 60_000 * 60_000
ALWAYS = b"deleteWhen=" + b";".join(b"%02d" % hour for hour in range(24))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = MINUTE - 5_000
        monkeypatch.setattr(BrokerClock, "unix_ms", staticmethod(lambda: self.ms))
        monkeypatch.setattr(AgeClock, "unix_ms", lambda age, now_ms, unix_ms: unix_ms)  # The hours have passed.

    async def pass_to(self, bench: Bench, second: int) -> None:
        self.ms = MINUTE + second * 1_000
        for _ in range(3):
            await asyncio.sleep(0)  # Who waits for what was confirmed is notified in the next pass of the loop.
        bench.broker.delays._run()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def _delivered(bench: Bench, offset: int = 0) -> list[bytes]:
    answer = await bench.ask(11, bench.pull_ext(offset=offset))
    return [r.body for r in decode_records(answer.body)]


def _expire(bench: Bench) -> None:
    """Runs retention as the timer of the broker does, with all entries on the disk."""
    make_checkpoint(bench.store)
    while bench.broker.retention.expire():
        pass


async def _send(bench: Bench, *seconds: int) -> None:
    for second in seconds:
        due = f"TIMER_DELIVER_MS\x01{MINUTE + second * 1_000}"
        assert (await bench.send(b"%d" % second, properties=due)).code == 0


async def test_a_new_master_delivers_nothing_twice_of_a_minute_that_has_begun(clock: Clock, bench: Bench) -> None:
    await _send(bench, 50, 10, 30, 20)
    await clock.pass_to(bench, 25)
    assert await _delivered(bench) == [b"10", b"20"]
    await bench.lead()
    await clock.pass_to(bench, 26)
    assert await _delivered(bench) == [b"10", b"20"]
    await clock.pass_to(bench, 55)
    assert await _delivered(bench) == [b"10", b"20", b"30", b"50"]
    tables = bench.broker.meta.working
    assert list(tables.timer.values()) == [4]
    assert not tables.timer_done


async def test_messages_due_during_a_time_without_leader_are_delivered(clock: Clock, bench: Bench) -> None:
    """A minute's queue is used again for one three days later: it must not be taken for that one's."""
    await _send(bench, *range(0, 6_000, 60))
    for minute in range(100):
        await _send(bench, 60 * minute + 1)
    await clock.pass_to(bench, 12 * 3_600)
    await _send(bench, 70 * 3_600)
    await bench.lead()
    delays = bench.broker.delays
    await until(lambda: bench.store.reader.max_offset("T", 0) == 200)
    await clock.pass_to(bench, 69 * 3_600)
    assert bench.store.reader.max_offset("T", 0) == 200
    await clock.pass_to(bench, 70 * 3_600)
    delays._run()
    assert bench.store.reader.max_offset("T", 0) == 201


async def test_deliveries_out_of_order_are_kept_in_snapshots_and_in_the_log(
    clock: Clock, bench: Bench, tmp_path: Path
) -> None:
    await _send(bench, 50, 10, 30, 20)
    await clock.pass_to(bench, 35)
    confirmed = bench.broker.meta.confirmed
    [done] = confirmed.timer_done.values()
    assert done == {1, 2, 3}
    copied = Tables()
    for change in confirmed.all_changes(1):
        copied.apply(change)
    assert copied.timer_done == confirmed.timer_done
    snapshots.write(tmp_path, snapshots.render(bench.broker.meta, bench.store.epoch_cache.epochs))
    assert present(snapshots.load(tmp_path)).tables.timer_done == confirmed.timer_done


@pytest.mark.parametrize("looked_at", [None, -2, 5])
async def test_a_want_of_descriptors_keeps_no_timer_message_back(
    clock: Clock, bench: Bench, monkeypatch: pytest.MonkeyPatch, looked_at: int | None
) -> None:
    """When their minute is looked at, when it is read, or when those that are due are."""
    await _send(bench, 50, 10, 30, 20)
    if looked_at is not None:
        await clock.pass_to(bench, looked_at)

    def none_left(*args: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        for part, name in ((bench.store.reader, "get"), (bench.store.queues, "topics_queues")):
            short.setattr(part, name, none_left)
            await clock.pass_to(bench, 15)
    await clock.pass_to(bench, 25)
    assert await _delivered(bench) == [b"10", b"20"]
    await clock.pass_to(bench, 55)
    assert await _delivered(bench) == [b"10", b"20", b"30", b"50"]


async def test_a_clock_that_goes_back_holds_up_no_level(clock: Clock, bench: Bench) -> None:
    """Or a new master whose clock is behind: retries wait in these queues, all behind the first one."""

    async def send(body: bytes) -> None:
        assert (await bench.send(body, properties="DELAY\x013")).code == 0

    await clock.pass_to(bench, 3_600)
    await send(b"an hour ahead")
    await clock.pass_to(bench, 0)
    await send(b"behind it")
    await clock.pass_to(bench, 5)
    assert await _delivered(bench) == [b"an hour ahead"]
    await clock.pass_to(bench, 11)
    assert await _delivered(bench) == [b"an hour ahead", b"behind it"]


async def test_clocks_that_differ_a_little_change_no_level(clock: Clock, bench: Bench) -> None:
    await clock.pass_to(bench, 2)
    assert (await bench.send(b"a", properties="DELAY\x013")).code == 0
    for second, delivered in ((0, []), (11, []), (13, [b"a"])):
        await clock.pass_to(bench, second)
        assert await _delivered(bench) == delivered


async def test_the_longest_time_is_a_setting(clock: Clock, bench: Bench) -> None:
    clock.ms = MINUTE
    assert (await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"timerMaxDelaySec=3600")).code == 0
    for seconds, code in ((3_600, 0), (3_601, ResponseCode.MESSAGE_ILLEGAL)):
        answer = await bench.send(b"x", properties=f"TIMER_DELIVER_MS\x01{MINUTE + seconds * 1_000}")
        assert answer.code == code
    assert "timerMaxDelaySec" in (answer.remark or "")


@pytest.mark.parametrize("new_leaders", [False, True])
async def test_messages_of_40_days_outlive_their_segments(clock: Clock, bench: Bench, new_leaders: bool) -> None:
    """They are written again each 36 hours, half of what the log keeps; the segments between expire."""
    days = (1, 2, 5, 17, 39)
    for day in days:
        await _send(bench, day * 86_400 + 7)
    filler = b"f" * 200_000
    seen: list[bytes] = []
    await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=ALWAYS)
    for hour in range(0, 41 * 24, 6):
        if new_leaders and hour % 48 == 0:
            await bench.lead()
        await clock.pass_to(bench, hour * 3_600)
        delays = bench.broker.delays
        delays._run()
        for _ in range(3):
            await bench.send(filler, topic="F")
        seen += await _delivered(bench, len(seen))
        _expire(bench)
        assert hour < 17 * 24 or bench.store.log.start > 0, "the segment of the sends has expired"
    assert seen == [b"%d" % (day * 86_400 + 7) for day in days]


async def test_retention_keeps_messages_that_wait(clock: Clock, bench: Bench) -> None:
    """After days without a leader retention may run before the delivery."""
    await _send(bench, 50)
    for _ in range(12):
        await bench.send(b"f" * 200_000, topic="F")
    clock.ms = MINUTE + 20 * 86_400_000
    await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=ALWAYS)
    _expire(bench)
    assert bench.store.log.start == 0
    await clock.pass_to(bench, 20 * 86_400)
    assert await _delivered(bench) == [b"50"]
    _expire(bench)
    assert bench.store.log.start > 0


async def test_a_recalled_message_is_not_delivered(clock: Clock, bench: Bench) -> None:
    """Whichever of both comes first, over rolls and new leaders; a recall of another topic has no effect."""
    due = MINUTE + 5 * 86_400_000
    for key in ("a", "b", "c"):
        text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due}"
        assert (await bench.send(key.encode(), properties=text)).code == 0
    recall = f"TIMER_DELIVER_MS\x01{due}\x02TIMER_DEL_UNIQKEY\x01"
    assert (await bench.send(b"0", properties=recall + "a")).code == 0
    assert (await bench.send(b"0", topic="U", properties=recall + "b")).code == 0
    for hour in range(0, 5 * 24, 12):
        await clock.pass_to(bench, hour * 3_600)
    await bench.lead()
    await clock.pass_to(bench, 5 * 86_400 - 30)
    assert (await bench.send(b"0", properties=recall + "c")).code == 0
    await clock.pass_to(bench, 5 * 86_400 - 1)
    await bench.lead()
    await clock.pass_to(bench, 5 * 86_400)
    assert await _delivered(bench) == [b"b"]
    assert (await bench.send(b"0", properties=recall + "b")).code == ResponseCode.MESSAGE_ILLEGAL
    await clock.pass_to(bench, 5 * 86_400 + 61)
    buckets = bench.broker.delays._buckets
    assert not buckets._recalled
    assert not buckets._ready
    assert not bench.broker.meta.working.timer_done
    assert bench.store.reader.max_offset("U", 0) == 0


async def test_what_rocketmq_has_moved_comes_once(clock: Clock, bench: Bench) -> None:
    """A copied log of RocketMQ has a record of a timer message for each time it was moved, in one queue."""
    await bench.send(b"warm")

    def put(body: bytes, key: str, second: int, moved: int, topic: str = "T") -> Put:
        props = {
            "REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str(MINUTE + second * 1_000),
        } | ({"UNIQ_KEY": key} if key else {}) | ({"TIMER_ROLL_TIMES": str(moved)} if moved else {})  # fmt: skip
        return Put(TIMER_TOPIC, 0, 0, 0, 1, bytes(8), body, format_properties(props))

    assert timer_bucket(MINUTE + 70_000) != 0
    rows = [
        put(b"once", "K1", 70, 0), put(b"moved", "K2", 70, 0), put(b"moved", "K2", 70, 1), put(b"also", "K3", 75, 0),
        put(b"moved", "K2", 70, 2), put(b"other time", "K2", 80, 0), put(b"no key", "", 85, 0),
        put(b"no key", "", 85, 1),
    ]  # fmt: skip
    bench.store.appender.put(rows, 1_000)
    bench.store.indexer.confirm(bench.store.log.end)
    await bench.lead()
    await clock.pass_to(bench, 72)
    assert sorted(await _delivered(bench, 1)) == [b"moved", b"once"]
    await bench.lead()  # The next leader knows what was delivered.
    for second in (90, 95):
        await clock.pass_to(bench, second)
    assert sorted(await _delivered(bench, 1)) == [b"also", b"moved", b"no key", b"no key", b"once", b"other time"]


async def test_rocketmqs_messages_of_the_minute_of_its_queue_are_not_ours(clock: Clock, bench: Bench) -> None:
    """RocketMQ's queue 0 is the one of a minute here, too: what it has delivered, or moved, of that minute comes not
    again, and one that waits for it keeps no other message back.
    """
    minute = (MINUTE // 60_000 // TIMER_BUCKETS + 1) * TIMER_BUCKETS * 60_000
    await bench.send(b"warm")

    def put(body: bytes, due: int, moved: int = 0) -> Put:
        props = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(due), "UNIQ_KEY": body.decode()}
        return Put(TIMER_TOPIC, 0, 0, 0, 1, bytes(8), body, format_properties(
            props | ({"TIMER_ROLL_TIMES": str(moved)} if moved else {})))  # fmt: skip

    assert timer_bucket(minute) == 0
    former = minute - TIMER_BUCKETS * 60_000
    rows = [
        put(b"waits", minute), put(b"delivered", former), put(b"moved", minute + 1), put(b"moved", minute + 1, 1),
        put(b"soon", MINUTE + 70_000),
    ]  # fmt: skip
    bench.store.appender.put(rows, 1_000)
    bench.store.indexer.confirm(bench.store.log.end)
    bench.store.epoch_cache.epochs = (*FOREIGN, EpochStart(1, bench.store.log.end))
    await bench.lead()
    bench.broker.meta.working.marks[TIMERS_DELIVERED] = str(MINUTE)
    await clock.pass_to(bench, 72)
    assert await _delivered(bench, 1) == [b"soon"]
    await clock.pass_to(bench, (minute - MINUTE) // 1_000 + 2)
    assert await _delivered(bench, 1) == [b"soon", b"waits", b"moved"]
