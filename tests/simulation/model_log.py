"""A log and a disk in memory that lose the same bytes as real ones.

`file` is the content that the kernel would return: it survives the death of the process. `disk` is the content after a
power failure. Between them is the unsynced tail; a power failure keeps any part of it, also half a record. Every step
that matters to a crash calls `step`, which may raise `Crash`. A log may have segments, as real ones have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from gantry_broker.replication import epochs
from gantry_broker.replication.members import MemberChange, Members
from gantry_broker.replication.state import HardState
from gantry_broker.store.log.epochs import EpochStart, LeaderEpochs

_HEAD = Struct(">BBHHHI")
MESSAGE, CONTROL, MEMBERS, FILLER = 0, 1, 2, 3

SEGMENT = 128
"""Bytes of a segment in every second schedule; the others have one without an end."""
ROOM = _HEAD.size + 8
"""Bytes of the largest record: no record begins where its segment has fewer bytes left (rule 7)."""

MEMBER_TABLE: list[Members] = []
"""The meaning of a MEMBERS record's id."""


class Crash(Exception):
    """The process died in the middle of a step."""


class Record(NamedTuple):
    """One record of the model: `queue_offset` is what the store derives from the log (rule 5)."""

    kind: int
    epoch: int
    id: int
    queue_offset: int
    offset: int
    size: int

    def __str__(self) -> str:
        if self.kind == MEMBERS:
            return f"({','.join(str(v.id) for v in MEMBER_TABLE[self.id])})"
        if self.kind == FILLER:
            return "-"
        return f"e{self.epoch}" if self.kind == CONTROL else f"m{self.id}"


def encode(kind: int, epoch: int, ident: int, queue_offset: int, offset: int) -> bytes:
    size = _HEAD.size + 4 * (ident % 3)  # Records of several sizes: offsets are bytes, not counts.
    return _pack(size, kind, epoch, ident, queue_offset, offset)


def _pack(size: int, kind: int, epoch: int, ident: int, queue_offset: int, offset: int) -> bytes:
    return _HEAD.pack(size, kind, epoch, ident, queue_offset, offset) + bytes(size - _HEAD.size)


def decode(data: bytes | bytearray, at: int, base: int) -> Record | None:
    """The record at index `at` of `data`, whose first byte has offset `base`; None when there is no valid one."""
    if len(data) < at + _HEAD.size:
        return None
    size, kind, epoch, ident, queue_offset, offset = _HEAD.unpack_from(data, at)
    if size < _HEAD.size or len(data) < at + size or offset != base + at:
        return None
    return Record(kind, epoch, ident, queue_offset, offset, size)


@dataclass
class Power:
    """Decides where a process dies: after `countdown` more steps; None: nowhere."""

    countdown: int | None = None

    def step(self) -> None:
        if self.countdown is not None:
            self.countdown -= 1
            if self.countdown < 0:
                self.countdown = None
                raise Crash


class ModelDisk:
    """config/replica.json."""

    def __init__(self, power: Power) -> None:
        self.saved: HardState | None = None
        self._power = power

    def save(self, state: HardState) -> None:
        self._power.step()
        self.saved = state
        self._power.step()


