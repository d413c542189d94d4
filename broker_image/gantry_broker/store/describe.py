"""A store in words: its records, its leader epochs, its checkpoints, and what a start would do.

Everything here only reads files. It works beside a running broker, on a copy, and on stores of RocketMQ. The memory
that it needs does not grow with the log.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gantry_broker.protocol.codes import (
    CONTROL_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Prop,
    SysFlag,
)
from gantry_broker.protocol.message import FIXED_V4
from gantry_broker.protocol.printable import printable
from gantry_broker.store import recovery_plan
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import is_there
from gantry_broker.store.log.epochs import EpochFile, LeaderEpochs
from gantry_broker.store.log.read_only_log import ReadOnlyLog
from gantry_broker.store.log.record_reader import (
    FILLER_MIN,
    MAX_RECORD,
    SIZE_AND_MAGIC,
    Damage,
    Meta,
    index_keys,
    property_of,
    read_records,
)
from gantry_broker.store.log.scan import Scan, scan
from gantry_broker.store.recovery import DAMAGED, segment_size
from gantry_broker.store.recovery_plan import Plan
from gantry_broker.store.recovery_point import RecoveryPoint, boot_id, load_checkpoint
from gantry_broker.store.types import Damage as LostRecords

_CHUNK: Final = 1 << 20
_REAL_TOPIC: Final = Prop.REAL_TOPIC.encode() + b"\x01"
_FLOCK: Final = struct.Struct("hhqqi4x")
"""Linux's `struct flock` on 64-bit machines: type, whence, start, length, process id."""

Fact = tuple[str, str]
"""A label and a text, for people."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the commit log. Times are Unix milliseconds, sizes bytes."""

    offset: int
    size: int
    kind: str
    """message, delayed, half, op, commit, rollback, retry, dead-letter or control."""
    topic: str
    real_topic: str
    """The topic to which a delayed or half message belongs; "" when it is `topic`."""
    queue: int
    queue_offset: int
    store_ms: int
    keys: tuple[str, ...]
    """The unique key first, as in the key index."""
    body_size: int
    properties: bytes
    body: bytes = b""
    """Of control records only."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [start, stop) of the log without a valid record."""

    start: int
    stop: int
    kind: str
    """filler (the rest of a full segment), blank (zeros), damaged, or missing (no file has them)."""
    reason: str = ""


