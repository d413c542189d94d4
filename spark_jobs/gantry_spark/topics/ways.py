"""The two ways to the messages of topics, behind one interface: RocketMQ's pull, and the log of a broker group.

A log is read in large pieces from slaves, over the brokers' HTTP interface, or from an archive, so it costs a master
next to nothing. It has the records of all topics. Their queue offsets say which of them a consumer would be given:
delayed messages and halves of transactions lie in queues of their own until then. What a log lacks is pulled, and the
pull decides whether it expired, was compacted, or is damaged. So both ways bring the same messages.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from gantry_broker.protocol.codes import PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullHeader

from gantry_spark.errors import Expired, GantrySparkError, SourceError
from gantry_spark.layout import Bools, Ints
from gantry_spark.record_boundaries import find_record_boundaries
from gantry_spark.records import Records, check
from gantry_spark.scan import Range, scan
from gantry_spark.topics.pull import PullSettings, read_range, within
from gantry_spark.topics.queues import (
    RECORDS_PER_TASK,
    QueueRange,
    divide,
    divide_evenly,
)
from gantry_spark.topics.wire import Broken, Cluster, Connection, Refused

logger = logging.getLogger(__name__)

LEAST_RECORDS: Final = RECORDS_PER_TASK
"""Messages of a read for which a log is looked for. Fewer are pulled sooner than found."""
WORTH: Final = 6
"""A log is read where the wanted messages are at least this part of its bytes: a pull costs so many times as much."""
_SLACK: Final = 4 * 1024 * 1024
_TRANSACTION: Final = 12
_SHOWN: Final = (0, 8)
"""Kinds of records that consume queues have: plain ones, and committed ones of transactions."""


class Way(ABC):
    """A way to messages. Tasks receive it."""

    @abstractmethod
    def divide(self, ranges: Sequence[QueueRange], least: int) -> list[tuple[QueueRange, ...]]:
        """Divide ranges into tasks, at least `least` of them while there are messages."""

    @abstractmethod
    def read(
        self, cluster: Cluster, ranges: Sequence[QueueRange], settings: PullSettings
    ) -> Iterator[tuple[str, str, Records]]:
        """Yield topic, broker group and messages of ranges. A queue's messages come in order, unless a part of them
        was missing in a log. Records are valid until the next ones. Raises SourceError.
        """


class PullWay(Way):
    """By RocketMQ's pull."""

    def divide(self, ranges: Sequence[QueueRange], least: int) -> list[tuple[QueueRange, ...]]:
        return divide(ranges, least)

    def read(
        self, cluster: Cluster, ranges: Sequence[QueueRange], settings: PullSettings
    ) -> Iterator[tuple[str, str, Records]]:
        for queue_range in ranges:
            for records in read_range(cluster, queue_range, settings):
                yield queue_range.queue.topic, queue_range.queue.broker, records


class LogWay(Way):
    """By the logs of broker groups. Groups without one, and what a log lacks, are pulled."""

    def __init__(self, logs: Mapping[str, Any], pulled: frozenset[str] = frozenset()) -> None:
        """Set up for some logs: `remote.RemoteLog` or `archived.ArchivedLog` by broker group.

        `pulled`: topics that are pulled all the same.
        """
        self.logs = dict(logs)
        self.pulled = pulled

    def divide(self, ranges: Sequence[QueueRange], least: int) -> list[tuple[QueueRange, ...]]:
        by_log = [r for r in ranges if self._has(r)]
        return divide_evenly(by_log, least) + divide([r for r in ranges if not self._has(r)], least)

    def _has(self, queue_range: QueueRange) -> bool:
        return queue_range.queue.broker in self.logs and queue_range.queue.topic not in self.pulled

    def read(
        self, cluster: Cluster, ranges: Sequence[QueueRange], settings: PullSettings
    ) -> Iterator[tuple[str, str, Records]]:
        groups: dict[str, list[QueueRange]] = {}
        rest = [r for r in ranges if not self._has(r)]
        for one in ranges:
            if self._has(one):
                groups.setdefault(one.queue.broker, []).append(one)
        for group, of_group in groups.items():
            log = self.logs[group]
            candidates = _placed(cluster, of_group, settings)
            placed = [one for one in candidates if one.begin >= 0]
            if not _worth(placed) or not _is_of(log, placed):
                rest += of_group
                continue
            rest += [one.queue_range for one in candidates if one.begin < 0]
            yield from _scanned(log, placed, settings)
            for part in placed:
                yield from _missing(cluster, part, settings)
        yield from PullWay().read(cluster, rest, settings)


PULL: Final = PullWay()


