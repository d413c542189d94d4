"""RocketMQ's HA protocol from the slave's end: frames, their checks and the reports. Sans-I/O.

The slave sends 8 bytes, the offset from which it wants the log. The master sends frames: offset (8), length (4) and so
many bytes of the log; length 0 is a heartbeat. The slave answers with 8 bytes at a time, the offset up to which it has
the log. A master takes the offset 0 for "from the last segment on", and serves any other offset as asked, within a
record, too. Source: `DefaultHAConnection` and `DefaultHAClient` of 5.5.0, `HAConnection` and `HAService` of 4.9.7, and
both masters' answers.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gantry_core import size_of_whole

from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.protocol import plausible
from gantry_broker.protocol.digits import whole_number
from gantry_broker.store.log.record_reader import FILLER_MIN, MAX_RECORD, size_of_first

_HEAD: Final = struct.Struct(">qi")
_OFFSET: Final = struct.Struct(">q")
_HANDSHAKE, _TRANSFER = 1, 2
"""Ordinals of `HAConnectionState`."""
_GREETING: Final = struct.Struct(">ihhq")
_ANSWER: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_LEARNER_HEAD: Final = struct.Struct(">iiqiqq")
_LEARNER_REPORT: Final = struct.Struct(">iq")
LEARNER_ID: Final = -1
"""The brokerId of a learner: a controller gives none below 1, so no SyncStateSet has it."""
MAX_EPOCHS: Final = 100_000
PIECE: Final = 1 << 20
"""Bytes that are taken at once, or one record."""
MAX_HELD: Final = 64 << 20
"""Bytes that wait in memory until the source's own slaves have them. With more nothing is read."""
MAX_FRAME: Final = 64 << 20
"""Bytes of one frame at most. RocketMQ's `haTransferBatchSize` is 32 KiB, and a person may raise it."""
OVERLAP: Final = 4_096
"""Bytes before its end that a follower asks for again when it connects. They must be those that it has: this finds a
master that was emptied, or lost its end in a crash, and has grown since.
"""
REPORT_S: Final = 2.0
"""Seconds between two reports at most. A master ends a connection that reports nothing for 20 s."""
MAX_WAIT_MS: Final = 600_000
"""A sender's wait that a master's configuration may name."""
SLAVES_S: Final = 0.5
"""Seconds between two looks at the source's own slaves. Its senders wait for three by default."""
BEHIND_S: Final = 1.0
"""Seconds that a slave may be behind its master and counts as one that follows it."""


class Reports(enum.Enum):
    """What a follower says to the master about its log."""

    DURABLE = "durable"
    """The offset up to which its log is on disk, as a slave does."""
    NEUTRAL = "neutral"
    """The offset with which it began, again and again: the master waits for its own slaves and never for this one."""
    AWAY = "away"
    """Nothing, without a connection: the master counts a connection as a slave, and would wait for its report."""


class Slaves(enum.Enum):
    """What the slaves of a master's own do."""

    NONE = "none"
    """None is registered, or one has come that does not follow yet: nobody waited for it so far."""
    FOLLOW = "follow"
    """One has what the master had a second ago, or gets it."""
    LOST = "lost"
    """Those that are registered do not follow, or it is not known yet."""


