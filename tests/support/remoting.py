"""What tests put on the other side of the remoting protocol: a handler, a peer's socket, a compressed registration."""

from __future__ import annotations

import asyncio
import zlib
from struct import Struct
from typing import Any

import orjson
import pytest
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import RegisterBody
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.connection import Connection

_INT = Struct(">i")


class RequestOnly:
    """A Handler that ignores opened and closed connections; subclasses write `on_frames`."""

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        raise RuntimeError(f"{type(self).__name__} does not say what to do with requests")

    def on_open(self, conn: Connection) -> None:
        """Do nothing."""

    def on_close(self, conn: Connection) -> None:
        """Do nothing."""


def encode_compressed(body: RegisterBody) -> bytes:
    """RocketMQ's compressed form: lengths and JSON pieces, deflated as a whole."""
    parts = [_sized(fastjson.dumps(body.configs.version.to_json())), _INT.pack(len(body.configs.topics))]
    for config in body.configs.topics.values():
        line = " ".join(
            (config.name, str(config.read_queues), str(config.write_queues), str(config.perm), config.filter_type)
        )
        parts.append(_sized(line.encode()))
    parts.append(_sized(fastjson.dumps(body.filter_servers)))
    return zlib.compress(b"".join(parts), 9)


def _sized(piece: bytes) -> bytes:
    return _INT.pack(len(piece)) + piece


class Socket(asyncio.Transport):
    """The transport of a peer that has sent some bytes and reads all answers."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = self.closed = False
        self.answers = 0
        self.begin = b""
        """The begin of what was written."""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.answers += 1
        if len(self.begin) < 1 << 18:
            self.begin += data[: 1 << 18]

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data) if len(self.begin) < 1 << 18 else b"")

    def first_code(self) -> int:
        """Return the code of the first answer; -1: there is none."""
        size = int.from_bytes(self.begin[5:8], "big")
        return -1 if not self.begin else int(orjson.loads(self.begin[8 : 8 + size])["code"])

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


def codes_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of requests that connections of this process send from now on."""
    codes: list[int] = []
    submit = Connection.submit

    def noted(conn: Connection, frame: Frame, *args: Any, **more: Any) -> Any:
        codes.append(frame.code)
        return submit(conn, frame, *args, **more)

    monkeypatch.setattr(Connection, "submit", noted)
    return codes