@dataclass
class _Placed:
    """A range and its place in the log: that of its first message, and of its last one."""

    queue_range: QueueRange
    begin: int = -1
    """Offset of its first message in the log; -1: not known."""
    end: int = 0
    """Offset behind its last message."""
    size: int = 0
    """Bytes of its first and its last message together."""
    first: bytes = b""
    """The first message as it is stored."""
    seen: Any = None
    """A flag for each message: it was read."""


# ---- where messages are


def _placed(cluster: Cluster, ranges: Sequence[QueueRange], settings: PullSettings) -> list[_Placed]:
    """Look up the first and the last message of each range. `begin` stays -1 where a broker has no answer."""
    candidates = [_Placed(queue_range) for queue_range in ranges]
    topic, group = ranges[0].queue.topic, ranges[0].queue.broker
    # Any member knows the place: a slave first, since a master has more to do.
    for _, address in sorted(cluster.addresses(topic, group)):
        try:
            _look_up(cluster.connection(address), candidates, settings)
        except Broken:
            cluster.drop(address)
        except SourceError as error:
            logger.debug("%s: %s", address, error)
        if all(one.begin >= 0 for one in candidates):
            break
    return candidates


def _look_up(connection: Connection, candidates: list[_Placed], settings: PullSettings) -> None:
    left = [one for one in candidates if one.begin < 0]
    frames = [
        _one(one.queue_range, offset, settings)
        for one in left
        for offset in (one.queue_range.start, one.queue_range.end - 1)
    ]  # fmt: skip
    numbers = connection.send_all(frames)
    answers = [_record(connection.answer(number)) for number in numbers]
    for one, first, last in zip(left, answers[::2], answers[1::2], strict=True):
        if first is None or last is None:
            continue
        (begin, begin_size, raw), (at, size, _) = first, last
        if begin <= at:
            one.begin, one.end, one.size, one.first = begin, at + size, begin_size + size, raw
            one.seen = np.zeros(one.queue_range.count, dtype=np.bool_)


def _one(queue_range: QueueRange, offset: int, settings: PullSettings) -> Frame:
    queue = queue_range.queue
    header = PullHeader(
        settings.group, queue.topic, queue.queue_id, Long(offset), 1, PullFlag.SUBSCRIPTION, Long(0),
        subscription="*", bname=queue.broker,
    )  # fmt: skip
    return Frame(RequestCode.PULL_MESSAGE, ext=header.ext())


def _record(answer: Frame) -> tuple[int, int, bytes] | None:
    """Return the place in the log, the size and the bytes of the message in an answer; None: it has none."""
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    at, end = find_record_boundaries(bytearray(answer.body), len(answer.body), len(answer.body))
    if not len(at) or end != len(answer.body):
        return None
    checked, _ = check(np.frombuffer(answer.body, dtype=np.uint8), 0, at[:1], False, of_log=False)
    if checked is None or not bool(checked.structure[0]):
        return None
    size = int(checked.headers["size"][0])
    return int(checked.headers["phys"][0]), size, bytes(answer.body[:size])


