"""Bad input on running servers: an answer or a closed connection, never a crash, a hang or growing memory."""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError
from gantry_broker.remoting.handshake import Identity

from benchmarks.rig import gantry
from benchmarks.rig.processes import Started, free_port, until, usage
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Refused, Wire, read_topic
from tests.fuzz import corpus

INPUTS = int(os.environ.get("GANTRY_FUZZ_INPUTS", "5000"))
FEWER = int(os.environ.get("GANTRY_FUZZ_INPUTS", "1000"))
"""Inputs of a port whose connections cost more."""
PATIENCE_S = 600 + INPUTS // 25
"""For all inputs of one port: a mark counts more than the command line of the nightly run."""
AT_ONCE = 50
ANSWER_S = 20.0
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with gantry.single(tmp_path_factory.mktemp("fuzz"), {"mappedFileSizeCommitLog": 16 * 2**20}) as running:
        yield running


@dataclass
class Proxy:
    """A running proxy: its addresses, process and log."""

    grpc: str
    http: str
    pid: int
    log: Path


@dataclass
class Given:
    """One input and the server's answer before it closed."""

    data: bytes
    answer: bytes = b""
    closed: bool = False


def _give(address: str, inputs: list[bytes], member: Identity | None = None) -> list[Given]:
    """Sends each input over a connection of its own, all at once; then ends the input and reads everything.

    `member`: each connection first proves that it comes from that member.
    """
    given: dict[socket.socket, Given] = {}
    for data in inputs:
        s = Wire(address, 5, member=member).socket
        given[s] = Given(data)
        s.setblocking(False)
    pending = {s: memoryview(g.data) for s, g in given.items()}
    deadline = time.monotonic() + ANSWER_S
    waiting = set(given)
    while waiting and time.monotonic() < deadline:
        readable, writable, _ = select.select(list(waiting), [s for s in pending if s in waiting], [], 0.5)
        for s in writable:
            try:
                sent = s.send(pending[s][:65_536])
                pending[s] = pending[s][sent:]
                if not pending[s]:
                    del pending[s]
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pending.pop(s, None)
        for s in readable:
            try:
                data = s.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            given[s].answer += data
            if not data:
                given[s].closed = True
                waiting.discard(s)
    for s in given:
        s.close()
    return list(given.values())


