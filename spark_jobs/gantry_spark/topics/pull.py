"""Messages of a queue by RocketMQ's own pull: what a consumer would be given. Works with Apache RocketMQ as well.

A broker of RocketMQ answers a pull with at most 32 messages by default, one of Gantry here with up to 1,024
(`gantryLarge`), so several pulls are under way at a time. Each begins where the one before would end if it brought as
many messages as the last full answer. When it brings another number, the later ones are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullAnswer, PullHeader

from gantry_spark.errors import SourceError
from gantry_spark.layout import Ints
from gantry_spark.properties import properties_of
from gantry_spark.record_boundaries import find_record_boundaries
from gantry_spark.records import Records, check
from gantry_spark.scan import plain_records
from gantry_spark.topics.queues import QueueRange, queue_text
from gantry_spark.topics.wire import NOT_NOW, Block, Broken, Cluster, Connection, Pauses, Refused

logger = logging.getLogger(__name__)

ASKED: Final = 1_024
"""Messages that a pull asks for. Brokers have a lower limit (`maxTransferCountOnMessageInMemory`: 32)."""
LARGE: Final = True
"""Ask for large answers."""
LEAST_UNDER_WAY: Final = 2
MOST_UNDER_WAY: Final = 32
BYTES_UNDER_WAY: Final = 2 * 1024 * 1024
"""Pulls under way: as many as bring these bytes, between `LEAST_UNDER_WAY` and `MOST_UNDER_WAY`. They become more while
each answer ends where the next pull begins: others are in vain.
"""
BLOCK: Final = 2 * 1024 * 1024
"""Bytes of messages that become one Arrow batch: they stay in the processor's cache from the socket to the column."""
_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")
_WAIT: Final = frozenset((ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY))


class PullSettings:
    """What the pulls of a read have in common. Tasks receive it."""

    def __init__(
        self, group: str, tags: tuple[str, ...], verify: bool, fail_on_loss: bool, names: tuple[str, ...] = ()
    ) -> None:
        self.group = group
        self.tags = tags
        self.names = tuple(dict.fromkeys((*names, *(("TAGS",) if tags else ()))))
        """Properties that the reader asks for, which are cheapest found with the messages."""
        self.verify = verify
        self.fail_on_loss = fail_on_loss
        self.losses: list[str] = []
        """What this process could not read and went on without."""

    def lost(self, text: str) -> None:
        """Report messages that cannot be read. Raises SourceError unless the read goes on without them."""
        if self.fail_on_loss:
            raise SourceError(f"{text}; set failOnDataLoss to false to go on without them")
        self.losses.append(text)
        logger.warning("%s", text)


def read_range(cluster: Cluster, queue_range: QueueRange, settings: PullSettings) -> Iterator[Records]:
    """Yield the messages of a range in order. Raises SourceError."""
    at = queue_range.start
    pauses = Pauses(cluster.timeout_s)
    queue = queue_range.queue
    name = f"queue {queue_text(queue)} of topic {queue.topic}"
    while at < queue_range.end:
        pull = _Pulls(queue_range, at, settings)
        problem, again = "", False
        for master, address in cluster.addresses(queue.topic, queue.broker):
            begun = pull.at
            try:
                for block in pull.run(cluster.connection(address)):
                    yield from _decode(memoryview(block.buffer)[: block.used], queue_range, settings, name)
            except Broken as error:
                problem = str(error)
                cluster.drop(address)
            except Refused as error:
                if error.code not in NOT_NOW:
                    raise
                problem = str(error)
            if pull.at > begun:
                pauses = Pauses(cluster.timeout_s)
            if pull.at >= queue_range.end:
                break
            if pull.moved is not None and master:
                low, high = pull.moved
                if pull.at < low:
                    settings.lost(
                        f"{name}: messages {pull.at} to {min(low, queue_range.end) - 1} expired before the read"
                    )
                    pull.at, again = low, True
                elif pull.at > high:
                    settings.lost(f"{name} ends at offset {high}: messages {pull.at} to {queue_range.end - 1} are gone")
                    return
                break
            problem = problem or f"{address} does not have message {pull.at} yet"
        at = pull.at
        if at < queue_range.end and not again and not pauses.wait():
            raise SourceError(f"{name} cannot be read from offset {at} on: {problem or 'no broker is known'}")
        if problem:
            cluster.forget(queue.topic)


