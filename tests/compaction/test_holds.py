"""A truncation of the log, and a deletion that is undone, compute rows of compacted queues again, and hold the event
loop only for moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gantry_broker.protocol.codes import COMPACTION_TOPIC
from gantry_broker.protocol.message import pack_host
from gantry_broker.store.compaction.record import MOST_ROWS, encode
from gantry_broker.store.index.compacted import QueueRows, Row
from gantry_broker.store.types import Put

from tests.broker.conftest import Bench
from tests.broker.conftest import make_bench as make_bench
from tests.broker.test_loop_holds import MOST_S, best, longest_hold
from tests.support.present import present

ROWS = 100_000
HOST = pack_host("10.1.2.3", 50_000)


def compacted(bench: Bench) -> None:
    """Append and confirm the compaction records of many keys."""
    store = bench.store
    for start in range(0, ROWS, MOST_ROWS):
        numbers = range(start, start + MOST_ROWS)
        rows = [Row(at, at * 100, at * 100, 100, 1, 0, at.to_bytes(16, "big")) for at in numbers]
        body = encode("T", 0, numbers.stop, (numbers.stop, numbers.stop * 100), (), rows)
        store.appender.put([Put(COMPACTION_TOPIC, 0, 0, 0, 1, HOST, body, b"")], 1)
    store.indexer.confirm(store.log.end)
    store.compaction.apply()


async def test_no_truncation_holds_the_loop(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(settings={"mappedFileSizeCommitLog": 1 << 24})
    store, replication = bench.store, bench.broker.replication
    compacted(bench)
    rows = present(store.compaction.rows("T", 0))
    before = list(rows)
    assert len(before) == ROWS

    loop = asyncio.get_running_loop()

    def truncate(to: int) -> None:
        """What a follower does with each answer of the leader, until its log is cut."""
        if replication.before_truncation(to):
            replication.log.truncate(to)
        else:
            loop.call_soon(truncate, to)

    async def measure() -> float:
        to = store.log.end
        store.appender.put([Put("Other", 0, 0, 0, 1, HOST, b"lost", b"")], 1)
        store.indexer.confirm(store.log.end)
        loop.call_soon(truncate, to)
        longest = await longest_hold([], 10.0, lambda: store.log.end > to)
        assert store.log.end == store.state.confirmed == to
        return longest

    assert await best(measure) <= MOST_S
    found = present(store.compaction.rows("T", 0))
    assert list(found) == before
    assert found is not rows, "they were computed again"
    assert (found.boundary, found.seen) == (rows.boundary, rows.seen)


async def test_no_deletion_that_is_undone_holds_the_loop(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(settings={"mappedFileSizeCommitLog": 1 << 24})
    store = bench.store
    compacted(bench)
    before = list(rows_of(bench))
    store.queues.drop_topic("T", 50 * 100)
    assert list(rows_of(bench)) == before[50:]

    def forget() -> None:
        """As after the repair of a control record: those that can be read delete nothing."""
        bench.broker.replay.incomplete = True
        bench.broker.replay.repaired(0)

    async def measure() -> float:
        store.queues.drop_topic("T", 50 * 100)
        shown = rows_of(bench)
        asyncio.get_running_loop().call_soon(forget)
        longest = await longest_hold([], 10.0, lambda: rows_of(bench) is shown)
        assert rows_of(bench) is not shown, "they were computed again"
        return longest

    assert await best(measure) <= MOST_S
    assert list(rows_of(bench)) == before
    assert store.compaction.needed_from([]) == store.state.confirmed


def rows_of(bench: Bench) -> QueueRows:
    return present(bench.store.compaction.rows("T", 0))
