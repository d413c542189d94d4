"""A store of Gantry becomes one that Apache RocketMQ 4.9 and 5.x open.

`copy_files` and `LogFiles` make a copy: of a member that is down, or of the confirmed bytes of one that runs.
`convert` opens the copy, writes the state beside the log as RocketMQ has it, and removes Gantry's own files. Control
records stay in the log: RocketMQ knows no topic of that name, so nobody can read them there. The original is not
changed.

Timer messages are the one thing that RocketMQ keeps otherwise: it reads them from queue 0 of its timer topic, from an
offset in `timercheck` on, and Gantry has a queue for each minute. So those that still wait are appended again, to that
queue. Source: `TimerMessageStore.enqueue` and `TimerCheckpoint` of 5.5.0.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.broker.delay import due_time
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.replay import Replay
from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.send.messages import copy_of
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import COMPACTION_TOPIC, CONTROL_TOPIC, POP_TOPIC, PROBE_TOPIC, SCHEDULE_TOPIC, Prop
from gantry_broker.protocol.message import decode_records, parse_properties
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.files import atomic_write, fsync_dir
from gantry_broker.store.index.consume_queue import BLANK, ENTRY_SIZE
from gantry_broker.store.log.commit_log import NAME_DIGITS, segment_bases
from gantry_broker.store.log.epochs import FOREIGN, EpochFile
from gantry_broker.store.recovery import lock_store
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig

CONF: Final = "broker.conf"
"""In the folder of the export: the settings with which RocketMQ opens it. It is written last."""
OWN_TOPICS: Final = frozenset({COMPACTION_TOPIC, CONTROL_TOPIC, POP_TOPIC, PROBE_TOPIC})
FOLDERS: Final = ("commitlog", "consumequeue", "index", "config")
BATCH: Final = 256
BATCH_BYTES: Final = 1 << 20
_CHECKPOINT: Final = struct.Struct(">qqqqqqq")
"""`timercheck`: time up to which timers were delivered, end of the timer's log, offset in the timer topic, the
master's one, and a version of three numbers.
"""
_PAGE: Final = 4_096
Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and all bytes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds. Offsets are bytes of the log."""

    start: int
    end: int
    topics: int
    groups: int
    delayed: int
    """Messages that wait for their delivery by level."""
    timers: int
    """Timer messages that wait. 4.9 has no timer: it never delivers them."""
    settings: dict[str, str]
    """What RocketMQ must have in its configuration to open the store."""


