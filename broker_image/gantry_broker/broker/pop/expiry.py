"""Messages whose invisible time is over: a copy for the retry topic and the end of the flight, in one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.archive_reads import ArchiveQuery
from gantry_broker.broker.errors import NotWritable, RequestRejected
from gantry_broker.broker.metadata.topics import topic_fault
from gantry_broker.broker.pop.retry import revived
from gantry_broker.protocol.codes import DLQ_PREFIX, GetStatus, Perm
from gantry_broker.protocol.message import QUEUE_OFFSET_AT, RecordError, decode_record
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.archive_reads import ArchiveReads
    from gantry_broker.broker.clock import SteadyClock
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pop.finding import QueueKey
    from gantry_broker.broker.pop.log import PopLog
    from gantry_broker.broker.pop.state import Expired
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Got, Put

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Messages of one step, some 5 ms."""
BYTES: Final = 1 << 20
"""Bytes of the copies of one batch."""
REST_S: Final = 0.002
"""Pause in seconds between two steps."""
AGAIN_MS: Final = 1_000
"""After this time, a message that could not be copied is tried again."""
PAUSE_S: Final = 0.1
"""Pause in seconds while nothing may be written."""


class Expiry:
    """One timer for the messages that become visible next."""

    def __init__(
        self,
        store: MessageStore,
        pop_log: PopLog,
        *,
        meta: Metadata,
        creation: OnDemandCreation,
        role: RoleState,
        stats: Stats,
        archive_reads: ArchiveReads,
        clock: SteadyClock,
        unlocked: Callable[[Sequence[QueueKey]], None],
    ) -> None:
        """`unlocked` gets orderly queues that are not blocked any more."""
        self._store = store
        self._log = pop_log
        self._archive_reads = archive_reads
        self._meta = meta
        self._creation = creation
        self._role = role
        self._stats = stats
        self._clock = clock
        self._unlocked = unlocked
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def arm(self) -> None:
        """Set the timer for what becomes visible first."""
        due = self._log.state.next_due()
        if due is None or not self._log.ready.is_set():
            return
        if self._timer is None or due < self._at_ms:
            self._set(due, max(due - self._clock.unix_ms(), 0) / 1000)

    def _set(self, at_ms: int, pause: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_ms = at_ms
        # The wall clock may be set: no look at it is more than a second late.
        self._timer = self._loop.call_later(min(max(pause, REST_S), 1.0), self._run)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        if not self._log.ready.is_set():
            return
        if not self._role.may_append or self._log.refused:
            self._set(0, PAUSE_S)
            return
        self._set(1 << 62, 1.0)  # For the case that this step fails.
        self._step(self._clock.unix_ms())
        self.stop()
        self.arm()

    def _step(self, now_ms: int) -> None:
        expired, unlocked = self._log.state.due(now_ms, AT_ONCE)
        puts: list[Put] = []
        size = 0
        for number, item in enumerate(expired):
            try:
                put = self._copy(item, now_ms)
            except Exception as error:
                expected = isinstance(error, (RequestRejected, NotWritable, StoreError, OSError))
                text = "a message whose invisible time is over waits for its retry: %s"
                log.warning(text, error, exc_info=None if expected else error)
                self._log.state.give_back(item, now_ms + AGAIN_MS)
                continue
            if put is not None:
                puts.append(put)
                size += len(put.body)
            if size > BYTES:
                for rest in expired[number + 1 :]:
                    self._log.state.give_back(rest, now_ms)
                break
        if self._log.changes:
            # One batch: the end of a flight without its copy would lose the message.
            self._log.submit(puts=puts)
        if unlocked:
            self._unlocked([queue.key[1:] for queue in unlocked])

    def _copy(self, item: Expired, now_ms: int) -> Put | None:
        """End a message's flight; returns its copy; None: there is none to make.

        Raises RequestRejected, NotWritable, StoreError, OSError; the message is in flight then, as before.
        """
        queue, offset = item.queue, item.offset
        group_name, topic, queue_id = queue.key
        group = self._meta.working.groups.get(group_name)
        got: Got | None = self._store.reader.get(topic, queue_id, offset, 1, 1)
        if got is not None and got.status == GetStatus.OFFSET_TOO_SMALL:
            read = ArchiveQuery(topic, queue_id, offset, 1, 1)
            if self._archive_reads.may_have(topic, queue_id, offset):
                got = self._archive_reads.ready(read)
                if got is None:
                    self._archive_reads.prepare_soon(read)
                else:
                    self._archive_reads.used(read)
        if got is None or got.damaged >= 0:
            self._log.state.give_back(item, now_ms + AGAIN_MS)
            return None
        data, put = got.data, None
        there = data and int.from_bytes(data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big") == offset
        if group is not None and there and topic in self._meta.working.topics:
            try:
                record = decode_record(data)
            except RecordError as error:
                raise StoreError(f"the record at {topic} {queue_id} {offset} is damaged: {error}") from None
            put = revived(record, group_name, item.pop_ms, counts=not item.suspended, max_retries=group.retry_max_times)
            fault = topic_fault(put.topic, longest=255)
            if fault is not None:  # Names of topic and group that are too long together: it cannot be retried.
                log.warning("the message at %d is a dead letter of %s: %s", record.phys_offset, group_name, fault)
                self._stats.leave_aside("retry")
                put = revived(record, group_name, item.pop_ms, counts=True, max_retries=-1)
            self._creation.ensure_topic(put.topic, 1, Perm.READ | Perm.WRITE)
            if put.topic.startswith(DLQ_PREFIX):
                self._stats.add("DLQ_PUT_NUMS", f"{topic}@{group_name}", 1)
        self._log.changes.expire(queue, offset, now_ms)
        return put
