"""Where the console learns about a cluster and acts on it: the interface, and a cluster of this machine."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gantry_broker.tasks import end_tasks
from pydantic import ValidationError

from gantry_operator.actions.local_target import LocalTarget
from gantry_operator.actions.target import Target
from gantry_operator.cluster.member_http import httpx, make_client
from gantry_operator.console.history import FileHistory, History
from gantry_operator.console.snapshot import ClusterKey
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local.certificates import read_authorities, scheme
from gantry_operator.platforms.local.events import KEEP, last_events
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.leaving_groups import running_cluster
from gantry_operator.platforms.local.manifest import load_saved
from gantry_operator.platforms.local.ports import Ports
from gantry_operator.platforms.local.status import local_status

AUDIT_BYTES: Final = 262_144
"""The end of each log that is read for lines of the audit."""
AUDIT_LINES: Final = 200
AUDIT_EVERY_S: Final = 2.0
AUDIT_WAIT_S: Final = 1.0
"""Seconds that a page waits for the first lines of the members."""
AUDIT_TIMEOUT_S: Final = 5.0
MAX_MS: Final = 253_402_300_800_000
"""The year 10000, which no time of the audit reaches."""
LOCAL: Final = "local"
"""The space of clusters of this machine in paths."""


@dataclass(frozen=True, slots=True)
class MemberUrl:
    """A member, and its HTTP interface."""

    name: str
    group: str
    url: str


@dataclass(frozen=True, slots=True)
class AuditView:
    """Lines of the audit, newest first; None: they are not read here. `where`: how to read all of it."""

    lines: Sequence[dict[str, Any]] | None
    where: str


class SourceError(Exception):
    """A cluster cannot be read; the text is the reason."""


class Pausing(Protocol):
    """Pauses and resumes the changes of one cluster."""

    def command(self, paused: bool) -> str:
        """Return the equivalent command; `paused`: True pauses."""
        ...

    async def pause(self, paused: bool) -> None:
        """Pause changes, or let them go on. Raises ActionError."""
        ...


class Source(Protocol):
    """One cluster."""

    key: ClusterKey
    http: httpx.AsyncClient
    """For its members."""
    command: Sequence[str]
    """The options of `gantry` that choose this cluster."""
    history: History
    """In which the points of the chart outlive the console."""

    @property
    def target(self) -> Target:
        """For the functions of the `gantry` command."""
        ...

    async def resource(self) -> dict[str, Any]:
        """Return the BrokerCluster, its events in `status.events`. Raises SourceError."""
        ...

    async def members(self) -> list[MemberUrl]:
        """List the members. Raises SourceError."""
        ...

    async def audit(self) -> AuditView: ...

    async def has_report(self) -> bool:
        """Whether `report` has a page. Cheap: each pass of a page asks."""
        ...

    async def report(self) -> bytes | None:
        """Return the page of the last compaction report; None: there is none here."""
        ...

    @property
    def pausing(self) -> Pausing | None:
        """None: this platform has no pause."""
        ...

    async def close(self) -> None: ...


class LocalSource:
    """A cluster of this machine."""

    pausing: Pausing | None = None

    def __init__(self, folder: ClusterFolder, name: str, command: Sequence[str]) -> None:
        self.key = ClusterKey(LOCAL, name)
        self.folder = folder
        self.history: History = FileHistory(folder.root / "console-history.json")
        self.target: Target = LocalTarget(folder)
        self.command: Sequence[str] = command
        self.http = make_client(folder.token.read, lambda: read_authorities(folder))

    async def resource(self) -> dict[str, Any]:
        try:
            resource = (await local_status(self.folder)).to_object()
            resource["status"]["events"] = await asyncio.to_thread(last_events, self.folder.events, KEEP)
            return resource
        except Exception as error:  # Any damage of the folder is shown, and the other figures stay.
            raise SourceError(str(error) or type(error).__name__) from error

    async def members(self) -> list[MemberUrl]:
        try:
            cluster, ports = running_cluster(self.folder, load_saved(self.folder)), Ports.load(self.folder.ports)
        except (OSError, ValidationError, ValueError) as error:
            raise SourceError(f"{self.folder.root} cannot be read: {error}") from error
        return [
            MemberUrl(m.name, m.group, f"{scheme(cluster)}://127.0.0.1:{ports.taken.get(f'{m.name}/http', 0)}")
            for m in plan(cluster).members
        ]

    async def audit(self) -> AuditView:
        lines = await asyncio.to_thread(self._audit_lines)
        return AuditView(lines, f"grep gantry.audit {self.folder.root}/log/*.log")

    def _audit_lines(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for path in sorted((self.folder.root / "log").glob("*.log")):
            entries += [line | {"member": path.stem} for line in audit_lines(_end_of(path))]
        return sorted(entries, key=lambda line: -line["time_ms"])[:AUDIT_LINES]

    @property
    def _report(self) -> Path:
        return self.folder.root / "analytics" / "report.html"

    async def has_report(self) -> bool:
        return await asyncio.to_thread(self._report.is_file)

    async def report(self) -> bytes | None:
        try:
            return await asyncio.to_thread(self._report.read_bytes)
        except OSError:
            return None

    async def close(self) -> None:
        await self.http.aclose()


class MemberAudit:
    """The last lines of the audit of all members, by their HTTP interface (`GET /v1/audit`).

    They are read while somebody looks, in the background; a page waits for the first answers only, and not for long.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._lines_of: dict[str, list[dict[str, Any]]] = {}
        self._read_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def lines(self, members: Callable[[], Awaitable[list[MemberUrl]]]) -> list[dict[str, Any]] | None:
        """Return the lines, newest first; None: no member has answered yet."""
        if self._reading is None and time.monotonic() - self._read_at >= AUDIT_EVERY_S:
            self._reading = asyncio.create_task(self._read(members))
        if self._reading is not None and not self._lines_of:
            await asyncio.wait([self._reading], timeout=AUDIT_WAIT_S)
        if not self._lines_of:
            return None
        entries = [line | {"member": name} for name, lines in self._lines_of.items() for line in lines]
        return sorted(entries, key=lambda line: -line["time_ms"])[:AUDIT_LINES]

    async def close(self) -> None:
        """End a reading."""
        await end_tasks(self._reading)

    async def _read(self, members: Callable[[], Awaitable[list[MemberUrl]]]) -> None:
        try:
            chosen = await members()
            answers = await asyncio.gather(*map(self._of, chosen))
            before = self._lines_of
            # A member that does not answer now has the lines that it had.
            lines_of = {
                m.name: a if a is not None else before.get(m.name) for m, a in zip(chosen, answers, strict=True)
            }
            self._lines_of = {name: lines for name, lines in lines_of.items() if lines is not None}
        except SourceError:
            pass  # The page says that the cluster cannot be read.
        finally:
            self._read_at = time.monotonic()
            self._reading = None

    async def _of(self, member: MemberUrl) -> list[dict[str, Any]] | None:
        try:
            answer = await self._http.get(f"{member.url}/v1/audit", timeout=AUDIT_TIMEOUT_S)
            if answer.status_code != 200 or len(answer.content) > AUDIT_BYTES:
                return None
            return lines_of(answer.json())
        except (httpx.HTTPError, ValueError):
            return None


def lines_of(answer: object) -> list[dict[str, Any]]:
    """Return the lines in a member's answer; what is not one is ignored."""
    lines = answer.get("lines") if isinstance(answer, dict) else None
    return [line for line in lines if _is_line(line)] if isinstance(lines, list) else []


def _is_line(line: object) -> bool:
    return isinstance(line, dict) and type(line.get("time_ms")) is int and 0 <= line["time_ms"] < MAX_MS


def _end_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(path.stat().st_size - AUDIT_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def audit_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines of the audit in a log. Other lines are ignored, and damaged ones."""
    entries = []
    for line in text.splitlines():
        at = line.find('{"time_ms":')
        if at < 0 or "gantry.audit" not in line[:at]:
            continue
        try:
            entry = json.loads(line[at:])
        except ValueError:
            continue
        if _is_line(entry):
            entries.append(entry)
    return entries