def require_empty(folder: Path) -> None:
    """Make the folder. Raises MigrationError when it has something, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise MigrationError(f"{folder} is not empty: name a new folder, or empty it")


def copy_files(source: Path, target: Path, progress: Progress = lambda done, total: None) -> None:
    """Copy the store of a member that is down. Blocks. Raises StoreLocked, MigrationError, OSError."""
    from gantry_broker.broker.migration.member import DONE, mark_of

    if not segment_bases(source / "commitlog"):
        raise MigrationError(f"{source} has no log: name the folder with commitlog/ in it")
    if (mark := mark_of(source)) is not None and mark["state"] != DONE:
        raise MigrationError(f"{source} is a copy of a RocketMQ that leads on: the source has the whole store")
    require_empty(target)
    lock = lock_store(source)
    try:
        files = [path for name in FOLDERS for path in sorted((source / name).rglob("*")) if path.is_file()]
        if (source / "checkpoint").is_file():
            files.append(source / "checkpoint")
        total, done = sum(path.stat().st_size for path in files), 0
        for path in files:
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            _copy_data(path, to)
            done += path.stat().st_size
            progress(done, total)
    finally:
        os.close(lock)


def _copy_data(source: Path, target: Path) -> None:
    """Copy a file and keep its holes: segments have full size from the start."""
    with source.open("rb") as have, target.open("wb") as copy:
        size = os.fstat(have.fileno()).st_size
        os.ftruncate(copy.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(have.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # Only a hole is left.
            stop = os.lseek(have.fileno(), at, os.SEEK_HOLE)
            while at < stop:
                count = os.copy_file_range(have.fileno(), copy.fileno(), min(stop - at, 64 << 20), at, at)
                if count == 0:
                    return
                at += count


class LogFiles:
    """The log of an export, written from bytes that a running member gives in their order."""

    def __init__(self, target: Path, segment_size: int, start: int) -> None:
        """Raise MigrationError for a folder that is not empty, OSError."""
        require_empty(target)
        self._target, self._segment_size = target, segment_size
        self.end = start
        (target / "commitlog").mkdir()
        EpochFile(segment_size, FOREIGN).save(_made(target / "config") / "epochs.json")
        self._fd = -1
        self._base = -1

    def write(self, data: bytes) -> None:
        """Write the bytes. Raises OSError."""
        view = memoryview(data)
        while view:
            base = self.end - self.end % self._segment_size
            if base != self._base:
                self.close()
                path = self._target / "commitlog" / f"{base:0{NAME_DIGITS}d}"
                self._fd, self._base = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), base
                os.ftruncate(self._fd, self._segment_size)
            count = os.pwrite(self._fd, view[: base + self._segment_size - self.end], self.end - base)
            self.end += count
            view = view[count:]

    def close(self) -> None:
        """Close the open file."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
        self._fd = self._base = -1


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def convert(
    folder: Path,
    settings: BrokerSettings,
    *,
    cluster: str,
    broker: str,
    now_ms: int | None = None,
) -> Exported:
    """Make the copy in `folder` a store of RocketMQ. Blocks. Raises StoreError, MigrationError, OSError.

    `settings`: those of the member. `cluster`, `broker`: RocketMQ's names. Broken off, it begins again with a new copy.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    store = MessageStore.open(StoreConfig(path=folder, settings=settings))
    try:
        if store.state.damage is not None:
            raise MigrationError(f"the log lost acknowledged records: {store.state.damage}; export another member")
        store.indexer.confirm(store.log.end)
        meta = Metadata(Tables())
        replay = Replay(meta, store)
        replay.load(folder / "config")
        if replay.incomplete:
            raise MigrationError("a control record of the log cannot be read; export another member")
        tables = meta.confirmed
        first = store.queues.next_offset(TIMER_TOPIC, 0)
        timers = _append_timers(store, tables, now_ms)
        delayed = _delayed(store, tables)
        while store.index is not None and (store.index.behind or store.index.gaps):
            store.checkpointer.run_periodic_tasks(time.monotonic_ns() // 1_000_000)
        bounds = {
            (topic, number): (*store.reader.bounds(topic, number), store.queues.next_offset(topic, number))
            for topic, numbers in store.queues.topics_queues().items()
            for number in numbers
        }
        start, end, segment, queue_file = store.log.start, store.log.end, store.log.segment_size, store.queues.file_size
    except BaseException:
        store.close(clean=False)
        raise
    store.close()
    _shape_queues(folder / "consumequeue", tables, bounds, queue_file)
    _write_config(folder / "config", tables, first, now_ms)
    conf = {
        "brokerClusterName": cluster,
        "brokerName": broker,
        "brokerId": "0",
        "mappedFileSizeCommitLog": str(segment),
        "mappedFileSizeConsumeQueue": str(queue_file),
        "maxHashSlotNum": str(settings.maxHashSlotNum),
        "maxIndexNum": str(settings.maxIndexNum),
        "messageDelayLevel": settings.messageDelayLevel,
        "fileReservedTime": str(settings.fileReservedTime),
        "maxMessageSize": str(settings.maxMessageSize),
    }
    for name in ("lock", "abort"):
        (folder / name).unlink(missing_ok=True)
    text = "".join(f"{name}={value}\n" for name, value in conf.items())
    atomic_write(folder / CONF, text.encode(), durable=True)
    fsync_dir(folder)
    return Exported(start, end, len(tables.topics), len(tables.groups), delayed, timers, conf)


def _pending_timers(store: MessageStore, tables: Tables) -> Iterator[tuple[int, int]]:
    """Bucket and queue offset of each timer message that waits."""
    for bucket in store.queues.queue_numbers(TIMER_TOPIC):
        done = tables.timer_done.get(bucket, set())
        low = max(tables.timer.get(bucket, 0), store.reader.min_offset(TIMER_TOPIC, bucket))
        for offset in range(low, store.reader.max_offset(TIMER_TOPIC, bucket)):
            if offset not in done:
                yield bucket, offset


def _append_timers(store: MessageStore, tables: Tables, now_ms: int) -> int:
    """Append the timer messages that wait to queue 0, where RocketMQ reads them; return their number. A recall stays
    behind what it recalls, in the order of the log.
    """
    places = []
    for bucket, offset in _pending_timers(store, tables):
        place = store.reader.place(TIMER_TOPIC, bucket, offset)
        if place is not None:
            places.append((place, bucket, offset))
    puts, count, size = [], 0, 0
    for _, bucket, offset in sorted(places):
        got = store.reader.get(TIMER_TOPIC, bucket, offset, 1, BATCH_BYTES)
        for record in decode_records(got.data)[:1] if got.data else ():
            props = parse_properties(record.properties)
            props[Prop.TIMER_OUT_MS] = str(due_time(record))
            puts.append(copy_of(record, TIMER_TOPIC, 0, props=props))
            size += len(got.data)
            count += 1
        if len(puts) >= BATCH or size >= BATCH_BYTES:
            store.appender.put(puts, now_ms)
            store.indexer.confirm(store.log.end)
            puts, size = [], 0
    if puts:
        store.appender.put(puts, now_ms)
        store.indexer.confirm(store.log.end)
    return count


def _delayed(store: MessageStore, tables: Tables) -> int:
    return sum(
        max(store.reader.max_offset(SCHEDULE_TOPIC, level) - max(tables.delay.get(level + 1, 0), 0), 0)
        for level in store.queues.queue_numbers(SCHEDULE_TOPIC)
    )


def _shape_queues(
    folder: Path, tables: Tables, bounds: dict[tuple[str, int], tuple[int, int, int]], file_size: int
) -> None:
    """Let consume queues say what the tables say: RocketMQ knows neither hidden records nor ends beside the files.

    `bounds`: first, last and next queue offset of each queue.
    """
    kept_topics = {*tables.topics, SCHEDULE_TOPIC, TIMER_TOPIC}
    for topic in sorted(os.listdir(folder)):
        if topic in OWN_TOPICS or (topic not in kept_topics and topic in tables.deletion_watermarks):
            shutil.rmtree(folder / topic)
    for (topic, number), (low, high, following) in bounds.items():
        if topic in OWN_TOPICS or (topic not in kept_topics and topic in tables.deletion_watermarks):
            continue
        queue = folder / topic / str(number)
        for path in sorted(queue.glob("[0-9]*")) if queue.is_dir() else ():
            base = int(path.name)
            if base + file_size <= low * ENTRY_SIZE and low < high:
                path.unlink()
            elif base < low * ENTRY_SIZE:
                with path.open("r+b") as file:
                    file.write(BLANK * (min(low * ENTRY_SIZE - base, file_size) // ENTRY_SIZE))
            if path.exists() and path.stat().st_size < file_size:
                os.truncate(path, file_size)
        if following > high or (following and not any(queue.glob("[0-9]*"))):
            _blanks(queue, high, following, file_size)


def _blanks(queue: Path, high: int, following: int, file_size: int) -> None:
    """Fill a queue up to its next offset. RocketMQ passes over entries without a record."""
    queue.mkdir(parents=True, exist_ok=True)
    files = sorted(int(path.name) for path in queue.glob("[0-9]*"))
    end = following * ENTRY_SIZE
    if not files:
        high = (end - end % file_size) // ENTRY_SIZE
    at = high * ENTRY_SIZE
    while True:
        base = at - at % file_size
        stop = min(end, base + file_size)
        path = queue / f"{base:0{NAME_DIGITS}d}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(file_size)
            file.seek(at - base)
            file.write(BLANK * ((stop - at) // ENTRY_SIZE))
        at = stop
        if at >= end:
            return


def _write_config(folder: Path, tables: Tables, first_timer: int, now_ms: int) -> None:
    """Write the files of RocketMQ, and remove all others."""
    topics = {name: topic for name, topic in tables.topics.items() if name not in OWN_TOPICS}
    own = {f"{topic}@" for topic in OWN_TOPICS}
    offsets = {key: queues for key, queues in tables.offsets.items() if f"{key.partition('@')[0]}@" not in own}
    table = tables.configs().to_json()
    table["topicConfigTable"] = {name: item for name, item in table["topicConfigTable"].items() if name in topics}
    contents = {
        "topics.json": fastjson.dumps(table),
        "subscriptionGroup.json": fastjson.dumps(
            {
                "dataVersion": tables.group_version.to_json(),
                "subscriptionGroupTable": {name: group.to_json() for name, group in tables.groups.items()},
            }
        ),
        "consumerOffset.json": fastjson.dumps({"offsetTable": offsets}),
        "delayOffset.json": fastjson.dumps({"offsetTable": tables.delay}),
        snapshots.MODES: snapshots.modes_file(tables),
        "timercheck": _CHECKPOINT.pack(now_ms, 0, first_timer, first_timer, 0, now_ms, 0).ljust(_PAGE, b"\0"),
    }
    for path in list(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, data in contents.items():
        atomic_write(folder / name, data, durable=True)