def utc(ms: int) -> str:
    """Unix milliseconds as a time; the number itself when no calendar has it."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


# Records


def walk(log: ReadOnlyLog, start: int) -> Iterator[LogRecord | Stretch]:
    """Return the records from `start` on, and the stretches between them, up to the last file. Raises OSError.

    After damage it goes on at the next head of a record.
    """
    at, want = start, _CHUNK
    while True:
        data = log.raw(at, want)
        if not data:
            # The base of a segment counts: retention may have removed files during the walk.
            following = next((base for base in log.bases() if base >= at), None)
            if following is None:
                if at % log.segment_size:
                    yield Stretch(at, at + log.room(at), "missing", "no file has these bytes")
                return
            if following > at:
                yield Stretch(at, following, "missing", "no file has these bytes")
            at = following
            if not log.raw(at, 1):
                yield Stretch(at, at + log.segment_size, "missing", "the file is empty")
                at += log.segment_size
            continue
        done = at
        try:
            for record in read_records(data, at, log.segment_size, check=True):
                item = _item(record, data, done)
                done = item.stop if isinstance(item, Stretch) else done + item.size
                yield item
            at, want = done, _CHUNK
        except Damage as damage:
            partial = len(data) < log.room(at)
            if partial and done > at:
                at, want = done, _CHUNK  # The chunk may end within the record: read again from its beginning.
                continue
            size = SIZE_AND_MAGIC.unpack_from(data)[0] if done == at and len(data) >= FILLER_MIN else 0
            if partial and len(data) < size <= MAX_RECORD and want < size:
                want = size
                continue
            boundary = log.next_boundary(done + 1)
            blank = boundary.blank and log.raw(done, 1) == b"\0"
            yield Stretch(done, boundary.offset, "blank" if blank else "damaged", "zeros" if blank else str(damage))
            at, want = boundary.offset, _CHUNK


def _item(record: tuple[Any, ...] | Meta | int, data: bytes, at: int) -> LogRecord | Stretch:
    if isinstance(record, int):
        return Stretch(at, at + record, "filler", "the rest of the segment")
    body = b""
    if isinstance(record, Meta):
        phys, size, topic, queue, number, flags, stored, properties = record[:8]
        body_size = record.body_size
        if topic == CONTROL_TOPIC.encode():
            body = data[record.body_at : record.body_at + body_size]
    else:
        phys, size, topic, queue, number, flags, stored, properties = record
        body_size = size - FIXED_V4 - 3 - len(topic) - len(properties)
    name = topic.decode("utf-8", "replace")
    real = property_of(properties, _REAL_TOPIC)
    real_topic = "" if real is None else real.decode("utf-8", "replace")
    return LogRecord(
        phys,
        size,
        kind_of(name, flags, is_waiting=real_topic not in ("", name)),
        name,
        "" if real_topic == name else real_topic,
        queue,
        number,
        stored,
        tuple(index_keys(properties)),
        body_size,
        properties,
        body,
    )


def kind_of(topic: str, sys_flag: int, *, is_waiting: bool) -> str:
    """Return the kind of a record. `is_waiting`: its property REAL_TOPIC names another topic."""
    transaction = sys_flag & SysFlag.TRANSACTION_MASK
    if topic == CONTROL_TOPIC:
        return "control"
    if topic == TRANS_OP_HALF_TOPIC:
        return "op"
    if topic == TRANS_HALF_TOPIC or transaction == SysFlag.TRANSACTION_PREPARED:
        return "half"
    if transaction:
        return "commit" if transaction == SysFlag.TRANSACTION_COMMIT else "rollback"
    if topic == SCHEDULE_TOPIC or is_waiting:
        return "delayed"
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    return "dead-letter" if topic.startswith(DLQ_PREFIX) else "message"


def is_about(record: LogRecord, topic: str) -> bool:
    """Whether a record lies in a topic or waits for its delivery to it."""
    return topic in (record.topic, record.real_topic)


HEADINGS: Final = f"{'OFFSET':>12} {'SIZE':>8} {'KIND':<11} TOPIC/QUEUE@OFFSET  TIME  KEYS  BODY"


def describe_record(record: LogRecord) -> str:
    """One line, under `HEADINGS`. The body of a control record is not in it."""
    place = f"{printable(record.topic)}/{record.queue}@{record.queue_offset}"
    target = f" for {printable(record.real_topic)}" if record.real_topic else ""
    keys = ",".join(printable(key) for key in record.keys) or "-"
    return (
        f"{record.offset:>12} {record.size:>8} {record.kind:<11} {place}{target}  {utc(record.store_ms)}  {keys}  "
        f"{record.body_size} B"
    )


def describe_stretch(stretch: Stretch) -> str:
    """One line, under `HEADINGS`."""
    size = stretch.stop - stretch.start
    return f"{stretch.start:>12} {size:>8} {stretch.kind:<11} {stretch.reason}, up to {stretch.stop}"


def record_to_json(record: LogRecord) -> dict[str, Any]:
    """Return a record for programs."""
    out: dict[str, Any] = {
        "offset": record.offset,
        "size": record.size,
        "kind": record.kind,
        "topic": record.topic,
        "queue": record.queue,
        "queueOffset": record.queue_offset,
        "storeTime": record.store_ms,
        "keys": list(record.keys),
        "bodySize": record.body_size,
    }
    return out | ({"realTopic": record.real_topic} if record.real_topic else {})


def stretch_to_json(stretch: Stretch) -> dict[str, Any]:
    """Return a stretch for programs."""
    return {
        "offset": stretch.start,
        "size": stretch.stop - stretch.start,
        "kind": stretch.kind,
        "reason": stretch.reason,
    }


# The files of a store


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """What the small files of a store say. `load` reads them."""

    root: Path
    segment_size: int
    """0 for a store without a segment."""
    bases: tuple[int, ...]
    epoch_file: EpochFile | None
    point: RecoveryPoint | None
    checkpoint: tuple[int, int, int]
    """RocketMQ's: store times (ms) of log, queues and index; zeros without the file."""
    aborted: bool
    """The file `abort` is there: a process has the store open, or did not close it."""
    damaged: bool
    """An earlier start has found damage that no one has acknowledged."""
    holder: int
    """The process that has the store open; 0 for none."""

    @classmethod
    def load(cls, root: Path) -> StoreFiles:
        """Read the files below `root`. Raises StoreError for no or an invalid store, OSError."""
        if not (root / "commitlog").is_dir():
            raise StoreError(f"{root} holds no store: it has no folder commitlog")
        epochs = EpochFile.load(root / "config" / "epochs.json")
        size = (epochs.segment_size if epochs else segment_size(root)) or 0
        with ReadOnlyLog(root / "commitlog", size or 1) as log:
            bases = tuple(log.bases())
        if bases and (size < FILLER_MIN or any(base % size for base in bases)):
            raise StoreError(f"{root}/commitlog: the segments {bases[:3]} do not fit the segment size {size}")
        return cls(
            root=root,
            segment_size=size,
            bases=bases,
            epoch_file=epochs,
            point=RecoveryPoint.load(root / "config" / "recoveryPoint.json"),
            checkpoint=load_checkpoint(root / "checkpoint"),
            aborted=is_there(root / "abort"),
            damaged=is_there(root / "config" / DAMAGED),
            holder=lock_holder(root / "lock"),
        )

    @property
    def start(self) -> int:
        """The first offset of the log."""
        return recovery_plan.first_offset(list(self.bases), self.segment_size)

    def open_log(self) -> ReadOnlyLog:
        """Return the bytes of the log."""
        return ReadOnlyLog(self.root / "commitlog", self.segment_size or 1)