class _Pulls:
    """Pulls of one range over one connection after another."""

    def __init__(self, queue_range: QueueRange, at: int, settings: PullSettings) -> None:
        self.at = at
        self.moved: tuple[int, int] | None = None
        """First offset and end of the queue, when the broker has no message at `at`."""
        self._range = queue_range
        self._block = Block()
        queue = queue_range.queue
        self._ext = PullHeader(
            settings.group, queue.topic, queue.queue_id, Long(0), 1, PullFlag.SUBSCRIPTION, Long(0),
            subscription=" || ".join(settings.tags) or "*", bname=queue.broker, gantryLarge=LARGE or None,
        ).ext()  # fmt: skip

    def _frame(self, offset: int) -> Frame:
        count = max(1, min(ASKED, self._range.end - offset))
        return Frame(RequestCode.PULL_MESSAGE, ext={**self._ext, "queueOffset": str(offset), "maxMsgNums": str(count)})

    def run(self, connection: Connection) -> Iterator[Block]:
        """Yield the bodies of answers, several at a time, and advance `at`. A block is valid until the next one. Raises
        Broken, Refused.
        """
        self.moved = None
        step = 0
        depth = LEAST_UNDER_WAY
        under_way: list[tuple[int, int]] = []
        held = self._block
        held.used = 0
        reached = self.at
        end = self._range.end
        try:
            while reached < end:
                if not under_way:
                    under_way.append((reached, connection.send_all([self._frame(reached)])[0]))
                if step:
                    begins = [under_way[-1][0] + step * (i + 1) for i in range(depth - len(under_way))]
                    begins = [b for b in begins if b < end]
                    if begins and (len(under_way) <= depth // 2):
                        numbers = connection.send_all([self._frame(b) for b in begins])
                        under_way += zip(begins, numbers, strict=True)
                begin, number = under_way.pop(0)
                before = held.used
                answer = connection.answer(number, held)
                if answer.code != ResponseCode.SUCCESS:
                    held.used = before
                following = self._following(connection, answer, begin)
                if following is None:
                    held.used = before
                    break
                step = following - begin if answer.code == ResponseCode.SUCCESS else 0
                size = max(1, held.used - before)
                depth = min(depth + 1, MOST_UNDER_WAY, max(LEAST_UNDER_WAY, BYTES_UNDER_WAY // size))
                reached = following
                if under_way and under_way[0][0] != reached:
                    connection.give_up(n for _, n in under_way)
                    under_way, depth = [], LEAST_UNDER_WAY
                if held.used >= BLOCK:
                    yield held
                    self.at, held.used = reached, 0
        finally:
            # A generator that is closed early must not leave answers to be taken for those of the next pulls.
            connection.give_up(n for _, n in under_way)
        if held.used:
            yield held
        self.at = max(self.at, min(reached, end))

    def _following(self, connection: Connection, answer: Frame, begin: int) -> int | None:
        """Return the offset of the next pull; None: the broker has nothing at `begin` now."""
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, *_WAIT):
            raise Refused(f"broker {connection.address}", RequestCode.PULL_MESSAGE, answer)
        following, low, high = (whole_number(answer.ext.get(field, "")) for field in _OFFSETS)
        if following is None or low is None or high is None:
            try:
                reply = PullAnswer.from_ext(answer.ext)
            except BadField as error:
                raise SourceError(f"broker {connection.address}: {error}") from None
            following, low, high = int(reply.nextBeginOffset), int(reply.minOffset), int(reply.maxOffset)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED or begin < low or begin > high:
            self.moved = low, high
            return None
        return following if following > begin else None


def _decode(data: memoryview, queue_range: QueueRange, settings: PullSettings, name: str) -> Iterator[Records]:
    plain = plain_records(data, len(data), None, len(data), settings.verify, settings.names)
    if plain is not None and plain.end == len(data):
        records = within(plain, queue_range, settings.tags)
        if len(records):
            yield records
        return
    at, end = find_record_boundaries(data, len(data), len(data))
    if end != len(data):
        settings.lost(f"{name}: an answer of the broker is no sequence of messages from byte {end} on")
    buf = np.frombuffer(data, dtype=np.uint8)
    checked, damage = check(buf, 0, at, settings.verify, of_log=False)
    if checked is None:
        return
    for one in damage:
        offset = int.from_bytes(data[one.start + 20 : one.start + 28], "big")
        settings.lost(f"{name}: message {offset} is damaged: {one.reason}")
    bad = np.flatnonzero(~checked.structure)
    if len(bad):
        settings.lost(f"{name}: {len(bad)} messages have no valid structure, the first after byte {int(at[bad[0]])}")
    records = within(checked.records(None), queue_range, settings.tags)
    if len(records):
        yield records


def within(records: Records, queue_range: QueueRange, tags: tuple[str, ...]) -> Records:
    """Return the records of a range, and with one of these tags (none given: all)."""
    offsets: Ints = records.field("queue_offset")
    keep = (offsets >= queue_range.start) & (offsets < queue_range.end)
    if queue_range.from_ms is not None:
        keep &= records.store_ms >= queue_range.from_ms
    if queue_range.until_ms is not None:
        keep &= records.store_ms < queue_range.until_ms
    if tags and len(records):
        # Brokers compare hashes of tags.
        record_tags = properties_of(records).values("TAGS")
        keep &= np.asarray(_is_in(record_tags, tags))
    return records if bool(keep.all()) else records.where(keep)


def _is_in(texts: Any, tags: tuple[str, ...]) -> Any:
    return pc.is_in(texts, value_set=pa.array(tags, type=pa.string())).to_numpy(zero_copy_only=False)
