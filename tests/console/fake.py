"""A cluster of made-up answers, and the real server before it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.target import LoggedRemarks
from gantry_operator.console.access import OneTimeLinks, Session, Sessions
from gantry_operator.console.app import make_app
from gantry_operator.console.collector import Collector
from gantry_operator.console.history import History, NoHistory
from gantry_operator.console.serve import LocalAccess, Server, collecting
from gantry_operator.console.snapshot import ClusterKey
from gantry_operator.console.sources import AuditView, MemberAudit, MemberUrl, Pausing


def member_status(name: str, number: int, role: str = "Slave", epoch: int = 1) -> dict[str, Any]:
    me = {"member": number, "incarnation": f"i{number}"}
    return {
        "name": name, "group": "a", "member": me, "role": role, "epoch": epoch, "version": 1, "start": 0, "end": 5000,
        "lag_bytes": 0, "in_sync": [{"member": n, "incarnation": f"i{n}"} for n in range(3)], "connections": 2,
        "disk": {"total_bytes": 100_000, "free_bytes": 60_000, "full": False}, "address": f"127.0.0.1:{number}",
        "pid": 100 + number, "reason": "",
    }  # fmt: skip


def tables(topics: int = 3, now_ms: int = 1_000_000, sent: int = 0) -> dict[str, Any]:
    """The tables of a master with topics `orders-N`, a group `billing` and two clients."""
    names = {
        f"orders-{n:05d}": {
            "perm": 6, "write_queues": 4, "system": False, "in": sent, "bytes_in": 100 * sent,
            "queues": [[0, 10]] * 4,
        }
        for n in range(topics)
    }  # fmt: skip
    names["%DLQ%billing"] = {
        "perm": 6, "write_queues": 1, "system": False, "in": 0, "bytes_in": 0, "queues": [[0, 7]],
    }  # fmt: skip
    client = {"id": "10.0.0.1@1", "address": "10.0.0.1:5", "language": "JAVA", "version": "v5_5_0"}
    return {
        "now_ms": now_ms, "started_ms": 1, "group": "a", "topics": names,
        "groups": {"billing": {"system": False}, "late": {"system": False}, "TOOLS_CONSUMER": {"system": True}},
        "lags": [
            {"topic": "orders-00000", "group": "billing", "queues": [[0, 10, 4], [1, 10, 10]], "out": sent,
             "oldest_unread_ms": now_ms - 5000},
            {"topic": "%DLQ%billing", "group": "TOOLS_CONSUMER", "queues": [[0, 7, 2]], "out": 0,
             "oldest_unread_ms": None},
        ],
        "lags_without_age": 0,
        "consumers": {
            "billing": {"model": "CLUSTERING", "type": "CONSUME_PASSIVELY", "inconsistent": True,
                        "subscriptions": {"orders-00000": "*", "%RETRY%billing": "*"},
                        "clients": [client, client | {"id": "10.0.0.2@1"}]},
        },
        "producers": {"shop": [client]},
    }  # fmt: skip


class NoBrokers:
    """A target whose brokers cannot be reached."""

    remarks = LoggedRemarks()

    def clients(self) -> Any:
        raise ActionError("no broker answers")

    def resources(self) -> Any:
        raise ActionError("no broker answers")

    def users(self) -> Any:
        raise ActionError("no broker answers")


class FakeSource:
    """Three members of one group. `calls` has the path of each request."""

    target: Any = NoBrokers()
    command: Sequence[str] = ("--cluster", "fake")
    pausing: Pausing | None = None
    history: History = NoHistory()

    def __init__(self, topics: int = 3) -> None:
        self.key = ClusterKey("local", "fake")
        self.topics = topics
        self.calls: list[str] = []
        self.silent: set[str] = set()
        """Members that never answer."""
        self.master = 0
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        number = int(request.url.host.removeprefix("m"))
        self.calls.append(request.url.path)
        if f"fake-a-{number}" in self.silent:
            await asyncio.sleep(request.extensions["timeout"]["read"])
            raise httpx.ReadTimeout("no answer", request=request)
        if request.url.path == "/v1/tables":
            return httpx.Response(200, json=tables(self.topics, int(time.time() * 1000)))
        role = "Master" if number == self.master else "Slave"
        return httpx.Response(200, json=member_status(f"fake-a-{number}", number, role))

    async def members(self) -> list[MemberUrl]:
        return [MemberUrl(f"fake-a-{n}", "a", f"http://m{n}") for n in range(3)]

    async def resource(self) -> dict[str, Any]:
        conditions = [
            {
                "type": "Available",
                "status": "True",
                "message": "a message was sent",
                "lastTransitionTime": "2026-01-01",
            },
            {"type": "Degraded", "status": "False", "message": "all ready", "lastTransitionTime": "2026-01-01"},
        ]
        rows = [{"name": f"fake-a-{n}", "group": "a", "inSync": True} for n in range(3)]
        archive = {
            "recoverableFrom": "2026-01-01T00:00:00Z", "archivedUntil": "2026-01-02T00:00:00Z", "offset": 4_000_000,
            "behindBytes": 2_048, "behindSeconds": 61, "bytes": 1_000_000, "objects": 12, "gaps": 1, "error": "<b>no",
        }  # fmt: skip
        status = {"phase": "Running", "conditions": conditions, "members": rows, "events": [], "nameServerMembers": []}
        status["groups"] = [{"name": "a", "archive": archive}, {"name": "b", "archive": {"gaps": 0, "error": "away"}}]
        still = {
            "topic": "orders-00000",
            "current": "False",
            "reason": "BadSchema",
            "message": "field price is a string",
        }
        status["tables"] = [still]
        proxy = {"name": "fake-proxy-0", "ready": False, "address": "127.0.0.1:8081", "reason": "its process is gone"}
        status["proxy"] = {"members": [proxy]}
        return {"spec": {}, "metadata": {"name": "fake"}, "status": status}

    async def audit(self) -> AuditView:
        return AuditView([], "grep gantry.audit logs")

    async def has_report(self) -> bool:
        return await self.report() is not None

    async def report(self) -> bytes | None:
        return None

    async def close(self) -> None:
        await self.http.aclose()


class InKubernetes(FakeSource):
    """A cluster whose members have lines of the audit, and whose status has a report."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = MemberAudit(self.http)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/audit":
            line = {"time_ms": 5, "result": "allowed", "user": "ann", "request": "DELETE_TOPIC_IN_BROKER"}
            mine = request.url.host == "m1"
            lines = [line | {"resource": "Topic:Old", "address": "10.0.0.7"}] if mine else []
            return httpx.Response(200, json={"lines": lines})
        return await super()._answer(request)

    async def resource(self) -> dict[str, Any]:
        found = await super().resource()
        found["spec"] = {"access": {"mode": "Enabled"}}
        found["status"]["analytics"] = {
            "lastResult": "Succeeded", "message": "12 records; compaction would save 3.0 MiB.",
            "lastSuccess": "2026-01-01T00:00:00Z", "durationSeconds": 52.0, "scannedBytes": 8 << 20,
            "report": "s3a://reports/demo/report.json", "nextRun": "2026-01-02T00:00:00Z",
            "topSavings": [{"topic": "Orders", "savedBytes": 3 << 20, "recommendation": "Compact"}],
        }  # fmt: skip
        return found

    async def audit(self) -> AuditView:
        return AuditView(await self._lines.lines(self.members), "kubectl logs")

    async def report(self) -> bytes | None:
        return b"<!doctype html><html lang=en><title>a report</title><script>document.title = 'drawn'</script></html>"


