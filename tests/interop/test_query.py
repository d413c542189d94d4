"""Queries with the official client: by key, by either id, by offset and by time."""

from __future__ import annotations

import time

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.interop.test_send import make


def test_by_key_and_id(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh)
    sent = driver.run("produce", topic=fresh, run=fresh, count=20, keys=f"{fresh}-", tags="a", each=True).of("sent")
    driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=20)  # the index exists by now
    line = sent[7]
    found = driver.run("query", topic=fresh, key=f"{fresh}-7").of("found")
    assert [m["n"] for m in found[0]["messages"]] == [7]
    by_id = driver.run("query", topic=fresh, ids=f"{line['msgId']},{line['offsetMsgId']}").of("message")
    assert [m["message"]["n"] for m in by_id] == [7, 7]
    assert {m["message"]["offset"] for m in by_id} == {line["offset"]}


def test_nothing_found(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=1)
    result = driver.run("query", topic=fresh, key="no-such-key")
    assert result.errors
    assert result.errors[0]["code"] in (None, 208), result.errors


def test_offsets_and_times(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, 1, 1)
    before = int(time.time() * 1000) - 5_000
    driver.run("produce", topic=fresh, run=fresh, count=10)
    time.sleep(1)
    second = driver.run("produce", topic=fresh, run=fresh, count=10, each=True).of("sent")
    # RocketMQ returns the nearest message (4.9) or the first that is not older (5.x): the same one here.
    middle = second[0]["wallMs"] - 100
    after = int(time.time() * 1000) + 60_000
    (line,) = driver.run("query", topic=fresh, offsets=True, times=f"{before},{middle},{after}").of("queue")
    queue = line["queue"]
    assert (queue["min"], queue["max"]) == (0, 20)
    assert queue[f"at{before}"] == 0
    assert queue[f"at{middle}"] == 10
    # Beyond the end RocketMQ returns the last message's offset (4.x) or the end (5.x); clients accept either.
    assert queue[f"at{after}"] in (19, 20)
    assert before < queue["earliest"] <= middle
