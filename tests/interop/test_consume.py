"""Consuming with the official client: modes, filters, order, retries, dead letters."""

from __future__ import annotations

import time

import pytest

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.interop.test_send import make

QUEUES = 4
"""Queues of a topic from `make`."""


def stored(target: Target, topic: str) -> int:
    """The number of messages that consumers of the topic would find."""
    with Wire(target.broker_address, prefix=target.prefix) as wire:
        return sum(end for _, end in (wire.offsets(topic, queue) for queue in range(QUEUES)))


@pytest.mark.parametrize("mode", ["push", "orderly", "pull", "litepull"])
def test_ways(driver: Driver, target: Target, fresh: str, mode: str) -> None:
    topic = f"{fresh}_{mode}"
    make(driver, target, topic)
    sent = driver.run("produce", topic=topic, run=topic, count=300, shards=4, threads=4)
    assert sent.summary["statuses"] == {"SEND_OK": 300}, sent.errors[:3]
    # One pass reads up to the reported ends; Apache's broker fills its queues after its answer.
    until("all queues have their messages", lambda: stored(target, topic) == 300, 20)
    got = driver.run("consume", topic=topic, group=f"g_{topic}", run=topic, count=300, mode=mode).summary
    assert (got["unique"], got["repeated"]) == (300, 0)
    assert got["digest"] == sent.summary["digest"]
    if mode != "push":  # the concurrent listener has 20 threads: only the others see an order
        assert got["disorder"] == 0


def test_lite_pull_assign_and_seek(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, 1, 1)
    driver.run("produce", topic=fresh, run=fresh, count=50)
    got = driver.run(
        "consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=30, mode="litepull", assign=True, offset=20,
        each=True,
    )  # fmt: skip
    assert [line["n"] for line in got.of("message")] == list(range(20, 50))


def test_committed_offsets_hold(driver: Driver, target: Target, fresh: str) -> None:
    """A second run does not get messages that the first run has committed."""
    make(driver, target, fresh)
    for life in range(3):
        run = f"{fresh}-{life}"
        driver.run("produce", topic=fresh, run=run, count=50)
        got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=run, count=50, settle_ms=500).summary
        assert (got["unique"], got["repeated"], got["strangers"]) == (50, 0, 0)


def test_tags(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=90, tags="red,green,blue")
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=60, expr="red || blue", each=True)
    assert got.summary["unique"] == 60
    assert {line["tags"] for line in got.of("message")} == {"red", "blue"}


def test_tags_of_equal_hash(driver: Driver, target: Target, fresh: str) -> None:
    """The broker filters by hash only; "Aa" and "BB" have the same hash, and the client distinguishes them."""
    driver.run("produce", topic=fresh, run=fresh, count=20, tags="Aa,BB")
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=10, expr="BB", each=True)
    assert {line["tags"] for line in got.of("message")} == {"BB"}
    assert got.summary["unique"] == 10


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("a > 5", {6, 7, 8, 9}),
        ("a BETWEEN 2 AND 4", {2, 3, 4}),
        ("a >= 8 OR a = 0", {0, 8, 9}),
        ("word IN ('w1', 'w2') AND a < 3", {0, 1, 2}),
        ("nothing IS NULL AND a = 7", {7}),
        ("word IS NOT NULL AND NOT (a < 9)", {9}),
        ("a <> 1 AND a NOT BETWEEN 2 AND 9", {0}),
        ("TAGS = 'red' AND a IN ('1', '3')", {1, 3}),
        ("missing > 3", set()),
    ],
)
def test_sql(driver: Driver, target: Target, fresh: str, sql: str, wanted: set[int]) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=60, properties=True, tags="red,red,blue")
    expected = {
        n for n in range(60)
        if n % 10 in wanted
        and ("w1" not in sql or n % 3 in (1, 2))
        and ("TAGS" not in sql or (n % 3 != 2))
    }  # fmt: skip
    got = driver.run(
        "consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=max(1, len(expected)), sql=sql, each=True,
        timeout_s=20 if expected else 3,
    )  # fmt: skip
    assert {line["n"] for line in got.of("message")} == expected


def test_bad_sql_is_refused(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, count=1)
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", count=1, sql="a > > 5", timeout_s=3)
    assert got.errors, got.lines
    assert got.errors[0]["code"] == 23, got.errors


def test_clustering_shares(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, 4, 4)
    driver.run("produce", topic=fresh, run="before", count=4)
    options = {
        "topic": fresh, "group": f"g_{fresh}", "run": fresh, "count": 100, "timeout_s": 12, "settle_ms": 3000,
        "each": True,
    }  # fmt: skip
    both = [driver.start("consume", **options) for _ in range(2)]
    for one in both:
        one.wait_for("started")
    time.sleep(3)  # both know of each other: NOTIFY_CONSUMER_IDS_CHANGED
    driver.run("produce", topic=fresh, run=fresh, count=100, shards=4)
    results = [one.finish() for one in both]
    mine = [{line["n"] for line in r.of("message") if line["wallMs"] and line["n"] >= 0} for r in results]
    shared = [{line["queue"] for line in r.of("message")[4:]} for r in results]
    assert all(mine), "one consumer got nothing"
    assert set().union(*mine) == set(range(100))
    assert all(shared)


def test_broadcasting(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=60)
    options = {"topic": fresh, "group": f"g_{fresh}", "run": fresh, "count": 60, "model": "BROADCASTING"}
    both = [driver.start("consume", **options) for _ in range(2)]
    for one in both:
        got = one.finish().summary
        assert (got["unique"], got["repeated"]) == (60, 0)