def lock_holder(path: Path) -> int:
    """Return the process that has locked RocketMQ's lock file; 0 for none. It takes no lock itself. Raises OSError."""
    try:
        with open(path, "rb") as file:
            lock = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, lock))
    except FileNotFoundError:
        return 0
    return 0 if kind == fcntl.F_UNLCK else int(pid)


@dataclass(frozen=True, slots=True)
class Start:
    """What a start of a broker would do with the store as it is now."""

    plan: Plan
    scanned: Scan
    confirmed: int
    epochs: LeaderEpochs
    damage: LostRecords | None


def plan_start(files: StoreFiles) -> Start:
    """Decide as recovery does and read the log from where it would, without writing. Raises StoreError, OSError."""
    with files.open_log() as log:
        plan = recovery_plan.plan(files.root, log, files.point, opened_before=files.epoch_file is not None)
        scanned = Scan(0, "an empty store")
        if files.bases:
            scanned = scan(log, plan.scan_from, lost_from=recovery_plan.lost_from(plan, files.point))
        return Start(
            plan,
            scanned,
            recovery_plan.confirmed_after(plan, files.point, files.start, scanned.end),
            recovery_plan.epochs_after(plan, scanned, files.epoch_file),
            recovery_plan.find_damage(log, scanned, files.point, files.epoch_file),
        )


# Epochs


def epochs_to_json(files: StoreFiles, start: Start) -> list[dict[str, Any]]:
    """Return the leader epochs and their ranges, oldest first. `inFile`: config/epochs.json has the epoch."""
    listed = files.epoch_file.epochs if files.epoch_file else ()
    stops = [*(epoch.start for epoch in start.epochs), start.scanned.end][1:]
    return [
        {
            "epoch": epoch.epoch,
            "start": epoch.start,
            "end": stop,
            "bytes": stop - epoch.start,
            "writer": "RocketMQ" if epoch.epoch == 0 else "Gantry",
            "inFile": epoch in listed,
        }
        for epoch, stop in zip(start.epochs, stops, strict=True)
    ]


def describe_epochs(files: StoreFiles, start: Start) -> list[str]:
    """Return a line for each epoch."""
    lines = []
    for epoch in epochs_to_json(files, start):
        text = f"epoch {epoch['epoch']}: {epoch['start']} to {epoch['end']}, {epoch['bytes']} bytes"
        if epoch["epoch"] == 0:
            text += ", written by RocketMQ"
        if epoch["end"] <= files.start and files.bases:
            text += ", retention has removed its records"
        elif not epoch["inFile"] and files.epoch_file is not None:
            text += ", config/epochs.json does not have it yet"
        lines.append(text)
    return lines or ["no epoch: the log is empty"]


# Checkpoints


