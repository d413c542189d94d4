"""`gantry_broker.testing` and the pytest plugin, as the tests of an application use them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from gantry_broker.client import Consumer, FromWhere, Producer
from gantry_broker.testing import LocalBroker, StartFailed, broker
from pydantic import ValidationError

from tests.client.cluster import Inbox
from tests.support.grpc_client import GrpcClient


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with broker(grpc=True) as running:
        yield running


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_asyncio_clients_of_another_event_loop(mq: LocalBroker) -> None:
    topic = mq.create_topic()
    inbox = Inbox()
    async with Producer(mq.name_servers) as producer:
        for i in range(10):
            await producer.send(topic, b"%d" % i)
    async with Consumer(mq.name_servers, mq.new_group(), from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe(topic, inbox)
        await inbox.wait(10)
    assert inbox.bodies == sorted(b"%d" % i for i in range(10))
    assert mq.count(topic) == 10
    assert mq.count("no-such-topic") == 0


def test_grpc_clients(mq: LocalBroker) -> None:
    topic, group = mq.create_topic(), mq.new_group()
    with GrpcClient(mq.grpc) as client:
        sent = {client.send(topic, b"%d" % i) for i in range(10)}
        found = []
        while len(found) < 10:
            more = client.receive(topic, group)
            assert more
            for message in more:
                client.ack(topic, group, message)
            found += more
        assert {m.system_properties.message_id for m in found} == sent


def test_topics_and_groups_have_new_names(mq: LocalBroker) -> None:
    assert len({mq.create_topic() for _ in range(3)} | {mq.new_group() for _ in range(3)}) == 6
    assert mq.create_topic("Orders", queues=2) == "Orders"


ALONE = """
import sys, threading, time
from importlib.metadata import entry_points
from pathlib import Path
from gantry_broker.testing import StartFailed, broker

threads = set(threading.enumerate())
running = broker({settings})
try:
    running.start()
    folder = running._folder
    {during}
    running.stop()
    assert not folder.exists()
except StartFailed as error:
    print(error)
ends = time.monotonic() + 10
while (left := set(threading.enumerate()) - threads) and time.monotonic() < ends:
    time.sleep(0.05)  # A thread counts until it has ended.
assert not left, left
print("nothing is left")
"""


def alone(during: str = "", settings: str = "") -> str:
    """What a broker prints in a process of its own: the broker of this session starts threads in this one."""
    script = ALONE.format(during=during, settings=settings)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing is left\n")
    return done.stdout


@pytest.mark.parametrize("during", ["pass", "time.sleep(2.5)  # A thread beside the event loop works by then."])
def test_no_thread_stays_behind(during: str) -> None:
    alone(during)


def test_nothing_stays_behind() -> None:
    running = broker()
    with running as mq:
        servers, folder = mq.name_servers, running._folder
        assert answers(servers)
        assert mq.grpc == ""
        assert 0 < mq.ready_s < 60, "a loaded machine; alone it takes a third of a second"
        with pytest.raises(StartFailed, match="runs already"):
            running.start()
    assert not answers(servers)
    assert folder is not None
    assert not folder.exists()
    with pytest.raises(StartFailed, match="does not run"):
        running.create_topic()


async def test_a_store_of_a_given_folder_stays(tmp_path: Path) -> None:
    async with broker(data_dir=tmp_path) as first:
        topic = first.create_topic()
        async with Producer(first.name_servers) as producer:
            await producer.send(topic, b"kept")
    async with broker(data_dir=tmp_path) as second:
        assert await asyncio.to_thread(second.count, topic) == 1


def test_bad_settings_are_refused_before_the_start() -> None:
    with pytest.raises(ValidationError, match="maxMessageSize"):
        broker(maxMessageSize=1)
    with pytest.raises(ValidationError, match="no_such_setting"):
        broker(no_such_setting=1)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_text("a file where a folder belongs")
    assert "did not start" in alone(settings=f"data_dir=Path({str(tmp_path)!r})")


TESTS = """
import asyncio
from gantry_broker.client import Producer

def test_sync(gantry_broker):
    assert gantry_broker.create_topic()
    assert bool(gantry_broker.grpc) == {grpc}

def test_the_same_one(gantry_broker):
    async def send():
        async with Producer(gantry_broker.name_servers) as producer:
            return (await producer.send(gantry_broker.create_topic(), b"x")).status.name
    assert asyncio.run(send()) == "SEND_OK"

def test_a_new_one(gantry_broker, fresh_gantry_broker):
    assert fresh_gantry_broker.name_servers != gantry_broker.name_servers
"""


@pytest.mark.parametrize("grpc", [False, True])
def test_the_plugin(tmp_path: Path, grpc: bool) -> None:
    """In a process of its own. The plugin is named where the package is not installed, which has an entry point."""
    (tmp_path / "test_app.py").write_text(TESTS.format(grpc=grpc))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ngantry_grpc = {str(grpc).lower()}\n")
    installed = entry_points(group="pytest11", name="gantry")
    named = [] if installed else ["-p", "gantry_broker.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *named, "test_app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