@pytest.mark.parametrize("start", ["first", "last"])
def test_start_of_a_new_group(driver: Driver, target: Target, fresh: str, start: str) -> None:
    """A topic with its first message is read from its beginning, whatever the client requests."""
    driver.run("produce", topic=fresh, run=fresh, count=20)
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=20, timeout_s=8, start=start).summary
    assert got["unique"] == 20


@pytest.mark.parametrize("strategy", ["AllocateMessageQueueAveragely", "AllocateMessageQueueAveragelyByCircle",
                                      "AllocateMessageQueueConsistentHash"])  # fmt: skip
def test_allocation(driver: Driver, target: Target, fresh: str, strategy: str) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=40)
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=40, strategy=strategy).summary
    assert got["unique"] == 40


def test_orderly_retry_in_place(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, 2, 2)
    driver.run("produce", topic=fresh, run=fresh, count=10, shards=2)
    got = driver.run(
        "consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=10, min_received=20, mode="orderly", fail=1,
        suspend_ms=100, each=True, timeout_s=30,
    )  # fmt: skip
    for queue in range(2):
        seen = [line["n"] for line in got.of("message") if line["queue"] == queue]
        assert seen == [n for n in range(queue, 10, 2) for _ in range(2)], "each is tried again before the next"


def test_orderly_locks(driver: Driver, target: Target, fresh: str) -> None:
    """Two orderly consumers of a group never hold the same queue."""
    make(driver, target, fresh, 4, 4)
    options = {
        "topic": fresh, "group": f"g_{fresh}", "run": fresh, "count": 200, "timeout_s": 15, "settle_ms": 2000,
        "mode": "orderly", "each": True,
    }  # fmt: skip
    both = [driver.start("consume", **options) for _ in range(2)]
    for one in both:
        one.wait_for("started")
    time.sleep(3)
    driver.run("produce", topic=fresh, run=fresh, count=200, shards=4)
    results = [one.finish() for one in both]
    numbers = [line["n"] for r in results for line in r.of("message")]
    assert sorted(numbers) == list(range(200))
    for r in results:
        for queue in range(4):
            seen = [line["n"] for line in r.of("message") if line["queue"] == queue]
            assert seen == sorted(seen)


def test_retry(driver: Driver, target: Target, fresh: str) -> None:
    group = f"g_{fresh}"
    driver.run("produce", topic=fresh, run=fresh, count=3, keys="k")
    got = driver.run(
        "consume",
        topic=fresh,
        group=group,
        run=fresh,
        count=3,
        min_received=9,
        fail=2,
        each=True,
        timeout_s=60,
        poll_ms=1000,
    )
    for n in range(3):
        seen = [line for line in got.of("message") if line["n"] == n]
        assert [line["reconsume"] for line in seen] == [0, 1, 2]
        assert {line["msgId"] for line in seen} == {seen[0]["msgId"]}, "the id stays the same"
        assert {line["topic"] for line in seen} == {fresh}, "the client puts the topic back"
        assert seen[1]["properties"]["RETRY_TOPIC"] == fresh
        assert {line["keys"] for line in seen} == {f"k{n}"}
        if driver.version == "49":
            assert seen[1]["properties"]["ORIGIN_MESSAGE_ID"]


def test_dead_letters(driver: Driver, target: Target, fresh: str) -> None:
    group = f"g_{fresh}"
    driver.run("produce", topic=fresh, run=fresh, count=2, keys="k")
    got = driver.run(
        "consume", topic=fresh, group=group, run=fresh, count=2, min_received=6, fail=99, max_reconsume=2, each=True,
        timeout_s=60, settle_ms=4000, poll_ms=1000,
    )  # fmt: skip
    assert [got.summary["received"], got.summary["unique"]] == [6, 2]
    dead = f"%DLQ%{group}"
    driver.mqadmin("updateTopicPerm", "-t", dead, "-c", target.cluster, "-p", 6)
    letters = driver.run("consume", topic=dead, group=f"d_{fresh}", run=fresh, count=2, each=True, timeout_s=20)
    # A new consumer may get a queue twice, from Apache's broker, too: the test requires each message at least once.
    details = (got.errors, got.of("message"), letters.lines)
    assert {line["keys"] for line in letters.of("message")} == {"k0", "k1"}, details
    assert letters.summary["unique"] == 2


def test_broadcast_is_not_retried(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, run=fresh, count=2)
    got = driver.run(
        "consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=2, fail=99, model="BROADCASTING", settle_ms=3000
    ).summary
    assert (got["received"], got["unique"]) == (2, 2)


def test_delay_levels(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh)
    driver.run("produce", topic=fresh, run="warm", count=1)
    running = driver.start("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=7, each=True, timeout_s=30)
    running.wait_for("started")
    sent = {
        level: driver.run("produce", topic=fresh, run=fresh, first=100 + level * 10, count=2, delay_level=level,
                          each=True).of("sent")
        for level in (1, 2, 3)
    }  # fmt: skip
    got = {line["n"]: line for line in running.finish().of("message")}
    for level, lines in sent.items():
        for line in lines:
            waited = got[line["n"]]["wallMs"] - line["wallMs"]
            assert waited > level * 1000 - 100, f"level {level} came early: {waited} ms"
            assert waited < level * 1000 + 3000, f"level {level} came late: {waited} ms"
            assert got[line["n"]]["topic"] == fresh
