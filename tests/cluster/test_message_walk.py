"""Pages of a topic: the same messages as one sorted list has, by a bounded number of reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from gantry_broker.client import ReceivedMessage
from gantry_broker.protocol.codes import Prop
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.message import decode_record, encode_record, format_properties, pack_host
from gantry_operator.cluster import message_walk
from gantry_operator.cluster.message_walk import PAGE, Filters, Place, QueueRange, Walk, place_of

Make = Callable[[MessageQueue, int], tuple[int, str, bytes]]
"""Store time, tag and body of the message with an offset."""


class Queues:
    """Queues of a topic whose messages are made when they are read."""

    def __init__(self, ranges: Mapping[MessageQueue, QueueRange], make: Make, most: int = 32) -> None:
        self._ranges = ranges
        self.make = make
        self.most = most
        self.requests = 0
        self.read = 0
        """Messages that were sent to the reader."""

    async def ranges(self) -> Mapping[MessageQueue, QueueRange]:
        return self._ranges

    async def offset_at(self, queue: MessageQueue, ms: int) -> int:
        self.requests += 1
        known = self._ranges[queue]
        low, high = known.first, known.end
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.make(queue, middle)[0] < ms else (low, middle)
        return low

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, tags: str
    ) -> tuple[Sequence[ReceivedMessage], int]:
        self.requests += 1
        chosen = {tag.strip() for tag in tags.split("||") if tag.strip()}
        found: list[ReceivedMessage] = []
        end = self._ranges[queue].end
        while offset < end and len(found) < min(count, self.most):
            if not chosen or self.make(queue, offset)[1] in chosen:
                found.append(self.message(queue, offset))
            offset += 1
        self.read += len(found)
        return found, offset

    def message(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        ms, tag, body = self.make(queue, offset)
        properties = format_properties({Prop.TAGS: tag, "kind": tag.upper()})
        host = pack_host("127.0.0.1", 1)
        record = encode_record(
            topic=b"T", body=body, properties=properties, queue_id=queue.queue_id, queue_offset=offset, store_ms=ms,
            born_ms=ms, born_host=host, store_host=host, phys_offset=0, flag=0, sys_flag=0,
        )  # fmt: skip
        return ReceivedMessage(decode_record(record), queue.broker)


def queue(number: int, broker: str = "a") -> MessageQueue:
    return MessageQueue("T", broker, number)


async def all_pages(reader: Queues, wanted: Filters, begin: Place | None, older: bool) -> list[list[Place]]:
    pages = []
    while True:
        page = await Walk(reader, wanted, begin, older=older).page()
        pages.append([place_of(m) for m in page.messages])
        begin = page.older if older else page.newer
        if begin is None:
            return pages


@pytest.mark.parametrize("seed", range(12))
async def test_pages_in_both_directions_have_every_message_once_in_order(seed: int) -> None:
    choose = random.Random(seed)
    queues = [queue(n, broker) for broker in ("a", "b,c") for n in range(choose.choice((1, 3, 9)))]
    times: dict[MessageQueue, list[int]] = {}
    ranges = {}
    for q in queues:
        first, count = choose.randrange(5), choose.choice((0, 1, 40, 120))
        # Many messages share a millisecond, also over queues.
        steps = sorted(1_000 + choose.randrange(choose.choice((1, 5, 300))) for _ in range(count))
        times[q] = [0] * first + steps
        ranges[q] = QueueRange(first, first + count, choose.choice((0, steps[-1] if steps else 0)))
    reader = Queues(ranges, lambda q, n: (times[q][n], "ab"[n % 2], f"body {n % 7}".encode()), choose.choice((5, 32)))
    tags, text = choose.choice(("", "a", "a || b", "none")), choose.choice(("", "DY 3"))
    wanted = Filters(tags, choose.choice(("", "kind", "kind=A")), text)
    chosen = {tag.strip() for tag in tags.split("||") if tag.strip()}
    everything = [reader.message(q, n) for q in queues for n in range(ranges[q].first, ranges[q].end)]
    expected = sorted(
        (place_of(m) for m in everything if (not chosen or m.tags in chosen) and wanted.fits(m)), reverse=True
    )
    back = await all_pages(reader, wanted, None, older=True)
    assert [place for page in back for place in page] == expected
    assert all(len(page) == PAGE for page in back[:-1])
    forth = await all_pages(reader, wanted, Place(0), older=False)
    assert [place for page in reversed(forth) for place in page] == expected
    at = choose.choice(expected) if expected else Place(1_100)
    middle = await Walk(reader, wanted, Place.parse(str(at)), older=True).page()
    assert [place_of(m) for m in middle.messages] == [p for p in expected if p < at][:PAGE]
    if middle.newer is not None:
        ahead = await Walk(reader, wanted, middle.newer, older=False).page()
        newest_shown = place_of(middle.messages[0]) if middle.messages else at._replace(offset=at.offset - 1)
        assert [place_of(m) for m in ahead.messages] == [p for p in expected if p > newest_shown][-PAGE:]


@pytest.mark.parametrize("queues", [1, 8, 512])
async def test_a_page_of_ten_million_messages_reads_no_more_than_one_of_a_thousand(queues: int) -> None:
    def reader_of(total: int) -> Queues:
        each = total // queues
        ranges = {queue(n): QueueRange(0, each, each * queues + n) for n in range(queues)}
        return Queues(ranges, lambda q, n: (n * queues + q.queue_id, "a", b"x"))

    async def cost(total: int, begin: Place | None, older: bool) -> tuple[int, int]:
        reader = reader_of(total)
        assert len((await Walk(reader, Filters(), begin, older=older).page()).messages) == PAGE
        return reader.requests, reader.read

    huge = 10_240_000
    for begin, older in ((None, True), (Place(huge // 2), True), (Place(huge // 2), False)):
        requests, read = await cost(huge, begin, older)
        assert requests <= 2 * queues + 64, (begin, older)
        assert read <= 4 * queues + 8 * PAGE, (begin, older)
    assert await cost(huge, None, True) == await cost(queues * 100, None, True)


async def test_a_search_that_finds_nothing_ends_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_walk, "READS", 20)
    total = 2_000
    reader = Queues({queue(0): QueueRange(0, total, total)}, lambda q, n: (n, "a", b"needle" if n == 3 else b"hay"))
    first = await Walk(reader, Filters(text="needle"), None, older=True).page()
    assert not first.messages
    assert 0 < first.looked_at < total
    assert first.stopped_at == first.older == Place(total - first.looked_at, "a", 0, total - first.looked_at)
    pages = await all_pages(reader, Filters(text="needle"), None, older=True)
    assert [place.offset for page in pages for place in page] == [3]


async def test_a_rare_tag_is_found_by_the_broker_without_reading_the_others() -> None:
    total = 50_000
    reader = Queues({queue(0): QueueRange(0, total, total)}, lambda q, n: (n, "rare" if n == 7 else "a", b"x"))
    pages = await all_pages(reader, Filters(tags="rare"), None, older=True)
    assert [place.offset for page in pages for place in page] == [7]
    assert reader.read < 400


@pytest.mark.parametrize(
    "text", ["", "1,2", "x,0,0,a", "1,0,99999999999999999999,a", "-1,0,0,a", "²,0,0,a", "1,-2,0,a"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no place in a topic"):
        Place.parse(text)
