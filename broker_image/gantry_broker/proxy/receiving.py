"""Receives, acknowledgements, invisible times and dead letters: POP by remoting."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from gantry_broker.client.errors import BrokerError, NoRoute
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import EXPRESSION_SQL92, EXPRESSION_TAG, Prop, RequestCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import ClientType, Code, FilterType, v2
from gantry_broker.protocol.headers import LONG_RANGE, Long, SendBackHeader, ViewMessageHeader, parse_int
from gantry_broker.protocol.message import Record, RecordError, decode_record, decode_records
from gantry_broker.protocol.pop_batches import batch_frame, batch_of, without_effect
from gantry_broker.protocol.pop_handle import (
    RETRY_V1,
    BadHandle,
    Handle,
    of_delivery,
    parse_handle,
    real_topic,
    topic_type,
)
from gantry_broker.proxy.answers import (
    FAILURES,
    OK,
    Answer,
    Refusal,
    no_route,
    overall,
    refusal_of,
    set_status,
    status_bytes,
)
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.clients import Client, ClientKey, Clients
from gantry_broker.proxy.messages import millis, received_part, set_millis
from gantry_broker.proxy.names import named
from gantry_broker.proxy.renewal import FIRST_MS, Due, Held, Renewals
from gantry_broker.proxy.rpc import Call
from gantry_broker.proxy.wire import ack_answer
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

MAX_MESSAGES: Final = 32
MIN_POLL_MS: Final = 5_000
MAX_POLL_MS: Final = 20_000
MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 43_200_000
CALL_S: Final = 3.0
"""Seconds for a request to a broker, with the attempts after a failure."""
GRACE_S: Final = 5.0
"""Seconds that the answer to a pop may take beyond its wait."""
BACK_MS: Final = 1_000
"""The invisible time of messages whose client has gone before it got them."""
DEAD_MS: Final = 60_000
"""How long a message is invisible while it becomes a dead letter."""
_ACKED: Final = (Code.OK, OK)
MAX_ORPHANS: Final = 10_000
"""Pops whose client has gone while they wait at a broker."""
RENEW_S: Final = 0.5
MAX_RENEWING: Final = 256
"""Renewals under way at the same time."""
FIRST_TURNS_MS: Final = (500, 1_000)
TURN_MS: Final = 2_000
"""How long a simple consumer waits at one broker group before the proxy looks at the others."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.3
_SINCE_5_0_3: Final = (5, 0, 3)

_NOTHING: Final = frozenset(
    (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
)
_AGAIN: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))


T = TypeVar("T")


def _now_ms() -> int:
    """Milliseconds of a clock that never steps. Renewals know times by it alone."""
    return time.monotonic_ns() // 1_000_000


class Item(NamedTuple):
    """A message for a client."""

    record: Record
    properties: Mapping[str, str]
    handle: str
    attempt: int


class HeldReceive:
    """A receive that waits for messages, until its client loses the right to them."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` raises Refusal."""
        self._check = check
        self._work: asyncio.Future[Any] | None = None
        self.refusal: Refusal | None = None

    def look_again(self) -> None:
        """Other users or rules are in force."""
        try:
            self._check()
        except Refusal as refusal:
            self.refusal = refusal
            if self._work is not None:
                self._work.cancel()

    async def run(self, work: Coroutine[Any, Any, T], unread: Callable[[T], None]) -> T:
        """Raise Refusal in the place of a result that comes no more. `unread` gets one that came with the end of the
        call, so that nobody takes it.
        """
        self._work = waiting = asyncio.ensure_future(work)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self.refusal is not None and waiting.cancelled():
                raise self.refusal from None
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                unread(waiting.result())
            raise
        finally:
            self._work = None


class Popped:
    """The messages of one pop: each with its properties, its handle and its attempt."""

    __slots__ = ("broker", "invisible_ms", "items")

    def __init__(self, broker: str, items: list[Item], invisible_ms: int) -> None:
        self.broker = broker
        self.items = items
        self.invisible_ms = invisible_ms