def _worth(placed: Sequence[_Placed]) -> bool:
    """Return whether the wanted messages are a large enough part of their range of the log."""
    if not placed:
        return False
    needed_bytes = sum(one.queue_range.count * one.size // 2 for one in placed)
    low, high = _span(placed)
    return high - low <= WORTH * needed_bytes + _SLACK


def _span(placed: Sequence[_Placed]) -> tuple[int, int]:
    return min(one.begin for one in placed if one.begin >= 0), max(one.end for one in placed)


def _is_of(log: Any, placed: Sequence[_Placed]) -> bool:
    """Return whether a log has one of these messages where the broker has it. Another cluster's archive has not."""
    for one in placed:
        at = one.begin
        for index, segment in enumerate(log.segments):
            if segment.start <= at and at + len(one.first) <= segment.limit:
                into = bytearray(len(one.first))
                try:
                    with log.open(index) as source:
                        count = source.read_into(at, memoryview(into))
                except (GantrySparkError, OSError) as error:
                    logger.warning("log of group %s: %s; messages are pulled", log.name, error)
                    return False
                if count == len(into) and bytes(into) == one.first:
                    return True
                logger.warning("the log of group %s is another one: messages are pulled", log.name)
                return False
    return False


# ---- reading a log


def _scanned(log: Any, placed: Sequence[_Placed], settings: PullSettings) -> Iterator[tuple[str, str, Records]]:
    """Yield the messages that the log has, and mark them as seen."""
    low, high = _span(placed)
    by_topic: dict[str, list[_Placed]] = {}
    for one in placed:
        by_topic.setdefault(one.queue_range.queue.topic, []).append(one)
    last = len(log.segments) - 1
    try:
        for index, segment in enumerate(log.segments):
            start, stop = max(low, segment.start), min(high, segment.limit)
            if start >= stop:
                continue
            part_range = Range(start, stop, segment.limit, segment.end, index == last)
            with log.open(index) as source:
                for block in scan(source, part_range, settings.verify, names=settings.names):
                    if not isinstance(block, Records):
                        continue  # The pull says what is damaged.
                    for topic, of_topic in by_topic.items():
                        records = _chosen(block, topic, of_topic, settings)
                        if len(records):
                            yield topic, log.name, records
    except (Expired, SourceError, OSError) as error:
        logger.warning("the log of group %s: %s; the rest is pulled", log.name, error)


def _chosen(block: Records, topic: str, placed: Sequence[_Placed], settings: PullSettings) -> Records:
    """Return the records of a block that belong to ranges of one topic, each message once."""
    mine: Bools = pc.equal(block.topics, topic).to_numpy(zero_copy_only=False)
    mine &= np.isin(block.field("sys_flag") & _TRANSACTION, _SHOWN)
    if not mine.any():
        return block.where(mine)
    records = block if bool(mine.all()) else block.where(mine)
    queues, offsets = records.field("queue_id"), records.field("queue_offset")
    places: Ints = records.base + records.at
    keep: Bools = np.zeros(len(records), dtype=np.bool_)
    for one in placed:
        asked_range = one.queue_range
        # A topic that was made again may have numbers that it had before, further down in the log.
        rows = np.flatnonzero(
            (queues == asked_range.queue.queue_id) & (offsets >= asked_range.start) & (offsets < asked_range.end)
            & (places >= one.begin) & (places < one.end)
        )  # fmt: skip
        numbers, first = np.unique(offsets[rows] - asked_range.start, return_index=True)
        new = ~one.seen[numbers]
        one.seen[numbers] = True
        keep[rows[first[new]]] = True
    records = records if bool(keep.all()) else records.where(keep)
    shared = placed[0].queue_range
    return within(records, replace(shared, start=0, end=1 << 62), settings.tags) if len(records) else records


def _missing(cluster: Cluster, one: _Placed, settings: PullSettings) -> Iterator[tuple[str, str, Records]]:
    """Pull what the log lacked."""
    lacking = np.flatnonzero(~one.seen)
    if not len(lacking):
        return
    whole = one.queue_range
    span = replace(whole, start=whole.start + int(lacking[0]), end=whole.start + int(lacking[-1]) + 1)
    for records in read_range(cluster, span, settings):
        keep = ~one.seen[records.field("queue_offset") - whole.start]
        lacked = records if bool(keep.all()) else records.where(keep)
        if len(lacked):
            yield whole.queue.topic, whole.queue.broker, lacked


# ---- what is there


@dataclass(frozen=True)
class Logs:
    """Where logs are looked for. `via`: auto, pull or log."""

    via: str = "auto"
    archive: Any = None
    """`archived.ArchivePlace`; None: the brokers are asked."""
    token_file: str | None = None

    def way(self, cluster: Cluster, ranges: Sequence[QueueRange]) -> Way:
        """Return the way to these messages. Raises SourceError for via=log without a log."""
        if self.via == "pull" or (self.via == "auto" and sum(r.count for r in ranges) < LEAST_RECORDS):
            return PULL
        try:
            logs = self._open(cluster)
        except SourceError as error:
            if self.via == "log":
                raise
            logger.debug("no log is read: %s", error)
            return PULL
        some = {r.queue.topic: r.queue for r in ranges}.values()
        pulled = frozenset(queue.topic for queue in some if not has_all(cluster, queue))
        return LogWay({log.name: log for log in logs}, pulled)

    def _open(self, cluster: Cluster) -> list[Any]:
        # These modules take a while to import, and every Spark worker would pay for it.
        if self.archive is not None:
            from gantry_spark import archived

            return list(archived.open_logs(self.archive))
        from gantry_spark import remote, remoting

        urls = remoting.broker_urls(";".join(cluster.name_servers), cluster.trust)
        return list(remote.open_logs(urls, self.token_file, 0, cluster.trust))


def has_all(cluster: Cluster, queue: MessageQueue) -> bool:
    """Return whether the queues of a topic are known to have every message of the log: a compacted topic shows
    fewer. `queue`: one of them.
    """
    try:
        return not _is_compacted(cluster, queue)
    except Refused:
        return False


def is_compacted(cluster: Cluster, queue: MessageQueue) -> bool:
    """Return whether a topic is known to be compacted. `queue`: one of its queues. Raises SourceError."""
    try:
        return _is_compacted(cluster, queue)
    except Refused:
        return False


def _is_compacted(cluster: Cluster, queue: MessageQueue) -> bool:
    return cluster.attributes(queue.topic, queue.broker).get("cleanup.policy", "").upper() == "COMPACTION"
