"""The telemetry stream of one client: its settings, and commands in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final, Protocol

from gantry_broker.protocol.grpc_contract import Code, Language, v2
from gantry_broker.protocol.rights import GROUP, PUB, SUB, TOPIC
from gantry_broker.proxy.answers import FAILURES, Refusal, refusal_of, set_status
from gantry_broker.proxy.authentication import Caller, Need, TooManyGuesses
from gantry_broker.proxy.brokers import Brokers, GroupConfig
from gantry_broker.proxy.clients import MAX_NAMES, MAX_TEXT, Client, Clients, answered_settings, known_settings, shown
from gantry_broker.proxy.limits import parser
from gantry_broker.proxy.names import group_name, topic_name
from gantry_broker.proxy.receiving import Receiving
from gantry_broker.proxy.rpc import Call, GrpcStatus, Line, Refused, RpcError
from gantry_broker.proxy.sending import Sending

log = logging.getLogger(__name__)

_READ: Final = parser(v2.TelemetryCommand, "Telemetry")

MAX_WORK: Final = 16
"""Commands of one client that are in work."""
_LANGUAGES: Final = {int(language): language.name for language in Language if language}


class Service(Protocol):
    """What a telemetry stream needs of the service."""

    brokers: Brokers
    clients: Clients
    sending: Sending
    receiving: Receiving
    talks: set[Telemetry]

    def caller(self, call: Call) -> Caller:
        """Return who calls. Raises Refusal."""
        ...

    def allow(self, caller: Caller, *needs: Need) -> None:
        """Check the rights of a caller. Raises Refusal."""


class Telemetry:
    """`rpc.Conversation` of one client."""

    def __init__(self, service: Service, line: Line) -> None:
        self._service = service
        self._line = line
        self._client: Client | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: asyncio.Task[None] | None = None
        service.talks.add(self)

    @staticmethod
    def refused(refusal: Refusal) -> Refused:
        """Return the answer to a stream of a caller that is not known."""
        command = v2.TelemetryCommand()
        set_status(command, refusal.code, refusal.text)
        return Refused((command.SerializeToString(),), GrpcStatus.UNAUTHENTICATED, refusal.text)

    def on_message(self, message: bytes) -> None:
        command = _READ(message)
        service = self._service
        try:
            caller = service.caller(self._line)
        except TooManyGuesses as refusal:
            self._line.finish(GrpcStatus.UNAUTHENTICATED, refusal.text)
            return
        except Refusal as refusal:
            self._refuse(refusal)
            self._line.finish(GrpcStatus.UNAUTHENTICATED, refusal.text)
            return
        kind = command.WhichOneof("command")
        if kind == "settings":
            if len(self._tasks) >= MAX_WORK:
                raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many settings at once")
            task = self._before = asyncio.ensure_future(self._settings(caller, command.settings, self._before))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif kind == "thread_stack_trace":
            service.clients.answered(self._client, command.thread_stack_trace.nonce, command)
        elif kind == "verify_message_result":
            service.clients.answered(self._client, command.verify_message_result.nonce, command)

    def look_again(self) -> None:
        """End the stream if other users or rules are in force, and its client may no longer have it."""
        client = self._client
        try:
            caller = self._service.caller(self._line)
            if client is not None and client.settings is not None:
                self._check(caller, client.settings)
        except Refusal as refusal:
            self._refuse(refusal)
            self._line.finish(GrpcStatus.UNAUTHENTICATED, refusal.text)
            self._service.talks.discard(self)
            if client is not None and client.line is self._line:
                self._service.clients.leave(client)
                self._service.receiving.client_gone(client.key)

    def on_end(self) -> None:
        self._service.talks.discard(self)
        for task in self._tasks:
            task.cancel()
        client = self._client
        if client is not None and client.line is self._line:
            client.line = None
            client.seen = time.monotonic()

    async def _settings(self, caller: Caller, settings: Any, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            with contextlib.suppress(Exception):
                await before
        service = self._service
        try:
            self._check(caller, settings)
            known_settings(settings)  # before a broker is asked
            config = None
            if settings.HasField("subscription"):
                config = await service.brokers.group(group_name(settings.subscription.group))
        except Refusal as refusal:
            if refusal.code in (Code.UNAUTHORIZED, Code.FORBIDDEN, Code.TOO_MANY_REQUESTS):
                self._refuse(refusal)
            else:
                self._line.finish(GrpcStatus.INVALID_ARGUMENT, refusal.text)
            return
        except FAILURES as error:
            log.info("settings of %s: %s", caller.client_id, error)
            self._refuse(refusal_of(error))
            return
        answer = answered_settings(settings, config)
        client = service.clients.enter(caller.client_id, caller.call.peer, caller.user_name)
        if client is None:
            self._refuse(Refusal(Code.TOO_MANY_REQUESTS, "the proxy has too many clients"))
            return
        if not service.clients.has_room(client, answer):
            if client.settings is None:
                service.clients.leave(client)
            self._refuse(Refusal(Code.TOO_MANY_REQUESTS, "the settings of all clients together are too large"))
            return
        self._client = client
        metadata = caller.call.metadata
        client.address = caller.call.peer
        client.language = _LANGUAGES.get(settings.user_agent.language, "") or shown(
            metadata.get("x-mq-language", ""), 40
        )
        client.version = shown(metadata.get("x-mq-client-version", ""), MAX_TEXT)
        client.line = self._line
        client.seen = time.monotonic()
        service.clients.set_settings(client, answer)
        if answer.HasField("publishing"):
            service.sending.client_came(answer)
        self._push(answer)

    def _check(self, caller: Caller, settings: Any) -> None:
        """Check what the settings need. Raises Refusal."""
        service = self._service
        if settings.HasField("publishing"):
            if len(settings.publishing.topics) > MAX_NAMES:
                raise Refusal(Code.BAD_REQUEST, f"the settings name over {MAX_NAMES} topics")
            for topic in settings.publishing.topics:
                service.allow(caller, Need(TOPIC, topic_name(topic), (PUB,)))
        elif settings.HasField("subscription"):
            subscription = settings.subscription
            if len(subscription.subscriptions) > MAX_NAMES:
                raise Refusal(Code.BAD_REQUEST, f"the settings name over {MAX_NAMES} topics")
            service.allow(caller, Need(GROUP, group_name(subscription.group), (SUB,)))
            for entry in subscription.subscriptions:
                service.allow(caller, Need(TOPIC, topic_name(entry.topic), (SUB,)))
        else:
            raise Refusal(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")

    def _push(self, settings: Any) -> None:
        command = v2.TelemetryCommand()
        set_status(command)
        command.settings.CopyFrom(settings)
        self._line.push(command.SerializeToString())

    def _refuse(self, refusal: Refusal) -> None:
        command = v2.TelemetryCommand()
        set_status(command, refusal.code, refusal.text)
        self._line.push(command.SerializeToString())

    @staticmethod
    def notify(client: Client, line: Line, config: GroupConfig, *, only_changes: bool) -> None:
        """Send a consumer its settings by the present configuration of its group."""
        settings = answered_settings(client.settings, config)
        if only_changes and settings == client.settings:
            return
        client.settings = settings
        command = v2.TelemetryCommand()
        set_status(command)
        command.settings.CopyFrom(settings)
        line.push(command.SerializeToString())
