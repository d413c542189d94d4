"""A real broker with its NameServer in the process of a test: the same code as in production, on free ports.

`with broker() as mq:` starts both in a thread with an event loop of its own, so it serves blocking clients as well as
asyncio, and `async with broker() as mq:` works too. `mq.name_servers` is the address for clients. With `grpc=True` a
proxy serves clients of RocketMQ 5 at `mq.grpc`. `gantry_broker.pytest_plugin` has fixtures.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop

from gantry_broker.broker.process import BrokerProcess
from gantry_broker.client import Admin, NoRoute
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import NameServerSettings
from gantry_broker.proxy.config import ProxyConfig
from gantry_broker.proxy.process import Proxy
from gantry_broker.settings import BrokerSettings

HOST: Final = "127.0.0.1"
CLUSTER: Final = "test"
GROUP: Final = "test"
START_S: Final = 20.0
STOP_S: Final = 20.0
TRIES: Final = 5
"""Starts with other ports, if another program takes a chosen one."""
LISTEN_TRIES: Final = 300
LISTEN_S: Final = 0.01
"""Seconds between two of them."""
SETTINGS: Final[dict[str, Any]] = {
    # Small files: a test writes little.
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 300_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    "defaultTopicQueueNums": 4,
    "enablePropertyFilter": True,
    "registerNameServerPeriod": 1_000,
}
"""What differs from a broker's defaults."""
T = TypeVar("T")
_number = itertools.count(1)


class StartFailed(RuntimeError):
    """The broker did not start. The text is the reason."""


def broker(*, grpc: bool = False, data_dir: Path | None = None, **settings: Any) -> LocalBroker:
    """Return a broker that is not started yet: use it in a `with` or `async with`.

    `grpc`: a proxy, too. `data_dir`: the folder of its store, which stays;
    without one the store is in a temporary folder and goes with the broker. `settings`: broker settings under
    RocketMQ's names, as `spec.broker` of a cluster has them. Raises pydantic.ValidationError.
    """
    return LocalBroker(BrokerSettings.model_validate(SETTINGS | settings), grpc, data_dir)


def free_port() -> int:
    """Return a port that no one listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class LocalBroker:
    """One NameServer, one broker group of one member, and perhaps a proxy."""

    def __init__(self, settings: BrokerSettings, grpc: bool, data_dir: Path | None) -> None:
        self.name_servers = ""
        """host:port for clients of the remoting protocol."""
        self.grpc = ""
        """host:port for gRPC clients, in clear text; empty: there is no proxy."""
        self.ready_s = 0.0
        """Seconds that the start took."""
        self._settings = settings
        self._wants_grpc = grpc
        self._data_dir = data_dir
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: AsyncExitStack | None = None
        self._folder: Path | None = None

    # ---- life cycle

    def start(self) -> Self:
        """Start it. Raises StartFailed."""
        if self._thread is not None:
            raise StartFailed("it runs already: leave the first `with` before another")
        begun = time.monotonic()
        loop = self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="gantry-test-broker", daemon=True)
        self._thread.start()
        try:
            self._call(self._start(), START_S)
        except BaseException as error:
            self.stop()
            raise StartFailed(f"the broker did not start: {error or type(error).__name__}") from error
        self.ready_s = time.monotonic() - begun
        return self

    def stop(self) -> None:
        """Stop it and delete its temporary folder. A broker that does not run stays as it is."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._call(self._stop(), STOP_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._loop = self._thread = None
            self.name_servers = self.grpc = ""
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # ---- what tests need besides a client

    def create_topic(self, topic: str = "", queues: int = 4) -> str:
        """Create a topic and return its name. Without a name it gets one that no other test has."""
        name = topic or f"test-{next(_number)}-{time.time_ns() % 1_000_000_007}"
        self._call(self._create_topic(name, queues), START_S)
        return name

    def new_group(self) -> str:
        """Return the name of a consumer or producer group that no other test has."""
        return f"group-{next(_number)}-{time.time_ns() % 1_000_000_007}"

    def count(self, topic: str) -> int:
        """Return the messages that a topic has now, read or not; 0: there is no such topic."""
        return self._call(self._count(topic), START_S)

    # ---- in the broker's own thread

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run it in the broker's thread, whatever thread or event loop this is called from."""
        if self._loop is None:
            work.close()
            raise StartFailed("the broker does not run: use it in a `with` or `async with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _start(self) -> None:
        self._folder = None if self._data_dir is not None else Path(tempfile.mkdtemp(prefix="gantry-test-"))
        for last in (*[False] * (TRIES - 1), True):
            async with AsyncExitStack() as stack:
                try:
                    await self._start_parts(stack)
                except OSError:
                    if last:
                        raise
                    continue
                self._running = stack.pop_all()
                return

    async def _start_parts(self, stack: AsyncExitStack) -> None:
        servers = NameServerSettings("test-namesrv", HOST, 0, cluster=CLUSTER, registration_port=0)
        name_server = await stack.enter_async_context(NameServer(servers))
        port, address = free_port(), f"{HOST}:{free_port()}"
        folder = self._data_dir or self._folder
        assert folder is not None
        config = BrokerConfig(
            cluster=CLUSTER,
            group=GROUP,
            member=0,
            name=f"{GROUP}-0",
            data_dir=folder,
            listen_host=HOST,
            port=port,
            http_port=0,
            group_port=int(address.rpartition(":")[2]),
            member_address=f"{HOST}:{port}",
            group_address=address,
            name_servers=[f"{HOST}:{name_server.port}"],
            registration_addresses=[f"{HOST}:{name_server.registration_port}"],
            settings=self._settings,
        )
        process = await stack.enter_async_context(BrokerProcess(config))
        replication = process.broker.replication
        leadership = LeadershipRecord(replication.epoch, replication.epoch).promoted(replication.me, [replication.me])
        answer = await replication.assign(Assignment(leadership, config.member_address))
        if not answer.accepted:
            raise StartFailed(f"it does not lead its group: {answer}")
        while not _registered(name_server):  # noqa: ASYNC110 - it has no event for that
            await asyncio.sleep(0.002)
        await _listens(config.group_port)
        self.name_servers = f"{HOST}:{name_server.port}"
        if self._wants_grpc:
            self.grpc = await self._start_proxy(stack)

    async def _start_proxy(self, stack: AsyncExitStack) -> str:
        config = ProxyConfig(
            cluster=CLUSTER, name="test-proxy", name_servers=[self.name_servers], listen_host=HOST, port=0, drain_s=0
        )
        proxy = await stack.enter_async_context(Proxy(config))
        return f"{HOST}:{proxy.port}"

    async def _stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()
        # Its temporary folder is deleted next: no thread may still write there.
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _create_topic(self, name: str, queues: int) -> None:
        async with Admin(self.name_servers) as admin:
            await admin.create_topic(name, queues=queues)

    async def _count(self, topic: str) -> int:
        async with Admin(self.name_servers) as admin:
            try:
                stats = await admin.topic_stats(topic)
            except NoRoute:
                return 0
        return sum(queue.max_offset - queue.min_offset for queue in stats.values())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _listens(port: int | None) -> None:
    """Wait until the group's port takes connections: it opens a moment after the registration, or another program has
    taken it meanwhile. Raises OSError.
    """
    for last in (*[False] * LISTEN_TRIES, True):
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            if last:
                raise
            await asyncio.sleep(LISTEN_S)
        else:
            writer.close()
            return


def _registered(name_server: NameServer) -> bool:
    group = name_server.service.routes.groups.get(GROUP)
    return group is not None and 0 in group.entries