def _frames(data: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    try:
        return decoder.feed(data)
    except FrameError as error:
        pytest.fail(f"the server answered what is no frame: {error}, {data[:200]!r}")


def _serves(target: Target) -> str:
    """Checks that a normal client works: creates a topic, sends a message and pulls it. Returns the topic."""
    number = next(_NUMBERS)
    topic = f"after-{number}"
    with Wire(target.broker_address) as broker:
        broker.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
             "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while True:
            try:
                broker.call(
                    RequestCode.SEND_MESSAGE,
                    {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
                     "queueId": "0", "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1000)), "flag": "0",
                     "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false"},
                    f"body {number}".encode(),
                )  # fmt: skip
                break
            except Refused:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    deadline = time.monotonic() + 10
    while True:
        try:
            found = [record.body for record in read_topic(target.namesrv, topic)]
        except Refused:
            found = []
        if found == [f"body {number}".encode()]:
            return topic
        assert time.monotonic() < deadline, f"{topic}: {found}"
        time.sleep(0.1)


def _throw(
    target: Target,
    address: str,
    pid: int,
    seed: str,
    member: Identity | None = None,
    *,
    make: Callable[[random.Random], bytes] = corpus.bad_frame,
    check: Callable[[bytes], object] = _frames,
    count: int = INPUTS,
) -> None:
    """`make`: one input; `check` fails for what is no answer of this port."""
    rng = random.Random(seed)
    base = 0
    growth_limit = 40 * 2**20
    done = 0
    while done < count:
        inputs = [make(rng) for _ in range(min(AT_ONCE, count - done))]
        for given in _give(address, inputs, member):
            assert given.closed, f"no answer and no end within {ANSWER_S} s: {given.data[:300]!r}"
            check(given.answer)
        done += len(inputs)
        if done == AT_ONCE * 10:
            base = usage(pid).rss
        if done % 1000 == 0:
            _serves(target)
    _serves(target)
    grown = usage(pid).rss - base
    assert grown < growth_limit, f"{seed}: grew by {grown / 2**20:.1f} MiB over {count} inputs"


@pytest.mark.timeout(PATIENCE_S)
def test_broker(target: Target) -> None:
    _throw(target, target.broker_address, target.broker_pids[0], "live broker")


@pytest.mark.timeout(PATIENCE_S)
def test_name_server(target: Target) -> None:
    _throw(target, target.namesrv, target.namesrv_pid, "live NameServer")


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("member", [None, Identity("demo", "demo-a", 7)], ids=["stranger", "member"])
def test_replication_port(target: Target, member: Identity | None) -> None:
    _throw(target, target.replication, target.broker_pids[0], f"replication port {member}", member)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("member", [None, Identity("demo", "demo-a", 7)], ids=["stranger", "member"])
def test_registration_port(target: Target, member: Identity | None) -> None:
    _throw(target, target.registration, target.namesrv_pid, f"registration port {member}", member)


def _http_answer(answer: bytes) -> None:
    """Nothing, or answers of HTTP, none of which is a fault of the server."""
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
    assert b"HTTP/1.1 500" not in answer, answer[:300]


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("who", ["broker", "NameServer"])
def test_http_port(target: Target, who: str) -> None:
    of_broker = who == "broker"
    address = target.http if of_broker else target.namesrv_http
    pid = target.broker_pids[0] if of_broker else target.namesrv_pid
    seed = f"HTTP port of the {who}"
    _throw(target, address, pid, seed, make=corpus.bad_http, check=_http_answer, count=FEWER)


@pytest.fixture(scope="module")
def proxy(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    ports = free_port(), free_port()
    (folder / "proxy.json").write_text(json.dumps({
        "cluster": "demo", "name_servers": [target.namesrv], "listen_host": "127.0.0.1",
        "port": ports[0], "http_port": ports[1], "drain_s": 0,
    }))  # fmt: skip
    words = [sys.executable, "-m", "gantry_broker.proxy", "--config", str(folder / "proxy.json")]
    with Started(words, folder / "proxy.log") as started:

        def ready() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{ports[1]}/readyz", timeout=1).status_code == 200
            except httpx.HTTPError:
                return False

        until("the proxy", ready, 30, [started])
        yield Proxy(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", started.pid, folder / "proxy.log")


def _http2_answer(answer: bytes) -> None:
    """Nothing, or whole frames of HTTP/2 that a server may send."""
    at = 0
    while at < len(answer):
        size, kind = int.from_bytes(answer[at : at + 3], "big"), answer[at + 3]
        assert kind <= 9, answer[:200]
        at += 9 + size
    assert at == len(answer), "the last frame is cut off"


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("port", ["gRPC", "HTTP"])
def test_ports_of_the_proxy(target: Target, proxy: Proxy, port: str) -> None:
    if port == "gRPC":
        address, make, check = proxy.grpc, corpus.bad_grpc, _http2_answer
    else:
        address, make, check = proxy.http, corpus.bad_http, _http_answer
    _throw(target, address, proxy.pid, f"{port} port of the proxy", make=make, check=check, count=FEWER)
    assert httpx.get(f"http://{proxy.http}/readyz", timeout=10).status_code == 200
    assert "Traceback" not in proxy.log.read_text(), proxy.log.read_text()[-3000:]


@pytest.mark.timeout(120)
def test_oversized_frame_is_answered_then_closed(target: Target) -> None:
    """A frame of 17 MiB that never arrives: its header suffices for an answer with its opaque."""
    head = b'{"code":10,"language":"JAVA","version":399,"opaque":4711,"flag":0,"extFields":{"topic":"x"}}'
    data = (17 * 2**20).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head
    for address in (target.broker_address, target.namesrv):
        (given,) = _give(address, [data])
        assert given.closed
        (answer,) = _frames(given.answer)
        assert answer.is_response
        assert answer.opaque == 4711
        assert answer.code != 0


@pytest.mark.timeout(120)
def test_half_sent_frames_take_no_memory(target: Target) -> None:
    """200 connections that announce 16 MiB each and send 1 KiB of it."""
    pid = target.broker_pids[0]
    before = usage(pid).rss
    host, port = target.broker_address.rsplit(":", 1)
    data = (16 * 2**20).to_bytes(4, "big") + (64).to_bytes(4, "big") + b"{" * 1024
    held = []
    for _ in range(200):
        s = socket.create_connection((host, int(port)), 5)
        s.sendall(data)
        held.append(s)
    _serves(target)
    assert usage(pid).rss - before < 40 * 2**20
    for s in held:
        s.close()


@pytest.mark.timeout(120)
def test_slow_reader_takes_no_memory(target: Target) -> None:
    """A client that requests much and reads nothing: the server stops reading from it."""
    with Wire(target.broker_address) as broker:
        topic = _serves(target)
        for _ in range(64):
            broker.call(
                RequestCode.SEND_MESSAGE,
                {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
                 "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
                 "reconsumeTimes": "0", "unitMode": "false", "batch": "false"},
                bytes(100_000),
            )  # fmt: skip
    pid = target.broker_pids[0]
    before = usage(pid).rss
    host, port = target.broker_address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 5)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(1)
    pull = {
        "consumerGroup": "slow", "topic": topic, "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    try:
        for opaque in range(20_000):
            s.sendall(corpus.json_request(RequestCode.PULL_MESSAGE, opaque, pull))
    except (TimeoutError, ConnectionError):
        pass  # back-pressure, as expected
    grown = usage(pid).rss - before
    s.close()
    assert grown < 64 * 2**20, f"grew by {grown / 2**20:.1f} MiB"
    _serves(target)


def test_closing_in_the_middle(target: Target) -> None:
    """Connections reset in the middle of a frame or before its answer."""
    rng = random.Random("resets")
    host, port = target.broker_address.rsplit(":", 1)
    for _ in range(500):
        s = socket.create_connection((host, int(port)), 5)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, sys.byteorder) + bytes(4))
        s.sendall(rng.choice(corpus.golden()["client->server"])[: rng.randint(1, 400)])
        s.close()
    _serves(target)


@pytest.fixture(autouse=True)
def _still_there(target: Target) -> Iterator[None]:
    yield
    for pid in (*target.broker_pids, target.namesrv_pid):
        assert Path(f"/proc/{pid}").exists(), f"a server is gone: {target.log.read_text()[-3000:]}"
    assert "Traceback" not in target.log.read_text(), target.log.read_text()[-3000:]
