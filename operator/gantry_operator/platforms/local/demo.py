"""`make demo`: a cluster, a producer, a master killed with kill -9, and the count of messages afterwards. Cleans up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from gantry_broker.client import ClientError, Consumer, FromWhere, Producer, ReceivedMessage, SendStatus
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.tasks import set_within

TOPIC = "Orders"
SENDERS = 8
BEFORE_S = 3.0
AFTER_S = 5.0
READ_S = 60.0
MANIFEST = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "demo"},
    "spec": {"nameServers": {"replicas": 2}, "brokerGroups": [{"name": "a", "members": 3}]},
}
NEXT = """
What to try next:
  . .venv/bin/activate                           so that `gantry` is on your path
  gantry up examples/quickstart.yaml --detach    a cluster that stays
  gantry produce Orders --count 10000
  gantry consume Orders --group billing
  gantry status                                  and kill -9 one of the pids that it shows
  gantry switchover a                            another master, without an error for any client
  gantry down
RocketMQ's own clients, mqadmin and dashboards work with the same NameServer address.
"""


class Demo:
    """One run in its own folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folder = base / "demo"
        self.environment = os.environ | {"XDG_STATE_HOME": str(base)}
        self.promised: set[bytes] = set()
        self.moments: list[float] = []
        self.number = 0

    def gantry(self, *args: str, show: bool = True) -> str:
        if show:
            print(f"\n$ gantry {' '.join(args)}", flush=True)
        command = [sys.executable, "-m", "gantry_operator.cli", *args]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"gantry {args[0]} failed: {done.stderr.strip()}")
        if show:
            print(done.stdout.strip("\n"), flush=True)
        return done.stdout

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.gantry("status", "-o", "json", show=False))["status"])

    def run(self) -> bool:
        manifest = self.base / "quickstart.yaml"
        manifest.write_text(json.dumps(MANIFEST))
        self.gantry("up", str(manifest), "--dir", str(self.folder), "--detach")
        status = self.status()
        master = next(m for m in status["members"] if m["role"] == "Master")
        asyncio.run(self._load(status["addresses"]["nameServers"], master))
        self.gantry("status")
        return asyncio.run(self._account(status["addresses"]["nameServers"]))

    async def _load(self, servers: str, master: dict[str, Any]) -> None:
        print(f"\n{SENDERS} senders send to {TOPIC} without pause.", flush=True)
        async with Producer(servers, "demo") as producer:
            stop = asyncio.Event()
            tasks = [asyncio.create_task(self._send(producer, stop)) for _ in range(SENDERS)]
            await asyncio.sleep(BEFORE_S)
            print(f"$ kill -9 {master['pid']}    # {master['name']}, the master", flush=True)
            killed = time.monotonic()
            os.kill(master["pid"], signal.SIGKILL)
            await asyncio.sleep(AFTER_S)
            stop.set()
            await asyncio.gather(*tasks)
        around = [(b - a) * 1000 for a, b in pairwise(sorted(self.moments)) if b > killed]
        print(f"The senders waited {max(around, default=0):.0f} ms for the new master.", flush=True)

    async def _send(self, producer: Producer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.number += 1
            body = f"order {self.number}".encode()
            try:
                result = await producer.send(TOPIC, body, keys=str(self.number))
            except (ClientError, RemotingError):
                # Not acknowledged, so not counted. The next message is.
                await asyncio.sleep(0.01)
                continue
            if result.status == SendStatus.SEND_OK:
                self.promised.add(body)
                self.moments.append(time.monotonic())

    async def _account(self, servers: str) -> bool:
        print(f"\nReading {TOPIC} from its beginning ...", flush=True)
        missing = set(self.promised)
        done = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            missing.discard(message.body)
            if not missing:
                done.set()

        async with Consumer(servers, "auditor", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe(TOPIC, handle)
            await set_within(done, READ_S)
        print(f"{len(self.promised)} messages were acknowledged, {len(missing)} of them are lost.", flush=True)
        return not missing


def main() -> int:
    base = Path(tempfile.mkdtemp(prefix="gantry-demo-"))
    demo = Demo(base)
    good = False
    try:
        good = demo.run()
    finally:
        if (demo.folder / "cluster.json").exists():
            demo.gantry("down", "--dir", str(demo.folder), "--delete-data", show=good)
        shutil.rmtree(base, ignore_errors=True)
    if good:
        print(NEXT)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
