"""The methods of `apache.rocketmq.v2.MessagingService`, forwarded to brokers by remoting requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from gantry_broker.access.guesses import HOLD_S
from gantry_broker.client.producer import Producer
from gantry_broker.protocol.bodies import QueueData, TopicRoute
from gantry_broker.protocol.codes import MASTER_ID, Perm
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.grpc_contract import SERVICE, AddressScheme, ClientType, Code, Permission, v2
from gantry_broker.protocol.rights import GET, GROUP, PUB, SUB, TOPIC
from gantry_broker.proxy.announcements import Announcements
from gantry_broker.proxy.answers import FAILURES, OK, Answer, Refusal, no_route, refusal_of, set_status, status_bytes
from gantry_broker.proxy.authentication import Authentication, Caller, Need, TooManyGuesses
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.clients import Client, Clients, answered_settings, known_endpoints
from gantry_broker.proxy.config import split_endpoint
from gantry_broker.proxy.limits import MAX_MESSAGES, limit_of, parser
from gantry_broker.proxy.messages import MAX_BODY
from gantry_broker.proxy.names import MAX_CLIENT_ID, group_name, named, topic_name
from gantry_broker.proxy.receiving import HeldReceive, Receiving
from gantry_broker.proxy.rpc import Call, GrpcStatus, Method, Methods, Outcome, Refused
from gantry_broker.proxy.sending import Sending
from gantry_broker.proxy.telemetry import Telemetry
from gantry_broker.proxy.wire import field, queue_part
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

UNIMPLEMENTED: Final = ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset")
"""Methods of the contract that Apache's proxy does not serve either."""
SWEEP_S: Final = 5.0
SETTINGS_S: Final = 1.0
"""Seconds that a receive waits for the settings of its client."""
REQUEST_TIMEOUT_S: Final = 3
"""Of a client that has sent no settings: the default of clients."""


Handler = Callable[[Caller, Any], Awaitable[Any]]


_READ_SEND: Final = parser(v2.SendMessageRequest, "SendMessage")
_READ_RECEIVE: Final = parser(v2.ReceiveMessageRequest, "ReceiveMessage")