def polling_ms(client_ms: int | None, request_timeout_ms: int, left_ms: int | None, version: str) -> int:
    """Return how long a receive waits for messages. Raises Refusal. Pure."""
    if left_ms is None:
        return min(max(MAX_POLL_MS if client_ms is None else client_ms, MIN_POLL_MS), MAX_POLL_MS)
    poll_ms = left_ms - request_timeout_ms // 2 if client_ms is None else client_ms
    poll_ms = min(max(poll_ms, MIN_POLL_MS), MAX_POLL_MS)
    if poll_ms <= left_ms:
        return poll_ms
    if left_ms >= MIN_POLL_MS:
        return left_ms
    code = Code.ILLEGAL_POLLING_TIME if _version(version) >= _SINCE_5_0_3 else Code.BAD_REQUEST
    raise Refusal(code, "The deadline time remaining is not enough for polling, please check network condition")


def _version(text: str) -> tuple[int, ...]:
    parts = text.strip().lstrip("v").partition("-")[0].split(".")[:3]
    return tuple(whole_number(part, 0, 99_999) or 0 for part in parts)


def tags_of(expression: str) -> frozenset[str] | None:
    """Return the tags that a filter by tag lets through; None: all. Pure."""
    if not expression or expression.strip() == "*":
        return None
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip()) or None


def read_pop(answer: Frame, broker: str) -> Popped:
    """Return the messages of the answer to POP_MESSAGE. Raises RecordError and ValueError. Pure."""
    ext = answer.ext
    records = decode_records(answer.body)
    pop_ms, invisible_ms = (
        parse_int("popTime", ext.get("popTime"), *LONG_RANGE),
        parse_int("invisibleTime", ext.get("invisibleTime"), *LONG_RANGE),
    )
    revive = parse_int("reviveQid", ext.get("reviveQid", "0"))
    starts = _by_queue(ext.get("startOffsetInfo"))
    counts = _order_counts(ext.get("orderCountInfo"))
    items = []
    for record in records:
        kind = topic_type(record.topic)
        properties = record.props
        handle = of_delivery(properties.get(Prop.POP_CK), pop_ms, invisible_ms, broker, record.queue_offset)
        if handle is None:
            place = (kind, record.queue_id)
            start = starts.setdefault(place, record.queue_offset)
            handle = f"{start} {pop_ms} {invisible_ms} {revive} {kind} {broker} {record.queue_id} {record.queue_offset}"
        times = record.reconsume_times
        if counts:
            key = f"{kind} qo{record.queue_id}%{record.queue_offset}"
            times = counts.get(key, counts.get(f"{kind} {record.queue_id}", times)) or times
        items.append(Item(record, properties, f"{handle} {record.phys_offset}", times + 1))
    return Popped(broker, items, invisible_ms)


def _by_queue(text: str | None) -> dict[tuple[int, int], int]:
    starts = {}
    for part in (text or "").split(";"):
        words = part.split(" ")
        if len(words) != 3:
            continue
        kind, queue_id, start = [whole_number(word) for word in words]
        if kind is not None and queue_id is not None and start is not None:
            starts[kind, queue_id] = start
    return starts


def _order_counts(text: str | None) -> dict[str, int]:
    counts = {}
    for part in (text or "").split(";"):
        key, _, count = part.rpartition(" ")
        if key and (number := whole_number(count)) is not None:
            counts[key] = number
    return counts


def log_offset_of(handle: str) -> int | None:
    """Return the offset in the log at the end of a handle, below 2^63; None: it has none. Pure."""
    parts = handle.split(" ")
    return whole_number(parts[8]) if len(parts) == 9 else None


