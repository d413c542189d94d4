"""`gantry produce` and `gantry consume`, with the project's own client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantry_broker.client import (
    Admin,
    BrokerError,
    ClientError,
    Consumer,
    FromWhere,
    InvalidMessage,
    Message,
    NoRoute,
    Producer,
    ReceivedMessage,
    SendStatus,
    Session,
)
from gantry_broker.client.message import check_topic
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, MASTER_ID, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.printable import printable
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import set_within

from gantry_operator.actions.message_fields import message_fields
from gantry_operator.actions.queue_choice import is_by_key
from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import json_text, note, print_json, say_incomplete
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import run_async
from gantry_operator.cluster.reach import CannotTell, leave_out_silent

AGAIN_S = 0.1
AUTO_GROUP: Final = "autoCreateSubscriptionGroup"
_MAKE: Final = "gantry topic list shows those that exist; create it with gantry topic create "


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The messages to send. Sizes in bytes, times in seconds."""

    topic: str
    count: int | None
    size: int
    file: Path | None
    tags: str
    keys: str
    in_flight: int
    patience: float
    body: str | None = None
    by_key: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def properties_of(written: Iterable[str]) -> dict[str, str]:
    """Properties from texts like name=value. Raises CliError."""
    properties = {}
    for text in written:
        name, given, value = text.partition("=")
        if not given or not name.strip():
            raise CliError(f"--property {text!r}: write NAME=VALUE", Exit.USAGE)
        properties[name.strip()] = value.strip()
    return properties


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The messages to read, and when to stop."""

    topic: str
    group: str
    count: int | None
    timeout: float | None
    tags: str
    from_last: bool
    quiet: bool


def run_produce(target: Target, options: ProduceOptions, as_json: bool) -> None:
    """Send messages. Raises CliError, after printing the counts, when a message was not acknowledged."""
    statuses: Counter[str] = Counter()
    try:
        result = run_async(_produce(target, options, statuses))
    except KeyboardInterrupt:
        note(f"interrupted: {statuses.total()} messages were acknowledged; those in flight may be stored, too")
        raise
    if as_json:
        print_json(result)
    else:
        states = ", ".join(f"{count} {name}" for name, count in result["statuses"].items())
        again = f", {result['resent']} sent again" if result["resent"] else ""
        note(f"{result['acknowledged']} messages in {result['seconds']} s ({result['perSecond']}/s): {states}{again}")
    if result["failed"]:
        raise CliError(f"{result['failed']} messages were not acknowledged; the first: {result['problem']}")


async def _produce(target: Target, options: ProduceOptions, statuses: Counter[str]) -> dict[str, Any]:
    state = {"failed": 0, "resent": 0}
    problem = ""
    hopeless = False
    """A message was given up, and none was acknowledged since: each further message would wait as long."""
    started = time.monotonic()
    take = _taking(options)
    numbers = itertools.count()
    async with (
        target.clients() as c,
        Producer(c.name_servers, "gantry-cli", credentials=c.credentials, tls=c.tls) as producer,
    ):
        await _writable_topic(producer.session, c.groups, options.topic)
        by_key = options.by_key or bool(options.keys and await is_by_key(producer.session, options.topic))
        # Two keys may share one: it only makes a message wait.
        one_of_key = [asyncio.Lock() for _ in range(4 * options.in_flight)]
        with Progress(f"sending to {options.topic}", options.count) as progress:

            async def send_some() -> None:
                nonlocal problem, hopeless
                # All senders take messages from one source.
                while (body := await take()) is not None:
                    keys = options.keys.replace("{n}", str(next(numbers)))
                    deletes = bool(keys) and not body
                    message = Message(options.topic, body, options.tags, keys, options.properties, deletes_key=deletes)
                    key = keys if by_key and keys else None
                    in_turn = contextlib.nullcontext() if key is None else one_of_key[hash(key) % len(one_of_key)]
                    try:
                        async with in_turn:
                            status, tries = await _send(producer, message, 0 if hopeless else options.patience, key)
                    except (ClientError, RemotingError) as error:
                        state["failed"] += 1
                        problem = problem or str(error)
                        hopeless = not _refused_for_good(error)
                    else:
                        hopeless = status != SendStatus.SEND_OK
                        statuses[status.name] += 1
                        state["resent"] += tries - 1
                    progress.advance()

            await asyncio.gather(*(send_some() for _ in range(options.in_flight)))
    seconds = time.monotonic() - started
    done = sum(statuses.values())
    return {
        "topic": options.topic,
        "acknowledged": done,
        "statuses": dict(statuses),
        "failed": state["failed"],
        "resent": state["resent"],
        "seconds": round(seconds, 3),
        "perSecond": round(done / seconds) if seconds else 0,
        "problem": problem,
    }


def _taking(options: ProduceOptions) -> Callable[[], Awaitable[bytes | None]]:
    """Return what gives the next body; None: there is none any more."""
    bodies = iter(_bodies(options))
    turn = asyncio.Lock()

    async def take() -> bytes | None:
        if options.count is not None:
            return next(bodies, None)
        # The next line of a pipe may come in an hour, so the lines so far are sent meanwhile.
        async with turn:
            return await asyncio.to_thread(next, bodies, None)

    return take


async def _readable_topic(session: Session, groups: Mapping[str, str], topic: str) -> None:
    """Refuse a topic that does not exist. Raises CliError, and CannotTell when no broker group answers."""
    check_topic(topic)
    if await session.route(topic, fresh=True) is not None:
        return
    silent = await leave_out_silent(Admin(session), groups)
    if silent:
        raise CliError(f"no broker group that answers has the topic {topic}; {'; '.join(silent)}")
    raise CliError(f"there is no topic {topic}: {_MAKE}{topic}")


async def _say_silent(session: Session, groups: Mapping[str, str]) -> None:
    """Say which broker groups may have more messages: their masters do not answer."""
    try:
        silent = await leave_out_silent(Admin(session), groups)
    except (CannotTell, ClientError, RemotingError) as error:
        silent = [str(error)]
    for sentence in silent:
        say_incomplete(sentence)


async def _writable_topic(session: Session, groups: Mapping[str, str], topic: str) -> None:
    """Refuse a topic that does not exist and that no broker creates. Raises CliError.

    What cannot be told now is left to the sends, which have patience for a failover.
    """
    check_topic(topic)
    try:
        if await session.route(topic, fresh=True) is not None:
            return
        if await session.route(AUTO_CREATE_TOPIC, fresh=True) is not None:
            return
        silent = await leave_out_silent(Admin(session), groups)
    except (CannotTell, ClientError, RemotingError):
        return
    if not silent:
        raise CliError(f"there is no topic {topic}, and brokers create none: {_MAKE}{topic}")


async def _usable_group(session: Session, options: ConsumeOptions) -> None:
    """Refuse a consumer group that does not exist and that brokers do not create. Raises CliError."""
    admin = Admin(session)
    for broker in (await admin.topic_route(options.topic)).brokers:
        address = broker.addresses.get(MASTER_ID)
        try:
            if address is None or (await admin.broker_config(address)).get(AUTO_GROUP) != "false":
                continue
            exists = options.group in await admin.groups(address)
        except (BrokerError, RemotingError, BodyError):
            continue  # The consumer says what is wrong with this broker.
        if not exists:
            raise CliError(
                f"there is no consumer group {options.group} on {broker.name}, and brokers create none: "
                f"gantry group create {options.group}"
            )


def _refused_for_good(error: Exception) -> bool:
    """Return whether no repetition of a send succeeds, and sends of other messages may."""
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.MESSAGE_ILLEGAL
    return isinstance(error, InvalidMessage)


async def _send(producer: Producer, message: Message, patience: float, key: str | None) -> tuple[SendStatus, int]:
    """Send until acknowledged (SEND_OK), or for `patience` seconds; then return the last result. Also returns the
    number of tries. `key` selects the queue. Raises the last exception of the client.
    """
    deadline = time.monotonic() + patience
    tries = 0
    while True:
        tries += 1
        try:
            result = await producer.send(message, key=key)
        except (NoRoute, BrokerError, ClientError, RemotingError) as error:
            if _refused_for_good(error) or time.monotonic() >= deadline:
                raise
        else:
            if result.status == SendStatus.SEND_OK or time.monotonic() >= deadline:
                return result.status, tries
        await asyncio.sleep(AGAIN_S)


def _bodies(options: ProduceOptions) -> Iterable[bytes]:
    if options.body is not None:
        return [options.body.encode()]
    if options.count is not None:
        return _numbered(options.count, options.size)
    if options.file is None:
        return _lines(sys.stdin.buffer)
    try:
        return _lines(open(options.file, "rb"))
    except OSError as error:
        raise CliError(f"{options.file} cannot be read: {error.strerror}", Exit.USAGE) from None


def _numbered(count: int, size: int) -> Iterator[bytes]:
    """Distinct bodies: a number, padded to the size."""
    for number in range(count):
        yield f"{number} ".encode()[:size].ljust(size, b".")


def _lines(stream: Any) -> Iterator[bytes]:
    with stream:
        for line in stream:
            body = line.rstrip(b"\r\n")
            if body:
                yield body


def run_consume(target: Target, options: ConsumeOptions, as_json: bool) -> None:
    """Read messages. Raises CliError when fewer than `count` arrived in time, BrokenPipeError when the reader closed
    stdout.
    """
    seen = 0
    unwritten: list[Exception] = []

    def show(message: ReceivedMessage) -> bool:
        nonlocal seen
        if unwritten:
            return False
        try:
            if not options.quiet:
                sys.stdout.write(json_text(message_fields(message)) + "\n" if as_json else _as_text(message))
                sys.stdout.flush()
        except Exception as error:  # Whatever prevents it: what was not shown is not consumed.
            unwritten.append(error)
            return False
        seen += 1
        return True

    try:
        run_async(_consume(target, options, show))
    except KeyboardInterrupt:
        note(f"{seen} messages")
        raise
    for error in unwritten:
        if isinstance(error, BrokenPipeError):
            raise error
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CliError(f"received messages cannot be written to stdout: {why}")
    if options.quiet and as_json:
        print_json({"topic": options.topic, "group": options.group, "messages": seen})
    else:
        note(f"{seen} messages")
    if options.count is not None and seen < options.count:
        raise CliError(
            f"{seen} of {options.count} messages came, then nothing for {options.timeout:g} s", Exit.NOT_IN_TIME
        )


async def _consume(target: Target, options: ConsumeOptions, show: Callable[[ReceivedMessage], bool]) -> None:
    left = options.count
    seen = 0
    done, closing = asyncio.Event(), asyncio.Event()
    last = time.monotonic()

    async def handle(message: ReceivedMessage) -> bool:
        nonlocal left, seen, last
        if left == 0 or not show(message):
            # Not processed: the client neither commits it nor sends it back, so the group's next consumer gets it.
            done.set()
            await closing.wait()
            return False
        last = time.monotonic()
        seen += 1
        if left is not None:
            left -= 1
            if left == 0:
                done.set()
        return True

    where = FromWhere.LAST if options.from_last else FromWhere.FIRST
    async with target.clients() as c:
        consumer = Consumer(c.name_servers, options.group, from_where=where, credentials=c.credentials, tls=c.tls)
        await consumer.start()
        try:
            await _readable_topic(consumer.session, c.groups, options.topic)
            await _usable_group(consumer.session, options)
            last = time.monotonic()  # The time for the questions above is none without a message.
            await consumer.subscribe(options.topic, handle, options.tags)
            with Progress(f"reading {options.topic}", options.count, shown=options.quiet) as progress:
                shown = 0
                while not done.is_set():
                    if options.timeout is not None and time.monotonic() - last > options.timeout:
                        await _say_silent(consumer.session, c.groups)
                        break
                    await set_within(done, 0.1)
                    progress.advance(seen - shown)
                    shown = seen
        finally:
            closing.set()
            await consumer.close(0.2)


def _as_text(message: ReceivedMessage) -> str:
    return printable(message.body.decode(errors="replace"), keep="\t") + "\n"