class Counts:
    """Answers by method and code, and the time that they took."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], int] = {}
        self.seconds: dict[str, float] = {}

    def add(self, method: str, code: int, seconds: float) -> None:
        name = _CODE_NAMES.get(code, "UNKNOWN")
        place = (method, name)
        self.answers[place] = self.answers.get(place, 0) + 1
        self.seconds[method] = self.seconds.get(method, 0.0) + seconds


_CODE_NAMES: Final = {int(code): code.name for code in Code}


class Service:
    """All methods over one set of brokers."""

    def __init__(
        self, brokers: Brokers, producer: Producer, authentication: Authentication, *, advertise: str | None
    ) -> None:
        self.brokers = brokers
        self.authentication = authentication
        self.clients = Clients()
        self.counts = Counts()
        self._advertise: bytes | None = None if advertise is None else _endpoints(advertise).SerializeToString()
        self.sending = Sending(brokers, producer, self.clients)
        self.receiving = Receiving(brokers, self.clients)
        self._announcements = Announcements(brokers, self.clients)
        self._sweeper: asyncio.Task[None] | None = None
        self.held_receives: set[HeldReceive] = set()
        self.talks: set[Telemetry] = set()
        """Telemetry streams that are open."""
        self._looking: asyncio.Task[None] | None = None
        authentication.on_changed.append(self._look_again)
        brokers.session.remoting.register(self.sending.CHECK, self.sending.on_check)

    @property
    def methods(self) -> Methods:
        unary: dict[str, tuple[Any, Any, Handler]] = {
            "QueryRoute": (v2.QueryRouteRequest, v2.QueryRouteResponse, self._query_route),
            "Heartbeat": (v2.HeartbeatRequest, v2.HeartbeatResponse, self._heartbeat),
            "QueryAssignment": (v2.QueryAssignmentRequest, v2.QueryAssignmentResponse, self._query_assignment),
            "AckMessage": (v2.AckMessageRequest, v2.AckMessageResponse, self._ack),
            "ChangeInvisibleDuration": (
                v2.ChangeInvisibleDurationRequest,
                v2.ChangeInvisibleDurationResponse,
                self._change_invisible,
            ),
            "ForwardMessageToDeadLetterQueue": (
                v2.ForwardMessageToDeadLetterQueueRequest,
                v2.ForwardMessageToDeadLetterQueueResponse,
                self._to_dead_letters,
            ),
            "EndTransaction": (v2.EndTransactionRequest, v2.EndTransactionResponse, self._end_transaction),
            "RecallMessage": (v2.RecallMessageRequest, v2.RecallMessageResponse, self._recall),
            "NotifyClientTermination": (
                v2.NotifyClientTerminationRequest,
                v2.NotifyClientTerminationResponse,
                self._notify_termination,
            ),
            "SyncLiteSubscription": (
                v2.SyncLiteSubscriptionRequest,
                v2.SyncLiteSubscriptionResponse,
                self._sync_lite_subscription,
            ),
        }
        methods = {}
        for name, parts in unary.items():
            admit = self._admit(name, self._refused_answer(name, parts[1]))
            methods[name] = Method(unary=self._unary(name, *parts), most=limit_of(name).size, admit=admit)
        refuse = self._refused_answer("SendMessage", v2.SendMessageResponse)
        methods["SendMessage"] = Method(
            direct=self._send,
            most=limit_of("SendMessage").size,
            admit=self._admit("SendMessage", refuse),
            too_large=lambda call, size: refuse(
                Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {MAX_BODY}")
            ),
        )
        methods["ReceiveMessage"] = Method(
            streaming=self._receive,
            most=limit_of("ReceiveMessage").size,
            admit=self._admit("ReceiveMessage", self._refused_receive),
        )
        methods["Telemetry"] = Method(
            conversing=lambda line: Telemetry(self, line),
            most=limit_of("Telemetry").size,
            admit=self._admit("Telemetry", Telemetry.refused),
        )
        for name in UNIMPLEMENTED:
            text = f"Method {SERVICE[1:]}{name} is unimplemented"
            methods[name] = Method(admit=_constant(Refused(status=GrpcStatus.UNIMPLEMENTED, text=text)))
        return {SERVICE + name: method for name, method in methods.items()}

    def start(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        self._announcements.start()
        self.receiving.start()

    async def close(self) -> None:
        await self._announcements.close()
        await end_tasks(self._sweeper, self._looking)
        await self.receiving.close()

    # ---- calls

    def _admit(self, name: str, refused: Callable[[Refusal], Refused]) -> Callable[[Call], Refused | None]:
        """Return the check of who makes a call, before its request is taken."""

        def admit(call: Call) -> Refused | None:
            try:
                call.signed = self.caller(call).user is not None
            except Refusal as refusal:
                error = refusal
            else:
                return None
            self.counts.add(name, error.code, 0.0)
            answer = refused(error)
            return replace(answer, wait=lambda: _hold(error)) if isinstance(error, TooManyGuesses) else answer

        return admit

    @staticmethod
    def _refused_answer(name: str, answer_class: Any) -> Callable[[Refusal], Refused]:
        def refused(error: Refusal) -> Refused:
            answer = answer_class()
            set_status(answer, error.code, error.text)
            return Refused((answer.SerializeToString(),))

        return refused

    @staticmethod
    def _refused_receive(error: Refusal) -> Refused:
        part = v2.ReceiveMessageResponse()
        set_status(part, error.code, error.text)
        return Refused((part.SerializeToString(), Receiving.last_part()))

    def _unary(
        self, name: str, request_class: Any, answer_class: Any, handler: Handler
    ) -> Callable[[Call, bytes], Awaitable[bytes]]:
        count = self.counts.add
        clock = time.monotonic
        parse = parser(request_class, name)

        async def serve(call: Call, data: bytes) -> bytes:
            begun = clock()
            request = parse(data)
            try:
                answer = await handler(self.caller(call), request)
            except (Refusal, *FAILURES) as error:
                await _hold(error)
                answer = answer_class()
                self._set_refusal(name, answer, error)
            if isinstance(answer, Answer):
                count(name, answer.code, clock() - begun)
                return answer.data
            count(name, answer.status.code, clock() - begun)
            result: bytes = answer.SerializeToString()
            return result

        return serve

    @staticmethod
    def _set_refusal(method: str, answer: Any, error: Exception) -> None:
        if not isinstance(error, Refusal):
            log.info("%s: %s", method, error)
            error = refusal_of(error)
        set_status(answer, error.code, error.text)

    def caller(self, call: Call) -> Caller:
        """Return who makes a call. Raises Refusal."""
        policy = self.authentication.policy
        cached: Caller | None = call.caller
        if cached is not None and cached.policy is policy:
            return cached
        client_id = call.metadata.get("x-mq-client-id", "")
        _check_client_id(client_id)
        user = self.authentication.user(call.metadata, call.peer)
        call.caller = caller = Caller(call, client_id, user, policy)
        return caller

    def allow(self, caller: Caller, *needs: Need) -> None:
        """Check the rights of a caller. Raises Refusal."""
        self.authentication.check(caller.user, caller.call.peer, needs)

    def known_client(self, caller: Caller) -> Client | None:
        """Return the client if its settings are known, and note that it is there."""
        client = self.clients.get(caller.client_id, caller.user_name)
        if client is None or client.settings is None:
            return None
        client.seen = time.monotonic()
        return client

    def _must_be_known(self, caller: Caller) -> Client:
        client = self.known_client(caller)
        if client is None:
            raise Refusal(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return client

    # ---- methods

    async def _query_route(self, caller: Caller, request: Any) -> Any:
        topic = topic_name(request.topic)
        self.allow(caller, Need(TOPIC, topic, (PUB, SUB, GET)))
        route = await self.brokers.route(topic)
        if route is None:
            raise no_route(topic)
        types = await self.brokers.message_types(topic)
        resource, place = named(request.topic), self._place(request.endpoints)
        parts = [field(b"\x0a", status_bytes(Code.OK, OK))]
        for data in masters(route):
            queue = queue_part(resource, data.broker, place, types)
            parts += [field(b"\x12", queue(number, permission)) for number, permission in queue_permissions(data)]
        return Answer(Code.OK, b"".join(parts))

    async def _query_assignment(self, caller: Caller, request: Any) -> Any:
        topic, group = topic_name(request.topic), group_name(request.group)
        self.allow(caller, Need(TOPIC, topic, (SUB,)), Need(GROUP, group, (SUB,)))
        route = await self.brokers.route(topic)
        if route is None:
            raise no_route(topic)
        orderly = (await self.brokers.group(group)).orderly
        resource, place = named(request.topic), self._place(request.endpoints)
        parts = [field(b"\x0a", status_bytes(Code.OK, OK))]
        for data in masters(route):
            if not data.perm & Perm.READ:
                continue
            queue = queue_part(resource, data.broker, place, ())
            for number in range(data.read_queues) if orderly else (-1,):
                parts.append(field(b"\x12", field(b"\x0a", queue(number, Permission.READ_WRITE))))
        if len(parts) == 1:
            raise Refusal(Code.FORBIDDEN, "no readable queue")
        return Answer(Code.OK, b"".join(parts))

    def _place(self, endpoints: Any) -> bytes:
        """Return the endpoints of every broker: those of this proxy, as the client reaches it. Raises Refusal."""
        if self._advertise is not None:
            return self._advertise
        place = known_endpoints(endpoints)
        if not place.scheme:
            place.scheme = AddressScheme.IPv4
        place_bytes: bytes = place.SerializeToString()
        return place_bytes

    async def _heartbeat(self, caller: Caller, request: Any) -> Any:
        if request.HasField("group"):
            self.allow(caller, Need(GROUP, group_name(request.group), (SUB,)))
        self._must_be_known(caller)
        answer = v2.HeartbeatResponse()
        set_status(answer)
        return answer

    async def _notify_termination(self, caller: Caller, request: Any) -> Any:
        client = self._must_be_known(caller)
        self.clients.leave(client)
        self.receiving.client_gone(client.key)
        answer = v2.NotifyClientTerminationResponse()
        set_status(answer)
        return answer

    def _send(self, call: Call, data: bytes, done: Callable[[Outcome], None]) -> Outcome | None:
        """Serve a SendMessage, without a task if nothing but the broker's answer must be waited for."""
        begun = time.monotonic()
        request = _READ_SEND(data)

        def answered(sent: Answer) -> bytes:
            self.counts.add("SendMessage", sent.code, time.monotonic() - begun)
            return sent.data

        async def awaited(waiting: Awaitable[Answer]) -> bytes:
            try:
                return answered(await waiting)
            except (Refusal, *FAILURES) as error:
                await _hold(error)
                return answered(self._refused_send(error))

        def later(outcome: Answer | Awaitable[Answer]) -> None:
            done(answered(outcome) if isinstance(outcome, Answer) else awaited(outcome))

        try:
            caller = call.caller
            if caller is None or caller.policy is not self.authentication.policy:
                caller = self.caller(call)
            messages = request.messages
            if not messages:
                raise Refusal(Code.MESSAGE_CORRUPTED, "no message to send")
            if len(messages) > MAX_MESSAGES:
                raise Refusal(Code.BAD_REQUEST, f"the request has {len(messages)} messages, at most {MAX_MESSAGES}")
            topic = topic_name(messages[0].topic)
            if caller.user is not None:
                self.allow(caller, Need(TOPIC, topic, (PUB,)))
                size = sum(len(message.body) for message in messages)
                self.authentication.take(caller.user, size, len(messages), time.monotonic())
            waiting = self.sending.send(call, topic, messages, later)
        except TooManyGuesses as error:
            return awaited(_raised(error))
        except (Refusal, *FAILURES) as error:
            return answered(self._refused_send(error))
        return None if waiting is None else awaited(waiting)

    def _refused_send(self, error: Exception) -> Answer:
        answer = v2.SendMessageResponse()
        self._set_refusal("SendMessage", answer, error)
        return Answer(answer.status.code, answer.SerializeToString())

    async def _end_transaction(self, caller: Caller, request: Any) -> Any:
        topic = topic_name(request.topic)
        self.allow(caller, Need(TOPIC, topic, (PUB,)))
        return await self.sending.end_transaction(topic, request)

    async def _recall(self, caller: Caller, request: Any) -> Any:
        topic = topic_name(request.topic)
        self.allow(caller, Need(TOPIC, topic, (PUB,)))
        return await self.sending.recall(topic, request)

    async def _ack(self, caller: Caller, request: Any) -> Any:
        topic, group = self._consumed(caller, request)
        return await self.receiving.ack(group, topic, request)

    async def _change_invisible(self, caller: Caller, request: Any) -> Any:
        topic, group = self._consumed(caller, request)
        return await self.receiving.change_invisible(group, topic, request)

    async def _to_dead_letters(self, caller: Caller, request: Any) -> Any:
        topic, group = self._consumed(caller, request)
        return await self.receiving.to_dead_letters(group, topic, request)

    def _consumed(self, caller: Caller, request: Any) -> tuple[str, str]:
        topic, group = topic_name(request.topic), group_name(request.group)
        self.allow(caller, Need(TOPIC, topic, (SUB,)), Need(GROUP, group, (SUB,)))
        self.known_client(caller)
        return topic, group

    async def _sync_lite_subscription(self, caller: Caller, request: Any) -> Any:
        """Lite topics are not served: each topic is one that no group is bound to, as for 5.5.0's defaults."""
        topic, group = self._consumed(caller, request)
        raise Refusal(Code.ILLEGAL_TOPIC, f"lite group {group} is expected to bind topic null, but actual is {topic}")

    async def _receive(self, call: Call, data: bytes) -> None:
        begun = time.monotonic()
        request = _READ_RECEIVE(data)
        try:
            caller = self.caller(call)
            client = await self._client_soon(caller)
            group, topic = group_name(request.group), topic_name(request.message_queue.topic)
            needs = Need(TOPIC, topic, (SUB,)), Need(GROUP, group, (SUB,))
            self.allow(caller, *needs)
            if client is None:
                client = await self._client_of_group(caller, request, group)
            held = HeldReceive(lambda: self.allow(self.caller(call), *needs))
            self.held_receives.add(held)
            try:
                code = await self.receiving.receive(call, client, group, topic, request, held)
            finally:
                self.held_receives.discard(held)
        except (Refusal, *FAILURES) as error:
            await _hold(error)
            part = v2.ReceiveMessageResponse()
            self._set_refusal("ReceiveMessage", part, error)
            code = part.status.code
            await self.receiving.refuse(call, part)
        self.counts.add("ReceiveMessage", code, time.monotonic() - begun)

    async def _client_soon(self, caller: Caller) -> Client | None:
        """Return the client when its settings have come: after a restart of the proxy they may come a moment later."""
        ends = time.monotonic() + SETTINGS_S
        while (client := self.known_client(caller)) is None and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return client

    async def _client_of_group(self, caller: Caller, request: Any, group: str) -> Client:
        """Return a consumer that has sent no settings, with those of its group. A restarted proxy has forgotten them,
        and clients send them again only after minutes. Raises Refusal and `FAILURES`.
        """
        config = await self.brokers.group(group)
        client = self.known_client(caller)
        client = client or self.clients.enter(caller.client_id, caller.call.peer, caller.user_name)
        if client is None:
            raise Refusal(Code.TOO_MANY_REQUESTS, "too many clients")
        if client.settings is None:
            kind = ClientType.PUSH_CONSUMER if request.auto_renew else ClientType.SIMPLE_CONSUMER
            given = v2.Settings(client_type=kind)
            given.subscription.group.CopyFrom(request.group)
            given.subscription.subscriptions.add(
                topic=request.message_queue.topic, expression=request.filter_expression
            )
            given.request_timeout.seconds = REQUEST_TIMEOUT_S
            settings = answered_settings(given, config)
            if not self.clients.has_room(client, settings):
                raise Refusal(Code.TOO_MANY_REQUESTS, "the settings of all clients together are too large")
            self.clients.set_settings(client, settings)
        client.seen = time.monotonic()
        return client

    # ---- other users or rules

    def _look_again(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = asyncio.get_running_loop().create_task(self._end_without_right())

    async def _end_without_right(self) -> None:
        """End receives that wait, and telemetry streams, of clients that may no longer have them."""
        open_calls: list[HeldReceive | Telemetry] = [*self.held_receives, *self.talks]
        for number, open_call in enumerate(open_calls):
            open_call.look_again()
            if number % 50 == 49:
                await asyncio.sleep(0)

    # ---- by time

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                for client in self.clients.gone(time.monotonic()):
                    self.clients.leave(client)
                    self.receiving.client_gone(client.key)
                await self.sending.sweep()
                await self._notify_clients()
            except Exception:
                log.exception("the sweep over clients failed")

    async def _notify_clients(self) -> None:
        """Send consumers the settings of their group that have changed."""
        for client in self.clients:
            if client.line is None or client.settings is None or not client.group:
                continue
            try:
                config = await self.brokers.group(client.group)
            except FAILURES:
                continue
            await asyncio.sleep(0)
            line = client.line
            if line is not None and client.settings is not None:
                Telemetry.notify(client, line, config, only_changes=True)


def _constant(refused: Refused) -> Callable[[Call], Refused]:
    return lambda call: refused


@lru_cache(maxsize=4_096)
def _check_client_id(client_id: str) -> None:
    """Check the id of a client. Raises Refusal."""
    if not client_id.strip():
        raise Refusal(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > MAX_CLIENT_ID:
        raise Refusal(Code.BAD_REQUEST, f"the client id has {len(client_id)} characters, at most {MAX_CLIENT_ID}")
    if not client_id.isascii() or not client_id.isprintable():
        raise Refusal(Code.BAD_REQUEST, "the client id has characters other than printable ones of ASCII")


async def _raised(error: Exception) -> Answer:
    raise error


async def _hold(error: Exception) -> None:
    if isinstance(error, TooManyGuesses):
        await asyncio.sleep(HOLD_S)


def masters(route: TopicRoute) -> list[QueueData]:
    """Return the queues of groups that have a master. Pure."""
    with_master = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
    return sorted((data for data in route.queues if data.broker in with_master), key=lambda data: data.broker)


def queue_permissions(data: QueueData) -> list[tuple[int, Permission]]:
    """Return number and permission of each queue of one group. Pure."""
    reads = data.read_queues if data.perm & Perm.READ else 0
    writes = data.write_queues if data.perm & Perm.WRITE else 0
    both = min(reads, writes)
    more = Permission.READ if reads > writes else Permission.WRITE
    permissions = [(number, Permission.READ_WRITE) for number in range(both)]
    permissions += [(number, more) for number in range(both, max(reads, writes))]
    return permissions or [(0, Permission.NONE)]


def _endpoints(address: str) -> Any:
    host, port = split_endpoint(address)
    scheme = AddressScheme.DOMAIN_NAME
    if ":" in host:
        scheme = AddressScheme.IPv6
    elif whole_number(host.replace(".", "")) is not None:
        scheme = AddressScheme.IPv4
    endpoints = v2.Endpoints(scheme=scheme)
    endpoints.addresses.add(host=host, port=port)
    return endpoints
