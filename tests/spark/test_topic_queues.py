"""The pure part of the source by topic: positions, limits of a batch, losses, division into tasks."""

from __future__ import annotations

import pytest
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_spark.errors import SourceError
from gantry_spark.topics.columns import spark_schema
from gantry_spark.topics.options import ReadOptions, WriteOptions
from gantry_spark.topics.queues import (
    EARLIEST,
    LATEST,
    Bounds,
    QueueRange,
    divide,
    ended_in,
    from_table,
    limited,
    parse_position,
    plan,
    resolve,
    to_table,
)
from gantry_spark.topics.source import TopicSource
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

QUEUES = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0), MessageQueue("U", "b", 0)]
queues = st.sampled_from(QUEUES)
bounds = st.builds(lambda first, count: Bounds(first, first + count), st.integers(0, 50), st.integers(0, 50))
offsets = st.dictionaries(queues, st.integers(0, 120))


@given(offsets)
def test_offsets_survive_json(table: dict[MessageQueue, int]) -> None:
    assert from_table(to_table(table), "test") == table


@given(offsets, st.sets(queues))
def test_queues_that_ended_are_beside_the_offsets(table: dict[MessageQueue, int], some: set[MessageQueue]) -> None:
    ended = some & table.keys()
    written = to_table(table, ended)
    assert from_table(written, "test") == table
    assert ended_in(written) == ended


@given(offsets, st.dictionaries(queues, bounds), st.none() | st.integers(1, 60))
def test_batches_of_any_limit_read_every_message_once(
    start: dict[MessageQueue, int], there: dict[MessageQueue, Bounds], most: int | None
) -> None:
    first = {q: b.first for q, b in there.items()}
    read: dict[MessageQueue, list[int]] = {q: [] for q in there}
    at = dict(start)
    for _ in range(300):
        end = limited(at, there, most)
        if end == at:
            break
        found = plan(at, end, first)
        assert most is None or sum(r.count for r in found.ranges) <= max(most, len(there))
        assert bool(found.losses) == any(
            q in at and (end[q] < at[q] or at[q] < first[q]) and end[q] != at[q] for q in there
        )
        for one in found.ranges:
            read[one.queue] += range(one.start, one.end)
        at = end
    else:
        raise AssertionError("the batches have no end")
    for queue, bound in there.items():
        begin = start.get(queue, bound.first)
        begin = bound.first if begin > bound.after else max(begin, bound.first)
        assert read[queue] == list(range(begin, bound.after))
    assert {q: o for q, o in at.items() if q not in there} == {q: o for q, o in start.items() if q not in there}


def test_a_slave_that_lags_is_no_loss() -> None:
    queue = QUEUES[0]
    assert limited({queue: 9}, {queue: Bounds(0, 7, by_master=False)}, None) == {queue: 9}
    assert limited({queue: 9}, {queue: Bounds(0, 7)}, None) == {queue: 7}


def test_a_queue_that_is_gone_is_a_loss_only_if_messages_are_missing() -> None:
    queue = QUEUES[0]
    assert plan({queue: 5}, {queue: 5}, {}).losses == ()
    (loss,) = plan({queue: 5}, {queue: 8}, {}).losses
    assert "messages 5 to 7 cannot be read" in loss


def test_another_queue_with_the_name_of_one_that_ended_is_no_loss() -> None:
    queue = QUEUES[0]
    assert plan({queue: 5}, {queue: 3}, {queue: 0}, {queue}).losses == ()
    found = plan({queue: 5}, {queue: 3}, {queue: 0})
    assert "the topic was deleted and made again" in found.losses[0]
    assert found.ranges == (QueueRange(queue, 0, 3),)


@given(
    st.lists(
        st.builds(QueueRange, queues, st.integers(0, 50), st.integers(0, 400)), max_size=6, unique_by=lambda r: r.queue
    ),
    st.integers(1, 9),
    st.integers(1, 100),
)  # fmt: skip
def test_tasks_hold_every_message_once_and_in_order(ranges: list[QueueRange], least: int, per_task: int) -> None:
    tasks = divide(ranges, least, per_task)
    found: dict[MessageQueue, list[int]] = {}
    for task in tasks:
        assert task
        for one in task:
            assert one.count
            found.setdefault(one.queue, []).extend(range(one.start, one.end))
    assert found == {r.queue: list(range(r.start, r.end)) for r in ranges if r.count}
    total = sum(r.count for r in ranges)
    assert len(tasks) >= min(least, total) // 2


def test_positions_are_named_by_queue() -> None:
    there = {q: Bounds(3, 9) for q in QUEUES[:2]}
    assert resolve(parse_position("earliest", "startingOffsets"), there, "startingOffsets") == dict.fromkeys(there, 3)
    assert resolve(LATEST, there, "endingOffsets") == dict.fromkeys(there, 9)
    position = parse_position('{"T": {"a:0": -2, "a:1": 5}}', "startingOffsets")
    assert resolve(position, there, "startingOffsets") == {QUEUES[0]: 3, QUEUES[1]: 5}
    for text, error in (
        ("soon", "write earliest, latest or JSON"),
        ('{"T": 4}', "topic 'T' has '4'"),
        ('{"T": {"0": 4}}', "'0' is no queue; write GROUP:NUMBER"),
        ('{"T": {"a:x": 4}}', "is no queue"),
        ('{"T": {"a:0": -3}}', "has the offset '-3'; write a whole number from 0 on; -2: from the first"),
        ('{"T": {"a:0": 1.5}}', "has the offset '1.5'"),
        ('{"T": {"a:0": true}}', "has the offset 'True'"),
        ("[]", "write JSON as"),
    ):
        with pytest.raises(SourceError, match=error):
            parse_position(text, "startingOffsets")
    with pytest.raises(SourceError, match="names no offset for a:1 of topic T"):
        resolve(parse_position('{"T": {"a:0": 0}}', "o"), there, "o")
    with pytest.raises(SourceError, match="option o: topic U is none of T"):
        resolve(parse_position('{"U": {"a:0": 0}}', "o"), there, "o")
    with pytest.raises(SourceError, match="topic T has no readable queue a:7"):
        resolve(parse_position('{"T": {"a:0": 0, "a:1": 0, "a:7": 0}}', "o"), there, "o")
    assert EARLIEST == -2