def checkpoint_to_json(files: StoreFiles, start: Start) -> dict[str, Any]:
    """Everything of `describe_checkpoint`, for programs."""
    point, plan, damage = files.point, start.plan, start.damage
    return {
        "path": str(files.root),
        "openIn": files.holder or None,
        "abortFile": files.aborted,
        "damagedFile": files.damaged,
        "recoveryPoint": None
        if point is None
        else {
            "durable": point.durable,
            "durableIndex": point.durable_index,
            "written": point.written,
            "writtenIndex": point.written_index,
            "flushed": point.flushed,
            "confirmed": point.confirmed,
            "clean": point.clean,
            "reindexing": point.reindexing,
            "thisBoot": point.boot == boot_id(),
        },
        "rocketmqCheckpoint": dict(zip(("logMs", "queuesMs", "indexMs"), files.checkpoint, strict=True)),
        "start": {
            "foreign": plan.foreign,
            "clean": plan.clean,
            "rebooted": plan.rebooted,
            "scanFrom": plan.scan_from,
            "queuesFrom": plan.trusted,
            "indexFrom": plan.trusted_index,
            "records": start.scanned.records,
            "begin": files.start,
            "end": start.scanned.end,
            "confirmed": start.confirmed,
            "reason": start.scanned.reason,
            "damage": None
            if damage is None
            else {"at": damage.at, "reason": damage.reason, "flushed": damage.flushed, "confirmed": damage.confirmed},
        },
    }


def describe_checkpoint(files: StoreFiles, start: Start) -> list[Fact]:
    """Return the recovery point, RocketMQ's checkpoint, the files that mark a state, and what a start would do."""
    return [
        *_describe_marks(files),
        *_describe_point(files.point),
        *_describe_times(files),
        *_describe_start(files, start),
    ]


def _describe_marks(files: StoreFiles) -> list[Fact]:
    if files.holder:
        use = f"process {files.holder} has the store open"
    elif files.aborted:
        use = "no process has it open, and the last one did not close it: the file abort is there"
    else:
        use = "no process has it open; there is no file abort"
    facts = [("store", str(files.root)), ("in use", use)]
    if files.damaged:
        facts.append(("damage", "an earlier start found acknowledged records missing (config/damaged)"))
    return facts


def _describe_point(point: RecoveryPoint | None) -> list[Fact]:
    if point is None:
        return [("recovery point", "none, or an invalid one")]
    if not point.boot:
        boot = "a write or flush failed: bytes in the page cache do not count"
    elif point.boot == boot_id():
        boot = "the machine has not booted since: what is written counts"
    else:
        boot = "of another boot or another machine: only what is durable counts"
    facts = [
        ("recovery point", "marks a clean close" if point.clean else "of a running store"),
        ("  boot", boot),
        ("  log", f"flushed to {point.flushed}, confirmed to {point.confirmed}"),
        ("  queues", f"durable to {point.durable}, written to {point.written}"),
        ("  key index", f"durable to {point.durable_index}, written to {point.written_index}"),
    ]
    if point.reindexing:
        facts.append(("  reindexing", "a start was building all queues again and did not finish"))
    return facts


def _describe_times(files: StoreFiles) -> list[Fact]:
    if not any(files.checkpoint):
        return [("RocketMQ checkpoint", "none")]
    names = ("log", "queues", "index")
    times = ", ".join(f"{name} {utc(ms) if ms else 'never'}" for name, ms in zip(names, files.checkpoint, strict=True))
    return [("RocketMQ checkpoint", f"flushed: {times}")]


def _describe_start(files: StoreFiles, start: Start) -> list[Fact]:
    plan, scanned = start.plan, start.scanned
    refused = f"refused while process {files.holder} has the store open; then " if files.holder else ""
    if not files.bases:
        return [("a start would be", refused + "one with an empty log")]
    if plan.foreign:
        origin = "one of a store of RocketMQ, " + ("closed cleanly" if plan.clean else "not closed")
    else:
        origin = "one after a clean close" if plan.clean else "one after a crash"
        if plan.rebooted:
            origin += ", with a recovery point of another boot" if files.point else ", without a recovery point"
    queues = _trusted(plan.trusted, files.start, plan.clean)
    index = _trusted(plan.trusted_index, files.start, plan.clean)
    facts = [
        ("a start would be", refused + origin),
        ("  read the log", f"from {plan.scan_from}: {scanned.records} records"),
        ("  log", f"{files.start} to {scanned.end} ({scanned.reason}), confirmed to {start.confirmed}"),
        ("  queues", queues),
        ("  key index", index),
    ]
    if scanned.last_ms:
        facts.append(("  last record", f"stored at {utc(scanned.last_ms)}"))
    if start.damage is not None:
        facts.append(
            (
                "  DAMAGE",
                f"acknowledged records are missing from {start.damage.at} on ({start.damage.reason}): the log was "
                f"flushed to {start.damage.flushed} and confirmed to {start.damage.confirmed}",
            )
        )
    return facts


def _trusted(offset: int | None, start: int, clean: bool) -> str:
    if offset is None:
        return "complete"
    if offset <= start:
        return "built again from the log"
    return f"valid below {offset}" + ("" if clean else ", built again from the log after that")
