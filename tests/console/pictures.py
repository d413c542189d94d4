"""`python -m tests.console.pictures [--minutes 6]`: draw docs/console/*.png from a real cluster.

Runs a cluster with producers, consumers and dead letters, kills its master, and photographs pages of `gantry console`
in Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gantry_broker.client import ClientError, Consumer, FromWhere, Message, Producer, ReceivedMessage
from gantry_broker.remoting.errors import RemotingError
from playwright.sync_api import Page

from tests.console.browser import browser, overflow, person
from tests.console.live import LiveConsole, console_of
from tests.local.cluster import Cluster, running

FOLDER: Final = Path(__file__).parents[2] / "docs" / "console"
TOPICS: Final = {"orders": 24.0, "payments": 15.0, "shipments": 7.0, "returns": 1.2}
"""Messages a second."""
GROUPS: Final = {
    "billing": ("orders", 0.004), "search-index": ("orders", 0.06), "ledger": ("payments", 0.005),
    "tracking": ("shipments", 0.01), "reporting": ("payments", 0.02),
}  # fmt: skip
"""By group: its topic and the seconds that its members work on a message."""
DRAWN: Final = {
    # picture: page, width, height, colours
    "overview": ("", 1280, 1000, "light"),
    "members-dark": ("/members", 1280, 640, "dark"),
    "messages": ("/messages?topic=orders", 1280, 760, "light"),
    "dead": ("/dead/refunds", 1280, 560, "light"),
    "reset": ("/groups/billing/reset?topic=orders&end=true", 1280, 820, "light"),
    "phone": ("", 400, 860, "light"),
}


def body(number: int, topic: str) -> bytes:
    items = [{"sku": f"A-{number % 37:03d}", "count": 1 + number % 3}]
    made = {"order": number, "customer": f"c-{number % 211}", "items": items, "topic": topic, "total": 19.9}
    return json.dumps(made).encode()


class Shop:
    """Sends and reads until its end, in a thread with an event loop of its own."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _send(self, producer: Producer, topic: str, rate: float) -> None:
        number = 4700
        while not self._stop.is_set():
            number += 1
            with contextlib.suppress(ClientError, RemotingError):
                await producer.send(Message(topic, body(number, topic), tags="web", keys=f"{topic}-{number}"))
            await asyncio.sleep(random.expovariate(rate))

    async def _run(self) -> None:
        async with Producer(self._servers, "shop") as producer, contextlib.AsyncExitStack() as stack:
            for topic in TOPICS:
                await producer.send(Message(topic, body(4700, topic), tags="web", keys=f"{topic}-4700"))
            for group, (topic, work_s) in GROUPS.items():

                async def take(message: ReceivedMessage, work_s: float = work_s) -> None:
                    await asyncio.sleep(work_s)

                for tags in ("*", "web") if group == "search-index" else ("*", "*"):
                    made = await stack.enter_async_context(
                        Consumer(self._servers, group, from_where=FromWhere.FIRST, rebalance_s=1)
                    )
                    await made.subscribe(topic, take, tags)

            async def refuse(message: ReceivedMessage) -> bool:
                return False

            refunds = await stack.enter_async_context(
                Consumer(self._servers, "refunds", from_where=FromWhere.FIRST, max_retries=0, rebalance_s=1)
            )
            await refunds.subscribe("returns", refuse)
            await asyncio.gather(*(self._send(producer, topic, rate) for topic, rate in TOPICS.items()))

    def __enter__(self) -> Shop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def photograph(page: Page, base: str, target: Path, shown: tuple[str, int, int, Any]) -> None:
    path, width, height, colours = shown
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    page.goto(base + path)
    page.wait_for_timeout(3000)
    assert overflow(page) == 0, path
    page.screenshot(path=target)


@contextmanager
def busy() -> Iterator[LiveConsole]:
    """A cluster under load and its console."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Cluster(Path(folder), name="demo")) as cluster,
        Shop(cluster.name_servers),
        console_of(cluster, "--cluster", cluster.name) as console,
    ):
        yield console


def main(minutes: float, folder: Path) -> None:
    with busy() as console, browser() as made, person(made, console.link) as page:
        base = console.base
        ends = time.monotonic() + minutes * 60
        page.wait_for_timeout(minutes * 60_000 * 0.7)
        os.kill(int(console.cluster.master()["pid"]), signal.SIGKILL)
        while time.monotonic() < ends:
            page.wait_for_timeout(1000)
        for name, shown in DRAWN.items():
            photograph(page, base, folder / f"{name}.png", shown)
        page.goto(f"{base}/messages?topic=orders&key=orders-4731")
        page.get_by_role("region", name="Messages").get_by_role("link").first.click()
        photograph(page, page.url, folder / "message.png", ("", 1280, 1000, "light"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    main(options.minutes, options.folder)
