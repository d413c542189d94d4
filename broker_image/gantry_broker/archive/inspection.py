"""What an archive holds, for people: contents, a check of every byte, and removal by hand. All calls block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gantry_broker.archive import chain, restore, segment, upload
from gantry_broker.archive.chain import Archive, GroupArchive
from gantry_broker.archive.errors import ArchiveError, Damaged, Fenced, Missing
from gantry_broker.archive.manifest import Change, Owner, Part, State
from gantry_broker.archive.restore import Target
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.store.log.record_reader import Damage, Meta, in_queue, read_records


@dataclass(frozen=True, slots=True)
class TopicContents:
    """A topic in a range of the log: its queues with a record, and their records."""

    name: str
    queues: int
    messages: int


@dataclass(frozen=True, slots=True)
class GroupContents:
    """What a restore to a target would bring. Offsets are bytes of the log, times Unix ms."""

    group: str
    start: int
    end: int
    last_ms: int
    download: int
    topics: tuple[TopicContents, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of reading a group's archive whole."""

    group: str
    parts: int
    bytes: int
    records: int
    faults: tuple[str, ...] = field(default=())
    damaged: tuple[str, ...] = field(default=())
    """The name of the object of each fault."""


def contents(group: GroupArchive, state: State, target: Target) -> GroupContents:
    """Return what the archive has up to a target. It reads the directory of each object, and the last one whole.

    Raises ArchiveError.
    """
    plan = restore.outline(state, target)
    queues: dict[tuple[str, int], int] = {}
    end, last_ms = plan.start, 0
    for part in plan.parts[:-1]:
        reader = group.reader(part)
        for key, piece in reader.directory().queues.items():
            queues[key] = queues.get(key, 0) + piece.length
        end, last_ms = part.end, max(last_ms, part.last_ms)
    for at, data in restore.part_bytes(group, state, target, plan, plan.parts[-1]):
        for topic, queue_id, ms in _records(data, at, state.segment_size):
            queues[topic, queue_id] = queues.get((topic, queue_id), 0) + 1
            last_ms = max(last_ms, ms)
        end = at + len(data)
    topics: dict[str, list[int]] = {}
    for (topic, _), count in queues.items():
        if topic != CONTROL_TOPIC:
            topics.setdefault(topic, []).append(count)
    rows = tuple(TopicContents(name, len(counts), sum(counts)) for name, counts in sorted(topics.items()))
    return GroupContents(group.name, plan.start, end, last_ms, plan.download, rows)


def verify(
    group: GroupArchive, state: State, progress: Callable[[int], None] = lambda read: None, again_s: float = 0.0
) -> Verified:
    """Read every object back: SHA-256, checksums of its parts, the CRC of each record, and the entries of each queue.

    `progress` gets the size of each object once it is read. An object that is damaged or missing is noted, and the next
    one is read. In the end each of them is read once more, at least `again_s` seconds later: a store may not find an
    object that it has a moment later. Raises Unavailable.
    """
    suspects, done, records, read = [], 0, 0, 0
    for part in state.parts:
        try:
            records += check_part(group, state, part)
        except (Damaged, Missing) as error:
            if isinstance(error, Missing) and part.name not in {each.name for each in group.load(state).parts}:
                continue  # It was merged with others, or retention has removed it, since the manifest was read.
            suspects.append(part)
        read += 1
        done += part.size
        progress(part.size)
    faults, damaged = [], []
    if suspects:
        time.sleep(again_s)
    for part in suspects:
        try:
            records += check_part(group, state, part)
        except (Damaged, Missing) as error:
            faults.append(str(error))
            damaged.append(part.name)
    return Verified(group.name, read, done, records, tuple(faults), tuple(damaged))


def prune(archive: Archive, group: GroupArchive, state: State, older_than_ms: int, now_ms: int) -> State:
    """Remove the segments whose records are all older than so many milliseconds; return the new state. `now_ms`: by
    the caller's clock; an earlier time of the object store counts instead.

    Raises Fenced when another program wrote meanwhile, ArchiveError.
    """
    start = upload.expired_below(state, older_than_ms, min(now_ms, group.clock_ms()))
    if start <= state.start:
        return state
    identity = archive.identity()
    if identity is None or state.owner is None:
        raise ArchiveError(f"group {group.name}: the archive has no owner")
    if identity.number < state.owner.number:
        raise Fenced(f"group {group.name}: the archive has another owner now: try again")
    gone = [p.name for p in state.parts if p.end <= start]
    owner = Owner(identity.number, identity.uid)
    new = chain.write(
        group, state, Change(start=start), owner=owner, segment_size=state.segment_size, epochs=(), now_ms=now_ms
    )
    group.remove_parts(gone)
    return new


def check_part(group: GroupArchive, state: State, part: Part) -> int:
    """Read a part back whole, and return the records of its queues. Raises Damaged, Missing, ArchiveError."""
    reader = group.whole(part)
    directory = reader.directory()
    if (directory.start, directory.end) != (part.start, part.end):
        raise Damaged(f"{part.name}: it has {directory.start} to {directory.end} of the log")
    counts: dict[tuple[str, int], int] = {}
    for at, data in segment.read_range(reader, directory, part.start, part.end):
        for topic, queue_id, _ in _records(data, at, state.segment_size):
            counts[topic, queue_id] = counts.get((topic, queue_id), 0) + 1
    records = sum(counts.values())
    for (topic, queue_id), count in counts.items():
        entries = len(reader.entries(directory, topic, queue_id))
        if entries != count:
            raise Damaged(f"{part.name}: its index has {entries} entries of {topic} {queue_id}, its log {count}")
    return records


def _records(data: bytes, at: int, segment_size: int) -> Iterator[tuple[str, int, int]]:
    """Yield topic, queue and store time of each record that is in a queue. Raises Damaged."""
    try:
        for item in read_records(data, at, segment_size, check=True):
            if isinstance(item, int):
                continue
            if isinstance(item, Meta):
                topic, queue_id, flags, ms = item.topic, item.queue_id, item.sys_flag, item.store_ms
            else:
                topic, queue_id, flags, ms = item[2], item[3], item[5], item[6]
            if in_queue(flags):
                yield topic.decode("utf-8", "surrogateescape"), queue_id, ms
    except Damage as error:
        raise Damaged(f"a record behind {at} of the log: {error}") from None
