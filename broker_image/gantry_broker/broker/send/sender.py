"""The hot path: all sends of one read become one batch of the log, one waiter and one write.

A batch is built once: the fast loop makes no task, future or encoder for each message. Unusual messages (an unknown
topic, a delay, a transaction, a bad field) leave the fast loop for a slower function. Statuses and remarks are those of
4.9.7 (`SendMessageProcessor`).
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from gantry_core import NAME, BatchRules, SendRules, entry_sizes, message_ids
from gantry_core import send_answers as plain_answers

from gantry_broker.broker.errors import RequestRejected, failure_answer, store_refusal
from gantry_broker.broker.metadata.attributes import is_compacted
from gantry_broker.broker.metadata.tables import takes_sends
from gantry_broker.broker.metadata.topics import NOT_SENDABLE, dlq_topic, topic_fault
from gantry_broker.broker.send.messages import (
    BROKER_ONLY,
    MOST_SENT,
    NOT_IN_BATCH,
    SPECIAL,
    MessageIllegal,
    check_keys,
    check_properties,
    delay_level,
    delayed,
    half,
    index_keys,
    timed,
    timer_time,
    timer_window,
    without_broker_properties,
)
from gantry_broker.broker.send.responses import More, Pending, send_answers
from gantry_broker.broker.send.shapes import UNIQUE, Shapes
from gantry_broker.protocol.codes import (
    DEFAULT_REGION,
    DLQ_PREFIX,
    FAQ,
    FLAG_ONEWAY,
    KEY_SEPARATOR,
    MQ_VERSION,
    RETRY_PREFIX,
    Perm,
    Prop,
    RequestCode,
    ResponseCode,
    SendStatus,
    SysFlag,
)
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import SMALL_FRAME, SMALL_HEADER, Frame, encode_frame
from gantry_broker.protocol.headers import SendHeader, error_answer
from gantry_broker.protocol.limits import MAX_KEYS, MAX_QUEUES, MAX_REQUEST_KEYS
from gantry_broker.protocol.message import (
    BATCH_PART,
    BatchItem,
    decode_batch,
    is_large_batch,
    parse_properties,
    tags_hash,
)
from gantry_broker.protocol.recall_handle import RecallHandle
from gantry_broker.store.append import rows_of_batch
from gantry_broker.store.errors import MessageTooLarge, StoreError
from gantry_broker.store.log.record_reader import LOST
from gantry_broker.store.types import PlainBatch, Put, Row, Stored, StoredBatch, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gantry_broker.broker.events import Events
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.log_writer import LogWriter
    from gantry_broker.broker.metadata.creation import OnDemandCreation
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.protocol.bodies import TopicConfig
    from gantry_broker.protocol.frame import Sends
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.store.store import MessageStore
    from gantry_broker.timeslice import TimeSlices

_SEND: Final = int(RequestCode.SEND_MESSAGE)
_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_OK: Final = int(ResponseCode.SUCCESS)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_WRITE: Final = Perm.WRITE
SMALL: Final = 1_024
"""Flags of nearly all messages, and queues of most topics, are below."""
_BATCH_PROPERTIES: Final = ("WAIT\x01true\x02", "WAIT\x01true", "")
"""What clients send as the properties of the batch itself, if they wait for its confirmation."""
_BOOLS: Final = ("false", "true")
_WAIT: Final = "\x02WAIT\x01true\x02"

KEYS_AT_ONCE: Final = 4_096
"""Keys of the sends that are stored together; the next ones wait for a later pass of the event loop."""
BATCH_FRAME: Final = 1 << 20
"""Bytes of the largest frame of a batch that `take_plain` takes."""
AT_ONCE_S: Final = 0.005
"""The time for which unusual sends of one read are checked and stored together."""
MOST_ZEROS: Final = LOST - 1
"""The most zero bytes in a row in a message's properties. One more may come before them, from their length."""

STATUS_CODE: Final = {
    SendStatus.SEND_OK: int(ResponseCode.SUCCESS),
    SendStatus.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    SendStatus.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
    SendStatus.SLAVE_NOT_AVAILABLE: int(ResponseCode.SLAVE_NOT_AVAILABLE),
}

