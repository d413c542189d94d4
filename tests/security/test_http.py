"""The HTTP interfaces against clients that mean harm: real processes, real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker.broker.http.app import BODIES
from gantry_broker.config import BrokerConfig, NameServerConfig
from gantry_broker.contracts.token_file import LOOK_AGAIN_S
from gantry_broker.http.limits import BODY_S, HEAD_S, MAX_HEAD
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.client import RemotingClient
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.plan.process_config import ArchiveFiles, BrokerAddresses
from gantry_operator.plan.process_config import broker_config as render

from tests.support.free_ports import free_ports

pytestmark = pytest.mark.timeout(120)

TOKEN = "the-token-of-this-test"
DESCRIPTORS = 512
"""Of each process here."""
HALF_REQUESTS = 1_500


@dataclass
class Process:
    """A broker or a NameServer with few descriptors."""

    popen: subprocess.Popen[bytes]
    port: int
    http_port: int
    log: Path
    token_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def get(self, path: str, token: str | None = None, **headers: str) -> httpx.Response:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.get(self.url + path, headers=headers, timeout=10, trust_env=False)

    def resident(self) -> int:
        """Bytes of memory."""
        return int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    async def answers_remoting(self) -> bool:
        """Over a connection of its own. Any answer will do."""
        async with RemotingClient(connect_timeout=5) as client:
            frame = Frame(RequestCode.GET_NAMESRV_CONFIG)
            answer = await client.request(f"127.0.0.1:{self.port}", frame, timeout=5)
        return answer.code is not None


def started(module: str, config: BrokerConfig | NameServerConfig, folder: Path) -> Process:
    file, log, token_file = folder / "config.json", folder / "log", folder / "token"
    file.write_text(config.model_dump_json())
    code = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS})); "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    with open(log, "wb") as out:
        popen = subprocess.Popen([sys.executable, "-c", code, "--config", str(file)], stdout=out, stderr=out)
    assert config.http_port is not None
    process = Process(popen, config.port, config.http_port, log, token_file)
    deadline = time.monotonic() + 60
    while True:
        assert popen.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if process.get("/livez").status_code == 200:
                return process
        except httpx.HTTPError:
            time.sleep(0.05)


def ended(process: Process) -> None:
    process.popen.send_signal(signal.SIGTERM)
    try:
        process.popen.wait(20)
    finally:
        process.popen.kill()
        process.popen.wait()


def broker_config(folder: Path, **more: Any) -> BrokerConfig:
    (folder / "token").write_text(TOKEN)
    port, http_port = free_ports(2)
    values: dict[str, Any] = {
        "cluster": "demo", "group": "a", "member": 0, "name": "demo-a-0", "data_dir": folder / "data",
        "listen_host": "127.0.0.1", "port": port, "http_port": http_port, "member_address": f"broker.test:{port}",
        "group_address": f"127.0.0.1:{port}", "token_file": folder / "token",
        "settings": {"mappedFileSizeCommitLog": 8 << 20, "maxHashSlotNum": 5_000, "maxIndexNum": 20_000},
    }  # fmt: skip
    return BrokerConfig.model_validate(values | more)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("broker")
    process = started("gantry_broker.broker", broker_config(folder, http_hosts=["service.test"]), folder)
    yield process
    ended(process)


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("namesrv")
    port, http_port = free_ports(2)
    config = NameServerConfig(
        name="ns-0", listen_host="127.0.0.1", port=port, http_port=http_port, http_hosts=["service.test"]
    )
    process = started("gantry_broker.namesrv", config, folder)
    yield process
    ended(process)


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """This process opens more connections than the one that it asks may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def said(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    return int(head.split(" ")[1]), await reader.readexactly(int(fields.get("content-length", 0)))


async def asked(port: int, text: str) -> int:
    """The status of the answer to one request."""
    async with connected(port) as (reader, writer):
        writer.write(text.encode())
        return (await said(reader))[0]


def put(body: bytes = b"{}", *, token: str | None = TOKEN, path: str = "/v1/assignment", length: int = -1) -> bytes:
    """The head of a request that changes something, and `body`, which may be less than `length` says."""
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    size = len(body) if length < 0 else length
    return f"PUT {path} HTTP/1.1\r\nHost: localhost\r\n{shown}Content-Length: {size}\r\n\r\n".encode() + body


# ---- bodies and the token


async def test_a_body_without_the_token_is_refused_before_it_is_read(broker: Process) -> None:
    before = broker.resident()

    async def one() -> int:
        async with connected(broker.http_port) as (reader, writer):
            writer.write(put(b"x" * 1024, token="wrong", length=8 << 20))
            return (await asyncio.wait_for(said(reader), 20))[0]

    assert await asyncio.gather(*(one() for _ in range(40))) == [401] * 40
    assert broker.resident() - before < 16 << 20


async def test_the_rest_of_a_refused_body_is_discarded(broker: Process) -> None:
    """So that a client that sends its head and its body apart always sees why it was refused."""
    async with connected(broker.http_port) as (reader, writer):
        for _ in range(3):
            writer.write(put(b"", token=None, length=2))
            assert (await asyncio.wait_for(said(reader), 10))[0] == 401
            writer.write(b"{}")


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_a_body_above_the_limit_of_its_path_is_refused(broker: Process, path: str) -> None:
    method = b"PUT" if path in {"/v1/assignment", "/v1/access", "/v1/marks", "/v1/site"} else b"POST"
    too_long = put(b"", path=path, length=BODIES[path] + 1).replace(b"PUT", method, 1)
    async with connected(broker.http_port) as (reader, writer):
        writer.write(too_long)
        status, body = await said(reader)
        assert (status, str(BODIES[path]) in body.decode()) == (413, True)
    chunk = b"x" * 512
    head = too_long.replace(b"Content-Length: %d" % (BODIES[path] + 1), b"Transfer-Encoding: chunked")
    async with connected(broker.http_port) as (reader, writer):
        writer.write(head + b"%x\r\n%s\r\n" % (len(chunk), chunk) * (BODIES[path] // len(chunk) + 1))
        assert (await said(reader))[0] == 413
    async with connected(broker.http_port) as (reader, writer):
        writer.write(put(b"{}", path=path).replace(b"PUT", method, 1))
        assert (await said(reader))[0] == 422, "a body within the limit is read"


async def test_a_request_that_takes_no_body_is_not_given_one(broker: Process) -> None:
    head = f"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n"
    assert await asked(broker.http_port, head + "hello") == 413


def test_all_but_health_and_metrics_wants_the_token(broker: Process) -> None:
    guarded = ("/v1/status", "/v1/log", "/v1/log/bytes?from=0&to=1", "/v1/status/stream", "/openapi.json", "/nothing")
    for path in guarded:
        assert broker.get(path).status_code == 401, path
        assert broker.get(path, TOKEN + "x").status_code == 401, path
    assert broker.get("/v1/status", TOKEN).status_code == 200
    assert broker.get("/nothing", TOKEN).status_code == 404
    for path in ("/livez", "/health/live", "/metrics"):
        assert broker.get(path).status_code == 200, path
    assert broker.get("/readyz").status_code == 503, "it follows nobody yet"


async def test_a_token_shown_twice_or_in_another_scheme_is_none(broker: Process) -> None:
    head = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"
    shown = f"Authorization: Bearer {TOKEN}\r\n"
    assert await asked(broker.http_port, f"{head}{shown}\r\n") == 200
    assert await asked(broker.http_port, f"{head}{shown.replace('Bearer', 'bearer')}\r\n") == 200
    assert await asked(broker.http_port, f"{head}{shown}{shown}\r\n") == 401
    assert await asked(broker.http_port, f"{head}{shown.replace('Bearer', 'Basic')}\r\n") == 401
    assert await asked(broker.http_port, f"{head}{shown.replace('Bearer ', '')}\r\n") == 401


def test_metrics_can_want_the_token_too(tmp_path: Path) -> None:
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], metricsNeedToken=True)
    addresses = BrokerAddresses(1, 2, 3, "h:3", "h:1", "h:2")
    member = plan(cluster).members[0]
    planned = render(
        cluster, member, addresses, listen_host="127.0.0.1", data_dir=tmp_path, name_servers=[],
        registration_addresses=[], token_file=tmp_path / "token",
        archives=ArchiveFiles("uid-1", lambda use, secret: tmp_path / use / secret),
    )  # fmt: skip
    assert planned.metrics_need_token
    process = started("gantry_broker.broker", broker_config(tmp_path, metrics_need_token=True), tmp_path)
    try:
        assert process.get("/metrics").status_code == 401
        assert "gantry_epoch" in process.get("/metrics", TOKEN).text
        assert 'gantry_http_refused_total{cluster="demo",group="a",member="0",reason="token"} 1' in (
            process.get("/metrics", TOKEN).text
        )
    finally:
        ended(process)


def test_another_token_in_the_file_counts_and_none_at_all_leaves_the_last(tmp_path: Path) -> None:
    process = started("gantry_broker.broker", broker_config(tmp_path), tmp_path)
    try:
        assert process.get("/v1/status", TOKEN).status_code == 200
        process.token_file.write_text("another-one\n")
        time.sleep(LOOK_AGAIN_S)
        assert process.get("/v1/status", TOKEN).status_code == 401
        assert process.get("/v1/status", "another-one").status_code == 200
        process.token_file.unlink()
        time.sleep(LOOK_AGAIN_S)
        assert process.get("/v1/status", "another-one").status_code == 200
        assert process.get("/v1/status").status_code == 401
    finally:
        ended(process)


def test_without_any_token_nothing_is_open(tmp_path: Path) -> None:
    config = broker_config(tmp_path)
    (tmp_path / "token").write_text("")
    process = started("gantry_broker.broker", config, tmp_path)
    try:
        answer = process.get("/v1/status")
        assert answer.status_code == 503
        assert "holds no token" in answer.json()["detail"]
        process.token_file.write_text(TOKEN)
        time.sleep(LOOK_AGAIN_S)
        assert process.get("/v1/status", TOKEN).status_code == 200
    finally:
        ended(process)


# ---- half requests and slow ones


async def half_requests(process: Process) -> list[asyncio.StreamWriter]:
    """Connections that have each sent a part of a request's head."""
    writers = []
    for _ in range(HALF_REQUESTS):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", process.http_port)
        except OSError:
            continue
        writer.write(b"PUT /v1/assignment HTTP/1.1\r\nHost: localhost\r\nX: ")
        writers.append(writer)
    return writers


@pytest.mark.parametrize("kind", ["broker", "name_server"])
async def test_half_requests_leave_room_for_remoting_and_livez(kind: str, request: pytest.FixtureRequest) -> None:
    process: Process = request.getfixturevalue(kind)
    before = process.resident()
    writers = await half_requests(process)
    try:
        for _ in range(5):
            assert (await asyncio.to_thread(process.get, "/livez")).status_code == 200
        assert await process.answers_remoting()
        assert process.descriptors() < DESCRIPTORS * 3 // 4
        assert process.resident() - before < 16 << 20
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("kind", ["broker", "name_server"])
async def test_remoting_connections_leave_room_for_livez(kind: str, request: pytest.FixtureRequest) -> None:
    process: Process = request.getfixturevalue(kind)
    opened = []
    for _ in range(2 * DESCRIPTORS):
        opened.append(await asyncio.open_connection("127.0.0.1", process.port))
    try:
        assert (await asyncio.to_thread(process.get, "/livez")).status_code == 200
        assert process.descriptors() < DESCRIPTORS
    finally:
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.parametrize("kind", ["broker", "name_server"])
async def test_a_head_that_comes_too_slowly_is_given_up(kind: str, request: pytest.FixtureRequest) -> None:
    process: Process = request.getfixturevalue(kind)
    begun = time.monotonic()
    async with connected(process.http_port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n")

        async def drip() -> None:
            while True:
                writer.write(b"X: y\r\n")
                await asyncio.sleep(0.2)

        dripping = asyncio.create_task(drip())
        try:
            status, _ = await asyncio.wait_for(said(reader), 4 * HEAD_S)
        finally:
            dripping.cancel()
    assert status == 408
    assert time.monotonic() - begun >= HEAD_S - 0.5


async def test_a_second_head_that_comes_too_slowly_is_given_up_too(broker: Process) -> None:
    async with connected(broker.http_port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await said(reader))[0] == 200
        writer.write(b"GET /livez HTTP/1.1\r\n")
        assert (await asyncio.wait_for(said(reader), 4 * HEAD_S))[0] == 408


async def test_a_body_that_comes_too_slowly_is_given_up(broker: Process) -> None:
    async with connected(broker.http_port) as (reader, writer):
        writer.write(put(b"{", length=100))
        assert await asyncio.wait_for(reader.read(), 3 * BODY_S) == b""
    assert broker.get("/v1/status", TOKEN).status_code == 200


@pytest.mark.parametrize("kind", ["broker", "name_server"])
async def test_a_head_that_is_too_long_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    process: Process = request.getfixturevalue(kind)
    async with connected(process.http_port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (2 * MAX_HEAD))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
    assert head.split()[1] in (b"400", b"431")


async def test_streams_with_the_token_are_not_closed_for_half_requests(broker: Process) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=10) as client,
        client.stream("GET", f"{broker.url}/v1/status/stream", headers=headers) as answer,
    ):
        lines = answer.aiter_lines()
        assert json.loads(await anext(lines))["name"] == "demo-a-0"
        writers = await half_requests(broker)
        try:
            for _ in range(3):
                assert json.loads(await anext(lines))["name"] == "demo-a-0"
        finally:
            for writer in writers:
                writer.transport.abort()


# ---- the Host


@pytest.mark.parametrize("kind", ["broker", "name_server"])
async def test_only_a_known_host_is_answered(kind: str, request: pytest.FixtureRequest) -> None:
    """Else a web page could read it through a browser of this machine, by a name of its own that leads here."""
    process: Process = request.getfixturevalue(kind)
    refused = ["evil.example", f"evil.example:{process.http_port}", "localhost.evil.example", "", "a b", "127.0.0.1@x"]
    for path in ("/livez", "/metrics"):
        for host in refused:
            head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"
            assert await asked(process.http_port, head) == 421, host
    allowed = ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "10.1.2.3", "service.test", "service.test.:80"]
    allowed += ["broker.test"] if kind == "broker" else []
    for host in allowed:
        assert await asked(process.http_port, f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n") == 200, host
    # Load balancers' checks; a browser always names its host.
    assert await asked(process.http_port, "GET /livez HTTP/1.0\r\n\r\n") == 200


def test_a_refused_host_gets_the_permitted_names(broker: Process) -> None:
    answer = broker.get("/v1/status", TOKEN, Host="evil.example")
    assert answer.status_code == 421
    assert "evil.example" in answer.json()["detail"]
    assert "service.test" in answer.json()["detail"]