class ReadOnly(LocalAccess):
    """A person who may not write."""

    async def may_write(self, session: Session, key: ClusterKey) -> bool:
        return False


class Running:
    """A console of a thread."""

    def __init__(self, base: str, links: OneTimeLinks, collector: Collector) -> None:
        self.base = base
        self.links = links
        self.collector = collector

    def link(self) -> str:
        return f"{self.base}/?token={self.links.make()}"

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A browser with a session, without scripts."""
        with httpx.Client(base_url=self.base, follow_redirects=True, timeout=20) as client:
            client.get(self.link()).raise_for_status()
            yield client


@contextmanager
def running(source: FakeSource, access: type[LocalAccess] = LocalAccess) -> Iterator[Running]:
    """Serve the console of a source on a free port."""
    ready = threading.Event()
    made: list[Any] = []

    async def main() -> None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        sessions, links = Sessions(), OneTimeLinks()
        collector = Collector(source)
        port = bound.getsockname()[1]
        app = make_app(lambda: {source.key: collector}, access(sessions, links, port), sessions)
        server = Server(app, lambda: {source.key: collector})
        made.extend([server, Running(f"http://127.0.0.1:{port}", links, collector)])
        async with collecting({source.key: collector}):
            ready.set()
            await server.serve(sockets=[bound])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield made[1]
    finally:
        made[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()