Taken = tuple[Frame, int, int, More | None, bool]
"""A stored send: its frame, the queue in the answer, the number of its messages, one more field of the answer (the
transaction id or the handle for a recall), and whether its producer waits for confirmation. With the property
WAIT=false it gets SEND_OK once the leader has the message (4.9.7 too).
"""


class _InTurn(Exception):
    """The send would create a topic, and this pass of the event loop has done enough costly work."""


class Sender:
    """Take sends while this member may append; the caller checks `RoleState.may_append` before."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        store_host: bytes,
        delay_levels: Sequence[int],
        *,
        meta: Metadata,
        creation: OnDemandCreation,
        role: RoleState,
        writer: LogWriter,
        health: MemberHealth,
        counts: MessageCounts,
        stats: Stats,
        latencies: Latencies,
        slices: TimeSlices,
        events: Events,
    ) -> None:
        """`store_host`: the packed address at the begin of message ids; `delay_levels`: milliseconds of each level."""
        self._settings = store.config.settings
        self._cluster = config.cluster
        self._group = config.group
        self._store = store
        self._store_host_hex = store_host.hex().upper()
        self._delay_levels = delay_levels
        self._meta = meta
        self._creation = creation
        self._role = role
        self._appended = writer.appended
        self._store_failed = health.store_failed
        self._store_took = health.store_took
        self._count_puts = counts.puts
        self._count_batch = counts.put_batch
        self._count_sends = counts.put_sends
        self._count_refused = stats.refuse
        self._count = stats.add
        self._latencies = latencies
        self._rpc = latencies.rpc.observe
        self._usual = latencies.sends.add
        """Takes the times of nearly all sends."""
        self._slices = slices
        self._sendable: dict[str, tuple[str, int]] = {}
        """Checked topics with their number of queues; cleared at each change of topics."""
        self._numbers = {str(number): number for number in range(SMALL)}
        """Small numbers by their digits. A look-up checks digits and range, and costs less than doing both."""
        self.on_large: Callable[[Connection, Frame], None]
        """Takes batches of over `BATCH_PART` messages, see `LargeBatches`."""
        self._shapes = Shapes()
        self._suffix = f"{Prop.CLUSTER}\x01{config.cluster}"
        self._suffix_bytes = self._suffix.encode()
        self._batch_rules = BatchRules(
            sorted(SPECIAL), len(self._suffix_bytes), BATCH_PART, MOST_SENT, MAX_KEYS, MAX_REQUEST_KEYS
        )
        self.send_rules = plain_rules(self._suffix_bytes) if NAME == "rust" else None
        """What `take_plain` takes. Without the compiled core, sends come as frames, which then cost less."""
        events.tables_changed.subscribe(self._sendable.clear)

    def take(self, conn: Connection, frames: list[Frame], now_ms: int) -> list[Frame]:
        """Store valid sends and answer the others at once. Returns the frames to take again in a later pass of the
        loop.

        No frame of a client makes it raise.
        """
        begun = time.perf_counter()
        puts: list[Row] = []
        batches: list[PlainBatch] = []
        taken: list[Taken] = []
        refused: list[bytes] = []
        plain = usual = True
        later: list[Frame] = []
        sendable = self._sendable
        shapes = self._shapes.known
        numbers = self._numbers
        suffix = self._suffix
        keys_taken = 0
        born_host = conn.peer_bytes
        born_text, born_ms = "", 0
        max_body = self._settings.maxMessageSize
        plain_most = MOST_SENT - len(suffix) - 1
        for index, frame in enumerate(frames):
            if not usual and (keys_taken > KEYS_AT_ONCE or (not plain and time.perf_counter() - begun > AT_ONCE_S)):
                later += frames[index:]  # In their order.
                break
            try:
                if frame.code == _V2:
                    ext = frame.ext
                    name, queues = sendable[ext["b"]]
                    text = ext["i"]
                    body = frame.body
                    queue_id = numbers[ext["e"]]
                    sys_flag = numbers[ext["f"]]
                    flag = numbers[ext["h"]]
                    if born_text != ext["g"]:  # Messages of one read have few different times.
                        born_ms, born_text = _born_ms(ext["g"]), ext["g"]
                    if (
                        queue_id < queues
                        and born_text
                        and text.isascii()
                        and len(text) <= plain_most
                        and "\0" not in text
                        and ext.get("j", "0") == "0"
                        and ext["d"] in numbers
                        and "l" not in ext
                        and len(body) <= max_body
                    ):
                        before, _, rest = text.partition(UNIQUE)
                        uniq, _, after = rest.partition("\x02")
                        shape = shapes.get((before, after))
                        if shape is not None and uniq:
                            start, end, code = shape
                            properties = f"{start}{uniq}{end}".encode("ascii")
                            puts.append(
                                (
                                    name,
                                    queue_id,
                                    flag,
                                    sys_flag & ~48,
                                    born_ms,
                                    born_host,
                                    body,
                                    properties,
                                    0,
                                    0,
                                    code,
                                    (uniq,),
                                )
                            )
                            taken.append((frame, queue_id, 1, None, True))
                            continue
                        props = dict([piece.split("\x01", 1) for piece in text.split("\x02") if piece])
                        if text and SPECIAL.isdisjoint(props) and props.get("WAIT", "true") == "true":
                            tags = props.get("TAGS")
                            keys = props.get("KEYS")
                            if keys is not None:
                                check_keys(props)
                                keys_taken += keys.count(KEY_SEPARATOR)
                                usual = False
                            stored = _without_wait(text) if "WAIT" in props else text
                            stored = stored + suffix if not stored or stored[-1] == "\x02" else stored + "\x02" + suffix
                            code = tags_hash(tags) if tags else 0
                            if keys is None and uniq:
                                self._shapes.learn(text, props.get("UNIQ_KEY", ""), stored, code, now_ms)
                            puts.append(
                                (
                                    name,
                                    queue_id,
                                    flag,
                                    sys_flag & ~48,
                                    born_ms,
                                    born_host,
                                    body,
                                    stored.encode("ascii"),
                                    0,
                                    0,
                                    code,
                                    index_keys(props),
                                )
                            )
                            taken.append((frame, queue_id, 1, None, True))
                            continue
                elif frame.code == _BATCH:
                    plain_batch = self._plain_batch(frame, born_host)
                    if plain_batch is not None:
                        batch, keys_of = plain_batch
                        if puts:
                            puts += rows_of_batch(batch)
                        else:
                            batches.append(batch)
                        keys_taken += keys_of
                        taken.append((frame, batch.queue_id, batch.messages, None, True))
                        plain = usual = False
                        continue
            except (KeyError, ValueError):
                pass  # The slow path names the field, or what is illegal.
            if frame.code == _BATCH and is_large_batch(frame.body):
                self.on_large(conn, frame)
                continue
            try:
                frame_puts, queue_id, more, waits = self._slow_path(frame, born_host, now_ms)
            except _InTurn:
                later.append(frame)
                continue
            except Exception as error:
                answer = failure_answer(frame, error)
                self._count_refused(answer.code)
                self._rpc(frame.code, answer.code, time.perf_counter() - begun, flag=frame.flag)
                if not frame.flag & FLAG_ONEWAY:
                    refused.append(encode_frame(answer))
                continue
            puts += map(row_of, frame_puts)
            keys_taken += sum([len(put.keys) for put in frame_puts])
            taken.append((frame, queue_id, len(frame_puts), more, waits))
            plain = usual = False
        if refused:
            conn.write(b"".join(refused))
        if batches and not puts:
            self._store_puts(conn, batches, taken, now_ms, begun, False)
        elif puts:
            if batches:  # They came before the others.
                puts = [*(row for batch in batches for row in rows_of_batch(batch)), *puts]
            self._store_puts(conn, puts, taken, now_ms, begun, plain)
        return later

    def take_plain(self, conn: Connection, sends: Sends, now_ms: int) -> bool:
        """Store and answer plain sends. False: `take` has to look at each of them, and nothing has changed."""
        begun = time.perf_counter()
        sendable = self._sendable
        batches = sends.code == _BATCH
        for topic in sends.topics:
            target = sendable.get(topic[0])
            if target is None or topic[1] >= target[1] or (batches and topic[0].startswith(DLQ_PREFIX)):
                return False
        if sends.most_body > self._settings.maxMessageSize:
            return False
        try:
            places = self._store.appender.put_sends(sends, now_ms)
        except Exception as error:
            if not isinstance(error, StoreError) or isinstance(error, MessageTooLarge):
                return False  # Nothing is stored: `take` finds out which of them it is.
            self._store_refused(conn, [(frame, 0, 1, None, True) for frame in sends.frames()], error, begun)
            return True
        if places is None:
            return False
        appended = time.perf_counter()
        self._store_took()
        self._count_sends(sends)
        # Without the bytes of the read: they would stay in memory until the copies exist.
        code, messages, requests, first = sends.code, sends.messages, sends.requests, sends.first
        self._appended(
            partial(self._plain_answers, conn, code, messages, requests, first, places, now_ms, begun, appended)
        )
        return True

    def _plain_answers(
        self,
        conn: Connection,
        request: int,
        messages: int,
        requests: int,
        first: bytes,
        places: bytes,
        now_ms: int,
        begun: float,
        appended: float,
        status: SendStatus,
    ) -> None:
        code = STATUS_CODE[status]
        conn.write(plain_answers(places, code, self._store_host_hex, DEFAULT_REGION, MQ_VERSION))
        now = time.perf_counter()
        if request != _SEND and code == _OK:
            self._usual(request, (now - begun, appended - begun, now - appended, messages, requests, now_ms, first))
            return
        self._latencies.append.observe(appended - begun, messages)
        self._latencies.put_ms.observe((appended - begun) * 1000, messages)
        self._latencies.send.observe(now - begun, requests)
        if code == _OK:
            self._latencies.replication.observe(now - appended, requests)
        else:
            self._count_refused(code, requests)
        self._rpc(request, code, now - begun, requests)

    def _plain_batch(self, frame: Frame, born_host: bytes) -> tuple[PlainBatch, int] | None:
        """Return a batch send with nothing unusual, and the number of its index keys; None: the slow path takes it.

        Raises KeyError and ValueError for fields that only the slow path knows.
        """
        ext = frame.ext
        numbers = self._numbers
        name, queues = self._sendable[ext["b"]]
        queue_id, sys_flag = numbers[ext["e"]], numbers[ext["f"]]
        born_ms = _born_ms(ext["g"])
        if (
            queue_id >= queues
            or sys_flag & SysFlag.TRANSACTION_MASK
            or ext.get("i", "") not in _BATCH_PROPERTIES
            or ext.get("j", "0") != "0"
            or "l" in ext
            or len(ext["a"]) + len(ext["c"]) + len(ext.get("n", "")) > SendHeader.MAX_CHARACTERS
            or ext["h"] not in numbers
            or ext["d"] not in numbers
            or ext.get("k", "false") not in _BOOLS
            or ext.get("m", "true") not in _BOOLS
            or len(frame.body) > self._settings.maxMessageSize
            or name.startswith(DLQ_PREFIX)
        ):
            return None
        counts = self._batch_rules.check(frame.body)
        if counts is None:
            return None
        count, keys = counts
        sys_flag &= ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        return PlainBatch(name, queue_id, sys_flag, born_ms, born_host, frame.body, self._suffix_bytes, count), keys

    def check_part(self, frame: Frame, body: bytes, born_host: bytes) -> int:
        """Check a part of a large batch, and return its number of messages. Raises as `store_part`, and changes
        nothing.
        """
        header = SendHeader.parse(frame)
        topic = self._topic(header, granted=True)[0]
        counts = None if is_compacted(topic.attributes) else self._batch_rules.check(body)
        return counts[0] if counts is not None else len(self._batch(decode_batch(body), header, topic, 0, born_host))

    def store_part(self, frame: Frame, born_host: bytes, now_ms: int) -> tuple[int, int, str, bool]:
        """Store a part of a large batch, which `frame` has as its body. Return its queue, its first queue offset, the
        ids of its messages, and whether the producer waits for confirmation.

        Raises as `_slow_path` and `Appender.put_rows`.
        """
        puts: list[Row] | list[PlainBatch] = []
        waits = True
        with suppress(KeyError, ValueError):  # The slow path names the field, or what is illegal.
            if (plain := self._plain_batch(frame, born_host)) is not None:
                puts, queue_id = [plain[0]], plain[0].queue_id
        if not puts:
            parsed, queue_id, _, waits = self._slow_path(frame, born_host, now_ms, granted=True)
            puts = [row_of(put) for put in parsed]
        stored = self._put(puts, now_ms)
        self._store_took()
        host = self._store_host_hex
        if isinstance(stored[0], StoredBatch):
            return queue_id, stored[0].queue_offset, message_ids(host, stored[0].entries), waits
        ids = ",".join([f"{host}{place[0]:016X}" for place in stored])
        return queue_id, stored[0].queue_offset, ids, waits

    def _put(self, puts: list[Row] | list[PlainBatch], now_ms: int) -> list[Stored] | list[StoredBatch]:
        """Store and count messages. Raises as `Appender.put_rows`."""
        if isinstance(puts[0], PlainBatch):
            placed = self._store.appender.put_batches(puts, now_ms)
            for batch, place in zip(puts, placed, strict=True):
                self._count_batch(batch.topic, entry_sizes(place.entries))
            return placed
        stored = self._store.appender.put_rows(puts, now_ms)
        self._count_puts(puts, stored)
        return stored

    def _store_puts(
        self,
        conn: Connection,
        puts: list[Row] | list[PlainBatch],
        taken: list[Taken],
        now_ms: int,
        begun: float,
        plain: bool,
    ) -> None:
        """`begun`: when the sends arrived, by `time.perf_counter`. `plain`: all took the fast path.

        `puts`: their messages one by one, or one batch for each of `taken`.
        """
        append = time.perf_counter()
        try:
            stored = self._put(puts, now_ms)
        except Exception as error:
            if not isinstance(error, StoreError) or isinstance(error, MessageTooLarge):
                self._store_each(conn, puts, taken, now_ms, begun, error)
                return
            self._store_refused(conn, taken, error, begun)
            return
        appended = time.perf_counter()
        self._store_took()
        messages = sum([a[2] for a in taken])
        pending, content = self._pending(taken, stored)
        host = self._store_host_hex
        if content:
            conn.write(send_answers(int(ResponseCode.SUCCESS), host, content))
        if len(pending) < len(taken):
            plain = False
            early = [a for a in taken if not a[4] or a[0].flag & FLAG_ONEWAY]
            taken = [a for a in taken if a[4] and not a[0].flag & FLAG_ONEWAY]
            self._answered(early, ResponseCode.SUCCESS, time.perf_counter() - begun)
        if not pending:
            self._latencies.append.observe(appended - append, messages)
            self._latencies.put_ms.observe((appended - append) * 1000, messages)
            self._appended(None)
            return

        def on_status(status: SendStatus) -> None:
            code = STATUS_CODE[status]
            conn.write(send_answers(code, host, pending))
            now = time.perf_counter()
            if plain and code == _OK:
                sent = len(pending)
                first = cast(Row, puts[0])[7]
                self._usual(_V2, (now - begun, appended - append, now - appended, sent, sent, now_ms, first))
                return
            self._latencies.append.observe(appended - append, messages)
            self._latencies.put_ms.observe((appended - append) * 1000, messages)
            self._latencies.send.observe(now - begun, len(pending))
            if code == _OK:
                self._latencies.replication.observe(now - appended, len(pending))
            else:
                self._count_refused(code, len(pending))
            self._answered(taken, code, now - begun)

        self._appended(on_status)

    def _store_refused(self, conn: Connection, taken: list[Taken], error: StoreError, begun: float) -> None:
        """Answer sends none of which the store has taken."""
        code, remark = store_refusal(error)
        self._count_refused(code, len(taken))
        conn.write(
            b"".join(encode_frame(error_answer(a[0], code, remark)) for a in taken if not a[0].flag & FLAG_ONEWAY)
        )
        self._answered(taken, code, time.perf_counter() - begun)
        self._store_failed(error)

    def _store_each(
        self,
        conn: Connection,
        puts: list[Row] | list[PlainBatch],
        taken: list[Taken],
        now_ms: int,
        begun: float,
        error: Exception,
    ) -> None:
        """Store the sends of one read each by itself: one of them made the store refuse all."""
        if len(taken) > 1:
            at = 0
            for one in taken:
                step = 1 if isinstance(puts[0], PlainBatch) else one[2]
                self._store_puts(conn, puts[at : at + step], [one], now_ms, begun, False)
                at += step
            return
        frame = taken[0][0]
        answer = failure_answer(frame, error)
        self._count_refused(answer.code)
        self._rpc(frame.code, answer.code, time.perf_counter() - begun, flag=frame.flag)
        if not frame.flag & FLAG_ONEWAY:
            conn.write(encode_frame(answer))

    def _answered(self, taken: list[Taken], code: int, seconds: float) -> None:
        """Count answers that leave together. Sends of one read have mostly one code."""
        first = taken[0][0]
        request, flag = first.code, first.flag
        if all([a[0].code == request and a[0].flag == flag for a in taken]):
            self._rpc(request, code, seconds, len(taken), flag)
        else:
            for frame, *_ in taken:
                self._rpc(frame.code, code, seconds, 1, frame.flag)

    def _pending(
        self, taken: list[Taken], stored: list[Stored] | list[StoredBatch]
    ) -> tuple[list[Pending], list[Pending]]:
        """Return the answers that wait for confirmation, and those that wait for the leader's copy alone."""
        pending: list[Pending] = []
        content: list[Pending] = []
        host = self._store_host_hex
        at = 0
        if isinstance(stored[0], StoredBatch):
            for (frame, queue_id, *_), (queue_offset, entries) in zip(taken, stored, strict=True):
                if not frame.flag & FLAG_ONEWAY:
                    ids = message_ids(host, entries)
                    pending.append((frame.opaque, frame.serialize, queue_id, queue_offset, ids, None))
            return pending, content
        for frame, queue_id, count, more, waits in taken:
            phys, _, queue_offset = stored[at]
            if not frame.flag & FLAG_ONEWAY:
                place = phys if count == 1 else ",".join([f"{host}{s[0]:016X}" for s in stored[at : at + count]])
                answers = pending if waits else content
                answers.append((frame.opaque, frame.serialize, queue_id, queue_offset, place, more))
            at += count
        return pending, content

    def _slow_path(
        self, frame: Frame, born_host: bytes, now_ms: int, *, granted: bool = False
    ) -> tuple[list[Put], int, More | None, bool]:
        """Return (records, queue in the answer, one more field of it, whether the answer waits for confirmation).

        Raises RequestRejected, BadField, MessageIllegal, RecordError. All checks come before the creation of a topic: a
        refused send changes nothing. `granted`: a slice is granted for it.
        """
        header = SendHeader.parse(frame)
        check_sizes(frame, header, self._settings.maxMessageSize)
        props = parse_properties(header.properties or "")
        text = without_broker_properties(header.properties or "", props)
        waits = props.get(Prop.WAIT_STORE_MSG_OK, "true").lower() == "true"
        level = delay_level(props, len(self._delay_levels))
        due = timer_time(props, now_ms, self._settings.timerMaxDelaySec) if level <= 0 else None
        check_keys(props)
        items = decode_batch(frame.body) if frame.code == _BATCH else None
        if Prop.WAIT_STORE_MSG_OK in props:
            text = _without_wait(text)
        stored = _with_suffix(text.encode("utf-8", "replace"), self._suffix.encode())
        check_properties(props, len(stored))
        if items is not None:
            _check_batch(props, "the batch")
            _check_no_transaction(header)
        topic, exists = self._topic(header, granted=granted)
        if is_compacted(topic.attributes) and items is None:
            _check_compaction_key(props)
        queue_id = _queue_of(header, topic)
        if items is not None:
            puts = self._batch(items, header, topic, queue_id, born_host)
            self._remember(topic, exists)
            return puts, queue_id, None, waits
        self._remember(topic, exists)
        name = topic.name
        reconsume = header.reconsumeTimes or 0
        if name.startswith(RETRY_PREFIX) and self._exhausted(header, name.removeprefix(RETRY_PREFIX), reconsume):
            dead = self._creation.ensure_topic(dlq_topic(name.removeprefix(RETRY_PREFIX)), 1, Perm.WRITE | Perm.READ)
            self._count("DLQ_PUT_NUMS", f"{name}@{name.removeprefix(RETRY_PREFIX)}", 1)
            name, queue_id, level = dead.name, 0, 0
        props[Prop.CLUSTER] = self._cluster
        put = Put(
            name,
            queue_id,
            header.flag,
            header.sysFlag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
            header.bornTimestamp,
            born_host,
            frame.body,
            stored,
            reconsume,
            0,
            tags_hash(props.get(Prop.TAGS, "")),
            index_keys(props),
        )
        if props.get(Prop.TRANSACTION_PREPARED, "").lower() == "true" and not (reconsume > 0 and level > 0):
            if Prop.TIMER_DEL_UNIQKEY in props:
                raise MessageIllegal("the property TIMER_DEL_UNIQKEY is not possible on a message of a transaction")
            transaction = props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
            more = None if transaction is None else ("transactionId", transaction)
            return [half(put, props)], queue_id, more, waits
        more = None
        if due is not None:
            put = timed(put, props, due, now_ms, timer_window(self._settings.fileReservedTime))
            key = props.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
            if due > now_ms and key is not None and not name.startswith(RETRY_PREFIX):
                more = "recallHandle", RecallHandle(name, self._group, str(due), key).encode()
        elif level > 0:
            put = delayed(put, props, self._delay_levels, now_ms)
        return [put], queue_id, more, waits

    def _exhausted(self, header: SendHeader, group: str, reconsume: int) -> bool:
        """Return whether a retry that its client sends itself (orderly consumption) exceeds the allowed retries."""
        config = self._meta.working.groups.get(group)
        limit = config.retry_max_times if config is not None else 16
        if header.maxReconsumeTimes is not None and header.maxReconsumeTimes >= 0:
            limit = header.maxReconsumeTimes
        return reconsume > 0 and reconsume > limit

    def _topic(self, header: SendHeader, *, granted: bool = False) -> tuple[TopicConfig, bool]:
        """Return (topic, whether it exists). Does not create the topic. Raises RequestRejected."""
        name = header.topic
        if not takes_sends(self._settings.brokerPermission, self._meta.working.marks):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._role.address}] sending message is forbidden"
            )
        fault = topic_fault(name, longest=255 if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else 127)
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
        if name in NOT_SENDABLE:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        present = self._meta.working.topics.get(name)
        topic = present or self._creation.topic_for(name, header.defaultTopic, header.defaultTopicQueueNums)
        if topic is None:
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        if present is None and not granted and self._slices.left_s <= 0:
            raise _InTurn
        if not topic.perm & _WRITE:
            raise RequestRejected(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic, present is not None

    def _remember(self, topic: TopicConfig, exists: bool) -> None:
        """Create a missing topic, and add the topic to those of the fast path."""
        if not exists:
            self._creation.make_topic(topic)
        if not topic.name.startswith(RETRY_PREFIX) and not is_compacted(topic.attributes):
            queues = max(topic.read_queues, topic.write_queues)
            self._sendable[topic.name] = (topic.name, queues)
            self._numbers.update((str(number), number) for number in range(len(self._numbers), min(queues, MAX_QUEUES)))

    def _batch(
        self, items: list[BatchItem], header: SendHeader, topic: TopicConfig, queue_id: int, born_host: bytes
    ) -> list[Put]:
        if topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic.name}"
            )
        if not items:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        puts = []
        keys = 0
        suffix = self._suffix.encode()
        sys_flag = header.sysFlag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        for item in items:
            if bytes(MOST_ZEROS) in item.properties:
                raise _too_many_zeros()
            props = parse_properties(item.properties)
            properties = _of_item(item.properties, props)
            stored = _with_suffix(properties, suffix)
            check_properties(props, len(stored))
            _check_batch(props, "a message of the batch")
            if is_compacted(topic.attributes):
                _check_compaction_key(props)
            check_keys(props)
            words = index_keys(props)
            keys += len(words)
            if keys > MAX_REQUEST_KEYS + len(items):
                raise RequestRejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: the batch has over {MAX_REQUEST_KEYS} keys (property KEYS of its "
                    f"{len(items)} messages), the limit is {MAX_REQUEST_KEYS}",
                )
            puts.append(
                Put(
                    topic.name,
                    queue_id,
                    item.flag,
                    sys_flag,
                    header.bornTimestamp,
                    born_host,
                    item.body,
                    stored,
                    0,
                    0,
                    tags_hash(props.get(Prop.TAGS, "")),
                    words,
                )
            )
        return puts


