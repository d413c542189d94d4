"""What a person reads or asks for on a page: messages, dead letters, offsets, subscriptions. The edge to brokers.

Pages call other actions directly, within `one_line_errors`. Each has the command that does the same.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from gantry_broker.client import (
    Admin,
    BrokerError,
    ClientError,
    DeadLetters,
    Message,
    Producer,
    ReceivedMessage,
    SendStatus,
)
from gantry_broker.client.subscription import subscription
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.message import RecordError
from gantry_broker.protocol.printable import printable_json
from gantry_broker.remoting.errors import RemotingError

from gantry_operator.actions.dead_letters import Choice, letter_fields, read_letters, resend_letters
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.offsets import preview_offsets, reset_offsets
from gantry_operator.actions.queue_choice import is_by_key
from gantry_operator.cluster.message_walk import AdminReader, Filters, Page, Place, Walk, by_id, by_key
from gantry_operator.cluster.reach import CannotTell, leave_out_silent
from gantry_operator.cluster.timestamps import utc
from gantry_operator.console.sources import Source
from gantry_operator.topics.resets import ResetPreview

FOUND: Final = 64
"""Messages of one search."""
CHOSEN: Final = 200
"""Dead letters that one form sends again, at most."""
EXPORTED: Final = 10_000
"""Dead letters of one export."""
SEARCH_S: Final = 0.4
"""Seconds after which a search for messages ends its page; the browser goes on from there."""
OPERATION_S: Final = 40.0


class OperationError(Exception):
    """An operation was not done; the text is for the person."""


@asynccontextmanager
async def one_line_errors() -> AsyncIterator[None]:
    """Turn errors of clusters into one line, and end after `OPERATION_S`. Raises OperationError."""
    try:
        async with asyncio.timeout(OPERATION_S), in_one_line():
            yield
    except TimeoutError:
        raise OperationError(f"the cluster did not answer within {OPERATION_S:.0f} s") from None


@asynccontextmanager
async def in_one_line() -> AsyncIterator[None]:
    """Turn errors of clusters into one line. Raises OperationError."""
    try:
        yield
    except TimeoutError:
        raise
    except (CannotTell, ActionError, ClientError, RemotingError, BodyError, RecordError, OSError) as error:
        raise OperationError(str(error) or type(error).__name__) from error


@asynccontextmanager
async def _admin(source: Source, *, whole: bool = False) -> AsyncIterator[Admin]:
    """Broker groups without a master that answers are left out: pages name them. Raises CannotTell if all are.

    `whole`: raise OperationError then, for changes that concern every group.
    """
    async with source.target.clients() as c, Admin(c.name_servers, credentials=c.credentials, tls=c.tls) as admin:
        silent = await leave_out_silent(admin, c.groups)
        if silent and whole:
            raise OperationError(f"{'; '.join(silent)}. Nothing was changed")
        yield admin


def gantry(source: Source, *words: str) -> str:
    """Return the command that does the same, for this cluster."""
    return shlex.join(["gantry", *words, *source.command])


# Messages


async def find_by_key(source: Source, topic: str, key: str, filters: Filters, before: Place | None) -> Page:
    """Find messages by a key. Raises OperationError."""
    async with one_line_errors(), _admin(source) as admin:
        return await by_key(admin, topic, key, filters, before)


async def walk(source: Source, topic: str, filters: Filters, begin: Place | None, *, older: bool) -> Page:
    """Return a page of a topic, from `begin` on; None: from the newest message on. Raises OperationError."""
    async with one_line_errors(), _admin(source) as admin:
        return await Walk(AdminReader(admin, topic), filters, begin, older=older, search_s=SEARCH_S).page()


async def send(source: Source, message: Message) -> tuple[MessageQueue, int]:
    """Send a message. Returns its queue and offset. Raises OperationError, also when it was not acknowledged."""
    async with (
        one_line_errors(),
        source.target.clients() as c,
        Producer(c.name_servers, "gantry-console", credentials=c.credentials, tls=c.tls) as producer,
    ):
        by_key = bool(message.keys) and await is_by_key(producer.session, message.topic)
        sent = await producer.send(message, key=message.keys if by_key else None)
    if sent.status != SendStatus.SEND_OK:
        raise OperationError(f"stored as {sent.offset_id}, but not acknowledged: {sent.status.name}")
    return sent.queue, sent.queue_offset


async def find_by_id(source: Source, topic: str, message_id: str) -> list[ReceivedMessage]:
    """By the id of a producer within the topic, or by an offset id. Raises OperationError, ValueError."""
    async with one_line_errors(), _admin(source) as admin:
        return await by_id(admin, topic, message_id)


async def message_at(source: Source, topic: str, broker: str, queue: int, offset: int) -> ReceivedMessage | None:
    """Read one message by its place. Raises OperationError."""
    async with one_line_errors(), _admin(source) as admin:
        queues = [q for q in await admin.readable_queues(topic) if (q.broker, q.queue_id) == (broker, queue)]
        if not queues:
            return None
        result = await admin.puller().pull(queues[0], offset, subscription(topic, "*"), count=1, suspend_ms=0)
        return next((m for m in result.messages if m.queue_offset == offset), None)


# Dead letters


async def _letters_of(source: Source, group: str, count: int) -> list[ReceivedMessage]:
    letters: list[ReceivedMessage] = []
    async with one_line_errors():
        await read_letters(source.target, Choice(group, (), None, count, False), letters.append)
    return letters


async def letter(source: Source, group: str, message_id: str) -> ReceivedMessage | None:
    """Read one dead letter. Raises OperationError."""
    async with (
        one_line_errors(),
        source.target.clients() as c,
        DeadLetters(c.name_servers, credentials=c.credentials, tls=c.tls) as dead,
    ):
        await leave_out_silent(dead.admin, c.groups)
        letters = await dead.find(group, message_id)
        return letters[-1] if letters else None


async def resend(source: Source, group: str, ids: Sequence[str]) -> str:
    """Send some letters again. Returns a sentence. Raises OperationError. For all that wait: `resends.Resends`."""
    async with one_line_errors():
        result = await resend_letters(source.target, Choice(group, tuple(ids), None, None, False))
    if result["problem"]:
        raise OperationError(f"stopped after {result['sent']} letters: {result['problem']}")
    return f"{result['sent']} of {result['found']} dead letters were sent to {result['to']}"


async def export(source: Source, group: str) -> bytes:
    """Return a line of JSON for each letter, of the first `EXPORTED` ones. Raises OperationError."""
    letters = await _letters_of(source, group, EXPORTED)
    return "".join(exported(group, letter) for letter in letters).encode()


def exported(group: str, letter: ReceivedMessage) -> str:
    """As `gantry dlq read -o json` prints it."""
    return printable_json(json.dumps(letter_fields(group, letter), ensure_ascii=False)) + "\n"


# Offsets


async def preview_reset(source: Source, group: str, topic: str, to_ms: int) -> ResetPreview:
    """Return what a reset to this time (-1: the end) skips and repeats. Changes nothing. Raises OperationError."""
    async with one_line_errors(), _admin(source, whole=True) as admin:
        return await preview_offsets(admin, group, topic, to_ms)


async def reset(source: Source, group: str, topic: str, to_ms: int) -> str:
    """Move the offsets of a group. Raises OperationError."""
    async with one_line_errors(), _admin(source, whole=True) as admin:
        moved = await reset_offsets(admin, group, topic, to_ms)
    return f"{group} continues at the chosen place in {moved} queues of {topic}"


def reset_command(source: Source, group: str, topic: str, to_ms: int) -> str:
    """Return the command that does the same."""
    to = "latest" if to_ms < 0 else utc(to_ms)
    return gantry(source, "group", "reset", group, "--topic", topic, "--to", to, "--confirm")


# Subscriptions


@dataclass(frozen=True, slots=True)
class ClientSubscriptions:
    """What one client says that it subscribes to; `problem`: why it did not say."""

    client: str
    subscriptions: Mapping[str, str]
    problem: str = ""
    queues: Sequence[MessageQueue] = ()
    """Those that it holds."""


async def subscriptions_of(source: Source, group: str, clients: Sequence[str]) -> list[ClientSubscriptions]:
    """Ask each client, through the brokers. Raises OperationError."""
    async with one_line_errors(), _admin(source) as admin:
        masters = list((await admin.masters()).values())

        async def one(client: str) -> ClientSubscriptions:
            problem = "no broker group has a master"
            for address in masters:
                try:
                    state = await admin.client_state(address, group, client)
                    return ClientSubscriptions(client, state.subscriptions, queues=state.queues)
                except (BrokerError, RemotingError, BodyError) as error:
                    problem = str(error)
            return ClientSubscriptions(client, {}, problem)

        return list(await asyncio.gather(*map(one, clients)))
