"""Measures the console's page of messages before a topic of ten million messages, by HTTP as a browser reads it.

    python -m benchmarks.console_messages                        # 10,000,000 messages of 100 bytes in 8 queues
    python -m benchmarks.console_messages --messages 100000      # the same pages before a small topic

`gantry up` runs one group of one member, and `gantry console` reads it. The messages are sent as batches: all have a
key, one in 100,000 has the tag `rare`, the property `color=red` and the text `needle`, and the very first one has the
tag `first`. Then each page is opened: the newest 50, older and newer ones by the page's own links, a time jump to the
middle and to the beginning, and each filter, with what follows from it by "Older". A line for each page: its
milliseconds (median and longest of the rounds), its rows, and the messages that a search looked at.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from gantry_broker.protocol.message import BatchItem, encode_batch

from benchmarks.backlog import QUEUES, make_topic, send
from benchmarks.rig.gantry import Cluster
from benchmarks.rig.processes import exit_on_sigterm

TOPIC = "Orders"
BATCH, RARE_EVERY = 1_000, 100_000
ROUNDS = 5
TIMEOUT_S = 60.0
_LINK = re.compile(r'<a href="([^"]+)" rel="(prev|next)">')
_ROWS = re.compile(r"<h2>([0-9]+) message")
_LOOKED_AT = re.compile(r'<span class="faint">([0-9,.  ]+) looked at')


def batches(messages: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield a queue and the body of a batch for it, one queue after the other."""
    body = b"x" * size
    for number, first in enumerate(range(0, messages, BATCH)):
        items = [BatchItem(body, b"KEYS\x01k%d\x02TAGS\x01a" % n) for n in range(first, min(first + BATCH, messages))]
        if first == 0:
            items[0] = BatchItem(body, b"KEYS\x01k0\x02TAGS\x01first")
        if first % RARE_EVERY == RARE_EVERY // 2:
            items[0] = BatchItem(b"a needle", b"KEYS\x01k%d\x02TAGS\x01rare\x02color\x01red" % first)
        yield number % QUEUES, encode_batch(items)


class Browser:
    """Opens pages of one console."""

    def __init__(self, link: str) -> None:
        self._base = link.partition("/?")[0]
        self._client = httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, headers={"Connection": "close"})
        self._client.get(link).raise_for_status()

    def open(self, path: str) -> tuple[float, str]:
        """Return the milliseconds of a page, and its text."""
        begun = time.perf_counter()
        answer = self._client.get(f"{self._base}{path}").raise_for_status()
        return (time.perf_counter() - begun) * 1_000, answer.text


def links(page: str) -> dict[str, str]:
    """Return the links to newer (`prev`) and older (`next`) messages."""
    return {kind: html.unescape(path) for path, kind in _LINK.findall(page)}


def row(name: str, times: list[float], page: str) -> dict[str, Any]:
    found, looked_at = _ROWS.search(page), _LOOKED_AT.search(page)
    return {
        "page": name, "ms": round(statistics.median(times)), "longest_ms": round(max(times)),
        "rows": int(found[1]) if found else 0,
        "looked_at": int(re.sub(r"\D", "", looked_at[1])) if looked_at else None,
    }  # fmt: skip


def walked(browser: Browser, name: str, page: str, kind: str, pages: int) -> tuple[dict[str, Any], str]:
    """Follow a link of the pages as often; return the row and the last page."""
    times = []
    for _ in range(pages):
        path = links(page).get(kind)
        if path is None:
            break
        ms, page = browser.open(path)
        times.append(ms)
    return row(name, times or [0.0], page), page


def measure(browser: Browser, space: str, begun: float, ended: float, messages: int) -> Iterator[dict[str, Any]]:
    def path(**asked: str) -> str:
        return f"{space}/messages?{httpx.QueryParams({'topic': TOPIC, **asked})}"

    def at(moment: float) -> str:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def opened(name: str, **asked: str) -> tuple[dict[str, Any], str]:
        got = [browser.open(path(**asked)) for _ in range(ROUNDS)]
        return row(name, [ms for ms, _ in got], got[-1][1]), got[-1][1]

    found, page = opened("newest")
    yield found
    found, page = walked(browser, "older, 10 pages", page, "next", 10)
    yield found
    yield walked(browser, "newer, 10 pages", page, "prev", 10)[0]
    yield opened("live", tail="true")[0]
    found, page = opened("a time in the middle", at=at((begun + ended) / 2))
    yield found
    yield walked(browser, "older from there, 10 pages", page, "next", 10)[0]
    yield walked(browser, "newer from there, 10 pages", page, "prev", 10)[0]
    found, page = opened("the oldest, by time", at=at(begun - 60))
    yield found
    yield walked(browser, "newer from the oldest, 10 pages", page, "prev", 10)[0]
    yield opened("key in the middle", key=f"k{messages // 2}")[0]
    yield opened("key of no message", key="nothing")[0]
    for name, asked in (
        ("tag that all have", {"tags": "a"}), ("tag of 1 in 100,000", {"tags": "rare"}),
        ("tag of the first", {"tags": "first"}), ("tag of none", {"tags": "none"}),
        ("property of 1 in 100,000", {"prop": "color=red"}), ("text of 1 in 100,000", {"text": "needle"}),
        ("text of none", {"text": "nothing"}),
    ):  # fmt: skip
        found, page = opened(name, **asked)
        yield found
        if "next" in links(page):
            yield walked(browser, f"{name}, older", page, "next", 3)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    options = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="console-messages-") as name:
        folder = Path(name)
        manifest = folder / "cluster.json"
        manifest.write_text(json.dumps({
            "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "shop"},
            "spec": {"brokerGroups": [{"name": "a", "members": 1}], "nameServers": {"replicas": 1}},
        }))  # fmt: skip
        with Cluster(folder / "cluster", manifest) as cluster:
            ports = json.loads((cluster.folder / "ports.json").read_text())
            begun = time.time()
            address = f"127.0.0.1:{ports['group/a']}"
            make_topic(address, TOPIC)
            send(address, TOPIC, batches(options.messages, options.size))
            ended = time.time()
            print(json.dumps({"messages": options.messages, "sent_s": round(ended - begun, 1)}), flush=True)
            command = [sys.executable, "-m", "gantry_operator.cli", "console", "--dir", str(cluster.folder)]
            console = subprocess.Popen(
                [*command, "--no-browser"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            try:
                assert console.stdout is not None
                browser = Browser(console.stdout.readline().strip())
                for found in measure(browser, "/c/local/shop", begun, ended, options.messages):
                    print(json.dumps(found), flush=True)
            finally:
                console.terminate()
                console.wait(20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