class ModelLog:
    """`ports.Log` in memory. Its only derived data are the queue offsets."""

    def __init__(self, power: Power, segment: int = 0) -> None:
        """`segment`: bytes of a segment, of which the last hold only a filler; 0: one segment without an end."""
        self.on_confirmed: Callable[[], None] = lambda: None
        self.start = 0
        self.records: list[Record] = []
        self.file = bytearray()
        self.disk = b""
        self.flushed = 0
        self.confirmed = 0
        self.saved_confirmed = 0
        self.leader_epochs: LeaderEpochs = ()
        self.member_changes: tuple[MemberChange, ...] = ()
        self.restored_end = self.restored_epoch = 0
        self._expired_changes: tuple[MemberChange, ...] = ()
        """The epochs that no record in the log has: config/members.json."""
        self.next_queue_offset = 0
        self.end = 0
        self._power = power
        self._segment = segment

    # ---- the port

    def begin_epoch(self, epoch: int, now_ms: int) -> None:
        self._power.step()
        self._put(CONTROL, epoch, epoch)
        self._power.step()

    def read_raw(self, at: int, max_bytes: int) -> bytes:
        stop = at
        for record in self.records:
            if record.offset == stop and (stop == at or stop + record.size - at <= max_bytes):
                stop += record.size
        return bytes(self.file[at - self.start : stop - self.start])

    def append_raw(self, at: int, data: bytes) -> None:
        if at != self.end:
            raise ValueError(f"append at {at}, the log ends at {self.end}")
        if decode(data, 0, at) is None:
            raise ValueError(f"no record for {at}")  # As the store does: a record names its own offset.
        self._power.step()
        self._write(data)
        self._power.step()

    def truncate(self, to: int) -> None:
        self._power.step()
        self.records = [r for r in self.records if r.offset + r.size <= to]
        self.end = to
        self.leader_epochs = epochs.truncate(self.leader_epochs, to)
        self.member_changes = tuple(c for c in self.member_changes if c.end <= to)
        self.flushed = min(self.flushed, to)
        self.confirmed = min(self.confirmed, to)
        del self.file[to - self.start :]
        self.disk = self.disk[: to - self.start]
        self.saved_confirmed = min(self.saved_confirmed, to)
        self._count()
        self._power.step()

    def reset_state(self) -> bytes:
        last = [c for c in self.member_changes if c.end <= self.start][-1:]
        return json.dumps([(c.at, c.end, MEMBER_TABLE.index(c.members)) for c in last]).encode()

    def reset(self, to: int, leader_epochs: LeaderEpochs, state: bytes) -> None:
        self._power.step()
        self.start = self.end = self.flushed = self.confirmed = self.saved_confirmed = to
        self.records, self.file, self.disk, self.leader_epochs = [], bytearray(), b"", leader_epochs
        changes = json.loads(state or b"[]")
        self.member_changes = tuple(MemberChange(at, end, MEMBER_TABLE[index]) for at, end, index in changes)
        self._expired_changes = self.member_changes
        self._count()
        self._power.step()

    def confirm(self, offset: int) -> None:
        if offset > self.end:
            raise ValueError(f"confirm {offset}, the log ends at {self.end}")  # As the store does.
        if offset > self.confirmed:
            self.confirmed = offset
            self.on_confirmed()  # Where a broker wakes its waiting pulls.

    def append_members(self, members: Members, now_ms: int) -> None:
        self._power.step()
        if members not in MEMBER_TABLE:
            MEMBER_TABLE.append(members)
        epoch = self.leader_epochs[-1].epoch
        self._put(MEMBERS, epoch, MEMBER_TABLE.index(members))
        self._power.step()

    # ---- steps of the broker and the disk

    def append(self, epoch: int, ident: int) -> Record:
        """A master's own record."""
        self._power.step()
        self._put(MESSAGE, epoch, ident)
        return self.records[-1]

    def flush(self) -> None:
        self.disk = bytes(self.file)
        self.flushed = self.end
        self.saved_confirmed = self.confirmed

    def expire(self, to: int) -> None:
        """Retention: drop the records below the record boundary `to`, which is confirmed and on disk."""
        del self.file[: to - self.start]
        self.disk = self.disk[to - self.start :]
        self.records = [r for r in self.records if r.offset >= to]
        self._expired_changes = tuple(c for c in self.member_changes if c.end <= to)
        self.start = to

    def _put(self, kind: int, epoch: int, ident: int) -> None:
        """At the end, or behind a filler in the next segment."""
        record = encode(kind, epoch, ident, self.next_queue_offset, self.end)
        left = self._segment - self.end % self._segment if self._segment else 0
        room = len(record) if kind == CONTROL else max(ROOM, len(record))
        if left and left < room + _HEAD.size:
            self._write(_pack(left, FILLER, 0, 0, max(self.next_queue_offset - 1, 0), self.end))
            self._power.step()
            record = encode(kind, epoch, ident, self.next_queue_offset, self.end)
        self._write(record)

    def _write(self, data: bytes) -> None:
        index = self.end - self.start
        del self.file[index:]
        self.file[index : index + len(data)] = data
        at, stop = index, index + len(data)
        while at < stop:
            record = decode(self.file[:stop], at, self.start)
            if record is None:
                break  # Half a record (only without rule 6): a reader cannot go on from here.
            self.records.append(record)
            self._learn(record)
            at += record.size
        self.end = self.start + stop

    def _learn(self, record: Record) -> None:
        if record.kind == CONTROL:
            # Without a check: with a rule removed, the log must also hold wrong records.
            self.leader_epochs = (
                *epochs.truncate(self.leader_epochs, record.offset),
                EpochStart(record.epoch, record.offset),
            )
        elif record.kind == MEMBERS:
            end = record.offset + record.size
            self.member_changes += (MemberChange(record.offset, end, MEMBER_TABLE[record.id]),)
        self.next_queue_offset = record.queue_offset + 1

    def _count(self) -> None:
        self.next_queue_offset = self.records[-1].queue_offset + 1 if self.records else 0

    def recover(self, rng: random.Random, *, lose_tail: bool) -> None:
        """A start after a crash: the disk decides, and the first damaged record and all later ones are dropped."""
        if lose_tail:
            kept = self.file[len(self.disk) :]
            kept = kept[: rng.randint(0, len(kept))]
            self.file = bytearray(self.disk) + kept
        base = epochs.truncate(self.leader_epochs, self.start)
        self.records, self.leader_epochs, at = [], base, 0
        self.member_changes = self._expired_changes
        while (record := decode(self.file, at, self.start)) is not None:
            self.records.append(record)
            self._learn(record)
            at += record.size
        del self.file[at:]
        self.end = self.start + at
        self.disk = bytes(self.file) if lose_tail else self.disk[:at]
        self.flushed = self.start + len(self.disk)
        self.confirmed = min(max(self.saved_confirmed, self.start), self.end)
        self._count()
