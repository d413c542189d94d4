"""Sending with the official client: every mode, limits and permissions."""

from __future__ import annotations

import pytest

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target


def make(driver: Driver, target: Target, topic: str, read: int = 4, write: int = 4, perm: int = 6) -> None:
    out = driver.mqadmin("updateTopic", "-t", topic, "-c", target.cluster, "-r", read, "-w", write, "-p", perm)
    assert "success" in out, out


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_modes(driver: Driver, target: Target, fresh: str, mode: str) -> None:
    topic = f"{fresh}_{mode}"
    make(driver, target, topic)
    sent = driver.run("produce", topic=topic, run=topic, count=200, mode=mode, tags="a,b", keys="k", properties=True)
    status = "ONEWAY" if mode == "oneway" else "SEND_OK"
    assert sent.summary["statuses"] == {status: 200}
    got = driver.run(
        "consume", topic=topic, group=f"g_{topic}", run=topic, count=200, check_tags="a,b", keys="k", properties=True
    ).summary
    assert (got["unique"], got["repeated"], got["wrong"], got["strangers"]) == (200, 0, 0, 0)
    assert got["digest"] == sent.summary["digest"]


def test_auto_created_topic(driver: Driver, target: Target, fresh: str) -> None:
    """An unknown topic is created from the default topic, with the producer's number of queues."""
    sent = driver.run("produce", topic=fresh, run=fresh, count=40)
    assert sent.summary["statuses"] == {"SEND_OK": 40}
    assert len(sent.summary["queues"]) == 4
    offsets: list[dict[str, int]] = []

    def all_queued() -> bool:
        """RocketMQ puts messages into queues after its answer."""
        offsets[:] = [line["queue"] for line in driver.run("query", topic=fresh, offsets=True).of("queue")]
        # Not 10 each: the client restarts its round-robin when it first gets the topic's own route.
        return sum(q["max"] for q in offsets) == 40

    until("40 messages are in the queues", all_queued, 30)
    assert [(q["queue"], q["min"]) for q in offsets] == [(n, 0) for n in range(4)]


def test_send_result(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, 1, 1)
    first, second = driver.run("produce", topic=fresh, run=fresh, count=2, each=True).of("sent")
    assert (first["offset"], second["offset"]) == (0, 1)
    assert first["broker"] == target.broker_name
    assert len(first["msgId"]) in (32, 56), "the client's own id holds its IPv4 or IPv6 address"
    assert len(first["offsetMsgId"]) == 32
    assert int(second["offsetMsgId"][16:], 16) > int(first["offsetMsgId"][16:], 16)


def test_batch_offsets(driver: Driver, target: Target, fresh: str) -> None:
    """A batch has one answer with an id per message, and consecutive offsets."""
    make(driver, target, fresh, 1, 1)
    sent = driver.run("produce", topic=fresh, run=fresh, count=30, mode="batch", batch=10, each=True).of("sent")
    assert [line["offset"] for line in sent] == [0] * 10 + [10] * 10 + [20] * 10
    assert all(len(line["offsetMsgId"].split(",")) == 10 for line in sent)
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=30, mode="pull", each=True)
    assert [line["offset"] for line in got.of("message")] == list(range(30))


def test_a_batch_of_thousands(driver: Driver, target: Target, fresh: str) -> None:
    """The client limits a batch by its bytes alone."""
    make(driver, target, fresh, 1, 1)
    sent = driver.run("produce", topic=fresh, run=fresh, count=4_000, mode="batch", batch=4_000, size=40, each=True)
    lines = sent.of("sent")
    assert [line["offset"] for line in lines] == [0] * 4_000
    assert len(set(lines[0]["offsetMsgId"].split(","))) == 4_000
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=4_000, mode="pull")
    assert got.summary["digest"] == sent.summary["digest"]


def test_compressed_bodies(driver: Driver, target: Target, fresh: str) -> None:
    """The client compresses bodies above its threshold; they are stored compressed and arrive decompressed."""
    sent = driver.run("produce", topic=fresh, run=fresh, count=10, size=20_000)
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=10, each=True)
    assert got.summary["digest"] == sent.summary["digest"]
    assert {line["size"] for line in got.of("message")} == {20_000}
    if driver.version == "49":  # 5.x clears the mark after the decompression
        assert all(line["sysFlag"] & 1 for line in got.of("message"))


def test_too_large(driver: Driver, target: Target, fresh: str) -> None:
    """The broker's own limit, above the client's."""
    make(driver, target, fresh)
    result = driver.run(
        "produce", topic=fresh, count=1, size=4_300_000, max_size=8_000_000, compress_over=9_000_000, each=True,
        retries=0,
    )  # fmt: skip
    assert [line["code"] for line in result.errors] == [13], result.lines
    assert driver.run("produce", topic=fresh, count=1).summary["statuses"] == {"SEND_OK": 1}


def test_large_body(driver: Driver, target: Target, fresh: str) -> None:
    sent = driver.run("produce", topic=fresh, run=fresh, count=2, size=4_000_000, compress_over=9_000_000)
    assert sent.summary["statuses"] == {"SEND_OK": 2}
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=2)
    assert got.summary["digest"] == sent.summary["digest"]


def test_read_only_topic(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, perm=4)
    result = driver.run("produce", topic=fresh, count=1, each=True)
    assert result.summary["statuses"] == {}
    assert result.errors


def test_write_only_topic(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, perm=2)
    assert driver.run("produce", topic=fresh, count=4, run=fresh).summary["statuses"] == {"SEND_OK": 4}
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=4, timeout_s=3).summary
    assert got["unique"] == 0


def test_read_and_write_queues_differ(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh, read=2, write=4)
    sent = driver.run("produce", topic=fresh, run=fresh, count=40, shards=4)
    assert len(sent.summary["queues"]) == 4
    got = driver.run("consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=40, timeout_s=6).summary
    assert got["unique"] == 20
    assert sorted(got["queues"]) == [f"{target.broker_name}:0", f"{target.broker_name}:1"]


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_system_topics_take_no_messages(driver: Driver, target: Target, topic: str) -> None:
    result = driver.run("produce", topic=topic, count=1, each=True, retries=0)
    assert result.summary["statuses"] == {}
    assert result.errors


def test_request_reply(driver: Driver, target: Target, fresh: str) -> None:
    make(driver, target, fresh)
    result = driver.run(
        "request-reply", topic=fresh, consumer_group=f"g_{fresh}", group=f"r_{fresh}", count=3, wait_ms=2000
    )
    assert result.summary["answered"] == 3, result.lines
