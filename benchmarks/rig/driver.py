"""Driver programs as sessions: commands in, JSON lines out. `Driver` is the one of tests/interop/java."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import java
from .target import Target

Line = dict[str, Any]


class Running:
    """One command of a session, with its lines as the driver prints them."""

    def __init__(self, driver: Session, number: str, words: list[str]) -> None:
        self.driver, self.number, self.words = driver, number, words
        self.queue: queue.Queue[Line] = queue.Queue()
        self.lines: list[Line] = []
        self.done = False

    def next(self, timeout_s: float) -> Line | None:
        """Returns the next line, or None at the end. Raises TimeoutError."""
        if self.done:
            return None
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self.queue.get(timeout=0.5)
            except queue.Empty:
                if self.driver.popen.poll() is not None and self.queue.empty():
                    raise RuntimeError(f"{self.driver.what} ended: {self.driver.tail()}") from None
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.words[:8]}: no answer within {timeout_s} s") from None
                continue
            if line["event"] == "done":
                self.done = True
                return None
            self.lines.append(line)
            return line

    def wait_for(self, event: str, timeout_s: float = 60) -> Line:
        """Returns the next line of this kind. Raises AssertionError when the command ends before."""
        while (line := self.next(timeout_s)) is not None:
            if line["event"] == event:
                return line
        raise AssertionError(f"{self.words[:8]} ended without {event!r}: {self.lines[-5:]}")

    def finish(self, timeout_s: float = 120) -> Result:
        while self.next(timeout_s) is not None:
            pass
        return Result(self.words, self.lines)


class Result:
    """All lines of a command that has ended."""

    def __init__(self, words: list[str], lines: list[Line]) -> None:
        self.words, self.lines = words, lines

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line["event"] == event]

    @property
    def errors(self) -> list[Line]:
        return self.of("error")

    @property
    def summary(self) -> Line:
        found = self.of("summary")
        if not found:
            raise AssertionError(f"{self.words[:8]} printed no summary: {self.lines[-3:]}")
        return found[-1]


class Session:
    """A driver program that runs commands concurrently: it reads lines, and answers lines that begin with "{"."""

    def __init__(self, what: str, words: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
        """`what` names the program in errors; its error output goes to `log`."""
        self.what, self.log = what, log
        with log.open("ab") as err:
            self.popen = subprocess.Popen(
                list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
                start_new_session=True, env={**os.environ, **env}, cwd=cwd,
            )  # fmt: skip
        self._commands: dict[str, Running] = {}
        self._count = 0
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(60):
            self.close()
            raise RuntimeError(f"{what} does not start: {self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for text in self.popen.stdout:
            if not text.startswith("{"):
                continue
            line: Line = json.loads(text)
            if line["event"] == "ready" and line["id"] == "":
                self._ready.set()
                continue
            command = self._commands.get(line["id"])
            if command is not None:
                command.queue.put(line)

    def submit(self, words: list[str], line: Callable[[str], str]) -> Running:
        """Starts a command. `words` describe it in errors; `line` makes its text from its number."""
        self._count += 1
        running = Running(self, str(self._count), words)
        self._commands[running.number] = running
        self.write(line(running.number))
        return running

    def write(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def close(self) -> None:
        if self.popen.poll() is None:
            assert self.popen.stdin is not None
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
            try:
                self.popen.wait(5)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


class Driver(Session):
    """One JVM with one version of the client and one header serialization."""

    def __init__(self, target: Target, version: str, serialize: str, log: Path, more_flags: Sequence[str] = ()) -> None:
        """`more_flags`: further ones of the JVM."""
        self.target, self.version, self.serialize = target, version, serialize
        # The client stores offsets of broadcasting groups and its log below this home, not below the user's.
        home = (log.parent / f"home-{log.stem}").absolute()
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        flags = [
            f"-Drocketmq.serialize.type={serialize}", f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}",
            f"-Drocketmq.client.localOffsetStoreDir={home}/offsets", "-XX:TieredStopAtLevel=1",
            # The client finds a new retry topic with a rebalance, by default every 20 s.
            "-Drocketmq.client.rebalance.waitInterval=1000", *more_flags,
        ]  # fmt: skip
        words = java.command(f"driver{version}", "dev.gantry.interop.Driver", "session", heap="768m", flags=flags)
        # `mqadmin consumerStatus` writes files to its working directory.
        super().__init__("the Java driver", [*target.prefix, *words], log, {"ROCKETMQ_HOME": str(home)}, home)

    def start(self, command: str, *words: object, **options: object) -> Running:
        """Starts a command; options become `--name value` (True: a switch, None: omitted), `_` becomes `-`."""
        texts = [str(word) for word in words]
        if command not in ("mqadmin", "stop"):
            options = {"namesrv": self.target.namesrv, **options}
        for name, value in options.items():
            if value is None or value is False:
                continue
            texts.append("--" + name.replace("_", "-"))
            if value is not True:
                texts.append(str(value))
        return self.submit([command, *texts], lambda number: "\t".join([number, command, *texts]))

    def run(self, command: str, *words: object, within_s: float = 120, **options: object) -> Result:
        """Runs a command to its end. Raises TimeoutError when it is silent for within_s."""
        return self.start(command, *words, **options).finish(within_s)

    def mqadmin(self, *words: object, within_s: float = 60) -> str:
        """Returns the output of one `mqadmin` command; `-n` is added."""
        return str(self.run("mqadmin", *words, "-n", self.target.namesrv, within_s=within_s).summary["output"])


@contextlib.contextmanager
def driver(target: Target, version: str, serialize: str, folder: Path) -> Iterator[Driver]:
    """Starts a session; version: "49" or "55"; serialize: "JSON" or "ROCKETMQ"."""
    session = Driver(target, version, serialize, folder / f"driver-{target.name}-{version}-{serialize}.log")
    try:
        yield session
    finally:
        session.close()


__all__ = ["Driver", "Line", "Result", "Running", "Session", "driver"]