class SlaveWatch:
    """What a master's own slaves do, by looks at their logs' ends. Pure.

    A slave registers before it connects to the master, and stays registered when its connection ends.
    """

    def __init__(self) -> None:
        self.state = Slaves.LOST
        self.end = 0
        """The end of the master's log as it was last seen."""
        self._masters: list[tuple[float, int]] = []
        self._grew: dict[str, tuple[int, float]] = {}
        """The end of each slave, and when it was last seen to grow."""

    def look(self, now: float, end: int, slaves: Mapping[str, int | None]) -> None:
        """Take a look over. `end`: of the master's log. `slaves`: the end of each slave's that is registered, seen
        after it; None: it does not answer.
        """
        self._masters.append((now, end))
        while len(self._masters) > 1 and self._masters[1][0] <= now - BEHIND_S:
            del self._masters[0]
        self.end = end
        had, self._grew = self._grew, {}
        for name, at in slaves.items():
            if at is not None:
                before, since = had.get(name, (at, now - 2 * BEHIND_S))
                self._grew[name] = (at, now if at > before else since)
        if not slaves:
            self.state = Slaves.NONE
        elif any(at >= self._masters[0][1] for at, _ in self._grew.values()):
            self.state = Slaves.FOLLOW
        elif self.state is Slaves.FOLLOW and not any(now - grew <= BEHIND_S for _, grew in self._grew.values()):
            self.state = Slaves.LOST


@dataclass(frozen=True, slots=True)
class Promise:
    """What a master promises to its senders."""

    sync: bool
    """A sender waits for the report of a slave."""
    slaves: Slaves
    """What slaves of its own do."""
    timeout_ms: int
    """How long a sender waits for them at most."""
    learner: bool = False
    """The follower is a learner below a controller: no sender waits for it."""
    end: int = 0
    """The end of the master's log, at most a second ago."""

    @classmethod
    def of(cls, settings: Mapping[str, str], slaves: Slaves, end: int = 0) -> Promise:
        """From the master's settings, as GET_BROKER_CONFIG gives them."""
        wait = max(_millis(settings, "syncFlushTimeout", 5_000), _millis(settings, "slaveTimeout", 3_000))
        if settings.get("brokerPermission") == "0" and slaves is Slaves.LOST:
            slaves = Slaves.FOLLOW  # Nobody sends, and the end of the log is to arrive.
        return cls(is_sync(settings), slaves, wait, is_controlled(settings), end)


def is_sync(settings: Mapping[str, str]) -> bool:
    """Whether a master's senders wait for a slave. Source: `CommitLog.submitReplicaRequest` of 4.9.7, which goes by the
    role, and `handleHA` of 5.x, where the master itself is the first replica of `inSyncReplicas`.
    """
    if settings.get("brokerRole") != "SYNC_MASTER":
        return False
    numbers = [whole_number(settings[name]) for name in ("inSyncReplicas", "minInSyncReplicas") if name in settings]
    return not numbers or any(number is None or number > 1 for number in numbers)


def is_controlled(settings: Mapping[str, str]) -> bool:
    """Whether a controller chooses the master, which then speaks the other form of the protocol."""
    return settings.get("enableControllerMode") == "true"


def _millis(settings: Mapping[str, str], name: str, default: int) -> int:
    number = whole_number(settings.get(name, ""), 0, MAX_WAIT_MS)
    return default if number is None else number


def reports_for(promise: Promise) -> Reports:
    """How to report so that the master promises no less and stops for nothing.

    A report is an acknowledgement to a SYNC_MASTER. With slaves that follow it, theirs alone may count: a failover goes
    to one of them. Without one, its senders got SLAVE_NOT_AVAILABLE before; a follower that reports nothing would let
    them wait until they time out, so it reports what it has on disk. Beside slaves that do not follow any more it is
    away, and the senders get what they would get without it. Nobody waits for a learner, whose report would count where
    `allAckInSyncStateSet` is false.
    """
    if promise.learner:
        return Reports.NEUTRAL
    if not promise.sync or promise.slaves is Slaves.NONE:
        return Reports.DURABLE
    return Reports.NEUTRAL if promise.slaves is Slaves.FOLLOW else Reports.AWAY


def pause_before(promise: Promise) -> float:
    """Seconds to wait before a connection begins again. The first offset that a follower sends counts as a report, so
    no sender may still wait for a record below it. A learner begins below what the source's slaves have.
    """
    if promise.learner:
        return 1.0
    return 1.0 if reports_for(promise) is Reports.DURABLE else promise.timeout_ms / 1000 + 1.0


