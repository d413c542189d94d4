"""A program in a pseudo terminal, as a user sees it and types into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

HOME = "\x1b[H"
"""A program that draws the whole screen begins each picture with it."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


class Terminal:
    """Use it as a context manager: a program that has not ended is killed."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], width: int = 80, height: int = 24) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.process = subprocess.Popen(
            list(argv), stdin=terminal, stdout=terminal, stderr=terminal, env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )  # fmt: skip
        self.output = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
        os.close(self._terminal)

    @property
    def attributes(self) -> list[object]:
        """The modes of the terminal."""
        return termios.tcgetattr(self._terminal)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read(self, seconds: float) -> None:
        """Take what the program writes."""
        if select.select([self._master], [], [], seconds)[0]:
            self.output += os.read(self._master, 65_536).decode(errors="replace")

    @property
    def pictures(self) -> list[str]:
        """All complete pictures, without control sequences."""
        return [CONTROL.sub("", part).replace("\r", "") for part in self.output.split(HOME)[1:-1]]

    def until(self, what: str, condition: Callable[[str], object], timeout_s: float = 60) -> str:
        """Return the first picture from now on that meets the condition."""
        deadline = time.monotonic() + timeout_s
        seen = len(self.pictures)
        while time.monotonic() < deadline:
            self.read(0.1)
            for picture in self.pictures[seen:]:
                if condition(picture):
                    return picture
            seen = len(self.pictures)
        raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{(self.pictures or [self.output])[-1]}")

    def end(self, timeout_s: float = 30) -> int:
        """Wait for the program's end and return its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self.read(0.1)
        self.read(0)
        return int(self.process.returncode)