def plain_rules(suffix: bytes) -> SendRules:
    """Return the rules of plain sends. `suffix`: what is added to the properties of each."""
    batches = BATCH_FRAME, BATCH_PART, MAX_REQUEST_KEYS
    return SendRules(sorted(SPECIAL), suffix, MOST_SENT, MAX_KEYS, KEYS_AT_ONCE, SMALL_FRAME, SMALL_HEADER, *batches)


def _born_ms(text: str) -> int:
    """Raise ValueError."""
    number = whole_number(text)
    if number is None:
        raise ValueError(text)
    return number


def check_sizes(frame: Frame, header: SendHeader, limit: int) -> None:
    """Raise RequestRejected for a message that is too large, or whose properties are not safe in the log."""
    if len(frame.body) > limit:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its body has {len(frame.body)} bytes, maxMessageSize is {limit}",
        )
    if header.properties is not None and "\0" * MOST_ZEROS in header.properties:
        raise _too_many_zeros()


def _of_item(properties: bytes, props: dict[str, str]) -> bytes:
    """Return the properties of a batch's message as they are stored: UTF-8, so that a copy is not longer."""
    if BROKER_ONLY.isdisjoint(props):
        with suppress(UnicodeDecodeError):
            properties.decode()
            return properties
    return without_broker_properties(properties.decode("utf-8", "replace"), props).encode()