class Receiving:
    """What consumers ask."""

    def __init__(self, brokers: Brokers, clients: Clients) -> None:
        self._brokers = brokers
        self._clients = clients
        self.renewals = Renewals()
        self.returned = 0
        """Messages that went back because their client had gone before it got them."""
        self._orphans: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renewer: asyncio.Task[None] | None = None
        self._renewing = asyncio.Semaphore(MAX_RENEWING)
        self._under_way: dict[Held, asyncio.Task[Any]] = {}
        """Renewals of which the end is not known."""

    def start(self) -> None:
        self._renewer = asyncio.get_running_loop().create_task(self._renew_forever())

    async def close(self) -> None:
        """Stop renewals. Messages whose clients this process serves keep their present invisible time: the clients
        go on with another proxy.
        """
        await end_tasks(*self._tasks, *self._orphans, self._renewer)

    # ---- receive

    async def receive(
        self, call: Call, client: Client, group: str, topic: str, request: Any, held: HeldReceive
    ) -> Code:
        """Answer a ReceiveMessageRequest. Raises Refusal and `FAILURES` before the first part of the answer."""
        settings = client.settings
        left = call.time_left()
        poll_ms = polling_ms(
            millis(request.long_polling_timeout) if request.HasField("long_polling_timeout") else None,
            millis(settings.request_timeout),
            None if left is None else int(left * 1_000),
            call.metadata.get("x-mq-client-version", ""),
        )
        invisible_ms = FIRST_MS
        if not request.auto_renew:
            invisible_ms = checked_invisible(millis(request.invisible_duration), MIN_INVISIBLE_MS)
        route = await self._brokers.route(topic)
        if route is None:
            raise no_route(topic)
        masters = self._brokers.masters(route)
        if not masters:
            raise Refusal(Code.FORBIDDEN, "no readable queue")
        # The queue's number does not count: a simple consumer goes through the queues of its route one after the other,
        # and would wait for its polling time at each empty one.
        broker = request.message_queue.broker.name
        if broker not in masters:
            broker = random.choice(masters)
        fifo = settings.HasField("subscription") and settings.subscription.fifo
        by_sql = request.filter_expression.type == FilterType.SQL
        expression = request.filter_expression.expression or "*"
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(max(request.batch_size, 1), MAX_MESSAGES)),
            "invisibleTime": str(invisible_ms),
            "initMode": "1",
            "expType": EXPRESSION_SQL92 if by_sql else EXPRESSION_TAG,
            "exp": expression,
            "order": "true" if fifo else "false",
            "bname": broker,
        }
        if request.HasField("attempt_id") and request.attempt_id:
            ext["attemptId"] = request.attempt_id[:255]
        others = [] if fifo or client.kind != ClientType.SIMPLE_CONSUMER else masters
        popped: Popped | None
        code: Code

        def unread(result: tuple[Popped | None, Code, str]) -> None:
            self._give_back(group, topic, [] if result[0] is None else [item.handle for item in result[0].items])

        if len(others) > 1:
            work = self._pop_in_turn(broker, others, topic, group, ext, poll_ms)
        else:
            work = self._pop(broker, topic, group, ext, poll_ms)
        popped, code, text = result = await held.run(work, unread)
        if held.refusal is not None:
            unread(result)
            raise held.refusal
        attempts = settings.backoff_policy.max_attempts
        tags = None if by_sql else tags_of(expression)
        if popped is not None and popped.items:
            popped.items = self._without_unwanted(popped.items, group, topic, tags, attempts)
            if not popped.items:
                code, text = Code.MESSAGE_NOT_FOUND, "no match message"
        await self._answer(call, client, group, topic, request, popped, code, text)
        return code

    async def _answer(
        self,
        call: Call,
        client: Client,
        group: str,
        topic: str,
        request: Any,
        popped: Popped | None,
        code: Code,
        text: str,
    ) -> None:
        part = v2.ReceiveMessageResponse()
        set_status(part, code, text)
        items = [] if popped is None else popped.items
        sent = 0
        try:
            await call.send(part.SerializeToString())
            resource = named(request.message_queue.topic)
            now_ms = _now_ms()
            for record, properties, handle, attempt in items:
                if call.over:
                    break
                if request.auto_renew and popped is not None:
                    # By a clock that nobody sets: this host's may step, the broker's may be ahead or behind.
                    ends_ms = now_ms + popped.invisible_ms
                    self.renewals.add(client.key, group, topic, handle, ends_ms, now_ms, attempt)
                await call.send(received_part(record, properties, resource, handle, attempt))
                sent += 1
        finally:
            # Also when the client ends the call while the answer waits for it.
            self._give_back(group, topic, [item.handle for item in items[sent:]])
        await call.send(self.last_part())

    @staticmethod
    def last_part() -> bytes:
        """Return the end of each answer."""
        part = v2.ReceiveMessageResponse()
        set_millis(part.delivery_timestamp, time.time_ns() // 1_000_000)
        return bytes(part.SerializeToString())

    async def refuse(self, call: Call, part: Any) -> None:
        """Answer a ReceiveMessageRequest by a refusal."""
        await call.send(part.SerializeToString())
        await call.send(self.last_part())

    async def _pop_in_turn(
        self, first: str, masters: list[str], topic: str, group: str, ext: dict[str, str], poll_ms: int
    ) -> tuple[Popped | None, Code, str]:
        """Pop for a simple consumer, which asks one broker group after another: while it waits at one, a message may
        come to another (9145). So the proxy looks at the others from time to time.
        """
        ends = time.monotonic() + poll_ms / 1_000
        others = [master for master in masters if master != first]
        random.shuffle(others)
        waits = itertools.chain(FIRST_TURNS_MS, itertools.repeat(TURN_MS))
        answer = await self._pop(first, topic, group, ext | {"bname": first}, 0)
        while answer[0] is None:
            for other in others:
                try:
                    answer = await self._pop(other, topic, group, ext | {"bname": other}, 0)
                except FAILURES as error:
                    log.info("receive from %s of %s: %s", topic, other, error)
                if answer[0] is not None:
                    return answer
            left_ms = int((ends - time.monotonic()) * 1_000)
            if left_ms <= 0:
                break
            answer = await self._pop(first, topic, group, ext | {"bname": first}, min(left_ms, next(waits)))
            if time.monotonic() >= ends:
                break
        return answer

    async def _pop(
        self, broker: str, topic: str, group: str, ext: dict[str, str], poll_ms: int
    ) -> tuple[Popped | None, Code, str]:
        """Pop, and pop again after a lost connection as long as the client waits. A pop that waits at the broker when
        the client goes is not given up: what it brings goes back.
        """
        ends = time.monotonic() + poll_ms / 1_000
        pause = FIRST_PAUSE_S
        while True:
            left_ms = max(int((ends - time.monotonic()) * 1_000), 0)
            ext["pollTime"] = str(left_ms)
            ext["bornTime"] = str(time.time_ns() // 1_000_000)
            pop = asyncio.ensure_future(self._pop_once(broker, topic, dict(ext), left_ms))
            try:
                return await asyncio.shield(pop)
            except asyncio.CancelledError:
                self._orphan(pop, group, topic)
                raise
            except (RemotingError, NoRoute, BrokerError) as error:
                again = not isinstance(error, BrokerError) or error.code in _AGAIN
                if not again or time.monotonic() + pause >= ends:
                    raise
                log.info("receive from %s of %s: %s", topic, broker, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            if self._brokers.session.address(broker) is None:
                await self._brokers.session.route_after_failure(topic)

    async def _pop_once(
        self, broker: str, topic: str, ext: dict[str, str], poll_ms: int
    ) -> tuple[Popped | None, Code, str]:
        address = await self._brokers.address(broker, topic)
        frame = Frame(RequestCode.POP_MESSAGE, ext=ext)
        answer = await self._brokers.session.call(address, frame, poll_ms / 1_000 + GRACE_S)
        if answer.code == ResponseCode.SUCCESS:
            try:
                popped = read_pop(answer, broker)
            except (KeyError, ValueError) as error:
                raise BrokerError(f"pop from {topic}", answer.code, f"its answer cannot be read: {error}") from None
            if popped.items:
                return popped, Code.OK, "OK"
            return None, Code.MESSAGE_NOT_FOUND, "no match message"
        if answer.code == ResponseCode.POLLING_FULL:
            return None, Code.TOO_MANY_REQUESTS, "polling full"
        if answer.code in _NOTHING:
            return None, Code.MESSAGE_NOT_FOUND, "no new message"
        raise BrokerError(f"pop from {topic}", answer.code, answer.remark)

    def _orphan(self, pop: asyncio.Task[tuple[Popped | None, Code, str]], group: str, topic: str) -> None:
        if len(self._orphans) >= MAX_ORPHANS:
            pop.cancel()
            return
        self._orphans.add(pop)

        def ended(task: asyncio.Task[tuple[Popped | None, Code, str]]) -> None:
            self._orphans.discard(task)
            if task.cancelled() or task.exception() is not None:
                return
            popped = task.result()[0]
            if popped is not None:
                self._give_back(group, topic, [item.handle for item in popped.items])

        pop.add_done_callback(ended)

    def _without_unwanted(
        self,
        items: list[Item],
        group: str,
        topic: str,
        tags: frozenset[str] | None,
        attempts: int,
    ) -> list[Item]:
        """Return the messages for the client: those whose tag only has the same hash are acknowledged, and those that
        were delivered too often become dead letters.
        """
        kept = []
        for item in items:
            record, properties, handle, attempt = item
            if tags is not None and properties.get(Prop.TAGS) not in tags:
                self._spawn(self._quietly(self._ack_once(group, topic, parse_handle(handle))))
            elif attempts and attempt > attempts:
                message_id = record.uniq_key or record.offset_id
                self._spawn(self._quietly(self._to_dead_letters(group, topic, handle, message_id, attempts - 1)))
            else:
                kept.append(item)
        return kept

    def _give_back(self, group: str, topic: str, handles: Iterable[str]) -> None:
        """Let others have messages that their client did not get: that is no attempt."""
        for handle in handles:
            self.renewals.remove(group, topic, handle)
            self.returned += 1
            self._spawn(self._quietly(self._change(group, topic, handle, BACK_MS, suspend=True)))

    def client_gone(self, client: ClientKey) -> None:
        """Let others have the messages that a client works on, or has forgotten."""
        for held in self.renewals.client_gone(client):
            self._spawn(self._quietly(self._return(held)))

    async def _return(self, held: Held) -> None:
        task = self._under_way.get(held)
        if task is not None:
            await asyncio.wait([task])
        await self._change(held.group, held.topic, held.handle, BACK_MS)

    # ---- after a receive

    async def ack(self, group: str, topic: str, request: Any) -> Answer:
        entries = request.entries
        if len(entries) > 1_000:
            raise Refusal(Code.BAD_REQUEST, f"the request has {len(entries)} entries, at most 1000")
        given = [(entry.message_id, entry.receipt_handle) for entry in entries]
        results: dict[str, tuple[Code, str]] = {}
        handles: dict[str, dict[str, Handle]] = {}
        for _, text in given:
            try:
                unrenewed = self.renewals.find(group, topic, text) is None
                handle = parse_handle(text if unrenewed else await self._done_with(group, topic, text))
            except BadHandle as error:
                results[text] = Code.INTERNAL_SERVER_ERROR, str(error)
            else:
                handles.setdefault(handle.broker, {})[text] = handle
        works = [self._ack_all(group, topic, some, results) for some in handles.values()]
        if len(works) == 1:
            await works[0]
        else:
            await asyncio.gather(*works)
        if all([result is _ACKED for result in results.values()]):
            code = Code.OK
            status = status_bytes(code, OK)
            rows = [(message_id, text, status) for message_id, text in given]
        else:
            code = overall([results[text][0] for _, text in given])
            rows = [(message_id, text, status_bytes(*results[text])) for message_id, text in given]
        return Answer(code, ack_answer(status_bytes(code, code.name), rows))

    async def _ack_all(
        self, group: str, topic: str, handles: dict[str, Handle], results: dict[str, tuple[Code, str]]
    ) -> None:
        """Acknowledge messages of one broker group, and set their results: by one request where all have an effect."""
        left = list(handles.items())
        batch = batch_of(group, topic, list(handles.values())) if len(handles) > 1 else None
        if batch is not None:
            try:
                answer = await self._checked(batch.broker, topic, batch_frame(batch), f"acks in {topic}")
                void = without_effect(batch, answer)
            except BrokerError as error:
                if error.code in _AGAIN:
                    results |= dict.fromkeys(handles, _result(error))
                    return
            except ValueError as error:
                log.info("acks in %s: %s", topic, error)
            except (Refusal, *FAILURES) as error:
                results |= dict.fromkeys(handles, _result(error))
                return
            else:
                if void is not None:
                    left = [(text, handle) for text, handle in left if handle in void]
                    results |= dict.fromkeys(handles, _ACKED)
        # The rest one by one: the broker says of each what is wrong with it.
        answers = await asyncio.gather(*(self._ack_one(group, topic, handle) for _, handle in left))
        results |= {text: result for (text, _), result in zip(left, answers, strict=True)}

    async def _ack_one(self, group: str, topic: str, handle: Handle) -> tuple[Code, str]:
        try:
            # The broker decides whether the handle has expired: another proxy may have renewed the message.
            await self._ack_once(group, topic, handle)
        except (Refusal, *FAILURES) as error:
            return _result(error)
        return _ACKED

    async def _ack_once(self, group: str, topic: str, handle: Handle) -> None:
        ext = self._place(group, topic, handle)
        await self._checked(handle.broker, topic, Frame(RequestCode.ACK_MESSAGE, ext=ext), f"ack in {topic}")

    async def change_invisible(self, group: str, topic: str, request: Any) -> Any:
        invisible_ms = checked_invisible(millis(request.invisible_duration), 0)
        text = await self._done_with(group, topic, request.receipt_handle)
        suspend = request.HasField("suspend") and request.suspend
        try:
            handle = await self._change(group, topic, text, invisible_ms, suspend=suspend)
        except BadHandle as error:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, str(error)) from None
        except BrokerError as error:
            raise _expired(error) or error from None
        answer = v2.ChangeInvisibleDurationResponse(receipt_handle=handle)
        set_status(answer)
        return answer

    async def _change(self, group: str, topic: str, text: str, invisible_ms: int, *, suspend: bool = False) -> str:
        """Return the new handle. Raises BadHandle and `FAILURES`."""
        handle = parse_handle(text)
        ext = self._place(group, topic, handle) | {"invisibleTime": str(invisible_ms)}
        if suspend:
            ext["suspend"] = "true"
        frame = Frame(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext=ext)
        answer = await self._checked(handle.broker, topic, frame, f"change of the invisible time in {topic}")
        try:
            pop_ms, invisible, revive = (
                parse_int(name, answer.ext.get(name), *LONG_RANGE) for name in ("popTime", "invisibleTime", "reviveQid")
            )
        except BadField:
            raise BrokerError(f"change in {topic}", answer.code, "its answer cannot be read") from None
        fresh = Handle(
            handle.offset, pop_ms, invisible, revive, handle.kind, handle.broker, handle.queue_id, handle.offset
        )
        place = log_offset_of(text)
        return str(fresh) if place is None else f"{fresh} {place}"

    async def to_dead_letters(self, group: str, topic: str, request: Any) -> Any:
        text = await self._done_with(group, topic, request.receipt_handle)
        try:
            if parse_handle(text).kind == RETRY_V1:
                # The name may be that of another group's retries: the broker knows what this group has popped.
                text = await self._change(group, topic, text, DEAD_MS)
            await self._check_place(group, topic, text)
            await self._to_dead_letters(group, topic, text, request.message_id, request.max_delivery_attempts)
        except BadHandle as error:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, str(error)) from None
        except BrokerError as error:
            raise _expired(error) or error from None
        answer = v2.ForwardMessageToDeadLetterQueueResponse()
        set_status(answer)
        return answer

    async def _check_place(self, group: str, topic: str, text: str) -> None:
        """Check that a client's handle names the place of its own message in the log. Brokers take any place from the
        proxy, and the group would read what is there. Raises BadHandle and `FAILURES`.
        """
        handle, place = parse_handle(text), log_offset_of(text)
        if place is None:
            return  # `_to_dead_letters` refuses it.
        header = ViewMessageHeader(Long(place), real_topic(topic, group, handle.kind))
        frame = Frame(RequestCode.VIEW_MESSAGE_BY_ID, ext=header.ext() | {"bname": handle.broker})
        answer = await self._checked(handle.broker, topic, frame, f"dead letter of {topic}")
        try:
            stored = decode_record(answer.body)
        except RecordError as error:
            raise BrokerError(f"dead letter of {topic}", answer.code, f"its answer cannot be read: {error}") from None
        if (stored.topic, stored.queue_id, stored.queue_offset) != (header.topic, handle.queue_id, handle.offset):
            raise BadHandle(f"the handle {text[:80]!r} names the place of another message")

    async def _to_dead_letters(self, group: str, topic: str, text: str, message_id: str, attempts: int) -> None:
        handle = parse_handle(text)
        place = log_offset_of(text)
        if place is None:
            raise BadHandle(f"the handle {text[:80]!r} has no offset in the log")
        header = SendBackHeader(
            Long(place),
            group,
            -1,
            message_id,
            real_topic(topic, group, handle.kind),
            False,
            min(max(attempts, 0), 10_000),
        )
        frame = Frame(RequestCode.CONSUMER_SEND_MSG_BACK, ext=header.ext() | {"bname": handle.broker})
        await self._checked(handle.broker, topic, frame, f"dead letter of {topic}")
        await self._ack_once(group, topic, handle)

    @staticmethod
    def _place(group: str, topic: str, handle: Handle) -> dict[str, str]:
        return {
            "consumerGroup": group,
            "topic": real_topic(topic, group, handle.kind),
            "queueId": str(handle.queue_id),
            "extraInfo": str(handle),
            "offset": str(handle.offset),
            "bname": handle.broker,
        }

    async def _checked(self, broker: str, topic: str, frame: Frame, what: str) -> Frame:
        """Return the answer with SUCCESS, also when the broker has just failed over. Raises as `Session`."""
        session = self._brokers.session
        ends = time.monotonic() + CALL_S
        pause = FIRST_PAUSE_S
        while True:
            try:
                address = await self._brokers.address(broker, topic)
                return await session.call_checked(address, frame, what, max(ends - time.monotonic(), 0.05))
            except (RemotingError, NoRoute, BrokerError) as error:
                again = not isinstance(error, BrokerError) or error.code in _AGAIN
                if not again or time.monotonic() + pause >= ends:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    # ---- renewals

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for due in self.renewals.due(_now_ms()):
                task = self._under_way[due.held] = self._spawn(self._renew(due))
                task.add_done_callback(partial(self._renewal_ended, due.held))

    async def _renew(self, due: Due) -> None:
        held: Held = due.held
        async with self._renewing:
            try:
                invisible_ms = due.invisible_ms
                if invisible_ms is None:
                    invisible_ms = (await self._brokers.group(held.group)).retry_policy.pause_ms(held.attempt - 1)
                handle = await self._change(held.group, held.topic, held.handle, invisible_ms)
            except (BadHandle, Refusal, BrokerError) as error:
                final = not isinstance(error, BrokerError) or error.code == ResponseCode.NO_MESSAGE
                log.info("renewal in %s: %s", held.topic, error)
                self.renewals.failed(due, _now_ms(), final=final)
                return
            except FAILURES as error:
                log.info("renewal in %s: %s", held.topic, error)
                self.renewals.failed(due, _now_ms(), final=False)
                return
        self.renewals.renewed(due, handle, _now_ms() + parse_handle(handle).invisible_ms)

    async def _done_with(self, group: str, topic: str, given: str) -> str:
        """Return the present handle of a message that a client is done with; it is renewed no more. A renewal under
        way ends first: it makes the former handle void.
        """
        held = self.renewals.find(group, topic, given)
        if held is None:
            return given
        task = self._under_way.get(held)
        if task is not None:
            await asyncio.wait([task])
        self.renewals.remove(*held.key)
        return held.handle

    def _renewal_ended(self, held: Held, _: asyncio.Task[Any]) -> None:
        self._under_way.pop(held, None)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except (Refusal, BadHandle, *FAILURES) as error:
            log.info("%s", error)


def _expired(error: Exception) -> Refusal | None:
    """Return the refusal when a broker says that a handle stands for no message in flight any more."""
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_MESSAGE:
        return Refusal(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
    return None


def _result(error: Exception) -> tuple[Code, str]:
    """Return code and text of an acknowledgement that failed."""
    refusal = error if isinstance(error, Refusal) else _expired(error) or refusal_of(error)
    return refusal.code, refusal.text


def checked_invisible(invisible_ms: int, least_ms: int) -> int:
    """Return the time if it is in its range. Raises Refusal. Pure."""
    if invisible_ms < least_ms:
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}")
    if invisible_ms > MAX_INVISIBLE_MS:
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}")
    return invisible_ms
