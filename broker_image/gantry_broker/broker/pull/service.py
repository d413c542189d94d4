"""Pulls: each is answered with messages, answered without, or held. Codes and remarks are those of 4.9.7.

A pull sees confirmed records only, because the consume queues hold no others. A new leader may not know yet how far its
log is confirmed. It holds a pull beyond the records that it knows, and never answers "offset moved". A slave that
cannot serve a pull answers PULL_RETRY_IMMEDIATELY and names the master.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Container, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from gantry_broker.admission import owners_of
from gantry_broker.broker.archive_reads import ArchiveQuery
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.pull.answers import found_head
from gantry_broker.broker.pull.checks import Consumption, Pull, PullChecks
from gantry_broker.broker.pull.held import HeldPulls
from gantry_broker.broker.pull.pace import MOST_MS, WakePace
from gantry_broker.broker.pull.sql92 import Filter, FilterSyntaxError
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import FLAG_RESPONSE, GetStatus, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullAnswer
from gantry_broker.protocol.message import parse_properties
from gantry_broker.store.types import Got
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pull.filters import Filters
    from gantry_broker.broker.pull.slave_reads import SlaveReads
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.store.read import LogPieces
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices


DUE_AT_ONCE: Final = 100
"""Expired pulls that one step answers between two checks of the time."""
LARGE_COUNT: Final = 1_024
LARGE_BYTES: Final = 1 << 20
"""Of an answer to a reader of a backlog that asks for large ones. Unsent answers are limited by connection as well."""
FEW: Final = 16
"""Pulls of a queue that are tried without a look at the time."""
ASTRAY: Final = "astray"
"""Attribute of a connection: its client pulls here again and again after it was sent to the master."""
ASTRAY_AFTER: Final = 3
"""So often within ASTRAY_S for the same queue: a client that read from this slave on purpose goes to the master."""
ASTRAY_S: Final = 1.0
MOST_SENT_AWAY: Final = 1_000
"""Queues of one connection whose pulls are counted."""
SENT_AWAY: Final = "sent_away"
SENT_MS: Final = "sent_ms"
"""Attribute of a connection: when it last brought sends, monotonic milliseconds."""
SENDS_MS: Final = 1_000
"""A connection that brought sends within this time is read at once: its senders wait for their answers."""
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND: Final = int(ResponseCode.SUCCESS)
_MASTER: Final = 0


class Tally:
    """Answers to pulls of one group and topic: messages, their bytes and the next offsets by queue."""

    __slots__ = ("count", "offsets", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.offsets: dict[int, int] = {}


class PullService:
    """Answer pulls, hold them, and try them again when messages are available.

    While many pulls a second find messages (`pace.py`), their answers leave together: a pull that finds fewer messages
    than it may have waits for the next turn, and so does a held one whose queue grows. Connections that bring pulls
    only are read at the beginning of each turn.
    """

    def __init__(
        self,
        store: MessageStore,
        meta: Metadata,
        role: RoleState,
        *,
        held: HeldPulls[Pull],
        filters: Filters,
        checks: PullChecks,
        slave_reads: SlaveReads,
        archive_reads: ArchiveReads,
        counts: MessageCounts,
        latencies: Latencies,
        slices: TimeSlices,
        clock: Clock,
    ) -> None:
        self._settings = store.config.settings
        self._store = store
        self._meta = meta
        self._role = role
        self._held = held
        self._filters = filters
        self._check = checks.take
        self._check_again = checks.again
        self._slave_reads = slave_reads
        self._archive_reads = archive_reads
        self._with_archive = archive_reads.on
        self._count_gets = counts.gets
        self._latencies = latencies
        self._settling: asyncio.Task[None] | None = None
        self._slices = slices
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pace = WakePace()
        self._waking: set[tuple[str, int]] = set()
        """Queues whose held pulls are being tried, in slices."""
        self._gathered: dict[tuple[str, int], float] = {}
        """Queues whose held pulls are tried at the next turn, with the time at which they grew (`perf_counter`)."""
        self._unread: dict[Connection, None] = {}
        """Connections that are read again at the next turn."""
        self._turn_is_set = False
        self._answered: list[tuple[Pull, int, float]] = []
        """Held pulls that were answered, with the codes and the times at which their queues grew (`perf_counter`).

        They stay until `_note_answered`.
        """
        self._tally: dict[Consumption, Tally] | None = None
        """Answers of this turn, counted at its end; None between turns."""

    def take(self, conn: Connection, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Take pulls of one read that repeat checked ones, as most do; return the rest, for `handle`."""
        if not self._role.leading:
            return frames
        begun = perf_counter()
        rest: list[Frame] = []
        to_read: list[tuple[Frame, Pull]] = []
        may_hold, commit, waits = self._settings.longPollingEnable, self._meta.commit_offset_of, self._waits
        now_ms, wait_ms, owner = self._clock.now_ms(), self._wait_ms(), owners_of(conn)[1]
        waiting = False
        for frame, pull in zip(frames, self._check_again(conn, frames), strict=True):
            if pull is None:
                rest.append(frame)
                continue
            consumption = pull.consumption
            try:
                if consumption.commits:
                    commit(consumption.key, pull.queue_id, pull.commit, owner)
                if consumption.hold_ms and may_hold and waits(pull, now_ms, wait_ms):
                    waiting = True
                else:
                    to_read.append((frame, pull))
            except Exception:
                rest.append(frame)  # `handle` meets the error again, and its caller answers with it.
        if waiting and wait_ms:
            self._gather(conn, wait_ms)
        if to_read:
            self._answer_from_end(to_read, rest, begun)
        return rest

    def _answer_from_end(self, to_read: list[tuple[Frame, Pull]], rest: list[Frame], begun: float) -> None:
        """Answer pulls from records at the end of the log, which it reads together; `rest` gets the other requests."""
        ends = begun + SLICE_S
        pieces = self._store.reader.together()
        with self._counted_together():
            for number, (frame, pull) in enumerate(to_read):
                if perf_counter() > ends:
                    rest += [frame for frame, _ in to_read[number:]]
                    return
                try:
                    got = self._read_end(pull, pieces)
                except OSError:
                    got = None  # `handle` meets it again.
                if got is None:
                    rest.append(frame)
                    continue
                self._give(pull, got)
                seconds = perf_counter() - begun
                self._latencies.pull.observe(seconds)
                self._latencies.rpc.observe(pull.code, _FOUND, seconds)

    def _read_end(self, pull: Pull, pieces: LogPieces) -> Got | None:
        """Return what `pieces` have for a pull without a filter; None: `_read` has to look."""
        consumption = pull.consumption
        if consumption.codes is not None or pull.filter is not None:
            return None
        return pieces.try_get(consumption.topic_name, pull.queue_id, pull.offset, *self._limits(consumption))

    def _limits(self, consumption: Consumption) -> tuple[int, int]:
        """Return the most messages and bytes of an answer."""
        settings = self._settings
        most, most_bytes = settings.maxTransferCountOnMessageInMemory, settings.maxTransferBytesOnMessageInMemory
        if consumption.large:
            most, most_bytes = max(most, LARGE_COUNT), max(most_bytes, LARGE_BYTES)
        return (consumption.max_count if consumption.max_count < most else most), most_bytes

    @contextlib.contextmanager
    def _counted_together(self) -> Iterator[None]:
        """Count the messages of all answers within at its end."""
        tally: dict[Consumption, Tally] = {}
        self._tally = tally
        try:
            yield
        finally:
            self._tally = None
            for consumption, entry in tally.items():
                self._count_gets(consumption.topic_name, consumption.group_name, entry.count, entry.size, entry.offsets)

    def handle(self, conn: Connection, frame: Frame) -> Coroutine[None, None, None] | None:
        begun = perf_counter()
        pull = self._check(conn, frame)
        if frame.is_oneway:  # It brings progress at most: no answer may carry what it would get.
            self._commit(pull)
            return None
        if pull.consumption.sql is not None and self._slices.left_s <= 0:
            return self._pull_in_turn(pull, begun)
        return self._serve(pull, begun)

    def _commit(self, pull: Pull) -> None:
        """Keep the progress that a pull brings."""
        consumption = pull.consumption
        if consumption.commits and self._role.leading and pull.commit >= 0:
            self._meta.commit_offset_of(consumption.key, pull.queue_id, pull.commit, owners_of(pull.conn)[1])

    async def _pull_in_turn(self, pull: Pull, begun: float) -> None:
        """Serve a pull with an SQL92 filter in a later slice, when this pass of the event loop has done enough."""
        await self._slices.grant()
        if not pull.conn.closed and (rest := self._serve(pull, begun)) is not None:
            await rest

    def _serve(self, pull: Pull, begun: float) -> Coroutine[None, None, None] | None:
        """Answer a pull, hold it, or return the rest of the work. `begun`: when it arrived, by `perf_counter`."""
        consumption = pull.consumption
        if consumption.sql is not None:
            pull.filter = self._sql(consumption.sql)
        self._commit(pull)
        may_hold = consumption.hold_ms > 0 and self._settings.longPollingEnable
        if may_hold and self._role.serves:
            wait_ms = self._wait_ms()
            if self._waits(pull, self._clock.now_ms(), wait_ms):
                if wait_ms:
                    self._gather(pull.conn, wait_ms)
                return None
        got, code = self._read(pull, self._store.reader.together())
        # In the same pass of the event loop as the read: a message that came in between would wake nobody.
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and self._hold(pull, self._clock.now_ms()):
            return None
        if got.status == GetStatus.OFFSET_TOO_SMALL and code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            consumption = pull.consumption
            if self._archive_reads.may_have(consumption.topic_name, pull.queue_id, pull.offset):
                return self._from_archive(pull, begun)
        self._answered_now(pull, got, code, begun)
        return None

    def _answered_now(self, pull: Pull, got: Got, code: int, begun: float) -> None:
        self.answer(pull, got, code)
        seconds = perf_counter() - begun
        self._latencies.pull.observe(seconds)
        self._latencies.rpc.observe(pull.code, code, seconds)

    async def _from_archive(self, pull: Pull, begun: float) -> None:
        """Answer a pull with messages that the local log no longer has. Raises RequestRejected."""
        consumption, condition = pull.consumption, pull.filter
        got = await self._archive_reads.get(
            ArchiveQuery(
                consumption.topic_name,
                pull.queue_id,
                pull.offset,
                *self._limits(consumption),
                consumption.codes,
                None if condition is None else lambda record: condition(parse_properties(record.properties)),
            ),
            owners_of(pull.conn)[1],
        )
        if not pull.conn.closed:
            code = ResponseCode.SUCCESS if got.count else ResponseCode.PULL_RETRY_IMMEDIATELY
            self._answered_now(pull, got, int(code), begun)

    def _hold(self, pull: Pull, now_ms: int) -> bool:
        consumption = pull.consumption
        return self._held.hold(consumption.topic_name, pull.queue_id, pull, now_ms + consumption.hold_ms)

    def _waits(self, pull: Pull, now_ms: int, wait_ms: int) -> bool:
        """Hold a pull of the master without a read, for its queue to grow or for the next turn; False: read.

        `wait_ms`: from `_wait_ms`. If it is not 0 and a pull waits, `_gather` has to follow.
        """
        consumption = pull.consumption
        there = self._store.reader.max_offset(consumption.topic_name, pull.queue_id) - pull.offset
        if there == 0:
            return pull.offset != 0 and self._hold(pull, now_ms)
        if there < 0 or there >= consumption.max_count or consumption.codes is not None or consumption.sql is not None:
            return False
        self._pace.note(1)
        if not wait_ms or not self._hold(pull, now_ms):
            return False
        self._gathered.setdefault(pull.key, perf_counter())
        return True

    def _wait_ms(self) -> int:
        """Return the time to the next turn, at most; 0: answers leave at once."""
        return MOST_MS if self._turn_is_set else self._pace.wait_ms(self._loop.time())

    def _gather(self, conn: Connection, wait_ms: int) -> None:
        """Read no more pulls of this connection before the next turn."""
        if not self._turn_is_set:
            self._set_turn(wait_ms)
        # Each pull alone would cost a pass and a system call. A connection that also sends is read on: its sends must
        # not wait for pulls.
        if conn not in self._unread and self._clock.now_ms() - conn.attrs.get(SENT_MS, -SENDS_MS) >= SENDS_MS:
            self._unread[conn] = None
            conn.read_later(True)

    def wake(self, queues: Sequence[tuple[str, int]]) -> None:
        """Try the waiting pulls of queues with new messages again, now or at the next turn."""
        waiting = self._held.counts(queues)
        if not waiting:
            return
        self._pace.note(sum(waiting.values()))
        now = perf_counter()
        wait_ms = 0 if self._turn_is_set else self._pace.wait_ms(self._loop.time())
        if not self._turn_is_set and not wait_ms:
            self._wake_now(dict.fromkeys(waiting, now))
            return
        for key in waiting:
            self._gathered.setdefault(key, now)
        if wait_ms:
            self._set_turn(wait_ms)

    def _set_turn(self, wait_ms: int) -> None:
        self._turn_is_set = True
        self._loop.call_later(wait_ms / 1000, self._begin_turn)

    def _begin_turn(self) -> None:
        """Read the connections that were left, and then try the pulls."""
        unread, self._unread = self._unread, {}
        for conn in unread:
            conn.read_later(False)
        self._loop.call_soon(self._loop.call_soon, self._end_turn)  # after the reads of this pass

    def _end_turn(self) -> None:
        self._turn_is_set = False
        gathered, self._gathered = self._gathered, {}
        if self._unread:  # Pulls came between the two halves of this turn.
            self._set_turn(self._pace.wait_ms(self._loop.time()) or 1)
        self._wake_now(gathered)

    def _wake_now(self, queues: Mapping[tuple[str, int], float]) -> None:
        """Try the pulls of these queues for one slice of the event loop, and the rest in later passes.

        `queues`: with the time at which each grew. When the time is over, the rest is tried together in a later pass:
        each queue alone would cost a read of the log of its own.
        """
        ends = perf_counter() + SLICE_S
        pieces = self._store.reader.together()
        held, waking, attempt = self._held, self._waking, self._attempt
        left = iter(queues.items())
        try:
            with self._counted_together():
                for key, grew in left:
                    if key in waking:
                        # They are being tried with what was there before. Forgotten, the new messages would wait for
                        # the pulls' deadline.
                        held.passed_over.add(key)
                        continue
                    few = held.few(key, FEW)
                    if few is None:
                        self._note_answered()
                        self._try_each(key, held.waiting(*key), pieces, ends, grew)
                        continue
                    for pull in few:
                        if attempt(pull, pieces, grew):
                            held.end(pull)
                    if perf_counter() > ends:
                        break
            self._note_answered()
        except BaseException:
            held.passed_over.update(queues)  # The disk failed: `expire` tries them again.
            raise
        if rest := dict(left):
            self._slices.charge(SLICE_S)
            self._slices.run(lambda: self._wake_now(rest))

    def _try_each(
        self, key: tuple[str, int], waiting: deque[Pull], pieces: LogPieces, ends: float, grew: float
    ) -> None:
        """Try pulls until a time, and the rest in a later pass."""
        self._waking.discard(key)
        self._held.try_each(waiting, lambda pull: self._attempt(pull, pieces, grew), lambda: perf_counter() < ends)
        self._note_answered()
        if waiting:
            self._waking.add(key)
            self._slices.charge(SLICE_S)
            self._slices.run(lambda: self._try_rest(key, waiting, grew))

    def _try_rest(self, key: tuple[str, int], waiting: deque[Pull], grew: float) -> None:
        try:
            self._try_each(key, waiting, self._store.reader.together(), perf_counter() + SLICE_S, grew)
        except BaseException:
            self._held.passed_over.add(key)  # The disk failed: `expire` tries them again.
            raise

    def _note_answered(self) -> None:
        """Count the answers to held pulls since the last call."""
        answered, self._answered = self._answered, []
        if not answered:
            return
        now_ms, now = self._clock.now_ms(), perf_counter()
        since: dict[float, int] = {}
        kinds: dict[tuple[int, int], list[int]] = {}
        for pull, code, grew in answered:
            since[grew] = since.get(grew, 0) + 1
            times_ms = kinds.get((pull.code, code))
            if times_ms is None:
                times_ms = kinds[pull.code, code] = []
            times_ms.append(now_ms - pull.deadline_ms + pull.consumption.hold_ms)
        for grew, count in since.items():
            self._latencies.pull.observe(now - grew, count)
        for (request, code), times_ms in kinds.items():
            self._latencies.rpc.observe_held(request, code, times_ms)

    def _note_held(self, pull: Pull, code: int, now_ms: int) -> None:
        self._latencies.rpc.observe_held(pull.code, code, (now_ms - pull.deadline_ms + pull.consumption.hold_ms,))

    def settle_soon(self) -> None:
        """Answer every held pull as `settle_all`, in slices of later passes of the event loop."""
        self._settling = asyncio.get_running_loop().create_task(self.settle_all())

    async def settle_all(self, of: Container[Connection] | None = None) -> None:
        """Answer every held pull from this member's present state, after a change of role. `of`: only those of these
        connections.
        """
        async for pull in self._slices.sliced(self._held.everything()):
            if pull.done or (of is not None and pull.conn not in of):
                continue
            self._held.end(pull)
            self._answer_now(pull)

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is over, and try the pulls again that could not take new messages before."""
        again, self._held.passed_over = self._held.passed_over, set()
        if again:
            self._wake_now(dict.fromkeys(again, perf_counter()))
        self._answer_due(now_ms)

    def _answer_due(self, now_ms: int) -> None:
        ends = perf_counter() + SLICE_S
        while due := self._held.due(now_ms, DUE_AT_ONCE):
            for pull in due:
                self._answer_now(pull)
            if perf_counter() > ends:
                self._slices.charge(SLICE_S)
                self._slices.run(lambda: self._answer_due(now_ms))
                return

    def _answer_now(self, pull: Pull) -> None:
        if not pull.conn.closed:
            got, code = self._read(pull, self._store.reader.together())
            self.answer(pull, got, code)
            self._note_held(pull, code, self._clock.now_ms())

    def _attempt(self, pull: Pull, pieces: LogPieces, grew: float) -> bool:
        """Try a pull whose queue grew at that time; return True when it is answered or given up."""
        if pull.conn.closed:
            return True
        if pull.conn.paused or (pull.filter is not None and self._slices.left_s <= 0):
            self._held.passed_over.add(pull.key)
            return False
        from_end = self._read_end(pull, pieces)
        if from_end is not None:
            self._give(pull, from_end)
            self._answered.append((pull, _FOUND, grew))
            return True
        got, code = self._look(pull)
        if code == ResponseCode.PULL_NOT_FOUND:
            return False
        at_end = got.next_offset >= got.max_offset  # False: more messages came than one read examines
        if code == ResponseCode.PULL_RETRY_IMMEDIATELY and got.status == GetStatus.NO_MATCHED_MESSAGE and at_end:
            pull.offset = got.next_offset
            return False
        self.answer(pull, got, code)
        self._answered.append((pull, code, grew))
        return True

    def _sql(self, data: SubscriptionData) -> Filter:
        """Compile an expression. Raises RequestRejected."""
        begun = perf_counter()
        try:
            return self._filters.compiled(data.expression)
        except FilterSyntaxError as error:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
        finally:
            self._slices.charge(perf_counter() - begun)

    def _read(self, pull: Pull, pieces: LogPieces) -> tuple[Got, int]:
        """Read the records and return them with the code of an answer at this moment."""
        from_end = self._read_end(pull, pieces)
        return self._look(pull) if from_end is None else (from_end, _FOUND)

    def _look(self, pull: Pull) -> tuple[Got, int]:
        """As `_read`, for records that `_read_end` does not have."""
        consumption = pull.consumption
        most, most_bytes = self._limits(consumption)
        condition = pull.filter
        if condition is None:
            got = self._store.reader.get(
                consumption.topic_name, pull.queue_id, pull.offset, most, most_bytes, consumption.codes
            )
        else:
            begun = perf_counter()
            ends = begun + SLICE_S
            got = self._store.reader.get(
                consumption.topic_name,
                pull.queue_id,
                pull.offset,
                most,
                most_bytes,
                None,
                lambda record: condition(parse_properties(record.properties)),
                lambda: perf_counter() > ends,
            )
            self._slices.charge(perf_counter() - begun)
        status = got.status
        if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
            code = ResponseCode.PULL_NOT_FOUND if pull.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        else:
            code = _CODES[status]
        if status == GetStatus.OFFSET_TOO_SMALL and self._with_archive:
            got, code = self._below_local(pull, got, code)
        if self._role.serves:
            if got.damaged >= 0:
                code = ResponseCode.SYSTEM_ERROR
            elif (
                code == ResponseCode.PULL_OFFSET_MOVED
                and (not self._role.epoch_confirmed or self._role.site.is_standby)
                and pull.offset >= got.max_offset
            ):
                code = ResponseCode.PULL_NOT_FOUND
        elif self._role.draining and code == ResponseCode.PULL_OFFSET_MOVED:
            code = ResponseCode.PULL_NOT_FOUND
        elif self._role.draining and code == ResponseCode.PULL_NOT_FOUND:
            pass
        elif code != ResponseCode.SUCCESS and status != GetStatus.NO_MATCHED_MESSAGE:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return got, int(code)

    def _below_local(self, pull: Pull, got: Got, code: ResponseCode) -> tuple[Got, ResponseCode]:
        """Return the answer to a pull below the local log as far as it is known without a read of the archive."""
        reads, consumption = self._archive_reads, pull.consumption
        if reads.may_have(consumption.topic_name, pull.queue_id, pull.offset):
            return replace(got, next_offset=pull.offset), ResponseCode.PULL_RETRY_IMMEDIATELY
        floor = reads.floor(consumption.topic_name, pull.queue_id)
        if floor is not None and floor < got.min_offset:
            got = replace(got, next_offset=floor, min_offset=floor)
        return got, code

    def answer(self, pull: Pull, got: Got, code: int) -> None:
        if code == _FOUND:
            self._give(pull, got)
            return
        suggest = self._suggest(pull, got, code)
        next_offset = pull.offset if code == ResponseCode.PULL_NOT_FOUND else got.next_offset
        if (
            not self._role.serves
            and code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and got.status != GetStatus.NO_MATCHED_MESSAGE
        ):
            next_offset = pull.offset
            if suggest == _MASTER:
                self._note_sent_away(pull)
        fields = PullAnswer(Long(suggest), Long(next_offset), Long(got.min_offset), Long(got.max_offset))
        remark = GetStatus(got.status).name
        if got.damaged >= 0:
            remark = f"the record at offset {got.damaged} of the log is damaged on the disk and waits for repair"
        pull.conn.send(Frame(code, pull.opaque, FLAG_RESPONSE, fields.ext(), b"", remark, pull.serialize))

    def _note_sent_away(self, pull: Pull) -> None:
        """Find clients that take this slave for the master."""
        attrs = pull.conn.attrs
        counts: dict[tuple[str, int], tuple[int, float]] = attrs.setdefault(SENT_AWAY, {})
        key, now = (pull.consumption.key, pull.queue_id), self._loop.time()
        count, since = counts.get(key, (0, now))
        if now - since > ASTRAY_S or len(counts) > MOST_SENT_AWAY:
            counts.clear()
            count, since = 0, now
        counts[key] = (count + 1, since)
        if count + 1 >= ASTRAY_AFTER:
            attrs[ASTRAY] = True

    def _give(self, pull: Pull, got: Got) -> None:
        """Answer with records."""
        consumption, tally, data, following = pull.consumption, self._tally, got.data, got.next_offset
        suggest = self._suggest(pull, got, _FOUND) if self._settings.slaveReadEnable else _MASTER
        if tally is None:
            self._count_gets(
                consumption.topic_name, consumption.group_name, got.count, len(data), {pull.queue_id: following}
            )
        else:
            entry = tally.get(consumption)
            if entry is None:
                entry = tally[consumption] = Tally()
            entry.count += got.count
            entry.size += len(data)
            entry.offsets[pull.queue_id] = following
        low = got.min_offset
        if low and self._with_archive:
            low = self._archive_reads.bounds(consumption.topic_name, pull.queue_id)[0]
        head = found_head(pull.opaque, pull.serialize, suggest, following, low, got.max_offset, len(data))
        pull.conn.write_with(head, data)

    def _suggest(self, pull: Pull, got: Got, code: int) -> int:
        """Return the brokerId from which the consumer should pull next; 0 is the master."""
        settings = self._settings
        if not settings.slaveReadEnable:
            return _MASTER
        if self._role.site.is_standby:
            return self._role.broker_id
        if self._role.leading:
            if code != ResponseCode.SUCCESS:
                return _MASTER
            if self._slave_reads.far_behind(got):
                return self._slave_reads.slave_for(pull.consumption.group.which_broker_when_slow, got)
            return pull.consumption.group.broker_id
        served = code == ResponseCode.SUCCESS or got.status == GetStatus.NO_MATCHED_MESSAGE
        if not served or not self._slave_reads.far_behind(got):
            return _MASTER
        return self._role.broker_id
