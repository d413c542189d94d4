"""The pull, the log of the brokers and the archive bring the same rows of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, Message, Producer
from gantry_broker.client.transactions import TransactionProducer
from gantry_spark.remote import HttpBytes
from gantry_spark.schema import arrow_schema
from gantry_spark.topics import ways
from gantry_spark.topics.columns import COLUMNS, batches, spark_schema
from gantry_spark.topics.options import ReadOptions
from gantry_spark.topics.pull import PullSettings
from gantry_spark.topics.queues import QueueRange
from gantry_spark.topics.ways import PULL, Logs, LogWay, Way
from gantry_spark.topics.wire import Cluster

from tests.spark.live_cluster import LiveCluster, until
from tests.spark.topic_tour import DECISIONS, _undecided, _work

NAMES = tuple(COLUMNS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("live"))
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(live: LiveCluster) -> Iterator[Cluster]:
    options = ReadOptions({"nameServers": live.name_server, "subscribe": "T", "timeoutMs": "20000"}, stream=False)
    made = Cluster(options.access.name_servers, options.access.trust, options.access.timeout_s)
    yield made
    made.close()


def rows(cluster: Cluster, ranges: list[QueueRange], way: Way, tags: tuple[str, ...] = ()) -> list[Any]:
    settings = PullSettings("TOOLS_CONSUMER", tags, True, True)
    schema = arrow_schema(spark_schema(NAMES))
    found: list[Any] = []
    for task in way.divide(ranges, 3):
        for topic, group, records in way.read(cluster, task, settings):
            for batch in batches(records, topic, group, NAMES, schema):
                found += batch.to_pylist()
    places = [(row["topic"], row["partition"], row["offset"]) for row in found]
    assert len(set(places)) == len(places)
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def ranges_of(cluster: Cluster, *topics: str) -> list[QueueRange]:
    bounds = cluster.bounds(queue for topic in topics for queue in cluster.queues(topic))
    return [QueueRange(queue, b.first, b.after) for queue, b in bounds.items()]


async def _fill(servers: str) -> None:
    async with Admin(servers) as admin:
        for topic in ("Ways", "Others", "Again"):
            await admin.create_topic(topic, queues=3)
    async with Producer(servers, "ways") as producer:
        for number in range(150):
            body = f"{number}".encode() * (1 if number % 10 else 3000)
            message = Message("Ways", body, tags="ABC"[number % 3], keys=f"k{number}" if number % 4 else "")
            await producer.send(message)
            await producer.send(Message("Others" if number % 2 else "Again", b"x" * 500))
        await producer.send_batch([Message("Ways", b"batch %d" % n, keys=["b", str(n)]) for n in range(50)])
        await producer.send(Message("Ways", b"late", delay_level=1))
    async with TransactionProducer(servers, "ways-half", _undecided) as half:
        for text, state in DECISIONS:
            await half.send_in_transaction(Message("Ways", text), _work(state))
    async with Admin(servers) as admin:
        await admin.delete_topic("Again")
        await admin.create_topic("Again", queues=3)
    async with Producer(servers, "ways-2") as producer:
        for number in range(20):
            await producer.send(Message("Again", b"new %d" % number))


def test_the_log_has_what_a_pull_has(live: LiveCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_fill(live.name_server))

    def complete() -> bool:
        values = [row["value"] for row in rows(cluster, ranges_of(cluster, "Ways"), PULL)]
        return len(values) == 202 and b"late" in values and b"yes" in values

    until(complete, "the delayed message is there")
    live.caught_up()
    asked: list[str] = []
    real = HttpBytes._request

    def request(self: HttpBytes, start: int, stop: int) -> bytes:
        asked.append(self._sources[0][0])
        return real(self, start, stop)

    monkeypatch.setattr(HttpBytes, "_request", request)
    pulled: list[int] = []
    pull = ways.read_range

    def counted(*given: Any) -> Iterator[Any]:
        for records in pull(*given):
            pulled.append(len(records))
            yield records

    monkeypatch.setattr(ways, "read_range", counted)
    wanted = ranges_of(cluster, "Ways", "Again")
    way = Logs("log").way(cluster, wanted)
    assert isinstance(way, LogWay)
    found = rows(cluster, wanted, way)
    assert not pulled, "everything is in the log"
    assert set(asked) == {live.urls[1]}, "only the slave is read"
    assert found == rows(cluster, wanted, PULL)
    assert sum(row["topic"] == "Again" for row in found) == 20
    assert sum(pulled) == len(found)

    # A part of each queue, by tags and by times.
    part = [replace(r, start=r.start + r.count // 4, end=r.end - r.count // 3) for r in wanted]
    assert rows(cluster, part, way, ("A", "C")) == rows(cluster, part, PULL, ("A", "C"))
    middle = int(found[len(found) // 2]["timestamp"].timestamp() * 1000)
    timed = [replace(r, from_ms=middle) for r in wanted]
    assert rows(cluster, timed, way) == rows(cluster, timed, PULL)

    # What a log lacks is pulled, and one of another cluster is left alone.
    (log,) = way.logs.values()
    log.segments = log.segments[:1]
    segment = log.segments[0]
    log.segments[0] = replace(segment, limit=min(segment.limit, _middle(cluster, wanted)))
    del pulled[:]
    assert rows(cluster, wanted, way) == found
    assert 0 < sum(pulled) < len(found)
    monkeypatch.setattr(HttpBytes, "_request", lambda self, start, stop: b"\1" * (stop - start))
    assert rows(cluster, wanted, way) == found


def _middle(cluster: Cluster, wanted: list[QueueRange]) -> int:
    """A place in the log with messages on both sides."""
    placed = ways._placed(cluster, wanted, PullSettings("TOOLS_CONSUMER", (), True, True))
    low, high = ways._span(placed)
    return (low + high) // 2


def test_the_archive_has_what_a_pull_has(live: LiveCluster, cluster: Cluster, tmp_path: Path) -> None:
    from gantry_broker.archive.archiver import Archiver
    from gantry_broker.archive.chain import Archive
    from gantry_broker.archive.objects import Location, ObjectStore
    from gantry_broker.archive.sealing import sealer
    from gantry_broker.archive.upload import Settings, View

    live.caught_up()
    status = live.status(live.urls[0])
    assert status is not None
    clock = [1_700_000_000_000]
    url = f"file://{tmp_path}/archive"
    archiver = Archiver(
        Archive(ObjectStore(Location(url)), sealer(None)), group="a", uid="u", cluster="demo",
        log_dir=live.folder / "data-0" / "commitlog", view=lambda: None, turn=lambda: True,
        settings=lambda: Settings(), delays=(1_000,), clock_ms=lambda: clock[0],
    )  # fmt: skip
    record = status.epochs if hasattr(status, "epochs") else ()
    view = View(0, status.confirmed, 1 << 20, record)
    while archiver._step(view, Settings(part=100_000), True):
        clock[0] += 70_000
    wanted = ranges_of(cluster, "Ways", "Again")
    options = {"nameServers": live.name_server, "subscribe": "Ways", "via": "log", "archive": url}
    way = ReadOptions(options, stream=False).logs.way(cluster, wanted)
    assert isinstance(way, LogWay)
    assert rows(cluster, wanted, way) == rows(cluster, wanted, PULL)
