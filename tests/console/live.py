"""A cluster of real processes with producers, consumers and dead letters, and `gantry console` before it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gantry_broker.client import ClientError, Consumer, FromWhere, Message, Producer, ReceivedMessage
from gantry_broker.remoting.errors import RemotingError

from tests.local.cluster import Cluster, running
from tests.local.test_dlq import kill_messages

ORDER = b'{"order": 4711, "items": ["apples", "pears"], "price": 12.5}'
LETTERS = 3
SEND_EVERY_S = 0.02


class Traffic:
    """Sends orders and reads them, in a thread. Two members of `mixed` subscribe to different tags."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        async def take(message: ReceivedMessage) -> None:
            return None

        def consumer(group: str) -> Consumer:
            return Consumer(self._servers, group, from_where=FromWhere.FIRST, rebalance_s=0.5)

        async with Producer(self._servers, "shop") as producer, contextlib.AsyncExitStack() as stack:
            await producer.send(Message("Orders", ORDER, tags="fruit", keys="order-4711"))
            for group, tags in (("billing", "*"), ("mixed", "fruit"), ("mixed", "meat")):
                made = await stack.enter_async_context(consumer(group))
                await made.subscribe("Orders", take, tags)
            self._ready.set()
            while not self._stop.is_set():
                with contextlib.suppress(ClientError, RemotingError):
                    await producer.send(Message("Orders", ORDER, tags="fruit"))
                await asyncio.sleep(SEND_EVERY_S)

    def __enter__(self) -> Traffic:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


class LiveConsole:
    """The cluster, and the link that the command printed."""

    def __init__(self, cluster: Cluster, link: str) -> None:
        self.cluster = cluster
        self.link = link
        self.base = f"{link.partition('/?')[0]}/c/local/{cluster.name}"


@contextmanager
def console_of(cluster: Cluster, *choice: str) -> Iterator[LiveConsole]:
    """Run `gantry console` for the cluster. `choice`: options that choose it; none: its folder."""
    command = [
        sys.executable,
        "-m",
        "gantry_operator.cli",
        "console",
        *(choice or ("--dir", str(cluster.folder.root))),
        "--no-browser",
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=cluster.environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:"), link
        yield LiveConsole(cluster, link)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def live_console(folder: Path) -> Iterator[LiveConsole]:
    """A group of three members with a proxy, traffic and dead letters, and its console."""
    with running(Cluster(folder, proxy={"replicas": 1})) as cluster:
        # In a thread: the driver of the browser has the event loop of this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(kill_messages(cluster, "refunds", "Refunds", LETTERS))).result()
        with Traffic(cluster.name_servers), console_of(cluster) as console:
            yield console
