"""Queues and their offsets: texts of options, limits of a batch, ranges and their division into tasks. Pure.

Offsets count the messages of a queue, as in RocketMQ. A range [start, end) has its end outside. In JSON a queue is
`BROKER_GROUP:QUEUE_ID`, and offsets are `{"topic": {"group:0": 17}}`, as Kafka's connector writes them. A stream's
checkpoint also has `{"topic!ended": {"group:0": 17}}`: queues that may go without a loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from gantry_broker.protocol.digits import MAX_INT, whole_number
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.plausible import MAX_OFFSET

from gantry_spark.errors import SourceError

EARLIEST: Final = -2
LATEST: Final = -1
ENDED: Final = "!ended"
"""Behind the name of a topic in a checkpoint, which no name of a topic has."""
RECORDS_PER_TASK: Final = 50_000
"""Tasks of fewer records cost more to start than to run."""
RECORDS_PER_LOG_TASK: Final = 250_000
"""Records of one task that reads a log, which is faster than a pull."""

Offsets = dict[MessageQueue, int]
OffsetTable = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Bounds:
    """The first offset of a queue, and the one after its last message. `by_master`: whether its master said so."""

    first: int
    after: int
    by_master: bool = True


@dataclass(frozen=True)
class QueueRange:
    """Messages [start, end) of a queue. Times are Unix milliseconds: only messages stored at or after `from_ms` and
    before `until_ms` belong to it; None: no bound.
    """

    queue: MessageQueue
    start: int
    end: int
    from_ms: int | None = None
    until_ms: int | None = None

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Plan:
    """What a batch reads, and what it cannot read: a text for each queue with lost messages."""

    ranges: tuple[QueueRange, ...]
    losses: tuple[str, ...]


def queue_text(queue: MessageQueue) -> str:
    """Return the name of a queue within its topic."""
    return f"{queue.broker}:{queue.queue_id}"


def to_table(offsets: Mapping[MessageQueue, int], ended: Iterable[MessageQueue] = ()) -> OffsetTable:
    """Return offsets as JSON has them. `ended`: those of the queues that may go without a loss."""
    table: OffsetTable = {}
    for queue, offset in sorted(offsets.items()):
        table.setdefault(queue.topic, {})[queue_text(queue)] = offset
    for queue in sorted(ended):
        table.setdefault(queue.topic + ENDED, {})[queue_text(queue)] = offsets[queue]
    return table


def ended_in(table: OffsetTable) -> frozenset[MessageQueue]:
    """Return the queues that may go without a loss. Raises SourceError."""
    marked = {topic.removesuffix(ENDED): queues for topic, queues in table.items() if topic.endswith(ENDED)}
    return frozenset(from_table(marked, "the checkpoint's offset"))


def from_table(table: Any, what: str, least: int = 0) -> Offsets:
    """Parse offsets. `what`: the option or the file, for errors; `least`: the smallest number. Raises SourceError."""
    offsets: Offsets = {}
    if not isinstance(table, dict):
        raise SourceError(f'{what}: {str(table)[:80]!r}; write JSON as {{"topic": {{"group:0": 17}}}}')
    for topic, queues in table.items():
        if str(topic).endswith(ENDED):
            continue
        if not isinstance(queues, dict):
            raise SourceError(f'{what}: topic {topic!r} has {str(queues)[:80]!r}; write {{"group:0": 17}}')
        for name, offset in queues.items():
            group, colon, number = str(name).rpartition(":")
            queue_id = whole_number(number, 0, MAX_INT)
            if not colon or not group or queue_id is None:
                raise SourceError(f"{what}: {name!r} is no queue; write GROUP:NUMBER, as demo-a:0")
            if type(offset) is not int or not least <= offset <= MAX_OFFSET:
                also = "" if least == 0 else "; -2: from the first, -1: from the last"
                raise SourceError(
                    f"{what}: {name} of topic {topic} has the offset {str(offset)[:40]!r}; write a whole number from 0 "
                    f"on{also}"
                )
            offsets[MessageQueue(topic, group, queue_id)] = offset
    return offsets


def parse_position(text: str, option: str) -> int | Offsets:
    """Parse startingOffsets or endingOffsets: EARLIEST, LATEST, or offsets by queue, in which -2 and -1 mean these.

    Raises SourceError.
    """
    if text == "earliest":
        if option.startswith("ending"):
            raise SourceError(f"option {option}: earliest is only a start; write latest or JSON")
        return EARLIEST
    if text == "latest":
        return LATEST
    try:
        table = orjson.loads(text)
    except ValueError:
        raise SourceError(
            f"option {option}: {text[:80]!r}; write earliest, latest or JSON by topic and queue"
        ) from None
    return from_table(table, f"option {option}", EARLIEST)


def resolve(position: int | Offsets, bounds: Mapping[MessageQueue, Bounds], option: str) -> Offsets:
    """Return the offset of each queue of a position. Raises SourceError, also for a queue that it does not name."""
    offsets: Offsets = {}
    if isinstance(position, dict):
        topics = {queue.topic for queue in bounds}
        unknown = sorted(position.keys() - bounds.keys())
        for queue in unknown:
            if queue.topic not in topics:
                raise SourceError(f"option {option}: topic {queue.topic} is none of {', '.join(sorted(topics)[:20])}")
        missing = sorted(bounds.keys() - position.keys())
        if missing:
            table = orjson.dumps({missing[0].topic: {queue_text(missing[0]): EARLIEST}}).decode()
            raise SourceError(
                f"option {option} names no offset for {queue_text(missing[0])} of topic {missing[0].topic} "
                f"({len(missing)} queues are missing); add them, as {table}; -2: from the first, -1: from the last"
            )
        if unknown:
            raise SourceError(
                f"option {option}: topic {unknown[0].topic} has no readable queue {queue_text(unknown[0])}"
            )
    for queue, bound in bounds.items():
        offset = position[queue] if isinstance(position, dict) else position
        offsets[queue] = bound.first if offset == EARLIEST else bound.after if offset == LATEST else offset
    return offsets


def limited(start: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds], most: int | None) -> Offsets:
    """Return the end of the next batch: at most `most` messages (None: all), shared in proportion to what there is.

    A queue that `start` does not name is new and begins with its first message. A queue with an offset behind its end
    was made again (or truncated), and begins with its first message as well.
    """
    begin: Offsets = {}
    waiting: dict[MessageQueue, int] = {}
    result: Offsets = dict(start)
    for queue, bound in bounds.items():
        at = start.get(queue, bound.first)
        if at > bound.after:
            if not bound.by_master:
                continue  # A slave that lags.
            at = bound.first
        begin[queue] = max(at, bound.first)
        if bound.after > begin[queue]:
            waiting[queue] = bound.after - begin[queue]
        elif queue not in start or at < bound.first or start[queue] > bound.after:
            result[queue] = bound.after
    total = sum(waiting.values())
    left = most
    for queue, count in sorted(waiting.items(), key=lambda one: one[1]):
        if most is None or left is None or total <= left:
            share = count
        else:
            # The last and longest queue takes what rounding left.
            share = min(count, max(left * count // total, 1 if left else 0))
            left -= share
            total -= count
        if share:
            result[queue] = begin[queue] + share
        elif queue not in start:
            result[queue] = begin[queue]
    return result


def plan(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    first: Mapping[MessageQueue, int],
    ended: Collection[MessageQueue] = (),
) -> Plan:
    """Return the ranges of a batch. `first`: the first offset of each queue that exists; `ended`: queues whose messages
    up to `start` were all.

    Messages between `start` and the first offset have expired. An end before its start belongs to a queue that was made
    again: all of its messages up to the end are read.
    """
    ranges: list[QueueRange] = []
    losses: list[str] = []
    for queue, stop in sorted(end.items()):
        name = f"queue {queue_text(queue)} of topic {queue.topic}"
        lowest = first.get(queue)
        begin = start.get(queue, lowest if lowest is not None else stop)
        if begin == stop:
            continue
        if lowest is None:
            losses.append(f"{name} no longer exists: messages {begin} to {stop - 1} cannot be read")
            continue
        if stop < begin:
            if queue not in ended:
                losses.append(
                    f"{name} ends at offset {stop}, and {begin} was reached: the topic was deleted and made again, or "
                    f"its broker lost messages"
                )
            begin = lowest
        elif begin < lowest:
            losses.append(f"{name}: messages {begin} to {min(lowest, stop) - 1} expired before they were read")
            begin = lowest
        if begin < stop:
            ranges.append(QueueRange(queue, begin, stop))
    return Plan(tuple(ranges), tuple(losses))


def divide(ranges: Iterable[QueueRange], least: int, per_task: int = RECORDS_PER_TASK) -> list[tuple[QueueRange, ...]]:
    """Divide ranges into tasks: at least `least` of them while there are messages, a queue's messages in order.

    Small ranges share a task, preferably with others of their broker group, since a task opens a connection to each.
    """
    all_ranges = sorted((r for r in ranges if r.count), key=lambda r: (r.queue.broker, r.queue))
    total = sum(r.count for r in all_ranges)
    if not total:
        return []
    size = max(1, min(-(-total // max(least, 1)), max(per_task, -(-total // max(least, len(all_ranges), 1)))))
    tasks: list[tuple[QueueRange, ...]] = []
    now: list[QueueRange] = []
    held = 0
    for one in all_ranges:
        pieces = [one]
        if least > 1 and one.count > size:
            count = -(-one.count // size)
            cuts = [one.start + one.count * i // count for i in range(count + 1)]
            pieces = [QueueRange(one.queue, a, b, one.from_ms, one.until_ms) for a, b in itertools.pairwise(cuts)]
        for piece in pieces:
            if now and held + piece.count > size:
                tasks.append(tuple(now))
                now, held = [], 0
            now.append(piece)
            held += piece.count
    tasks.append(tuple(now))
    return tasks


def divide_evenly(
    ranges: Iterable[QueueRange], least: int, per_task: int = RECORDS_PER_LOG_TASK
) -> list[tuple[QueueRange, ...]]:
    """Divide ranges into tasks, each with the same share of every queue of a broker group.

    Queues of a group that grow side by side lie side by side in its log, so a task reads one range of the log.
    """
    by_group: dict[str, list[QueueRange]] = {}
    for one in sorted((r for r in ranges if r.count), key=lambda r: (r.queue.broker, r.queue)):
        by_group.setdefault(one.queue.broker, []).append(one)
    total = sum(r.count for of_group in by_group.values() for r in of_group)
    tasks: list[tuple[QueueRange, ...]] = []
    for of_group in by_group.values():
        count = sum(r.count for r in of_group)
        pieces = max(1, -(-count // per_task), -(-least * count // total))
        for number in range(pieces):
            cuts = [
                (r, r.start + r.count * number // pieces, r.start + r.count * (number + 1) // pieces) for r in of_group
            ]
            task = tuple(QueueRange(r.queue, a, b, r.from_ms, r.until_ms) for r, a, b in cuts if a < b)
            if task:
                tasks.append(task)
    return tasks
