"""The POP state of a leader and its records in the log: written, replicated, read again by a new leader.

The changes of one pass of the event loop are one record. The state has them at once, so that the next pop of the pass
goes on behind them; clients get their answers when the record is replicated. A record that the log refuses (a full
disk) is tried again, and nothing is popped until it is written: state and log never differ for long.

Followers have no POP state. A new leader reads the records from the base on, in slices; pops wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.errors import NotStored, NotWritable
from gantry_broker.broker.pop.queue import Key, Queue
from gantry_broker.broker.pop.records import POP_GROUP, Changes, apply_record, whole_state
from gantry_broker.broker.pop.retry import origin_of, target_topics
from gantry_broker.broker.pop.state import PopState
from gantry_broker.protocol.codes import POP_TOPIC, SendStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.errors import StoreError
from gantry_broker.store.types import Put
from gantry_broker.timeslice import SLICE_S

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock, SteadyClock
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.store.store import MessageStore

log = logging.getLogger(__name__)

READ_BATCH: Final = 256
READ_BYTES: Final = 1 << 20
REST_S: Final = 0.003
"""Pause in seconds between two slices of reading."""
AGAIN_S: Final = 1.0
"""Pause in seconds before a record that the log refused is tried again."""
DAMAGED_S: Final = 30.0
"""Seconds for which reading waits for the repair of a damaged record. Then it goes on without it."""
LOOK_BACK: Final = 4_096
"""Records at the end of a retry topic that a new leader compares with the state."""
WHOLE_AFTER: Final = 100_000
"""Changes, and as many again as there are batches, after which the whole state is written."""

Waiter = Callable[[SendStatus | None], None]
"""Called with the result of the replication; None: the log refused the record."""


class PopLog:
    """Owns the state. `changes` takes changes; `submit` writes them at the end of this pass of the event loop."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        *,
        meta: Metadata,
        writer: LogWriter,
        role: RoleState,
        health: MemberHealth,
        clock: Clock,
        pop_clock: SteadyClock,
    ) -> None:
        self._store = store
        self._store_host = store_host
        self._meta = meta
        self._writer = writer
        self._role = role
        self._health = health
        self._clock = clock
        self._pop_clock = pop_clock
        self._loop = asyncio.get_running_loop()
        self.state = PopState()
        self.changes = Changes(self.state)
        self.ready = asyncio.Event()
        """Set while the state is that of the log."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_written: Callable[[], None] = lambda: None
        """Called after changes were written."""
        self.refused = ""
        """Why the log refuses a record now; empty: it does not."""
        self.committing = False
        """True while this object commits consumer offsets."""
        self._puts: list[Put] = []
        self._waiters: list[Waiter] = []
        self.waiting = 0
        """Requests that wait for the replication of a change."""
        self._pending: list[tuple[list[Put], list[Queue], list[Waiter]]] = []
        self._flush_set = False
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Handle | None = None
        self._read_at = 0
        self._rest: Iterator[None] | None = None
        self._damaged_until = 0.0
        self._last_phys = -1
        """Where the log has the last record that was read."""
        self._since_whole = 0
        self._whole_segment = -1
        self._whole: Iterator[bytes] | None = None
        self._base = -1

    # ---- the role

    def lead(self) -> None:
        """Begins to read the state."""
        self.stop()
        self._read_at = max(self._meta.working.offset(POP_TOPIC, POP_GROUP, 0), 0)
        self._reading = self._loop.call_soon(self._read)

    def stop(self) -> None:
        """Forgets the state; those who wait for a record get no confirmation."""
        for handle in (self._timer, self._reading):
            if handle is not None:
                handle.cancel()
        self._timer = self._reading = self._whole = self._rest = None
        waiters = [waiter for _, _, waiting in self._pending for waiter in waiting] + self._waiters
        self._puts, self._waiters, self._pending = [], [], []
        self.state = PopState()
        self.changes = Changes(self.state)
        self.ready.clear()
        self.refused = ""
        self._damaged_until = 0.0
        self._last_phys = self._whole_segment = self._base = -1
        self._since_whole = 0
        self._notify(waiters, None)

    # ---- writing

    def submit(self, waiter: Waiter | None = None, puts: list[Put] | None = None) -> None:
        """Write the changes at the end of this pass, `puts` before them in the same batch."""
        if waiter is not None:
            self._waiters.append(waiter)
            self.waiting += 1
        if puts:
            self._puts += puts
        if not self._flush_set:
            self._flush_set = True
            self._loop.call_soon(self._flush_soon)

    async def stored(self) -> None:
        """Write the changes, and waits until they are replicated. Raises NotWritable and NotStored."""
        done: asyncio.Future[SendStatus | None] = self._loop.create_future()
        self.submit(lambda status: None if done.done() else done.set_result(status))
        failure = self.failure(await done)
        if failure is not None:
            raise failure

    def failure(self, status: SendStatus | None) -> NotWritable | NotStored | None:
        """Return what the result of a replication means for a client; None: all is well."""
        if status is SendStatus.SEND_OK:
            return None
        if status is None:
            return NotWritable(self.refused or self._role.refusal())
        return NotStored(f"the change is in this member's log, but not replicated in time: {status.name}")

    def _record(self, body: bytes) -> Put:
        return Put(POP_TOPIC, 0, 0, 0, self._clock.unix_ms(), self._store_host, body, b"")

    def _flush_soon(self) -> None:
        self._flush_set = False
        self.flush()

    def flush(self) -> None:
        """Append the changes so far."""
        waiters, self._waiters = self._waiters, []
        if not self.changes:
            if self._pending or not waiters:
                self._notify(waiters, None)
            else:  # What they wait for was no change, so nothing holds them up.
                self._writer.appended(lambda status: self._notify(waiters, status))
            return
        touched = list(self.changes.touched.values())
        self._since_whole += len(self.changes)
        puts, self._puts = self._puts, []
        # Behind the copies for retry topics. A log that ends between the two has copies that a new leader recognises;
        # the other way round it would lack messages.
        puts.append(self._record(self.changes.take()))
        self._pending.append((puts, touched, waiters))
        self._write()

    def _notify(self, waiters: list[Waiter], status: SendStatus | None) -> None:
        self.waiting -= len(waiters)
        for waiter in waiters:
            try:
                waiter(status)
            except Exception:
                log.exception("the answer to a request of POP")

    def _write(self) -> None:
        while self._pending:
            puts, touched, waiters = self._pending[0]
            try:
                self._writer.append(puts)
            except (NotWritable, StoreError) as error:
                if isinstance(error, StoreError):
                    self._health.store_failed(error)
                self.refused = f"the log does not take the state of POP consumption now: {error}"
                for _, _, waiting in self._pending:
                    self._notify(waiting, None)
                    waiting.clear()
                if self._timer is None:
                    self._timer = self._loop.call_later(AGAIN_S, self._write_again)
                return
            del self._pending[0]
            # After the record: the consumer offset must not pass a message whose flight the log does not know.
            self.commit(touched)
            self._writer.appended((lambda status, waiting=waiters: self._notify(waiting, status)) if waiters else None)  # type: ignore[misc]
        self.refused = ""
        self.on_written()

    def _write_again(self) -> None:
        self._timer = None
        self._write()

    def has_room(self, key: Key, begin: int, owner: str) -> bool:
        """Return whether a queue may be popped from: its group has a consumer offset there, or gets `begin` as one,
        for which `owner` pays.
        """
        group, topic, queue_id = key
        if self._meta.working.offset(topic, group, queue_id) >= 0:
            return True
        self.committing = True
        try:
            return self._meta.commit_offset(topic, group, queue_id, begin, owner)
        finally:
            self.committing = False

    def commit(self, touched: list[Queue]) -> None:
        """Commit the lowest unfinished offset of each queue as the group's consumer offset."""
        commit, self.committing = self._meta.commit_offset, True
        for queue in touched:
            low = queue.lowest()
            if low != queue.committed:
                queue.committed = low
                group, topic, queue_id = queue.key
                commit(topic, group, queue_id, low)
        self.committing = False

    # ---- the whole state

    def write_whole(self) -> bool:
        """Write the whole state into the log, once in each segment, and after many changes. It writes for `SLICE_S`.

        Returns True while more of it waits. Records expire with their segment, and a new leader should read few.
        """
        if not self.ready.is_set() or not self._role.may_append or self._pending:
            self._whole = None
            return False
        store, state = self._store, self.state
        if self._whole is None:
            segment = store.log.end // store.log.segment_size
            many = self._since_whole > WHOLE_AFTER + 2 * state.batches
            if not state.queues or not (many or segment != self._whole_segment):
                return False
            self._whole, self._base, self._whole_segment = whole_state(state), -1, segment
            self._since_whole = 0
        ends = time.perf_counter() + SLICE_S
        while True:
            self.flush()  # A part has the changes before it, so they come first in the log, too.
            body = None if self._pending else next(self._whole, None)
            if self._pending:
                self._whole, self._whole_segment = None, -1
                return False
            if body is None:
                self._whole = None
                # Only once all of it is written: a new leader begins there, and would lack the rest.
                if self._base >= 0:
                    self._meta.commit_offset(POP_TOPIC, POP_GROUP, 0, self._base)
                return False
            try:
                stored = self._writer.append([self._record(body)])[0]
            except (NotWritable, StoreError) as error:
                self._whole, self._whole_segment = None, -1
                if isinstance(error, StoreError):
                    self._health.store_failed(error)
                return False
            self._writer.appended(None)
            if self._base < 0:
                self._base = stored.queue_offset
            if time.perf_counter() > ends:
                return True

    # ---- reading

    def _read(self) -> None:
        """Read the records for one slice."""
        self._reading = self._loop.call_later(AGAIN_S, self._read)  # For the case that this slice fails.
        pause = self._read_slice(time.perf_counter() + SLICE_S)
        if pause is None:
            self._complete()
        self._reading.cancel()
        self._reading = None
        if pause is not None:
            self._reading = self._loop.call_later(pause, self._read)
        else:
            self._begin()

    def _read_slice(self, ends: float) -> float | None:
        """Return the pause before the next slice; None: the state is complete. Raises OSError."""
        store = self._store
        while True:
            if self._rest is not None:
                for _ in self._rest:
                    if time.perf_counter() > ends:
                        return REST_S
                self._rest = None
            # Asked before the read. Asked after it, records that are confirmed between the two would be missed.
            confirmed = self._role.epoch_confirmed
            self._read_at = max(self._read_at, store.reader.min_offset(POP_TOPIC, 0))
            got = store.reader.get(POP_TOPIC, 0, self._read_at, READ_BATCH, READ_BYTES)
            if not got.data:
                if got.damaged >= 0:
                    now = self._loop.time()
                    self._damaged_until = self._damaged_until or now + DAMAGED_S
                    if now < self._damaged_until:
                        return AGAIN_S
                    log.error("POP goes on without the damaged record at %d", got.damaged)
                    self._read_at = got.next_offset + 1
                    continue
                if got.next_offset > self._read_at and got.next_offset <= got.max_offset:
                    self._read_at = got.next_offset  # Removed records.
                    continue
                return None if confirmed else REST_S
            self._damaged_until = 0.0
            self._read_at = got.next_offset
            self._rest = self._apply(got.data)

    def _apply(self, data: bytes) -> Iterator[None]:
        """Apply records, with a pause after each change."""
        watermarks = self._meta.working.deletion_watermarks
        for record in decode_records(data):
            self._last_phys = record.phys_offset
            phys = record.phys_offset
            hidden = frozenset([topic for topic, below in watermarks.items() if below > phys]) if watermarks else None
            try:
                for _ in apply_record(self.state, record.body, hidden or frozenset()):
                    self._since_whole += 1
                    yield
            except (ValueError, TypeError, LookupError) as error:
                log.error("the POP record at %d cannot be applied: %s", record.phys_offset, error)

    def _complete(self) -> None:
        """Completes what the last leader did not write completely; may be repeated. Raises OSError and RecordError."""
        tables, state = self._meta.working, self.state
        for key, queue in list(state.queues.items()):
            if key[0] not in tables.groups or key[1] not in tables.topics:
                self.changes.drop(queue)
        self._finish_copied()
        for queue in state.queues.values():
            self.changes.touched[queue.key] = queue

    def _begin(self) -> None:
        """Take the state into use."""
        log.info("POP: %d messages in flight in %d queues", len(self.state), len(self.state.queues))
        # The former leader's clock may have been ahead. A delivery that begins before the one that it replaces would
        # take the acknowledgements of that one.
        self._pop_clock.lead(self.state.latest_ms)
        self.ready.set()
        if self.changes:
            self.submit()
        else:
            self.commit(list(self.changes.touched.values()))
            self.changes.touched.clear()
        self.on_ready()

    def _finish_copied(self) -> None:
        """Finishes messages whose copies in retry topics are there, but not the record that belongs to them.

        A log may end within a batch after a failover. The copies are before their record, and nothing is written to
        the POP topic after them, so they are behind its last record.
        """
        store = self._store
        looked: set[str] = set()
        for (group, topic, _), queue in list(self.state.queues.items()):
            if not queue.count:
                continue
            for target in target_topics(group, topic):
                if target in looked:
                    continue
                looked.add(target)
                self._finish_copied_to(group, target, store.reader.max_offset(target, 0))

    def _finish_copied_to(self, group: str, target: str, end: int) -> None:
        at = max(end - LOOK_BACK, self._store.reader.min_offset(target, 0))
        last = self._store.reader.get(target, 0, end - 1, 1, 1) if end > at else None
        if last is None or not last.data or decode_records(last.data)[0].phys_offset < self._last_phys:
            return
        while at < end:
            got = self._store.reader.get(target, 0, at, READ_BATCH, READ_BYTES)
            for record in decode_records(got.data):
                origin = origin_of(record)
                if record.phys_offset > self._last_phys and origin is not None:
                    topic, queue_id, offset = origin
                    queue = self.state.queues.get((group, topic, queue_id))
                    if queue is not None:
                        # Its time was over for the former leader, whose clock may have been ahead.
                        self.changes.expire(queue, offset, queue.visible_ms(offset))
            at = max(got.next_offset, at + 1)
