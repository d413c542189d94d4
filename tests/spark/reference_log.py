"""A log written and read in plain Python: the generator of test stores, and the reference for the reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gantry_broker.protocol.message import (
    MAGIC_BLANK,
    Record,
    RecordError,
    decode_record,
    encode_record,
    format_properties,
    pack_host,
)

SEGMENT = 64 * 1024
PRODUCER = pack_host("10.1.0.9", 40000)
PRODUCER_V6 = pack_host("2001:db8::9", 40000)
BROKER = pack_host("10.1.0.1", 10911)
BROKER_V6 = pack_host("2001:db8::1", 10911)


@dataclass(repr=False)
class Message:
    topic: str = "Orders"
    queue_id: int = 0
    body: bytes = b"body"
    key: str | None = None
    props: dict[str, str] = field(default_factory=dict)
    store_ms: int = 1_700_000_000_000
    sys_flag: int = 0
    reconsume: int = 0
    prepared_offset: int = 0
    flag: int = 0
    v6: tuple[bool, bool] = (False, False)

    def __repr__(self) -> str:
        return f"Message({self.topic[:9]}/{self.queue_id} {len(self.body)} bytes, key {self.key!r}, v6 {self.v6})"


class LogWriter:
    """Appends messages to a store directory as a broker does, with segments of one size and fillers at their ends."""

    def __init__(self, root: Path, segment: int = SEGMENT, start: int = 0) -> None:
        self.root = root
        self.segment = segment
        self.end = start
        self.offsets: dict[tuple[str, int], int] = {}
        (root / "commitlog").mkdir(parents=True)

    def path(self, offset: int) -> Path:
        return self.root / "commitlog" / f"{offset - offset % self.segment:020d}"

    def write(self, offset: int, data: bytes) -> None:
        path = self.path(offset)
        if not path.exists():
            path.touch()
            with path.open("r+b") as file:
                file.truncate(self.segment)
        with path.open("r+b") as file:
            file.seek(offset % self.segment)
            file.write(data)

    def append(self, message: Message) -> int:
        """Append a message and return the physical offset of its record."""
        props = dict(message.props)
        if message.key is not None:
            props["KEYS"] = message.key
        place = (message.topic, message.queue_id)
        number = self.offsets.get(place, 0)

        def encoded(at: int) -> bytes:
            return encode_record(
                topic=message.topic.encode(), body=message.body, properties=format_properties(props),
                queue_id=message.queue_id, flag=message.flag, queue_offset=number, phys_offset=at,
                sys_flag=message.sys_flag, born_ms=message.store_ms - 3,
                born_host=PRODUCER_V6 if message.v6[0] else PRODUCER, store_ms=message.store_ms,
                store_host=BROKER_V6 if message.v6[1] else BROKER, reconsume_times=message.reconsume,
                prepared_offset=message.prepared_offset,
            )  # fmt: skip

        size = len(encoded(0))
        left = self.segment - self.end % self.segment
        if size + 8 > left:
            self.write(self.end, left.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big"))
            self.end += left
        at = self.end
        self.write(at, encoded(at))
        self.end += size
        self.offsets[place] = number + 1
        return at

    def extend(self, messages: Iterable[Message]) -> list[int]:
        return [self.append(message) for message in messages]


@dataclass(frozen=True)
class Lost:
    start: int
    end: int


def read_plain(root: Path) -> tuple[list[Record], list[Lost]]:
    """Return all records of a store directory and its damaged ranges, byte by byte."""
    records: list[Record] = []
    lost: list[Lost] = []
    paths = sorted((root / "commitlog").glob("[0-9]" * 20))
    while len(paths) > 1 and paths[-1].read_bytes()[:8] == bytes(8):
        paths.pop()
    for path in paths:
        data = path.read_bytes()
        found, broken = _read_segment(data, int(path.name), path == paths[-1])
        records += found
        lost += broken
    return records, lost


def _read_segment(data: bytes, base: int, last: bool) -> tuple[list[Record], list[Lost]]:
    records: list[Record] = []
    lost: list[Lost] = []
    at = 0
    while at < len(data):
        if _is_filler(data, at):
            break
        if _structure(data, at, base):
            try:
                records.append(decode_record(data, at))
            except RecordError:
                lost.append(Lost(base + at, base + at + int.from_bytes(data[at : at + 4], "big")))
            at += int.from_bytes(data[at : at + 4], "big")
            continue
        following = at + 1
        while following < len(data) and not _is_filler(data, following) and not _structure(data, following, base):
            following += 1
        written = len(data[at:following].rstrip(b"\0"))
        if following < len(data):
            lost.append(Lost(base + at, base + following))
        elif last:
            if written:
                lost.append(Lost(base + at, base + at + written))
        else:
            lost.append(Lost(base + at, base + following))
        at = following
    return records, lost


def _is_filler(data: bytes, at: int) -> bool:
    size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
    return magic == MAGIC_BLANK and at + size == len(data)


def _structure(data: bytes, at: int, base: int) -> bool:
    """Return whether the header and the lengths of a record at `at` are valid, for every body and topic."""
    magic = data[at + 4 : at + 8]
    if magic not in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab") or len(data) - at < 92:
        return False
    size, place, flags = _int(data, at, 4), _int(data, at + 28, 8), _int(data, at + 36, 4)
    fixed = 88 + 12 * bool(flags & 16) + 12 * bool(flags & 32)
    if place != base + at or size < fixed + 4 or at + size > len(data):
        return False
    body = _int(data, at + fixed - 4, 4)
    wide = 2 if magic[3] == 0xAB else 1
    if body < 0 or fixed + body + 3 > size or fixed + body + wide > size:
        return False
    topic = int.from_bytes(data[at + fixed + body : at + fixed + body + wide], "big")
    before = fixed + body + wide + topic + 2
    return before <= size and before + int.from_bytes(data[at + before - 2 : at + before], "big") == size


def _int(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "big", signed=True)