def first_offset(start: int, end: int) -> int:
    """Return the offset to ask for, with a log of [start, end)."""
    return max(end - OVERLAP, start, 1)


class Stream:
    """The bytes of one connection on their way into the log."""

    def __init__(self, start: int, end: int, overlap: bytes, segment_size: int) -> None:
        """Continue a log of [start, end). `overlap`: its last bytes; none of a log that has none."""
        self.asked = end - len(overlap) if overlap else first_offset(start, end)
        self._segment_size = segment_size
        self._position = self.asked
        """The offset of the next byte that the master has to send."""
        self._overlap = overlap
        self._end = end
        # The first byte of a log that begins at 0 is the highest one of a record's size, which is 0.
        self._pending = bytearray(b"\0" if end == 0 else b"")
        self._input = bytearray()
        self._greeted = False

    @property
    def greeted(self) -> bool:
        """Whether the master has answered. Reports may be sent from then on: a master that reads late takes the last
        offset that has arrived for the one from which it is to begin.
        """
        return self._greeted

    @property
    def compared(self) -> bool:
        """Whether the master has sent all that the log had before, and it was the same."""
        return self._greeted and self._position >= self._end_of_overlap

    @property
    def end(self) -> int:
        """The offset after the whole records that were taken."""
        return self._end

    @property
    def received(self) -> int:
        """The offset after the last byte that the master sent."""
        return self._position

    @property
    def full(self) -> bool:
        """Whether so much waits for the source's own slaves that no more should be read."""
        return False

    def greeting(self) -> bytes:
        """Return the first bytes of the connection."""
        return self.report(self.asked)

    def report(self, offset: int) -> bytes:
        """Return the bytes of a report."""
        return _OFFSET.pack(offset)

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the connection; return what to send at once. Raises MigrationError."""
        buffer = self._input
        buffer += data
        at, have = 0, len(buffer)
        while at + _HEAD.size <= have:
            offset, size = _HEAD.unpack_from(buffer, at)
            self._check(offset, size)
            self._greeted = True
            stop = at + _HEAD.size + size
            if stop > have:
                break
            self._take(memoryview(buffer)[at + _HEAD.size : stop])
            at = stop
        del buffer[:at]
        return b""

    def _check(self, offset: int, size: int) -> None:
        """Raise SourceBroken for a frame that no master sends."""
        if not 0 <= size <= MAX_FRAME:
            raise SourceBroken(f"a frame of {size} bytes came at offset {self._position}: 0 to {MAX_FRAME} can be")
        if offset != self._position or not 0 <= offset <= plausible.MAX_OFFSET:
            what = "back" if offset < self._position else "ahead"
            raise SourceBroken(f"the source's offsets went {what}: {offset} came where {self._position} follows")

    def _take(self, body: memoryview) -> None:
        at, self._position = self._position, self._position + len(body)
        overlapping = self._end_of_overlap - at
        if overlapping > 0:
            begin = at - self.asked
            same = min(overlapping, len(body))
            if body[:same] != self._overlap[begin : begin + same]:
                raise SourceBroken(
                    f"the source's log differs from what it sent before offset {self._end_of_overlap}: it was emptied, "
                    "lost its end in a crash, or is another broker"
                )
            body = body[same:]
        self._pending += body

    @property
    def _end_of_overlap(self) -> int:
        return self.asked + len(self._overlap)

    @property
    def _bound(self) -> int:
        """The offset up to which records may be taken."""
        return plausible.MAX_OFFSET

    def take(self) -> bytes:
        """Return the whole records and fillers that have arrived; they continue the log at `end` as it was before.

        Raises SourceBroken when no record can begin there.
        """
        pending = self._pending
        room = min(len(pending), self._bound - self._end)
        if room < FILLER_MIN:
            return b""
        size = size_of_first(bytes(pending[:FILLER_MIN]))
        left = self._segment_size - self._end % self._segment_size
        if not FILLER_MIN <= size <= left:
            raise SourceBroken(
                f"no record begins at offset {self._end}: the source's log is damaged there, or its segments are not "
                f"of {self._segment_size} bytes"
            )
        if size > MAX_RECORD:
            raise SourceBroken(f"a record of {size} bytes begins at offset {self._end}: up to {MAX_RECORD} can be")
        if size > room:
            return b""
        with memoryview(pending) as view:
            data = bytes(view[: min(room, max(size, PIECE))])
        stop = size_of_whole(data, 0)
        del pending[:stop]
        self._end += stop
        return data[:stop]


class LearnerStream(Stream):
    """The bytes of a connection to a master under a controller.

    A failover gives the group to a broker of the SyncStateSet, which may lack the master's last records. So only what
    all of them have is taken, and the log is one of the next master's, too.
    """

    def __init__(
        self, start: int, end: int, overlap: bytes, segment_size: int, in_sync: Callable[[], int | None]
    ) -> None:
        """`in_sync`: the offset up to which each broker of the SyncStateSet has the log; None: not known now."""
        super().__init__(start, end, overlap, segment_size)
        self._in_sync = in_sync
        self._confirmed = 0

    def greeting(self) -> bytes:
        return _GREETING.pack(_HANDSHAKE, 0, 1, LEARNER_ID)

    def report(self, offset: int) -> bytes:
        return _LEARNER_REPORT.pack(_TRANSFER, offset)

    @property
    def _bound(self) -> int:
        return min(self._confirmed, self._in_sync() or 0)

    def feed(self, data: bytes) -> bytes:
        self._input += data
        answer = b""
        if not self._greeted:
            if not self._take_answer():
                return b""
            answer = self.report(self.asked)
        buffer, at = self._input, 0
        while at + _LEARNER_HEAD.size <= len(buffer):
            state, size, offset, _, _, confirmed = _LEARNER_HEAD.unpack_from(buffer, at)
            if state != _TRANSFER:
                raise SourceBroken(f"a frame of state {state} came at offset {self._position}: {_TRANSFER} is expected")
            # A master that has nothing to send yet says that it is at -1.
            if (size, offset) != (0, -1):
                self._check(offset, size)
            stop = at + _LEARNER_HEAD.size + size
            if stop > len(buffer):
                break
            self._confirmed = max(self._confirmed, min(confirmed, plausible.MAX_OFFSET))
            self._take(memoryview(buffer)[at + _LEARNER_HEAD.size : stop])
            at = stop
        del buffer[:at]
        return answer

    @property
    def full(self) -> bool:
        return len(self._pending) > MAX_HELD and self._bound - self._end < MAX_HELD

    def _take_answer(self) -> bool:
        """Take the master's answer to the handshake; False: it has not arrived whole."""
        buffer = self._input
        if len(buffer) < _ANSWER.size:
            return False
        state, size, _, _ = _ANSWER.unpack_from(buffer)
        if state != _HANDSHAKE or size % _EPOCH.size or not 0 <= size <= MAX_EPOCHS * _EPOCH.size:
            raise SourceBroken(
                f"the master answered the handshake with state {state} and {size} bytes: only the controller mode of "
                "RocketMQ 5.1.1 and later is followed"
            )
        if len(buffer) < _ANSWER.size + size:
            return False
        first = _EPOCH.unpack_from(buffer, _ANSWER.size)[1] if size else None
        if first is None or first > self.asked:
            # Such a master sends heartbeats alone: `findEpochEntryByOffset` finds nothing.
            raise MigrationError(
                f"the source's epochs begin at {first}, behind offset {self.asked}: it sends nothing from there; "
                "without a change, copy by messages (gantry migrate start --by messages)"
            )
        del buffer[: _ANSWER.size + size]
        self._greeted = True
        return True
