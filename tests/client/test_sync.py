"""The client for programs without asyncio, against a real broker."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from gantry_broker import client as aio
from gantry_broker.client import FromWhere, Message, NoRoute, ReceivedMessage, SendStatus, TransactionState, sync
from gantry_broker.testing import LocalBroker, broker

NAMES = (
    "Admin", "Consumer", "DeadLetters", "OrderedConsumer", "Producer", "PullConsumer", "Requester", "SimpleConsumer",
    "TransactionProducer",
)  # fmt: skip
CLASSES = [getattr(sync, name) for name in NAMES]
INNER = {
    "call", "send_reply", "send_stored", "forward", "handle", "reset_offsets", "subscribe",
}  # fmt: skip
"""Coroutines of the asyncio client that are for its own parts, or have another form here."""


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with broker() as made:
        yield made


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_coroutine_of_the_client_has_a_method_that_waits(kind: type) -> None:
    names = {n for n, m in inspect.getmembers(kind.kind, inspect.iscoroutinefunction) if not n.startswith("_")}  # type: ignore[attr-defined]
    ours = {n for n, m in inspect.getmembers(kind, callable) if not n.startswith("_")}
    assert names - INNER <= ours
    assert str(inspect.signature(kind.kind)) == str(inspect.signature(kind)) or kind is sync.TransactionProducer  # type: ignore[attr-defined]


def test_every_class_of_the_asyncio_client_with_coroutines_is_here() -> None:
    found = {
        name for name in aio.__all__
        if inspect.isclass(kind := getattr(aio, name)) and hasattr(kind, "__aenter__") and name != "Session"
    }  # fmt: skip
    assert found == {kind.__name__ for kind in CLASSES}


def test_messages_are_sent_and_received_from_several_threads(mq: LocalBroker) -> None:
    got: list[bytes] = []
    failed: list[bytes] = []

    def handle(message: ReceivedMessage) -> bool:
        if message.body == b"7" and message.reconsume_times == 0:
            failed.append(message.body)
            return False
        got.append(message.body)
        return True

    with sync.Producer(mq.name_servers) as producer:
        threads = [
            threading.Thread(target=lambda n=n: producer.send("Sync", b"%d" % n, keys=f"k{n}"))  # type: ignore[misc]
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with sync.Consumer(mq.name_servers, "sync", from_where=FromWhere.FIRST) as consumer:
            consumer.subscribe("Sync", handle)
            until(lambda: len(got) >= 19)
            assert {q for q in consumer.assigned if q.topic == "Sync"} == set(producer.queues("Sync"))
        assert failed == [b"7"]
        with sync.SimpleConsumer(mq.name_servers, "simple") as simple:
            simple.subscribe("Sync")
            seen: set[bytes] = set()
            while len(seen) < 20:
                for message in simple.receive(wait_s=5):
                    seen.add(message.body)
                    simple.ack(message)
        with sync.PullConsumer(mq.name_servers, "pull", from_where=FromWhere.FIRST) as pull:
            pull.subscribe_to("Sync")
            pulled: set[bytes] = set()
            until(lambda: pulled.update(m.body for m in pull.poll(1.0)) or len(pulled) == 20)
    with sync.Admin(mq.name_servers) as admin:
        assert "Sync" in admin.topics()
        assert [m.body for m in admin.query("Sync", "k3")] == [b"3"]
    with pytest.raises(NoRoute), sync.Admin(mq.name_servers) as admin:
        admin.topic_route("Nothing")


def test_work_of_a_transaction_is_a_plain_function(mq: LocalBroker) -> None:
    def work(message: Message, transaction: str) -> TransactionState:
        assert threading.current_thread() is not threading.main_thread()
        return TransactionState.COMMIT

    with sync.TransactionProducer(mq.name_servers, "tx", lambda m: TransactionState.COMMIT) as producer:
        sent, state = producer.send_in_transaction(Message("Tx", b"paid"), work)
    assert (sent.status, state) == (SendStatus.SEND_OK, TransactionState.COMMIT)


def test_a_call_in_the_thread_of_the_loop_is_refused_and_does_not_hang(mq: LocalBroker) -> None:
    with sync.Producer(mq.name_servers) as producer:

        async def inside() -> str:
            with pytest.raises(RuntimeError, match="cannot wait for the client"):
                producer.send("T", b"x")
            return "done"

        assert sync.LOOP.run(inside()) == "done"

        async def another_loop() -> SendStatus:
            return producer.send("T", b"x").status  # it blocks this loop, not the client's

        assert asyncio.run(another_loop()) is SendStatus.SEND_OK


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_call_that_waits(mq: LocalBroker) -> None:
    with sync.Admin(mq.name_servers) as admin:
        admin.create_topic("Empty")
    with sync.SimpleConsumer(mq.name_servers, "interrupted") as consumer:
        consumer.subscribe("Empty")
        assert consumer.receive(wait_s=0.1) == []
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(wait_s=60)
        assert time.monotonic() - before < 30
        timer.join()


def test_a_forked_process_has_a_loop_of_its_own(mq: LocalBroker) -> None:
    with sync.Producer(mq.name_servers) as producer:
        producer.send("T", b"parent")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            with sync.Producer(mq.name_servers) as mine:
                os.write(writing, mine.send("T", b"child").status.name.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "SEND_OK"
    os.waitpid(child, 0)