def _check_no_transaction(header: SendHeader) -> None:
    """Raise RequestRejected for a batch that is part of a transaction."""
    if header.sysFlag & SysFlag.TRANSACTION_MASK:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: a batch cannot be part of a transaction (sysFlag {header.sysFlag})",
        )


def _queue_of(header: SendHeader, topic: TopicConfig) -> int:
    """Return the queue that a message goes to: any one where its header names none. Raises RequestRejected."""
    queue_id = header.queueId
    queues = max(topic.read_queues, topic.write_queues)
    if queue_id < 0:
        queue_id = random.randrange(max(topic.write_queues, 1))
    if queue_id >= queues:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {topic.name} has {queues} queues, "
            f"producer group: {header.producerGroup[:128]}",
        )
    return queue_id


def _check_batch(props: Mapping[str, str], what: str) -> None:
    """Raise RequestRejected for what a batch cannot have: its messages are visible at once. RocketMQ's client refuses
    it before it sends (`MessageBatch.generateFromList`).
    """
    if NOT_IN_BATCH.isdisjoint(props):
        return
    for name in sorted(NOT_IN_BATCH & props.keys()):
        value = props[name]
        if (name, value) == (Prop.DELAY_TIME_LEVEL, "0") or (
            name == Prop.TRANSACTION_PREPARED and value.lower() == "false"
        ):
            continue
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: {what} has the property {name}={value[:40]}; messages that are delayed or of a "
            "transaction are sent one by one",
        )


def _check_compaction_key(props: Mapping[str, str]) -> None:
    """Raise RequestRejected for a message of a compacted topic without a key, in the words of 5.5.0. It refuses single
    messages only, and takes those of a batch, which its compaction then loses.
    """
    if not props.get(Prop.KEYS, "").strip():
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")


def _too_many_zeros() -> RequestRejected:
    return RequestRejected(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: its properties have {MOST_ZEROS} zero bytes in a row, which after a power loss "
        "would look like a part that was never written; encode them as text",
    )


def _without_wait(text: str) -> str:
    """Return properties as 4.9.7 stores them, without WAIT: it concerns the answer, and every Java client sends it."""
    if _WAIT in text:
        return text.replace(_WAIT, "\x02")
    return "\x02".join([piece for piece in text.split("\x02") if not piece.startswith("WAIT\x01")])


def _with_suffix(properties: bytes, suffix: bytes) -> bytes:
    return properties + suffix if not properties or properties.endswith(b"\x02") else properties + b"\x02" + suffix
