"""Requests of commands to the supervisor: one line of JSON each way over a loopback port.

The port and a secret are in `supervisor.json`, which only the user can read.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from gantry_operator.platforms.local.folder import ClusterFolder, read_json
from gantry_operator.platforms.local.ports import HOST
from gantry_operator.platforms.local.process import is_stopped, start_mark
from gantry_operator.registry.file import write_whole

LINE_LIMIT = 1_048_576
NOT_RUNNING: Final = "`gantry up` is not running"

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlError(Exception):
    """The supervisor refused a request or failed. The text is the reason."""


class NoAnswer(ControlError):
    """No supervisor runs, or it does not answer. The text says which, and its process."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Why no supervisor answers. `pid`: of the one that runs and is silent; None: none runs."""

    pid: int | None
    stopped: bool
    """A signal holds it."""
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "stopped": self.stopped, "message": self.message}


@dataclass(frozen=True, slots=True)
class SupervisorRecord:
    """The present supervisor of a cluster."""

    pid: int
    port: int
    secret: str


def supervisor_of(folder: ClusterFolder) -> SupervisorRecord | None:
    """Return the record of the running supervisor; None: none runs."""
    record = read_json(folder.supervisor)
    if not isinstance(record, dict) or start_mark(int(record.get("pid", -1))) != record.get("started"):
        return None
    return SupervisorRecord(int(record["pid"]), int(record["port"]), str(record["secret"]))


async def serve(folder: ClusterFolder, handler: Handler) -> asyncio.Server:
    """Serve requests, and write the port and the secret to disk. `handler(op, arguments)` answers; the caller gets
    the text of its ControlError.
    """
    secret = secrets.token_hex(16)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            if not hmac.compare_digest(str(request.get("secret", "")), secret):
                answer: dict[str, Any] = {"error": "the secret is wrong"}
            else:
                answer = await handler(str(request["op"]), dict(request.get("arguments", {})))
        except ControlError as error:
            answer = {"error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = {"error": f"bad request: {error}"}
        try:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, HOST, 0, limit=LINE_LIMIT)
    port = server.sockets[0].getsockname()[1]
    record = {"pid": os.getpid(), "started": start_mark(os.getpid()), "port": port, "secret": secret}
    write_whole(folder.supervisor, json.dumps(record))
    return server


async def ask(folder: ClusterFolder, op: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
    """Send a request. Raises ControlError, also when no supervisor runs."""
    record = supervisor_of(folder)
    if record is None:
        raise NoAnswer(f"{NOT_RUNNING} for this cluster")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, record.port, limit=LINE_LIMIT)
            try:
                request = {"secret": record.secret, "op": op, "arguments": arguments}
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
            finally:
                writer.close()
        answer = json.loads(line)
    except TimeoutError:
        raise NoAnswer(_unanswered(record.pid, timeout_s)) from None
    except (OSError, ValueError) as error:
        raise NoAnswer(f"`gantry up` (process {record.pid}) does not answer: {error}") from None
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return dict(answer)


def _unanswered(pid: int, timeout_s: float) -> str:
    silence = f"`gantry up` (process {pid}) did not answer within {timeout_s:.0f} s"
    return f"{silence}: a signal has stopped it, and kill -CONT {pid} lets it go on" if is_stopped(pid) else silence


async def silence_of(folder: ClusterFolder, timeout_s: float) -> Silence | None:
    """Return why no supervisor answers within this time; None: one does."""
    try:
        await ask(folder, "ping", timeout_s)
    except NoAnswer as error:
        return silence(folder, error)
    except ControlError:  # One of another version does not know the request. It answers.
        pass
    return None


def silence(folder: ClusterFolder, error: NoAnswer) -> Silence:
    """Return the facts of an answer that did not come."""
    record = supervisor_of(folder)
    if record is None:
        return Silence(None, False, NOT_RUNNING)
    return Silence(record.pid, is_stopped(record.pid), str(error))
