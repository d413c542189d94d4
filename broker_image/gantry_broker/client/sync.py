"""The client for programs without asyncio: the same classes, and each call waits for its result.

with Producer("127.0.0.1:9876") as producer:
    producer.send("Orders", b"two apples", keys="4711")

with SimpleConsumer("127.0.0.1:9876", "billing") as consumer:
    consumer.subscribe("Orders")
    for message in consumer.receive():
        consumer.ack(message)

One event loop in a thread serves all clients of a process, so calls may come from any thread. A handler of `Consumer`
is a plain function and runs in a thread of its own. Ctrl-C ends the call that waits. Methods have the arguments,
results and errors of those in `gantry_broker.client`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from gantry_broker import client as aio
from gantry_broker.client import Message, ReceivedMessage, SendResult, TransactionState
from gantry_broker.client.deadletters import Page
from gantry_broker.protocol.fastjson import MessageQueue

P = ParamSpec("P")
T = TypeVar("T")
Client = TypeVar("Client")
Handler = Callable[[ReceivedMessage], object]
"""Handles one message. An exception, or False: the message comes again later."""


class Loop:
    """An event loop in a thread, started by the first call; a forked process gets one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="gantry-client", daemon=True).start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result. Raises RuntimeError in the thread of the loop, where nothing can wait."""
        loop = self._running()
        try:
            inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            inside = False
        if inside:
            work.close()
            raise RuntimeError("a callback of the client cannot wait for the client: use gantry_broker.client here")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: nothing waits for it any more.
            raise


LOOP: Final = Loop()


def _waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a client as one that waits for its result."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return LOOP.run(method(self.client, *args, **options))

    return call


class _Facade(Generic[Client]):
    client: Client
    """The client of `gantry_broker.client`. It belongs to the loop's thread."""
    kind: ClassVar[type[Any]]
    """Its class, whose arguments the constructor takes."""

    def __init_subclass__(cls) -> None:
        cls.__signature__ = inspect.signature(cls.kind)  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **options: Any) -> None:
        async def make() -> Client:
            client: Client = self.kind(*args, **options)
            return client

        self.client = LOOP.run(make())

    def start(self) -> None:
        """Connect; `with` does it, too."""
        LOOP.run(self.client.__aenter__())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Finish what is under way, and disconnect; `with` does it, too."""
        LOOP.run(self.client.__aexit__(None, None, None))  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Facade[aio.Producer]):
    """Sends messages. See `gantry_broker.client.Producer`."""

    kind: ClassVar[type[Any]] = aio.Producer
    send = _waiting(aio.Producer.send)
    send_batch = _waiting(aio.Producer.send_batch)
    send_oneway = _waiting(aio.Producer.send_oneway)
    recall = _waiting(aio.Producer.recall)
    queues = _waiting(aio.Producer.queues)


class Requester(Producer):
    """Sends requests and waits for replies. See `gantry_broker.client.Requester`."""

    kind: ClassVar[type[Any]] = aio.Requester
    request = _waiting(aio.Requester.request)


class TransactionProducer(Producer):
    """Sends messages that become visible with your own commit. See `gantry_broker.client.TransactionProducer`."""

    kind: ClassVar[type[Any]] = aio.TransactionProducer

    def __init__(
        self,
        name_servers: str,
        group: str,
        check: Callable[[ReceivedMessage], TransactionState],
        **options: Any,
    ) -> None:
        """`check`: a plain function that says what became of a message; it runs in a thread."""

        async def checked(message: ReceivedMessage) -> TransactionState:
            return await asyncio.to_thread(check, message)

        super().__init__(name_servers, group, checked, **options)

    def send_in_transaction(
        self, message: Message, work: Callable[[Message, str], TransactionState], *, timeout: float | None = None
    ) -> tuple[SendResult, TransactionState]:
        """Send, do `work` in a thread, and commit or roll back as it says."""

        async def worked(sent: Message, transaction: str) -> TransactionState:
            return await asyncio.to_thread(work, sent, transaction)

        client = self.client
        assert isinstance(client, aio.TransactionProducer)
        return LOOP.run(client.send_in_transaction(message, worked, timeout=timeout))


class Consumer(_Facade[aio.Consumer]):
    """Calls a function for each message. See `gantry_broker.client.Consumer`."""

    kind: ClassVar[type[Any]] = aio.Consumer
    _threads: ThreadPoolExecutor | None = None
    unsubscribe = _waiting(aio.Consumer.unsubscribe)
    commit = _waiting(aio.Consumer.commit)

    def subscribe(self, topic: str, handler: Handler, expression: str = "*", *, sql: bool = False) -> None:
        """Call `handler` in a thread for each message of the topic; `concurrency` of them at a time, at most."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.client.concurrency, "gantry-handler")
        threads = self._threads

        async def handled(message: ReceivedMessage) -> object:
            return await asyncio.get_running_loop().run_in_executor(threads, handler, message)

        LOOP.run(self.client.subscribe(topic, handled, expression, sql=sql))

    def close(self, patience_s: float = 10.0) -> None:
        """Wait up to `patience_s` seconds for handlers, commit, and disconnect."""
        LOOP.run(self.client.close(patience_s))
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def suspend(self) -> None:
        """Begin no further message until `resume`."""
        self._soon(self.client.suspend)

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._soon(self.client.resume)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this member reads."""
        return self._soon(lambda: self.client.assigned)

    @staticmethod
    def _soon(work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return LOOP.run(call())


class OrderedConsumer(Consumer):
    """One message of a queue at a time, in order. See `gantry_broker.client.OrderedConsumer`."""

    kind: ClassVar[type[Any]] = aio.OrderedConsumer


class PullConsumer(_Facade[aio.PullConsumer]):
    """Returns messages on request. See `gantry_broker.client.PullConsumer`."""

    kind: ClassVar[type[Any]] = aio.PullConsumer
    subscribe_to = _waiting(aio.PullConsumer.subscribe_to)
    unsubscribe = _waiting(aio.PullConsumer.unsubscribe)
    queues = _waiting(aio.PullConsumer.queues)
    assign = _waiting(aio.PullConsumer.assign)
    poll = _waiting(aio.PullConsumer.poll)
    seek = _waiting(aio.PullConsumer.seek)
    seek_to_begin = _waiting(aio.PullConsumer.seek_to_begin)
    seek_to_end = _waiting(aio.PullConsumer.seek_to_end)
    committed = _waiting(aio.PullConsumer.committed)
    commit = _waiting(aio.PullConsumer.commit)


class SimpleConsumer(_Facade[aio.SimpleConsumer]):
    """Receives messages on request and acknowledges each one. See `gantry_broker.client.SimpleConsumer`."""

    kind: ClassVar[type[Any]] = aio.SimpleConsumer
    subscribe = _waiting(aio.SimpleConsumer.subscribe)
    unsubscribe = _waiting(aio.SimpleConsumer.unsubscribe)
    receive = _waiting(aio.SimpleConsumer.receive)
    ack = _waiting(aio.SimpleConsumer.ack)
    ack_all = _waiting(aio.SimpleConsumer.ack_all)
    change_invisible_duration = _waiting(aio.SimpleConsumer.change_invisible_duration)


class Admin(_Facade[aio.Admin]):
    """The functions of mqadmin. See `gantry_broker.client.Admin`."""

    kind: ClassVar[type[Any]] = aio.Admin
    ask = _waiting(aio.Admin.ask)
    cluster_info = _waiting(aio.Admin.cluster_info)
    masters = _waiting(aio.Admin.masters)
    runtime_info = _waiting(aio.Admin.runtime_info)
    broker_config = _waiting(aio.Admin.broker_config)
    update_broker_config = _waiting(aio.Admin.update_broker_config)
    wipe_write_perm = _waiting(aio.Admin.wipe_write_perm)
    add_write_perm = _waiting(aio.Admin.add_write_perm)
    topics = _waiting(aio.Admin.topics)
    topic_route = _waiting(aio.Admin.topic_route)
    topic_attributes = _waiting(aio.Admin.topic_attributes)
    topic_config = _waiting(aio.Admin.topic_config)
    create_topic = _waiting(aio.Admin.create_topic)
    ensure_topic = _waiting(aio.Admin.ensure_topic)
    create_topic_at = _waiting(aio.Admin.create_topic_at)
    client_state = _waiting(aio.Admin.client_state)
    delete_topic = _waiting(aio.Admin.delete_topic)
    topic_stats = _waiting(aio.Admin.topic_stats)
    topic_consumers = _waiting(aio.Admin.topic_consumers)
    groups = _waiting(aio.Admin.groups)
    create_group = _waiting(aio.Admin.create_group)
    delete_group = _waiting(aio.Admin.delete_group)
    consume_stats = _waiting(aio.Admin.consume_stats)
    consumer_connections = _waiting(aio.Admin.consumer_connections)
    pops = _waiting(aio.Admin.pops)
    client_subscriptions = _waiting(aio.Admin.client_subscriptions)
    producer_connections = _waiting(aio.Admin.producer_connections)
    offset = _waiting(aio.Admin.offset)
    set_offset = _waiting(aio.Admin.set_offset)
    reset_offsets = _waiting(aio.Admin.reset_offsets)
    set_request_mode = _waiting(aio.Admin.set_request_mode)
    query = _waiting(aio.Admin.query)
    view = _waiting(aio.Admin.view)
    readable_queues = _waiting(aio.Admin.readable_queues)
    put_kv = _waiting(aio.Admin.put_kv)
    get_kv = _waiting(aio.Admin.get_kv)
    delete_kv = _waiting(aio.Admin.delete_kv)
    kv_table = _waiting(aio.Admin.kv_table)


class DeadLetters(_Facade[aio.DeadLetters]):
    """Counts, reads and resends dead letters. See `gantry_broker.client.DeadLetters`."""

    kind: ClassVar[type[Any]] = aio.DeadLetters
    groups = _waiting(aio.DeadLetters.groups)
    group = _waiting(aio.DeadLetters.group)
    find = _waiting(aio.DeadLetters.find)
    send_again = _waiting(aio.DeadLetters.send_again)
    topic_for = _waiting(aio.DeadLetters.topic_for)
    mark = _waiting(aio.DeadLetters.mark)

    def pages(self, group: str, *, waiting_only: bool = False) -> Iterator[Page]:
        """Yield the letters of a group, page by page."""
        pages = self.client.pages(group, waiting_only=waiting_only)

        async def following() -> Page | None:
            return await anext(pages, None)

        try:
            while (page := LOOP.run(following())) is not None:
                yield page
        finally:
            LOOP.run(pages.aclose())
