"""Producers that send without pause and report each answer, with RocketMQ's own client or ours."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .driver import Driver
from .target import Target

CLIENTS = ("gantry", "java49", "java55")


@dataclass
class SendLog:
    """The reports of a sender."""

    ok_ms: list[float] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    other: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)
    """The first text of each kind of error."""
    ended: bool = False

    def take(self, line: dict[str, Any]) -> None:
        if line["event"] == "ok":
            self.acked.add(line["n"])
            self.ok_ms.append(line["ms"])
        elif line["event"] in ("status", "failed"):
            kind = line.get("status") or line["type"]
            self.other[kind] += 1
            self.errors.setdefault(kind, line.get("message", ""))
        if "tries" in line:
            self.attempts[line["n"]] = line["tries"]


class Sender(ABC):
    """Follows the JSON lines of a producer in a thread."""

    def __init__(self) -> None:
        self.sends = SendLog()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yields the producer's reports until it ends."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the producer after its last answer."""

    def _run(self) -> None:
        try:
            for line in self._lines():
                self.sends.take(line)
        finally:
            self.sends.ended = True


class JavaSender(Sender):
    """RocketMQ's own client in the driver program, in its default configuration."""

    def __init__(self, namesrv: str, prefix: list[str], version: str, topic: str, run: str, folder: Path) -> None:
        super().__init__()
        target = Target("any", namesrv, "", "", "", prefix, 0, [], folder)
        self._driver = Driver(target, version, "JSON", folder / f"driver-{run}.log")
        self._running = self._driver.start("failover", topic=topic, run=run)
        self._thread.start()

    def _lines(self) -> Iterator[dict[str, Any]]:
        while (line := self._running.next(120)) is not None:
            yield line

    def stop(self) -> None:
        try:
            self._driver.start("stop")
            self._thread.join(60)
        finally:
            self._driver.close()


class OwnSender(Sender):
    """Our client in a process of its own."""

    def __init__(self, namesrv: str, prefix: list[str], topic: str, run: str, folder: Path) -> None:
        super().__init__()
        words = [
            *prefix, sys.executable, str(Path(__file__).with_name("load.py")), "--each", "--namesrv", namesrv,
            "--topic", topic, "--run", run, "--senders", "1",
        ]  # fmt: skip
        with (folder / f"load-{run}.log").open("wb") as err:
            self._popen = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True
            )
        self._thread.start()

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self._popen.stdout is not None
        for text in self._popen.stdout:
            yield json.loads(text)

    def stop(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._thread.join(60)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(10)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()


def start_sender(client: str, namesrv: str, prefix: list[str], topic: str, run: str, folder: Path) -> Sender:
    """Starts a sender; `client` is one of CLIENTS, `prefix` as in Target. Raises JavaMissing."""
    if client == "gantry":
        return OwnSender(namesrv, prefix, topic, run, folder)
    return JavaSender(namesrv, prefix, client.removeprefix("java"), topic, run, folder)