READ = {"nameServers": "127.0.0.1:9876", "subscribe": "T"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subscribe": "T"}, "give option nameServers"),
        ({"nameServers": ";", "subscribe": "T"}, "option nameServers: '' is no address; write host:port"),
        ({"nameServers": "h:1;h", "subscribe": "T"}, "option nameServers: 'h' is no address"),
        ({"cluster": "h:99999", "subscribe": "T"}, "option cluster: 'h:99999' is no address"),
        ({"nameServers": "h:1"}, "subscribe .* and subscribePattern"),
        (READ | {"subscribePattern": "T.*"}, "subscribe .* and subscribePattern"),
        ({"nameServers": "h:1", "subscribePattern": "("}, "no regular expression"),
        (READ | {"topics": "T"}, "option topics: unknown; there are .*startingOffsets"),
        (READ | {"startingTimestamp": "soon"}, "option startingTimestamp: 'soon'; write a whole number"),
        (READ | {"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingOffsets and startingTimestamp"),
        (READ | {"startingOffsets": "latest"}, "latest is a start of streams"),
        (READ | {"startingOffsets": '{"T": {"a:0": -1}}'}, "latest is a start of streams, as -1 is"),
        (READ | {"endingOffsets": "earliest"}, "earliest is only a start"),
        (READ | {"endingOffsets": '{"T": {"a:0": -2}}'}, r"-2 \(earliest\) is only a start"),
        (READ | {"endingOffsets": "{"}, "option endingOffsets: '{'; write earliest, latest or JSON"),
        (READ | {"endingOffsets": "latest", "endingTimestamp": "1"}, "endingOffsets and endingTimestamp"),
        (READ | {"startingTimestamp": "-1"}, "whole number from 0"),
        (READ | {"startingTimestamp": "5", "endingTimestamp": "4"}, "endingTimestamp: 4 is before startingTimestamp 5"),
        (READ | {"maxOffsetsPerTrigger": "-1"}, "whole number from 1"),
        (READ | {"minPartitions": "1e3"}, "option minPartitions: '1e3'; write a whole number from 1 to 100000"),
        (READ | {"timeoutMs": "10"}, "option timeoutMs: '10'; write a whole number from 1000"),
        (READ | {"via": "archive"}, "option via: 'archive'; write one of auto, pull, log"),
        (READ | {"archive": "here"}, "option archive: 'here' is no archive; write its URL"),
        (READ | {"verify": "1"}, "option verify: '1'; write true or false"),
        (READ | {"path": "U"}, "give the topic once"),
        (READ | {"secretKey": "a"}, "accessKey and secretKey together"),
        (READ | {"maxOffsetsPerTrigger": "0"}, "whole number from 1"),
        (READ | {"minPartitions": "²"}, "whole number from 1"),
        (READ | {"failOnDataLoss": "no"}, "write true or false"),
        (READ | {"groupId": "a b"}, "option groupId: group 'a b'"),
        (READ | {"accessKey": "a"}, "accessKey and secretKey together"),
        (READ | {"accessKey": "a", "secretKey": "b", "credentialsFile": "f"}, "not both"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], error: str) -> None:
    with pytest.raises(SourceError, match=error):
        ReadOptions(options, stream=False)


def test_options_of_a_stream_and_of_a_write() -> None:
    assert ReadOptions(READ, stream=True).starting == LATEST
    assert ReadOptions(READ | {"STARTINGOFFSETS": "earliest", "tags": "*"}, stream=True).tags == ()
    with pytest.raises(SourceError, match="a stream has no end"):
        ReadOptions(READ | {"endingOffsets": "latest"}, stream=True)
    with pytest.raises(SourceError, match="option subscribe: unknown"):
        WriteOptions(READ)
    for name, value in (("orderByKey", "yes"), ("producerGroup", "a b"), ("timeoutMs", "x"), ("nameServers", "x")):
        with pytest.raises(SourceError, match=f"option {name}: "):
            WriteOptions({"nameServers": "h:1", "topic": "T", name: value})
    assert "secret" not in repr(ReadOptions(READ | {"accessKey": "a", "secretKey": "secret"}, stream=True).access.trust)


def test_ends_before_starts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {"startingOffsets": '{"T": {"a:0": 5}}', "endingOffsets": '{"T": {"a:0": 4}}'}
    reader = TopicSource(READ | offsets).reader(spark_schema(("offset",)))
    monkeypatch.setattr(reader.cluster, "queues", lambda topic: [QUEUES[0]])
    monkeypatch.setattr(reader.cluster, "bounds", lambda queues: {QUEUES[0]: Bounds(0, 9)})
    with pytest.raises(SourceError, match="endingOffsets: 4 is before startingOffsets 5 of queue a:0 of topic T"):
        reader.partitions()


def test_a_write_only_appends() -> None:
    source = TopicSource({"nameServers": "h:1", "topic": "T"})
    columns = StructType([StructField("value", BinaryType())])
    assert source.writer(columns, False)
    with pytest.raises(SourceError, match="mode overwrite: messages of a topic cannot be replaced; write mode append"):
        source.writer(columns, True)
