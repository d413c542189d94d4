"""Transactions: the undecided half messages, and the checks with their producers.

Half messages are in RMQ_SYS_TRANS_HALF_TOPIC. A record in RMQ_SYS_TRANS_OP_HALF_TOPIC (tag `d`, body: the half's queue
offset) marks one as decided, as in RocketMQ. Commit and decision are one batch of the log, so a message is committed
once, even after a repeated request or a failover. The progress in both queues is kept like a consumer group's
(CID_RMQ_SYS_TRANS), and a new leader reads them from there. Memory holds a few numbers for each undecided message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.clock import AgeClock, SteadyClock
from gantry_broker.broker.delay import real_target
from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.send.messages import (
    MAX_CHECKS,
    MAX_IMMUNITY_S,
    MAX_TIME,
    MessageIllegal,
    build_put,
    copy_of,
    delay_level,
    delayed,
    timed,
    timer_time,
    timer_window,
)
from gantry_broker.protocol.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Perm,
    Prop,
    RequestCode,
    SysFlag,
)
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import (
    Record,
    RecordError,
    decode_records,
    encode_record,
    pack_host,
    parse_properties,
)
from gantry_broker.store.errors import BadRecords, MessageTooLarge, OffsetGone, StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.after_confirm import AfterConfirm
    from gantry_broker.broker.clients import ClientTable, Link
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Put, Stored

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
DECIDED_TAG: Final = "d"
READ_BATCH: Final = 512
READ_BYTES: Final = 2 << 20
CHECKS_PER_PASS: Final = 200
MAX_WAITING: Final = 1_000_000
MARK_EACH: Final = 1_000
"""Decisions between two marks. A mark notes the highest half message that the decisions before it belong to."""
HOLDS_UP: Final = 10_000
"""A half message that blocks this many later ones is written again even without a producer to ask: a new leader reads
all half messages after the oldest one.
"""
LOOK_S: Final = 1.0
"""Pause in seconds between two looks at the clocks."""
DAMAGED_S: Final = 1.0
"""Pause in seconds after a damaged record, which may be repaired by then, or when descriptors ran out."""


class Undecided:
    """One half message: its place in the log, its store time, and the time of its next check."""

    __slots__ = ("ask_at_ms", "phys", "stored_ms")

    def __init__(self, phys: int, stored_ms: int, ask_at_ms: int) -> None:
        self.phys = phys
        self.stored_ms = stored_ms
        self.ask_at_ms = ask_at_ms


class Transactions:
    """The leader's view of both queues, read from the log, and the rounds of checks."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        store_host: bytes,
        delay_levels: Sequence[int],
        *,
        meta: Metadata,
        writer: LogWriter,
        creation: OnDemandCreation,
        clients: ClientTable,
        next_opaque: Callable[[], int],
        role: RoleState,
        confirmed: AfterConfirm,
        events: Events,
        clock: Clock,
        may_decide: Callable[[Link, str], bool],
        stats: Stats,
    ) -> None:
        """`store_host`: the packed address at the begin of message ids; `delay_levels`: milliseconds of each level;
        `may_decide`: whether a connection's user may send to a topic, and so be asked about messages for it.
        """
        self._may_decide = may_decide
        self._leave_aside = stats.leave_aside
        self._group = config.group
        self._settings = store.config.settings
        self._store = store
        self._store_host = store_host
        self._delay_levels = delay_levels
        self._meta = meta
        self._writer = writer
        self._creation = creation
        self._clients = clients
        self._next_opaque = next_opaque
        self._role = role
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._age = AgeClock()
        self._waiting: dict[int, Undecided] = {}
        self._decided: set[int] = set()
        """Decisions whose half message was not read yet."""
        self._half_at = 0
        self._op_at = 0
        self._marks: deque[tuple[int, int]] = deque()
        """(offset in the queue of decisions, highest half message of the decisions before it)."""
        self._marked_at = 0
        self._highest = -1
        self._checked_at = 0, 0
        """The last round of checks, by the monotonic and the wall clock (ms)."""
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Handle | None = None
        self.loaded = asyncio.Event()
        """Set once both queues were read to their end: all decisions are known."""
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            confirmed.on_messages_available[topic] = lambda queue_id: self._read_soon()
        events.role_changed.subscribe(self._role_changed)

    @property
    def undecided(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Collection[int]:
        """The queue offsets of the undecided half messages."""
        return self._waiting.keys()

    @property
    def all_read(self) -> bool:
        """Whether both queues were read to their end, so that `undecided` counts every half message."""
        store = self._store
        return (
            self.loaded.is_set()
            and self._half_at >= store.reader.max_offset(TRANS_HALF_TOPIC, 0)
            and self._op_at >= store.reader.max_offset(TRANS_OP_HALF_TOPIC, 0)
        )

    def _role_changed(self, leads: bool) -> None:
        self._cancel()
        self._waiting.clear()
        self._decided.clear()
        self._marks.clear()
        self._highest = -1
        self.loaded.clear()
        if not leads:
            return
        self._steady.lead(0)
        tables = self._meta.working
        self._half_at = max(tables.offset(TRANS_HALF_TOPIC, GROUP, 0), 0)
        self._op_at = self._marked_at = max(tables.offset(TRANS_OP_HALF_TOPIC, GROUP, 0), 0)
        self._read_soon()
        self._set_timer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    close = _cancel

    # ---- reading both queues

    def _read_soon(self) -> None:
        if self._reading is None and self._role.leading:
            self._reading = asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        """Read a part of both queues. A long backlog is read in parts, so that it delays no other work."""
        loop = asyncio.get_running_loop()
        self._reading = loop.call_later(DAMAGED_S, self._read)  # For the case that this part fails.
        pause = self._read_piece()
        self._reading.cancel()
        self._reading = None if pause is None else loop.call_later(pause, self._read)

    def _read_piece(self) -> float | None:
        """Return after how many seconds there is more to read; None: after the next record. Raises OSError."""
        store = self._store
        # Decisions before half messages: the other way round, a decided one would wait, and its producer would be
        # asked.
        self._op_at = max(self._op_at, store.reader.min_offset(TRANS_OP_HALF_TOPIC, 0))
        got = store.reader.get(TRANS_OP_HALF_TOPIC, 0, self._op_at, READ_BATCH, READ_BYTES)
        for record in decode_records(got.data):
            self._op_at = record.queue_offset + 1
            for text in record.body.decode("ascii", "replace").split(","):
                if (offset := whole_number(text)) is not None:
                    self._decide(offset)
        if self._op_at - self._marked_at >= MARK_EACH:
            self._marked_at = self._op_at
            self._marks.append((self._op_at, self._highest))
        more, damaged = bool(got.data), got.damaged >= 0
        if len(self._waiting) < MAX_WAITING:
            self._half_at = max(self._half_at, store.reader.min_offset(TRANS_HALF_TOPIC, 0))
            got = store.reader.get(TRANS_HALF_TOPIC, 0, self._half_at, READ_BATCH, READ_BYTES)
            for record in decode_records(got.data):
                self._half_at = record.queue_offset + 1
                if record.queue_offset in self._decided:
                    self._decided.discard(record.queue_offset)
                else:
                    stored = min(record.store_ms, self._steady.unix_ms())  # The writer's clock may have been ahead.
                    self._waiting[record.queue_offset] = Undecided(
                        record.phys_offset, stored, stored + self._immunity_ms(record)
                    )
            more, damaged = more or bool(got.data), damaged or got.damaged >= 0
        self._note_progress()
        if more:
            return 0.001
        # Decisions of the former leader may not be confirmed here yet: nothing counts as undecided before.
        if not self._role.epoch_confirmed:
            return None if self.loaded.is_set() else 0.01
        self.loaded.set()
        return DAMAGED_S if damaged else None

    def _decide(self, offset: int) -> None:
        self._highest = max(self._highest, offset)
        if self._waiting.pop(offset, None) is None and offset >= self._half_at:
            self._decided.add(offset)

    def _note_progress(self) -> None:
        """Move the progress of half messages to the first undecided one, and that of decisions past those on earlier
        half messages.
        """
        meta = self._meta
        if not self._role.leading:
            return
        # Never past an undecided one: a new leader begins there, and would not know of it.
        done = min(self._waiting, default=self._half_at)
        if done > meta.working.offset(TRANS_HALF_TOPIC, GROUP, 0):
            meta.commit_offset(TRANS_HALF_TOPIC, GROUP, 0, done)
        decided = meta.working.offset(TRANS_OP_HALF_TOPIC, GROUP, 0)
        while self._marks and self._marks[0][1] < done:
            decided = max(decided, self._marks.popleft()[0])
        if not self._waiting and not self._decided:
            decided = max(decided, self._op_at)
        if decided > meta.working.offset(TRANS_OP_HALF_TOPIC, GROUP, 0):
            meta.commit_offset(TRANS_OP_HALF_TOPIC, GROUP, 0, decided)

    def _immunity_ms(self, record: Record) -> int:
        text = parse_properties(record.properties).get(Prop.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        seconds = whole_number(text, 0, MAX_IMMUNITY_S)
        return self._settings.transactionTimeOut if seconds is None else seconds * 1_000

    # ---- decisions

    def is_decided(self, half: Record) -> bool:
        """Return whether a decision on that half message is known."""
        offset = half.queue_offset
        return offset in self._decided or (offset < self._half_at and offset not in self._waiting)

    def decision(self, half: Record) -> Put:
        """Return the record that marks a half message as decided."""
        return build_put(
            TRANS_OP_HALF_TOPIC,
            0,
            {Prop.TAGS: DECIDED_TAG, Prop.WAIT_STORE_MSG_OK: "true"},
            str(half.queue_offset).encode(),
            self._clock.unix_ms(),
            self._store_host,
        )

    def committed(self, half: Record) -> Put:
        """Return the message as its consumers see it, or as a delayed message when it asks for a delay (as in
        RocketMQ).
        """
        topic, queue_id = real_target(half)
        props = parse_properties(half.properties)
        for name in (Prop.REAL_TOPIC, Prop.REAL_QUEUE_ID, Prop.TRANSACTION_CHECK_TIMES):
            props.pop(name, None)
        sys_flag = half.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
        put = copy_of(half, topic, queue_id, props=props, sys_flag=sys_flag, prepared_offset=half.phys_offset)
        now = self._clock.unix_ms()
        try:
            if delay_level(props, len(self._delay_levels)) > 0:
                return delayed(put, props, self._delay_levels, now)
            # The send has checked its time; the setting may have changed since.
            due = timer_time(props, now, MAX_TIME)
            if due is None:
                return put
            props.pop(Prop.TIMER_DEL_UNIQKEY, None)
            return timed(put, props, due, now, timer_window(self._settings.fileReservedTime))
        except (MessageIllegal, RecordError) as error:  # An earlier release has stored it.
            self._leave_aside("transaction")
            log.warning("the message of the half %d for %s is not delayed: %s", half.queue_offset, topic, error)
            return put

    def note_decided(self, half: Record) -> None:
        """Note an appended decision: a second one changes nothing."""
        self._waiting.pop(half.queue_offset, None)
        if half.queue_offset >= self._half_at:
            self._decided.add(half.queue_offset)

    # ---- checks

    def _set_timer(self) -> None:
        self._checked_at = self._clock.now_ms(), self._clock.unix_ms()
        self._look_later()

    def _look_later(self) -> None:
        pause_s = min(self._settings.transactionCheckInterval / 1000, LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        """Check once the interval has passed by either clock: the wall clock goes on while the machine sleeps."""
        self._aged_ms()
        monotonic, wall = self._checked_at
        interval = self._settings.transactionCheckInterval
        if self._clock.now_ms() - monotonic < interval and self._clock.unix_ms() - wall < interval:
            self._look_later()
            return
        self._set_timer()
        self._check()

    def _aged_ms(self) -> int:
        """Return the time by which a half message is too old: a clock that was set forward gives none up."""
        return self._age.unix_ms(self._clock.now_ms(), self._clock.unix_ms())

    def _check(self) -> None:
        if not self._role.may_append:
            return
        now = self._steady.unix_ms()
        due = [offset for offset, item in self._waiting.items() if item.ask_at_ms <= now][:CHECKS_PER_PASS]
        for offset in due:
            try:
                self._ask(offset, now)
            except MessageTooLarge as error:
                self._set_aside(offset, now, error)
            except (StoreError, NotWritable, OSError) as error:
                log.warning("transaction checks wait: %s", error)
                return
            except Exception as error:
                self._set_aside(offset, now, error)

    def _set_aside(self, offset: int, now: int, error: Exception) -> None:
        """Give up a half message whose check fails, as one without an answer to all checks: those behind it go on."""
        item = self._waiting.get(offset)
        self._leave_aside("transaction")
        if item is None:
            log.error("asking about the half message %d failed; it is written again, and asked about later", offset,
                      exc_info=error)  # fmt: skip
            return
        item.ask_at_ms = now + max(self._settings.transactionTimeOut, self._settings.transactionCheckInterval)
        try:
            self._give_up(self._store.reader.record(item.phys))
        except Exception:
            log.exception("the half message %d at offset %d cannot be checked, and stays", offset, item.phys)
        else:
            log.warning(
                "the half message %d at offset %d cannot be checked, and went to %s: %s",
                offset, item.phys, TRANS_CHECK_MAX_TIME_TOPIC, error,
            )  # fmt: skip

    def _give_up(self, half: Record) -> None:
        """End the checks of a half message. Raises RequestRejected, NotWritable, StoreError."""
        self._creation.ensure_topic(TRANS_CHECK_MAX_TIME_TOPIC, 1, Perm.READ | Perm.WRITE)
        # One batch: the decision without the copy would lose the message.
        self._writer.append([copy_of(half, TRANS_CHECK_MAX_TIME_TOPIC, 0), self.decision(half)])
        self.note_decided(half)
        self._writer.appended(None)

    def _ask(self, offset: int, now: int) -> None:
        """Asks the producer about one half message, or gives it up after `transactionCheckMax` times.

        The check writes the half message again with its count of checks, so that the count survives a failover, and
        asks about the new one.
        """
        item = self._waiting[offset]
        try:
            half = self._store.reader.record(item.phys)
        except OffsetGone:
            self._waiting.pop(offset, None)  # Retention has removed it: a commit is impossible.
            return
        except (BadRecords, OSError):
            self._store.state.on_damage(item.phys)
            item.ask_at_ms = now + self._settings.transactionCheckInterval
            return
        props = parse_properties(half.properties)
        text = props.get(Prop.TRANSACTION_CHECK_TIMES, "0")
        times = whole_number(text, 0, MAX_CHECKS) or 0
        if (
            times >= self._settings.transactionCheckMax
            or self._aged_ms() - half.born_ms > self._settings.fileReservedTime * 3_600_000
        ):
            self._give_up(half)
            return
        item.ask_at_ms = now + max(self._settings.transactionTimeOut, self._settings.transactionCheckInterval)
        target = real_target(half)[0]
        link = self._clients.any_producer(
            props.get(Prop.PRODUCER_GROUP, ""), lambda link: self._may_decide(link, target)
        )
        asks = link is not None and not link.closed
        if asks:
            props[Prop.TRANSACTION_CHECK_TIMES] = str(times + 1)
        elif self._half_at - offset < HOLDS_UP:
            # Without a producer to ask, this is no check. Other half messages come first next time.
            self._waiting[offset] = self._waiting.pop(offset)
            return
        renewed = copy_of(half, TRANS_HALF_TOPIC, 0, props=props)
        # One batch: the copy without the decision on the former one could be committed beside it.
        stored = self._writer.append([renewed, self.decision(half)])[0]
        self.note_decided(half)
        self._writer.appended(None)
        if link is None or not asks:
            return
        unique_key = props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
        link.send(self._question(half, stored, renewed.properties, unique_key, now))

    def _question(self, half: Record, stored: Stored, properties: bytes, unique_key: str, now: int) -> Frame:
        """Return the request that asks a producer about a half message, which is `stored` again with `properties`."""
        topic, queue_id = real_target(half)
        body = encode_record(
            topic=topic.encode(),
            body=half.body,
            properties=properties,
            queue_id=queue_id,
            flag=half.flag,
            queue_offset=stored.queue_offset,
            phys_offset=stored.phys_offset,
            sys_flag=half.sys_flag,
            born_ms=half.born_ms,
            born_host=pack_host(*half.born_host),
            store_ms=now,
            store_host=self._store_host,
            reconsume_times=half.reconsume_times,
        )
        ext = {
            "commitLogOffset": str(stored.phys_offset),
            "msgId": unique_key,
            "offsetMsgId": f"{self._store_host.hex().upper()}{stored.phys_offset:016X}",
            "tranStateTableOffset": str(stored.queue_offset),
            "transactionId": unique_key,
            "bname": self._group,
        }
        return Frame(RequestCode.CHECK_TRANSACTION_STATE, self._next_opaque(), 2, ext, body)
